"""Callbacks hear of everything once, in order; what they raise ends the run, or only them."""

import json
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.launch.config.run_file import ConfigError
from headrace.launch.process import runtime
from headrace.launch.sinks import callbacks, follow
from headrace.launch.sinks.callbacks import Callbacks, StopRun
from headrace.launch.sinks.caller import Caller
from headrace.launch.sinks.sink import check_sink
from tests.launch.sinks.a_run import leave_run, training

HEARD: list[Any] = []


class Hears(Callbacks):
    def on_start(self, folder: Path) -> None:
        HEARD.append(("start", folder.name))

    def on_version(self, figures: Mapping[str, float]) -> None:
        HEARD.append(("version", figures["trained_steps"]))

    def on_evaluation(self, figures: Mapping[str, float]) -> None:
        HEARD.append(("evaluation", figures["trained_steps"]))

    def on_episode(self, figures: Mapping[str, float]) -> None:
        HEARD.append(("episode", figures["return"], figures["column"]))

    def on_checkpoint(self, folder: Path) -> None:
        HEARD.append(("checkpoint", folder.name))

    def on_end(self, summary: Mapping[str, Any]) -> None:
        HEARD.append(("end", summary["stop_reason"]))


class HasEnough(Hears):
    def on_version(self, figures: Mapping[str, float]) -> None:
        del figures
        raise StopRun("enough")


class Fails(Hears):
    def on_version(self, figures: Mapping[str, float]) -> None:
        del figures
        raise ZeroDivisionError("of theirs")


class NoCallbacks:
    pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    HEARD.clear()
    found = leave_run(tmp_path / "run")
    (found / "summary.json").write_text('{"stop_reason": "steps", "evaluation": null}')
    return found


ALL = [("start", "run"), ("version", 100), ("version", 200), ("version", 300), ("evaluation", 200)]


def test_as_a_sink_they_hear_each_line_once_over_all_starts(folder: Path) -> None:
    assert follow.follow(folder, f"{__name__}:Hears", wait=False) == runtime.OK
    assert [*ALL, ("end", "steps")] == HEARD
    HEARD.clear()
    assert follow.follow(folder, f"{__name__}:Hears", wait=False) == runtime.OK
    assert HEARD == [("start", "run"), ("end", "steps")]


def test_episodes_that_the_run_writes_down_are_told_one_by_one(folder: Path) -> None:
    lines = [{"t": 1.0, "trained_steps": 4, "return": at, "column": 2 * at} for at in (1.0, 2.0)]
    (folder / "episodes.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    Caller(Hears(), folder, goes_on=False).look()
    assert [*ALL, ("episode", 1.0, 2.0), ("episode", 2.0, 4.0)] == HEARD


def test_a_new_checkpoint_is_told_once(folder: Path) -> None:
    caller = Caller(Hears(), folder, goes_on=False)
    (folder / "history.jsonl").write_text("")
    caller.look()
    HEARD.clear()
    (folder / "checkpoints" / "000000000007").mkdir(parents=True)
    for step in (4, 5):
        with (folder / "history.jsonl").open("a") as file:
            file.write(f"{training(step)}\n")
        caller.look()
    assert HEARD == [("version", 400), ("checkpoint", "000000000007"), ("version", 500)]


def test_in_the_callers_process_only_what_is_new_is_told(folder: Path) -> None:
    caller = Caller(Hears(), folder, goes_on=True)
    caller.look()
    with (folder / "history.jsonl").open("a") as file:
        file.write(f"{training(4)}\n")
    caller.end({"stop_reason": "return"})
    assert HEARD == [("start", "run"), ("version", 400), ("end", "return")]


def test_a_wish_to_stop_is_the_status_of_the_sink(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert follow.follow(folder, f"{__name__}:HasEnough", wait=False) == runtime.LIMIT
    assert "asks the run to stop: enough" in caplog.text


def test_once_the_run_has_ended_it_can_be_stopped_no_more(folder: Path) -> None:
    Caller(HasEnough(), folder, goes_on=False).end({"stop_reason": "steps"})
    assert HEARD[-1] == ("end", "steps")


def test_a_failure_is_one_line_and_its_traceback(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigError, match=r":Fails failed: ZeroDivisionError: of theirs"):
        follow.follow(folder, f"{__name__}:Fails", wait=False)
    assert caplog.text.count("Traceback") == 1 and "in on_version" in caplog.text


def test_a_call_that_takes_long_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(callbacks, "_LONG_S", -1.0)
    Caller(Hears(), folder, goes_on=True).look()
    assert "Hears.on_start took" in caplog.text


class Hangs(Callbacks):
    """Until somebody has said so."""

    def on_start(self, folder: Path) -> None:
        HEARD.append(folder)
        assert TOLD.wait(20.0)


TOLD = threading.Event()


class Tells(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if "takes longer than" in record.getMessage():
            TOLD.set()


def test_it_is_named_while_it_lasts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "_LONG_S", 0.0)
    monkeypatch.setattr(logging.getLogger(), "handlers", [Tells()])
    Caller(Hangs(), folder, goes_on=True).look()
    assert TOLD.is_set()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere:Hears", "cannot be imported: ModuleNotFoundError"),
        (f"{__name__}:NoCallbacks", r"is no class of headrace.Callbacks"),
        (f"{__name__}:HEARD", "is a list, not a function"),
        ("wandbb", "there is no sink wandbb: it is one of tensorboard"),
    ],
)
def test_a_wrong_name_is_refused_before_training(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_sink(name)
