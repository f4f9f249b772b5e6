"""The mean return: each environment weighs the same, and none is taken for the way it ends."""

import itertools
import random
from collections.abc import Callable, Iterator

import msgspec
import pytest

from headrace.learner import mean_return
from headrace.learner.batches.unroll_ends import EpisodeEnds
from headrace.learner.mean_return import MeanReturn

T = 20


class Envs:
    """One stream: so many environments, whose episodes are drawn one after another."""

    def __init__(
        self,
        draw: Callable[[], tuple[int, float]],
        *,
        stream: int = 0,
        inc: int = 1,
        count: int = 1,
        length: int = T,
    ) -> None:
        self._draw, self._inc, self._stream, self._length = draw, inc, stream, length
        self._left = [draw() for _ in range(count)]  # steps of the episode, its return
        self._took = [0] * count  # steps of it so far

    def unroll(self) -> EpisodeEnds:
        ended = []
        for column in range(len(self._left)):
            self._took[column] += self._length
            while self._took[column] >= self._left[column][0]:
                steps, value = self._left[column]
                ended.append((column, value, steps))
                self._took[column] -= steps
                self._left[column] = self._draw()
        return EpisodeEnds(self._inc, self._stream, len(self._left), self._length, tuple(ended))


def chance(dice: random.Random) -> Callable[[], tuple[int, float]]:
    """As headrace/Chance-v0: a third of them ends at once and pays 1."""
    return lambda: (1, 1.0) if dice.random() < 1 / 3 else (1000, 0.0)


def always(steps: int, value: float) -> Callable[[], tuple[int, float]]:
    return lambda: (steps, value)


def play(own: MeanReturn, streams: list[Envs], versions: int, *, first: int = 1) -> Iterator[int]:
    """Two unrolls a version, the streams in turn."""
    turn = itertools.cycle(streams)
    for version in range(first, first + versions):
        own.add([next(turn).unroll(), next(turn).unroll()], version)
        yield version


def plays(own: MeanReturn, streams: list[Envs], versions: int, *, first: int = 1) -> int:
    return list(play(own, streams, versions, first=first))[-1] + 1


@pytest.mark.parametrize(("streams", "envs"), [(64, 16), (128, 1), (2, 4)])
def test_what_ends_first_is_not_taken_for_the_whole(streams: int, envs: int) -> None:
    """The expected return is a third. Whoever counts the first hundred that end finds 1.0."""
    dice, own = random.Random(7), MeanReturn()
    groups = [Envs(chance(dice), stream=n, count=envs) for n in range(streams)]
    first: list[float] = []
    shown: list[float] = []
    relied_on: list[float] = []
    for version in range(1, 100 * max(32, streams)):
        unrolls = [groups[(2 * version + at) % streams].unroll() for at in (0, 1)]
        ended = [value for unroll in unrolls for _, value, _ in unroll.episodes]
        first += ended[: 100 - len(first)]
        own.add(unrolls, version)
        if own.mean is not None:
            shown.append(own.mean)
            relied_on += [own.mean] * own.whole
    assert sum(first) / len(first) > 0.7 or streams == 2  # the first hundred favour the short
    assert relied_on
    # 1,024 environments, or 100 episodes of 8: four standard deviations of a mean of that many.
    spread = 4 * (2 / 9 / max(100, streams * envs)) ** 0.5
    assert max(relied_on) < 1 / 3 + spread and min(relied_on) > 1 / 3 - spread
    assert sum(shown) / len(shown) == pytest.approx(1 / 3, abs=spread)


def test_nothing_is_said_before_every_environment_has_ended_an_episode() -> None:
    own = MeanReturn()
    quick, slow = Envs(always(5, 1.0), stream=0), Envs(always(400, 0.0), stream=1)
    for version in play(own, [quick, slow], 19):
        assert (own.mean, own.whole, own.waits) == (None, False, 1), version
    own.add([quick.unroll(), slow.unroll()], 20)
    assert (own.mean, own.waits) == (0.5, 0)
    assert not own.whole  # one episode of one of two environments is not half of a hundred


def test_environments_weigh_the_same_however_many_episodes_they_end() -> None:
    own = MeanReturn()
    streams = [Envs(always(2, 1.0), stream=0), Envs(always(100, 3.0), stream=1)]
    plays(own, streams, 50 * 5)
    assert own.mean == 2.0 and own.whole


def test_the_latest_count_and_a_hundred_of_them_are_enough() -> None:
    values = [0.0]
    own, streams = (
        MeanReturn(),
        [Envs(lambda: (T, values[0]), stream=n, count=16) for n in (0, 1)],
    )
    now = plays(own, streams, 3)
    assert own.mean == 0.0 and not own.whole
    now = plays(own, streams, 1, first=now)
    assert own.whole  # 32 environments with four each
    values[0] = 5.0
    now = plays(own, streams, 5, first=now)  # the one that was drawn before, and four
    assert own.mean == 5.0


def test_who_left_is_not_waited_for() -> None:
    own = MeanReturn()
    gone = Envs(always(10**9, 0.0), stream=9, inc=9)
    stay = [Envs(always(10, 1.0), stream=n) for n in range(2)]
    own.add([gone.unroll(), stay[0].unroll(), stay[1].unroll()], 1)
    now = plays(own, stay, 4, first=2)
    assert own.mean is None and own.waits == 1
    assert own.news() == ""
    now = plays(own, stay, 20, first=now)
    assert "the first episode of 1 of 3 environments" in own.news() and own.news() == ""
    plays(own, stay, 60, first=now)
    assert own.mean == 1.0 and own.whole and own.waits == 0


def test_who_is_slow_has_not_left() -> None:
    """Its unrolls come thirty times more rarely."""
    own = MeanReturn()
    slow = Envs(always(200, 0.0), stream=9, inc=9)
    fast = [Envs(always(10, 1.0), stream=n) for n in range(2)]
    for version in range(1, 30 * 40):
        unrolls = [stream.unroll() for stream in fast]
        own.add([*unrolls, slow.unroll()] if version % 30 == 0 else unrolls, version)
        if version >= 70:  # of its second unroll and on it is known how slow it is
            assert own.mean == pytest.approx(2 / 3) if version >= 300 else own.waits == 1, version


def test_an_episode_without_an_end_is_not_waited_for() -> None:
    own = MeanReturn()
    ever, others = Envs(always(10**12, 0.0), length=1000), Envs(always(10, 1.0), stream=1)
    plays(own, [ever, others], 100)
    assert own.mean is None and (own.waits, own.endless) == (1, 0)
    plays(own, [ever, others], 50, first=101)
    assert own.mean == 1.0 and own.whole
    assert (own.waits, own.endless) == (0, 1)
    assert "waits for the first episode of 1 of 2" in own.news()
    assert "leaves out 1 environment " in own.news() and own.news() == ""


def test_long_episodes_are_waited_for() -> None:
    """Ten times the longest that was seen, however long that is."""
    own, longest = MeanReturn(), 60_000
    lengths = iter([longest, 9 * longest, 9 * longest])
    first = Envs(lambda: (next(lengths), 7.0), length=10_000)
    plays(own, [first, Envs(always(10_000, 7.0), stream=1, length=10_000)], 55)
    assert own.endless == 0 and own.mean == 7.0


def test_samplers_that_crash_all_the_time_do_not_keep_the_others_from_being_counted() -> None:
    """One of two comes back every few unrolls and never ends an episode."""
    own, stays = MeanReturn(), Envs(always(10, 1.0))
    relied_on = 0
    for version in range(1, 2000):
        if version % 25 == 1:
            crashes = Envs(always(300, 9.0), inc=version + 1)
            fresh = crashes.unroll()
        own.add([stays.unroll(), fresh if version % 25 == 1 else crashes.unroll()], version)
        relied_on += own.whole
    assert relied_on > 500
    # 500 steps make one whole episode of those that crash.
    assert own.mean is not None and own.mean >= 1.0


def test_newcomers_count_when_they_are_no_longer_new() -> None:
    own, old = MeanReturn(), [Envs(always(T, 1.0), stream=n, count=8) for n in range(2)]
    now = plays(own, old, 100)
    new = Envs(always(T, 4.0), inc=2, count=16)
    now = plays(own, [*old, new, new], 5, first=now)
    assert own.mean == 1.0 and own.whole
    plays(own, [*old, new, new], 50, first=now)
    assert own.mean == 2.5


def test_a_newcomer_does_not_hide_what_is_known() -> None:
    own, old = MeanReturn(), [Envs(always(T, 1.0), stream=n, count=8) for n in range(2)]
    now = plays(own, old, 100)
    new = Envs(always(10_000, 4.0), inc=2)
    plays(own, [*old, new, new], 50, first=now)
    assert (own.mean, own.whole, own.waits) == (1.0, False, 1)


def test_memory_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mean_return, "_MOST", 64)
    own = MeanReturn()
    for inc in range(1000):
        own.add([Envs(always(T, 1.0), inc=inc, count=16).unroll()], inc + 1)
    assert len(own.state()["streams"]) == 4
    assert own.mean == 1.0


def test_it_goes_on_after_a_restart_where_it_was() -> None:
    dice, one = random.Random(3), MeanReturn()
    streams = [Envs(chance(dice), stream=n, count=8) for n in range(8)]
    now = plays(one, streams, 300)
    two = MeanReturn()
    two.restore(msgspec.json.decode(msgspec.json.encode(one.state())))
    assert two.state() == one.state() and two.mean == one.mean
    for version in range(now, now + 300):
        unrolls = [streams[version % 8].unroll(), streams[(version + 4) % 8].unroll()]
        one.add(unrolls, version)
        two.add(unrolls, version)
        assert (two.mean, two.whole, two.waits) == (one.mean, one.whole, one.waits) or version < 310


def test_a_goal_that_was_reached_is_reached_after_a_restart() -> None:
    """Else a complete run that is started again trains on, and waits for samplers that are gone."""
    one, two = MeanReturn(), MeanReturn()
    plays(one, [Envs(always(T, 1.0), count=4)], 60)
    two.restore(msgspec.json.decode(msgspec.json.encode(one.state())))
    assert (two.mean, two.whole) == (one.mean, one.whole) == (1.0, True)
