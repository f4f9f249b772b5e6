"""Steps that the host looks at, each of them one graph: the same training as part by part."""

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

from headrace.learner.config import AlgorithmConfig, ModelConfig
from headrace.learner.learner_config import LearnerConfig
from headrace.learner.step import one_step
from headrace.learner.step.choice import may_capture
from headrace.learner.step.compiled_step import CompiledStep, OneGraph
from headrace.learner.step.one_step import OneStep
from headrace.learner.train_parts import TrainParts
from tests.learner.step import test_device_steps
from tests.learner.step.test_compiled_step import flat_of, same_numbers, state, trained
from tests.learner.step.test_device_steps import COUNT, DEVICES, NORMALISED, same
from tests.learner.test_train import learn

PPO = AlgorithmConfig(name="ppo", epochs=2, minibatches=3, normalise_advantages=True)
LSTM: dict[str, Any] = {"core": "lstm", "core_units": 4}
RUNS = {
    "ppo": (PPO, NORMALISED),
    "ppo-lstm": (PPO, {**LSTM, "separate": False}),
    "uses": (AlgorithmConfig(name="appo", uses=3, buffer_batches=2, kl_coef=0.5), NORMALISED),
    "uses-lstm": (AlgorithmConfig(name="appo", uses=3, buffer_batches=2), LSTM),
    "replay": (AlgorithmConfig(name="impala", replay_share=0.5), {}),
    "running": (AlgorithmConfig(name="impala", normalise_advantages="running", uses=1), {}),
}


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a step be one graph at once, and on a CPU, too: there it is launched piece by piece."""
    monkeypatch.setattr(one_step, "may_capture", lambda parts: bool(parts.config.graph))
    monkeypatch.setattr(one_step, "_CAPTURED_AFTER_S", 0.0)
    monkeypatch.setattr(one_step, "_FIRST", 1)
    tried = CompiledStep.tried
    # Beside other tests a clock says nothing.
    monkeypatch.setattr(CompiledStep, "tried", lambda *given: (tried(*given)[0], 0.0))


@pytest.mark.slow
@pytest.mark.usefixtures("captures")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", RUNS)
def test_the_numbers_are_those_of_the_parts(
    tmp_path: Path,
    name: str,
    device: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(test_device_steps, "RUNS", RUNS)
    monkeypatch.setattr("headrace.learner.train.device_decides", lambda _: False)
    torch.manual_seed(1)  # which of a batch's steps are trained together
    parts, wanted = test_device_steps.run(tmp_path / "parts", name, graph=False, device=device)
    assert not [line for line in caplog.messages if "the optimiser step" in line]
    calls, call = [], OneGraph.__call__

    def counted(self: OneGraph, *given: Any) -> Any:
        calls.append(self)
        return call(self, *given)

    monkeypatch.setattr(OneGraph, "__call__", counted)
    torch.manual_seed(1)
    with caplog.at_level(logging.INFO):
        one, found = test_device_steps.run(tmp_path / "one", name, graph=True, device=device)
    same(found, wanted)
    assert [line for line in caplog.messages if "the optimiser step is captured: " in line]
    assert calls.count(calls[-1]) > COUNT / 2
    assert calls[-1]._graph.captured == (device == "cuda")
    own, other = parts.progress, one.progress
    assert other.advantage_square == (
        None if own.advantage_square is None else pytest.approx(own.advantage_square, rel=1e-5)
    )
    for counter in ("version", "learner_steps", "trained_steps", "trained_unrolls"):
        assert getattr(other, counter) == getattr(own, counter), counter


def graph_of(parts: TrainParts, optimiser: torch.optim.Optimizer, sample: Any, most: int) -> Any:
    flat = flat_of(parts, optimiser, sample, most, fused=True)
    step = OneStep(parts, parts.model, optimiser)
    names = list(step(sample, None, most=most).loss.stats)
    return CompiledStep(flat, partial(OneGraph, flat), names)


@pytest.mark.parametrize("device", DEVICES)
def test_what_a_step_gave_stays_after_the_next(tmp_path: Path, device: str) -> None:
    parts, optimiser, samples, most = trained(tmp_path, "ppo", device=device)
    graph = graph_of(parts, optimiser, samples[0], most)
    kept = []
    for sample in samples * 3:  # a graph finds its tensors where they are after the fourth
        step = graph(sample, 1e-3, parts.coefficients())
        tensors = [step.norm, *step.loss.stats.values(), *step.loss[2:]]
        kept.append((tensors, [tensor.clone() for tensor in tensors]))
    for tensors, copies in kept:
        same_numbers(tensors, copies)
    norms = [float(copies[0]) for _, copies in kept]
    assert len(set(norms)) == len(norms)


@pytest.mark.parametrize("device", DEVICES)
def test_a_step_that_is_not_finite_changes_nothing(tmp_path: Path, device: str) -> None:
    parts, optimiser, samples, most = trained(tmp_path, "ppo", device=device)
    graph = graph_of(parts, optimiser, samples[0], most)
    for sample in samples * 2:
        assert graph(sample, 1e-3, parts.coefficients()).finite
    before = state(parts, optimiser)
    obs = {name: torch.full_like(rows, torch.nan) for name, rows in samples[0].obs.items()}
    assert not graph(samples[0]._replace(obs=obs), 1e-3, parts.coefficients()).finite
    for one, other in zip(state(parts, optimiser), before, strict=True):
        assert torch.equal(one, other)
    assert graph(samples[0], 1e-3, parts.coefficients()).finite


@pytest.mark.usefixtures("captures")
def test_what_cannot_be_in_one_piece_goes_on_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parts, optimiser, samples, most = trained(tmp_path, "ppo")
    parts.config = structs.replace(parts.config, graph=True)
    step = OneStep(parts, parts.model, optimiser)

    def tried(*_: Any) -> Any:
        raise RuntimeError("it looks at its numbers\nhere")

    monkeypatch.setattr(CompiledStep, "tried", tried)
    for sample in samples:
        assert step(sample, None, most=most).finite
    assert step.settled
    told = [line for line in caplog.messages if "the optimiser step" in line]
    assert told == ["the optimiser step is not captured: RuntimeError: it looks at its numbers"]


@pytest.mark.parametrize(
    ("learner", "device", "may"),
    [
        ({}, "cuda", True),
        ({"graph": True}, "cuda", True),
        ({"graph": False}, "cuda", False),
        ({"optimiser": "rmsprop"}, "cuda", False),
        ({"graph": True}, "cpu", False),
    ],
)
def test_a_gpu_captures_unless_something_stands_against_it(
    tmp_path: Path, learner: dict[str, Any], device: str, may: bool
) -> None:
    parts, _ = learn(
        tmp_path, 1, learner=LearnerConfig(**learner), model=ModelConfig(hidden=(8,), **LSTM)
    )
    parts.device = torch.device(device)
    assert may_capture(parts) is may
