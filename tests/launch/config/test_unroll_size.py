"""Unrolls that are too large are refused before anything starts."""

import pytest

from headrace.launch.config import run_file, unroll_size
from headrace.learner.spaces import Leaf, Spaces, discrete


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ((), ""),
        (("unroll.envs=4096", "unroll.length=64"), "obs.eye of one unroll has 264 MiB"),
        (
            ("unroll.envs=64", "unroll.length=60", "pacing.batch_unrolls=64"),
            r"64 unrolls of 3.9 MiB and one more do not fit into broker.queue_mb = 100; .* to 2",
        ),
    ],
)
def test_an_unroll_that_could_never_travel_is_refused(sets: tuple[str, ...], words: str) -> None:
    spaces = Spaces((Leaf("eye", "|u1", (32, 32), stack=2),), discrete(2))
    run = run_file.load("cartpole", (*sets, "broker.queue_mb=100"))
    if not words:
        assert unroll_size.unroll_bytes(run, spaces) == 18 * 16 * 1024 + 16 * 16 * 17
        return
    with pytest.raises(run_file.ConfigError, match=words):
        unroll_size.unroll_bytes(run, spaces)


def test_memory_and_the_step_before_weigh_something_too() -> None:
    spaces = Spaces((Leaf("obs", "<f4", (3,)),), discrete(2))
    plain = unroll_size.unroll_bytes(run_file.load("cartpole", ()), spaces)
    sets = ("model.core=lstm", "model.core_units=8", "model.separate=true", "model.previous=true")
    run = run_file.load("cartpole", sets)
    memory = 2 * 2 * 8 * 4  # two trunks, h and c, float32
    assert unroll_size.unroll_bytes(run, spaces) == plain + run.unroll.envs * (memory + 8 + 4)
