"""Run files: one TOML section for each typed struct of a run.

    runs/*.toml, --set  ->  load  ->  Run  ->  shared     what every peer must agree on
       algorithm_defaults  ---^            ->  effective  TOML again, every default spelt out

Whatever the user got wrong is a ConfigError: one line that says where, what, and what is allowed.
"""

import contextlib
import difflib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.actors.envs.toys.registered import registered_id
from headrace.launch.config import algorithm_defaults, toml_text
from headrace.launch.config.run_sections import AUTO_SCHEDULES, SCHEDULES, check, fault_of_schedule

# Who loads a run from here needs both, by this name.
from headrace.launch.config.run_sections import ConfigError as ConfigError
from headrace.launch.config.run_sections import Run as Run

# --set stop.steps=none
NOT_SET = "none"
_MOST_SAID = 160  # characters of a setting that a message repeats
RUNS = Path(__file__).parents[1] / "runs"
SEVERAL = RUNS / "policies"  # runs of several policies


# section -> key -> what msgspec knows of it
SECTIONS = {
    section.name: {key.encode_name: key for key in msgspec.structs.fields(section.type)}
    for section in msgspec.structs.fields(Run)
}
_NOWHERE: Final[Mapping[str, str]] = {}
_WHOLE = "# The whole run, defaults included. This file is itself a run file."


def shipped() -> list[str]:
    """Returns the names of the runs that come with Headrace."""
    return sorted(path.stem for path in RUNS.glob("*.toml"))


def load(name_or_path: str, sets: Sequence[str] = ()) -> Run:
    """Returns the run of a TOML file, or a shipped run by name, changed by `section.key=value`
    settings."""
    path, tables = read(name_or_path)
    tables.setdefault("run", {}).setdefault("name", path.stem)
    return build(tables, sets, source=path.name)


def raw(name_or_path: str) -> tuple[Path, dict[str, Any]]:
    """Returns a run file and what stands in it, unchecked."""
    path = _locate(name_or_path)
    return path, _read(path)


def read(name_or_path: str) -> tuple[Path, dict[str, Any]]:
    """Returns a run file and what stands in it, every key checked, no default filled in."""
    path, tables = raw(name_or_path)
    _check_tables(tables, source=path.name)
    _name_as_registered(tables)
    return path, tables


def build(tables: dict[str, Any], sets: Sequence[str], *, source: str) -> Run:
    """Returns the run of what a run file holds, changed by `section.key=value` settings; what
    neither says has the default of the run's algorithm."""
    for setting in sets:
        _override(tables, setting)
    _name_as_registered(tables)
    _check_tables(tables, source=source)
    try:
        run = msgspec.convert(algorithm_defaults.filled(tables), Run)
        check(run)
    except (msgspec.ValidationError, ConfigError) as error:
        raise ConfigError(f"{source}: {error}") from None
    return run


def check_ranks(run: Run, ranks: int) -> None:
    """Raises ConfigError where a batch cannot be shared by so many learner ranks."""
    if run.pacing.batch_unrolls % ranks:
        raise ConfigError(
            f"pacing.batch_unrolls = {run.pacing.batch_unrolls} cannot be shared by {ranks}"
            f" ranks; make it a multiple of {ranks}"
        )
    if run.pacing.batch_unrolls // ranks < run.broker.shards:
        raise ConfigError(
            f"pacing.batch_unrolls = {run.pacing.batch_unrolls} is less than one for each of"
            f" {ranks} ranks and {run.broker.shards} brokers; raise it to"
            f" {ranks * run.broker.shards}"
        )


def effective(run: Run, *, head: str = _WHOLE, origins: Mapping[str, str] = _NOWHERE) -> str:
    """Returns the run as TOML: every key, its value, meaning and range, and where it comes from,
    for those in `origins`. It loads to an equal run."""
    return text(to_dict(run), head=head, origins=origins)


def text(tables: dict[str, Any], *, head: str, origins: Mapping[str, str] = _NOWHERE) -> str:
    """Returns sections as a run file, with the meaning and range of each key. `head`: the comment
    above them; `origins`: "section.key" -> where its value comes from."""
    blocks = [f"{head}\n"]
    for section in msgspec.structs.fields(Run):
        if held := tables.get(section.name):
            lines = [f"[{section.name}]", f"# {toml_text.comment(section.type.__doc__)}"]
            lines += [
                toml_text.line(name, held[name], key.type, origins.get(f"{section.name}.{name}"))
                for name, key in SECTIONS[section.name].items()
                if name in held
            ]
            blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def to_dict(run: Run) -> dict[str, Any]:
    """Returns builtins only, exactly as a peer decodes them: through msgpack, tuples become
    lists."""
    plain: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(run))
    return plain


def _locate(name_or_path: str) -> Path:
    """Returns the path of a run file: a name that ends in .toml is a path, any other a shipped
    run's."""
    if name_or_path in (path.stem for path in SEVERAL.glob("*.toml")):
        return SEVERAL / f"{name_or_path}.toml"
    listed = f"shipped runs: {', '.join(shipped())}"
    path = Path(name_or_path)
    if path.suffix == ".toml":
        with contextlib.suppress(OSError):  # a name that is too long
            if path.is_file():
                return path
        raise ConfigError(f"{name_or_path}: no such file; {listed}")
    if name_or_path not in shipped():
        raise ConfigError(f"{name_or_path} is no shipped run and no .toml file; {listed}")
    return RUNS / f"{name_or_path}.toml"


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        return tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        # The parser gives line and column everywhere but at the end of the file.
        end = f"at line {text.count(chr(10)) + 1}, the end of the file"
        sentence = str(error).replace("at end of document", end)
        raise ConfigError(f"{path.name}: {sentence}") from None


def _name_as_registered(tables: dict[str, Any]) -> None:
    """Replaces what an older run calls an environment of ours by its id."""
    env = tables.get("env")
    if isinstance(env, dict) and isinstance(env.get("id"), str):
        env["id"] = registered_id(env["id"])


def _override(tables: dict[str, Any], setting: str) -> None:
    """Writes `section.key=value` into the tables; `env.kwargs.x=1` reaches into a table there, and
    `stop.steps=none` removes a key that may be unset: TOML has no null."""
    source = f"--set {setting if len(setting) <= _MOST_SAID else f'{setting[:_MOST_SAID]}...'}"
    dotted, equals, text = setting.partition("=")
    *outer, last = (part.strip() for part in dotted.split("."))
    if not equals or not outer or not all((*outer, last)):
        raise ConfigError(f"{source}: write section.key=value, for example learner.lr=0.001")
    table: Any = tables
    for part in outer:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{source}: {'.'.join(outer)} is no table, it has no key {last}")
    key = SECTIONS.get(outer[0], {}).get(last) if len(outer) == 1 else None
    if key is not None and text.strip() == NOT_SET and toml_text.optional(key.type):
        table.pop(last, None)
        return
    table[last] = _parse(text)
    _check_tables({outer[0]: tables[outer[0]]}, source=source)


def _parse(text: str) -> Any:
    """Returns a TOML value; other text is taken as a string, so that a shell user need not quote
    twice."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text.strip()
    return parsed["value"] if len(parsed) == 1 else text


def _check_tables(tables: dict[str, Any], *, source: str) -> None:
    for name, table in tables.items():
        if name not in SECTIONS:
            raise ConfigError(f"{source}: {no_section(name, table)}")
        if not isinstance(table, dict):
            raise ConfigError(
                f"{source}: {name} is {toml_text.shown(table)}; it must be a section [{name}]"
            )
        for key, value in table.items():
            _check_value(name, key, value, source=source)


def _check_value(section: str, key: str, value: Any, *, source: str) -> None:
    place = f"{section}.{key}"
    if key not in SECTIONS[section]:
        raise ConfigError(f"{source}: {place} is no key of [{section}]; {_key_hint(section, key)}")
    kind = SECTIONS[section][key].type
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        allowed = toml_text.allowed(kind)
        raise ConfigError(
            f"{source}: {place} is {toml_text.shown(value)}; it must be {allowed}"
        ) from None
    if place in SCHEDULES and isinstance(value, str) and fault_of_schedule(place, value):
        allowed = f"{toml_text.allowed(kind)}, as module:function"
        allowed += ', or "auto"' if place in AUTO_SCHEDULES else ""
        raise ConfigError(f"{source}: {place} is {toml_text.shown(value)}; it must be {allowed}")
    if not toml_text.portable(value):
        raise ConfigError(
            f"{source}: {place} is {toml_text.shown(value)}; a run holds only text,"
            " 64-bit integers, finite numbers, true, false, lists and tables"
        )


def no_section(name: str, table: Any) -> str:
    """Returns what to say of a section that does not exist."""
    if name == "policies":
        return (
            "[policies] makes several runs of it, which headrace train starts together; name the"
            " run.toml of one of them, in its folder"
        )
    if isinstance(table, dict):
        return f"[{name}] is no section; {_hint(name, SECTIONS)}"
    homes = [f"{section}.{name}" for section, keys in SECTIONS.items() if name in keys]
    hint = f"did you mean {' or '.join(homes)}?" if homes else f"there are {', '.join(SECTIONS)}"
    return f"{name} stands outside every section; {hint}"


def _key_hint(section: str, key: str) -> str:
    """Returns a hint: the right key in the wrong section is the likelier slip, a misspelt one comes
    next."""
    homes = [f"{other}.{key}" for other, keys in SECTIONS.items() if key in keys]
    return f"did you mean {' or '.join(homes)}?" if homes else _hint(key, SECTIONS[section])


def _hint(name: str, known: Iterable[str]) -> str:
    names = list(known)
    nearest = difflib.get_close_matches(str(name), names, n=1)
    return f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(names)}"
