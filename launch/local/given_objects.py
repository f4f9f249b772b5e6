"""Objects of a Python program where a run names code: classes, functions, and ids that the program
has registered with gymnasium.

What can be imported is named, as module:attribute. Anything else, such as a class of a notebook, is
pickled by value into a file that only the processes of this one run read, by its path in their
environment; the run calls it __main__:NAME. It never travels. Its source is kept in the run's
folder, for people to read.
"""

import contextlib
import functools
import inspect
import linecache
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from headrace.launch.config.run_file import ConfigError
from headrace.learner.models import named_code

# The keys that name code.
_CODE: Final = (
    "env.id",
    "env.wrappers",
    "env.curriculum",
    "model.kind",
    "algorithm.loss",
    "algorithm.clip",
    "algorithm.entropy_coef",
    "learner.lr",
    "actor.explore",
    "log.sinks",
)


class GivenObjects:
    """Finds a name for each object of one run, and keeps those that its processes cannot import."""

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}  # by name; pickled when they are written
        self._sources: dict[str, str] = {}  # of those whose text can be found

    def named(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the settings with a name in place of each object; ConfigError for an object where
        nothing names code."""
        return {section: self._section(section, held) for section, held in settings.items()}

    def registered(self, env_id: str) -> str:
        """Returns the name of an environment that this program alone has registered; "" = it is no
        such one."""
        gymnasium = sys.modules.get("gymnasium")
        spec = gymnasium and gymnasium.envs.registration.registry.get(env_id)
        if not spec or not _is_its_own(spec):
            return ""
        assert gymnasium is not None
        made = functools.partial(gymnasium.make, spec, disable_env_checker=True)
        return self._name(made, spec.name, of=spec.entry_point)

    @contextlib.contextmanager
    def written(self) -> Iterator[dict[str, str]]:
        """Keeps the objects in a file; yields what the environment of the run's processes says."""
        if not self._kept:
            yield {}
            return
        pickled = {name: _pickled(name, held) for name, held in self._kept.items()}
        with tempfile.NamedTemporaryFile(prefix="headrace-", suffix=".pickle") as file:
            named_code.write_given(Path(file.name), pickled, self._sources)
            yield {named_code.GIVEN: file.name}

    def _section(self, section: str, held: Any) -> Any:
        if not isinstance(held, Mapping):
            if callable(held):
                raise ConfigError(f"{section} = {held!r}: give it to a key, as env={{'id': ..}}")
            return held
        return {key: self._value(f"{section}.{key}", value) for key, value in held.items()}

    def _value(self, place: str, value: Any) -> Any:
        match value:
            case Mapping():
                return {key: self._value(place, inner) for key, inner in value.items()}
            case list() | tuple():
                return [self._value(place, inner) for inner in value]
            case _ if not callable(value):
                return value
        if place not in _CODE:
            raise ConfigError(
                f"{place} = {value!r}: only {', '.join(_CODE)} take a class or a function"
            )
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
        found = getattr(sys.modules.get(module or ""), name, None)
        if found is value and module != named_code.MAIN:
            return f"{module}:{name}"
        return self._name(value, name or type(value).__name__)

    def _name(self, held: Any, wanted: str, *, of: Any = None) -> str:
        """Keeps the object; returns by which name the run's processes find it. `of`: whose source
        is that of this object; None = it has its own."""
        plain = "".join(char if char.isalnum() else "_" for char in wanted.rpartition(".")[2])
        plain = plain if plain.isidentifier() else f"given_{plain}"
        taken = {name: other for name, other in self._kept.items() if other is not held}
        while plain in taken:
            plain += "_"
        self._kept[plain] = held
        if source := _source(held if of is None else of):
            self._sources[plain] = source
        return f"{named_code.MAIN}:{plain}"


def _source(held: Any) -> str:
    """Returns the text that an object was made by; "" = there is none to be found."""
    while isinstance(held, functools.partial):
        held = held.func
    kind = held if isinstance(held, type) or inspect.isroutine(held) else type(held)
    with contextlib.suppress(OSError, TypeError):
        return inspect.getsource(kind)
    # A class of a notebook has no file; what it does is in a cell, which has.
    parts = getattr(kind, "__dict__", {}).values()
    files = (part.__code__.co_filename for part in parts if inspect.isfunction(part))
    return next(("".join(lines) for file in files if (lines := linecache.getlines(file))), "")


def _pickled(name: str, held: Any) -> bytes:
    import cloudpickle

    try:
        return cloudpickle.dumps(held)  # type: ignore[no-any-return]
    except Exception as error:
        raise ConfigError(
            f"{name} cannot be handed to the run's processes ({named_code.one_line(error)});"
            " define it in a module, and name it module:factory"
        ) from error


def _is_its_own(spec: Any) -> bool:
    """Says whether other processes do not know the id: an installed package registers its own."""
    if callable(spec.entry_point):
        return True
    known = {"gymnasium", "headrace", "ale_py"}
    module = str(spec.entry_point or "").partition(":")[0].partition(".")[0]
    declared = {point.name for point in metadata.entry_points(group="gymnasium.envs")}
    return module not in known and (spec.namespace or "") not in declared
