"""Imports what a run names as module:attribute, and says in one line what went wrong in it."""

import functools
import importlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

# Names the file of what a program gave to headrace.train as objects; its own processes inherit it.
GIVEN: Final = "HEADRACE_GIVEN"
_SOURCES: Final = ""  # under which they stand among the objects
MAIN: Final = "__main__"  # the module of such an object, whichever it was defined in


class OwnCodeError(ValueError):
    """Says what is wrong with a function of the user's, in one line."""


def imported(name: str) -> Any:
    """Returns the attribute; raises whatever the import raises."""
    module, _, attribute = name.partition(":")
    if module == MAIN:
        return _given(attribute, os.environ.get(GIVEN, ""))
    return getattr(importlib.import_module(module), attribute)


def function(key: str, name: str) -> Callable[..., Any]:
    """Returns the function that a run names under `key`; OwnCodeError where there is none."""
    try:
        found = imported(name)
    except Exception as error:
        raise OwnCodeError(f'{key} = "{name}" cannot be imported: {one_line(error)}') from error
    if not callable(found):
        raise OwnCodeError(f'{key} = "{name}" is a {type(found).__name__}, not a function')
    return found  # type: ignore[no-any-return]


def write_given(path: Path, objects: dict[str, bytes], sources: dict[str, str]) -> None:
    """Writes pickled objects by their names, and the texts of some; the file is for processes of
    this program alone."""
    path.write_bytes(pickle.dumps(objects | {_SOURCES: pickle.dumps(sources)}))


def given_sources() -> dict[str, str]:
    """Returns the texts of the objects that this process was given, by name: to be read only."""
    path = os.environ.get(GIVEN, "")
    return dict(_given(_SOURCES, path)) if path else {}


def one_line(error: Exception) -> str:
    """Returns an exception in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


@functools.cache
def _given(name: str, path: str) -> Any:
    objects = pickle.loads(Path(path).read_bytes()) if path else {}  # noqa: S301 - our starter's own file
    if name not in objects:
        raise ImportError(
            f"{MAIN}:{name} was an object of the program that called headrace.train, and is not"
            " here; define it in a module, and name it module:factory (the run's folder has its"
            " source, in code/)"
        )
    return pickle.loads(objects[name])  # noqa: S301 - the same
