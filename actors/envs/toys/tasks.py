"""Small tasks whose best return is known: one for each kind of observation and action.

A step takes microseconds. All but `cartpole_positions` and `Chance` pay 1.0 for an episode played
without fault.
"""

from abc import ABC, abstractmethod
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from numpy.typing import NDArray

_STEPS = 20  # of an episode, where its length is fixed
Step = tuple[Any, float, bool, bool, dict[str, Any]]


class _Questions(gymnasium.Env[Any, Any], ABC):
    """Shows a question at every step and pays up to 1 / 20 for the answer."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as gymnasium declares it

    def __init__(self) -> None:
        self._step = 0
        self._shown: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._step = 0
        self._shown = self._question()
        return self._shown, {}

    def step(self, action: Any) -> Step:
        paid = self._paid(action) / _STEPS
        self._step += 1
        self._shown = self._question()
        return self._shown, paid, self._step == _STEPS, False, {}

    @abstractmethod
    def _question(self) -> Any:
        """Returns what is shown next."""

    @abstractmethod
    def _paid(self, action: Any) -> float:
        """Returns 0 to 1, for an answer to what is shown."""


class Multi(_Questions):
    """Asks to repeat what is shown: three choices of different sizes, a third of the pay for each.

    The best return is 1.0; by chance it is 0.344.
    """

    def __init__(self) -> None:
        super().__init__()
        self.action_space = MultiDiscrete([3, 5, 2], start=[0, 1, 0])
        self.observation_space = MultiDiscrete([3, 5, 2])

    def _question(self) -> NDArray[np.int64]:
        return self.np_random.integers(0, [3, 5, 2])

    def _paid(self, action: Any) -> float:
        return float(np.mean(np.asarray(action) - [0, 1, 0] == self._shown))


class Parts(_Questions):
    """Asks for 0 while the lamp is off; else for the sign of one of three numbers: 1 = below, 2 =
    above zero. `which` says of which number, so that no part of the observation is enough.

    The best return is 1.0; by chance it is 0.333.
    """

    def __init__(self) -> None:
        super().__init__()
        self.action_space = Discrete(3)
        self.observation_space = Dict(
            lamp=MultiBinary(1), numbers=Box(-1.0, 1.0, (3,), np.float32), which=Discrete(3)
        )

    def _question(self) -> dict[str, Any]:
        dice = self.np_random
        sizes, signs = dice.uniform(0.2, 1.0, 3), 2 * dice.integers(0, 2, 3) - 1
        return {
            "lamp": dice.integers(0, 2, 1, np.int8),
            "numbers": (sizes * signs).astype(np.float32),
            "which": int(dice.integers(3)),
        }

    def _paid(self, action: Any) -> float:
        above = self._shown["numbers"][self._shown["which"]] > 0
        right = 0 if not self._shown["lamp"][0] else 2 if above else 1
        return float(action == right)


class Tracker(_Questions):
    """Pays one half for hitting two numbers, less the square of the distance in units of half the
    range; the other half for repeating a choice.

    The best return is 1.0; numbers with a standard deviation of a tenth of half the range lose
    0.005 of it.
    """

    LOW, HIGH = -2.0, 6.0

    def __init__(self) -> None:
        super().__init__()
        self.action_space = Tuple([Box(self.LOW, self.HIGH, (2,), np.float32), Discrete(3)])
        self.observation_space = Dict(target=Box(-1.0, 1.0, (2,), np.float32), which=Discrete(3))

    def _question(self) -> dict[str, Any]:
        dice = self.np_random
        return {
            "target": dice.uniform(-0.8, 0.8, 2).astype(np.float32),
            "which": int(dice.integers(3)),
        }

    def _paid(self, action: Any) -> float:
        numbers, choice = action
        middle, half = (self.LOW + self.HIGH) / 2, (self.HIGH - self.LOW) / 2
        missed = float(np.mean(np.square((numbers - middle) / half - self._shown["target"])))
        return 0.5 * max(0.0, 1.0 - missed) + 0.5 * float(choice == self._shown["which"])


class Masked(gymnasium.Env[Any, Any]):
    """Asks to collect eight coins, one after another, on a board of 5 x 5; env.mask = "allowed".

    Up, down, left, right; to leave the board is forbidden: it pays -1 and ends the episode. Each
    coin pays 1/8, less a tenth of that for every step that was more than it needed. The best return
    is 1.0, in about 27 steps.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as gymnasium declares it
    SIDE, COINS, LONGEST = 5, 8, 100
    MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))

    def __init__(self) -> None:
        self.action_space = Discrete(4)
        self.observation_space = Dict(
            allowed=MultiBinary(4), board=Box(-1.0, 1.0, (4,), np.float32)
        )
        self._at = self._coin = (0, 0)
        self._left = self._steps = self._taken = self._needed = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        row, column = self.np_random.integers(0, self.SIDE, 2).tolist()
        self._at, self._left, self._steps = (row, column), self.COINS, 0
        self._lay()
        return self._seen(), {}

    def step(self, action: int) -> Step:
        self._steps += 1
        self._taken += 1
        at = self._moved(action)
        if not self._inside(at):
            return self._seen(over=True), -1.0, True, False, {}
        self._at, paid = at, 0.0
        if at == self._coin:
            paid = max(0.0, 1.0 - 0.1 * (self._taken - self._needed)) / self.COINS
            self._left -= 1
            if not self._left:
                return self._seen(over=True), paid, True, False, {}
            self._lay()
        return self._seen(), paid, False, self._steps == self.LONGEST, {}

    def _lay(self) -> None:
        """Lays a new coin, anywhere but here."""
        row, column = self._at
        place = row * self.SIDE + column + int(self.np_random.integers(1, self.SIDE**2))
        self._coin = divmod(place % self.SIDE**2, self.SIDE)
        self._taken = 0
        self._needed = abs(self._coin[0] - row) + abs(self._coin[1] - column)

    def _moved(self, action: int) -> tuple[int, int]:
        down, right = self.MOVES[action]
        return self._at[0] + down, self._at[1] + right

    def _inside(self, at: tuple[int, int]) -> bool:
        return 0 <= at[0] < self.SIDE and 0 <= at[1] < self.SIDE

    def _seen(self, *, over: bool = False) -> dict[str, Any]:
        """Returns the observation; after the end nothing is allowed."""
        allowed = [not over and self._inside(self._moved(action)) for action in range(4)]
        half = (self.SIDE - 1) / 2
        board = np.array((*self._at, *self._coin), np.float32)
        return {"allowed": np.array(allowed, np.int8), "board": board / half - 1}


class Chance(gymnasium.Env[Any, Any]):
    """Offers nothing to learn: one episode in three ends at its first step and pays 1, every other
    lasts `steps` and pays nothing. The mean return is a third, but 1 among those that end first."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as gymnasium declares it

    def __init__(self, steps: int = 1000) -> None:
        self.observation_space = Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = Discrete(2)
        self._steps, self._left = steps, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._left = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Step:
        del action
        if not self._left and self.np_random.random() < 1 / 3:
            return np.zeros(1, np.float32), 1.0, True, False, {}
        self._left = (self._left or self._steps) - 1
        return np.zeros(1, np.float32), 0.0, not self._left, False, {}


class Positions(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Keeps the positions of an observation of positions and velocities in turn."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, Box)
        self.observation_space = Box(space.low[::2], space.high[::2], dtype=np.float32)

    def observation(self, observation: NDArray[np.float32]) -> NDArray[np.float32]:
        return observation[::2].copy()


def cartpole_positions(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Makes CartPole-v1 without its velocities: [position, angle]. The best return is 500, but only
    with a memory: one observation does not say which way the pole falls."""
    return Positions(gymnasium.make("CartPole-v1", disable_env_checker=True, **kwargs))
