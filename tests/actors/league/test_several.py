"""A league of policies that learn beside each other: who learns, whom each meets, what is kept."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.actors.acting.trained_policy import PolicyLike
from headrace.actors.config import ActorConfig, EnvConfig, LeagueConfig, Stepping
from headrace.actors.league.league import League, Match
from headrace.actors.league.opponents import Opponents
from headrace.actors.league.several import OneOfSeveral, SeveralPolicies, Side
from headrace.actors.policies.shared_stepper import PolicyStepper
from headrace.actors.policies.sharing import Learner, share
from tests.actors import test_turns
from tests.actors.league.test_league import Moves, Other, blob_of, met_in
from tests.actors.policies import test_shared_stepper
from tests.actors.policies.test_shared_stepper import Acts, Untrained, sampler_for
from tests.actors.test_turns import CHOICES, Counting, End, Step, lived_by

ALWAYS = LeagueConfig(share=1.0, every=1, pick="newest")
NEVER = LeagueConfig(share=0.0)


class Table:
    """Draws for several policies by hand, in one environment."""

    def __init__(self, *configs: LeagueConfig, agents: int = 1) -> None:
        self.over = [False] * len(configs)
        self.met = [
            {
                other: met_in(config)
                for other in range(len(configs))
                if config.share and other != number
            }
            for number, config in enumerate(configs)
        ]
        sides = [
            Side(config, agents, self.met[number], self._is_over(number))
            for number, config in enumerate(configs)
        ]
        all_policies = SeveralPolicies(sides, envs=1, seed=1)
        self.policies = [OneOfSeveral(all_policies, number) for number in range(len(sides))]
        self.episode = 0

    def _is_over(self, number: int) -> Callable[[], bool]:
        return lambda: self.over[number]

    def game(self) -> list[Match]:
        self.episode += 1
        return [one.match(0, self.episode) for one in self.policies]


def learns(matches: Sequence[Match]) -> list[bool]:
    return [not any(match.players) for match in matches]


def test_one_policy_learns_at_a_time_and_meets_what_the_others_were() -> None:
    table = Table(ALWAYS, ALWAYS, ALWAYS, agents=2)
    for version in (0, 5):
        kept = [one.took(blob_of(version), earlier=False) for one in table.policies]
        assert kept == [True] * 3
    assert not table.policies[0].took(blob_of(5), earlier=False), "it has these"
    turns = [table.game() for _ in range(6)]
    assert [learns(matches).index(True) for matches in turns] == [1, 2, 0] * 2
    for matches in turns:
        assert sum(learns(matches)) == 1
        learner = matches[learns(matches).index(True)]
        assert [*learner.judged] == [0, 1] and len(learner.opponents) == 2
        for match in matches:
            if match is not learner:
                assert not match.judged and len(match.players) == 2
                first, second = match.players
                assert first is second and first in learner.opponents
                assert first is not None and cast(Moves, first.player).move == 5
    met = {id(match.opponents[0]) for match in turns[0] + turns[1] if match.opponents}
    assert len(met) == 2, "each counts its own games with what a third one was"


def test_a_policy_with_no_share_always_meets_the_newest() -> None:
    """As an exploiter does, while the other meets all of its past."""
    table = Table(NEVER, ALWAYS)
    for one in table.policies:
        one.took(blob_of(0), earlier=False)
    assert [learns(table.game()) for _ in range(4)] == [[False, True], [True, True]] * 2


def test_all_play_until_somebody_has_a_past() -> None:
    table = Table(ALWAYS, ALWAYS)
    assert learns(table.game()) == [True, True]
    table.policies[0].took(blob_of(0), earlier=False)
    seen = [learns(table.game()) for _ in range(4)]
    assert seen == [[True, True], [False, True]] * 2, "the first meets nobody yet"


def test_whose_run_is_over_learns_in_no_game() -> None:
    table = Table(ALWAYS, ALWAYS)
    for one in table.policies:
        one.took(blob_of(0), earlier=False)
    table.over[0] = True
    assert [learns(table.game()) for _ in range(4)] == [[False, True]] * 4


def test_the_share_of_games_is_each_policys_own() -> None:
    table = Table(LeagueConfig(share=0.5), LeagueConfig(share=0.25))
    for one in table.policies:
        one.took(blob_of(0), earlier=False)
    kinds = Counter(tuple(learns(table.game())) for _ in range(4000))
    assert kinds[True, False] / 2000 == pytest.approx(0.5, abs=0.05)
    assert kinds[False, True] / 2000 == pytest.approx(0.25, abs=0.05)


def sampled(
    env: EnvConfig,
    agents: Sequence[Sequence[str]],
    stepping: Stepping,
    lengths: Sequence[int],
    **how: Any,
) -> tuple[list[End], list[list[tuple[str, str]]]]:
    """Plays unrolls of policies in the same environments, each a column for each of its agents.
    Returns their ends, and the games that each was told of."""
    told: list[list[tuple[str, str]]] = [[] for _ in agents]
    ends: list[End] = []
    configs = [EnvConfig(env.id, env.kwargs, agents=tuple(own)) for own in agents]

    def learner(number: int) -> Learner:
        return Learner(
            f"{number}",
            configs[number],
            len(agents[number]) * how["envs"],
            over=lambda: ends[number].over,
            unrecorded=lambda _: pytest.fail("there is credit"),
            may_begin=lambda stream: ends[number].outbox.may_start(stream, 1),
        )

    views = share(
        [learner(number) for number in range(len(agents))],
        ActorConfig(groups=2, stepping=stepping),
        player=lambda *_: pytest.fail("all are trained"),
        seed=0,
        sampler="one",
    )
    others = in_league(views, how["share"], how["other"], told)
    samplers = []
    for view, length, league in zip(views, lengths, others, strict=True):
        columns = view.frame.envs * view.frame.parts
        ends.append(End(2, view.spaces, length=length, envs=columns))
        samplers.append(sampler_for(ends[-1], view, how["policy"], league, length=length))

    async def story() -> None:
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            tasks = [group.create_task(sampler.run()) for sampler in samplers]
            for end in ends:
                end.weights(1)
                end.grant(*((stream, 10_000) for stream in range(2)))
            await asyncio.gather(*(test_shared_stepper.until(end, 8) for end in ends))
            for task in tasks:
                task.cancel()

    try:
        asyncio.run(story())
    finally:
        views[0].close()
    return ends, told


def in_league(
    views: Sequence[PolicyStepper],
    part: float,
    other: PolicyLike,
    told: Sequence[list[tuple[str, str]]],
) -> list[League]:
    """Seats another in place of each, in a share of the games."""
    config = LeagueConfig(share=part, keep=0)

    def met() -> Opponents:
        return Opponents(config, snapshot=lambda _: other, others={"other": other})

    sides = [
        Side(
            config,
            view.frame.agents,
            {one: met() for one in range(len(views)) if one != number},
            view.over,
        )
        for number, view in enumerate(views)
    ]
    frame = views[0].frame
    envs = frame.groups * frame.envs // frame.agents
    all_policies = SeveralPolicies(sides, envs=envs, seed=1)
    return [
        League(
            view.frame,
            OneOfSeveral(all_policies, number),
            episodes=view.episodes,
            tell=lambda *game, own=games: own.append(game),
        )
        for number, (view, games) in enumerate(zip(views, told, strict=True))
    ]


class Marked(Untrained):
    """Chooses what no policy does."""

    def act(self, *seen: Any, **how: Any) -> tuple[Any, Any, Any]:
        actions, logp, memory = super().act(*seen, **how)
        return actions + CHOICES, logp, memory


def check_column(
    unrolls: list[dict[str, Any]], column: int, lived: list[Step], length: int
) -> None:
    """Checks that a column holds the steps of its agent that its own policy chose, and no other."""
    own = [step for step in lived if step.action < CHOICES]
    told = lived_by(unrolls, column)
    assert told == own[: len(told)]
    assert len(told) >= len(own) - length - 1


@pytest.mark.parametrize("stepping", ["inline", "threads"])
@given(
    seed=st.integers(0, 1 << 30),
    lengths=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    part=st.sampled_from([0.5, 1.0]),
)
@settings(max_examples=30, deadline=None)
def test_in_a_game_of_turns_each_learns_from_its_own_steps(
    stepping: Stepping, seed: int, lengths: tuple[int, int], part: float
) -> None:
    """Others play for at most one policy in a game, from its begin to its end; where they play in
    all games, for each in every second one."""
    test_turns.ALL.clear()
    env = EnvConfig(f"{test_turns.__name__}:Cards", {"agents": 2, "seed": seed, "at": "{column}"})
    how = {"envs": 1, "share": part, "policy": Counting(), "other": Other()}
    ends, told = sampled(env, (["agent_0"], ["agent_1"]), stepping, lengths, **how)
    for kind, end in enumerate(ends):
        for stream, unrolls in enumerate(end.unrolls):
            lived = test_turns.ALL[stream].lived[f"agent_{kind}"]
            check_column(unrolls, 0, lived, lengths[kind])
    for cards in (test_turns.ALL[0], test_turns.ALL[1]):
        for number, game in enumerate(cards.games):
            assert all(len(chosen_by) == 1 for chosen_by in game.values())
            assert sum(chosen_by == {True} for chosen_by in game.values()) <= 1
            learner = f"agent_{(number + 1) % 2}"
            if part == 1.0:
                assert game.items() <= {learner: {False}, f"agent_{number % 2}": {True}}.items()
    assert all(opponent == "other_1" for games in told for opponent, _ in games)


@pytest.mark.parametrize("stepping", ["inline", "threads"])
@given(
    seed=st.integers(0, 1 << 30),
    counts=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    lengths=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    part=st.sampled_from([0.5, 1.0]),
)
@settings(max_examples=30, deadline=None)
def test_of_agents_that_act_together_each_learns_from_its_own_steps(
    stepping: Stepping, seed: int, counts: tuple[int, int], lengths: tuple[int, int], part: float
) -> None:
    test_shared_stepper.ALL.clear()
    env = EnvConfig(
        f"{test_shared_stepper.__name__}:Field",
        {"wolves": counts[0], "sheep": counts[1], "seed": seed, "at": "{column}"},
    )
    envs, kinds = 2, test_shared_stepper.KINDS
    agents = [
        [f"{kind}_{n}" for n in range(count)] for kind, count in zip(kinds, counts, strict=True)
    ]
    how = {"envs": envs, "share": part, "policy": Acts(), "other": Marked()}
    ends, _ = sampled(env, agents, stepping, lengths, **how)
    hidden = 0
    for kind, end in enumerate(ends):
        for stream, unrolls in enumerate(end.unrolls):
            for column in range(envs * counts[kind]):
                place, agent = divmod(column, counts[kind])
                field = test_shared_stepper.ALL[stream * envs + place]
                lived = field.lived[agents[kind][agent]]
                check_column(unrolls, column, lived, lengths[kind])
                hidden += sum(step.action >= CHOICES for step in lived)
    assert hidden or part < 1.0
