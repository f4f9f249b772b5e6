"""A sampler's figures: which part of its own time the environments take."""

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from headrace.actors.metrics import SamplerMetrics
from headrace.actors.stepping.stepper import Stepper


@pytest.mark.parametrize(("beside", "own_s"), [(0, 3.0), (4, 0.0)])
def test_only_environments_on_the_loop_take_its_time(beside: int, own_s: float) -> None:
    metrics = SamplerMetrics(CollectorRegistry())
    assert metrics.costs()["loop_env_s"] == 0
    frame = SimpleNamespace(spent=np.array([1.0, 2.0]))
    metrics.runs(cast(Stepper, SimpleNamespace(frame=frame, beside=beside)))
    assert metrics.costs()["env_s"] == 3.0
    assert metrics.costs()["loop_env_s"] == own_s
