"""Keeps snapshots of a made-up past: they cover all of it, and their number has a bound."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.weights.snapshots import Snapshots


def kept_after(versions: list[int], *, every: int, keep: int) -> list[int]:
    snapshots: Snapshots[int] = Snapshots(every=every, keep=keep)
    for version in versions:
        if snapshots.due(version):
            snapshots.add(version, version)
    return list(snapshots.kept)


def test_twice_as_many_versions_lie_between_them_whenever_there_are_too_many() -> None:
    def after(last: int) -> list[int]:
        return kept_after(list(range(last + 1)), every=10, keep=4)

    assert after(30) == [0, 10, 20, 30]
    assert after(40) == after(59) == [0, 20, 40]
    assert after(60) == [0, 20, 40, 60]
    assert after(200) == [0, 80, 160]


def test_who_comes_late_covers_the_rest_evenly() -> None:
    kept = kept_after(list(range(1005, 3000)), every=10, keep=8)
    gaps = [after - before for before, after in itertools.pairwise(kept)]
    assert len(kept) > 4 and len(set(gaps[1:])) == 1


@given(
    steps=st.lists(st.integers(1, 30), max_size=60),
    first=st.integers(0, 10_000),
    every=st.integers(1, 20),
    keep=st.integers(1, 9),
)
def test_they_are_few_and_were_there(steps: list[int], first: int, every: int, keep: int) -> None:
    """Versions may be missed, and a sampler may come late."""
    versions = [first]
    for step in steps:
        versions.append(versions[-1] + step)
    kept = kept_after(versions, every=every, keep=keep)
    assert len(kept) <= keep and kept == sorted(set(kept))
    assert set(kept) <= set(versions)


def test_who_takes_up_what_others_kept_goes_on_as_they_do() -> None:
    theirs: Snapshots[int] = Snapshots(every=10, keep=4)
    for version in range(700):
        if theirs.due(version):
            theirs.add(version, version)
    ours: Snapshots[int] = Snapshots(every=10, keep=4)
    for version in theirs.kept:
        assert ours.due(version)
        ours.add(version, version)
    for version in range(700, 2000):
        for one in (ours, theirs):
            if one.due(version):
                one.add(version, version)
        assert list(ours.kept) == list(theirs.kept)


def test_what_was_undone_is_forgotten() -> None:
    snapshots: Snapshots[int] = Snapshots(every=10, keep=4)
    for version in (0, 10, 20, 30):
        snapshots.add(version, version)
    snapshots.undo(31)
    assert list(snapshots.kept) == [0, 10, 20, 30] and not snapshots.due(31)
    snapshots.undo(20)
    assert list(snapshots.kept) == [0, 10] and snapshots.due(20) and not snapshots.due(19)
    snapshots.undo(0)
    assert not snapshots.kept and snapshots.due(0)


def test_none_are_kept() -> None:
    assert not Snapshots[int](every=1, keep=0).due(5)


@given(known=st.integers(0, 200), keep=st.integers(2, 8), after=st.integers(0, 200))
def test_those_that_come_late_leave_no_other_past(known: int, keep: int, after: int) -> None:
    """Covers the past evenly, too, where it is told after the newest."""
    theirs: Snapshots[int] = Snapshots(every=1, keep=keep)
    for version in range(known):
        if theirs.due(version):
            theirs.add(version, version)
    ours: Snapshots[int] = Snapshots(every=1, keep=keep)
    ours.add(known, known)
    for version in theirs.kept:
        if ours.lacks(version):
            ours.add_earlier(version, version)
    for version in range(known + 1, known + after):
        if ours.due(version):
            ours.add(version, version)
    kept = list(ours.kept)
    assert kept == sorted(kept) and len(kept) <= keep
    gaps = [after - before for before, after in itertools.pairwise(kept)]
    assert max(gaps, default=0) <= 4 * (known + after) / keep + 2
