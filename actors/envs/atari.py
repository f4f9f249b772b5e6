"""Atari games with the customary preprocessing, in two ways that play the same.

An id that begins with "ALE/" gets it; behind a module, as in ale_py:ALE/Pong-v5, the game is raw.
The reference way is one Python environment; the native way is ALE's own vector class. Its rules
hold for both: a start presses FIRE where the game has it and waits 0 to noop_max - 1 frames, FIRE
among them; an action lasts frame_skip frames, the last two are joined by their maximum, made grey
and resized. With episodic_life a lost life ends the episode, and the next one goes on with the same
game: its first action, which counts for nothing, is FIRE, or NOOP where the game or fire_reset says
no to it. A game that is over, cut, or given a seed begins again.
Rewards are what the game gives, and one frame is one observation: clipping and stacking are the
learner's.
"""

import importlib
import threading
from typing import Any

import gymnasium
import msgspec
import numpy as np
from gymnasium.vector import VectorEnv, VectorObservationWrapper, VectorWrapper
from gymnasium.wrappers import AtariPreprocessing

from headrace.actors.config import EnvConfig
from headrace.actors.envs.convert import Env, EnvError

_DEFAULTS: dict[str, Any] = {
    "frame_skip": 4,
    "size": 84,
    "noop_max": 30,
    "episodic_life": False,
    "repeat_action_probability": 0.0,
    "full_action_space": False,
    "fire_reset": True,
    "max_frames": 108_000,
    "num_threads": 1,  # of the native way; the reference has none
}
_NOOP = 0  # the first action of every game
_LEAST = {"frame_skip": 1, "size": 1, "noop_max": 0, "max_frames": 1, "num_threads": 1}


def is_atari(config: EnvConfig) -> bool:
    return config.id.startswith("ALE/")


def make_reference(config: EnvConfig) -> Env:
    """Makes one game in gymnasium's wrappers."""
    _quiet_ale()
    importlib.import_module("cv2")
    options = _options(config)
    game: Env = gymnasium.make(
        config.id,
        obs_type="grayscale",
        frameskip=1,
        repeat_action_probability=options["repeat_action_probability"],
        full_action_space=options["full_action_space"],
        max_num_frames_per_episode=0,  # ALE's count includes the start; Episodes has its own
        disable_env_checker=True,
    ).unwrapped
    frames = AtariPreprocessing(
        Episodes(game, options),
        noop_max=0,  # Episodes does it
        frame_skip=options["frame_skip"],
        screen_size=options["size"],
    )
    return Lives(frames, options) if options["episodic_life"] else frames


# What is written into the base class must be taken out again before another thread looks.
_making = threading.Lock()


def make_native(config: EnvConfig, envs: int) -> VectorEnv[Any, Any, Any]:
    """Makes ALE's vector class, `envs` wide."""
    _quiet_ale()
    options = _options(config)
    with _making:
        return _native(config, envs, options)


def _native(config: EnvConfig, envs: int, options: dict[str, Any]) -> VectorEnv[Any, Any, Any]:
    vector = gymnasium.make_vec(
        config.id,
        envs,
        vectorization_mode="vector_entry_point",
        img_height=options["size"],
        img_width=options["size"],
        stack_num=1,
        frameskip=options["frame_skip"],
        noop_max=options["noop_max"],
        life_loss_info=options["episodic_life"],  # its episodic_life begins a new game
        reward_clipping=False,
        use_fire_reset=options["fire_reset"],
        max_num_frames_per_episode=options["max_frames"],
        repeat_action_probability=options["repeat_action_probability"],
        full_action_space=options["full_action_space"],
        num_threads=options["num_threads"],
    )
    # ALE writes its way to reset into gymnasium's base class: other classes would seem to share it.
    vector.metadata = dict(vector.metadata)
    VectorEnv.metadata.pop("autoreset_mode", None)
    frames = OneFrame(vector)
    if not options["episodic_life"]:
        return frames
    actions = getattr(vector.unwrapped, "ale").get_action_set()  # noqa: B009
    return ManyLives(frames, _next_life([action.name == "FIRE" for action in actions], options))


class Episodes(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Begins and ends episodes as the native class does, frame by frame; gymnasium's wrappers wait
    differently, and do not press FIRE."""

    def __init__(self, env: Env, options: dict[str, Any]) -> None:
        super().__init__(env)
        self._options = options
        meanings = getattr(env, "get_action_meanings")()  # noqa: B009
        self._noop = meanings.index("NOOP")
        self._fire = meanings.index("FIRE") if "FIRE" in meanings else None
        self._frames = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        most = self._options["noop_max"]
        wait = int(self.np_random.integers(most)) if most else 0
        if self._options["fire_reset"] and self._fire is not None:
            observation, *_, info = self.env.step(self._fire)
            wait -= 1
        for _ in range(wait):
            observation, _, over, _, info = self.env.step(self._noop)
            if over:
                observation, info = self.env.reset()
        self._frames = 0
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, _, info = self.env.step(action)
        self._frames += 1
        truncated = self._frames >= self._options["max_frames"] and not terminated
        return observation, reward, terminated, truncated, info


class Lives(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Ends the episode at a lost life, and lets reset go on with the game. gymnasium's wrapper
    begins a new game."""

    def __init__(self, env: Env, options: dict[str, Any]) -> None:
        super().__init__(env)
        # Env declares neither.
        self._ale: Any = getattr(env.unwrapped, "ale")  # noqa: B009
        meanings = getattr(env.unwrapped, "get_action_meanings")()  # noqa: B009
        self._begin = _next_life([meaning == "FIRE" for meaning in meanings], options)
        self._lives = 0  # before the next step
        self._goes_on = False  # the episode ended, the game did not

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if self._goes_on and seed is None:
            observation, _, ended, cut, info = self.step(self._begin)
            if not ended and not cut:
                return observation, info
        observation, info = self.env.reset(seed=seed, options=options)
        self._lives, self._goes_on = self._ale.lives(), False
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, over, cut, info = self.env.step(action)
        before, self._lives = self._lives, self._ale.lives()
        # Some games go on at a count of 0: it is they who say when it is over.
        lost = 0 < self._lives < before
        self._goes_on = lost and not over and not cut
        return observation, reward, over or lost, cut, info


class ManyLives(VectorWrapper):
    """Does what Lives does for the native class, which ends an episode and plays on: the step that
    only resets is the next life's first."""

    def __init__(self, env: VectorEnv[Any, Any, Any], begin: int) -> None:
        super().__init__(env)
        self._begin = begin
        self._ended = np.zeros(env.num_envs, np.bool_)  # at the step before

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self._ended[:] = False
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        first = self._ended
        # Where the game is over the native class begins a new one, whatever the action.
        actions = np.where(first, self._begin, actions)
        observations, rewards, ended, cut, info = self.env.step(actions)
        at_once = first & (ended | cut)
        if at_once.any():
            fresh, _ = self.env.reset(options={"reset_mask": at_once})
            observations[at_once] = fresh[at_once]
        self._ended = (ended | cut) & ~first
        return observations, np.where(first, 0, rewards), ended & ~first, cut & ~first, info


class OneFrame(VectorObservationWrapper[Any, Any, Any, Any]):
    """Removes the axis for a stack of one from the observations."""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        stacked: Any = env.single_observation_space
        self.single_observation_space = gymnasium.spaces.Box(0, 255, stacked.shape[1:], np.uint8)
        self.observation_space = gymnasium.vector.utils.batch_space(
            self.single_observation_space, env.num_envs
        )

    def observations(self, observations: Any) -> Any:
        return observations[:, 0]


def whole_games(config: EnvConfig) -> EnvConfig:
    """Returns the configuration without an end at each life: a policy is scored by whole games."""
    if not is_atari(config):
        return config
    kwargs = {name: value for name, value in config.kwargs.items() if name != "episodic_life"}
    return msgspec.structs.replace(config, kwargs=kwargs)


def _next_life(fires: list[bool], options: dict[str, Any]) -> int:
    """Returns the first action of a next life: FIRE, where the game has it and it is wanted."""
    return fires.index(True) if options["fire_reset"] and True in fires else _NOOP


def _quiet_ale() -> None:
    """Imports ale_py, which registers its games, without a banner from every process."""
    ale_py = importlib.import_module("ale_py")
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)


def _options(config: EnvConfig) -> dict[str, Any]:
    unknown = sorted(config.kwargs.keys() - _DEFAULTS.keys())
    if unknown:
        raise EnvError(
            f"{config.id}: env.kwargs has no {', '.join(unknown)}; it has {', '.join(_DEFAULTS)}"
        )
    options = _DEFAULTS | config.kwargs
    for name, least in _LEAST.items():
        value = options[name]
        if type(value) is not int or value < least:
            raise EnvError(f"{config.id}: set env.kwargs.{name} to a whole number from {least} up")
    return options
