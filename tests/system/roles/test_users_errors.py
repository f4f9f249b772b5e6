"""What the user's own code raises in a run of several processes: shown once, whole."""

import pytest

from headrace.launch.process.runtime import YOUR_INPUT as BAD
from tests.system.conftest import Place

THEIRS = """
import gymnasium
import torch

def env():
    raise ZeroDivisionError("mine")

class Wrapper(gymnasium.Wrapper):
    def step(self, action):
        raise ZeroDivisionError("mine")

class Eyes(torch.nn.Module):
    units = 8

    def __init__(self, leaves, rng):
        super().__init__()
        self.full = torch.nn.Linear(4, 8)

    def forward(self, obs):
        if obs["obs"].any():
            raise ZeroDivisionError("mine")
        return self.full(obs["obs"])

def loss(given):
    raise ZeroDivisionError("mine")
"""


@pytest.mark.parametrize(
    ("setting", "function"),
    [
        ("env.id=theirs:env", "env"),
        ('env.wrappers=[{id="theirs:Wrapper"}]', "step"),
        ("model.kind=theirs:Eyes", "forward"),
        ("algorithm.loss=theirs:loss", "loss"),
    ],
)
def test_its_traceback_is_shown_once(place: Place, setting: str, function: str) -> None:
    """However many of samplers, evaluator and learner meet it before the run ends."""
    place.toml("theirs.py", THEIRS)
    sets = ("--set", setting, "--set", "actor.crashes_per_hour=20")
    train = place.train("--quiet", "--evaluate", *sets)
    assert train.ends() == BAD, train.text()
    assert train.text().count("Traceback") == 1, train.text()
    start = train.lines().index("Traceback (most recent call last):")
    where = train.lines()[start + 1]
    assert where.startswith('  File "') and 'theirs.py", line ' in where
    assert where.endswith(f", in {function}")
    assert "ZeroDivisionError: mine" in train.lines()[start + 2 :]
