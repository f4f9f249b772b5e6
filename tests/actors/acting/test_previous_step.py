"""What is remembered and seen of the step before: the learner computes just what the sampler drew.

Environments whose episodes end at dice's will, a sampler, unrolls as they travel, the learner's
batch, and the network over whole unrolls: the log-probabilities must be the recorded ones.
"""

import asyncio
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from headrace.actors.acting.policy import Policy
from headrace.actors.stepping.stepper import EnvFailure, Frame, ThreadReply
from headrace.broker.peers.outbox import FinishedUnroll
from headrace.broker.protocol.messages import Deliver
from headrace.broker.weights.blobs import Blob
from headrace.learner.batches.batch import Batch
from headrace.learner.batches.frames import begins, observed
from headrace.learner.batches.logprob_gap import LogProbGap
from headrace.learner.config import ModelConfig
from headrace.learner.models.build import Model, build
from headrace.learner.spaces import (
    DEAD,
    TERMINATED,
    TRUNCATED,
    Action,
    Leaf,
    Part,
    Spaces,
    discrete,
)
from headrace.learner.weights import FlatWeights, layout_digest
from tests.actors import test_sampler
from tests.actors.test_reply import sampler_of

LENGTH, GROUPS, ENVS, UNROLLS = 5, 2, 3, 6
INF = float("inf")
STACKED = (Leaf("eye", "<f4", (2,), stack=3), Leaf("gear", "<i8", (), categories=(4,)))
BOX = Part((), "<f4", (3,), low=(-2.0, -INF, 0.0), high=(2.0, INF, INF))
CHOICES = Part((), "<i8", (2,), categories=(2, 3), start=(0, 0))
ACTIONS = {
    "one": discrete(3),
    "several": Action((CHOICES,)),
    "box": Action((BOX,)),
    "squashed": Action((BOX,), squash=True),
    "both": Action((CHOICES, BOX), squash=True),
    "masked": Action((CHOICES,)),
}
MASK = Leaf("allowed", "|u1", (5,), mask=True)


def world(action: str) -> Spaces:
    return Spaces((*STACKED, MASK) if action == "masked" else STACKED, ACTIONS[action])


Spoiled = tuple[str, int]  # what is no number for once, and at which step
NEVER = ("", 0)


class Play:
    """Environments that ask before they say that they are ready, if they `ask` at all."""

    def __init__(self, spaces: Spaces, *, ask: bool = False, spoiled: Spoiled = NEVER) -> None:
        self.spaces = spaces
        self.frame = Frame.empty(spaces, groups=GROUPS, envs=ENVS)
        self.beside = 0
        self._dice = np.random.default_rng(7)
        self._over = np.zeros(GROUPS * ENVS, np.bool_)
        self._ask, self._spoiled, self._steps = ask, spoiled, 0
        self._sent: list[int] = []
        self.asked = 0  # times that actions came without the event loop

    def start(self, news: asyncio.Event, reply: ThreadReply | None = None) -> None:
        assert reply is not None
        self._news, self._reply = news, reply
        for group in range(GROUPS):
            self._show(group)
        self._sent = list(range(GROUPS))
        news.set()

    def send(self, group: int, actions: NDArray[Any]) -> None:
        assert actions.shape == (ENVS, *self.spaces.action.shape)
        self._sent.append(group)
        self._news.set()

    def ready(self) -> list[int]:
        groups = [group for group in self._sent if self._dice.random() < 0.6]
        for group in groups:
            self._sent.remove(group)
            self._step(group)
            while self._ask and self._answered(group):
                self._step(group)
        if self._sent:
            asyncio.get_running_loop().call_soon(self._news.set)
        return groups

    def failures(self) -> list[EnvFailure]:
        return []

    def close(self) -> None: ...

    def _answered(self, group: int) -> bool:
        with self._reply.lock:
            answered = self._reply.actions(group) is not None
        self.asked += answered
        return answered

    def _step(self, group: int) -> None:
        """The first is the row it began with."""
        self._steps += 1
        columns, dice = self.frame.columns(group), self._dice
        over = self._over[columns]
        ends = dice.choice([0, TERMINATED, TRUNCATED, DEAD], ENVS, p=[0.7, 0.1, 0.1, 0.1])
        flags = np.where(over, DEAD, ends)  # DEAD without an end: it was restarted
        self._over[columns] = (flags != 0) & (flags != DEAD)
        self.frame.flags[columns] = flags
        # A dead step's reward is none; if it were one, nobody might see it.
        self.frame.reward[columns] = dice.normal(0.0, 2.0, ENVS)
        self._show(group)
        what, at = self._spoiled
        if self._steps == at:
            array = self.frame.reward if what == "reward" else self.frame.obs[what]
            array[columns.start] = np.nan

    def _show(self, group: int) -> None:
        columns = self.frame.columns(group)
        self.frame.obs["eye"][columns] = self._dice.normal(size=(ENVS, 2))
        self.frame.obs["gear"][columns] = self._dice.integers(0, 4, ENVS)
        if "allowed" in self.frame.obs:
            allowed = self._dice.integers(0, 2, (ENVS, 5))
            allowed[:, [0, 2]] = 1  # the first of either choice
            self.frame.obs["allowed"][columns] = allowed


class End(test_sampler.End):
    """Keeps the unrolls of each group."""

    def __init__(self, models: list[Model]) -> None:
        super().__init__(GROUPS, [])
        self.models = models
        self.kept: list[list[FinishedUnroll]] = [[] for _ in range(GROUPS)]

    def weights(self, version: int) -> None:
        model = self.models[version]
        self.blob = Blob.of(version, layout_digest(model), FlatWeights(model).dump())
        self.news.set()

    def put(self, stream: int, finished: FinishedUnroll) -> None:
        self.outbox.put(stream, finished)
        self.kept[stream].append(finished)
        if all(len(puts) == UNROLLS for puts in self.kept):
            self.end()
        elif all(len(puts) == UNROLLS // 2 for puts in self.kept):
            self.weights(1)
            self.grant(*((group, UNROLLS, 1) for group in range(GROUPS)))


class Quick(Policy):
    """Never thinks that putting rows together pays."""

    @property
    def quick(self) -> bool:
        return True


def network(config: ModelConfig, spaces: Spaces, seed: int) -> Model:
    """With opinions about all that it sees and remembers: a fresh one has next to none."""
    model = build(config, spaces, seed=seed)
    with torch.no_grad():
        model.policy_head.weight.mul_(100.0)
        if model.log_std is not None:
            model.log_std.fill_(1.5)  # some numbers are beyond what is shown of them
    return model


class Played(NamedTuple):
    end: End
    stepper: Play
    failures: dict[str, int]


def played(
    config: ModelConfig, spaces: Spaces, *, ask: bool = False, spoiled: Spoiled = NEVER
) -> Played:
    stepper = Play(spaces, ask=ask, spoiled=spoiled)
    end = End([network(config, spaces, seed) for seed in (1, 2)])
    policy = (Quick if ask else Policy)(config, spaces, seed=3)
    sampler = sampler_of(cast(Any, end), stepper, policy, LENGTH)

    async def main() -> None:
        end.weights(0)
        end.grant(*((group, UNROLLS // 2) for group in range(GROUPS)))
        async with asyncio.timeout(300):
            await sampler.run()

    asyncio.run(main())
    return Played(end, stepper, dict(sampler.crash_budget.count))


def batches(config: ModelConfig, spaces: Spaces, puts: list[FinishedUnroll]) -> list[Batch]:
    """One unroll each, as they reach the learner."""
    out = []
    for seq, put in enumerate(puts):
        message = Deliver(
            tag=1,
            attempt=1,
            actor="a",
            inc=5,
            stream=1,
            seq=seq,
            floor=0,
            version_min=put.versions[0],
            version_max=put.versions[1],
            steps=put.steps,
            digest=put.digest,
            ended=put.ended,
            episodes=put.episodes,
        )
        assert put.digest == xxhash.xxh3_64_intdigest(b"".join(put.buffers))
        batch = Batch(
            spaces,
            length=LENGTH,
            envs=ENVS,
            unrolls=1,
            pinned=False,
            memory=config.memory,
            previous=config.previous,
        )
        assert batch.place(message, put.buffers) is None
        out.append(batch)
    return out


@torch.no_grad()
def log_probs(model: Model, config: ModelConfig, spaces: Spaces, tensors: dict[str, Tensor]) -> Any:
    obs = observed(tensors, spaces, previous=config.previous)
    memory = tensors["memory"][0] if config.memory else None
    params = model(obs, memory, begins(tensors["flags"])).params[:-1]
    return model.distribution.log_prob(params, tensors["action"]).numpy()


def is_whole(config: ModelConfig, spaces: Spaces, end: End) -> None:
    """Every unroll is what its weights give, and begins with what the one before has left."""
    begun = 0
    for puts in end.kept:
        before: dict[str, Tensor] = {}
        for at, batch in enumerate(batches(config, spaces, puts)):
            tensors = batch.tensors
            model = end.models[at * 2 // UNROLLS]
            expected = log_probs(model, config, spaces, tensors)
            np.testing.assert_allclose(tensors["logp"].numpy(), expected, atol=1e-5, rtol=1e-5)
            fresh = torch.ones(ENVS, dtype=torch.bool)
            if before:
                fresh = (before["flags"][-1] & DEAD) != 0
            begun += int(fresh.sum())
            if config.memory:
                assert torch.equal(tensors["memory"][0].any(-1), ~fresh)
            if config.previous:
                none = torch.tensor([-1.0] * len(spaces.action.categories) + [0.0] * 3)
                action, reward = tensors["before.action"][0], tensors["before.reward"][0]
                for column in range(ENVS):
                    if fresh[column]:
                        row = action[column].reshape(-1)
                        assert row.tolist() == none[: len(row)].tolist()
                        assert reward[column] == 0.0
                    else:
                        assert torch.equal(action[column], before["action"][-1, column])
                        assert reward[column] == before["reward"][-1, column]
            before = {name: tensor.clone() for name, tensor in tensors.items()}
    assert begun > GROUPS * ENVS  # or the borders would show nothing


MODELS = {
    "gru": ModelConfig(hidden=(8,), core="gru", core_units=6, separate=False),
    "lstm": ModelConfig(hidden=(8,), core="lstm", core_units=6),
    "gru-previous": ModelConfig(hidden=(8,), core="gru", core_units=6, previous=True),
    "previous": ModelConfig(hidden=(8,), previous=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("ask", [False, True])
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("kind", MODELS)
def test_the_learner_computes_what_the_sampler_drew(kind: str, action: str, ask: bool) -> None:
    config, spaces = MODELS[kind], world(action)
    scene = played(config, spaces, ask=ask)
    is_whole(config, spaces, scene.end)
    assert scene.failures == {}
    assert (scene.stepper.asked > 0) == ask


@pytest.mark.slow
@pytest.mark.parametrize("at", range(20, 32))
@pytest.mark.parametrize("what", ["eye", "reward"])
def test_what_is_not_finite_is_not_remembered(what: str, at: int) -> None:
    """The unroll is played again; all that leaves is sound, wherever in an unroll it came."""
    config, spaces = MODELS["gru-previous"], world("both")
    scene = played(config, spaces, spoiled=(what, at))
    assert scene.failures["values"] >= 1
    for puts in scene.end.kept:
        for number, batch in enumerate(batches(config, spaces, puts)):
            model = scene.end.models[number * 2 // UNROLLS]
            expected = log_probs(model, config, spaces, batch.tensors)
            np.testing.assert_allclose(batch.tensors["logp"], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("action", ["one", "both"])
@pytest.mark.parametrize("kind", MODELS)
def test_the_gap_is_nothing_for_the_weights_that_acted_and_something_for_others(
    kind: str, action: str
) -> None:
    config, spaces = MODELS[kind], world(action)
    end = played(config, spaces).end
    scratch = build(config, spaces, seed=9)
    gap = LogProbGap(scratch, spaces, keep=2, envs=ENVS, previous=config.previous)
    foreign = LogProbGap(scratch, spaces, keep=2, envs=ENVS, previous=config.previous)
    for version, model in enumerate(end.models):
        gap.published(version, FlatWeights(model).dump())
        foreign.published(1 - version, FlatWeights(model).dump())
    for batch in batches(config, spaces, end.kept[0]):
        own = gap.measure(batch.tensors, batch.versions)
        other = foreign.measure(batch.tensors, batch.versions)
        assert own is not None and other is not None
        assert own < 1e-4 < 1e-2 < other
