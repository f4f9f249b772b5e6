"""Sends what the ledger decided: deliveries, acknowledgements and credit, refusals."""

from headrace.broker import sanitise
from headrace.broker.ledger.ledger import Ledger
from headrace.broker.ledger.records import Effects
from headrace.broker.protocol.messages import Refusal
from headrace.broker.server.connections.counters import Counters
from headrace.broker.server.connections.peer_log import PeerLog
from headrace.broker.server.connections.replies import Replies
from headrace.broker.server.connections.roster import Roster


def send(
    effects: Effects,
    *,
    ledger: Ledger,
    roster: Roster,
    replies: Replies,
    counters: Counters,
    peer_log: PeerLog,
) -> None:
    """Sends all of it; a delivery to a session that is gone goes back into the queue."""
    for entry in effects.deliver:
        unroll = entry.unroll
        counters.lag(ledger.state.credit.version - unroll.version_min)
        deliver = entry.deliver(ledger.state.actors[unroll.inc].name)
        learner = roster.get(roster.route(entry.session))
        if learner is None:
            ledger.undelivered(entry)
        else:
            replies.bulk(learner, entry.tag, deliver, *(entry.buffers or ()))
    for inc, message in effects.messages():
        replies.send(roster.route(inc), message)
    for actor in effects.expelled:
        of = f" ({sanitise.words(actor.user)})" if actor.user else ""
        peer_log.log("sampler %s%s is thrown out: %s", actor.name, of, actor.expelled)
        replies.refuse(roster.route(actor.inc), Refusal.UNROLLS, actor.expelled)
        roster.forget(actor.inc)
