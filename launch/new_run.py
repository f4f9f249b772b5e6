"""`headrace new`: a run file to begin with, from an environment's id."""

import contextlib
import re
from pathlib import Path
from typing import Any

from headrace.actors.config import EnvConfig
from headrace.actors.envs.make import make_env, probe
from headrace.broker import durable
from headrace.launch.config import run_file, toml_text
from headrace.launch.process import runtime
from headrace.learner.spaces import Spaces

_TEXT = """\
# headrace train {file}
#
# {id}: {spaces}.{limit}
# What is not set here follows from algorithm.name: headrace config {file}

[run]
name = {name}

[env]
id = {quoted}
# kwargs = {{ key = "value" }}           # what the environment's maker takes
# wrappers = [{{ id = "module:factory" }}]  # yours, from the inside out

[algorithm]
name = "{algorithm}"{pad}# ppo: the safest; appo, impala: samplers do not wait
# gamma = 0.99                         # nearer to 1 where rewards are far away

# [model]
# core = "lstm"                        # where one observation does not tell enough
# hidden = [256, 256]                  # layers for observations of numbers

[stop]
{goal}
steps = 1_000_000
"""


def new(env_id: str, out: Path | None, *, algorithm: str) -> int:
    """Writes a run file that trains this environment; ConfigError where it cannot be made, or the
    file is there."""
    config = EnvConfig(id=env_id)
    spaces = probe(config)
    name = _name(env_id)
    path = out or Path(f"{name}.toml")
    if path.exists():
        raise run_file.ConfigError(f"{path} is there already; choose another with --out")
    text = _text(config, spaces, file=path.name, name=name, algorithm=algorithm)
    try:
        durable.write(path, text)
    except OSError as error:
        raise run_file.ConfigError(f"{path} cannot be written: {error.strerror}") from error
    run_file.load(str(path))
    print(f"{path}: {spaces}; headrace train {path}")  # noqa: T201
    return runtime.OK


def _text(config: EnvConfig, spaces: Spaces, *, file: str, name: str, algorithm: str) -> str:
    spec = _spec(config)
    limit, threshold = (
        getattr(spec, what, None) for what in ("max_episode_steps", "reward_threshold")
    )
    goal = f"return = {float(threshold)}" if threshold is not None else "# return = 100.0"
    why = "the environment's own" if threshold is not None else "none is known of this environment"
    return _TEXT.format(
        file=file,
        id=config.id,
        spaces=spaces,
        limit=f" At most {limit} steps an episode." if limit else "",
        name=toml_text.value(name),
        quoted=toml_text.value(config.id),
        algorithm=algorithm,
        pad=" " * (30 - len(algorithm)),
        goal=f"{goal:<39}# {why}",
    )


def _spec(config: EnvConfig) -> Any:
    """Returns what the environment is registered with; None = nothing."""
    with contextlib.closing(make_env(config)) as env:
        return env.spec


def _name(env_id: str) -> str:
    """Makes a run's name of an id: headrace/Catch-v0 -> catch."""
    last = re.split(r"[/:]", env_id)[-1]
    name = re.sub(r"[^a-z0-9]+", "-", re.sub(r"-v\d+$", "", last).lower()).strip("-")
    return name or "run"
