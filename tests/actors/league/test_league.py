"""Plays games of a league: the policy learns from its own steps alone, and meets whom it should."""

import asyncio
import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.actors.acting.policy import Policy
from headrace.actors.acting.trained_policy import PolicyLike
from headrace.actors.config import EnvConfig, LeagueConfig, Stepping
from headrace.actors.league.league import League, SelfPlay
from headrace.actors.league.matchmaking import Candidate
from headrace.actors.league.opponents import Opponents
from headrace.actors.stepping.stepper import Frame, Stepper
from headrace.broker.weights.blobs import Blob
from headrace.learner.config import ModelConfig
from headrace.learner.models.build import build
from headrace.learner.spaces import DEAD, TERMINATED, TRUNCATED, Leaf, Spaces, discrete
from headrace.learner.weights import FlatWeights, layout_digest
from tests.actors import test_turns
from tests.actors.test_turns import ALL, CHOICES, chosen, lived_by, sampled

TWO = Spaces((Leaf("obs", "float32", (1,)),), discrete(3))


class Other:
    """Chooses what the policy never does."""

    memory, previous, version = 1, True, 0

    def act(
        self,
        obs: dict[str, NDArray[Any]],
        memory: NDArray[np.float32] | None = None,
        *,
        greedy: bool = False,
    ) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[np.float32]]:
        del greedy
        assert memory is not None and (memory[:, 0] == obs["obs"][:, 2]).all()
        actions = np.array([CHOICES + chosen(row) for row in obs["obs"].tolist()], np.int64)
        return actions, np.zeros(len(actions), np.float32), memory + 1


@pytest.mark.parametrize("stepping", ["inline", "threads"])
@given(
    seed=st.integers(0, 1 << 30),
    agents=st.integers(2, 4),
    wide=st.integers(1, 3),
    length=st.integers(1, 6),
    max_lag=st.sampled_from([0, 1, 1000]),
    share=st.sampled_from([0.5, 1.0]),
)
@settings(max_examples=40, deadline=None)
def test_a_column_holds_what_its_agent_lived_through_while_the_policy_played_it(
    stepping: Stepping, seed: int, agents: int, wide: int, length: int, max_lag: int, share: float
) -> None:
    """No step of anybody else reaches the learner, none of the policy's is missing; in a game it
    plays all agents, or one."""
    ALL.clear()
    config = EnvConfig(
        f"{test_turns.__name__}:Cards", {"agents": agents, "seed": seed, "at": "{column}"}
    )

    def others(stepper: Stepper) -> League:
        config = LeagueConfig(share=share, keep=0, others=("other",))
        met = Opponents(config, snapshot=lambda _: Other(), others={"other": Other()})
        draws = SelfPlay(config, met, envs=wide, agents=agents, seed=seed)
        return League(stepper.frame, draws)

    end = asyncio.run(
        sampled(
            config,
            stepping,
            length=length,
            envs=agents * wide,
            groups=1,
            count=8,
            max_lag=max_lag,
            others=others,
        )
    )
    (unrolls,) = end.unrolls
    for column in range(agents * wide):
        env, agent = divmod(column, agents)
        lived = ALL[env * agents].lived[f"agent_{agent}"]
        own = [step for step in lived if step.action < CHOICES]
        told = lived_by(unrolls, column)
        assert told == own[: len(told)]
        assert len(told) >= len(own) - length - 1
    for env in range(wide):
        games = ALL[env * agents].games
        for game in games:
            assert all(len(kinds) == 1 for kinds in game.values())
            others_play = [kinds == {True} for kinds in game.values()]
            assert not any(others_play) or sum(others_play) >= len(game) - 1
        if share == 1.0:
            assert all(len(game) < 2 or {True} in game.values() for game in games)


class Moves:
    """A player that always makes the same move."""

    memory, previous, version = 0, False, 0

    def __init__(self, move: int) -> None:
        self.move = move

    def act(
        self,
        obs: dict[str, NDArray[Any]],
        memory: NDArray[np.float32] | None = None,
        *,
        greedy: bool = False,
    ) -> tuple[NDArray[Any], NDArray[np.float32], None]:
        del memory, greedy
        count = len(obs["obs"])
        return np.full(count, self.move), np.zeros(count, np.float32), None


def met_in(config: LeagueConfig, **others: Moves) -> Opponents:
    return Opponents(config, snapshot=lambda blob: Moves(blob.announce.version), others=others)


class Table:
    """Plays games of two agents in one environment, by hand."""

    def __init__(self, config: LeagueConfig, *, seed: int = 1, **others: Moves) -> None:
        self.frame = Frame.empty(TWO, groups=1, envs=2)
        self.frame.agents = 2
        self.told: list[tuple[str, str]] = []
        self.met = met_in(config, **others)
        draws = SelfPlay(config, self.met, envs=1, agents=2, seed=seed)
        self.league = League(self.frame, draws, tell=lambda *game: self.told.append(game))

    def act(self) -> list[int]:
        """Returns the moves; the policy's is -1."""
        actions = np.full(2, -1)
        self.league.act(slice(None), {"obs": self.frame.obs["obs"]}, None, actions, None)
        return actions.tolist()

    def game(
        self, paid: Callable[[int], float] = lambda _: 0.0, end: int = TERMINATED
    ) -> list[int]:
        """Plays a game of one step, and pays each agent; returns the moves."""
        self.frame.begun[0] += 1
        self.frame.reward[:], self.frame.flags[:] = 0.0, DEAD
        moves = self.act()
        self.frame.reward[:] = [paid(agent) for agent in range(2)]
        self.frame.flags[:] = end
        self.act()
        return moves


def blob_of(version: int) -> Blob:
    return Blob.of(version, "layout", b"weights")


def test_the_policy_plays_alone_until_there_is_somebody_else() -> None:
    table = Table(LeagueConfig(share=1.0, every=10))
    assert table.game() == [-1, -1]
    table.league.took(blob_of(0))
    assert sorted(table.game()) == [-1, 0]


def test_each_agent_learns_in_turn() -> None:
    table = Table(LeagueConfig(share=1.0, keep=0), other=Moves(2))
    games = [table.game() for _ in range(4)]
    assert games == [[2, -1], [-1, 2]] * 2


def test_the_share_of_games_with_others() -> None:
    table = Table(LeagueConfig(share=0.25, keep=0), other=Moves(2))
    games = [2 in table.game() for _ in range(2000)]
    assert sum(games) / 2000 == pytest.approx(0.25, abs=0.05)


def test_how_a_game_ended_is_told_of_games_with_others_that_came_to_an_end() -> None:
    table = Table(LeagueConfig(share=1.0, keep=0), other=Moves(2))
    table.game(lambda agent: (-1.0, 1.0)[agent])  # agent 1 learns, then 0
    table.game(lambda agent: (-1.0, 1.0)[agent])
    table.game()
    table.game(end=0)  # restarted before its end
    table.game()
    assert table.told == [("other_1", "won"), ("other_1", "lost"), ("other_1", "drawn")]
    alone = Table(LeagueConfig(share=0.5, keep=0))
    alone.game(lambda agent: (-1.0, 1.0)[agent])
    alone.game()
    assert alone.told == []
    before = Table(LeagueConfig(share=1.0))
    before.league.took(blob_of(3))
    before.game(lambda _: 1.0)
    before.game()
    assert before.told == [("past", "won")]


def test_only_steps_of_others_are_hidden() -> None:
    table = Table(LeagueConfig(share=1.0, keep=0), other=Moves(2))
    table.game(lambda _: 3.0, end=TRUNCATED)
    answer = (np.array([3.0, 3.0], np.float32), np.array([2, 2], np.uint8), np.ones((2, 1)))
    table.league.hide(slice(None), answer)
    reward, flags, metrics = answer
    assert reward.tolist() == [0.0, 3.0] and flags.tolist() == [DEAD, 2]
    assert np.isnan(metrics[0, 0]) and metrics[1, 0] == 1.0


class Adder(Moves):
    """Remembers what it was given, and 10 more."""

    memory = 1

    def act(  # type: ignore[override]
        self,
        obs: dict[str, NDArray[Any]],
        memory: NDArray[np.float32] | None = None,
        *,
        greedy: bool = False,
    ) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[np.float32]]:
        assert memory is not None
        actions, logp, _ = super().act(obs, greedy=greedy)
        return actions, logp, memory + 10


def test_others_carry_a_memory_of_their_own() -> None:
    table = Table(LeagueConfig(share=1.0, keep=0), other=Adder(2))
    table.frame.begun[0] += 1
    before, memory = np.array([[1], [2]], np.float32), np.array([[5], [6]], np.float32)
    actions = np.full(2, -1)
    seen = {"obs": table.frame.obs["obs"]}
    table.league.act(slice(None), seen, before, actions, memory)
    assert actions.tolist() == [2, -1] and memory.ravel().tolist() == [11, 6]
    # One that remembers nothing is given nothing, and leaves the policy's memory as it is.
    plain = Table(LeagueConfig(share=1.0, keep=0), other=Moves(2))
    plain.frame.begun[0] += 1
    plain.league.act(slice(None), seen, before, actions, memory)
    assert memory.ravel().tolist() == [11, 6]


MET: list[list[Candidate]] = []


def newest_of_before(league: Sequence[Candidate]) -> list[float]:
    MET.append([*league])
    return [float(not one.name and one == league[-1]) for one in league]


def test_a_rule_of_ones_own_knows_who_may_be_met() -> None:
    MET.clear()
    pick = f"{__name__}:newest_of_before"
    table = Table(LeagueConfig(share=1.0, every=2, pick=pick), other=Moves(9))
    for version in (0, 2):
        table.league.took(blob_of(version))
    table.game(lambda _: 1.0)
    assert 2 in table.game()
    known = [(one.name, one.version) for one in MET[-1]]
    assert known == [("other", -1), ("", 0), ("", 2)]
    assert MET[-1][-1].games == 1.0 and MET[-1][-1].won > 0.5 == MET[-1][0].won


@given(
    kept=st.lists(st.integers(0, 30), max_size=4, unique=True).map(sorted),
    late=st.integers(0, 4),
    keep=st.integers(1, 4),
)
def test_it_begins_with_what_others_have_kept_even_if_that_comes_after_newer_ones(
    kept: list[int], late: int, keep: int
) -> None:
    """The newest weights are announced to all at once, and may overtake those of before."""
    table = Table(LeagueConfig(share=1.0, every=1, keep=keep))
    league, snapshots = table.league, table.met._snapshots
    league.earlier += [blob_of(version) for version in kept[:late]]
    league.took(blob_of(40))
    league.earlier += [blob_of(version) for version in kept[late:]]
    league.took(blob_of(41))
    versions = list(snapshots.kept)
    assert versions == sorted(versions) and 0 < len(versions) <= keep
    if len(kept) + 2 <= keep:
        assert {*kept} <= {*versions} <= {*kept, 40, 41}


def test_who_leaves_the_league_plays_its_game_to_the_end() -> None:
    table = Table(LeagueConfig(share=1.0, every=1, keep=1, pick="newest"))
    table.league.took(blob_of(0))
    assert 0 in table.game()
    table.frame.begun[0] += 1
    table.act()
    table.league.took(blob_of(1))
    table.league.took(blob_of(3))
    assert 0 in table.act()
    table.game()
    assert 3 in table.game()


def test_the_league_does_not_grow_with_the_run() -> None:
    """Holds nobody in memory who has left the league and has no game to end."""
    table = Table(LeagueConfig(share=1.0, every=1, keep=4), other=Moves(-2))
    alive: weakref.WeakSet[Moves] = weakref.WeakSet()
    made = table.met._snapshot

    def snapshot(blob: Blob) -> PolicyLike:
        alive.add(player := cast(Moves, made(blob)))
        return player

    table.met._snapshot = snapshot
    for version in range(1000):
        table.league.took(blob_of(version))
        table.game()
        assert len(alive) <= 4 + 1  # kept, and one in its last game


def test_a_snapshot_stays_what_it_was() -> None:
    """The policy goes on learning in the same memory; what it was must not."""
    model = ModelConfig(kind="mlp", hidden=(8,))

    def weights(version: int) -> Blob:
        made = build(model, TWO, seed=version)
        return Blob.of(version, layout_digest(made), FlatWeights(made).dump())

    live = Policy(model, TWO, seed=1)

    def snapshot(blob: Blob) -> Policy:
        past = Policy(model, TWO, seed=2)
        past.load(blob)
        return past

    frame = Frame.empty(TWO, groups=1, envs=2)
    frame.agents = 2
    made: list[Policy] = []
    config = LeagueConfig(share=1.0, every=1)
    met = Opponents(
        config,
        snapshot=lambda blob: made.append(snapshot(blob)) or made[-1],  # type: ignore[func-returns-value]
        others={},
    )
    league = League(frame, SelfPlay(config, met, envs=1, agents=2, seed=1))
    seen: dict[str, NDArray[Any]] = {"obs": np.linspace(-3, 3, 64, dtype=np.float32)[:, None]}
    for version in range(3):
        live.load(blob := weights(version))
        league.took(blob)
    then = [past.network.params(seen, None)[0].copy() for past in made]
    live.load(weights(7))
    now = [past.network.params(seen, None)[0] for past in made]
    assert all((a == b).all() for a, b in zip(then, now, strict=True))
    assert not (now[0] == now[1]).all() and not (now[1] == now[2]).all()
