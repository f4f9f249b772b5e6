"""Counters of each environment's steps, seeds and restarts, which can still be read when the thread
or process that steps it has hung or died."""

from headrace.actors.stepping.stepper import EnvFailure

_LARGEST_SEED = (1 << 63) - 1


class Bookkeeping:
    """Holds counters that the stepping thread or process writes, and that others read when it has
    hung or died."""

    def __init__(self, numbers: memoryview, *, groups: int, envs: int) -> None:
        """Lays the counters over `size` int64 numbers."""
        self.at = numbers[:groups]  # by group: which of its environments is being worked on
        self.steps = numbers[groups : 2 * groups]  # by group: steps taken
        self.restarts = numbers[2 * groups : 3 * groups]  # by group: each gives a fresh seed
        self.seed = numbers[3 * groups : 3 * groups + groups * envs]  # by column: last one given
        # By column: steps of the group that this environment has not taken.
        self.missed = numbers[3 * groups + groups * envs : self.size(groups, envs)]
        self._envs = envs

    @classmethod
    def unshared(cls, *, groups: int, envs: int) -> "Bookkeeping":
        """Returns counters in memory that is not shared."""
        memory = memoryview(bytearray(8 * cls.size(groups, envs)))
        return cls(memory.cast("q"), groups=groups, envs=envs)

    @staticmethod
    def size(groups: int, envs: int) -> int:
        return (3 + 2 * envs) * groups

    def next_seed(self, first: int, column: int) -> int:
        """Returns the seed for this column; every restart in the group gives another one."""
        restarts = self.restarts[column // self._envs]
        seed = (first + column + 1_000_003 * restarts) & _LARGEST_SEED
        self.seed[column] = seed
        return seed

    def failure(self, column: int, where: str, text: str) -> EnvFailure:
        steps = self.steps[column // self._envs] - self.missed[column]
        return EnvFailure(column, where, self.seed[column], max(0, steps), text)

    def failure_of_group(self, group: int, where: str, text: str) -> EnvFailure:
        """Returns a failure of the environment that the group was at."""
        return self.failure(group * self._envs + self.at[group], where, text)
