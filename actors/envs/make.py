"""Makes environments from the run's configuration."""

import importlib
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from typing import Any, NamedTuple

import gymnasium
from gymnasium.envs import registration
from gymnasium.vector import AutoresetMode, VectorEnv

from headrace.actors.config import EnvConfig
from headrace.actors.envs import added_parts, atari, envpool, mujoco_warnings
from headrace.actors.envs.agents.kinds import AnyEnv, agents_in, has_agents, takes_turns
from headrace.actors.envs.agents.parallel import ParallelEnv, spaces_of_agents
from headrace.actors.envs.agents.turns import TurnsEnv
from headrace.actors.envs.convert import Env, EnvError, as_data, spaces_of
from headrace.actors.envs.envpool import EnvPoolAdapter
from headrace.actors.envs.observation_spaces import texts_of
from headrace.actors.envs.settings import EnvSettings
from headrace.actors.envs.toys import registered
from headrace.actors.envs.where import Where, told
from headrace.broker.errors import UserError, install_extra
from headrace.learner.models import named_code
from headrace.learner.spaces import Spaces

log = logging.getLogger(__name__)

_NOWHERE = Where()
# Packages that only some environments need, and the extra that brings them.
_EXTRAS = {
    "ale_py": ("ale-py", "atari"),
    "cv2": ("opencv", "atari"),
    "envpool": ("envpool", "envpool"),
    "mujoco": ("mujoco", "mujoco"),
}


def make_env(config: EnvConfig, where: Where = _NOWHERE) -> Env:
    """Makes one environment of one agent, by gymnasium id or module:factory, in its wrappers."""
    env = make_any(config, where)
    if isinstance(env, gymnasium.Env):
        return env
    env.close()
    raise EnvError(f"env.id = {config.id!r} has {len(env.possible_agents)} agents; one is needed")


def make_agents(config: EnvConfig, where: Where = _NOWHERE) -> ParallelEnv | TurnsEnv:
    """Makes one environment of several agents, by module:factory, in its wrappers."""
    env = make_any(config, where)
    if not isinstance(env, gymnasium.Env):
        return env
    env.close()
    raise EnvError(f"env.id = {config.id!r} has one agent this time")


def make_any(config: EnvConfig, where: Where = _NOWHERE) -> AnyEnv:
    """Makes one environment, of one agent or several, in its wrappers."""
    config = told(config, where)
    if envpool.is_envpool(config):
        raise EnvError(
            f'env.id = {config.id!r}: EnvPool steps many at once; set actor.stepping = "auto"'
        )
    with _blamed(f"env.id = {config.id!r}"):
        env = _made(config)
    _check_kind(env, f"env.id = {config.id!r}")
    try:
        for place, table in enumerate(config.wrappers):
            env = _wrapped(env, dict(table), f"env.wrappers[{place}]")
        if config.mask and isinstance(env, gymnasium.Env):
            env = added_parts.with_mask(env, config)
        if config.population:
            env = added_parts.with_policy(env, config, where.seed)
        settings = EnvSettings(config)
        settings.put(env, settings.initial)
    except UserError:
        env.close()
        raise
    made: AnyEnv = env
    return made


def make_vector(config: EnvConfig, envs: int, where: Where = _NOWHERE) -> VectorEnv[Any, Any, Any]:
    """Makes the environment's own vector class, `envs` wide; `where`: its first column."""
    config = told(config, where)
    _unwrapped(config, "A vector class")
    if envpool.is_envpool(config):
        raise EnvError(
            f'env.id = {config.id!r}: EnvPool is no vector class; set actor.stepping = "auto"'
        )
    if atari.is_atari(config):
        with _blamed(f"env.id = {config.id!r}"):
            return atari.make_native(config, envs)
    try:
        with _quiet():
            vector = gymnasium.make_vec(
                config.id, envs, vectorization_mode="vector_entry_point", **config.kwargs
            )
    except Exception as error:
        raise EnvError(
            f"{config.id} has no vector class that can be made ({_first_line(error)});"
            ' set actor.stepping = "inline"'
        ) from error
    mode = vector.metadata.get("autoreset_mode")
    if mode is not AutoresetMode.NEXT_STEP:
        vector.close()
        raise EnvError(
            f"the vector class of {config.id} resets by {mode}; only NEXT_STEP keeps the last"
            ' observation of an episode. Set actor.stepping = "inline"'
        )
    return vector


def make_pool(config: EnvConfig, envs: int, batch: int, seed: int | None = None) -> EnvPoolAdapter:
    """Makes EnvPool's own pool of `envs`, of which `batch` come back at once; without a seed it
    plays differently every time."""
    _unwrapped(config, "EnvPool")
    if not envpool.is_envpool(config):
        raise EnvError(f"env.id = {config.id!r} is not EnvPool's; those begin with envpool:")
    with _blamed(f"env.id = {config.id!r}"):
        return envpool.make(config, envs, batch, seed)


def probe(config: EnvConfig) -> Spaces:
    """Returns the spaces of the environment that the run names; logs what the network will not
    see."""
    return look_at(config).spaces


class Look(NamedTuple):
    """Holds what an environment tells when it is made."""

    spaces: Spaces
    agents: int = 0  # that may ever play; 0 = it is one of gymnasium's, or a pool
    turns: bool = False  # they act one after another


def look_at(config: EnvConfig) -> Look:
    """Makes the environment once, to see what it is."""
    if envpool.is_envpool(config):
        with _blamed(f"env.id = {config.id!r}"):
            observation, action = envpool.spaces(config)
        return Look(as_data(observation, action, config))
    # Needs one package less.
    native = atari.is_atari(config) and not config.single
    env = make_vector(config, 1) if native else make_any(config)
    try:
        texts = [*texts_of(env.observation_space)] if isinstance(env, gymnasium.Env) else []
        if texts:
            log.warning(
                "%s: the network does not see %s, which is text; a wrapper can make numbers of it"
                " (env.wrappers)",
                config.id,
                ", ".join(texts),
            )
        return Look(spaces_of_any(env, config), agents_in(env), takes_turns(env))
    finally:
        env.close()


def spaces_of_any(env: Any, config: EnvConfig) -> Spaces:
    """Returns the spaces of an environment, of each of a vector's, or of each of its agents."""
    if has_agents(env):
        return as_data(*spaces_of_agents(env, config.id, config.agents), config)
    return spaces_of(env, config)


def _made(config: EnvConfig) -> Any:
    """Makes the environment without its wrappers. A gymnasium id may name a module to import first,
    as in ale_py:ALE/Pong-v5; what follows there is not a Python identifier."""
    if config.id.partition(":")[2].isidentifier():
        factory = _attribute(config.id)
        mujoco_warnings.log_once()
        return factory(**config.kwargs)
    if atari.is_atari(config):
        return atari.make_reference(config)
    if config.id.startswith("headrace/"):
        registered.register()
    _import_module(config.id)
    mujoco_warnings.log_once()
    return gymnasium.make(config.id, disable_env_checker=True, **config.kwargs)


def _import_module(name: str) -> None:
    """Imports what gymnasium would import for this id, so that a failed import names its module;
    what is wrong with the id gymnasium says itself."""
    module, colon, name = name.rpartition(":")
    if colon:
        importlib.import_module(module)
    _register_namespace(name)
    with suppress(gymnasium.error.Error):
        spec = registration.registry.get(name)
        if spec is None:  # without its version
            namespace, short, _ = registration.parse_env_id(name)
            newest = registration.find_highest_version(namespace, short)
            spec = registration.registry.get(registration.get_env_id(namespace, short, newest))
        if spec is not None and isinstance(spec.entry_point, str):
            importlib.import_module(spec.entry_point.partition(":")[0])


def _register_namespace(name: str) -> None:
    """Lets the installed package that declares a namespace, as in MinAtar/Breakout-v1, register its
    ids; gymnasium 1 no longer does."""
    namespace, slash, _ = name.rpartition("/")
    if slash and all(spec.namespace != namespace for spec in registration.registry.values()):
        for declared in metadata.entry_points(group="gymnasium.envs", name=namespace):
            declared.load()()


def _check_kind(env: object, where: str) -> None:
    if not isinstance(env, gymnasium.Env) and not has_agents(env):
        raise EnvError(f"{where} made a {type(env).__name__}, which is no gymnasium.Env")


def _wrapped(env: Any, keywords: dict[str, Any], where: str) -> Any:
    name = keywords.pop("id", None)
    if not isinstance(name, str):
        raise EnvError(f"{where} has no id; set it to module:factory")
    with _blamed(f"{where}.id = {name!r}", f"the other keys of {where}"):
        wrapped = _attribute(name)(env, **keywords)
    _check_kind(wrapped, f"{where}.id = {name!r}")
    return wrapped


def _unwrapped(config: EnvConfig, who: str) -> None:
    for key in ("wrappers", "settings", "population"):
        if getattr(config, key):
            raise EnvError(
                f"{who} takes no env.{key}, which is put around single environments;"
                ' set actor.stepping = "inline", "threads" or "processes"'
            )


def _attribute(name: str) -> Callable[..., Any]:
    found = named_code.imported(name)
    if not callable(found):
        raise TypeError(f"{name} is not callable")
    return found  # type: ignore[no-any-return]


@contextmanager
def _blamed(where: str, keywords: str = "env.kwargs") -> Iterator[None]:
    """Turns every error of code that is not ours into an EnvError of one line."""
    try:
        with _quiet():
            yield
    except EnvError:
        raise
    except Exception as error:
        for extra in _missing(error):
            raise EnvError(f"{where}: {extra}") from error
        kind = "" if isinstance(error, gymnasium.error.Error) else f"{type(error).__name__}: "
        line = _first_line(error)
        if isinstance(error, TypeError) and "argument" in line:
            line += f"; correct {keywords}"
        raise EnvError(f"{where} cannot be made: {kind}{line}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences gymnasium's warnings that a user can do nothing about: Box rounds its bounds, and a
    vector class says nothing of its resets, which make_vector refuses in its own words."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(precision lowered by casting|AutoresetMode)")
        yield


def _missing(error: BaseException | None) -> Iterator[str]:
    """Yields how to install a missing package; gymnasium raises its own error from the one that
    names it."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name in _EXTRAS:
            package, extra = _EXTRAS[error.name]
            yield f"install {package}: {install_extra(extra)}"
        error = error.__cause__


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
