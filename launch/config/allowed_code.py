"""Decides which code a broker's run may name on this machine.

A run names environments, wrappers and encoders as module:factory, and gymnasium imports what stands
before the colon of an id. A false broker would choose what a sampler imports and calls, so that
may only be what this machine knows: registered ids, ours among them, gymnasium's
wrappers, and what the machine's owner allows by --allow or in a file. A run from a file
of this machine is not restricted: its owner wrote it.
"""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from headrace.actors.config import names_code
from headrace.actors.envs import envpool
from headrace.launch.config.run_file import ConfigError, Run

# Allowed everywhere, exactly this module: gymnasium's others, and ours, can do more than make an
# environment. Those of ours that every run may name have ids.
_EVERYWHERE: Final = "gymnasium.wrappers"
# Ids whose own arguments name code: gymnasium makes them by way of the older gym.
_LOADERS: Final = ("GymV21Environment", "GymV26Environment")
_PREFIX: Final = re.compile(r"[^\s:]+(:\w+)?")


def files() -> tuple[Path, ...]:
    """Returns the files in which the owners of the machine and of the account list prefixes, one a
    line."""
    own = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser(  # noqa: PTH111 - Path.expanduser raises where there is no home
        "~/.config"
    )
    return Path("/etc/headrace/allow"), Path(own) / "headrace" / "allow"


def allowed(given: Sequence[str]) -> tuple[str, ...]:
    """Returns the prefixes of --allow and of the files; ConfigError for one that is not a
    prefix."""
    prefixes = [_checked(prefix, f"--allow {prefix}") for prefix in given]
    for path in files():
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
        for number, line in enumerate(lines, 1):
            if word := line.partition("#")[0].strip():
                prefixes.append(_checked(word, f"{path} line {number}: {word}"))
    return tuple(prefixes)


def names(run: Run) -> tuple[str, ...]:
    """Returns all code that the run names and that is not allowed everywhere: what --allow must
    say."""
    found = (name for _, name in _named(run) if not _fits(name, ()))
    return tuple(dict.fromkeys(found))


def allow_options(run: Run) -> list[str]:
    """Returns the same code as --allow options of a command line."""
    return [word for name in names(run) for word in ("--allow", name)]


def check(run: Run, prefixes: Sequence[str]) -> None:
    """Raises ConfigError at the first code that this machine does not allow a broker to name."""
    for place, name in _named(run):
        if not _fits(name, prefixes):
            module = name.partition(":")[0]
            hint = f"start with --allow {module}, or add a line {module} to {files()[0]}"
            if not _PREFIX.fullmatch(name):
                hint = "no --allow can change that: it is no module:factory"
            raise ConfigError(
                f"the broker's run names code that this machine does not allow: {place} = {name!r};"
                f" if you trust it, {hint}"
            )


def _named(run: Run) -> Iterator[tuple[str, str]]:
    """Yields each key of the run that names code, and the code."""
    env = run.env
    if ":" in env.id and not envpool.is_envpool(env):
        yield "env.id", _code(env.id)
    if env.id.rpartition("/")[2].startswith(_LOADERS):
        for key, value in env.kwargs.items():
            if isinstance(value, str) and ":" in value:
                yield f"env.kwargs.{key}", _code(value)
    for at, wrapper in enumerate(env.wrappers):
        if isinstance(name := wrapper.get("id"), str):
            yield f"env.wrappers[{at}].id", name
        if isinstance(rule := wrapper.get("rule"), str) and names_code(rule):  # of draw_seats
            yield f"env.wrappers[{at}].rule", rule
    if ":" in run.model.kind:
        yield "model.kind", run.model.kind
    if run.actor.explore:
        yield "actor.explore", run.actor.explore
    if names_code(run.evaluate.against):
        yield "evaluate.against", run.evaluate.against
    for name in filter(names_code, env.others.values()):
        yield "env.others", name
    for name in filter(names_code, run.league.others):
        yield "league.others", name
    if names_code(run.league.pick):
        yield "league.pick", run.league.pick


def _code(name: str) -> str:
    """Returns module:factory as it is; of module:Id-v0 the module, as gymnasium only imports
    that."""
    module, _, rest = name.partition(":")
    return name if rest.isidentifier() else module


def _fits(name: str, prefixes: Sequence[str]) -> bool:
    module, _, factory = name.partition(":")
    if not _PREFIX.fullmatch(name):
        return False
    if module == _EVERYWHERE and not factory.startswith("_"):
        return True
    return any(name == prefix or f"{module}.".startswith(f"{prefix}.") for prefix in prefixes)


def _checked(prefix: str, said: str) -> str:
    if not _PREFIX.fullmatch(prefix):
        raise ConfigError(f"{said} is no module, package or module:factory")
    return prefix
