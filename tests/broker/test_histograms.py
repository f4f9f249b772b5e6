"""A scrape that comes in the middle of a move sees no gap; one that is there it sees."""

import threading

from headrace.broker.histograms import settled_sum


def test_a_moment_is_not_a_gap() -> None:
    looks = iter([1, -1, 0, 5])
    assert settled_sum(lambda: next(looks)) == 0
    assert next(looks) == 5


def test_a_gap_stays() -> None:
    assert settled_sum(lambda: 3) == 3


def test_beside_a_thread_in_the_middle_of_a_move() -> None:
    """The first look falls between the two counters; the next comes when the move is over."""
    counters, between, go_on = [0, 0], threading.Event(), threading.Event()
    seen: list[int] = []

    def move() -> None:
        counters[0] += 1
        between.set()
        go_on.wait()
        counters[1] += 1

    def look() -> int:
        seen.append(counters[0] - counters[1])
        go_on.set()
        thread.join()
        return seen[-1]

    thread = threading.Thread(target=move)
    thread.start()
    between.wait()
    assert settled_sum(look) == 0
    assert seen == [1, 0]
