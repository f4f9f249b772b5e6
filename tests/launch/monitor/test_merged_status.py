"""Merges the statuses of several brokers into one."""

from typing import Any

from headrace.launch.monitor.merged_status import merged


def status(**other: Any) -> dict[str, Any]:
    return {
        "run": "r",
        "version": 7,
        "weights": 7,
        "batch_unrolls": 4,
        "ahead": 1.0,
        "queued": 1,
        "leased": 2,
        "running": 3,
        "outcomes": {"trained": 10, "stale": 0},
        "samplers": {"env_steps": 100.0},
        "learners": [{"name": "learner-0"}],
        "evaluators": [],
        "late": [],
        "troubles": [],
        "explain": ["the learner is held back"],
        "over": False,
        **other,
    }


def test_one_alone_is_as_it_is() -> None:
    assert merged([]) == merged([{}, {}]) == {}
    assert merged([{}, status()]) == status()


def test_what_each_counts_is_added_and_what_all_say_stands_once() -> None:
    whole = merged(
        [
            status(),
            status(
                version=8,
                weights=6,
                queued=5,
                outcomes={"trained": 3, "shed": 1},
                samplers={"env_steps": 30.0, "figure": 2.0},
                evaluators=[{"name": "e"}],
                explain=["the learner is held back", "more"],
                over=True,
            ),
        ]
    )
    assert (whole["version"], whole["weights"], whole["over"]) == (8, 6, True)
    assert (whole["queued"], whole["leased"], whole["running"]) == (6, 4, 6)
    assert whole["ahead"] == 4.0
    assert whole["outcomes"] == {"trained": 13, "stale": 0, "shed": 1}
    assert whole["samplers"] == {"env_steps": 130.0, "figure": 2.0}
    assert whole["learners"] == [{"name": "learner-0"}]
    assert whole["evaluators"] == [{"name": "e"}]
    assert whole["explain"] == ["the learner is held back", "more"]
    assert whole["run"] == "r"
