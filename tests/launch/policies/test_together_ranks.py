"""Has two ranks train two networks in turns, each rank with the batches of another one first.

Neither waits in one network's collective for the rank that waits in the other's. This file is also
what the ranks run.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from prometheus_client import CollectorRegistry

from headrace.launch.policies import together
from headrace.launch.roles.learner import LearnerProcess
from headrace.learner.batches.batch import Batch
from headrace.learner.checkpoints.config import CheckpointConfig
from headrace.learner.learner_config import LearnerConfig
from headrace.learner.metrics import LearnerMetrics
from headrace.learner.models.build import build
from headrace.learner.progress import Progress
from headrace.learner.ranks import Ranks
from headrace.learner.train import train
from headrace.learner.train_parts import Goal, TrainParts, Turns
from tests.learner.forked_ranks import ends, live, start
from tests.learner.test_ddp import ALGORITHMS, LR, MODEL, SPACES, STEPS, TOLERANCE, B, MadeUpFeed

pytestmark = pytest.mark.processes

NAMES = ("a", "b")
LATE = 25  # turns


class LateFeed(MadeUpFeed):
    """Has nothing in its first turns."""

    def __init__(self, numbers: range, turns: int) -> None:
        super().__init__(numbers)
        self.turns = turns

    def next(self, timeout_s: float) -> Batch | None:
        self.turns -= 1
        return None if self.turns >= 0 else super().next(timeout_s or 1.0)


def trained(folder: Path, name: str, ranks: Ranks, *, late: bool) -> Turns[int]:
    """Trains one network in turns, and writes down its weights."""
    feed = LateFeed(range(B)[ranks.rank :: ranks.world], LATE if late else 0)
    model = build(MODEL, SPACES, seed=NAMES.index(name))
    out = folder / name
    out.mkdir(exist_ok=True)
    parts = TrainParts(
        algorithm=ALGORITHMS["impala"],
        config=LearnerConfig(lr=LR),
        saving=CheckpointConfig(),
        goal=Goal(None, None, None),
        ranks=ranks,
        feed=feed,
        model=model,
        target=None,
        gap=None,
        progress=Progress(),
        metrics=LearnerMetrics(CollectorRegistry()),
        device=torch.device("cpu"),
        folder=out,
        spaces=SPACES,
        previous=False,
        identity={},
        resume=None,
        # The second network ends sooner, and leaves the first one the process.
        stopping=lambda: feed.step >= (STEPS, STEPS // 2)[NAMES.index(name)],
        seed=1,
        started=0.0,
    )
    reason = yield from train(parts)
    assert reason == "stopped"
    weights = {key: tensor.numpy() for key, tensor in model.state_dict().items()}
    np.savez(out / f"rank{ranks.rank}-of-{ranks.world}.npz", allow_pickle=False, **weights)
    return 0


def run_rank(folder: Path) -> None:
    torch.set_num_threads(1)
    ranks = Ranks(timeout_s=60.0, cuda=False)
    nothing: Any = mock.Mock()
    process = LearnerProcess(ranks, torch.device("cpu"), nothing, nothing, [])
    works = {
        name: trained(folder, name, ranks, late=ranks.world > 1 and place == ranks.rank)
        for place, name in enumerate(NAMES)
    }
    assert together.in_turns(process, works) == 0
    (folder / f"rank{ranks.rank}-of-{ranks.world}.json").write_text(json.dumps(process.patience_s))
    ranks.close()


@pytest.mark.slow
def test_two_ranks_train_two_networks_in_turns(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for world in (1, 2):
        for status, said in ends(start(__file__, folder, world)):
            assert status == 0, said
    for name in NAMES:
        alone, first, second = (
            dict(np.load(folder / name / f"rank{rank}-of-{world}.npz"))
            for rank, world in ((0, 1), (0, 2), (1, 2))
        )
        for key, mine in first.items():
            np.testing.assert_array_equal(mine, second[key], err_msg=key)
            np.testing.assert_allclose(mine, alone[key], rtol=0, atol=TOLERANCE, err_msg=key)
    before = build(MODEL, SPACES, seed=0).state_dict()
    after = dict(np.load(folder / "a" / "rank0-of-2.npz"))
    assert max(float(np.abs(after[key] - v.numpy()).max()) for key, v in before.items()) > 0.02


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    live(lambda: run_rank(Path(sys.argv[1])))
