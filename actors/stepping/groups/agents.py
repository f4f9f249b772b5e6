"""Steps one environment of several agents; each is a column.

Who does not play in a step has a dead one there: it only shows what the agent sees if it has just
come. So an agent that ended early is dead until the next episode, of which the reset is a dead step
for all.
"""

import contextlib
import time
from typing import Any

import numpy as np

from headrace.actors.action_converter import ActionConverter, Rows
from headrace.actors.envs.agents.kinds import AnyPlay, play_of
from headrace.actors.envs.agents.parallel import News
from headrace.actors.envs.convert import EnvError, Writer
from headrace.actors.envs.info_metrics import InfoMetrics
from headrace.actors.envs.make import make_agents
from headrace.actors.envs.settings import EnvSettings
from headrace.actors.stepping.groups.group import Group, GroupSpec, check_spaces
from headrace.actors.stepping.stepper import Frame
from headrace.learner.spaces import DEAD


def show_news(frame: Frame, place: int, told: News, writer: Writer, info: InfoMetrics) -> None:
    """Writes what a step told an agent into its column."""
    writer.write(frame.obs, place, told.observation, last=bool(told.flags))
    frame.reward[place], frame.flags[place] = told.reward, told.flags
    if frame.metrics is not None:
        info.read(told.info, frame.metrics[place])


def show_first(frame: Frame, place: int, observation: Any, writer: Writer) -> None:
    """Writes what an agent sees that begins to play."""
    writer.check(observation)
    writer.write(frame.obs, place, observation)


def show_dead(frame: Frame, columns: slice) -> None:
    """Makes a dead step of all these columns."""
    frame.reward[columns], frame.flags[columns] = 0.0, DEAD
    if frame.metrics is not None:
        frame.metrics[columns] = np.nan


class AgentsGroup(Group):
    """Steps an environment whose agents act at the same time. It fails and is made again as a
    whole: all agents show a dead step then, and the first column stands for it."""

    parts = 1

    def __init__(self, spec: GroupSpec, frame: Frame) -> None:
        super().__init__(spec, frame)
        self._play: AnyPlay | None = None
        self._writer: Writer | None = None
        self._actions = ActionConverter(spec.made.spaces.action)
        self._info = InfoMetrics(spec.made.spaces.metrics)
        self._settings = EnvSettings(spec.made.config)

    def step(self, actions: Rows) -> None:
        began = time.perf_counter()
        self._all_dead()
        try:
            if self._play is None or self._play.over:
                self._reset(0, None)
                self._books.missed[self._first] += 1
            else:
                self._advance(self._play, actions)
        except BaseException as error:  # noqa: BLE001 - exits and foreign panics too
            self._mend(0, "step", error)
            self._all_dead()
            self._books.missed[self._first] += 1
        self._books.steps[self._group] += 1
        self.frame.spent[self._group] += time.perf_counter() - began

    def _advance(self, play: AnyPlay, actions: Rows) -> None:
        given = self._actions.each(actions)
        news, came = play.step({agent: given[play.agents.index(agent)] for agent in play.acting})
        for place, agent in enumerate(play.agents, start=self._first):
            if agent in news:
                self._show_news(place, news[agent])
            elif agent in came:
                self._show_first(place, came[agent])

    def _show_news(self, place: int, told: News) -> None:
        assert self._writer is not None
        show_news(self.frame, place, told, self._writer, self._info)

    def _all_dead(self) -> None:
        show_dead(self.frame, self._columns)

    def _show_first(self, place: int, observation: Any) -> None:
        assert self._writer is not None
        show_first(self.frame, place, observation, self._writer)

    def _make(self, part: int) -> None:
        made = self._spec.made
        env = make_agents(made.config, self._where(part))
        check_spaces(made.config, made.spaces, env)
        if len(env.possible_agents) != made.agents:
            raise EnvError(
                f"{made.config.id} changes its agents: first {made.agents}, then"
                f" {len(env.possible_agents)}"
            )
        self._play = play_of(env)
        if self._writer is None:
            self._writer = Writer(env.observation_space(env.possible_agents[0]), made.spaces)

    def _reset(self, part: int, seed: int | None) -> None:
        del part
        came, play = self._began(seed), self._play
        assert play is not None
        for place, agent in enumerate(play.agents, start=self._first):
            if agent in came:
                self._show_first(place, came[agent])
            else:
                for rows in self.frame.obs.values():
                    rows[place] = 0

    def _began(self, seed: int | None) -> dict[str, Any]:
        """Begins an episode; returns what those see who play in it from the start."""
        assert self._play is not None
        if self._settings:
            self._settings.put(self._play.env, self.frame.settings.tolist())
        self.frame.begun[self._spec.group] += 1
        return self._play.reset(seed)

    def _drop(self, part: int) -> None:
        del part
        play, self._play = self._play, None
        if play is not None:
            with contextlib.suppress(Exception, SystemExit):
                play.env.close()
