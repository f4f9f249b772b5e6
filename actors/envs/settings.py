"""env.settings: attributes of environments that may change in the course of a run."""

from collections.abc import Iterable
from typing import Any

from headrace.actors.config import EnvConfig
from headrace.actors.envs.convert import EnvError


class EnvSettings:
    """Sets the attributes that the run names; they come as numbers, in the order of their names."""

    def __init__(self, config: EnvConfig) -> None:
        self.initial = [float(config.settings[name]) for name in sorted(config.settings)]
        self._kinds = {name: type(config.settings[name]) for name in sorted(config.settings)}

    def __bool__(self) -> bool:
        return bool(self._kinds)

    def put(self, env: Any, numbers: Iterable[float]) -> None:
        """Sets them where they are defined, in a wrapper or in the environment; EnvError for one
        that nothing defines."""
        for (name, kind), number in zip(self._kinds.items(), numbers, strict=True):
            value: Any = round(number) if kind is int else kind(number)
            setattr(_holder(env, name), name, value)


def _holder(env: Any, name: str) -> Any:
    layer, innermost = env, getattr(env, "unwrapped", env)
    while not (name in vars(layer) or hasattr(type(layer), name)):
        if layer is innermost:
            raise EnvError(
                f"env.settings names {name}, and {type(innermost).__name__} has no such"
                " attribute; give it one when it is made"
            )
        layer = layer.env
    return layer
