"""Values and types as TOML text, for people: tomllib reads, this writes. Pure."""

import json
import math
from collections.abc import Iterable
from typing import Any

from msgspec import inspect

# Long enough for any sensible value, short enough that a message stays one line.
SHOWN = 80


def value(held: Any) -> str:
    """Returns one value on one line, such that tomllib gives it back."""
    match held:
        case bool():
            return "true" if held else "false"
        case int() | float():
            return repr(held)
        case str():
            # JSON's escapes are TOML's, save DEL, which only TOML wants escaped.
            return json.dumps(held, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list() | tuple():
            return f"[{', '.join(map(value, held))}]"
        case dict():
            pairs = ", ".join(f"{value(key)} = {value(part)}" for key, part in held.items())
            return f"{{ {pairs} }}" if pairs else "{}"
        case _:
            # Dates are TOML too, but no run holds one: they come here only to be refused.
            return str(held)


def portable(value: Any) -> bool:
    """Says whether a value survives TOML, msgpack and comparison: no dates, no NaN, no half
    characters."""
    match value:
        case bool():
            return True
        case int():
            return -(2**63) <= value < 2**63
        case float():
            return math.isfinite(value)
        case str():
            return not any("\ud800" <= character <= "\udfff" for character in value)
        case list():
            return all(map(portable, value))
        case dict():
            return all(portable(part) for pair in value.items() for part in pair)
        case _:
            return False


def shown(held: Any) -> str:
    """Returns a value for a message: cut when long."""
    text = value(held)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def line(name: str, held: Any, kind: Any, origin: str | None = None) -> str:
    """Returns one key with its origin, meaning and range; TOML has no null, so an unset key is a
    comment."""
    told = inspect.type_info(kind)
    words = [] if origin is None else [comment(origin)]
    if isinstance(told, inspect.Metadata) and told.extra_json_schema:
        words.append(comment(told.extra_json_schema.get("description")))
    setting = f"# {name} is not set" if held is None else f"{name} = {value(held)}"
    return f"{setting}  # {'; '.join([*words, allowed(kind)])}"


def comment(text: str | None) -> str:
    """Returns the text on one line: a comment may not hold a line break."""
    return " ".join((text or "").split())


def optional(kind: Any) -> bool:
    """Says whether a key of this type may be unset."""
    told = inspect.type_info(kind)
    while isinstance(told, inspect.Metadata):
        told = told.type
    return isinstance(told, inspect.UnionType) and told.includes_none


def allowed(kind: Any) -> str:
    """Returns what a key of this type may hold, in words."""
    return _allowed(inspect.type_info(kind))


def _allowed(told: inspect.Type) -> str:
    match told:
        case inspect.Metadata(type=inner):
            return _allowed(inner)
        case inspect.UnionType(types=types):
            return _either(_allowed(part) for part in types if part != inspect.NoneType())
        case inspect.LiteralType(values=values):
            return _either(map(value, values))
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            most = f" of at most {told.max_length}" if told.max_length is not None else ""
            return f"a list{most}, each item {_allowed(item)}"
        case inspect.TupleType(item_types=items):
            return f"[{', '.join(map(_allowed, items))}]"
        case inspect.IntType():
            return f"an integer{_bounds(told)}"
        case inspect.FloatType():
            return f"a number{_bounds(told)}"
        case inspect.StrType(pattern=None):
            return "text"
        case inspect.StrType(pattern=pattern, max_length=longest):
            return f"text matching {pattern}" + (
                f", at most {longest} characters" if longest else ""
            )
        case inspect.BoolType():
            return "true or false"
        case inspect.DictType(key_type=inspect.LiteralType() as keys, value_type=each):
            return f"a table of {_allowed(keys)}, each {_allowed(each)}"
        case inspect.DictType():
            return "a table"
        case _:
            raise NotImplementedError(f"no words yet for a key of type {told}")


def _either(choices: Iterable[str]) -> str:
    return " or ".join(choices)


def _bounds(told: inspect.IntType | inspect.FloatType) -> str:
    limits = ((">", told.gt), (">=", told.ge), ("<", told.lt), ("<=", told.le))
    said = " and ".join(f"{sign} {limit}" for sign, limit in limits if limit is not None)
    return f" {said}" if said else ""
