"""An encoder of the user's that fails when the run is under way."""

import pytest

from headrace.launch.process.runtime import YOUR_INPUT as BAD
from tests.system.conftest import Place, Process

ENCODER = """
import torch

class Encoder(torch.nn.Module):
    def __init__(self, leaves, rng, *, most, where):
        super().__init__()
        self.layer = torch.nn.Linear(4, 8)
        self.units, self.most, self.where = 8, most, where

    def forward(self, obs):
        rows = obs["obs"]
        if len(rows) > self.most:
            if self.where == "raises":
                raise IndexError("too many\\nfor me")
            return self.layer(rows)[:, :5]
        return self.layer(rows)
"""
RUN = """
[unroll]
length = 20
envs = 8
[model]
kind = "picky:Encoder"
kwargs = {{ most = {most}, where = "{where}" }}
[pacing]
batch_unrolls = 1
"""


@pytest.mark.parametrize(("who", "most"), [("actor-0", 7), ("learner", 8)])
@pytest.mark.parametrize("where", ["raises", "narrow"])
def test_it_is_one_line_of_who_met_it(place: Place, who: str, most: int, where: str) -> None:
    """A sampler acts on 8 rows, the learner trains on 21 x 8 of them."""
    place.toml("picky.py", ENCODER)
    place.run = place.toml("run.toml", RUN.format(most=most, where=where))
    train: Process = place.train("--actors", "1", "--quiet")
    assert train.ends() == BAD, train.text()
    said, *trace, end = train.lines()
    words = "IndexError: too many for me" if where == "raises" else "RuntimeError: "
    assert f'{who} ERROR model.kind = "picky:Encoder" failed, mend the encoder: {words}' in said
    # Below it is the place in the user's own code, and not how our code came there; what is too
    # narrow is found by ours.
    if where == "raises":
        assert trace[0] == "Traceback (most recent call last):"
        assert 'picky.py", line ' in trace[1] and "in forward" in trace[1]
        assert trace[2].strip().startswith("raise IndexError")
    else:
        assert trace == []
    assert f"{who} cannot work with this run" in end
    place.nothing_is_left()
