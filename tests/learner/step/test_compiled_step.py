"""A step as one function: the numbers of its parts; what is compiled, and when it is left."""

import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from headrace.learner.algorithms import optimiser_step
from headrace.learner.algorithms.batch_uses import Sample, uses_of
from headrace.learner.algorithms.loss_inputs import Coefficients, Loss, LossInputs, LossNorm
from headrace.learner.algorithms.losses import LOSSES
from headrace.learner.batches.upload import sample_of
from headrace.learner.config import AlgorithmConfig, ModelConfig
from headrace.learner.learner_config import LearnerConfig
from headrace.learner.spaces import Action, Leaf, Part, Spaces
from headrace.learner.step import compile_ahead, one_step
from headrace.learner.step.choice import may_compile
from headrace.learner.step.compile_ahead import CompileAhead
from headrace.learner.step.compiled_step import CompiledStep, FlatStep, StepParts
from headrace.learner.step.one_step import OneStep
from headrace.learner.step.sample_loss import loss_of, with_targets_of
from headrace.learner.train_parts import TrainParts
from tests.learner.test_train import SPACES, B, G, MadeUpFeed, T, learn
from tests.needs import missing

NUMBERS = Spaces((Leaf("obs", "<f4", (3,)),), Action((Part((), "<f4", (2,)),)))
NORMALISED = {"normalise_obs": True, "normalise_returns": True}
PPO = AlgorithmConfig(name="ppo", minibatches=4, normalise_advantages=True)
RUNS: dict[str, tuple[AlgorithmConfig, dict[str, Any], dict[str, Any]]] = {
    "ppo": (PPO, {"separate": True, **NORMALISED}, {"grad_clip": 0.5}),
    "values": (AlgorithmConfig(name="ppo", value_clip=0.2), {}, {"grad_clip_value": 1e-3}),
    "impala": (AlgorithmConfig(name="impala", drift_limit=0.2), {}, {}),
    "replay": (AlgorithmConfig(name="impala", replay_share=0.5), NORMALISED, {"grad_clip": 0.0}),
    "running": (AlgorithmConfig(name="impala", normalise_advantages="running"), {}, {}),
    "appo": (AlgorithmConfig(name="appo", uses=2, buffer_batches=2, kl_coef=0.5), NORMALISED, {}),
    "transformer": (
        AlgorithmConfig(name="ppo", minibatches=2),
        {"core": "transformer", "core_units": 16, "core_layers": 1, "core_context": 4},
        {},
    ),
}


def trained(
    folder: Path, name: str, spaces: Spaces = SPACES, *, compiles: bool = False, device: str = "cpu"
) -> tuple[TrainParts, torch.optim.Optimizer, list[Sample], int]:
    """Returns a learner after some batches, its next samples, and how many steps one has at
    most."""
    algorithm, model, more = RUNS[name]
    config = LearnerConfig(lr=1e-3, precision="float32", compile=False, graph=False, **more)
    folder.mkdir(parents=True, exist_ok=True)
    made = ModelConfig(hidden=(8,), **model)
    feed = (NumbersFeed if spaces is NUMBERS else MadeUpFeed)(3, spaces, made.memory)
    parts, _ = learn(
        folder,
        3,
        algorithm=algorithm,
        model=made,
        learner=config,
        spaces=spaces,
        feed=feed,
        device=device,
    )
    optimiser = optimiser_step.make_optimiser(parts.config, parts.model, lr=1e-3)
    uses, samples = uses_of(algorithm), []
    for number in range(4):
        tensors = feed._made(number).tensors
        fresh = sample_of(tensors, spaces, previous=False, unrolls=B).copy().on(parts.device)
        ready = with_targets_of(parts, fresh, LossNorm(steps=int(fresh.loss.live.sum())))
        samples += list(uses.samples(ready))
    step = OneStep(parts, parts.model, optimiser)
    most = -(-T * B * G // algorithm.parts)
    for sample in samples[:2]:  # there are moments of the gradient
        step(sample, None, most=most)
    parts.config = structs.replace(parts.config, compile=compiles)
    return parts, optimiser, samples[-3:], most


class NumbersFeed(MadeUpFeed):
    """Has actions of numbers."""

    def _made(self, number: int) -> Any:
        rng = np.random.default_rng(100 + number)
        change = self.change

        def both(number: int, arrays: dict[str, Any]) -> None:
            arrays["action"][:] = rng.normal(size=arrays["action"].shape)
            arrays["logp"][:] = -3.0
            change(number, arrays)

        self.change = both
        try:
            return super()._made(number)
        finally:
            self.change = change


def state(parts: TrainParts, optimiser: torch.optim.Optimizer) -> list[Tensor]:
    """Returns copies of all that a step may write."""
    tensors = [*parts.model.state_dict().values()]
    for moments in optimiser.state.values():
        tensors += [moments["step"], moments["exp_avg"], moments["exp_avg_sq"]]
    return [tensor.clone() for tensor in tensors]


def flat_of(
    parts: TrainParts,
    optimiser: torch.optim.Optimizer,
    sample: Sample,
    most: int,
    *,
    fused: bool = False,
) -> FlatStep:
    own = StepParts(parts.algorithm, parts.config, parts.model, parts.target, parts.device)
    squares = parts.coefficients().advantage_square is not None
    return FlatStep(own, optimiser, sample, most=most, squares=squares, fused=fused)


def as_one(
    parts: TrainParts, optimiser: torch.optim.Optimizer, sample: Sample, most: int
) -> CompiledStep:
    """Returns the step as one function, not compiled."""
    flat = flat_of(parts, optimiser, sample, most)
    return CompiledStep(flat, lambda: flat, list(loss_of(parts, parts.model, sample).stats))


@pytest.mark.parametrize(
    ("name", "spaces"),
    [*((name, SPACES) for name in RUNS), ("ppo", NUMBERS), ("appo", NUMBERS), ("running", NUMBERS)],
)
def test_one_function_steps_as_the_parts_do(tmp_path: Path, name: str, spaces: Spaces) -> None:
    found, wanted = (trained(tmp_path / each, name, spaces) for each in ("one", "parts"))
    same_numbers(state(*found[:2]), state(*wanted[:2]))
    parts, optimiser, samples, most = found
    compiled = as_one(parts, optimiser, samples[0], most)
    in_parts = OneStep(wanted[0], wanted[0].model, wanted[1])
    for sample in samples:
        assert compiled.fits(sample)
        one = compiled(sample, 1e-3, parts.coefficients())
        other = in_parts(sample, None, most=most)
        assert one.finite and other.finite
        same_numbers([one.norm, one.loss.total], [other.norm, other.loss.total.detach()])
        same_numbers(one.loss[2:], other.loss[2:])
        assert list(one.loss.stats) == list(other.loss.stats)
        same_numbers(list(one.loss.stats.values()), list(other.loss.stats.values()))
        same_numbers(state(parts, optimiser), state(*wanted[:2]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "appo", "transformer"])
def test_what_is_recorded_steps_on_other_samples_too(tmp_path: Path, name: str) -> None:
    """Nothing of the sample that it was recorded with is in it."""
    found, wanted = (trained(tmp_path / each, name) for each in ("one", "parts"))
    parts, optimiser, samples, most = found
    flat = flat_of(parts, optimiser, samples[0], most)
    given = flat.inputs(samples[0], 0.0, Coefficients(0.0, 0.0, 0.0))
    recorded = make_fx(flat)(*[tensor.clone() for tensor in given])
    for sample in samples[1:]:
        norm, total, *_ = recorded(*flat.inputs(sample, 1e-3, parts.coefficients()))
        torch._foreach_add_(flat.counts, 1)
        other = OneStep(wanted[0], wanted[0].model, wanted[1])(sample, None, most=most)
        same_numbers([norm, total], [other.norm, other.loss.total.detach()])
        same_numbers(state(parts, optimiser), state(*wanted[:2]))


def same_numbers(found: Sequence[Any], wanted: Sequence[Any]) -> None:
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_a_sample_may_have_fewer_steps_and_not_more(tmp_path: Path) -> None:
    parts, optimiser, samples, most = trained(tmp_path, "ppo")
    sizes = sorted({len(sample.loss.flags) for sample in samples})
    compiled = as_one(parts, optimiser, samples[0], most)
    assert sizes[-1] < most  # some steps are dead, and in no sample
    step = compiled(samples[0], 1e-3, parts.coefficients())
    assert len(step.loss.vs) == len(step.loss.value) == len(samples[0].loss.flags)
    assert float(step.loss.share.sum()) == pytest.approx(1.0)
    fewer = as_one(parts, optimiser, samples[0], sizes[0] - 1)
    assert not fewer.fits(samples[0])


def test_a_gradient_that_is_not_finite_changes_nothing(tmp_path: Path) -> None:
    parts, optimiser, samples, most = trained(tmp_path, "ppo")
    compiled = as_one(parts, optimiser, samples[0], most)
    obs = {name: torch.full_like(rows, torch.nan) for name, rows in samples[0].obs.items()}
    before = state(parts, optimiser)
    step = compiled(samples[0]._replace(obs=obs), 1e-3, parts.coefficients())
    assert not step.finite
    for one, other in zip(state(parts, optimiser), before, strict=True):
        assert torch.equal(one, other)


def test_a_trial_changes_nothing(tmp_path: Path) -> None:
    parts, optimiser, samples, most = trained(tmp_path, "appo")
    compiled = as_one(parts, optimiser, samples[0], most)
    before = state(parts, optimiser)
    tried, seconds = compiled.tried(samples[0], 1e-3, parts.coefficients())
    for one, other in zip(state(parts, optimiser), before, strict=True):
        assert torch.equal(one, other)
    assert seconds > 0
    same_numbers([tried.norm], [compiled(samples[0], 1e-3, parts.coefficients()).norm])


def run_until_settled(step: OneStep, samples: Sequence[Sample], most: int) -> int:
    """Steps until it is known whether the step is compiled; returns how often."""
    steps, end = 0, time.monotonic() + 300
    while not step.settled:
        assert time.monotonic() < end
        assert step(samples[steps % len(samples)], None, most=most).finite
        steps += 1
        time.sleep(0.05)
    return steps


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, as it is read
@pytest.mark.parametrize("name", ["ppo", "impala"])
def test_what_is_compiled_steps_as_the_parts_do(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if not shutil.which("g++"):
        missing("g++ is not installed: apt-get install g++")
    monkeypatch.setattr(CompiledStep, "tried", _quick(CompiledStep.tried))
    # Beside tests that keep every core busy, one at nice 19 would hardly ever run.
    monkeypatch.setattr(compile_ahead, "_NICE", 0)
    parts, optimiser, samples, most = trained(tmp_path / "compiled", name, compiles=True)
    wanted = trained(tmp_path / "parts", name)
    step, other = (
        OneStep(parts, parts.model, optimiser),
        OneStep(wanted[0], wanted[0].model, wanted[1]),
    )
    with caplog.at_level(logging.INFO):
        steps = run_until_settled(step, samples, most)
    assert step._compiled is not None, caplog.messages
    assert any("the optimiser step is compiled: " in line for line in caplog.messages)
    for number in range(steps):
        other(samples[number % len(samples)], None, most=most)
    for sample in samples:
        one, two = (each(sample, None, most=most) for each in (step, other))
        same_numbers([one.norm, *one.loss.stats.values()], [two.norm, *two.loss.stats.values()])
    same_numbers(state(parts, optimiser), state(*wanted[:2]))


def _quick(tried: Any) -> Any:
    """Makes it the faster one: beside other tests a clock says nothing."""
    return lambda *given: (tried(*given)[0], 0.0)


class Ended:
    """Stands for a compiler that has ended."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.closed = False

    def ended(self) -> str:
        return "InvalidCxxCompiler: no C++ compiler"

    def close(self) -> None:
        self.closed = True


def test_why_nothing_is_compiled_is_said_once_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parts, optimiser, samples, most = trained(tmp_path, "ppo", compiles=True)
    monkeypatch.setattr(one_step, "CompileAhead", Ended)
    step = OneStep(parts, parts.model, optimiser)
    for sample in samples * 3:
        assert step(sample, None, most=most).finite
    assert [line for line in caplog.messages if "optimiser step" in line] == [
        "the optimiser step is not compiled: InvalidCxxCompiler: no C++ compiler"
    ]


@pytest.mark.parametrize(
    ("norm", "seconds", "reason"),
    [(2.0, 0.0, "its gradient is "), (1.0, 1e9, "that is no faster, ")],
)
def test_what_differs_or_is_slower_is_left(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    norm: float,
    seconds: float,
    reason: str,
) -> None:
    parts, optimiser, samples, most = trained(tmp_path, "ppo", compiles=True)
    compiled = as_one(parts, optimiser, samples[0], most)
    step = OneStep(parts, parts.model, optimiser)

    class Made(Ended):
        def ended(self) -> str:
            return ""

        def made(self, _: Any) -> CompiledStep:
            return compiled

    def tried(self: CompiledStep, *given: Any) -> Any:
        right, _ = original(self, *given)
        return right._replace(norm=right.norm * norm), seconds

    original = CompiledStep.tried
    monkeypatch.setattr(CompiledStep, "tried", tried)
    monkeypatch.setattr(one_step, "CompileAhead", Made)
    for sample in samples:
        step(sample, None, most=most)
    assert step._compiled is None
    assert any(reason in line for line in caplog.messages), caplog.messages


@pytest.mark.parametrize("grows", [True, False])
def test_where_batches_have_grown_meanwhile_it_begins_anew_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, grows: bool
) -> None:
    """As those of a run with replay do, until its memory is full."""
    parts, optimiser, samples, most = trained(tmp_path, "impala", compiles=True)
    small = samples[0].columns(slice(0, G))
    begun: list[Sample] = []

    class Made(Ended):
        def __init__(self, _: Any, sample: Sample) -> None:
            begun.append(sample)

        def ended(self) -> str:
            return ""

        def made(self, _: Any) -> CompiledStep:
            return as_one(parts, optimiser, begun[-1] if grows else small, most)

        def close(self) -> None: ...

    monkeypatch.setattr(CompiledStep, "tried", _quick(CompiledStep.tried))
    monkeypatch.setattr(one_step, "CompileAhead", Made)
    step = OneStep(parts, parts.model, optimiser)
    begun.append(small)
    step._ahead = Made(None, small)  # type: ignore[assignment]
    for sample in [*samples, *samples]:
        assert step(sample, None, most=most).finite
    assert step.settled
    assert (step._compiled is not None) == grows
    told = [line for line in caplog.messages if "not compiled" in line]
    assert told == ["the optimiser step is not compiled: batches differ in size"] * (not grows)


def test_a_step_is_compiled_only_after_it_has_taken_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Any] = []

    class Begun(Ended):
        def __init__(self, *_: Any, **__: Any) -> None:
            begun.append(self)

        def ended(self) -> None:  # type: ignore[override]
            return None

    monkeypatch.setattr(one_step, "CompileAhead", Begun)
    parts, optimiser, samples, most = trained(tmp_path, "ppo")
    parts.config = structs.replace(parts.config, compile="auto")
    step = OneStep(parts, parts.model, optimiser)
    step(samples[0], None, most=most)
    assert not begun
    step._spent_s = one_step._PAYS_AFTER_S
    step(samples[0], None, most=most)
    step(samples[0], None, most=most)
    assert len(begun) == 1


@pytest.mark.parametrize(
    ("learner", "model", "reason"),
    [
        ({"optimiser": "rmsprop"}, {}, "rmsprop"),
        ({}, {"core": "gru", "core_units": 4}, "recurrent"),
    ],
)
def test_what_stands_against_it_is_said(
    tmp_path: Path,
    learner: dict[str, Any],
    model: dict[str, Any],
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = LearnerConfig(compile=True, **learner)
    with caplog.at_level(logging.INFO):
        parts, _ = learn(tmp_path, 1, learner=config, model=ModelConfig(hidden=(8,), **model))
    assert not may_compile(parts)
    assert any("learner.compile: " in line and reason in line for line in caplog.messages)


def own_loss(given: LossInputs) -> Loss:
    return LOSSES["impala"](given)


@pytest.mark.parametrize(
    ("algorithm", "model"),
    [
        (AlgorithmConfig(loss=f"{__name__}:own_loss"), ModelConfig(hidden=(8,))),
        (AlgorithmConfig(), ModelConfig(kind="tests.launch.config.keys_trained:encoder")),
    ],
)
def test_code_of_the_user_is_compiled_only_when_asked(
    tmp_path: Path, algorithm: AlgorithmConfig, model: ModelConfig
) -> None:
    """Keeps the parts: what it does beside tensors would be done once."""
    parts, _ = learn(tmp_path, 1, algorithm=algorithm, model=model)
    assert not may_compile(parts)
    parts.config = structs.replace(parts.config, compile=True)
    assert may_compile(parts)


@pytest.mark.processes
def test_a_compiler_that_is_not_needed_any_more_ends(tmp_path: Path) -> None:
    parts, optimiser, samples, most = trained(tmp_path, "ppo")
    ahead = CompileAhead(flat_of(parts, optimiser, samples[0], most), samples[0])
    folder = Path(ahead._folder.name)
    assert folder.is_dir() and ahead.ended() is None
    ahead.close()
    assert not folder.exists() and ahead._process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_a_compiler_ends_with_a_learner_that_is_killed(tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    made = tmp_path / "made"
    asked = tmp_path / "asked"
    os.mkfifo(asked)  # it waits for what it is to compile
    module = "headrace.learner.step.compile_ahead"
    compiler = subprocess.Popen(
        [sys.executable, "-m", module, str(asked), str(made), "0"], stdin=ours, close_fds=True
    )
    os.close(ours)
    with asked.open("wb"):  # opened by both: it is at work
        os.close(theirs)
        assert compiler.wait(60) == 1
    assert not tmp_path.exists()
