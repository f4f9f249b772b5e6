"""Unrolls of agents that take turns, against what each agent of the environment lived through."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry

from headrace.actors.acting.others import Others
from headrace.actors.acting.policy import Policy
from headrace.actors.batching_wait import BatchingWait
from headrace.actors.config import ActorConfig, EnvConfig, Stepping
from headrace.actors.crash_budget import CrashBudget
from headrace.actors.metrics import SamplerMetrics
from headrace.actors.sampler import Sampler
from headrace.actors.stepping.choose import make_stepper
from headrace.actors.stepping.stepper import Stepper
from headrace.broker.peers.outbox import FinishedUnroll
from headrace.broker.peers.sampler import SamplerEnd
from headrace.broker.weights.blobs import Blob
from headrace.learner.spaces import DEAD, TERMINATED, TRUNCATED, unroll_fields
from tests.actors import test_sampler

CHOICES = 5


class Step(NamedTuple):
    """Holds what an agent lived through between two of its turns."""

    seen: tuple[float, ...]
    action: int
    reward: float
    flags: int
    then: tuple[float, ...]  # what it saw at the next


class Cards:
    """Draws who is next, who ends and who comes; the same draws lead to the same story.

    An agent sees the environment, its number, how many turns it has had in this episode, and a
    number that nobody has seen before.
    """

    def __init__(self, agents: int, at: int = 0, seed: int = 0) -> None:
        self.possible_agents = [f"agent_{number}" for number in range(agents)]
        self.agents: list[str] = []
        self.agent_selection = ""
        self.lived: dict[str, list[Step]] = defaultdict(list)  # in all episodes
        self.games: list[dict[str, set[bool]]] = []  # by agent: whether others chose for it
        self._dice = random.Random(f"{seed} {at}")
        self._at, self._shown = at, 0
        ALL[at] = self  # the one that plays is made after those that are only looked at

    def observation_space(self, agent: str) -> Box:
        del agent
        return Box(-np.inf, np.inf, (4,), np.float32)

    def action_space(self, agent: str) -> Discrete:
        del agent
        return Discrete(2 * CHOICES)  # the second half is for others, where there are some

    def reset(self, seed: int | None = None) -> None:
        del seed
        count = len(self.possible_agents)
        self.agents = sorted(self._dice.sample(self.possible_agents, self._dice.randint(1, count)))
        self._left = self._dice.randint(1, 25)  # turns until all end
        self._paid = dict.fromkeys(self.possible_agents, 0.0)
        self._ends: dict[str, int] = {}
        self._turns = dict.fromkeys(self.possible_agents, 0)
        self._newest: dict[str, tuple[tuple[float, ...], int]] = {}  # what it saw, what it did
        self.games.append({})
        self._next()

    def last(self) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        agent, ends = self.agent_selection, self._ends.get(self.agent_selection, 0)
        if agent in self._newest:
            step = Step(*self._newest[agent], self._paid[agent], ends, self._seen)
            self.lived[agent].append(step)
        return (
            np.array(self._seen, np.float32),
            self._paid[agent],
            ends == TERMINATED,
            ends == TRUNCATED,
            {},
        )

    def step(self, action: int | None) -> None:
        agent = self.agent_selection
        if agent in self._ends:
            assert action is None
            self.agents.remove(agent)
            del self._ends[agent]
            self._newest.pop(agent, None)
            self._turns[agent] = 0
        else:
            assert action is not None
            self.games[-1].setdefault(agent, set()).add(action >= CHOICES)
            self._newest[agent] = self._seen, action
            self._turns[agent] += 1
            self._left -= 1
            for other in self.agents:
                self._paid[other] += self._dice.randint(-3, 3)
            self._paid[agent] = float(self._dice.randint(-3, 3))
            for other in self.agents:
                if other not in self._ends and (self._left <= 0 or self._dice.random() < 0.05):
                    self._ends[other] = self._dice.choice([TERMINATED, TRUNCATED])
            gone = [name for name in self.possible_agents if name not in self.agents]
            if gone and self._left > 0 and self._dice.random() < 0.2:
                self.agents.append(self._dice.choice(gone))
        if self.agents:
            self._next()

    def _next(self) -> None:
        self.agent_selection = self._dice.choice(self.agents)
        if self.agent_selection not in self._newest:
            self._paid[self.agent_selection] = 0.0
        self._shown += 1
        number = self.possible_agents.index(self.agent_selection)
        turns = self._turns[self.agent_selection]
        self._seen = float(self._at), float(number), float(turns), float(self._shown)

    def close(self) -> None:
        pass


ALL: dict[int, Cards] = {}  # by the column of its first agent


class Counting:
    """A policy that does what follows from its row, and remembers how many rows it saw."""

    memory, previous = 1, True

    def __init__(self) -> None:
        self.version, self.quick = -1, True
        self.settings = np.empty(0)

    def load(self, blob: Blob) -> str:
        self.version = blob.announce.version
        return blob.announce.digest

    def act(
        self, obs: dict[str, NDArray[np.float32]], memory: NDArray[np.float32]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
        # What it remembers is of this agent and this episode, and only that.
        assert (memory[:, 0] == obs["obs"][:, 2]).all()
        actions = np.array([chosen(row) for row in obs["obs"].tolist()], np.int64)
        return actions, np.full(len(actions), -self.version, np.float32), memory + 1


def chosen(row: "list[float] | tuple[float, ...]") -> int:
    return int(row[3] * 7 + row[1]) % CHOICES


class End(test_sampler.End):
    """The broker's end; keeps whole unrolls."""

    def __init__(self, streams: int, spaces: Any, *, length: int, envs: int) -> None:
        super().__init__(streams, [])
        self.fields = unroll_fields(spaces, length=length, envs=envs, memory=1, previous=True)
        self.unrolls: list[list[dict[str, NDArray[Any]]]] = [[] for _ in range(streams)]
        self.finished: list[list[FinishedUnroll]] = [[] for _ in range(streams)]
        self.changed = asyncio.Event()

    def put(self, stream: int, finished: FinishedUnroll) -> None:
        self.outbox.put(stream, finished)
        self.finished[stream].append(finished)
        self.unrolls[stream].append(
            {
                field.name: np.frombuffer(buffer, field.dtype).reshape(field.shape)
                for field, buffer in zip(self.fields, finished.buffers, strict=True)
            }
        )
        self.changed.set()


async def sampled(
    config: EnvConfig,
    stepping: Stepping,
    *,
    length: int,
    envs: int,
    groups: int,
    count: int,
    max_lag: int,
    others: Callable[[Stepper], Others] | None = None,
) -> End:
    """Plays so many unrolls of each stream, with new weights before each."""
    stepper = make_stepper(ActorConfig(groups=groups, stepping=stepping), config, envs=envs, seed=0)
    end = End(groups, stepper.spaces, length=length, envs=envs)
    sampler = Sampler(
        end=cast(SamplerEnd, end),
        stepper=stepper,
        policy=cast(Policy, Counting()),
        length=length,
        batching_wait=BatchingWait(limit_s=0.0),
        crash_budget=CrashBudget("Cards", per_hour=0),
        metrics=SamplerMetrics(CollectorRegistry()),
        max_lag=max_lag,
        others=None if others is None else others(stepper),
    )
    try:
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            task = group.create_task(sampler.run())
            for upto in range(1, count + 1):
                end.weights(upto)
                end.grant(*((stream, upto) for stream in range(groups)))
                while any(len(put) < upto for put in end.unrolls):
                    end.changed.clear()
                    await end.changed.wait()
            task.cancel()
    finally:
        stepper.close()
    return end


def lived_by(unrolls: list[dict[str, NDArray[Any]]], column: int) -> list[Step]:
    """Returns the live steps of a column, and checks the rest of it."""
    steps: list[Step] = []
    for unroll in unrolls:
        obs, flags = unroll["obs.obs"][:, column], unroll["flags"][:, column]
        rows = [tuple(row) for row in obs.tolist()]
        for t in np.flatnonzero(~flags & DEAD).tolist():
            action, reward = unroll["action"][t, column], unroll["reward"][t, column]
            steps.append(Step(rows[t], int(action), float(reward), int(flags[t]), rows[t + 1]))
        if not flags[0] & DEAD:
            turns = int(rows[0][2])
            assert unroll["memory"][0, column, 0] == turns
            before = unroll["before.action"][0, column]
            assert (before[0] if before.shape else before) == (
                steps[-np.count_nonzero(~flags & DEAD) - 1].action
                if turns and len(steps) > np.count_nonzero(~flags & DEAD)
                else -1
            )
    return steps


@pytest.mark.parametrize("stepping", ["inline", "threads"])
@given(
    seed=st.integers(0, 1 << 30),
    agents=st.integers(1, 4),
    wide=st.integers(1, 3),
    groups=st.integers(1, 2),
    length=st.integers(1, 6),
    max_lag=st.sampled_from([0, 1, 1000]),
)
@settings(max_examples=40, deadline=None)
def test_each_column_holds_what_its_agent_lived_through(
    stepping: Stepping, seed: int, agents: int, wide: int, groups: int, length: int, max_lag: int
) -> None:
    """No step is missing, double, or another's, whoever comes, goes and waits; and whatever an
    unroll's end cuts in two goes on in the next."""
    ALL.clear()
    config = EnvConfig(f"{__name__}:Cards", {"agents": agents, "seed": seed, "at": "{column}"})
    end = asyncio.run(
        sampled(
            config,
            stepping,
            length=length,
            envs=agents * wide,
            groups=groups,
            count=8,
            max_lag=max_lag,
        )
    )
    for stream, unrolls in enumerate(end.unrolls):
        for column in range(agents * wide):
            env, agent = divmod(column, agents)
            first = (stream * wide + env) * agents
            told = lived_by(unrolls, column)
            lived = ALL[first].lived[f"agent_{agent}"]
            assert told == lived[: len(told)]
            assert len(told) >= len(lived) - length - 1
        for finished, unroll in zip(end.finished[stream], unrolls, strict=True):
            acted = -unroll["logp"][unroll["flags"] & DEAD == 0]
            assert finished.steps == len(acted)
            if len(acted):
                low, high = finished.versions
                assert low == acted.min() and high >= acted.max()
