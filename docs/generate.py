"""Makes the reference pages from the code, so that they cannot say what the code does not."""

import argparse
import html
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec import inspect

from grafana.generate import reference
from grafana.generate.registries import all_metrics
from headrace.launch import cli, examples
from headrace.launch.config import algorithm_defaults, run_file, toml_text
from headrace.learner.history import columns

_SETTINGS = """\
# Settings

```
headrace config cartpole                        # this list, with the values of a run
headrace train cartpole --set learner.lr=1e-3   # change one of them
```

A run is a TOML file with these sections. A key that you leave out has its default; some depend on
`algorithm.name`, and [Defaults by algorithm](defaults.md) has them side by side. A wrong key, type
or range is refused before anything starts. [A run and its settings](../start/runs.md) says which
keys to know first.
"""

_DEFAULTS = """\
# Defaults by algorithm

What a run has that names only its environment and its algorithm. All other keys have the same
default everywhere: [Settings](settings.md). `headrace config RUN` says of each value whether it
comes from the file, from `--set`, or from here.
"""

_COMMANDS = """\
# Command line

`headrace` alone lists the commands, `headrace COMMAND --help` says what stands here. What the exit
statuses mean stands on [a page of its own](exit-statuses.md).
"""

_HISTORY = """\
# Columns of history.jsonl

`history.jsonl` in [the run's folder](run-folder.md) has a line every quarter second. The first
seven columns stand in each line, the others once an optimiser step was made since the line before.
[Metrics of your own](../environments.md#metrics-of-your-own) add four columns each: NAME stands for
the name in `env.metrics`. [A curriculum](../environments.md#a-curriculum) adds one for each of its
settings. The figures that a loss of your own returns stand under their own names.
"""

_MARKUP = str.maketrans({letter: f"\\{letter}" for letter in "\\*_[]|"})


def settings() -> str:
    """Returns the page of all keys of a run: type and range, default, meaning."""
    parts = [_SETTINGS]
    for section in msgspec.structs.fields(run_file.Run):
        rows = [
            (
                f"`{key}`",
                toml_text.allowed(field.type),
                _default(f"{section.name}.{key}", field),
                _meaning(field.type),
            )
            for key, field in run_file.SECTIONS[section.name].items()
        ]
        words = toml_text.comment(section.type.__doc__)
        table = _table(("key", "what it may be", "default", "meaning"), rows)
        parts.append(f"## [{section.name}] {{: #{section.name} }}\n\n{words}\n\n{table}")
    return "\n".join(parts)


def defaults() -> str:
    """Returns the page of the keys whose default depends on the algorithm, with their rules."""
    tables = algorithm_defaults.DEFAULTS
    places = list(dict.fromkeys(place for table in tables.values() for place in table))
    bare = {name: algorithm_defaults.of({"algorithm": {"name": name}}) for name in tables}
    rows = [
        (
            f"`{place}`",
            *(
                f"`{toml_text.value(held[place])}`" if place in held else ""
                for held in bare.values()
            ),
            next((_rule(table[place]) for table in tables.values() if place in table), ""),
        )
        for place in places
    ]
    head = ("key", *(f"`{name}`" for name in tables), "depends on other keys")
    return f"{_DEFAULTS}\n{_table(head, rows)}"


def _rule(default: algorithm_defaults.Default) -> str:
    """Returns the words of a rule; "" = the default is the same whatever else a run says."""
    return toml_text.comment(default.__doc__) if callable(default) else ""


def commands() -> str:
    """Returns the page of all commands with their options and examples."""
    parts = [_COMMANDS]
    for name, command, words in _commands(cli.parser()):
        lines = "\n".join(line for line in examples.command_lines(name))
        rows = [_option(action) for action in command._actions if _is_shown(action)]
        table = _table(("option", "meaning"), rows)
        parts.append(f"## headrace {name}\n\n{_sentence(words)}\n\n```\n{lines}\n```\n\n{table}")
    return "\n".join(parts)


def history() -> str:
    """Returns the page of the columns of history.jsonl."""
    rows = [(f"`{name}`", meaning) for name, meaning in columns.COLUMNS.items()]
    return f"{_HISTORY}\n{_table(('column', 'meaning'), rows)}"


def _commands(
    parser: argparse.ArgumentParser,
) -> Iterator[tuple[str, argparse.ArgumentParser, str]]:
    """Yields (name, its parser, what it does); argparse has no public way to them."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                yield choice.dest, action.choices[choice.dest], choice.help or ""


def _is_shown(action: argparse.Action) -> bool:
    """Returns whether a command's help shows it, and it is not the help itself."""
    return action.dest != "help" and action.help != argparse.SUPPRESS


def _option(action: argparse.Action) -> tuple[str, str]:
    """Returns the row of one option or argument."""
    value = action.metavar or (
        f"{{{','.join(map(str, action.choices))}}}" if action.choices else action.dest.upper()
    )
    if isinstance(value, tuple):
        value = " ".join(value)
    if action.option_strings:
        name = action.option_strings[0] + ("" if action.nargs == 0 else f" {value}")
    else:
        name = str(value)
    return f"`{name}`", _sentence((action.help or "").replace("%%", "%"))


def _default(place: str, field: inspect.Field | Any) -> str:
    """Returns a key's default as it would stand in a run file, by algorithm where they differ."""
    held = field.default
    if held is msgspec.NODEFAULT:
        held = field.default_factory()
    by_value: dict[str, list[str]] = {}
    for name in algorithm_defaults.DEFAULTS:
        own = algorithm_defaults.of({"algorithm": {"name": name}}).get(place, held)
        words = "not set" if own is None else f"`{toml_text.value(msgspec.to_builtins(own))}`"
        by_value.setdefault(words, []).append(name)
    if len(by_value) == 1:
        return next(iter(by_value))
    return "; ".join(f"{', '.join(names)}: {words}" for words, names in by_value.items())


def _meaning(kind: Any) -> str:
    """Returns the words beside a key's type."""
    told = inspect.type_info(kind)
    if not isinstance(told, inspect.Metadata) or not told.extra_json_schema:
        return ""
    return toml_text.comment(told.extra_json_schema.get("description"))


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Returns a Markdown table."""
    lines = [head, ("---",) * len(head), *(tuple(map(_cell, row)) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: str) -> str:
    """Returns text that does not end its cell, and is taken neither for HTML nor for Markdown."""
    parts = text.split("`")
    parts[::2] = [html.escape(part, quote=False).translate(_MARKUP) for part in parts[::2]]
    return "`".join(parts)


def _sentence(words: str) -> str:
    """Returns it with a capital and a full stop."""
    return words[:1].upper() + words[1:].rstrip(".") + "." if words else ""


# Place in docs/ -> what makes the page.
PAGES: Final[dict[str, Callable[[], str]]] = {
    "reference/settings.md": settings,
    "reference/defaults.md": defaults,
    "reference/commands.md": commands,
    "reference/history.md": history,
    "reference/metrics.md": lambda: reference.page(all_metrics()),
}
