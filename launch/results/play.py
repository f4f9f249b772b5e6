"""`headrace play`: episodes with a run's trained policy, their returns, and a video of them."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch

from headrace.actors import evaluator
from headrace.actors.config import EnvConfig, EvaluateConfig
from headrace.actors.envs.convert import EnvError
from headrace.launch.config import run_file, starts
from headrace.launch.process import runtime
from headrace.launch.results import confidence, loaded_run
from headrace.launch.results.video import Video, VideoError
from headrace.learner.models.named_code import OwnCodeError

# The sections that may be changed: the rest is part of what was trained.
_SETTABLE = ("env", "evaluate")
_LAST_SEED = 2**31 - 1


def play(
    run_dir: Path,
    *,
    which: str | None,
    episodes: int,
    greedy: bool,
    seed: int | None,
    video: Path | None,
    sets: Sequence[str],
    others: Sequence[evaluator.Seated] | None = None,
) -> int:
    """Plays episodes and prints their returns; returns the exit status. `others`: who plays the
    agents that the policy does not; None = as env.others says."""
    if episodes < 1:
        raise run_file.ConfigError(f"--episodes {episodes}: play at least one")
    if seed is not None and not 0 <= seed <= _LAST_SEED:
        raise run_file.ConfigError(f"--seed {seed}: it must be 0 to {_LAST_SEED}")
    found = loaded_run.load(run_dir, which)
    env, evaluate = _sections(run_dir, sets)
    # One thread: a single row at a time gives more threads nothing to do.
    torch.set_num_threads(1)
    first = evaluate.seed if seed is None else seed
    film = None if video is None else Video(video, env.id)
    how = msgspec.structs.replace(
        evaluate, episodes=episodes, envs=1 if film else evaluate.envs, seed=first, greedy=greedy
    )
    with film or contextlib.nullcontext():
        scores = _play(found, env, how, film, others)
    choice = "greedy" if greedy else "sampled"
    played = f"{choice}, seeds {first} to {first + episodes - 1}"
    print(result_text(found, scores, played, against=how.against))  # noqa: T201
    if video is not None:
        print(f"video       {video}")  # noqa: T201
    return runtime.OK


def _play(
    found: loaded_run.LoadedRun,
    env: EnvConfig,
    how: EvaluateConfig,
    film: Video | None,
    others: Sequence[evaluator.Seated] | None,
) -> evaluator.Scores:
    policy = loaded_run.policy_of(found, seed=how.seed)
    try:
        return evaluator.play(
            policy,
            env if film is None else _with_render_mode(env),
            found.spaces,
            how,
            against=loaded_run.opponent(how, found.spaces),
            others=loaded_run.seated_others(env, how) if others is None else others,
            watch=film.add_frame if film else None,
        )
    except OwnCodeError as error:  # of who is played against
        raise run_file.ConfigError(str(error)) from error
    except EnvError as error:
        if film is not None and "render_mode" in str(error):
            raise VideoError(f"{env.id} cannot be rendered: it takes no render_mode") from error
        raise


def result_text(
    found: loaded_run.LoadedRun, scores: evaluator.Scores, how: str, *, against: str = ""
) -> str:
    """Returns the lines that the user sees."""
    returns, lengths = confidence.interval_of(scores.returns), scores.lengths
    known = (
        "" if returns.low is None else f", 95 % interval {returns.low:.2f} to {returns.high:.2f}"
    )
    return "\n".join(
        (
            f"{found.run.run.name}  {found.run.env.id}, version {found.version}: {len(lengths)}"
            f" episodes, {how}",
            f"return      mean {returns.mean:.2f}{known}, min {min(scores.returns):.2f},"
            f" max {max(scores.returns):.2f}",
            *([_outcomes(scores, against)] if against else []),
            f"length      mean {sum(lengths) / len(lengths):.1f}, min {min(lengths)},"
            f" max {max(lengths)}",
            *(
                f"{name:11} mean {sum(lasts) / len(lasts):.4g}, min {min(lasts):.4g},"
                f" max {max(lasts):.4g}, {len(lasts)} episodes"
                for name, lasts in scores.metrics.items()
                if lasts
            ),
            f"checkpoint  {found.path}",
        )
    )


def _outcomes(scores: evaluator.Scores, against: str) -> str:
    won, drawn, lost = scores.outcomes
    return f"outcome     {won} won, {drawn} drawn, {lost} lost against {against}"


def _sections(run_dir: Path, sets: Sequence[str]) -> tuple[EnvConfig, EvaluateConfig]:
    for setting in sets:
        if setting.split(".")[0].strip() not in _SETTABLE:
            raise run_file.ConfigError(
                f"--set {setting}: to play, only {' and '.join(_SETTABLE)} may be changed; the rest"
                " is what was trained"
            )
    run = starts.load_kept(run_dir, sets)
    return run.env, run.evaluate


def _with_render_mode(env: EnvConfig) -> EnvConfig:
    return msgspec.structs.replace(env, kwargs={**env.kwargs, "render_mode": "rgb_array"})
