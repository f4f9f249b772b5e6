"""Unrolls against the raw stream of steps they were cut from."""

import random
from dataclasses import dataclass
from typing import Any

import lz4.block
import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.actors.rollout import Rollout
from headrace.broker.peers.outbox import FinishedUnroll
from headrace.broker.protocol.messages import MAX_EPISODES
from headrace.learner.spaces import (
    DEAD,
    TERMINATED,
    TRUNCATED,
    Leaf,
    Spaces,
    discrete,
    unroll_fields,
)

SPACES = Spaces((Leaf("obs", "<f4", (2,)),), discrete(5))


@dataclass
class Stream:
    """Everything that happened: S steps of E environments, cut into nothing yet."""

    obs: NDArray[np.float32]  # [S + 1, E, 2]
    action: NDArray[np.int64]  # [S, E], and so the others
    logp: NDArray[np.float32]
    reward: NDArray[np.float32]
    flags: NDArray[np.uint8]
    versions: list[int]  # [S]

    @classmethod
    def of(cls, reward: Any, flags: Any, versions: list[int] | None = None) -> "Stream":
        """Observations, actions and log-probs are different everywhere, so a slip shows."""
        rewards, bits = np.array(reward, np.float32), np.array(flags, np.uint8)
        steps, envs = rewards.shape
        numbers = np.arange((steps + 1) * envs * 2, dtype=np.float32)
        return cls(
            numbers.reshape(steps + 1, envs, 2),
            np.arange(steps * envs, dtype=np.int64).reshape(steps, envs),
            -np.arange(steps * envs, dtype=np.float32).reshape(steps, envs),
            rewards,
            bits,
            versions or [0] * steps,
        )


def cut(
    stream: Stream, length: int, *, parts: int = 1, dice: random.Random | None = None
) -> list[FinishedUnroll]:
    """Fills one stream as a sampler does, without a sampler. `dice` chooses the part that steps."""
    steps, envs = stream.reward.shape
    rollout = Rollout(SPACES, length=length, envs=envs, parts=parts)
    done = []
    for first in range(0, steps, length):
        assert all(part.full for part in rollout.parts)
        rollout.open({})
        turns = [number for number in range(parts) for _ in range(length)]
        if dice is not None:
            dice.shuffle(turns)
        at = [first] * parts
        for number in turns:
            act(rollout, stream, at[number], number)
            at[number] += 1
        rollout.count()
        done.append(rollout.finish())
    return done


def act(rollout: Rollout, stream: Stream, t: int, number: int = 0) -> None:
    """Plays one step of one part."""
    part = rollout.parts[number]
    mine = part.columns
    seen, version = {"obs": stream.obs[t, mine]}, stream.versions[t]
    part.acted(seen, stream.action[t, mine], stream.logp[t, mine], version)
    last = part.filling()
    part.stepped(stream.reward[t, mine], stream.flags[t, mine])
    assert last == part.full
    if last:
        part.close({"obs": stream.obs[t + 1, mine]})


def arrays(done: FinishedUnroll, length: int, envs: int) -> list[NDArray[Any]]:
    fields = unroll_fields(SPACES, length=length, envs=envs)
    return [
        np.frombuffer(buffer, field.dtype).reshape(field.shape)
        for field, buffer in zip(fields, done.buffers, strict=True)
    ]


def walked(stream: Stream, first: int, last: int) -> list[tuple[int, float, int]]:
    """Episodes that ended at steps first..last-1: each column walked from its beginning."""
    ended = []
    for column in range(stream.reward.shape[1]):
        total, count = 0.0, 0
        for t in range(last):
            bits = int(stream.flags[t, column])
            if bits == DEAD:
                total, count = 0.0, 0
                continue
            total, count = total + float(stream.reward[t, column]), count + 1
            if bits and t >= first:
                ended.append((t, (column, total, count)))
    return [episode for _, episode in sorted(ended)]


@st.composite
def streams(draw: st.DrawFn) -> tuple[Stream, int]:
    envs, length = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    steps = length * draw(st.integers(1, 4))
    ends = st.sampled_from((0, 0, 0, TERMINATED, TRUNCATED, TERMINATED | TRUNCATED))
    flags = np.zeros((steps, envs), np.uint8)
    reward = np.zeros((steps, envs), np.float32)
    for column in range(envs):
        for t in range(steps):
            after_end = t > 0 and flags[t - 1, column] & (TERMINATED | TRUNCATED)
            flags[t, column] = DEAD if after_end else draw(ends)
            if not after_end:
                reward[t, column] = draw(st.floats(-1e6, 1e6, width=32))
    return Stream.of(reward, flags), length


@pytest.mark.slow
@given(streams(), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_unrolls_are_the_stream_and_their_episodes_are_exact(
    case: tuple[Stream, int], dice: random.Random
) -> None:
    """Whatever the order in which the parts of an unroll step."""
    stream, length = case
    steps, envs = stream.reward.shape
    unrolls = cut(stream, length)
    assert len(unrolls) == steps // length
    for parts in [parts for parts in (2, 3) if envs % parts == 0]:
        assert cut(stream, length, parts=parts, dice=dice) == unrolls
    for index, done in enumerate(unrolls):
        lo, hi = index * length, (index + 1) * length
        obs, action, logp, reward, flags = arrays(done, length, envs)
        np.testing.assert_array_equal(obs, stream.obs[lo : hi + 1])
        np.testing.assert_array_equal(action, stream.action[lo:hi])
        np.testing.assert_array_equal(logp, stream.logp[lo:hi])
        np.testing.assert_array_equal(reward, stream.reward[lo:hi])
        np.testing.assert_array_equal(flags, stream.flags[lo:hi])
        expected = walked(stream, lo, hi)
        # Sums of the same numbers in another order.
        assert [(at, length) for at, _, length in done.episodes] == [
            (at, length) for at, _, length in expected
        ]
        returns = [total for _, total, _ in done.episodes]
        assert returns == pytest.approx([total for _, total, _ in expected], rel=1e-12, abs=1e-9)
        assert done.ended == len(expected)
        assert done.steps == sum(bits != DEAD for bits in stream.flags[lo:hi].flat)


def test_two_unrolls_of_two_environments_by_hand() -> None:
    reward = [
        [1, 10],
        [2, 20],
        [0, 30],
        [3, 40],
        # the second unroll
        [4, 0],
        [5, 50],
        [0, 60],
        [6, 0],
    ]
    flags = [
        [0, 0],
        [TERMINATED, 0],
        [DEAD, 0],
        [0, TRUNCATED],
        # the second unroll
        [0, DEAD],
        [TRUNCATED, 0],
        [DEAD, TERMINATED | TRUNCATED],
        [0, DEAD],
    ]
    first, second = cut(Stream.of(reward, flags), 4)
    assert first.episodes == ((0, 3.0, 2), (1, 100.0, 4))
    assert second.episodes == ((0, 12.0, 3), (1, 110.0, 2))
    assert (first.ended, second.ended) == (2, 2)
    assert (first.steps, second.steps) == (7, 5)
    last_row, first_row = arrays(first, 4, 2)[0][4], arrays(second, 4, 2)[0][0]
    assert last_row.tolist() == first_row.tolist() == [[16, 17], [18, 19]]


def test_an_episode_goes_on_from_unroll_to_unroll() -> None:
    stream = Stream.of([[1], [2], [4], [8]], [[0], [0], [0], [TERMINATED]])
    assert [done.episodes for done in cut(stream, 1)] == [(), (), (), ((0, 15.0, 4),)]


def test_versions_are_those_of_the_actions_of_this_unroll() -> None:
    stream = Stream.of(np.zeros((6, 1)), np.zeros((6, 1)), versions=[3, 5, 4, 6, 6, 6])
    assert [done.versions for done in cut(stream, 3)] == [(3, 5), (6, 6)]


def test_versions_are_those_of_all_parts() -> None:
    """The second part steps later, when new weights have come."""
    rollout = Rollout(SPACES, length=2, envs=2, parts=2)
    stream = Stream.of(np.zeros((2, 2)), np.zeros((2, 2)), versions=[3, 4])
    rollout.open({})
    for t in range(2):
        act(rollout, stream, t, 0)
    stream.versions = [4, 6]
    for t in range(2):
        act(rollout, stream, t, 1)
    assert rollout.finish().versions == (3, 6)


def test_the_digest_is_of_the_buffers_in_their_order() -> None:
    (done,) = cut(Stream.of([[1, 2]], [[0, 0]]), 1)
    assert done.digest == xxhash.xxh3_64_intdigest(b"".join(done.buffers))


def test_a_finished_unroll_is_not_written_again() -> None:
    rollout = Rollout(SPACES, length=1, envs=1)
    stream = Stream.of([[1], [2]], [[0], [0]])
    kept = []
    for t in range(2):
        rollout.open({})
        act(rollout, stream, t)
        kept.append(rollout.finish())
    assert xxhash.xxh3_64_intdigest(b"".join(kept[0].buffers)) == kept[0].digest


def test_all_ends_are_counted_and_the_latest_of_each_environment_is_told() -> None:
    # 70 columns end, reset, end, reset: 140 episodes in 4 steps.
    envs = 70
    ends, dead = np.full(envs, TERMINATED), np.full(envs, DEAD)
    zero = np.zeros(envs)
    reward = np.stack([np.arange(envs), zero, np.arange(envs, 2 * envs), zero])
    (done,) = cut(Stream.of(reward, np.stack([ends, dead, ends, dead])), 4)
    assert done.ended == 140
    assert done.episodes == tuple((n, float(70 + n), 1) for n in range(70))
    assert done.steps == 140


def test_every_environment_is_told_of_in_its_turn() -> None:
    """All end at once, and more of them than an unroll tells of: the same ones are not left out
    every time."""
    envs = 3 * MAX_EPISODES - 1
    flags = np.zeros((8, envs))
    flags[1::4], flags[2::4] = TERMINATED, DEAD
    unrolls = cut(Stream.of(np.ones((8, envs)), flags), 2)
    assert [done.ended for done in unrolls] == [envs, 0, envs, 0]
    told = [[column for column, _, _ in done.episodes] for done in unrolls]
    assert all(len(columns) == len(set(columns)) <= MAX_EPISODES for columns in told)
    assert {column for columns in told[:3] for column in columns} == set(range(envs))


def test_it_is_full_before_the_first_and_after_the_last_step() -> None:
    rollout = Rollout(SPACES, length=1, envs=1)
    stream = Stream.of([[1]], [[0]])
    (part,) = rollout.parts
    assert part.full
    assert not rollout.began
    # The observation after a reset answers no action.
    part.stepped(stream.reward[0], stream.flags[0])
    rollout.open({})
    assert not part.full
    assert rollout.began
    act(rollout, stream, 0)
    assert part.full
    assert rollout.began
    rollout.finish()
    assert not rollout.began


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("field", "at", "expected"),
    [
        ("reward", (1, 0), (0, "reward is not finite")),
        ("obs", (0, 0, 1), (0, "obs is not finite")),
        ("obs", (2, 1, 0), (1, "obs is not finite")),  # row T counts too
    ],
)
def test_what_is_not_finite_is_named_with_its_column(
    bad: float, field: str, at: tuple[int, ...], expected: tuple[int, str]
) -> None:
    stream = Stream.of(np.zeros((2, 2)), np.zeros((2, 2)))
    getattr(stream, field)[at] = bad
    assert fault_of(stream) == expected


def test_large_numbers_are_no_fault() -> None:
    stream = Stream.of(np.full((2, 2), 1e9), np.zeros((2, 2)))
    stream.obs[:] = -1e9
    assert fault_of(stream) is None


@pytest.mark.parametrize("value", [3e38, -1.1e9])
def test_what_the_learner_would_refuse_is_a_fault_here(value: float) -> None:
    """So an environment that explodes is restarted, and its sampler is not blamed."""
    stream = Stream.of(np.zeros((2, 2)), np.zeros((2, 2)))
    stream.reward[1, 1] = value
    words = f"reward has {value:.3g}, beyond unroll.largest = 1e+09"
    assert fault_of(stream) == (1, words)
    stream.reward[1, 1], stream.obs[1, 0, 0] = 0, value
    assert fault_of(stream) == (0, words.replace("reward", "obs"))


def fault_of(stream: Stream) -> tuple[int, str] | None:
    """Of an unroll as long as the stream."""
    steps, envs = stream.reward.shape
    rollout = Rollout(SPACES, length=steps, envs=envs)
    rollout.open({})
    for t in range(steps):
        act(rollout, stream, t)
    return rollout.fault()


# ---- environments that were restarted ---------------------------------------------------------


def test_a_restart_cuts_the_episode_at_the_last_true_row() -> None:
    """The step that failed is dead; the one before it may bootstrap from the row it led to."""
    reward = [[1, 1], [2, 1], [0, 1], [4, 1]]
    flags = [[0, 0], [0, 0], [DEAD, 0], [0, 0]]
    (done,) = cut(Stream.of(reward, flags), 4)
    assert arrays(done, 4, 2)[4].tolist() == [[0, 0], [TRUNCATED, 0], [DEAD, 0], [0, 0]]
    assert done.episodes == ((0, 3.0, 2),)
    assert (done.ended, done.steps) == (1, 7)


def test_a_restart_at_the_first_step_of_an_unroll_ends_the_episode_of_the_one_before() -> None:
    """There the unroll's own border has cut the trace already."""
    first, second = cut(Stream.of([[1], [2], [0], [4]], [[0], [0], [DEAD], [TERMINATED]]), 2)
    assert arrays(first, 2, 1)[4].tolist() == [[0], [0]]
    assert arrays(second, 2, 1)[4].tolist() == [[DEAD], [TERMINATED]]
    assert first.episodes == ()
    assert second.episodes == ((0, 3.0, 2), (0, 4.0, 1))


def test_restarts_in_a_row_make_no_empty_episodes() -> None:
    flags = [[TERMINATED], [DEAD], [DEAD], [DEAD], [0], [DEAD]]
    (done,) = cut(Stream.of([[1], [0], [0], [0], [2], [0]], flags), 6)
    expected = [[TERMINATED], [DEAD], [DEAD], [DEAD], [TRUNCATED], [DEAD]]
    assert arrays(done, 6, 1)[4].tolist() == expected
    assert done.episodes == ((0, 1.0, 1), (0, 2.0, 1))


# ---- several leaves, images, stacks -------------------------------------------------------------

EYES = Spaces((Leaf("eye", "|u1", (32, 32), stack=4), Leaf("clock", "<i8", ())), discrete(2))


def test_leaves_travel_side_by_side_and_images_packed_with_their_history() -> None:
    length, envs = 3, 2
    rng = np.random.default_rng(0)
    eye = rng.integers(0, 4, (8, envs, 32, 32)).astype(np.uint8)
    clock = np.arange(8 * envs).reshape(8, envs)
    rollout = Rollout(EYES, length=length, envs=envs)
    (part,) = rollout.parts
    rollout.open({"obs.eye": eye[:3]})
    for t in range(3, 6):
        rows = {"eye": eye[t], "clock": clock[t]}
        after = {"eye": eye[t + 1], "clock": clock[t + 1]}
        zero = np.zeros(envs)
        part.acted(rows, zero.astype(np.int64), zero.astype(np.float32), 0)
        part.stepped(zero.astype(np.float32), zero.astype(np.uint8))
    part.close(after)
    packed, ticks, *_ = rollout.finish().buffers
    fields = unroll_fields(EYES, length=length, envs=envs)
    assert (fields[0].shape, fields[0].packed) == ((7, 2, 32, 32), True)
    body = lz4.block.decompress(packed, uncompressed_size=fields[0].nbytes)
    columns_first = np.frombuffer(body, np.uint8).reshape(envs, length + 4, 32, 32)
    np.testing.assert_array_equal(columns_first.swapaxes(0, 1), eye[:7])
    assert len(packed) < fields[0].nbytes
    assert not fields[1].packed
    np.testing.assert_array_equal(np.frombuffer(ticks, np.int64).reshape(4, 2), clock[3:7])
