"""The audit of journals written by hand: every unroll, every way to end, torn lines."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.journal import audit
from headrace.broker.journal import reader as journals
from headrace.broker.journal.journal import Journal
from headrace.broker.protocol.messages import Outcome


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
    assert (account.generated, account.env_steps) == (8, sum(range(10, 18)))
    assert account.outcomes == {
        "trained": 2,
        "stale": 1,
        "shed": 1,
        "rejected": 1,
        "poison": 1,
        "abandoned": 1,
        "duplicate": 5,
    }
    assert (account.in_flight, account.twice, account.untrue) == (1, 0, 0)
    assert account.exact()


def test_streams_and_incarnations_are_apart(write: Any) -> None:
    account = write(
        one="G 1 0 0 4\nG 1 1 0 4\nA 1 0 0 1 trained\n", other="G 2 0 0 4\n", learner="T 1 0 0 3\n"
    )
    assert (account.generated, account.outcomes["trained"], account.in_flight) == (3, 1, 2)


def test_groups_that_finished_nothing_supply_nothing(write: Any) -> None:
    account = write(
        one="P actor 1 node 1\nS 1 3\nG 1 0 0 4\nG 1 0 1 4\nE\n",
        two="S 2 2\nG 2 1 0 4\n",
        before="G 3 0 0 4\n",  # of a release that did not say how many there are
        learner="T 1 0 0 1\nT 1 0 1 1\nT 2 1 0 1\nT 3 0 0 1\n",
    )
    assert sorted(account.trained_by_stream) == [0, 0, 0, 1, 1, 2]
    assert account.exact()


def test_a_sampler_that_was_started_again_is_no_slow_one(write: Any) -> None:
    account = write(
        one="P actor 1 node 1\nS 1 2\nG 1 0 0 4\nG 1 1 0 4\n",
        again="P actor 2 node 1\nS 2 2\nG 2 0 0 4\n",
        learner="T 1 0 0 1\nT 1 1 0 1\nT 2 0 0 1\n",
    )
    assert sorted(account.trained_by_stream) == [1, 2]


def test_a_number_of_groups_that_cannot_be_takes_no_memory(write: Any) -> None:
    account = write(one=f"S 1 {10**15}\nG 1 0 0 4\n")
    assert len(account.damage) == 1
    assert account.trained_by_stream == [0]


def test_a_range_ends_before_its_second_number(write: Any) -> None:
    account = write(
        actor="G 1 0 0 1\nG 1 0 1 1\nG 1 0 2 1\nA 1 0 0 2 shed\nX 1 0 2 3\n", learner=""
    )
    assert (account.outcomes["shed"], account.outcomes["abandoned"]) == (2, 1)
    assert account.in_flight == 0


def test_a_torn_last_line_does_not_count(write: Any) -> None:
    account = write(actor="G 1 0 0 16\nG 1 0 1 16\nG 1 0 2 1", learner="T 1 0 0 1\nT 1 0 1")
    assert (account.generated, account.env_steps) == (2, 32)
    assert (account.outcomes["trained"], account.in_flight) == (1, 1)
    assert write(actor="G 1 0", learner="").generated == 0


def test_an_acknowledgement_that_no_learner_backs_is_untrue(write: Any) -> None:
    account = write(actor="G 1 0 0 4\nG 1 0 1 4\nA 1 0 0 2 trained\n", learner="T 1 0 0 1\n")
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


def test_what_a_sampler_says_twice_must_be_the_same(write: Any) -> None:
    account = write(
        actor="G 1 0 0 4\nG 1 0 1 4\nG 1 0 2 4\n"
        + 3 * "A 1 0 0 1 stale\n"
        + "A 1 0 1 2 stale\nA 1 0 1 2 poison\nA 1 0 2 3 shed\nX 1 0 2 3\n",
        learner="",
    )
    assert (account.contradictions, account.unaccounted()) == (2, 2)
    assert account.outcomes["stale"] == account.outcomes["poison"] == account.outcomes["shed"] == 1


def test_what_a_broker_settled_and_nobody_heard_has_ended(write: Any) -> None:
    """Its sampler was killed first, or gave up first."""
    account = write(
        actor="".join(f"G 1 0 {seq} 4\n" for seq in range(5)) + "X 1 0 1 2\nA 1 0 3 4 shed\n",
        broker="W 9\nB 1 0 0 2 stale\nB 1 0 2 3 trained\nB 1 0 3 4 shed\n",
        learner="T 1 0 2 7\n",
    )
    assert account.exact()
    assert (account.outcomes["stale"], account.outcomes["abandoned"]) == (2, 0)
    assert (account.outcomes["trained"], account.outcomes["shed"]) == (1, 1)
    assert account.in_flight == 1


def test_a_broker_must_have_said_what_a_sampler_heard(write: Any) -> None:
    account = write(
        actor="".join(f"G 1 0 {seq} 4\n" for seq in range(3)) + "A 1 0 0 3 stale\n",
        broker="B 1 0 0 1 stale\nB 1 0 1 2 shed\n",
        learner="",
    )
    assert (account.unfounded, account.unaccounted()) == (2, 2)


def test_one_broker_settles_an_unroll_once_and_another_may_do_so_again(write: Any) -> None:
    """A new broker knows nothing of what the old one said and nobody heard."""
    write(actor="G 1 0 0 4\nG 1 0 1 4\nA 1 0 0 1 stale\n", learner="")
    assert write(broker="B 1 0 0 1 shed\n", broker2="").unfounded == 1
    account = write(**{"broker-2": "B 1 0 0 1 stale\n"})
    assert account.exact()
    account = write(**{"broker-2": "B 1 0 0 1 stale\nB 1 0 0 1 shed\n"})
    assert account.contradictions == 1


def test_a_broker_that_says_trained_needs_a_learner_who_did(write: Any) -> None:
    account = write(actor="G 1 0 0 4\n", broker="B 1 0 0 1 trained\n", learner="")
    assert (account.untrue, account.outcomes["trained"]) == (1, 1)


def test_after_an_end_in_order_nothing_is_in_flight(write: Any) -> None:
    assert write(actor="G 1 0 0 4\nG 1 0 1 4\nX 1 0 0 2\nE\n", learner="").exact()
    account = write(actor="G 1 0 0 4\nG 1 0 1 4\nX 1 0 0 1\nE\n", learner="")
    assert (account.in_flight, account.too_many) == (1, 1)


def test_a_killed_sampler_leaves_at_most_what_pacing_lets_it_have_open(write: Any) -> None:
    killed = "".join(f"G 1 {stream} {seq} 4\n" for stream in range(2) for seq in range(5))
    assert write(actor=killed, broker="W 10\n", learner="").exact()
    account = write(actor=killed, broker="W 8\n", learner="")
    assert (account.in_flight, account.too_many, account.window) == (10, 2, 8)


def test_a_reading_that_takes_its_time_sees_no_more_open_than_there_was(
    write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the sampler's journal and the learner's the run goes on, and again until the
    sampler's is looked at once more."""
    learner = "".join(f"T 1 0 {seq} 1\n" for seq in range(5))
    write(actor="G 1 0 0 4\nG 1 0 1 4\n", broker="W 6\n", learner=learner)
    readings: list[int] = []
    honest = journals.read

    def slow(folder: Path, *roles: journals.Role) -> Iterator[journals.Journal]:
        if readings:
            text = "".join(f"G 1 0 {seq} 4\n" for seq in range(50))
            (folder / "actor.log").write_text(text)
        readings.append(1)
        return iter(list(honest(folder, *roles)))

    monkeypatch.setattr(journals, "read", slow)
    account = write()
    assert len(readings) == 2
    assert (account.generated, account.in_flight, account.ghosts) == (5, 0, 0)
    assert account.exact()


def test_a_line_of_generated_unrolls_that_is_gone_is_seen(write: Any) -> None:
    account = write(actor="G 1 0 0 4\nG 1 0 3 4\nG 2 5 2 4\n", learner="")
    assert account.generated == 1
    assert account.damage == [
        "actor: stream 0 of incarnation 1 has no line about what it generated from 1 to 2",
        "actor: stream 5 of incarnation 2 has no line about what it generated from 0 to 1",
    ]
    assert not account.exact()


def test_a_number_that_cannot_be_takes_no_memory(write: Any) -> None:
    account = write(actor=f"g 1 0 0 {1 << 60} 5\nG 1 1 0 4\nA 1 1 0 {1 << 60} stale\n", learner="")
    assert account.generated == 1
    assert ["cannot have generated" in line for line in account.damage] == [True]
    assert account.ghosts == (1 << 60) - 1


@pytest.mark.parametrize(
    "line",
    [
        "Q 1 0 0 4",
        "G 1 0 0",
        "G 1 0 0 4 5",
        "G 1 0 x 4",
        "A 1 0 0 1 gone",
        "A 1 0 3 3 stale",
        "X 1 0 -1 2",
        "T 1 zero 0 1",
        "V 1",
        "W many",
        "E 3",
        "P actor",
        "\0\0\0",
        "\udcff",
    ],
)
def test_damage_is_said_with_file_and_line(line: str, write: Any, tmp_path: Path) -> None:
    text = f"G 1 0 0 4\n{line}\nG 1 0 1 4\n"
    (tmp_path / "actor-5.log").write_bytes(text.encode(errors="surrogateescape"))
    account = write(learner="")
    assert len(account.damage) == 1
    assert "actor-5.log, line 2" in account.damage[0]
    assert account.generated == 2  # the rest is read all the same
    assert not account.exact()


def test_of_many_damaged_lines_some_are_told(write: Any) -> None:
    account = write(actor="?\n" * 50, learner="")
    assert len(account.damage) == 4
    assert "47 more" in account.damage[-1]


def test_a_journal_that_could_not_be_written_on_says_so(write: Any, tmp_path: Path) -> None:
    (tmp_path / "actor.short").touch()
    account = write(actor="G 1 0 0 4\n", learner="")
    assert ["actor: its process could not write" in line for line in account.damage] == [True]


def test_a_segment_that_is_gone_is_seen(write: Any) -> None:
    account = write(**{"actor-1": "G 1 0 0 4\n", "actor-1.2": "G 1 0 1 4\n"}, learner="")
    assert account.damage == ["actor-1: segment 1 of this journal is missing"]
    torn = write(**{"actor-1.1": "G 1 0 1 4\nG 1", "actor-1.2": "G 1 0 2 4\n"})
    assert torn.damage == ["actor-1.1.log, line 2: it has no end"]


def test_ranges_say_the_same_as_lines(write: Any) -> None:
    account = write(
        actor="P actor 1 node 7\ng 1 0 0 1000 32000\nA 1 0 0 900 trained\nA 1 0 900 990 stale\n",
        learner="P learner 5 learner-0\nV 0 1000\nt 1 0 0 900\nt 1 0 10 30\nv 1 461 2\n",
    )
    assert (account.generated, account.env_steps, account.in_flight) == (1000, 32000, 10)
    assert (account.outcomes["trained"], account.outcomes["stale"]) == (900, 90)
    assert (account.twice, account.samplers[0].name) == (20, "node 7")


def test_what_a_return_to_a_checkpoint_undid(write: Any) -> None:
    """Two ranks at first; the second generation begins at 4, the third, alone, at 3."""
    write(actor="".join(f"G 1 0 {seq} 4\n" for seq in range(40)))
    learner = "P learner 1 learner-{rank}\nV {version} {time}\n"

    def trained(first: int, versions: range) -> str:
        return "".join(f"T 1 0 {first + at} {version}\n" for at, version in enumerate(versions))

    account = write(
        **{
            "learner-a": learner.format(rank=0, version=0, time=100) + trained(0, range(1, 7)),
            "learner-b": learner.format(rank=1, version=0, time=103) + trained(6, range(1, 7)),
            "learner-c": learner.format(rank=1, version=4, time=201) + trained(12, range(8, 10)),
            "learner-d": learner.format(rank=0, version=4, time=202) + trained(14, range(8, 10)),
            "learner-e": learner.format(rank=0, version=3, time=300) + trained(16, range(11, 20)),
        }
    )
    # Versions 4 to 6 of two ranks, and all of the second generation.
    assert account.rolled_back == 2 * 3 + 2 * 2
    assert account.exact()


def test_twice_counts_unrolls_and_not_times(write: Any) -> None:
    account = write(
        actor="G 1 0 0 4\nG 1 0 1 4\n",
        before="T 1 0 0 1\nT 1 0 1 1\n",
        after="T 1 0 0 2\nT 1 0 0 3\n",
    )
    assert (account.twice, account.outcomes["trained"]) == (1, 2)


def test_what_nobody_says_was_generated_is_not_in_the_sum(write: Any) -> None:
    """It is written before it is sent: so somebody made it up, or a sampler's journal is gone."""
    account = write(actor="G 1 0 0 4\n", learner="T 1 0 0 1\nT 9 0 0 1\nT 9 0 0 1\nT 1 0 2 1\n")
    assert (account.generated, account.outcomes["trained"]) == (1, 1)
    assert (account.ghosts, account.unaccounted()) == (2, 2)


def test_it_reads_what_the_journal_writes(tmp_path: Path) -> None:
    actor, learner = Journal(tmp_path, "actor-1.log"), Journal(tmp_path, "learner-2.log")
    for seq in range(6):
        actor.generated(1, 3, seq, 32)
    learner.trained([(1, 3, 0), (1, 3, 1)], 9)
    learner.trained([], 9)
    for outcome, lo, hi in (
        (Outcome.TRAINED, 0, 2),
        (Outcome.STALE, 2, 3),
        (Outcome.REJECTED, 3, 4),
    ):
        actor.acknowledged(1, [(3, lo, hi)], outcome)
    actor.given_up(1, [(3, 4, 5)])
    actor.close()
    learner.close()
    account = audit.read(tmp_path)
    assert (account.generated, account.in_flight, account.untrue) == (6, 1, 0)
    assert {k: n for k, n in account.outcomes.items() if n} == {
        "trained": 2,
        "stale": 1,
        "rejected": 1,
        "abandoned": 1,
    }


def test_without_a_folder_the_journal_writes_nothing(tmp_path: Path) -> None:
    journal = Journal(None, "actor-1.log")
    journal.generated(1, 0, 0, 1)
    journal.close()
    assert list(tmp_path.iterdir()) == []
