"""Believes what a HELLO says of unrolls that are not here, as far as it can be true. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from broker.book import Book
from broker.records import Actor, Entry, Session
from broker.wire import Outcome, Unroll

# A forged range may not hold the loop for long; honest ones are far shorter.
MOST_SEQS: Final = 4096

# Stream, floor, next, started, unacknowledged ranges.
Said: TypeAlias = tuple[int, int, int, int, tuple[tuple[int, int], ...]]


def adopt_streams(book: Book, actor: Actor, streams: Iterable[Said], *, acting: int) -> None:
    """Its streams take part in pacing, with what is open in them. `acting`: its weights."""
    for number, floor, following, started, unacked in streams:
        stream = book.stream(actor, number)
        stream.forget_below(floor)
        stream.acting = max(stream.acting, acting)
        open_ = {seq for lo, hi in unacked for seq in range(lo, min(hi, lo + MOST_SEQS))}
        for seq in range(floor, min(following, floor + MOST_SEQS)):
            if seq not in open_ and not stream.known(seq):
                stream.settled[seq] = Outcome.TRAINED  # or so: a broker before us knew
        # Credit that this broker gave stays given: a LIMIT may be on its way while a second
        # HELLO comes in, and a PING repeats it if it got lost.
        limit = max(started, following, stream.limit if stream.joined else 0)
        # Nobody can have trained what was not started yet.
        for seq in [seq for seq in stream.settled if seq >= limit]:
            del stream.settled[seq]
        absent = sum(1 for seq in open_ if not stream.known(seq))
        ahead = sum(1 for seq in (*stream.present, *stream.settled) if seq >= following)
        book.credit.join(stream, arrived=following - absent + ahead, started=limit)
        actor.granted.add(number)


def mark_trained(book: Book, inc: int, number: int, done: Sequence[tuple[int, int]]) -> None:
    """A learner trained these: they never are delivered again."""
    stream = book.known_to(inc, number)
    for lo, hi in done:
        start = max(lo, stream.floor)
        if stream.joined:
            hi = min(hi, stream.limit)  # the others were not even started
        for seq in range(start, min(hi, start + MOST_SEQS)):
            entry = stream.present.get(seq)
            if entry is not None:
                book.settle(entry, Outcome.TRAINED)
            elif seq not in stream.settled:
                stream.settled[seq] = Outcome.TRAINED
                if stream.joined and seq < stream.limit:
                    book.credit.arrived_before(stream)


def adopt_held(book: Book, session: Session, held: Sequence[tuple[int, int, int, int]]) -> None:
    """What a learner holds is leased to it, though a new broker never saw the body."""
    said = {tag for tag, *_ in held}
    for lost in reversed([e for tag, e in session.leases.items() if tag not in said]):
        book.redeliver(lost)
    book.leases.never_again([tag for tag, *_ in held])
    for tag, inc, number, seq in held:
        stream = book.known_to(inc, number)
        if stream.outcome_of(seq) is not None or tag in session.leases:
            continue
        if stream.joined and seq >= stream.limit:
            continue  # it was not even started
        entry = stream.present.get(seq)
        if entry is None:
            entry = Entry(stream, Unroll(inc, number, seq, 0, 0, 0, 0, 0), None, 0)
            book.take(entry)
        if entry.tag < 0:
            book.leases.lease(session, entry, tag)
