"""Steps that the device decides on: the same training as where the host does, a step later."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.broker.errors import DivergedError
from headrace.learner.batches.batch import Batch
from headrace.learner.checkpoints import checkpoint
from headrace.learner.checkpoints.config import CheckpointConfig
from headrace.learner.config import AlgorithmConfig, ModelConfig
from headrace.learner.learner_config import LearnerConfig
from headrace.learner.models.build import build
from headrace.learner.step import choice, device_steps
from headrace.learner.step.flight import Flight
from headrace.learner.train_parts import TrainParts
from headrace.learner.weights import Body, FlatWeights
from tests.learner.test_train import SPACES, B, G, MadeUpFeed, T, bad, latest, learn

# On a GPU the same code is one captured graph.
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
COUNT = 9  # batches; the graph is captured with the fourth
NORMALISED = {"normalise_obs": True, "normalise_returns": True}
RUNS = {
    "impala": (AlgorithmConfig(name="impala", drift_limit=0.2), {}),
    "returns": (AlgorithmConfig(name="impala"), NORMALISED),
    "running": (AlgorithmConfig(name="impala", normalise_advantages="running"), {}),
    "batch": (AlgorithmConfig(name="impala", normalise_advantages=True), {}),
    "appo": (AlgorithmConfig(name="appo", target_interval=2, kl_coef=0.5), NORMALISED),
    "lstm": (AlgorithmConfig(name="impala"), {"core": "lstm", "core_units": 4}),
    "gru": (AlgorithmConfig(name="appo"), {"core": "gru", "core_units": 4}),
}


class KeepingFeed(MadeUpFeed):
    """Keeps the weights of every version."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(COUNT, SPACES, config.memory)
        self._model = build(config, SPACES, seed=1)
        self.versions: list[dict[str, torch.Tensor]] = []

    def publish(self, version: int, body: Body) -> None:
        super().publish(version, body)
        FlatWeights(self._model).load(body)
        self.versions.append({k: each.clone() for k, each in self._model.state_dict().items()})


def run(
    folder: Path, name: str, *, graph: bool, device: str
) -> tuple[TrainParts, list[dict[str, torch.Tensor]]]:
    """Trains on the same batches; returns the parts, and the weights of every version."""
    algorithm, model = RUNS[name]
    config = ModelConfig(hidden=(8,), **model)  # type: ignore[arg-type]
    feed = KeepingFeed(config)
    parts, _ = learn(
        folder,
        COUNT,
        algorithm=algorithm,
        model=config,
        learner=LearnerConfig(graph=graph, lr=1e-3, precision="float32"),
        device=device,
        feed=feed,
    )
    versions = range(COUNT + 1)
    assert feed.published == [*versions]
    assert feed.outcomes == [("trained", version) for version in versions[1:]]
    return parts, feed.versions


def same(found: list[dict[str, torch.Tensor]], wanted: list[dict[str, torch.Tensor]]) -> None:
    for one, other in zip(found, wanted, strict=True):
        for key, tensor in other.items():
            torch.testing.assert_close(one[key], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", RUNS)
def test_the_numbers_are_those_of_the_host(tmp_path: Path, name: str, device: str) -> None:
    host, wanted = run(tmp_path / "host", name, graph=False, device=device)
    late, found = run(tmp_path / "late", name, graph=True, device=device)
    same(found, wanted)
    own, other = host.progress, late.progress
    assert other.advantage_square == (
        None if own.advantage_square is None else pytest.approx(own.advantage_square, rel=1e-5)
    )
    for counter in ("version", "learner_steps", "trained_steps", "trained_unrolls", "uses", "lags"):
        assert getattr(other, counter) == getattr(own, counter), counter


@pytest.mark.parametrize("device", DEVICES)
def test_a_step_begins_before_the_one_before_is_settled(
    tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, int]] = []

    class Told(device_steps.DeviceSteps):
        def begin(self, batch: Batch, facts: Any) -> Flight:
            told.append(("begun", batch.keys[0][2]))
            return super().begin(batch, facts)

        def finish(self, flight: Flight) -> None:
            super().finish(flight)
            told.append(("over", flight.batch.keys[0][2]))

    monkeypatch.setattr("headrace.learner.train.DeviceSteps", Told)
    run(tmp_path, "impala", graph=True, device=device)
    between = [each for n in range(1, COUNT) for each in (("begun", n), ("over", n - 1))]
    assert told == [("begun", 0), *between, ("over", COUNT - 1)]


class PausingFeed(MadeUpFeed):
    """Has nothing at every other look."""

    def next(self, timeout_s: float) -> Batch | None:
        self.looks = getattr(self, "looks", 0) + 1
        return super().next(timeout_s) if self.looks % 2 else None


def test_what_is_under_way_is_settled_while_nothing_comes(tmp_path: Path) -> None:
    feed = PausingFeed(COUNT, SPACES, 0)
    parts, _ = learn(tmp_path, COUNT, learner=LearnerConfig(graph=True), feed=feed)
    assert parts.progress.version == COUNT and len(feed.outcomes) == COUNT


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("every_s", [60.0, 1e-9])
def test_what_is_not_finite_is_skipped_by_the_device(
    tmp_path: Path, device: str, every_s: float
) -> None:
    model = ModelConfig(hidden=(8,), **NORMALISED)  # type: ignore[arg-type]
    graph = LearnerConfig(graph=True)
    saving = CheckpointConfig(every_s=every_s)
    parts, feed = learn(
        tmp_path, 8, model=model, change=bad({5}), learner=graph, device=device, saving=saving
    )
    # The next batch is at work before this one is known to be bad; nothing of it is lost.
    assert feed.refused == [(5, 0, True)]
    assert [what for what, _ in feed.outcomes].count("refilled") == 1
    versions = [version for what, version in feed.outcomes if what == "trained"]
    assert versions == [*range(1, 8)] and feed.published == [0, *versions]
    assert parts.progress.nonfinite == 1 and parts.progress.learner_steps == 7
    assert parts.progress.trained_unrolls == 7 * B
    for tensor in parts.model.state_dict().values():
        assert tensor.isfinite().all()
    normaliser = parts.model.normaliser
    assert normaliser is not None
    assert float(normaliser.count) == parts.progress.trained_steps
    assert 7 * (T * G * B - 3) <= parts.progress.trained_steps <= 7 * T * G * B


def test_weights_that_are_not_finite_reach_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ruined(device_steps.DeviceSteps):
        def _run_step(self) -> None:
            super()._run_step()
            if self._begun == 3:
                self._parameters[0].data.fill_(math.nan)

    monkeypatch.setattr("headrace.learner.train.DeviceSteps", Ruined)
    feed = MadeUpFeed(5, SPACES, 0)
    with pytest.raises(DivergedError, match="the network itself is not finite"):
        learn(tmp_path, 5, learner=LearnerConfig(graph=True), feed=feed)
    assert feed.published == [0, 1, 2]


def test_every_checkpoint_is_of_its_version(tmp_path: Path) -> None:
    config = ModelConfig(hidden=(8,))
    feed = KeepingFeed(config)
    always = CheckpointConfig(every_s=1e-9, keep=COUNT)
    graph = LearnerConfig(graph=True)
    learn(tmp_path, COUNT, model=config, learner=graph, feed=feed, saving=always)
    kept = sorted((tmp_path / "checkpoints").iterdir())
    assert len(kept) == COUNT
    for folder in kept:
        saved = checkpoint.load(folder)
        assert saved.state["progress"]["version"] == saved.version
        for key, tensor in feed.versions[saved.version].items():
            assert torch.equal(saved.tensors["model"][key], tensor)


def test_a_checkpoint_waits_for_what_is_under_way(tmp_path: Path) -> None:
    parts, _ = run(tmp_path / "a", "running", graph=True, device="cpu")
    saved = latest(tmp_path / "a")
    assert saved.version == COUNT == parts.progress.version
    for key, tensor in parts.model.state_dict().items():
        assert torch.equal(saved.tensors["model"][key], tensor)
    # Either way of stepping goes on from it.
    for graph in (False, True):
        again, _ = learn(
            tmp_path / str(graph),
            3,
            algorithm=RUNS["running"][0],
            resume=saved,
            learner=LearnerConfig(graph=graph, lr=1e-3),
        )
        assert again.progress.version == COUNT + 3


@pytest.mark.parametrize(
    ("learner", "algorithm", "reason"),
    [
        (LearnerConfig(graph=True, optimiser="rmsprop"), AlgorithmConfig(), "rmsprop"),
        (LearnerConfig(graph=True), AlgorithmConfig(name="ppo"), "more than once"),
        (LearnerConfig(graph=True), AlgorithmConfig(replay_share=0.5), "more than once"),
    ],
)
def test_where_the_device_cannot_decide_the_host_does_and_says_why(
    tmp_path: Path,
    learner: LearnerConfig,
    algorithm: AlgorithmConfig,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO"):
        parts, _ = learn(tmp_path, 2, algorithm=algorithm, learner=learner)
    assert [line for line in caplog.messages if reason in line]
    assert not choice.device_decides(parts)


def synchronising(network: Any) -> None:
    """Makes a network look at its input on the host, which no graph can hold."""
    plain = network.forward

    def forward(*given: Any) -> Any:
        assert float(given[0]["obs"].sum()) == float(given[0]["obs"].sum())
        return plain(*given)

    network.forward = forward


@pytest.mark.parametrize("device", DEVICES)
def test_a_network_that_cannot_be_captured_goes_on_piece_by_piece(
    tmp_path: Path, device: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Looking(device_steps.DeviceSteps):
        def __init__(self, parts: TrainParts, *rest: Any) -> None:
            super().__init__(parts, *rest)
            synchronising(parts.model)

    monkeypatch.setattr("headrace.learner.train.DeviceSteps", Looking)
    _, wanted = run(tmp_path / "host", "impala", graph=False, device=device)
    _, found = run(tmp_path / "late", "impala", graph=True, device=device)
    told = [line for line in caplog.messages if "piece by piece" in line]
    assert len(told) == (device == "cuda")
    same(found, wanted)
