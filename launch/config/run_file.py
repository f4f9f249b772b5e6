"""A run: one TOML section, one typed struct; each struct lives beside the code that obeys it.

    runs/*.toml, --set  ->  load  ->  Run  ->  shared     what every peer must agree on
                                           ->  effective  TOML again, every default spelt out

Whatever the user got wrong is a ConfigError: one line that says where, what, and what is allowed.
"""

import contextlib
import difflib
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

from headrace.actors.config import ActorConfig, EnvConfig, EvaluateConfig
from headrace.actors.envs.toys.registered import registered_id
from headrace.broker.config import BrokerConfig, PacingConfig, SecurityConfig
from headrace.launch.config import toml_text
from headrace.learner.algorithms.schedule import schedule_fault
from headrace.learner.config import (
    AlgorithmConfig,
    CheckpointConfig,
    LearnerConfig,
    ModelConfig,
    UnrollConfig,
)

# --set stop.steps=none
NOT_SET = "none"
RUNS = Path(__file__).parents[1] / "runs"


class ConfigError(ValueError):
    """Says that the run is wrong; the message is one line, fit to be the last one a user reads."""

    def __init__(self, sentence: str) -> None:
        super().__init__(" ".join(sentence.split()))


class RunSection(Struct, frozen=True, forbid_unknown_fields=True):
    """Holds the run's name, and the seed of its randomness."""

    name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z",
            max_length=64,
            description="names the run's folder, and the run on the wire",
        ),
    ] = "run"
    seed: Annotated[
        int, Meta(ge=0, lt=2**31, description="networks, environments and actions start from it")
    ] = 1


class StopSection(Struct, frozen=True, forbid_unknown_fields=True):
    """Ends the run: by success, or by whichever limit comes first."""

    return_: Annotated[
        float | None,
        Meta(description="solved: mean return of the latest training episodes, 100 or more"),
    ] = field(default=None, name="return")
    steps: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="limit on agent steps trained on")
    ] = None
    seconds: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="limit on seconds at work, over all starts"),
    ] = None


class Run(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Holds the whole run. A process hands each of its parts only that part's own section."""

    run: RunSection = field(default_factory=RunSection)
    env: EnvConfig = field(default_factory=EnvConfig)
    unroll: UnrollConfig = field(default_factory=UnrollConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    pacing: PacingConfig = field(default_factory=PacingConfig)
    broker: BrokerConfig = field(default_factory=BrokerConfig)
    security: SecurityConfig = field(default_factory=SecurityConfig)
    actor: ActorConfig = field(default_factory=ActorConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    stop: StopSection = field(default_factory=StopSection)


# section -> key -> what msgspec knows of it
SECTIONS = {
    section.name: {key.encode_name: key for key in msgspec.structs.fields(section.type)}
    for section in msgspec.structs.fields(Run)
}
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


def read(name_or_path: str) -> tuple[Path, dict[str, Any]]:
    """Returns a run file and what stands in it, every key checked, no default filled in."""
    path = _locate(name_or_path)
    tables = _read(path)
    _check_tables(tables, source=path.name)
    _name_as_registered(tables)
    return path, tables


def build(tables: dict[str, Any], sets: Sequence[str], *, source: str) -> Run:
    """Returns the run of what a run file holds, changed by `section.key=value` settings."""
    for setting in sets:
        _override(tables, setting)
    _name_as_registered(tables)
    return _build(tables, source=source)


def check(run: Run) -> None:
    """Refuses what each section allows on its own but can never work together."""
    if run.pacing.max_lag_hard <= run.pacing.max_lag:
        raise ConfigError(
            f"pacing.max_lag_hard is {run.pacing.max_lag_hard}; it must be above pacing.max_lag,"
            f" {run.pacing.max_lag}, or ordinary unrolls would be settled as stale"
        )
    if run.broker.lease_s <= run.broker.beat_s:
        raise ConfigError(
            f"broker.lease_s is {run.broker.lease_s}; it must be above broker.beat_s,"
            f" {run.broker.beat_s}, or a healthy peer would be taken for dead between two beats"
        )
    schedules = {
        "learner.lr": run.learner.lr,
        "algorithm.entropy_coef": run.algorithm.entropy_coef,
        "algorithm.clip": run.algorithm.clip,
    }
    for place, held in schedules.items():
        if schedule_fault(held):
            raise ConfigError(f"{place}: {schedule_fault(held)}")
    if isinstance(run.learner.lr, tuple) and max(lr for _, lr in run.learner.lr) > 10:
        raise ConfigError("learner.lr: a number in its list is above 10; each must be <= 10")
    if run.algorithm.kl_target and not run.algorithm.kl_coef:
        raise ConfigError(
            "algorithm.kl_target adapts algorithm.kl_coef, which is 0; set it to 1.0 to begin with"
        )
    copied = run.algorithm.target_interval == 1 and run.algorithm.target_rate == 1
    if run.algorithm.name == "appo" and run.algorithm.kl_target and copied:
        raise ConfigError(
            "algorithm.kl_target: KL to a target network that was just copied is 0; raise"
            " algorithm.target_interval"
        )
    steps = run.unroll.length * run.unroll.envs * run.pacing.batch_unrolls
    columns = run.unroll.envs * run.pacing.batch_unrolls
    parts, unit = (columns, "columns") if run.model.memory else (steps, "steps")
    if run.algorithm.name == "ppo" and run.algorithm.minibatches > parts:
        raise ConfigError(
            f"algorithm.minibatches is {run.algorithm.minibatches}, a batch has {parts} {unit};"
            " lower it, or raise pacing.batch_unrolls"
        )


def effective(run: Run, *, head: str = _WHOLE) -> str:
    """Returns the run as TOML: every key, its value, meaning and range. It loads to an equal
    run."""
    return text(to_dict(run), head=head)


def text(tables: dict[str, Any], *, head: str) -> str:
    """Returns sections as a run file, with the meaning and range of each key. `head`: the comment
    above them."""
    blocks = [f"{head}\n"]
    for section in msgspec.structs.fields(Run):
        if held := tables.get(section.name):
            lines = [f"[{section.name}]", f"# {toml_text.comment(section.type.__doc__)}"]
            lines += [
                toml_text.line(name, held[name], key.type)
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
    source = f"--set {setting}"
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


def _build(tables: dict[str, Any], *, source: str) -> Run:
    _check_tables(tables, source=source)
    try:
        run = msgspec.convert(tables, Run)
        check(run)
    except (msgspec.ValidationError, ConfigError) as error:
        raise ConfigError(f"{source}: {error}") from None
    return run


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
    if not toml_text.portable(value):
        raise ConfigError(
            f"{source}: {place} is {toml_text.shown(value)}; a run holds only text,"
            " 64-bit integers, finite numbers, true, false, lists and tables"
        )


def no_section(name: str, table: Any) -> str:
    """Returns what to say of a section that does not exist."""
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
