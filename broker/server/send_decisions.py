"""Sends what the ledger decided: deliveries, acknowledgements and credit, refusals."""

from headrace.broker import sanitise
from headrace.broker.ledger.ledger import Ledger
from headrace.broker.ledger.records import Effects, Entry
from headrace.broker.protocol.messages import Outcome, Refusal
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
        counters.add_lag(ledger.state.credit.version - unroll.version_min)
        deliver = entry.deliver(ledger.state.actors[unroll.inc].name)
        learner = roster.get(roster.route_of(entry.session))
        if learner is None:
            ledger.undelivered(entry)
        else:
            replies.bulk(learner, entry.tag, deliver, *(entry.buffers or ()))
    for inc, message in effects.messages():
        replies.send(roster.route_of(inc), message)
    for entry, waited in effects.stale:
        _log_stale(ledger, peer_log, entry, waited)
    for actor in effects.expelled:
        of = f" ({sanitise.words(actor.user)})" if actor.user else ""
        peer_log.log("sampler %s%s is thrown out: %s", actor.name, of, actor.expelled)
        replies.refuse(roster.route_of(actor.inc), Refusal.UNROLLS, actor.expelled)
        roster.forget(actor.inc)


def _log_stale(ledger: Ledger, peer_log: PeerLog, entry: Entry, waited: int) -> None:
    state = ledger.state
    actor = state.actors.get(entry.stream.actor)
    name = actor.name if actor is not None else "that left"
    peer_log.once_a_minute(
        f"stale {name}",
        "an unroll of sampler %s (stream %d) is settled as stale: it waited for %d versions since"
        " its newest step, more than pacing.max_lag_hard = %d; was the sampler cut off? With a"
        " larger pacing.max_lag_hard such are trained (%d are stale so far)",
        name,
        entry.stream.number,
        waited,
        state.max_lag_hard,
        state.outcomes[Outcome.STALE],
    )
