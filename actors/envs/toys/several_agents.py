"""Small tasks of several agents whose best return is known."""

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

_STEPS = 10  # of an episode
_SYMBOLS = 3
Numbers = NDArray[np.float32]
_Step = tuple[
    dict[str, Numbers], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Any]
]


class _Parallel:
    """Begins and ends episodes of a fixed length, in which all play."""

    def __init__(self, agents: int, seen: int, choices: int) -> None:
        self.possible_agents = [f"agent_{number}" for number in range(agents)]
        self.agents: list[str] = []
        self._spaces = Box(0.0, 1.0, (seen,), np.float32), Discrete(choices)
        self._dice = np.random.default_rng()
        self._step = 0

    def observation_space(self, agent: str) -> Box:
        del agent
        return self._spaces[0]

    def action_space(self, agent: str) -> Discrete:
        del agent
        return self._spaces[1]

    def close(self) -> None:
        pass


class Seats(_Parallel):
    """Pays all alike the share of seats that are taken: none is told which of them is its own.

    An agent sees its number, and by whom each seat was taken a step ago. The best is 1 a step, when
    each takes another seat; agents that draw get 0.75 of two seats, 0.67 of five.
    """

    def __init__(self, agents: int = 2) -> None:
        super().__init__(agents, seen=2 * agents, choices=agents)
        self._taken = np.zeros(agents, np.float32)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Numbers], dict[str, Any]]:
        del options
        if seed is not None:
            self._dice = np.random.default_rng(seed)
        self.agents, self._step = [*self.possible_agents], 0
        self._taken[:] = 0
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> _Step:
        """Seats everybody."""
        self._step += 1
        self._taken[:] = 0
        self._taken[list(actions.values())] = 1
        paid, over = float(self._taken.mean()), self._step == _STEPS
        all_alike = dict.fromkeys(self.agents, paid)
        ended, cut = dict.fromkeys(self.agents, over), dict.fromkeys(self.agents, False)
        infos = {agent: {"taken": paid} for agent in self.agents}
        if over:
            self.agents = []
        return self._seen(), all_alike, ended, cut, infos

    def _seen(self) -> dict[str, Numbers]:
        own = np.eye(len(self.possible_agents), dtype=np.float32)
        numbers = zip(self.possible_agents, own, strict=True)
        return {agent: np.concatenate([row, self._taken]) for agent, row in numbers}


class Shifts(_Parallel):
    """Pays agents for the symbol that they see; they come late, and leave early.

    Each plays from a step drawn for this episode to another one; one that leaves before the end is
    truncated if its number is even, else terminated. Two at least play at every time. The best
    return is 1, however long an agent was there; agents that draw get a third.
    """

    def __init__(self, agents: int = 4) -> None:
        super().__init__(agents, seen=_SYMBOLS, choices=_SYMBOLS)
        self._from: dict[str, int] = {}
        self._to: dict[str, int] = {}
        self._shown: dict[str, int] = {}

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Numbers], dict[str, Any]]:
        del options
        if seed is not None:
            self._dice = np.random.default_rng(seed)
        self._step = 0
        for number, agent in enumerate(self.possible_agents):
            comes, stays = (int(drawn) for drawn in self._dice.integers(1, _STEPS // 2, 2))
            self._from[agent] = 0 if number < 2 else comes
            self._to[agent] = _STEPS if number < 2 else comes + stays
        self.agents = self._there()
        self._shown.clear()
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> _Step:
        """Pays who is there, and lets agents go and come."""
        self._step += 1
        paid = {
            agent: (self._shown[agent] == taken) / (self._to[agent] - self._from[agent])
            for agent, taken in actions.items()
        }
        gone = {agent: self._step == self._to[agent] for agent in actions}
        even = {agent: int(agent.partition("_")[2]) % 2 == 0 for agent in actions}
        ended = {agent: gone[agent] and not even[agent] for agent in actions}
        cut = {agent: gone[agent] and even[agent] for agent in actions}
        self.agents = self._there()
        seen = self._seen() | {agent: self._one(agent) for agent in actions if gone[agent]}
        return seen, paid, ended, cut, {agent: {} for agent in seen}

    def _there(self) -> list[str]:
        step = self._step
        return [name for name in self.possible_agents if self._from[name] <= step < self._to[name]]

    def _seen(self) -> dict[str, Numbers]:
        return {agent: self._one(agent) for agent in self.agents}

    def _one(self, agent: str) -> Numbers:
        self._shown[agent] = int(self._dice.integers(_SYMBOLS))
        row = np.zeros(_SYMBOLS, np.float32)
        row[self._shown[agent]] = 1
        return row


class Signals:
    """Lets a speaker, who sees a symbol, tell it to listeners, who each see the word of a step ago.

    What the speaker sees and may say has other sizes than what listeners see and may answer. In
    every step but the first all are paid by the share of listeners that answer with the symbol of
    a step ago; the best return is 1, and agents that draw get a third.
    """

    def __init__(self, listeners: int = 1, words: int = 4) -> None:
        self._listeners = [f"listener_{number}" for number in range(listeners)]
        self.possible_agents = ["speaker", *self._listeners]
        self.agents: list[str] = []
        self._words = words
        self._dice = np.random.default_rng()
        self._step = self._symbol = self._asked = 0
        self._word = np.zeros(words, np.float32)

    def observation_space(self, agent: str) -> Box:
        """Returns the symbol's place for the speaker, the word's for a listener."""
        size = _SYMBOLS if agent == "speaker" else self._words
        return Box(0.0, 1.0, (size,), np.float32)

    def action_space(self, agent: str) -> Discrete:
        return Discrete(self._words if agent == "speaker" else _SYMBOLS)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Numbers], dict[str, Any]]:
        del options
        if seed is not None:
            self._dice = np.random.default_rng(seed)
        self.agents, self._step = [*self.possible_agents], 0
        self._word[:] = 0
        self._symbol = int(self._dice.integers(_SYMBOLS))
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> _Step:
        """Pays the listeners' answers, and passes the speaker's word on."""
        self._step += 1
        right = [actions[agent] == self._asked for agent in self._listeners]
        paid = sum(right) / len(right) / (_STEPS - 1) if self._step > 1 else 0.0
        self._word[:] = np.eye(self._words)[actions["speaker"]]
        self._asked, self._symbol = self._symbol, int(self._dice.integers(_SYMBOLS))
        over = self._step == _STEPS
        all_alike = dict.fromkeys(self.agents, paid)
        ended, cut = dict.fromkeys(self.agents, over), dict.fromkeys(self.agents, False)
        infos: dict[str, Any] = {agent: {} for agent in self.agents}
        if over:
            self.agents = []
        return self._seen(), all_alike, ended, cut, infos

    def _seen(self) -> dict[str, Numbers]:
        symbol = np.eye(_SYMBOLS, dtype=np.float32)[self._symbol]
        return {"speaker": symbol, **{agent: self._word.copy() for agent in self._listeners}}

    def close(self) -> None:
        pass


class Nim:
    """Lets two agents take one to three stones in turn; who takes the last wins 1, the other -1.

    An agent sees how many there are. Wherever they are no multiple of four there is one right move,
    the one that leaves a multiple of four; with it, who is to move wins. info["right"] is the share
    of such moves that an agent has made right in the episode, 1 where it had none.
    """

    def __init__(self, stones: int = 20) -> None:
        self.possible_agents = ["first", "second"]
        self.agents: list[str] = []
        self.agent_selection = "first"
        self._dice = np.random.default_rng()
        self._most, self._left = stones, 0
        self._won = ""  # the agent that took the last stone
        self._moves: dict[str, list[bool]] = {}  # of each agent where there was a right one

    def observation_space(self, agent: str) -> Box:
        del agent
        return Box(0.0, 1.0, (self._most,), np.float32)

    def action_space(self, agent: str) -> Discrete:
        del agent
        return Discrete(3)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Lays down 1 to `stones` of them."""
        del options
        if seed is not None:
            self._dice = np.random.default_rng(seed)
        self.agents, self._won = [*self.possible_agents], ""
        self.agent_selection = "first"
        self._left = int(self._dice.integers(1, self._most + 1))
        self._moves = {agent: [] for agent in self.agents}

    def last(self) -> tuple[Numbers, float, bool, bool, dict[str, Any]]:
        """Returns what the agent sees whose turn it is, and what its move before led to."""
        seen, agent, over = np.zeros(self._most, np.float32), self.agent_selection, bool(self._won)
        if self._left:
            seen[self._left - 1] = 1
        paid = (1.0 if agent == self._won else -1.0) if over else 0.0
        moves = self._moves[agent]
        return seen, paid, over, False, {"right": sum(moves) / len(moves) if moves else 1.0}

    def step(self, action: int | None) -> None:
        """Takes stones; without an action, takes leave of an agent that has heard who won."""
        agent = self.agent_selection
        if action is None:
            self.agents.remove(agent)
        else:
            taken = min(int(action) + 1, self._left)
            if self._left % 4:
                self._moves[agent].append(taken == self._left % 4)
            self._left -= taken
            self._won = "" if self._left else agent
        self.agent_selection = "second" if agent == "first" else "first"

    def close(self) -> None:
        pass


class RockPaperScissors(_Parallel):
    """Pays each of two agents 1 for a symbol that beats the other's, and -1 for one that is beaten.

    They see nothing. Whoever plays each symbol a third of the time loses to nobody.
    """

    def __init__(self) -> None:
        super().__init__(2, seen=1, choices=3)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Numbers], dict[str, Any]]:
        del seed, options
        self.agents, self._step = [*self.possible_agents], 0
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> _Step:
        """Shows both symbols."""
        self._step += 1
        first, second = self.possible_agents
        won = (0.0, 1.0, -1.0)[(actions[first] - actions[second]) % 3]
        over = self._step == _STEPS
        ended, cut = dict.fromkeys(self.agents, over), dict.fromkeys(self.agents, False)
        infos: dict[str, Any] = {agent: {} for agent in self.agents}
        if over:
            self.agents = []
        return self._seen(), {first: won, second: -won}, ended, cut, infos

    def _seen(self) -> dict[str, Numbers]:
        return {agent: np.ones(1, np.float32) for agent in self.possible_agents}
