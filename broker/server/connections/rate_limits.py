"""Rate limits (GCRA) and size limits on what peers send. Pure; callers pass `now`.

    a message   over a rate -------> dropped, counted; the next beat says again what mattered
                from a stranger ---> RESYNC, a few times a second; a bounded table of strangers
                too large ---------> dropped, counted
                about another's ---> dropped, counted
                else --------------> its handler

A rate is a bucket: one number, the moment until which what was taken has been paid for. A message
is taken while that moment lies less than a burst ahead, so that one larger than a burst passes too.
"""

from collections.abc import Sequence
from typing import Final

from headrace.broker.config import BrokerConfig
from headrace.broker.protocol.messages import (
    MAX_BUFFERS,
    Bundle,
    Chunk,
    Delta,
    Hello,
    Message,
    Open,
    Piece,
    Range,
    Unroll,
)
from headrace.broker.server.connections.route import Route

# Why a message was not taken; the closed set of the metric's label.
REASONS: Final = (
    "malformed",  # bytes that are no message
    "protocol",  # another release, told so too often
    "unknown",  # from a route that said no HELLO
    "unexpected",  # not a message of this role
    "identity",  # speaks of another's incarnation, lease or weights
    "credit",  # an unroll that was not granted
    "numbers",  # impossible figures: not finite, reversed, from the future
    "size",  # larger than it can honestly be
    "rate",  # over a rate of [broker]
    "hello",  # HELLO too often
    "room",  # no memory now for what comes in pieces; its sampler is asked for it again
)

_BURST_S: Final = 1.0
_HELLO_BURST: Final = 10
_FEWEST_GREETED_S: Final = 100
# Routes of strangers remembered; the oldest are forgotten first.
_MOST_STRANGERS: Final = 4096
# Samplers behind nodes cost no descriptors: there may be more of them than of peers that connect.
_MEMBERS_A_PEER: Final = 8
# Most bytes of an HelloPayload, by role: the spaces in words, and a little for each stream.
_WORDS_BYTES: Final = 64 << 10
_STREAM_BYTES: Final = 1 << 10
_LEARNER_BYTES: Final = 16 << 20
# Looking at 8 seqs costs as much as a small message.
_SEQS_A_MESSAGE: Final = 8
_MOST_SEQS: Final = 4096
# Lines about peers in the log: a flood of bad messages must not become a flood of lines.
_LINES_S, _LINES_BURST_S = 20.0, 10.0
# Buffers that a message may bring; one that is not named brings none. An unroll brings many.
_BUFFERS: Final[dict[type[Message], int]] = {
    Hello: 1,
    Chunk: 1,
    Delta: 1,
    Open: 2,
    Piece: MAX_BUFFERS,
    Bundle: MAX_BUFFERS,
}


class ConnectionBudget:
    """Holds the rate-limit state of one connection (GCRA): each attribute is the moment until which
    what was taken is paid for."""

    __slots__ = ("answered", "bytes", "hello", "messages")

    def __init__(self) -> None:
        self.messages = 0.0
        self.bytes = 0.0
        self.hello = 0.0
        self.answered = 0.0  # RESYNC or another protocol's REFUSE: no sooner again than then


class RateLimits:
    """Limits what peers may send: how often, how much, and how many peers there may be."""

    def __init__(self, config: BrokerConfig) -> None:
        self.peers = config.peers
        self.streams = config.streams
        # Seconds of a rate that one message, one byte use up.
        self._peer_message_s = 1.0 / config.peer_messages_s
        self._peer_byte_s = 1.0 / (config.peer_mb_s * 2**20)
        self._message_s = 1.0 / config.messages_s
        self._byte_s = 1.0 / (config.mb_s * 2**20)
        self._hello_s = 1.0 / config.hello_s
        self._messages = 0.0  # all peers' together, paid for until then
        self._bytes = 0.0
        # HELLOs and answers to strangers: after a restart all peers are in within a second or two.
        self._greeted = 0.0
        self._lines = 0.0  # in the log
        self._most_unroll = 0  # bytes; 0 = no learner has said how large they are
        self._strangers: dict[Route, ConnectionBudget] = {}

    def no_room_reason(
        self, peers: int, *, known: bool, streams: int, behind_node: bool = False
    ) -> str:
        """Returns, in words for its user, why there is no room for a peer with that many streams;
        "" = there is. `peers`: those here, who all are behind nodes if this one is, or none is."""
        most = self.peers * (_MEMBERS_A_PEER if behind_node else 1)
        if peers >= most and not known:
            where = " behind nodes" if behind_node else ""
            return f"the broker has {peers} peers{where} already; raise broker.peers"
        if streams > self.streams:
            return (
                f"{streams} streams, and one sampler may have {self.streams};"
                " start more samplers, or raise broker.streams"
            )
        return ""

    def takes_message(self, budget: ConnectionBudget, size: int, now: float) -> bool:
        """Takes a message from its peer's rates and from all peers', or takes nothing: False."""
        until = now + _BURST_S
        messages, nbytes = budget.messages, budget.bytes
        all_messages, all_bytes = self._messages, self._bytes
        if messages > until or nbytes > until or all_messages > until or all_bytes > until:
            return False
        budget.messages = (messages if messages > now else now) + self._peer_message_s
        budget.bytes = (nbytes if nbytes > now else now) + size * self._peer_byte_s
        self._messages = (all_messages if all_messages > now else now) + self._message_s
        self._bytes = (all_bytes if all_bytes > now else now) + size * self._byte_s
        return True

    def charge(self, budget: ConnectionBudget, *, messages: int = 0, nbytes: int = 0) -> None:
        """Charges what an answer costs beyond its question, after `takes_message`."""
        budget.messages += messages * self._peer_message_s
        budget.bytes += nbytes * self._peer_byte_s
        self._messages += messages * self._message_s
        self._bytes += nbytes * self._byte_s

    def unknown_budget(self, route: Route) -> ConnectionBudget:
        """Returns the budget of a route that said no HELLO yet."""
        budget = self._strangers.get(route)
        if budget is None:
            if len(self._strangers) >= _MOST_STRANGERS:
                del self._strangers[next(iter(self._strangers))]
            budget = self._strangers[route] = ConnectionBudget()
        return budget

    def forget_unknown(self, route: Route) -> None:
        """Forgets a route that said HELLO: its budget is its peer's now."""
        self._strangers.pop(route, None)

    def may_answer(self, budget: ConnectionBudget, now: float) -> bool:
        """Tells whether this stranger may be told to say HELLO, or which protocol we speak."""
        if now < budget.answered or not self._greets_all(now):
            return False
        budget.answered = now + self._hello_s
        return True

    def takes_hello(self, budget: ConnectionBudget, now: float) -> bool:
        """Tells whether this HELLO is within the rates, and takes it from them."""
        hello = max(budget.hello, now)
        if hello > now + (_HELLO_BURST - 0.99) * self._hello_s or not self._greets_all(now):
            return False
        budget.hello = hello + self._hello_s
        return True

    def _greets_all(self, now: float) -> bool:
        """Takes one from the rate that all HELLOs and answers to strangers share."""
        if self._greeted > now + _BURST_S:
            return False
        self._greeted = max(self._greeted, now) + 1.0 / max(self.peers, _FEWEST_GREETED_S)
        return True

    def set_unroll_size(self, unroll_bytes: int) -> None:
        """Sets how large an unroll is, by a learner's word. An incompressible image grows a bit."""
        self._most_unroll = unroll_bytes + unroll_bytes // 64 + 8192 if unroll_bytes else 0

    def has_honest_size(self, message: Message, buffers: Sequence[object], size: int) -> bool:
        """Tells whether a message of this type and role can honestly have that size."""
        if type(message) is Unroll:
            return size <= self._most_unroll or not self._most_unroll
        if len(buffers) > _BUFFERS.get(type(message), 0):
            return False
        return not isinstance(message, Hello) or size <= self._most_introduction(message.role)

    def _most_introduction(self, role: str) -> int:
        if role == "learner":
            return _LEARNER_BYTES
        return _WORDS_BYTES + (_STREAM_BYTES * self.streams if role == "actor" else 0)

    def may_log(self, now: float) -> bool:
        """Tells whether one more complaint may go into the log."""
        if self._lines > now + _LINES_BURST_S:
            return False
        self._lines = max(self._lines, now) + 1.0 / _LINES_S
        return True


def cost_in_messages(ranges: Sequence[Range]) -> int:
    """Returns what looking at these seqs costs, in messages."""
    return sum(max(0, min(hi - lo, _MOST_SEQS)) for _, lo, hi in ranges) // _SEQS_A_MESSAGE
