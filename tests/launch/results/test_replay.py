"""The comparison of weights: every bit of every tensor, and nothing else; and the checkpoint
that is taken for it."""

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from headrace.launch.config import run_file
from headrace.launch.results import replay
from headrace.launch.results.replay import first_difference
from headrace.learner.batches.recording import RecordError

ZERO, ONE = torch.tensor([0.0, 2.0]), torch.tensor([1.0, 2.0])


def groups(**model: Tensor) -> dict[str, dict[str, Tensor]]:
    return {"model": {"a": ONE, "b": ZERO, **model}, "optimiser": {"0.step": torch.tensor(3.0)}}


def test_copies_are_the_same() -> None:
    here = {name: {k: v.clone() for k, v in group.items()} for name, group in groups().items()}
    assert first_difference(groups(), here) == ""


def test_nan_is_itself_and_the_dice_do_not_count() -> None:
    nan = torch.tensor([math.nan])
    there, here = groups(c=nan), groups(c=nan.clone())
    there["rng"], here["rng"] = {"cpu": ONE}, {"cpu": ZERO}
    assert first_difference(there, here) == ""


def test_the_first_is_named_with_its_distance() -> None:
    here = groups(a=torch.tensor([1.0, 2.5]), b=torch.tensor([7.0, 2.0]))
    assert first_difference(groups(), here) == (
        "model.a differs by up to 0.5 (first of 2 out of 3 tensors)"
    )


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("b", torch.tensor([-0.0, 2.0])),
        ("b", torch.tensor([0.0, 2.0], dtype=torch.float64)),
        ("b", torch.tensor([[0.0, 2.0]])),
        ("b", torch.nextafter(ZERO, ONE)),
    ],
)
def test_one_bit_or_another_kind_is_a_difference(name: str, tensor: Tensor) -> None:
    assert first_difference(groups(), groups(**{name: tensor})).startswith(f"model.{name} ")


def test_a_tensor_that_is_missing() -> None:
    here = groups()
    here["optimiser"] = {}
    assert "optimiser.0.step is another kind of tensor" in first_difference(groups(), here)


def test_it_says_what_it_compares_with(
    leave_run: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for version in (4, 9):
        leave_run(tmp_path, version=version, progress={"learner_steps": 10 * version})

    def said() -> str:
        with pytest.raises(RecordError):  # there is no recording
            replay.replay(tmp_path)
        return caplog.messages[-1]

    names = [tmp_path / "checkpoints" / f"{version:012d}" for version in (4, 9)]
    assert said() == (
        f"goes to optimiser step 90 and compares with {names[1]}, where the run ended"
    )
    (names[1] / "model.safetensors").write_bytes(b"no")
    assert said() == (
        f"goes to optimiser step 40 and compares with {names[0]}, not the end of the run: a newer"
        " checkpoint is damaged"
    )
    (names[0] / "model.safetensors").write_bytes(b"no")
    with pytest.raises(run_file.ConfigError, match=r"checkpoints is damaged; put back a copy"):
        replay.replay(tmp_path)
