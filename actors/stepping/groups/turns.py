"""Steps one environment whose agents take turns; each is a group of one column.

What a step tells is shown group by group: first those who have ended, whose next action means
nothing, then the agent whose turn it is. Who has its first turn of an episode shows a dead step: so
ends what it did in the episode before.
"""

import time
from collections import deque
from typing import Any

from headrace.actors.action_converter import Rows
from headrace.actors.envs.agents.parallel import News
from headrace.actors.stepping.groups.agents import AgentsGroup
from headrace.actors.stepping.groups.group import GroupSpec
from headrace.actors.stepping.stepper import Frame


class TurnsGroup(AgentsGroup):
    """Steps an environment whose agents take turns. It fails and is made again as a whole."""

    def __init__(self, spec: GroupSpec, frame: Frame) -> None:
        super().__init__(spec, frame)
        self._columns = slice(self._first, self._first + spec.made.agents)
        # What is still to be shown of the newest step, by agent; not News = its first turn.
        self._untold: deque[tuple[str, Any]] = deque()
        self._ended = False  # who is shown has ended

    def step(self, actions: Rows) -> None:
        began = time.perf_counter()
        try:
            if self._ended:
                self._books.missed[self._first] += 1
            else:
                self._advance_turn(actions)
            if self._untold:
                self._show_turn()
            else:
                self._reset(0, None)
        except BaseException as error:  # noqa: BLE001 - exits and foreign panics too
            self._mend(0, "step", error)
            self._books.missed[self._first] += 1
        self._books.steps[self._group] += 1
        self.frame.spent[self._group] += time.perf_counter() - began

    def _advance_turn(self, actions: Rows) -> None:
        play = self._play
        assert play is not None
        (agent,) = play.acting
        (action,) = self._actions.each(actions)
        news, came = play.step({agent: action})
        self._untold.extend((*news.items(), *came.items()))

    def _show_turn(self) -> None:
        play = self._play
        assert play is not None
        agent, told = self._untold.popleft()
        place = play.agents.index(agent)
        column = self._first + place
        if isinstance(told, News):
            self._show_news(column, told)
            self._ended = told.flags > 0
        else:
            self._all_dead()
            self._show_first(column, told)
            self._ended = False
        self.ready = self._spec.group + place

    def _reset(self, part: int, seed: int | None) -> None:
        del part
        self._untold.clear()
        self._untold.extend(self._began(seed).items())
        self._show_turn()
