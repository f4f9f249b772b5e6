"""Imports what a run names as module:attribute, and says in one line what went wrong in it."""

import importlib
from typing import Any


def imported(name: str) -> Any:
    """Returns the attribute; raises whatever the import raises."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def one_line(error: Exception) -> str:
    """Returns an exception in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
