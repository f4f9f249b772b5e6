"""`headrace new`: a run file to begin with, from an environment's id."""

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.actors.config import EnvConfig
from headrace.actors.envs.atari import is_atari
from headrace.actors.envs.make import look_at, make_any
from headrace.actors.envs.registering import package_of
from headrace.broker import durable
from headrace.launch.config import algorithm_defaults, run_file, toml_text
from headrace.launch.config.algorithm_defaults import Tables
from headrace.launch.process import runtime
from headrace.launch.writing import writing
from headrace.learner.config import ModelConfig
from headrace.learner.models import build
from headrace.learner.spaces import Spaces

_HEAD = """\
# headrace train {file}
#
# {id}: {spaces}.{limit}
# {origin}What is not set here follows from algorithm.name: headrace config {file}
"""
# Keys to try first, by section; written as comments.
_TRY: Final = {
    "env": {
        "kwargs": '{ key = "value" }           # what the environment\'s maker takes',
        "wrappers": '[{ id = "module:factory" }]  # yours, from the inside out',
    },
    "algorithm": {"gamma": "0.99                         # nearer to 1 where rewards are far away"},
    "model": {
        "core": '"lstm"                        # where one observation does not tell enough',
        "hidden": "[256, 256]                  # layers for observations of numbers",
    },
    "evaluate": {"against": '"random"                   # who plays the other agents meanwhile'},
}
_ABOUT: Final = {
    "algorithm.name": "ppo: the safest; appo, impala: samplers do not wait",
    "env.mask": "the part of the observation that says which choices are allowed",
    "unroll.envs": "columns: one for each environment, or each agent",
}
_FACTORIES: Final = ("env", "raw_env", "parallel_env", "make", "make_env")
# The shipped runs with whose settings another game of Atari, or another small grid, begins.
_ATARI: Final = {"ppo": "pong-ppo", "impala": "pong"}
_GRID: Final = {"ppo": "minatar"}


def new(env_id: str, out: Path | None, *, algorithm: str) -> int:
    """Writes a run file that trains this environment; ConfigError where it cannot be made, or the
    file is there."""
    package = package_of(env_id)
    config = EnvConfig(id=f"{package}:{env_id}" if package else env_id)
    spaces, agents, _ = look_at(config)
    mask = _mask(spaces)
    if mask:
        spaces = look_at(msgspec.structs.replace(config, mask=mask)).spaces
    name = _name(env_id)
    path = out or Path(f"{name}.toml")
    if path.exists():
        raise run_file.ConfigError(f"{path} is there already; choose another with --out")
    shipped = None if agents else _shipped(config, spaces, algorithm)
    preset = _preset(config, shipped) or _of_agents(agents, algorithm)
    if mask:
        preset["env"] = {**preset.get("env", {}), "mask": mask}
    text = _text(config, spaces, preset, shipped, file=path.name, name=name, algorithm=algorithm)
    with writing(path):
        durable.write(path, text)
    run_file.load(str(path))
    print(f"{path}: {spaces}; headrace train {path}")  # noqa: T201
    return runtime.OK


def _shipped(config: EnvConfig, spaces: Spaces, algorithm: str) -> str | None:
    """Returns the shipped run that is tuned for what is seen, by this algorithm; None = none is."""
    if is_atari(config):
        return _ATARI.get(algorithm)
    grid = build.chosen_kind(ModelConfig(), spaces) == "grid"
    return _GRID.get(algorithm) if grid else None


def _text(
    config: EnvConfig,
    spaces: Spaces,
    preset: Tables,
    shipped: str | None,
    *,
    file: str,
    name: str,
    algorithm: str,
) -> str:
    spec = _spec(config)
    limit, threshold = (
        getattr(spec, what, None) for what in ("max_episode_steps", "reward_threshold")
    )
    head = _HEAD.format(
        file=file,
        origin=f"Its settings are those of the shipped run {shipped}. " if shipped else "",
        id=config.id,
        spaces=spaces,
        limit=f" At most {limit} steps an episode." if limit else "",
    )
    steps = 10_000_000 if is_atari(config) else 1_000_000
    tables: Tables = {
        "run": {"name": name},
        "env": {"id": config.id, **preset.pop("env", {})},
        "algorithm": {"name": algorithm, **preset.pop("algorithm", {})},
        "model": {},
        **preset,
    }
    goal = f"return = {float(threshold)}" if threshold is not None else "# return = 100.0"
    why = "the environment's own" if threshold is not None else "none is known of this environment"
    stop = f"[stop]\n{goal:<39}# {why}\nsteps = {steps:_}\n"
    return "\n".join((head, *(_section(name, held) for name, held in tables.items()), stop))


def _preset(config: EnvConfig, shipped: str | None) -> Tables:
    """Returns what is set beside the environment and the algorithm, by section: what the shipped
    run has, or of a game of Atari what holds for every algorithm."""
    if not (shipped or is_atari(config)):
        return {}
    _, tables = run_file.read(shipped or "pong")
    kept = {name: held for name, held in tables.items() if name not in ("run", "stop")}
    kept["env"] = {key: held for key, held in kept["env"].items() if key != "id"}
    kept["algorithm"] = {key: held for key, held in kept["algorithm"].items() if key != "name"}
    if shipped:
        return kept
    return {"env": kept["env"], "algorithm": {"reward_clip": kept["algorithm"]["reward_clip"]}}


def _of_agents(agents: int, algorithm: str) -> Tables:
    """Returns what several agents need: whole environments in an unroll, as many as the algorithm's
    own columns take."""
    if not agents:
        return {}
    wanted = algorithm_defaults.DEFAULTS[algorithm]["unroll.envs"]
    assert isinstance(wanted, int)
    return {"unroll": {"envs": -(-wanted // agents) * agents}, "evaluate": {}}


def _mask(spaces: Spaces) -> str:
    """Returns the part of the observation that by its name and size says what is allowed; "" =
    none."""
    choices = sum(spaces.action.categories)
    return next(
        (
            leaf.name
            for leaf in spaces.observation
            if "mask" in leaf.name and choices and leaf.shape == (choices,)
        ),
        "",
    )


def _section(name: str, held: Mapping[str, Any]) -> str:
    """Renders a section; the keys to try are comments, as it is itself where it has no others."""
    lines = [f"[{name}]" if held else f"# [{name}]"]
    for key, value in held.items():
        told = f"{key} = {toml_text.value(value)}"
        about = _ABOUT.get(f"{name}.{key}")
        lines.append(f"{told:<39}# {about}" if about else told)
    hints = _TRY.get(name, {})
    lines += [f"# {key} = {hint}" for key, hint in hints.items() if key not in held]
    return "\n".join(lines) + "\n"


def _spec(config: EnvConfig) -> Any:
    """Returns what the environment is registered with; None = nothing."""
    with contextlib.closing(make_any(config)) as env:
        return getattr(env, "spec", None)


def _name(env_id: str) -> str:
    """Makes a run's name of an id: headrace/Catch-v0 -> catch, and of a module where its factory
    has a name that they all have."""
    module, _, last = env_id.rpartition(":")
    last = module.rpartition(".")[2] if last in _FACTORIES else last.rpartition("/")[2]
    name = re.sub(r"[^a-z0-9]+", "-", re.sub(r"[-_]v\d+$", "", last).lower()).strip("-")
    return name or "run"
