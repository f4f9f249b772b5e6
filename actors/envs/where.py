"""Tells an environment which one it is: placeholders in its keyword arguments.

"{column}" as a whole argument becomes the number; inside a longer text it becomes a part of it.
"""

import re
from typing import Any, Final, NamedTuple

import msgspec

from headrace.actors.config import EnvConfig

_PLACEHOLDER: Final = re.compile(r"\{(sampler|number|group|column|seed)\}")


class Where(NamedTuple):
    """Identifies one environment of a run."""

    sampler: str = "probe"  # name of the process that plays it; probe = one only looks at it
    column: int = 0  # its place in that process, counted from 0
    seed: int = 0  # it is first seeded with
    group: int = 0  # of that process, which it is stepped in

    @property
    def number(self) -> int:
        """Returns the number at the end of the sampler's name, as the 7 of rack3.7; 0 = none."""
        digits = re.search(r"\d+\Z", self.sampler)
        return int(digits[0]) if digits else 0


def told(config: EnvConfig, where: Where) -> EnvConfig:
    """Returns the configuration with what its placeholders stand for."""
    kwargs, wrappers = (_told(held, where) for held in (config.kwargs, config.wrappers))
    return msgspec.structs.replace(config, kwargs=kwargs, wrappers=wrappers)


def _told(held: Any, where: Where) -> Any:
    match held:
        case dict():
            return {key: _told(inner, where) for key, inner in held.items()}
        case list() | tuple():
            return type(held)(_told(inner, where) for inner in held)
        case str() if whole := _PLACEHOLDER.fullmatch(held):
            return getattr(where, whole[1])
        case str():
            return _PLACEHOLDER.sub(lambda found: str(getattr(where, found[1])), held)
    return held
