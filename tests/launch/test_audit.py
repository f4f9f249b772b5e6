"""The audit of journals written by hand: every unroll, every way to end, torn lines."""

from pathlib import Path
from typing import Any

import pytest

from broker.journal import Journal
from broker.wire import Outcome
from launch import audit


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Writes journals by name and reads the account of all."""

    def _write(copies: int = 0, **journals: str) -> audit.Account:
        for name, text in journals.items():
            (tmp_path / f"{name}.log").write_text(text)
        return audit.read(tmp_path, copies=copies)

    return _write


def test_no_folder_is_an_empty_account(tmp_path: Path) -> None:
    account = audit.read(tmp_path / "none")
    assert account.generated == account.env_steps == account.in_flight == 0
    assert account.unaccounted() == 0


def test_every_way_to_end_is_counted_once(write: Any) -> None:
    account = write(
        copies=5,
        actor="".join(f"G 7 0 {seq} {10 + seq}\n" for seq in range(8))
        + "A 7 0 0 2 trained\n"
        + "A 7 0 2 3 stale\n"
        + "A 7 0 3 4 shed\n"
        + "A 7 0 4 5 rejected\n"
        + "A 7 0 5 6 poison\n"
        + "X 7 0 6 7\n",
        learner="T 7 0 0 1\nT 7 0 1 1\n",
    )
    assert account == audit.Account(
        generated=8,
        env_steps=sum(range(10, 18)),
        outcomes={
            "trained": 2, "stale": 1, "shed": 1, "rejected": 1, "poison": 1, "abandoned": 1,
            "duplicate": 5,
        },
        in_flight=1,
        twice=0,
        untrue=0,
    )  # fmt: skip
    assert account.unaccounted() == 0


def test_streams_and_incarnations_are_apart(write: Any) -> None:
    account = write(
        one="G 1 0 0 4\nG 1 1 0 4\nA 1 0 0 1 trained\n",
        other="G 2 0 0 4\n",
        learner="T 1 0 0 3\n",
    )
    assert (account.generated, account.outcomes["trained"], account.in_flight) == (3, 1, 2)


def test_a_range_ends_before_its_second_number(write: Any) -> None:
    account = write(
        actor="G 1 0 0 1\nG 1 0 1 1\nG 1 0 2 1\nA 1 0 0 2 shed\nX 1 0 2 3\n", learner=""
    )
    assert (account.outcomes["shed"], account.outcomes["abandoned"]) == (2, 1)
    assert account.in_flight == 0


def test_a_torn_last_line_does_not_count(write: Any) -> None:
    account = write(
        actor="G 1 0 0 16\nG 1 0 1 16\nG 1 0 2 1",
        learner="T 1 0 0 1\nT 1 0 1",
    )
    assert (account.generated, account.env_steps) == (2, 32)
    assert (account.outcomes["trained"], account.in_flight) == (1, 1)
    assert write(actor="G 1 0", learner="").generated == 0


def test_an_acknowledgement_that_no_learner_backs_is_untrue(write: Any) -> None:
    account = write(
        actor="G 1 0 0 4\nG 1 0 1 4\nA 1 0 0 2 trained\n",
        learner="T 1 0 0 1\n",
    )
    assert account.untrue == 1
    assert account.outcomes["trained"] == 2


def test_trained_and_not_heard_of_is_trained(write: Any) -> None:
    """The learner's word counts more than that of a sampler who gave up or died."""
    account = write(
        actor="G 1 0 0 4\nG 1 0 1 4\nG 1 0 2 4\nX 1 0 0 1\nA 1 0 2 3 abandoned\n",
        learner="T 1 0 0 1\nT 1 0 1 1\nT 1 0 2 1\n",
    )
    assert (account.outcomes["trained"], account.outcomes["abandoned"]) == (3, 0)
    assert (account.in_flight, account.untrue) == (0, 0)


def test_an_acknowledgement_beats_giving_up(write: Any) -> None:
    account = write(actor="G 1 0 0 4\nX 1 0 0 1\nA 1 0 0 1 stale\n", learner="")
    assert (account.outcomes["stale"], account.outcomes["abandoned"]) == (1, 0)


def test_twice_counts_unrolls_and_not_times(write: Any) -> None:
    account = write(
        actor="G 1 0 0 4\nG 1 0 1 4\n",
        before="T 1 0 0 1\nT 1 0 1 1\n",
        after="T 1 0 0 2\nT 1 0 0 3\n",
    )
    assert (account.twice, account.outcomes["trained"]) == (1, 2)


def test_what_nobody_says_was_generated_is_not_in_the_sum(write: Any) -> None:
    """A learner's journal may outlive the sampler's line: then there is no such unroll."""
    account = write(actor="G 1 0 0 4\n", learner="T 1 0 0 1\nT 9 0 0 1\n")
    assert (account.generated, account.outcomes["trained"]) == (1, 1)
    assert account.unaccounted() == 0


def test_it_reads_what_the_journal_writes(tmp_path: Path) -> None:
    actor, learner = Journal(tmp_path, "actor-1.log"), Journal(tmp_path, "learner-2.log")
    for seq in range(6):
        actor.generated(1, 3, seq, 32)
    learner.trained([(1, 3, 0), (1, 3, 1)], 9)
    learner.trained([], 9)
    for outcome, lo, hi in (
        (Outcome.TRAINED, 0, 2), (Outcome.STALE, 2, 3), (Outcome.REJECTED, 3, 4),
    ):  # fmt: skip
        actor.acknowledged(1, 3, lo, hi, outcome)
    actor.given_up(1, 3, 4, 5)
    actor.close()
    learner.close()
    account = audit.read(tmp_path)
    assert (account.generated, account.in_flight, account.untrue) == (6, 1, 0)
    assert {k: n for k, n in account.outcomes.items() if n} == {
        "trained": 2, "stale": 1, "rejected": 1, "abandoned": 1,
    }  # fmt: skip


def test_without_a_folder_the_journal_writes_nothing(tmp_path: Path) -> None:
    journal = Journal(None, "actor-1.log")
    journal.generated(1, 0, 0, 1)
    journal.close()
    assert list(tmp_path.iterdir()) == []
