"""A scrape that comes in the middle of a move sees no gap; one that is there it sees."""

import threading

from broker.steady import steady


def test_a_moment_is_not_a_gap() -> None:
    looks = iter([1, -1, 0, 5])
    assert steady(lambda: next(looks)) == 0
    assert next(looks) == 5


def test_a_gap_stays() -> None:
    assert steady(lambda: 3) == 3


def test_beside_a_thread_that_counts() -> None:
    """The same sum, looked at once, is wrong now and then."""
    counters, stop = [0, 0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            counters[0] += 1
            sum(range(50))  # another thread may have its turn here
            counters[1] += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        assert [steady(lambda: counters[0] - counters[1]) for _ in range(50)] == [0] * 50
    finally:
        stop.set()
        thread.join()
