"""A batch that a GPU has no memory for: one line says how much is missing, and what to lower."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from headrace.launch.config import run_file
from headrace.launch.roles import learner
from headrace.learner.ranks import Ranks
from headrace.learner.train_parts import to_end

TOLD = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.11 GiB of"
    " which 3.11 GiB is free. Including non-PyTorch memory, this process has 70.00 GiB in use. Of"
    " the allocated memory 69.00 GiB is allocated by PyTorch."
)


@pytest.mark.parametrize("share", [0.0, 0.25])
@pytest.mark.parametrize(
    ("told", "missing"),
    [
        (
            TOLD,
            ": it asked for 20.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 3.11 GiB is"
            " free;",
        ),
        ("CUDA error: out of memory", ";"),
    ],
)
def test_what_is_missing_is_said(
    told: str, missing: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Any) -> str:
        raise torch.OutOfMemoryError(told)

    monkeypatch.setattr(learner, "train", full)
    sets = ["pacing.batch_unrolls=8", "unroll.envs=16", "unroll.length=20"]
    sets.append(f"learner.gpu_share={share}")
    nothing: Any = None
    pieces: Any = SimpleNamespace(ranks=Ranks(timeout_s=5.0, cuda=False))
    with pytest.raises(run_file.ConfigError) as caught:
        to_end(learner._trained(pieces, run_file.load("breakout", sets), nothing))
    limit = " in its share of it (learner.gpu_share = 0.25)" if share else ""
    assert str(caught.value) == (
        f"the GPU has too little memory{limit} for this network and a batch of 2560 steps{missing}"
        " lower pacing.batch_unrolls (8) or unroll.envs (16), or free the memory that others hold"
    )
