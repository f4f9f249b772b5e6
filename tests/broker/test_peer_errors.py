"""Errors that peers report: bounded at both ends, and every one is counted."""

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker import peer_errors
from headrace.broker.peer_errors import (
    MOST_KEPT,
    MOST_SHOWN,
    MOST_TEXT,
    MOST_WAITING,
    PeerErrors,
    UnreportedErrors,
)

# Few kinds, so that some are the same; and whatever else a str can hold.
AWKWARD = st.sampled_from("\n\r\0\x1b\x85\u2028\ud800\udc80\U0001f40e")
WILD = st.lists(st.characters() | AWKWARD, max_size=20).map("".join)
TEXTS = st.one_of(
    st.from_regex(r"env [0-9]{1,3} (broke|hung) at 0x[0-9a-f]{4}", fullmatch=True), WILD
)
TIMES = st.sampled_from([1, 1, 1, 2, 500])  # the text again and again
ROLES = st.sampled_from(["actor", "learner", "evaluator", "node"])


def folded(text: str) -> str:
    return re.sub(r"0[xX][0-9a-fA-F]+|[0-9]+", "0", peer_errors.line(text))


def test_texts_that_differ_in_numbers_are_one_trouble() -> None:
    table = PeerErrors()
    table.add("actor", "node7-3", "env 3 failed, seed 17", 1, 10.0)
    table.add("actor", "node9-1", "env 17 failed, seed 4", 2, 12.0)
    table.add("learner", "learner-0", "env 3 failed, seed 17", 1, 11.0)
    assert table.shown(15.0) == [
        {
            "role": "learner",
            "name": "learner-0",
            "text": "env 3 failed, seed 17",
            "count": 1,
            "ago_s": 4.0,
        },
        {
            "role": "actor",
            "name": "node7-3",
            "text": "env 3 failed, seed 17",
            "count": 3,
            "ago_s": 3.0,
        },
    ]
    assert table.totals == {"actor": 3, "learner": 1}


@pytest.mark.parametrize("other", ["env 3 failed!", "env three failed", "env 3.5 failed"])
def test_other_texts_are_other_peer_errors(other: str) -> None:
    assert peer_errors.kind("env 3 failed") != peer_errors.kind(other)


def test_the_longest_silent_is_forgotten() -> None:
    table = PeerErrors()
    words = [chr(ord("a") + at // 26) + chr(ord("a") + at % 26) for at in range(MOST_KEPT + 1)]
    for at, word in enumerate(words[:-1]):
        table.add("actor", "", word, 1, float(at))
    table.add("actor", "", words[0], 1, 100.0)
    table.add("actor", "", words[-1], 1, 101.0)
    assert [entry["text"] for entry in table.shown(101.0)][:3] == [words[-1], words[0], words[-2]]
    table.add("actor", "", words[1], 1, 102.0)  # it was forgotten, so it begins anew
    table.add("actor", "", words[0], 1, 103.0)
    assert [entry["count"] for entry in table.shown(103.0)][:2] == [3, 1]
    assert table.totals["actor"] == MOST_KEPT + 4


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            ROLES, WILD, st.tuples(TEXTS, TIMES), st.integers(-(2**63), 2**63), st.floats(0, 9)
        )
    )
)
def test_the_table_is_bounded_printable_and_counts_all(
    said: list[tuple[str, str, tuple[str, int], int, float]],
) -> None:
    table, now = PeerErrors(), 0.0
    model: dict[tuple[str, str], tuple[int, float]] = {}  # by kind: count, last
    for role, name, (text, times), count, later in said:
        now, text = now + later, text * times
        table.add(role, name, text, count, now)
        before, _ = model.pop((role, folded(text)), (0, 0.0))
        model[role, folded(text)] = before + min(max(count, 1), 1_000_000), now
        if len(model) > MOST_KEPT:
            del model[next(iter(model))]
    shown = table.shown(now)
    assert [(entry["role"], entry["count"], entry["ago_s"]) for entry in shown] == [
        (role, count, now - last) for (role, _), (count, last) in list(model.items())[::-1]
    ][:MOST_SHOWN]
    for entry in shown:
        assert entry["text"].isprintable() and entry["name"].isprintable()
        assert len(entry["text"]) <= MOST_TEXT
    totals: Counter[str] = Counter()
    for role, _, _, count, _ in said:
        totals[role] += min(max(count, 1), 1_000_000)
    assert table.totals == totals


@pytest.mark.slow
@given(st.lists(st.one_of(st.none(), st.tuples(TEXTS, TIMES)), max_size=80))
def test_a_peer_tells_every_error_once(said: list[tuple[str, int] | None]) -> None:
    """None: the link takes what waits."""
    reports = UnreportedErrors()
    told: list[tuple[str, int]] = []
    waiting: list[str] = []
    for error in said:
        if error is not None:
            text = error[0] * error[1]
            reports.add(text)
            waiting.append(text)
            assert 1 <= len(reports) <= MOST_WAITING + 1
            continue
        taken = reports.take()
        kinds = list(dict.fromkeys(folded(text) for text in waiting))
        assert [folded(text) for text, _ in taken[:MOST_WAITING]] == kinds[:MOST_WAITING]
        assert (len(taken) > MOST_WAITING) == (len(kinds) > MOST_WAITING)
        told, waiting = told + taken, []
        assert len(reports) == 0
    told += reports.take()
    assert sum(count for _, count in told) == sum(error is not None for error in said)
    assert all(text.isprintable() and len(text) <= MOST_TEXT for text, _ in told)


def test_what_could_not_be_sent_waits_again() -> None:
    reports = UnreportedErrors()
    for at in range(3):
        reports.add(f"env {at} failed")
    for text, count in reports.take():
        reports.add(text, count)
    assert reports.take() == [("env 0 failed", 3)]
    assert reports.take() == []


def test_kinds_beyond_the_bound_are_told_together() -> None:
    reports = UnreportedErrors()
    for letter in "abcdefghijklmnopqrst":
        reports.add(letter)
        reports.add(letter)
    *first, (others, count) = reports.take()
    assert first == [(letter, 2) for letter in "abcdefghijklmnop"]
    assert (others, count) == ("errors of further kinds; the log of this process has them", 8)


def test_a_trouble_is_one_line() -> None:
    assert peer_errors.line("  one\r\n\ttwo \x1b[31m\udc80 ") == "one two ?[31m?"
    long = peer_errors.line("x " * 10_000)
    assert len(long) == MOST_TEXT - 1  # no blank at its end
    assert peer_errors.line(long) == long
