"""Headrace from Python: `headrace.train("cartpole", stop_return=475)`.

Runs are trained in processes of their own, as on the command line; this module starts them, waits,
and returns the run's summary. `load_policy` then acts with what was learnt.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from headrace.actors.acting.trained_policy import TrainedPolicy
from headrace.launch.config import run_file, toml_text
from headrace.launch.config.run_file import SECTIONS, ConfigError, Run, no_section
from headrace.launch.config.starts import run_folder
from headrace.launch.local.given_objects import GivenObjects
from headrace.launch.process import last_errors, runtime
from headrace.launch.process.folder_lock import in_use
from headrace.launch.sinks.callbacks import Callbacks, StopRun
from headrace.launch.sinks.caller import Caller

__all__ = [
    "Callbacks",
    "Config",
    "ConfigError",
    "Run",
    "StopRun",
    "TrainedPolicy",
    "load_policy",
    "train",
]

# Ends with its parent, which may be killed as a notebook's kernel is.
_PROGRAM = """
import sys
from headrace.launch import cli
from headrace.launch.process import runtime
runtime.die_with_parent(int(sys.argv.pop(1)))
sys.exit(cli.main())
"""
_STAMP = re.compile(r"^\d\d:\d\d:\d\d \S+ [A-Z]+ ")  # time, process and level of a log line
# A run that was asked to stop writes a checkpoint; a second interrupt does not wait for it.
_STOPS_WITHIN_S = 60.0
_EPISODES = 20  # for each line of the history, where on_episode hears of them
_LOOK_EVERY_S = 0.2  # for callbacks


def Config(run: str, sets: Sequence[str] = ()) -> Run:  # noqa: N802  # the noun it returns
    """Loads a run from a TOML file, or a shipped run by name, changed by `section.key=value`
    settings."""
    with _in_callers_words({setting: setting for setting in sets}):
        return run_file.load(run, sets)


def train(
    run: str = "cartpole",
    /,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    quiet: bool = True,
    evaluate: bool | dict[str, Any] | None = None,
    record: bool = False,
    callbacks: Callbacks | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Trains a run on this machine and returns its summary; `folder` in it is the run's folder.

    Settings name a section and its keys, `learner={"lr": 1e-3}`, or a stop criterion,
    `stop_return=475`; None = not set. Keys that name code take the class or function itself. Wrong
    settings raise ConfigError with the reason, before anything starts or from the run's first
    process. `evaluate` says whether an evaluator plays beside it, as it does by default; a dict
    gives its section, too. `record` keeps every batch, for `headrace replay`. `callbacks` are told
    in this process what happens; what one raises ends the run, and is raised again, save StopRun,
    which only ends it. An interrupt ends the run as Ctrl-C does on the command line, with a
    checkpoint, and is raised again.
    """
    if isinstance(evaluate, dict):
        settings["evaluate"], evaluate = evaluate, True
    if isinstance(settings.get("run"), str):  # train(run="pong"), not the section
        run = settings.pop("run")
    given = GivenObjects()
    hears = callbacks is not None and type(callbacks).on_episode is not Callbacks.on_episode
    if hears and isinstance(own := settings.get("log", {}), dict):
        settings["log"] = {"episodes": _EPISODES, **own}
    typed = _settings(given.named(settings))
    with _in_callers_words(typed):
        loaded = run_file.load(run, list(typed))
    if own := given.registered(loaded.env.id):
        typed |= _settings({"env": {"id": own}})
    name = loaded.run.name
    taken = partial(in_use, who="train")
    folder = (
        Path(out) if out else run_folder(Path("headrace-runs"), name, newest=resume, taken=taken)
    )
    command = ["train", run, "--out", str(folder)]
    command += [word for setting in typed for word in ("--set", setting)]
    command += ["--resume"] * resume + ["--quiet"] * quiet
    command += ["--record"] * record
    if evaluate is not None:
        command.append("--evaluate" if evaluate else "--no-evaluate")
    caller = None if callbacks is None else Caller(callbacks, folder, goes_on=resume)
    try:
        status, said = _run(
            command, given, caller, shown=not quiet and sys.stderr is sys.__stderr__
        )
    except ConfigError:
        raise
    except BaseException as interrupt:  # Ctrl-C, or what a callback raised
        interrupt.add_note(
            f"the run in {folder} was stopped; train(..., out={str(folder)!r}, resume=True)"
            " continues it"
        )
        raise
    with _in_callers_words(typed):
        if status == runtime.YOUR_INPUT:
            raise ConfigError(said or "headrace train refused the run; its lines say why")
    if status not in (runtime.OK, runtime.LIMIT):
        raise RuntimeError(f"headrace train ended with status {status}: {said or 'see its lines'}")
    try:
        summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    except (OSError, json.JSONDecodeError) as error:  # a full disk: its output has said so
        raise RuntimeError(f"the run has ended, but {folder} holds no summary: {error}") from error
    if caller is not None:
        caller.end(summary)
    return {**summary, "folder": str(folder)}


def load_policy(
    path: str | Path,
    which: str | int | None = None,
    *,
    seed: int | None = None,
    policy: int | None = None,
) -> TrainedPolicy:
    """Loads what a run has learnt: `policy.act(obs) -> (action, state)`.

    path: the run's folder. which: "best", "newest", a version, or None = the best where there is
    one. seed: of actions that are drawn, act(..., greedy=False); None = different every time.
    policy: of a population, which of it.
    Raises ConfigError, which is a ValueError, when nothing can be loaded.
    """
    from headrace.launch.results import loaded_run

    with _in_callers_words({}):
        found = loaded_run.load(Path(path), None if which is None else str(which))
        found = loaded_run.one_policy(found, policy)
    dice = runtime.incarnation() if seed is None else seed
    return TrainedPolicy(loaded_run.policy_of(found, seed=dice), found.spaces)


def _run(
    command: list[str], given: GivenObjects, caller: Caller | None, *, shown: bool
) -> tuple[int, str]:
    """Runs a `headrace` command; returns its exit status, and its error or its last output line.

    Shown: it writes to the terminal itself. Else its lines go to Python's sys.stderr, which in a
    notebook is not a file that a process could inherit.
    """
    reasons = tempfile.TemporaryDirectory(prefix="headrace-", ignore_cleanup_errors=True)
    with reasons as kept, given.written() as given_environment:
        # Modules that we can import, such as an environment beside the script, it can import too.
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            last_errors.VARIABLE: kept,
            **given_environment,
        }
        child = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(os.getpid()), *command],
            env=environment,
            stdin=subprocess.DEVNULL,  # ours may hold the script that is running
            stdout=None if shown else subprocess.PIPE,
            stderr=None if shown else subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        lines: list[str] = []
        reader = threading.Thread(target=_pass_on, args=(child, lines), daemon=True)
        if not shown:
            reader.start()
        try:
            _wait(child, caller)
        except BaseException:
            _stop(child)
            raise
        finally:
            if not shown:
                # Processes that outlive it and hold the pipe are not waited for.
                reader.join(timeout=1.0)
        said = _STAMP.sub("", lines[-1]) if lines else ""
        return child.returncode, last_errors.reason(Path(kept)) or said


def _wait(child: "subprocess.Popen[str]", caller: Caller | None) -> None:
    """Waits for its end; meanwhile callbacks are told what happens, and may end the run."""
    while caller is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_LOOK_EVERY_S)
            break
        try:
            caller.look()
        except StopRun:
            child.terminate()
            break
    child.wait()


def _pass_on(child: "subprocess.Popen[str]", lines: list[str]) -> None:
    assert child.stdout is not None
    with child.stdout:
        for line in child.stdout:
            if line.strip():
                lines[:] = [line.strip()]
            if sys.stderr is not None:
                sys.stderr.write(line)


def _stop(child: "subprocess.Popen[str]") -> None:
    child.terminate()
    try:
        child.wait(_STOPS_WITHIN_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        child.kill()
        child.wait()


def _settings(given: dict[str, Any]) -> dict[str, str]:
    """Turns learner={"lr": 1} and stop_return=2 into learner.lr=1 and stop.return=2, each mapped to
    what the caller typed."""
    typed: dict[str, str] = {}
    for name, value in given.items():
        if isinstance(value, dict):
            if name not in SECTIONS:  # an empty dict would set nothing, unnoticed
                raise ConfigError(no_section(name, value))
            for key, inner in value.items():
                typed[f"{name}.{key}={_text(inner)}"] = f"{name}={{{key!r}: {inner!r}}}"
            continue
        section, underscore, key = name.partition("_")
        if section not in SECTIONS:
            raise ConfigError(f"{name}={value!r}: {no_section(name, value)}")
        if not underscore:
            raise ConfigError(f"{name}={value!r}: {name} is a section, give its keys in a dict")
        typed[f"{section}.{key}={_text(value)}"] = f"{name}={value!r}"
    return typed


def _text(value: Any) -> str:
    return "none" if value is None else toml_text.value(_plain(value))


def _plain(value: Any) -> Any:
    """Turns numpy's numbers into Python's own."""
    match value:
        case dict():
            return {key: _plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case _:
            return value.item() if getattr(value, "shape", None) == () else value


# Command-line options in messages, and what a Python caller types instead.
_OPTIONS = {
    r"headrace train --evaluate\b": "headrace.train(..., evaluate=True)",
    r"--no-evaluate\b": "evaluate=False",
    r"--checkpoint (best|newest)\b": r'which="\1"',
    r"--(resume|evaluate|record|quiet)\b": r"\1=True",
    r"--out\b": "out=",
    r"--set (\w+)\.(\w+)=(\S+)": r'\1={"\2": \3}',
}


@contextlib.contextmanager
def _in_callers_words(typed: dict[str, str]) -> Iterator[None]:
    """Rewrites a ConfigError of a run in terms of what the Python caller typed."""
    try:
        yield
    except ConfigError as error:
        line = str(error)
        for setting, words in typed.items():
            line = line.replace(f"--set {setting}:", f"{words}:")
        for option, words in _OPTIONS.items():
            line = re.sub(option, words, line)
        raise type(error)(line) from None
