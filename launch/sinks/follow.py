"""`headrace log`: what a run writes down, sent to a place for experiments, by a process of its own:
whatever becomes of it, training does not notice.

    OUT/history.jsonl, evaluations.jsonl, ..    -> figures, a few times a second
    OUT/summary.json, curve.png, videos, best/  -> once the run has ended
    OUT/sinks/NAME.json                         how far it got, and what the sink calls the run
"""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from headrace.actors import users_code
from headrace.broker import durable
from headrace.launch.config import run_file, starts, toml_text
from headrace.launch.config.run_sections import Sink
from headrace.launch.process import runtime
from headrace.launch.results import learning_curve
from headrace.launch.sinks import slow_calls
from headrace.launch.sinks.callbacks import StopRun
from headrace.launch.sinks.sink import OpenSink, open_sink
from headrace.launch.sinks.told import Kept, Told

log = logging.getLogger(__name__)

FILES = {"history.jsonl": "train", "evaluations.jsonl": "evaluation", "episodes.jsonl": "episode"}
_LOOK_EVERY_S = 1.0
_LONG_S = 60.0  # of what is sent at a time
_MOST_LINES = 1000  # before it notes how far it got
_SILENT_S = 15.0  # a run whose learner has ended and that writes nothing for so long is over


class Row(NamedTuple):
    """Holds the figures of a line; names begin with what they are about."""

    figures: dict[str, float]
    step: int
    at: float  # by the run's clock


def follow(folder: Path, name: Sink, *, wait: bool) -> int:
    """Sends what the run has written, and, if `wait`, what it writes until it is over or somebody
    asks to stop. ConfigError for whatever the sink raises."""
    asked = runtime.StopRequested()
    run = starts.load_kept(folder)
    place = folder / "sinks" / f"{name.replace(':', '.')}.json"
    noted = _noted(place)
    try:
        with slow_calls.told(f"opening {name}", after_s=_LONG_S):
            sink = open_sink(name, Told(folder, _settings(run), noted.get("id", "")))
        log.info("to %s: %s", name, sink.where)
        try:
            if not sink.id:  # it wants every row
                noted = {}
            _send_all(folder, sink, noted, place, lambda: bool(asked) or not wait)
            if (folder / "summary.json").exists():
                with slow_calls.told(f"sending the end to {name}", after_s=_LONG_S):
                    sink.end(_kept(folder))
        finally:
            with slow_calls.told(f"closing {name}", after_s=_LONG_S):
                sink.close()
    except StopRun as wish:
        log.warning("%s asks the run to stop: %s", name, wish)
        return runtime.LIMIT
    except run_file.ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 - their clients may raise anything
        if ":" in name:  # the user's own: where it failed is what they need
            log.error("%s", users_code.traceback_of(error))
        words = f"{name} failed: {type(error).__name__}: {' '.join(str(error).split()):.300}"
        raise run_file.ConfigError(words) from None
    return runtime.OK


def _send_all(
    folder: Path, sink: OpenSink, noted: Mapping[str, Any], place: Path, last: Callable[[], bool]
) -> None:
    """Sends all rows, until `last` says that the next look is the last one, or the run is over."""
    began, silent_since = _began(folder), time.monotonic()
    offsets = {file: int(noted.get(file, 0)) for file in FILES}
    while True:
        ends = last()
        while _send_some(folder, sink, offsets, began):
            silent_since = time.monotonic()
            if sink.id:
                _note(place, {"id": sink.id, **offsets})
        over = (folder / "learner.json").exists()
        if ends or (over and time.monotonic() - silent_since > _SILENT_S):
            return
        time.sleep(_LOOK_EVERY_S)


def _send_some(folder: Path, sink: OpenSink, offsets: dict[str, int], began: float) -> int:
    with slow_calls.told(f"sending to {sink.where}", after_s=_LONG_S):
        return send(folder, sink, offsets, began=began)


def rows(lines: Iterator[bytes], about: str) -> Iterator[Row]:
    """Yields the figures of lines; one that is no JSON object, torn by a kill, has none."""
    for line in lines:
        try:
            held = json.loads(line)
            step, at = int(held.get("trained_steps", 0)), float(held["t"])
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        yield Row(
            {
                f"{about}/{name}": float(value)
                for name, value in held.items()
                if type(value) in (int, float) and name not in ("t", "trained_steps")
            },
            step,
            at,
        )


def send(folder: Path, sink: OpenSink, offsets: dict[str, int], *, began: float) -> int:
    """Sends the next lines of each file, and moves its offset; returns how many they were."""
    count = 0
    for file, about in FILES.items():
        lines = _next_lines(folder / file, offsets[file])
        for row in rows(iter(lines), about):
            sink.row(row.figures, step=row.step, at=began + row.at)
        offsets[file] += sum(map(len, lines))
        count += len(lines)
    return count


def _next_lines(path: Path, offset: int) -> list[bytes]:
    """Reads whole lines from there on, as many as are sent at a time."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            lines = [line for line, _ in zip(file, range(_MOST_LINES), strict=False)]
    except FileNotFoundError:
        return []
    return lines if not lines or lines[-1].endswith(b"\n") else lines[:-1]


def _noted(place: Path) -> dict[str, Any]:
    try:
        noted = json.loads(place.read_text())
    except (OSError, ValueError):
        return {}
    return noted if isinstance(noted, dict) else {}


def _note(place: Path, state: Mapping[str, Any]) -> None:
    place.parent.mkdir(exist_ok=True)
    durable.write(place, json.dumps(state))


def _began(folder: Path) -> float:
    """Returns when the run's clock was 0, by time.time()."""
    history = folder / "history.jsonl"
    try:
        return history.stat().st_mtime - learning_curve.ended_at(history)
    except FileNotFoundError:
        return time.time()


def _settings(run: run_file.Run) -> dict[str, str | float | bool]:
    return {
        f"{section}.{key}": held if isinstance(held, str | int | float) else toml_text.value(held)
        for section, keys in run_file.to_dict(run).items()
        for key, held in keys.items()
        if held is not None
    }


def _kept(folder: Path) -> Kept:
    summary = json.loads((folder / "summary.json").read_text())
    evaluation = summary.get("evaluation")
    best = folder / "best" / f"{evaluation['best']['version']:012d}" if evaluation else None
    return Kept(
        {name: held for name, held in summary.items() if type(held) in (int, float)},
        [path for path in (folder / "curve.png",) if path.exists()],
        sorted([*folder.glob("*.mp4"), *folder.glob("*.gif")]),
        best if best is not None and best.is_dir() else None,
    )
