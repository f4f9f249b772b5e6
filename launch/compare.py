"""Where two runs differ, in words. Pure."""

from typing import Any

from launch import toml


def first_difference(a: dict[str, Any], b: dict[str, Any]) -> str | None:
    """The first key by name whose value there (`shared` dict a) is not the one here (b)."""
    # Compared as text: Python takes 1, 1.0 and True for equal, a digest does not.
    there, here = (
        {
            f"{name}.{key}": toml.value(held)
            for name, table in side.items()
            for key, held in table.items()
        }
        for side in (a, b)
    )
    for place in sorted(there.keys() | here.keys()):
        if there.get(place) != here.get(place):
            return f"{place}: {there.get(place, 'absent')} there, {here.get(place, 'absent')} here"
    return None


def no_continuation(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    """Why what was trained by one `shared` dict cannot go on by another; None = it can."""
    for section, keys in (("env", None), ("model", None), ("algorithm", ["name"])):
        sides = [
            {section: {k: v for k, v in side[section].items() if keys is None or k in keys}}
            for side in (before, now)
        ]
        difference = first_difference(*sides)
        if difference is not None:
            return difference
    return None
