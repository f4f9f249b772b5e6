"""What a run wrote arrives at a sink: once, in order, whole; and what a sink does wrong."""

import json
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from headrace.launch.config import run_file
from headrace.launch.process import runtime
from headrace.launch.sinks import follow, sink
from headrace.launch.sinks.told import Kept, Told
from tests.launch.sinks.a_run import leave_run, training


class Sent:
    """A sink that remembers, and fails when it is told to."""

    where = "here"

    def __init__(self, *, id: str = "a", fails: bool = False) -> None:
        self.id, self.fails = id, fails
        self.steps: list[int] = []
        self.told: list[Told] = []
        self.ended: list[Kept] = []
        self.closed = 0
        self.more = threading.Event()

    def row(self, figures: Mapping[str, float], *, step: int, at: float) -> None:
        if self.fails:
            raise RuntimeError(f"the line\nis cut at {at}: {figures}")
        self.steps.append(step)
        self.more.set()

    def end(self, kept: Kept) -> None:
        self.ended.append(kept)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return leave_run(tmp_path / "run")


def send(folder: Path, sent: Sent, monkeypatch: pytest.MonkeyPatch, *, wait: bool = False) -> Sent:
    def opened(_: str, told: Told) -> Sent:
        sent.told.append(told)
        return sent

    monkeypatch.setattr(follow, "open_sink", opened)
    assert follow.follow(folder, "wandb", wait=wait) == 0
    return sent


def more(folder: Path, text: str) -> None:
    with (folder / "history.jsonl").open("a") as file:
        file.write(text)


def test_rows_carry_the_figures_of_their_line() -> None:
    line = {"t": 2.5, "trained_steps": 7, "version": 3, "mean_return": None, "kl": 0.5, "w": "x"}
    lines = [json.dumps(line).encode(), b'{"t": 3.0, "kl": 1', b"[]", b"5", b'{"kl": 1}']
    (row,) = follow.rows(iter(lines), "train")
    assert row == ({"train/version": 3.0, "train/kl": 0.5}, 7, 2.5)


def test_each_line_is_sent_once_over_all_times(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = send(folder, Sent(id="own"), monkeypatch)
    assert first.steps == [100, 200, 300, 200] and first.closed == 1
    assert first.told[0].id == "" and first.told[0].settings["learner.lr"] == 0.5
    more(folder, f'{training(4)}\n{{"t": 5.0, "trai')  # killed while it wrote
    second = send(folder, Sent(id="own"), monkeypatch)
    assert second.steps == [400] and second.told[0].id == "own"
    more(folder, f"\n{training(5)}\n")
    assert send(folder, Sent(id="own"), monkeypatch).steps == [500]


def test_one_without_an_id_gets_every_row_each_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        assert send(folder, Sent(id=""), monkeypatch).steps == [100, 200, 300, 200]


def test_an_ended_run_leaves_its_summary_and_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert send(folder, Sent(), monkeypatch).ended == []
    best = folder / "best" / "000000000002"
    best.mkdir(parents=True)
    for name in ("curve.png", "film.mp4"):
        (folder / name).write_bytes(b"")
    summary = {"wall_s": 1.5, "run": "r", "evaluation": {"best": {"version": 2}}}
    (folder / "summary.json").write_text(json.dumps(summary))
    (kept,) = send(folder, Sent(), monkeypatch).ended
    assert kept == Kept({"wall_s": 1.5}, [folder / "curve.png"], [folder / "film.mp4"], best)


def test_it_follows_a_run_until_it_is_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The learner has ended, and nothing is written any more."""
    monkeypatch.setattr(follow, "_LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(follow, "_SILENT_S", 0.05)
    monkeypatch.setattr(runtime, "StopRequested", lambda: False)
    sent = Sent()

    def go_on() -> None:
        sent.more.wait(20.0)
        more(folder, f"{training(4)}\n")
        (folder / "learner.json").write_text("{}")

    thread = threading.Thread(target=go_on)
    thread.start()
    send(folder, sent, monkeypatch, wait=True)
    thread.join()
    assert sorted(sent.steps) == [100, 200, 200, 300, 400]


def test_what_a_sink_raises_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = Sent(fails=True)
    with pytest.raises(run_file.ConfigError, match=r"^wandb failed: RuntimeError: the line is"):
        send(folder, sent, monkeypatch)
    assert sent.closed == 1


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(run_file.ConfigError, match=r"pip install 'headrace\[parquet\]'"):
        sink.check_sink("parquet")
    sink.check_sink("csv")


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(run_file.ConfigError, match="holds no run"):
        follow.follow(tmp_path, "csv", wait=False)


def test_every_sink_has_its_module() -> None:
    modules = Path(sink.__file__).parent.glob("to_*.py")
    assert {path.stem.removeprefix("to_") for path in modules} == set(sink.PACKAGES)
    for name in sink.PACKAGES:
        assert run_file.load("cartpole", [f'log.sinks=["{name}"]']).log.sinks == (name,)


class Hangs(Sent):
    """In each of its calls, until somebody has said so."""

    def __init__(self, said: Callable[[str], bool]) -> None:
        self._said = said
        super().__init__()
        assert said("opening")

    def row(self, figures: Mapping[str, float], *, step: int, at: float) -> None:
        super().row(figures, step=step, at=at)
        assert self._said("sending to here")

    def close(self) -> None:
        assert self._said("closing")
        super().close()


def test_a_sink_that_hangs_is_named_while_it_does(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    news: queue.Queue[str] = queue.Queue()
    heard: list[str] = []

    class Tells(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            news.put(record.getMessage())

    def said(what: str) -> bool:
        while not any(f"{what}" in line and "takes longer than" in line for line in heard):
            heard.append(news.get(timeout=20.0))
        return True

    monkeypatch.setattr(follow, "_LONG_S", 0.0)
    monkeypatch.setattr(logging.getLogger(), "handlers", [Tells()])
    monkeypatch.setattr(follow, "open_sink", lambda *_: Hangs(said))
    assert follow.follow(folder, "wandb", wait=False) == 0
