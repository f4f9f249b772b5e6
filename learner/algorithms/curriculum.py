"""Decides which env.settings samplers play with, version by version.

They travel as a part of the weights: whoever acts with a version has its settings too, and a
checkpoint keeps them.
"""

import logging
import math
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import torch

from headrace.learner.models import named_code
from headrace.learner.models.build import SETTINGS, Model
from headrace.learner.models.named_code import OwnCodeError

log = logging.getLogger(__name__)

_LONG_S: Final = 1.0  # of a call: training waits for it


class Moment(NamedTuple):
    """Tells a curriculum how far the run is."""

    trained_steps: int
    version: int
    episodes: int
    mean_return: float | None  # of the latest episodes; None = none has ended
    metrics: Mapping[str, float]  # of env.metrics, means over the same episodes
    share: float  # of stop.steps; 0.0 = there is no such limit


Number = int | float | bool


class Curriculum:
    """Asks the user's function at every version, and writes its answer into the model."""

    def __init__(
        self,
        name: str = "",
        settings: Mapping[str, Number] | None = None,
        model: Model | None = None,
    ) -> None:
        """Takes module:function; "" = the settings stay as they are."""
        self._name = name
        self.now = dict(settings or {})  # what is played with from now on
        self._names = sorted(self.now)
        self._buffer = getattr(model, SETTINGS) if settings else torch.empty(0)
        self._function = named_code.function("env.curriculum", name) if name else None
        self._slow = False  # that it takes long was said

    def update(self, moment: Moment) -> None:
        """Writes what is to be played with the next version."""
        if self._function is not None:
            began = time.monotonic()
            self._take(self._called(moment))
            if time.monotonic() - began > _LONG_S and not self._slow:
                self._slow = True
                log.warning("env.curriculum takes long, and training waits for it")
        if self._names:
            numbers = [float(self.now[name]) for name in self._names]
            self._buffer.copy_(torch.tensor(numbers, dtype=torch.float64))

    def figures(self) -> dict[str, float]:
        """Returns what the run's history shows."""
        return {f"setting.{name}": float(self.now[name]) for name in self._names}

    def _called(self, moment: Moment) -> Any:
        assert self._function is not None
        try:
            return self._function(moment)
        except Exception as error:
            raise OwnCodeError(
                f'env.curriculum = "{self._name}" failed, mend it: {named_code.one_line(error)}'
            ) from error

    def _take(self, wanted: Any) -> None:
        """Takes over what is asked for; what is not named stays as it is."""
        if not isinstance(wanted, Mapping):
            raise OwnCodeError(
                f'env.curriculum = "{self._name}" gives a {type(wanted).__name__}; it must give a'
                " dict of env.settings"
            )
        for name, value in wanted.items():
            if name not in self.now:
                raise OwnCodeError(
                    f'env.curriculum = "{self._name}" sets {name!r}; env.settings has'
                    f" {self._names}: add it there"
                )
            try:
                sound = math.isfinite(float(value))
            except (TypeError, ValueError):
                sound = False
            if not sound:
                raise OwnCodeError(
                    f'env.curriculum = "{self._name}" sets {name} = {value!r}, which is no number'
                )
            self.now[name] = value
