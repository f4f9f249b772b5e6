"""A flood of lines is a trickle in the log."""

from headrace.broker.line_limiter import LineLimiter


def test_the_same_line_comes_once_a_minute() -> None:
    lines = LineLimiter()
    assert [now for now in range(130) if lines.allows("refused", float(now))] == [0, 60, 120]


def test_others_come_at_once_but_only_so_many_of_them() -> None:
    lines = LineLimiter()
    assert sum(lines.allows(f"refused {n}", 0.0) for n in range(1000)) == 256
    assert not lines.allows("refused 1000", 59.0)
    assert lines.allows("refused 1000", 60.0)


def test_what_was_forgotten_comes_again() -> None:
    lines = LineLimiter()
    assert lines.allows("refused", 0.0)
    lines.clear()
    assert lines.allows("refused", 1.0)
