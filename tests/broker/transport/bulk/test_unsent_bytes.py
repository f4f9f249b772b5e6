"""What waits at ZeroMQ for each connection, counted by what has left."""

from collections import deque
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.transport.bulk import unsent_bytes
from headrace.broker.transport.bulk.unsent_bytes import MOST_BULK, MOST_IN_ALL, UnsentBytes

KIB = 1 << 10
CHUNK = 128 * KIB


class Line:
    """A ROUTER whose peers take messages when they are told to, in order."""

    def __init__(self) -> None:
        self.pipes = UnsentBytes()
        self.waiting: dict[bytes, deque[tuple[int, Callable[[], None] | None]]] = {}

    def send(self, route: bytes, size: int, *, bulk: bool = True, **limits: int) -> bool:
        if not self.pipes.has_room(route, size, bulk=bulk, **limits):
            marked = any(left is not None for _, left in self.waiting[route])
            assert marked, "else nobody would be told that there is room again"
            return False
        most = limits.get("most", MOST_BULK)
        left = self.pipes.count(route, size, bulk=bulk, most=most)
        self.waiting.setdefault(route, deque()).append((size, left))
        return True

    def fill(self, route: bytes, size: int, *, bulk: bool = True, **limits: int) -> int:
        sent = 0
        while sent < 10_000 and self.send(route, size, bulk=bulk, **limits):
            sent += 1
        return sent

    def reads(self, route: bytes, messages: int = 10_000) -> None:
        for _ in range(min(messages, len(self.waiting[route]))):
            _, left = self.waiting[route].popleft()
            if left is not None:
                left()

    def bytes(self) -> int:
        return sum(size for line in self.waiting.values() for size, _ in line)


def test_who_does_not_read_is_given_so_much_and_who_reads_all_it_wants() -> None:
    line = Line()
    assert line.fill(b"a", CHUNK) == MOST_BULK // CHUNK
    assert line.fill(b"b", CHUNK) == MOST_BULK // CHUNK, "one does not take another's room"
    line.reads(b"a", 1)
    assert line.fill(b"a", CHUNK) == 1
    for _ in range(1000):
        line.reads(b"b")
        assert line.fill(b"b", CHUNK) == MOST_BULK // CHUNK
    line.reads(b"a")
    line.reads(b"b")
    assert line.pipes.nbytes == 0


def test_one_larger_than_all_that_may_wait_goes_when_nothing_waits() -> None:
    line = Line()
    assert line.fill(b"a", 8 << 20) == 1
    line.reads(b"a")
    assert line.fill(b"a", 8 << 20) == 1


def test_small_messages_pass_beside_bulk_and_have_a_bound_of_their_own() -> None:
    line = Line()
    line.fill(b"a", CHUNK)
    sent = line.fill(b"a", 4 * KIB, bulk=False)
    assert sent == 64
    line.reads(b"a")
    assert line.fill(b"a", 4 * KIB, bulk=False) > 0
    line.reads(b"a")
    assert line.pipes.nbytes == 0


def test_of_all_together_so_much_and_then_one_message_each() -> None:
    line = Line()
    full = MOST_IN_ALL // (MOST_BULK // CHUNK * CHUNK)
    for number in range(full):
        assert line.fill(b"%d" % number, CHUNK) == 4
    for number in range(full, 2 * full):
        assert line.fill(b"%d" % number, CHUNK) == 1, "nobody gets nothing"
    assert line.fill(b"learner", CHUNK, most=64 << 20, in_all=64 << 20) > 4
    line.reads(b"0")
    assert line.fill(b"0", CHUNK) == 1


def test_marks_are_rare_where_much_may_wait() -> None:
    line = Line()
    for number in range(1024):
        assert line.send(b"learner", 4 * KIB, most=64 << 20, in_all=64 << 20)
        assert line.send(b"actor%d" % (number // 64), 4 * KIB)
    marks = {
        route: sum(left is not None for _, left in waiting)
        for route, waiting in line.waiting.items()
    }
    assert marks.pop(b"learner") == 4 and set(marks.values()) == {4}


@given(
    st.sampled_from([1 << 20, 3 << 20, 64 << 20]),
    st.lists(st.tuples(st.booleans(), st.integers(1, 2000 * KIB), st.integers(0, 3)), max_size=100),
)
def test_where_much_may_wait_it_never_sticks_either(
    most: int, steps: list[tuple[bool, int, int]]
) -> None:
    line = Line()
    for bulk, size, read in steps:
        line.send(b"a", size, bulk=bulk, most=most, in_all=most)
        line.reads(b"a", read) if line.waiting else None
        assert line.pipes.nbytes >= line.bytes() - min(most // 8, 1024 * KIB)
    if line.waiting:
        line.reads(b"a")
        assert line.send(b"a", 10**9, most=most) and line.send(b"a", 10**9, bulk=False)


def test_who_has_room_again_is_told() -> None:
    line = Line()
    told: list[bytes] = []
    line.pipes.drained = told.append
    line.fill(b"a", CHUNK)
    assert told == []
    line.reads(b"a", 1)
    assert told == [b"a"]


def test_connections_are_forgotten_when_there_are_too_many() -> None:
    line = Line()
    line.fill(b"waits", CHUNK)
    for number in range(40_000):
        line.send(b"%d" % number, 10, bulk=False)
    assert len(line.pipes._pipes) == unsent_bytes._MOST_PIPES
    assert not line.send(b"waits", CHUNK), "not one whose bytes are still here"
    line.reads(b"waits")
    assert line.pipes.nbytes == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"a", b"b", b"c"]),
            st.booleans(),
            st.integers(1, 300 * KIB),
            st.integers(0, 3),
        ),
        max_size=300,
    )
)
def test_the_count_is_what_waits_and_it_never_sticks(
    steps: list[tuple[bytes, bool, int, int]],
) -> None:
    line = Line()
    for route, bulk, size, read in steps:
        line.send(route, size, bulk=bulk)
        line.reads(route, read) if route in line.waiting else None
        # Less the rests that are not marked yet, more what was read since the last mark.
        assert line.pipes.nbytes >= line.bytes() - 3 * 64 * KIB
        assert line.bytes() <= 3 * (MOST_BULK + 256 * KIB + 2 * 300 * KIB)
    for route in line.waiting:
        line.reads(route)
        assert line.send(route, 10**9) and line.send(route, 10**9, bulk=False)
