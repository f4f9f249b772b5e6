"""Unrolls that are too large are refused before anything starts."""

import pytest

from launch import config, weight
from learner.spaces import Discrete, Leaf, Spaces


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
    spaces = Spaces((Leaf("eye", "|u1", (32, 32), stack=2),), Discrete(2))
    run = config.load("cartpole", (*sets, "broker.queue_mb=100"))
    if not words:
        assert weight.unroll_bytes(run, spaces) == 18 * 16 * 1024 + 16 * 16 * 17
        return
    with pytest.raises(config.ConfigError, match=words):
        weight.unroll_bytes(run, spaces)
