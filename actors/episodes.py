"""The episodes that run in the columns of an unroll, and those that ended in it."""

import math

import numpy as np
from numpy.typing import NDArray

from headrace.broker.protocol.messages import MAX_EPISODES, Episodes
from headrace.learner.spaces import DEAD, TRUNCATED

_Episode = tuple[int, float, int]  # column, return, length


class RunningEpisodes:
    """Counts return and length of each environment's episode from unroll to unroll."""

    def __init__(self, envs: int) -> None:
        self.ended = 0  # in the unroll counted last
        self.told: Episodes = ()  # with that unroll
        self._returns = np.zeros(envs, np.float64)
        self._lengths = np.zeros(envs, np.int64)
        self._over = np.zeros(envs, np.bool_)  # the step before ended the episode
        self._untold: list[_Episode] = []  # for which the unrolls so far had no place

    def count(
        self, reward: NDArray[np.float32], flags: NDArray[np.uint8], played: NDArray[np.int64]
    ) -> None:
        """Counts the episodes that ended in a full unroll, in the order of their ends. `played`:
        its steps, by column."""
        marked = flags.any(axis=0)
        quiet = ~marked  # nothing happened there but steps
        self._returns[quiet] += reward.sum(axis=0, dtype=np.float64)[quiet]
        self._lengths[quiet] += played[quiet]
        self._over[quiet] = False
        ended = [
            end
            for column in np.flatnonzero(marked).tolist()
            for end in self._walk(column, reward[:, column], flags[:, column], int(played[column]))
        ]
        # Not finite is the return of an episode of which a part was dropped, or not recorded.
        ended = [end for end in ended if math.isfinite(end[1][1])]
        ended.sort(key=lambda end: end[0])
        self.ended = len(ended)
        self._tell([episode for _, episode in ended])

    def break_off(self) -> None:
        """Leaves out the episodes that run now."""
        self._returns[:] = math.nan

    def _tell(self, episodes: list[_Episode]) -> None:
        """Puts as many episodes into this unroll as have room. Of those that wait, the latest of
        each environment is enough; the one that has waited longest comes first, so that every
        environment gets its turn."""
        episodes = self._untold + episodes
        if len(episodes) > MAX_EPISODES:
            episodes = list({episode[0]: episode for episode in episodes}.values())
        self.told = tuple(episodes[:MAX_EPISODES])
        self._untold = episodes[MAX_EPISODES:]

    def _walk(
        self, column: int, reward: NDArray[np.float32], flags: NDArray[np.uint8], played: int
    ) -> list[tuple[int, _Episode]]:
        """Returns (step, episode) of one environment's episodes that ended in this unroll."""
        total, count = float(self._returns[column]), int(self._lengths[column])
        over, at, ended = bool(self._over[column]), 0, []
        for t in np.flatnonzero(flags).tolist():
            total += float(reward[at:t].sum(dtype=np.float64))
            count += t - at
            at = t + 1
            if flags[t] != DEAD:
                ended.append((t, (column, total + float(reward[t]), count + 1)))
            elif not over and count:
                # Dead without an end before it: the environment was restarted, and what it lost is
                # the end of its episode. The row before is true, so it may bootstrap from there.
                ended.append((t, (column, total, count)))
                if t:
                    flags[t - 1] |= TRUNCATED
            total, count, over = 0.0, 0, flags[t] != DEAD
        self._returns[column] = total + float(reward[at:].sum(dtype=np.float64))
        self._lengths[column] = count + played - at
        self._over[column] = over and at == played
        return ended
