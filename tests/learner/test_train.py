"""The train loop in one process, with a made-up feed: what it does with each batch."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from prometheus_client import CollectorRegistry
from torch import nn

from headrace.broker.errors import DivergedError
from headrace.broker.peers.objections import Objection
from headrace.learner.batches.batch import Batch
from headrace.learner.batches.unroll_ends import EpisodeEnds
from headrace.learner.checkpoints import checkpoint
from headrace.learner.checkpoints.config import CheckpointConfig
from headrace.learner.config import AlgorithmConfig, ModelConfig
from headrace.learner.learner_config import LearnerConfig
from headrace.learner.metrics import LearnerMetrics
from headrace.learner.models.build import build
from headrace.learner.models.gaussians import LOG_STD
from headrace.learner.models.model import Model
from headrace.learner.progress import Progress
from headrace.learner.ranks import Ranks
from headrace.learner.spaces import DEAD, TERMINATED, Action, Leaf, Part, Spaces, discrete
from headrace.learner.step.show import show
from headrace.learner.train import train
from headrace.learner.train_parts import Goal, TrainParts, to_end
from headrace.learner.weights import Body
from tests.learner.unrolls import message

SPACES = Spaces((Leaf("obs", "<f4", (3,)),), discrete(2))
T, G, B = 5, 4, 2


class MadeUpFeed:
    """Batches by number; remembers what became of them."""

    def __init__(self, count: int, spaces: Spaces, memory: int) -> None:
        self.spaces = spaces
        self.memory = memory
        self.left = list(range(count))
        self.outcomes: list[tuple[str, int]] = []
        self.refused: list[tuple[int, int, bool]] = []  # batch, place, blamed
        self.rest: Batch | None = None  # what is left of one; the next unrolls join it
        self.published: list[int] = []
        self.change: Callable[[int, dict[str, Any]], None] = lambda *_: None

    def next(self, timeout_s: float) -> Batch | None:
        assert timeout_s >= 0
        if not self.left:
            return None
        number = self.left.pop(0)
        rest, self.rest = self.rest, None
        fresh = self._made(number)
        if rest is None:
            return fresh
        count = len(rest.messages)
        for name, tensor in rest.tensors.items():
            tensor[:, count * G :] = fresh.tensors[name][:, : (B - count) * G]
        rest.messages += fresh.messages[: B - count]
        return rest

    def _made(self, number: int) -> Batch:
        batch = Batch(self.spaces, length=T, envs=G, unrolls=B, pinned=False, memory=self.memory)
        rng = np.random.default_rng(number)
        arrays = {name: tensor.numpy() for name, tensor in batch.tensors.items()}
        arrays["obs.obs"][:] = rng.normal(3.0, 2.0, arrays["obs.obs"].shape)
        arrays["action"][:] = rng.integers(0, 2, arrays["action"].shape)
        arrays["logp"][:] = math.log(0.5)
        arrays["reward"][:] = rng.normal(size=arrays["reward"].shape)
        arrays["flags"][2, :3], arrays["flags"][3, :3] = TERMINATED, DEAD
        self.change(number, arrays)
        live = (arrays["flags"] & DEAD == 0).reshape(T, B, G).sum((0, 2))
        batch.messages = [
            message(number, stream=at, version_min=number, version_max=number, steps=int(live[at]))
            for at in range(B)
        ]
        return batch

    def trained(self, batch: Batch, *, version: int) -> None:
        assert batch.keys
        self.outcomes.append(("trained", version))

    def reject(self, batch: Batch, places: Sequence[int], objection: Objection) -> None:
        self.refused += [(batch.keys[at][2], at, objection.blame) for at in places]
        batch.drop(places)

    def refill(self, batch: Batch) -> None:
        self.outcomes.append(("refilled", len(batch.keys)))
        self.rest = batch

    def publish(self, version: int, body: Body) -> None:
        assert body
        self.published.append(version)

    def stats(self, stats: dict[str, float]) -> None: ...

    def windows(self) -> Any:
        return []


def learn(
    folder: Path,
    count: int,
    *,
    algorithm: AlgorithmConfig | None = None,
    model: ModelConfig | None = None,
    resume: checkpoint.Checkpoint | None = None,
    change: Callable[[int, dict[str, Any]], None] | None = None,
    spaces: Spaces = SPACES,
    learner: LearnerConfig | None = None,
    device: str = "cpu",
    feed: MadeUpFeed | None = None,
    saving: CheckpointConfig | None = None,
) -> tuple[TrainParts, MadeUpFeed]:
    algorithm, config = algorithm or AlgorithmConfig(), model or ModelConfig(hidden=(8,))
    feed = feed or MadeUpFeed(count, spaces, config.memory)
    feed.change = change or feed.change
    made = build(config, spaces, seed=1).to(device)
    progress = Progress()
    if resume is not None:
        made.load_state_dict(resume.tensors["model"])
        progress.restore(resume.state["progress"])
    pieces = TrainParts(
        algorithm=algorithm,
        config=learner or LearnerConfig(),
        saving=saving or CheckpointConfig(),
        goal=Goal(None, None, None),
        ranks=Ranks(timeout_s=5.0, cuda=False),
        feed=feed,
        model=made,
        target=build(config, spaces, seed=1).to(device) if algorithm.name == "appo" else None,
        gap=None,
        progress=progress,
        metrics=LearnerMetrics(CollectorRegistry()),
        device=torch.device(device),
        folder=folder,
        spaces=spaces,
        previous=False,
        identity={},
        resume=resume,
        stopping=lambda: not feed.left,
        seed=1,
        started=0.0,
    )
    # A last look for a batch comes after the request to stop has been seen: one more than asked.
    feed.left.append(count)
    assert to_end(train(pieces)) == "stopped"
    return pieces, feed


def latest(folder: Path) -> checkpoint.Checkpoint:
    found = checkpoint.load_latest(folder / "checkpoints")
    assert found is not None
    return found


def test_a_batch_is_one_version_however_often_it_is_used(tmp_path: Path) -> None:
    config = AlgorithmConfig(name="ppo", epochs=3, minibatches=2)
    pieces, feed = learn(tmp_path, 4, algorithm=config)
    assert feed.published == [0, 1, 2, 3, 4]
    assert feed.outcomes == [("trained", version) for version in (1, 2, 3, 4)]
    progress = pieces.progress
    assert (progress.version, progress.learner_steps) == (4, 4 * 3 * 2)
    assert progress.trained_steps == 4 * (T * G * B - 3)  # the dead ones are not counted
    assert progress.reuse() == pytest.approx(3.0)


def test_ppo_leaves_a_batch_when_the_policy_has_moved(tmp_path: Path) -> None:
    steps = []
    for limit in (0.0, 1e-12, 100.0):
        config = AlgorithmConfig(name="ppo", epochs=5, minibatches=1, kl_stop=limit)
        pieces, feed = learn(tmp_path / str(limit), 3, algorithm=config)
        assert len(feed.outcomes) == 3
        steps.append(pieces.progress.learner_steps)
    assert steps == [15, 3, 15]


def bad(numbers: set[int]) -> Callable[[int, dict[str, Any]], None]:
    def change(number: int, arrays: dict[str, Any]) -> None:
        if number in numbers:
            arrays["reward"][0, 0] = math.nan

    return change


@pytest.mark.parametrize("name", ["impala", "appo", "ppo"])
def test_what_is_not_finite_is_skipped_counted_and_kept(tmp_path: Path, name: Any) -> None:
    config = AlgorithmConfig(name=name, buffer_batches=2, uses=2)
    normalised = ModelConfig(hidden=(8,), normalise_obs=True, normalise_returns=True)
    pieces, feed = learn(tmp_path, 3, algorithm=config, model=normalised, change=bad({1}))
    assert feed.outcomes == [("trained", 1), ("refilled", 1), ("trained", 2)]
    assert feed.refused == [(1, 0, True)]
    assert pieces.progress.nonfinite == 1 and pieces.progress.version == 2
    assert len(list((tmp_path / "nonfinite").iterdir())) == 1
    for tensor in pieces.model.state_dict().values():
        assert tensor.isfinite().all()
    assert pieces.model.normaliser is not None
    # Batch 0, the good unroll of batch 1 and the first of batch 2: the dead steps are in the first.
    assert float(pieces.model.normaliser.count) == 2 * (T * G * B - 3)
    assert pieces.progress.trained_steps == 2 * (T * G * B - 3)
    assert pieces.progress.trained_unrolls == 2 * B


def test_a_model_that_says_nonsense_ends_the_run_and_leaves_good_weights(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match="20 steps in a row"):
        learn(tmp_path, 30, change=bad(set(range(30))))


def test_the_normaliser_counts_every_live_row_once(tmp_path: Path) -> None:
    config = AlgorithmConfig(name="ppo", epochs=4, minibatches=3)
    rows: list[Any] = []

    def remember(_number: int, arrays: dict[str, Any]) -> None:
        rows.append(arrays["obs.obs"][:-1][arrays["flags"] & DEAD == 0].copy())

    model = ModelConfig(hidden=(8,), normalise_obs=True)
    pieces, _ = learn(tmp_path, 5, algorithm=config, model=model, change=remember)
    seen = np.concatenate(rows[:5]).astype(np.float64)
    assert pieces.model.normaliser is not None
    assert float(pieces.model.normaliser.count) == len(seen)
    np.testing.assert_allclose(pieces.model.normaliser.mean.numpy(), seen.mean(0), rtol=1e-12)
    np.testing.assert_allclose(pieces.model.normaliser.var.numpy(), seen.var(0), rtol=1e-10)
    # It is in the checkpoint, and goes on from there: nothing is counted again.
    again, _ = learn(tmp_path, 1, algorithm=config, model=model, resume=latest(tmp_path))
    assert again.model.normaliser is not None
    assert float(again.model.normaliser.count) == len(seen) + T * G * B - 3


@pytest.mark.slow
def test_returns_are_merged_once_for_each_batch(tmp_path: Path) -> None:
    for config in (
        AlgorithmConfig(name="ppo", epochs=4, minibatches=3),
        AlgorithmConfig(name="impala", replay_share=0.5),
        AlgorithmConfig(name="appo", uses=3, buffer_batches=2),
    ):
        model = ModelConfig(hidden=(8,), normalise_returns=True)
        pieces, _ = learn(tmp_path / config.name, 5, algorithm=config, model=model)
        assert pieces.model.returns is not None
        assert int(pieces.model.returns.updates) == 5


@pytest.mark.slow
def test_the_kl_weight_follows_kl_and_not_the_interval(tmp_path: Path) -> None:
    """Every second step starts with target and policy alike: that KL of 0 says nothing."""
    for wanted, grows in ((1e-9, True), (1e9, False)):
        config = AlgorithmConfig(name="appo", kl_coef=1.0, kl_target=wanted, target_interval=2)
        pieces, _ = learn(tmp_path / str(wanted), 10, algorithm=config)
        assert pieces.progress.kl_coef == (1.5**5 if grows else 0.5**5)


@pytest.mark.parametrize(
    ("algorithm", "used"),
    [
        (AlgorithmConfig(name="impala", entropy_coef=3e-8), {"entropy_coef": 3e-8}),
        (
            AlgorithmConfig(name="ppo", clip=((0, 0.3), (2 * T * G * B, 0.1))),
            {"entropy_coef": 0.01, "clip": 0.1},
        ),
        (
            AlgorithmConfig(name="appo", kl_coef=1.0, kl_target=1e9),
            {"entropy_coef": 0.01, "clip": 0.2, "kl_coef": 0.5},
        ),
    ],
)
def test_the_history_ends_with_the_settings_as_they_were_used(
    tmp_path: Path, algorithm: AlgorithmConfig, used: dict[str, float]
) -> None:
    """However short the training was: a population's proof reads them there."""
    learn(tmp_path, 4, algorithm=algorithm)
    last = json.loads((tmp_path / "history.jsonl").read_text().splitlines()[-1])
    names = ("lr", "entropy_coef", "clip", "kl_coef")
    assert {name: last[name] for name in names if name in last} == {"lr": 6e-4, **used}


def test_the_latest_episodes_are_written_down_and_no_more_than_asked_for(tmp_path: Path) -> None:
    def ends(progress: Progress) -> None:
        told = tuple((column, 10.0 * column, 5) for column in range(4))
        progress.add_episodes(4, [EpisodeEnds(7, 3, 4, 5, told)])

    parts, _ = learn(tmp_path, 1)
    parts.progress = Progress(episodes=3)
    show(parts, {})
    assert not (tmp_path / "episodes.jsonl").exists()
    ends(parts.progress)
    show(parts, {})
    show(parts, {})
    lines = [json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]
    last = json.loads((tmp_path / "history.jsonl").read_text().splitlines()[-2])
    same = {"t": last["t"], "trained_steps": 0, "episodes": 4, "group": 3, "length": 5}
    assert lines == [{**same, "column": at, "return": 10.0 * at} for at in (1, 2, 3)]
    parts.progress = Progress()
    ends(parts.progress)
    show(parts, {})
    assert len((tmp_path / "episodes.jsonl").read_text().splitlines()) == 3


@pytest.mark.slow
def test_a_free_deviation_stays_where_it_can_learn(tmp_path: Path) -> None:
    config = AlgorithmConfig(name="impala", entropy_coef=1e3)
    box = Action((Part((), "float32", (1,), low=(-1.0,), high=(1.0,)),))
    wide = Spaces(SPACES.observation, box)
    pieces, _ = learn(
        tmp_path, 100, algorithm=config, model=ModelConfig(hidden=(8,), std_init=7.0), spaces=wide
    )
    assert pieces.model.log_std is not None
    assert pieces.model.log_std.item() == LOG_STD[1]
    # It is at the bound, and what leads back inside still has a gradient.
    params = torch.tensor([[0.0, LOG_STD[1] + 1]], requires_grad=True)
    logp = pieces.model.distribution.log_prob(params, torch.zeros(1, 1))
    (gradient,) = torch.autograd.grad(-logp.sum(), params)
    assert gradient[0, 1] == 1


@pytest.mark.slow
def test_a_deviation_of_the_network_does_not_leave_what_is_used(tmp_path: Path) -> None:
    """A bonus that never ends carries it to the bound and no further, so that it comes back."""
    box = Action((Part((), "float32", (1,), low=(-1.0,), high=(1.0,)),))
    wide = Spaces(SPACES.observation, box)
    model = ModelConfig(hidden=(8,), std="network", std_init=7.0)

    config = AlgorithmConfig(name="impala", entropy_coef=1e3)
    pieces, _ = learn(tmp_path, 300, algorithm=config, model=model, spaces=wide)
    rows = torch.from_numpy(np.random.default_rng(0).normal(3.0, 2.0, (200, 3)))
    told = pieces.model({"obs": rows.float()}).params[:, 1].detach()
    assert LOG_STD[1] - 0.1 < float(told.mean()) and float(told.max()) < 2.5


def test_a_resumed_learner_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    """Weights, optimiser, target, adapted numbers, dice: 3 + 3 batches are 6."""
    config = AlgorithmConfig(
        name="appo",
        kl_coef=0.5,
        kl_target=1e-9,
        target_interval=2,
        entropy_coef=((0, 0.1), (200, 0.0)),
        normalise_advantages="running",
    )
    model = ModelConfig(hidden=(8,), normalise_obs=True, normalise_returns=True)
    whole, _ = learn(tmp_path / "whole", 6, algorithm=config, model=model)
    learn(tmp_path / "parts", 3, algorithm=config, model=model)
    saved = latest(tmp_path / "parts")

    def later(number: int, arrays: dict[str, Any]) -> None:
        rng = np.random.default_rng(number + 3)
        arrays["obs.obs"][:] = rng.normal(3.0, 2.0, arrays["obs.obs"].shape)
        arrays["action"][:] = rng.integers(0, 2, arrays["action"].shape)
        arrays["reward"][:] = rng.normal(size=arrays["reward"].shape)

    parts, _ = learn(
        tmp_path / "parts", 3, algorithm=config, model=model, resume=saved, change=later
    )
    assert parts.resume is None, "its files would stay open"
    assert parts.progress.kl_coef == whole.progress.kl_coef != 0.5
    square = whole.progress.advantage_square
    assert square is not None and parts.progress.advantage_square == square
    same(parts.model, whole.model)
    assert parts.target is not None and whole.target is not None
    same(parts.target, whole.target)


def same(one: Model, other: Model) -> None:
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


def test_a_target_network_may_follow_slowly(tmp_path: Path) -> None:
    config = AlgorithmConfig(name="appo", target_rate=0.5, target_interval=1)
    pieces, _ = learn(tmp_path, 2, algorithm=config)
    assert pieces.target is not None
    start = build(ModelConfig(hidden=(8,)), SPACES, seed=1)
    first, target, now = (
        next(iter(model.parameters())).detach() for model in (start, pieces.target, pieces.model)
    )
    moved = nn.functional.l1_loss(target, first)
    assert 0 < float(moved) < float(nn.functional.l1_loss(now, first))
