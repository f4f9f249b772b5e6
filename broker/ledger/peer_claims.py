"""Applies what peers claim of unrolls (HELLO, PING, BYE), as far as it can be true. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from headrace.broker.ledger.records import Actor, Entry, Session, Stream
from headrace.broker.ledger.state import LedgerState
from headrace.broker.protocol.messages import Outcome, Payload, Range, Unroll, ranges

# A forged range may not hold the loop for long; honest ones are far shorter.
_MOST_SEQS: Final = 4096
# All ranges of one PING together; what lies beyond waits until those before are settled.
_MOST_LOOKED_AT: Final = 16384

# Stream, floor, next, started, unacknowledged ranges.
ClaimedStream: TypeAlias = tuple[int, int, int, int, tuple[tuple[int, int], ...]]


def adopt_streams(
    state: LedgerState, actor: Actor, streams: Iterable[ClaimedStream], *, acting: int
) -> None:
    """Lets a sampler's streams take part in pacing with their open seqs. `acting`: its weights."""
    for number, floor, following, started, unacked in streams:
        stream = state.stream(actor, number)
        stream.forget_below(floor)
        stream.acting = max(stream.acting, acting)
        open_ = {seq for lo, hi in unacked for seq in range(lo, min(hi, lo + _MOST_SEQS))}
        for seq in range(floor, min(following, floor + _MOST_SEQS)):
            if seq not in open_ and not stream.known(seq):
                stream.settled[seq] = Outcome.TRAINED  # or another: an earlier broker knew
        # Credit that this broker gave stays given: a LIMIT may be on its way while a second
        # HELLO comes in, and a PING repeats it if it got lost.
        limit = max(started, following, stream.limit if stream.joined else 0)
        # Nobody can have trained what was not started yet.
        for seq in [seq for seq in stream.settled if seq >= limit]:
            del stream.settled[seq]
        absent = sum(1 for seq in open_ if not stream.known(seq))
        ahead = sum(1 for seq in (*stream.present, *stream.settled) if seq >= following)
        state.credit.join(stream, arrived=following - absent + ahead, started=limit)
        actor.granted.add(number)


def mark_trained(
    state: LedgerState, inc: int, number: int, done: Sequence[tuple[int, int]]
) -> None:
    """Marks what a learner says it trained: it is never delivered again."""
    stream = state.stream_of(inc, number)
    for lo, hi in done:
        start = max(lo, stream.floor)
        if stream.joined:
            hi = min(hi, stream.limit)  # the others were not even started
        for seq in range(start, min(hi, start + _MOST_SEQS)):
            entry = stream.present.get(seq)
            if entry is not None:
                state.settle(entry, Outcome.TRAINED)
            elif seq not in stream.settled:
                stream.settled[seq] = Outcome.TRAINED
                if stream.joined and seq < stream.limit:
                    state.credit.trained_before_restart(stream)


def adopt_held(
    state: LedgerState, session: Session, held: Sequence[tuple[int, int, int, int]]
) -> None:
    """Leases to a learner what it says it holds, though a new broker never saw the bodies."""
    said = {tag for tag, *_ in held}
    for lost in reversed([e for tag, e in session.leases.items() if tag not in said]):
        state.redeliver(lost)
    state.leases.reserve_tags([tag for tag, *_ in held])
    for tag, inc, number, seq in held:
        stream = state.stream_of(inc, number)
        if stream.outcome_of(seq) is not None or tag in session.leases:
            continue
        if stream.joined and seq >= stream.limit:
            continue  # it was not even started
        entry = stream.present.get(seq)
        if entry is None:
            entry = _without_body(stream, seq)
            state.add(entry)
        if entry.tag < 0:
            state.leases.lease(session, entry, tag)


def find_lost(state: LedgerState, actor: Actor, unacked: Sequence[Range]) -> tuple[Range, ...]:
    """Returns what a sampler sent and is not here; acknowledges again what is settled."""
    lost: dict[int, list[int]] = {}  # by stream; what was not granted yet is not asked for
    left = _MOST_LOOKED_AT
    for number, lo, hi in unacked:
        stream = actor.streams.get(number)
        if stream is None or lo < 0:
            continue
        most = min(_MOST_SEQS, left)
        left -= max(0, min(hi - lo, most))
        for seq in range(lo, min(hi, lo + most)):
            outcome = stream.outcome_of(seq)
            if outcome is not None:
                state.ack(stream, seq, outcome)
            elif seq not in stream.present and seq < stream.limit:
                named = lost.setdefault(number, [])
                if not stream.unbacked or len(named) < stream.outstanding:
                    named.append(seq)
    return tuple((n, lo, hi) for n, seqs in lost.items() for lo, hi in ranges(seqs))


def abandon(state: LedgerState, actor: Actor, abandoned: Sequence[Range]) -> None:
    """Ends what a sampler gives up, unless a learner has it."""
    for number, lo, hi in abandoned:
        stream = actor.streams.get(number)
        if stream is None or lo < 0:
            continue
        for seq in range(lo, min(hi, lo + _MOST_SEQS, stream.limit)):  # others never started
            entry = stream.present.get(seq)
            if entry is None and not stream.known(seq):
                entry = _without_body(stream, seq)
                state.add(entry)
            if entry is not None and entry.tag < 0:
                state.settle(entry, Outcome.ABANDONED)


def add_copy(
    state: LedgerState, stream: Stream, unroll: Unroll, buffers: Sequence[Payload], nbytes: int
) -> None:
    """Takes an unroll that came before; settled ones are acknowledged once more."""
    state.copies += 1
    outcome = stream.outcome_of(unroll.seq)
    if outcome is not None:
        state.ack(stream, unroll.seq, outcome)
        return
    entry = stream.present[unroll.seq]
    if entry.buffers is None and state.nbytes + nbytes <= state.queue_bytes:
        # Adopted because a learner holds it; now there is a body to deliver again.
        entry.unroll, entry.buffers, entry.nbytes = unroll, buffers, nbytes
        state.nbytes += nbytes


def _without_body(stream: Stream, seq: int) -> Entry:
    """Returns an unroll that came here only by the word of a peer."""
    return Entry(stream, Unroll(stream.actor, stream.number, seq, 0, 0, 0, 0, 0), None, 0)
