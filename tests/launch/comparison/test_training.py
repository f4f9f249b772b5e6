"""A run of any goal can be trained without an end, to be measured."""

import pytest

from headrace.launch.comparison import training
from headrace.launch.config import run_file


@pytest.mark.parametrize("name", run_file.shipped())
def test_every_shipped_run_can_be_measured(name: str) -> None:
    stop = run_file.load(name, training.ENDLESS).stop
    assert (stop.return_, stop.steps, stop.seconds) == (None, None, None)
    assert not stop.evaluated
