"""The live view of `headrace train`: a broker's status, shown on the terminal."""

import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.launch.config.run_sections import StopSection
from headrace.launch.monitor.learning_figures import Metric, metrics, time_words
from headrace.launch.monitor.rates import Rates
from headrace.launch.monitor.terminal import CapturedTerminal


class LiveView:
    """Shows a status: on a terminal as a table in place, elsewhere as a line every few seconds."""

    def __init__(
        self,
        *,
        run: str,
        stop: StopSection,
        began: float,
        quiet: bool,
        terminal: CapturedTerminal | None = None,
        named: bool = False,
    ) -> None:
        """Starts the view on `terminal`; None = there is none, and lines are printed instead.
        `named`: each begins with the run's name."""
        self._run = run
        self._named = f"{run}: " * named
        goal = "" if stop.return_ is None else f" of {stop.return_:g}"
        self._goals = {stop.metric: goal}  # by what must reach it
        self._began = began  # the run's clock at 0, by time.monotonic
        self._rates = Rates()
        self._quiet = quiet
        self._next_line = 0.0
        self._live: Live | None = None
        # One writer at a time: each moves the cursor up by the height that the view had when it
        # was last written, so two at once would overwrite each other.
        self._writing = threading.Lock()
        if terminal is not None:
            console = Console(file=terminal.file, force_terminal=True)
            # We refresh it: a refresh thread would be one more thread to fork around.
            self._live = Live(console=console, auto_refresh=False, transient=True)
            self._live.start()

            def above(line: str) -> None:
                with self._writing:
                    console.print(Text.from_ansi(line), soft_wrap=True)

            terminal.pass_on(above)

    def show(self, status: dict[str, Any]) -> None:
        if self._quiet:
            return
        if status:
            self._rates.update(status)
        if self._live is not None:
            with self._writing:
                self._live.update(self._table(status), refresh=True)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + 2.0
            print(self._line(status), file=sys.stderr)  # noqa: T201

    def close(self) -> None:
        if self._live is not None:
            with self._writing:
                self._live.stop()
            self._live = None

    def _line(self, status: dict[str, Any]) -> str:
        seconds = f"{self._named}{time.monotonic() - self._began:6.1f} s"
        if missing := _waiting_for(status):
            return f"{seconds}  {missing}"
        learner = status["learners"][0]
        mean, steps = learner.get("mean_return"), status["actors"].get("env_steps", 0.0)
        return (
            f"{seconds}  {steps:10.0f} steps  {self._rate():8.0f}/s"
            f"  return {mean if mean is None else round(mean, 1)}{self._goals.get('training', '')}"
            f"{''.join(f'  {name} {words}' for name, words in self._evaluation_rows(status))}"
            f"{''.join(f'  {name} {words}' for name, words in self._metric_rows(status))}"
            f"{''.join(f'  {name} {words}' for name, words in _learner_rows(learner))}"
            f"  lag {learner.get('lag', 0.0):.2f}  version {status['version']}"
        )

    def _rate(self) -> float:
        """Returns the sampled steps a second; 0 = not known yet."""
        return self._rates("env_steps") or 0.0

    def _table(self, status: dict[str, Any]) -> Table:
        table = Table(title=f"headrace {self._run}", show_header=False, title_justify="left")
        if missing := _waiting_for(status):
            table.add_row("time", f"{time.monotonic() - self._began:.1f} s")
            table.add_row("starting", missing)
        if not status:
            return table
        learner = (status.get("learners") or [{}])[0]
        rate = self._rate()
        goal = self._goals.get("training", "")
        mean = learner.get("mean_return")
        outcomes = {**status["outcomes"], "duplicate": status["duplicates"]}
        rows = (
            ("time", f"{time.monotonic() - self._began:.1f} s"),
            ("return", f"{mean:.1f}{goal}" if mean is not None else "no episode has ended yet"),
            *self._evaluation_rows(status),
            *self._metric_rows(status),
            ("steps", f"{status['actors'].get('env_steps', 0):,.0f}   {rate:,.0f}/s"),
            ("lag", f"{learner.get('lag', 0.0):.2f} versions"),
            ("version", f"{status['version']}, {status['actors']['behind']} samplers behind"),
            ("unrolls", "  ".join(f"{name} {n:,}" for name, n in outcomes.items() if n)),
            ("in flight", f"queued {status['queued']}  at the learner {status['leased']}"),
            ("samplers", f"{status['actors']['count']}"),
            *_learner_rows(learner),
        )
        for name, value in rows:
            table.add_row(name, value)
        return table

    def _metric_rows(self, status: dict[str, Any]) -> list[tuple[str, str]]:
        """Returns a row for each of env.metrics; the goal's has one from the start."""
        found = {one.name: one for one in metrics(status)}
        wanted = {goal.removeprefix("evaluation.") for goal in self._goals}
        for name in wanted - {"training", "evaluation"} - found.keys():
            found[name] = Metric(name, None, None)
        goals = self._goals.get
        return [
            (name, one.words(goals(name, ""), goals(f"evaluation.{name}", "")))
            for name, one in found.items()
        ]

    def _evaluation_rows(self, status: dict[str, Any]) -> list[tuple[str, str]]:
        """Returns the last evaluation as one row of the table; empty = there is none yet, and no
        goal for it."""
        goal = self._goals.get("evaluation", "")
        for said in status.get("evaluators", ()):
            if "mean" in said:
                spread = f" ({said['low']:.1f} to {said['high']:.1f})" if "low" in said else ""
                mean, version = f"{said['mean']:.1f}{goal}{spread}", said["version"]
                return [("evaluation", f"{mean}, version {version:.0f}")]
        return [("evaluation", f"none yet{goal}")] if goal else []


def _learner_rows(learner: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns what the learner says of its episodes, its time and its values."""
    length, fit = learner.get("mean_length"), learner.get("explained_variance")
    rows = (
        ("length", "" if length is None else f"{length:,.1f}"),
        ("learner", time_words(learner)),
        ("explained", "" if fit is None else f"{fit:.2f} of the values' variance"),
    )
    return [(name, words) for name, words in rows if words]


def _waiting_for(status: dict[str, Any]) -> str:
    """Says what must start before anything is trained, or why nothing is any more; "" = neither."""
    if not status:
        return "the broker is starting"
    if status.get("over"):
        return "the run is over" + "; its last weights are evaluated" * bool(status["evaluators"])
    if not status.get("learners"):
        return "the learner is starting"
    actors = status["actors"]
    return "" if actors.get("count") or actors.get("env_steps") else "no sampler is there yet"
