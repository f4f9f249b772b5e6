"""Unrolls that end early because their first step has become too old."""

import asyncio
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.actors.rollout import Part, Rollout, versions_to_play
from headrace.broker.peers.outbox import FinishedUnroll
from headrace.learner.spaces import DEAD
from tests.actors.test_reply_order import Asking
from tests.actors.test_rollout import SPACES, Stream, arrays, streams, walked
from tests.actors.test_sampler import ENVS, LENGTH, Script
from tests.actors.test_sampler_parts import scripted


def play(part: Part, stream: Stream, first: int, last: int) -> None:
    """Plays these steps of one part, and ends its share of the unroll after them."""
    mine = part.columns
    for t in range(first, last):
        part.acted({"obs": stream.obs[t, mine]}, stream.action[t, mine], stream.logp[t, mine], 0)
        part.stepped(stream.reward[t, mine], stream.flags[t, mine])
    part.close({"obs": stream.obs[last, mine]})


def cut_anywhere(
    stream: Stream, length: int, *, parts: int, dice: random.Random
) -> list[tuple[list[tuple[int, int]], FinishedUnroll]]:
    """Unrolls whose parts end when the dice say, with the (first, last) steps of each part."""
    steps, envs = stream.reward.shape
    rollout, at, done = Rollout(SPACES, length=length, envs=envs, parts=parts), [0] * parts, []
    while max(at) < steps:
        rollout.open({})
        spans = [(first, min(steps, first + dice.randint(1, length))) for first in at]
        if any(first == last for first, last in spans):
            break  # one part is through, and the others would wait for it
        for part, (first, last) in zip(rollout.parts, spans, strict=True):
            play(part, stream, first, last)
        assert all(part.full for part in rollout.parts)
        rollout.count()
        done.append((spans, rollout.finish()))
        at = [last for _, last in spans]
    return done


@pytest.mark.slow
@given(streams(), st.integers(0, 1 << 30))
@settings(max_examples=150, deadline=None)
def test_unrolls_that_end_anywhere_are_the_stream(case: tuple[Stream, int], seed: int) -> None:
    """No step is lost or doubled, episodes are exact, and what was not played is dead."""
    stream, length = case
    envs = stream.reward.shape[1]
    parts = envs if seed % 2 else 1
    for spans, done in cut_anywhere(stream, length, parts=parts, dice=random.Random(seed)):
        obs, action, logp, reward, flags = arrays(done, length, envs)
        expected: list[tuple[int, float, int]] = []
        for number, (lo, hi) in enumerate(spans):
            mine = slice(number * envs // parts, (number + 1) * envs // parts)
            n = hi - lo
            np.testing.assert_array_equal(obs[: n + 1, mine], stream.obs[lo : hi + 1, mine])
            for field, raw in ((action, stream.action), (logp, stream.logp)):
                np.testing.assert_array_equal(field[:n, mine], raw[lo:hi, mine])
                assert not field[n:, mine].any()
            np.testing.assert_array_equal(reward[:n, mine], stream.reward[lo:hi, mine])
            np.testing.assert_array_equal(flags[:n, mine], stream.flags[lo:hi, mine])
            # Of the rows beyond, none that a network could choke on.
            np.testing.assert_array_equal(
                obs[n:, mine], np.broadcast_to(stream.obs[hi, mine], obs[n:, mine].shape)
            )
            assert not reward[n:, mine].any() and (flags[n:, mine] == DEAD).all()
            columns = range(envs)[mine]
            expected += [one for one in walked(stream, lo, hi) if one[0] in columns]
        assert sorted((at, count) for at, _, count in done.episodes) == sorted(
            (at, count) for at, _, count in expected
        )
        assert done.ended == len(expected)
        assert sum(total for _, total, _ in done.episodes) == pytest.approx(
            sum(total for _, total, _ in expected), rel=1e-9, abs=1e-6
        )
        assert done.steps == np.count_nonzero(flags != DEAD)


def part_of(length: int) -> Part:
    rollout = Rollout(SPACES, length=length, envs=1)
    rollout.open({})
    return rollout.parts[0]


def acts(part: Part, version: int) -> None:
    zero = np.zeros(1)
    part.acted({"obs": np.zeros((1, 2))}, zero.astype(np.int64), zero.astype(np.float32), version)


def answers(part: Part) -> None:
    part.stepped(np.zeros(1, np.float32), np.zeros(1, np.uint8))


def test_a_part_ends_with_the_answer_to_its_action_once_its_first_step_is_too_old() -> None:
    part = part_of(4)
    acts(part, 7)
    assert not part.filling(oldest=7) and part.filling(oldest=8)
    answers(part)
    assert not part.filling(oldest=8), "no answer is awaited"
    acts(part, 9)  # the first step counts, not the newest
    assert part.filling(oldest=8) and not part.filling(oldest=7)


def test_a_short_end_has_a_tenth_of_an_unroll_at_least() -> None:
    part = part_of(21)
    for steps in (1, 2):
        acts(part, 0)
        assert not part.filling(oldest=5), steps
        answers(part)
    acts(part, 0)
    assert part.filling(oldest=5)


@pytest.mark.parametrize(
    ("max_lag", "waited", "played"),
    [
        (2, 0, 2),  # trained as soon as it comes: as old as it may be
        (2, 1, 2),
        (2, 2, 1),  # a slow learner: 2 versions are spent in its queue
        (2, 9, 1),
        (8, 0, 8),
        (8, 3, 6),
        (8, 7, 2),
        (8, 8, 1),
        (1, 1, 1),
        (0, 0, 0),  # lock-step: no unroll that counts is ever older
    ],
)
def test_what_is_spent_in_queues_is_not_spent_on_playing(
    max_lag: int, waited: int, played: int
) -> None:
    assert versions_to_play(max_lag, waited) == played
    # One version more is noticed; then it waits, at most max_lag as the queues are bounded.
    assert played + 1 + min(waited, max_lag) <= max_lag + 2


Put = list[NDArray[Any]]


@pytest.mark.parametrize("kind", [Script, Asking])
@pytest.mark.parametrize("waited", [0, 3])
def test_the_sampler_sends_what_is_too_old_and_goes_on_from_there(
    kind: type[Script], waited: int
) -> None:
    async def main() -> None:
        s, end = scripted(kind, streams=1, parts=1)
        s.sampler.max_lag, end.waited, version = 2, waited, 0
        s.policy.quick = False  # the loop answers all: a version comes with every step

        def newer(_: int) -> None:
            nonlocal version
            version += 1
            end.weights(version)

        s.stepper.on_step = newer
        async with s.running():
            end.weights(0)
            end.grant((0, 4))
            await s.quiet()
        # A version with every step: the second step's answer comes when the first is 2 behind.
        length = 2 if waited else 3
        assert [done.steps for done in end.finished] == [length * ENVS] * 4
        assert [last - first for first, last in (done.versions for done in end.finished)] == [
            length - 1
        ] * 4
        at = 0
        for obs, action, _, _, flags in end.wide[0]:
            np.testing.assert_array_equal(
                obs[:, 0, 1], np.minimum(at + np.arange(LENGTH + 1), at + length)
            )
            assert action[:length, 0].tolist() == list(range(at, at + length))
            assert flags[:, 0].tolist() == [0] * length + [DEAD] * (LENGTH - length)
            at += length

    asyncio.run(main())


def test_a_thread_is_not_answered_when_its_part_is_to_end() -> None:
    async def main() -> None:
        s, end = scripted(Asking, streams=1, parts=1)
        s.sampler.max_lag = 0
        stepper = s.stepper
        assert isinstance(stepper, Asking)
        stepper.on_step = lambda taken: setattr(s.sampler, "_oldest", 1) if taken == 2 else None
        async with s.running():
            end.weights(0)
            end.grant((0, 1))
            await s.quiet()
        # A first row; after step 1; after step 2, when version 0 is too old.
        assert stepper.answered == [False, True, False]
        assert [done.steps for done in end.finished] == [2 * ENVS]

    asyncio.run(main())
