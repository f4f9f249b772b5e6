"""Several policies in the same environments: what each learns from, against what its agents lived
through."""

import asyncio
import functools
import random
from collections import defaultdict
from typing import Any, cast

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry

from headrace.actors.acting.policy import Policy
from headrace.actors.acting.trained_policy import PolicyLike
from headrace.actors.batching_wait import BatchingWait
from headrace.actors.config import ActorConfig, EnvConfig, Stepping
from headrace.actors.crash_budget import CrashBudget
from headrace.actors.envs.make import make_any
from headrace.actors.league.league import League
from headrace.actors.metrics import SamplerMetrics
from headrace.actors.policies import shared_stepper
from headrace.actors.policies.joint_env import joint_config
from headrace.actors.policies.seats import seats_of
from headrace.actors.policies.shared_stepper import PolicyStepper, SharedStepper
from headrace.actors.policies.sharing import Learner, share
from headrace.actors.sampler import Sampler
from headrace.actors.stepping.choose import make_stepper
from headrace.broker.peers.sampler import SamplerEnd
from headrace.learner.spaces import DEAD, TERMINATED, TRUNCATED
from tests.actors import test_turns
from tests.actors.test_turns import CHOICES, Counting, End, Step, chosen, lived_by

KINDS = ("wolf", "sheep")
ALL: dict[int, "Field"] = {}  # by the column of the environment that plays


class Field:
    """Draws who plays, who ends and who comes; the same draws lead to the same story.

    An agent sees the environment, its number, how many steps it has had in this episode, and a
    number that nobody has seen before; sheep see a number more, and choose among more.
    """

    def __init__(self, wolves: int, sheep: int, at: int = 0, seed: int = 0) -> None:
        names = [(KINDS[0], n) for n in range(wolves)] + [(KINDS[1], n) for n in range(sheep)]
        self.possible_agents = [f"{kind}_{number}" for kind, number in names]
        self.agents: list[str] = []
        self.lived: dict[str, list[Step]] = defaultdict(list)
        self._dice, self._at, self._shown = random.Random(f"{seed} {at}"), at, 0
        ALL[at] = self

    def observation_space(self, agent: str) -> Box:
        return Box(-np.inf, np.inf, (4 + agent.startswith(KINDS[1]),), np.float32)

    def action_space(self, agent: str) -> Discrete:
        return Discrete(CHOICES + agent.startswith(KINDS[1]))

    def reset(self, seed: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        del seed
        count = len(self.possible_agents)
        self.agents = sorted(self._dice.sample(self.possible_agents, self._dice.randint(1, count)))
        self._left = self._dice.randint(1, 12)
        self._turns = dict.fromkeys(self.possible_agents, 0)
        self._seen = {agent: self._look(agent) for agent in self.agents}
        return self._shown_to(self.agents), {}

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        assert actions.keys() == set(self.agents)
        before, self._left = dict(self._seen), self._left - 1
        ends: dict[str, int] = {}
        for agent in actions:
            self._turns[agent] += 1
            if self._left <= 0 or self._dice.random() < 0.1:
                ends[agent] = self._dice.choice([TERMINATED, TRUNCATED])
        gone = [name for name in self.possible_agents if name not in self.agents]
        came = [name for name in gone if self._left > 0 and self._dice.random() < 0.2]
        self.agents = [name for name in self.possible_agents if name in {*actions, *came} - {*ends}]
        for agent in came:
            self._turns[agent] = 0
        told = [*actions, *came]
        self._seen |= {agent: self._look(agent) for agent in told}
        paid = {agent: float(self._dice.randint(-3, 3)) for agent in actions}
        for agent, action in actions.items():
            then, flags = self._seen[agent], ends.get(agent, 0)
            self.lived[agent].append(Step(before[agent], int(action), paid[agent], flags, then))
        ended = {agent: ends.get(agent) == TERMINATED for agent in actions}
        cut = {agent: ends.get(agent) == TRUNCATED for agent in actions}
        return self._shown_to(told), paid, ended, cut, {}

    def _look(self, agent: str) -> tuple[float, ...]:
        self._shown += 1
        number = self.possible_agents.index(agent)
        row = float(self._at), float(number), float(self._turns[agent]), float(self._shown)
        return (*row, 0.5) if agent.startswith(KINDS[1]) else row

    def _shown_to(self, agents: list[str]) -> dict[str, Any]:
        return {agent: np.array(self._seen[agent], np.float32) for agent in agents}

    def close(self) -> None:
        pass


class Acts(Counting):
    """Remembers how many rows it saw of each agent, whether they were recorded or not."""

    def act(
        self, obs: dict[str, NDArray[np.float32]], memory: NDArray[np.float32]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
        rows = obs["obs"].tolist()
        actions = np.array([chosen(row) for row in rows], np.int64)
        return actions, np.full(len(actions), -self.version, np.float32), memory + 1


class Untrained(Acts):
    """Is nobody's policy: its agents have done what it chose, and it remembers each of them."""

    version = 0

    def act(
        self,
        obs: dict[str, NDArray[np.float32]],
        memory: NDArray[np.float32] | None = None,
        *,
        greedy: bool = False,
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
        del greedy
        assert memory is not None
        return super().act(obs, memory)


def sampler_for(
    end: End, view: PolicyStepper, policy: object, others: League | None = None, **how: Any
) -> Sampler:
    """Returns the sampler of one of the policies that share environments."""
    return Sampler(
        end=cast(SamplerEnd, end),
        stepper=view,
        policy=cast(Policy, policy),
        batching_wait=BatchingWait(limit_s=0.0),
        crash_budget=CrashBudget("shared", per_hour=0),
        metrics=SamplerMetrics(CollectorRegistry()),
        others=others,
        beside=view,
        **how,
    )


class Game:
    """Two policies' samplers in the same environments."""

    def __init__(
        self, stepping: Stepping, seed: int, counts: tuple[int, int], lengths: tuple[int, ...]
    ) -> None:
        """Makes a policy for each length; who has none is played by Untrained."""
        kwargs = {"wolves": counts[0], "sheep": counts[1], "seed": seed, "at": "{column}"}
        env = EnvConfig(f"{__name__}:Field", kwargs)
        configs = [EnvConfig(env.id, env.kwargs, agents=(f"{kind}_*",)) for kind in KINDS]
        ALL.clear()
        seats = seats_of(make_any(configs[0]), configs)
        self.groups, self.envs = 2, 2
        stepper = make_stepper(
            ActorConfig(groups=self.groups, stepping=stepping),
            joint_config(configs),
            envs=self.envs,
            seed=0,
            sampler="one",
            whole=True,
        )
        self.ends: list[End] = []
        self.samplers: list[Sampler] = []
        self.counts = counts
        overs = [functools.partial(self._over, number) for number in range(len(lengths))]
        players = [Untrained()] * (2 - len(lengths))
        self.shared = SharedStepper(
            stepper, seats, over=overs, players=cast(list[PolicyLike], players)
        )
        for view, length in zip(self.shared.views, lengths, strict=True):
            end = End(self.groups, view.spaces, length=length, envs=view.frame.envs)
            self.ends.append(end)
            self.samplers.append(sampler_for(end, view, Acts(), length=length))

    def _over(self, number: int) -> str:
        return self.ends[number].over

    def columns(self, kind: int) -> list[tuple[int, int, Field, str]]:
        """Returns stream, column, environment and agent of each of a policy's columns."""
        found = []
        for stream in range(self.groups):
            for env in range(self.envs):
                field = ALL[stream * self.envs + env]
                for place in range(self.counts[kind]):
                    column = env * self.counts[kind] + place
                    found.append((stream, column, field, f"{KINDS[kind]}_{place}"))
        return found


async def until(end: End, wanted: int) -> None:
    """Waits until each stream has put so many unrolls."""
    while any(len(put) < wanted for put in end.unrolls):
        end.changed.clear()
        await end.changed.wait()


@pytest.mark.slow
@pytest.mark.parametrize("stepping", ["inline", "threads"])
@given(
    seed=st.integers(0, 1 << 30),
    counts=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    lengths=st.tuples(st.integers(1, 5), st.integers(1, 5)),
)
@settings(max_examples=30, deadline=None)
def test_each_policy_learns_from_all_that_its_agents_lived_through(
    stepping: Stepping, seed: int, counts: tuple[int, int], lengths: tuple[int, int]
) -> None:
    """Checks that no step is missing, double, or another's, whoever waits for whom, and that nobody
    needs the clock to be woken."""
    game = Game(stepping, seed, counts, lengths)
    look_every_s, shared_stepper._LOOK_EVERY_S = shared_stepper._LOOK_EVERY_S, 3600.0
    wanted = [6 * lengths[1], 6 * lengths[0]]  # so both end at the same step

    async def story() -> None:
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            tasks = [group.create_task(sampler.run()) for sampler in game.samplers]
            for end, count in zip(game.ends, wanted, strict=True):
                end.weights(1)
                end.grant(*((stream, count) for stream in range(game.groups)))
            for end, count in zip(game.ends, wanted, strict=True):
                await until(end, count)
            for task in tasks:
                task.cancel()

    try:
        asyncio.run(story())
    finally:
        shared_stepper._LOOK_EVERY_S = look_every_s
        game.shared.close()
    for kind, end in enumerate(game.ends):
        for stream, column, field, agent in game.columns(kind):
            assert lived_by(end.unrolls[stream], column) == field.lived[agent]


@given(
    seed=st.integers(0, 1 << 30),
    counts=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    length=st.integers(1, 5),
)
@settings(max_examples=30, deadline=None)
def test_a_policy_learns_beside_agents_that_nobody_trains(
    seed: int, counts: tuple[int, int], length: int
) -> None:
    """Checks that these did what their player chose, by what each of them saw."""
    game = Game("inline", seed, counts, (length,))
    (end,) = game.ends

    async def story() -> None:
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            task = group.create_task(game.samplers[0].run())
            end.weights(1)
            end.grant(*((stream, 8) for stream in range(game.groups)))
            await until(end, 8)
            task.cancel()

    try:
        asyncio.run(story())
    finally:
        game.shared.close()
    for stream, column, field, agent in game.columns(0):
        assert lived_by(end.unrolls[stream], column) == field.lived[agent]
    for _, _, field, agent in game.columns(1):
        for step in field.lived[agent]:
            assert step.action == chosen(step.seen)


TURNS = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 1 << 30),
        "own": st.integers(1, 3),
        "others": st.integers(1, 2),
        "envs": st.integers(1, 2),
        "length": st.integers(1, 6),
        "max_lag": st.sampled_from([0, 1, 1000]),
    }
)


@pytest.mark.parametrize("stepping", ["inline", "threads"])
@given(drawn=TURNS)
@settings(max_examples=30, deadline=None)
def test_agents_that_take_turns_with_others_that_nobody_trains(
    stepping: Stepping, drawn: dict[str, int]
) -> None:
    """Each column of the policy holds what its agent lived through, and nothing of the others."""
    own, envs, groups = drawn["own"], drawn["envs"], 2
    test_turns.ALL.clear()
    env = EnvConfig(
        "tests.actors.test_turns:Cards",
        {"agents": own + drawn["others"], "seed": drawn["seed"], "at": "{column}"},
        agents=tuple(f"agent_{number}" for number in range(own)),
        others={f"agent_{own + number}": "untrained" for number in range(drawn["others"])},
    )
    (view,) = share(
        [Learner("cards", env, own * envs, lambda: end.over, id, bool)],
        ActorConfig(groups=groups, stepping=stepping),
        player=lambda *_: cast(PolicyLike, Remembers()),
        seed=0,
        sampler="one",
    )
    end = End(groups, view.spaces, length=drawn["length"], envs=own * envs)
    length, max_lag = drawn["length"], drawn["max_lag"]
    sampler = sampler_for(end, view, Counting(), length=length, max_lag=max_lag)

    async def story() -> None:
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            task = group.create_task(sampler.run())
            for upto in range(1, 8):
                end.weights(upto)
                end.grant(*((stream, upto) for stream in range(groups)))
                await until(end, upto)
            task.cancel()

    try:
        asyncio.run(story())
    finally:
        view.close()
    for stream, unrolls in enumerate(end.unrolls):
        for column in range(own * envs):
            place, agent = divmod(column, own)
            lived = test_turns.ALL[stream * envs + place].lived[f"agent_{agent}"]
            told = lived_by(unrolls, column)
            assert told == lived[: len(told)]
            assert len(told) >= len(lived) - drawn["length"] - 1


@given(
    seed=st.integers(0, 1 << 30),
    lengths=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    grants=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=12),
    patience_s=st.sampled_from([0.0, 0.003]),
)
@settings(max_examples=60, deadline=None)
def test_two_policies_learn_in_a_game_of_turns(
    seed: int, lengths: tuple[int, int], grants: list[tuple[int, int]], patience_s: float
) -> None:
    """In whatever order credit comes, every unroll that may be played is, and is a piece of what
    its agent lived through; who plays on unrecorded begins again with a game."""
    test_turns.ALL.clear()
    kwargs = {"agents": 2, "seed": seed, "at": "{column}"}
    configs = [
        EnvConfig("tests.actors.test_turns:Cards", kwargs, agents=(f"agent_{number}",))
        for number in range(2)
    ]
    ends: list[End] = []

    def learner(kind: int) -> Learner:
        return Learner(
            f"{kind}",
            configs[kind],
            1,
            over=lambda: ends[kind].over,
            unrecorded=id,
            may_begin=lambda stream: ends[kind].outbox.may_start(stream, 1),
        )

    views = share(
        [learner(0), learner(1)],
        ActorConfig(groups=2, stepping="inline"),
        player=lambda *_: cast(PolicyLike, Remembers()),
        seed=0,
        sampler="one",
    )
    samplers = []
    for view, length in zip(views, lengths, strict=True):
        ends.append(End(2, view.spaces, length=length, envs=1))
        samplers.append(sampler_for(ends[-1], view, Counting(), length=length))
    patience, look = shared_stepper._PATIENCE_S, shared_stepper._LOOK_EVERY_S
    shared_stepper._PATIENCE_S, shared_stepper._LOOK_EVERY_S = patience_s, 0.002

    async def story() -> None:
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            tasks = [group.create_task(sampler.run()) for sampler in samplers]
            given_to: dict[tuple[int, int], int] = defaultdict(int)
            for end in ends:
                end.weights(1)
            for kind, stream in grants:
                given_to[kind, stream] += 1
                ends[kind].grant((stream, given_to[kind, stream]))
                while len(ends[kind].unrolls[stream]) < given_to[kind, stream]:
                    ends[kind].changed.clear()
                    await ends[kind].changed.wait()
            for task in tasks:
                task.cancel()

    try:
        asyncio.run(story())
    finally:
        views[0].close()
        shared_stepper._PATIENCE_S, shared_stepper._LOOK_EVERY_S = patience, look
    for kind, end in enumerate(ends):
        for stream, unrolls in enumerate(end.unrolls):
            lived, at = test_turns.ALL[stream].lived[f"agent_{kind}"], 0
            for unroll in unrolls:
                steps = pieces(unroll, 0)
                for first in steps[:1]:
                    at = lived.index(first, at)
                assert steps == lived[at : at + len(steps)]
                at += len(steps)


class Remembers(Untrained):
    """Checks that what it remembers is of this agent and this episode."""

    def act(
        self,
        obs: dict[str, NDArray[np.float32]],
        memory: NDArray[np.float32] | None = None,
        *,
        greedy: bool = False,
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
        assert memory is not None and (memory[:, 0] == obs["obs"][:, 2]).all()
        return super().act(obs, memory, greedy=greedy)


@given(
    seed=st.integers(0, 1 << 30),
    lengths=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    grants=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=12),
)
@settings(max_examples=60, deadline=None)
def test_who_may_not_begin_an_unroll_plays_on_unrecorded(
    seed: int, lengths: tuple[int, int], grants: list[tuple[int, int]]
) -> None:
    """In whatever order credit comes, every unroll that may be played is, each is a piece of what
    its agents lived through, and no credit means no step."""
    game = Game("inline", seed, (2, 1), lengths)
    patience, shared_stepper._PATIENCE_S = shared_stepper._PATIENCE_S, 0.0
    unrecorded: list[list[int]] = [[], []]
    for view, counts in zip(game.shared.views, unrecorded, strict=True):
        view.tell_unrecorded = counts.append

    async def story() -> None:
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            tasks = [group.create_task(sampler.run()) for sampler in game.samplers]
            given_to: dict[tuple[int, int], int] = defaultdict(int)
            for end in game.ends:
                end.weights(1)
            for kind, stream in grants:
                given_to[kind, stream] += 1
                end = game.ends[kind]
                end.grant((stream, given_to[kind, stream]))
                while len(end.unrolls[stream]) < given_to[kind, stream]:
                    end.changed.clear()
                    await end.changed.wait()
            for task in tasks:
                task.cancel()

    try:
        asyncio.run(story())
    finally:
        game.shared.close()
        shared_stepper._PATIENCE_S = patience
    for kind, end in enumerate(game.ends):
        for stream, column, field, agent in game.columns(kind):
            lived, at = field.lived[agent], 0
            if not sum(unrecorded[kind]):
                told = lived_by(end.unrolls[stream], column)
                assert told == lived[: len(told)], "no step is missing"
            for unroll in end.unrolls[stream]:
                steps = pieces(unroll, column)
                for first in steps[:1]:
                    at = lived.index(first, at)
                assert steps == lived[at : at + len(steps)]
                at += len(steps)
            episodes_told = [
                (total, length)
                for finished in end.finished[stream]
                for place, total, length in finished.episodes
                if place == column
            ]
            assert set(episodes_told) <= set(episodes(lived)), (
                "an episode that was recorded in part"
            )


def episodes(lived: list[Step]) -> list[tuple[float, int]]:
    """Returns the return and the length of each whole episode."""
    found, total, length = [], 0.0, 0
    for step in lived:
        total, length = total + step.reward, length + 1
        if step.flags:
            found.append((total, length))
            total, length = 0.0, 0
    return found


def test_who_takes_news_in_wakes_the_others() -> None:
    """Or they would sleep until something else happens: threads ring once for a step."""

    async def story() -> None:
        game = Game("inline", 1, (1, 1), (2, 2))
        first, second = game.shared.views
        for view in (first, second):
            view.start(asyncio.Event())
        assert first.news is not None and second.news is not None
        first.news.clear()
        second.news.clear()
        assert first.ready() == [0, 1]
        assert second.news.is_set() and not first.news.is_set()
        assert second.ready() == [0, 1] and second.ready() == []
        game.shared.close()

    asyncio.run(story())


def test_all_end_when_the_last_run_is_over() -> None:
    """Wakes whoever waits for the others to act: its own broker has nothing more to say."""
    game = Game("inline", 1, (1, 1), (2, 2))
    done, learning = game.ends

    async def story() -> None:
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            for sampler in game.samplers:
                group.create_task(sampler.run())
            for end in game.ends:
                end.weights(1)
            while game.shared._missing != [2, 2]:  # noqa: ASYNC110 - no event tells of it
                await asyncio.sleep(0)
            done.over = "the step limit was reached"
            done.news.set()
            while game.shared._missing != [1, 1]:  # noqa: ASYNC110
                await asyncio.sleep(0)
            learning.over = "the step limit was reached"
            learning.news.set()

    try:
        asyncio.run(story())
    finally:
        game.shared.close()


def pieces(unroll: dict[str, NDArray[Any]], column: int) -> list[Step]:
    """Returns the live steps of a column of one unroll, and checks what it remembers."""
    rows = [tuple(row) for row in unroll["obs.obs"][:, column].tolist()]
    flags = unroll["flags"][:, column]
    if not flags[0] & DEAD:
        assert unroll["memory"][0, column, 0] == rows[0][2]
    return [
        Step(
            rows[t],
            int(unroll["action"][t, column]),
            float(unroll["reward"][t, column]),
            int(flags[t]),
            rows[t + 1],
        )
        for t in np.flatnonzero(~flags & DEAD).tolist()
    ]
