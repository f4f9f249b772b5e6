"""A run's folder as training leaves it, without any training."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from headrace.launch.config import run_file, shared_run
from headrace.learner.checkpoints import checkpoint
from headrace.learner.models.build import build
from headrace.learner.models.model import Model
from headrace.learner.spaces import Leaf, Spaces, discrete

CARTPOLE = Spaces((Leaf("obs", "<f4", (4,)),), discrete(2))


@pytest.fixture
def leave_run() -> Any:
    """leave_run(folder, trained_on, sets): run.toml and one checkpoint; returns its network."""
    return _leave_run


def _leave_run(
    folder: Path,
    trained_on: Spaces = CARTPOLE,
    sets: Sequence[str] = (),
    *,
    version: int = 7,
    inside: str = "checkpoints",
    seed: int = 3,
    change: Callable[[Model], None] = lambda _: None,
    **state: Any,
) -> Model:
    run = run_file.load("cartpole", ["model.obs_scale=[]", *sets])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.toml").write_text(run_file.effective(run))
    model = build(run.model, trained_on, seed=seed)
    with torch.no_grad():
        # Heads begin nearly at zero: larger ones tell wrong inputs from right ones.
        rng = torch.Generator().manual_seed(seed)
        for head in (model.policy_head, model.value_head):
            head.weight.normal_(generator=rng)
        change(model)
    held = {
        "identity": {"shared": shared_run.shared(run), "spaces": trained_on.digest()},
        "spaces": msgspec.msgpack.decode(msgspec.msgpack.encode(trained_on)),
        **state,
    }
    tensors = {"model": dict(model.state_dict())}
    checkpoint.save(folder / inside, step_version=version, tensors=tensors, state=held, keep=2)
    return model.requires_grad_(False)
