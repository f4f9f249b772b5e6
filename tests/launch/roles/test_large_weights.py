"""Checks that weights too large to travel are refused before the learner says HELLO: the thread
that publishes them would tell nobody."""

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.launch.config import run_file
from headrace.launch.roles import learner
from headrace.learner.spaces import Leaf, Spaces, discrete


def parts(hidden: list[int]) -> Any:
    return SimpleNamespace(
        run=run_file.build({}, [f"model.hidden={hidden}"], source="bare"),
        ranks=SimpleNamespace(rank=0, world=1),
        spaces=Spaces((Leaf("obs", "float32", (4,)),), discrete(2)),
        made_on="cpu",
    )


def test_a_network_that_is_too_large_to_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner, "MAX_BYTES", 1 << 20)
    learner._model(parts([100, 100]))
    with pytest.raises(run_file.ConfigError, match="has 2 MiB of weights, and at most 1 travel to"):
        learner._model(parts([600, 600]))
