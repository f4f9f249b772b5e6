"""The messages that the ledger hears: unrolls, credit given back, leases that ended."""

from collections.abc import Sequence

from headrace.broker import sanitise
from headrace.broker.ledger.ledger import BeyondCreditError, Ledger
from headrace.broker.protocol.messages import Buffer, Done, Nack, Outcome, Payload, Returned, Unroll
from headrace.broker.server.connections.counters import Counters
from headrace.broker.server.connections.peer_log import PeerLog
from headrace.broker.server.connections.roster import Peer


class UnrollMessages:
    """Tells the ledger what samplers and learners say of unrolls. One method for each message."""

    def __init__(self, ledger: Ledger, counters: Counters, peer_log: PeerLog) -> None:
        self._ledger = ledger
        self._counters = counters
        self._peer_log = peer_log

    def unroll(self, peer: Peer, message: Unroll, buffers: Sequence[Payload]) -> None:
        unroll = sanitise.honest(message)
        if unroll is None:
            self._peer_log.dropped("numbers", "%s: its versions are reversed", peer.name)
            return
        size = sum(map(len, buffers))
        self._counters.unroll_bytes += size
        try:
            if not peer.spaces:
                raise BeyondCreditError("it has no environment")
            self._ledger.unroll(unroll, buffers, size)
        except BeyondCreditError as error:
            self._peer_log.dropped("credit", "%s: not granted: %s", peer.name, error)

    def returned(self, peer: Peer, message: Returned, _: Sequence[Buffer]) -> None:
        if peer.spaces:
            self._ledger.returned(peer.inc, message.streams)

    def done(self, peer: Peer, message: Done, _: Sequence[Buffer]) -> None:
        self._ledger.done(peer.inc, message.tags)
        self._ledger.learner_heard(
            peer.inc, peer.heard_at, version=message.version, want=message.want
        )

    def nack(self, peer: Peer, message: Nack, _: Sequence[Buffer]) -> None:
        if message.outcome in (Outcome.REJECTED, Outcome.DUPLICATE, Outcome.ABANDONED):
            blame = sanitise.words(message.reason or "no reason given") if message.blame else ""
            self._ledger.nack(peer.inc, message.tags, Outcome(message.outcome), blame)
