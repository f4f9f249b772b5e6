"""The results of evaluations: a line each, the best weights, metrics.

OUT/evaluations.jsonl   every evaluation: "t" never falls, "trained_steps" only where they are known
OUT/best/<version>/     the weights with the highest means, evaluate.keep of them
"""

import json
import logging
import math
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge

from headrace.broker.weights.blobs import Blob
from headrace.launch.config import differences, run_file, shared_run, starts
from headrace.launch.results import learning_curve, loaded_run
from headrace.launch.writing import writing
from headrace.learner.checkpoints import checkpoint
from headrace.learner.models.build import build
from headrace.learner.spaces import Spaces
from headrace.learner.weights import FlatWeights

log = logging.getLogger(__name__)

_LATE_S = 10.0


class EvaluationResults:
    """Writes an evaluator's part of a run's folder."""

    def __init__(self, out: Path, run: run_file.Run, spaces: Spaces) -> None:
        self._lines, self._best = out / "evaluations.jsonl", out / "best"
        self._run, self._spaces = run, spaces
        self._identity: dict[str, Any] = {
            "shared": shared_run.shared(run),
            "spaces": spaces.digest(),
        }
        # From what lies on the disk: an evaluator that died goes on where it was.
        self._kept = self._before()  # means of what is in best/, by version
        self._last, self._ahead = self._ended(), 0.0  # seconds
        with writing(f"into {out}", "choose another folder with --out"):
            out.mkdir(parents=True, exist_ok=True)
            starts.keep_told(run, out)

    def moment(self, clock: float) -> float:
        """Returns the seconds of the run for the next line. A continued run counts from 0 again;
        its lines go on from the last one. A clock that falls a little was heard late."""
        if self._last - clock - self._ahead > _LATE_S:
            self._ahead = self._last
        self._last = max(self._last, clock + self._ahead)
        return self._last

    def add(self, blob: Blob, line: dict[str, Any]) -> None:
        """Adds an evaluation. A full disk costs what could not be written, and nothing else."""
        try:
            with self._lines.open("a+b") as file:
                if file.tell():
                    file.seek(-1, 2)
                    torn = file.read(1) != b"\n"  # killed while it wrote
                    file.write(b"\n" if torn else b"")
                file.write(json.dumps(line).encode() + b"\n")
        except OSError as error:
            log.error("a line of the evaluations is missing: %s", error)
        if len(self._kept) < self._run.evaluate.keep or line["mean"] >= min(self._kept.values()):
            self._save(blob, line)

    @property
    def highest(self) -> float:
        """Returns the mean of the best weights."""
        return max(self._kept.values(), default=-math.inf)

    def _save(self, blob: Blob, line: dict[str, Any]) -> None:
        model = build(self._run.model, self._spaces, seed=0)
        FlatWeights(model).load(blob.body)
        state = {
            "identity": self._identity,
            "spaces": msgspec.to_builtins(self._spaces, str_keys=True),
            "score": line,
        }
        version = blob.announce.version
        try:
            checkpoint.save(
                self._best,
                step_version=version,
                tensors={"model": dict(model.state_dict())},
                state=msgspec.msgpack.decode(msgspec.msgpack.encode(state)),
                keep=None,
            )
        except checkpoint.CheckpointError as error:
            log.error("the best weights are not kept: %s", error)
            return
        self._kept[version] = line["mean"]
        while len(self._kept) > self._run.evaluate.keep:
            worst = min(self._kept, key=lambda kept: (self._kept[kept], kept))
            del self._kept[worst]
            try:
                checkpoint.remove(self._best / f"{worst:012d}")
            except OSError as error:
                log.warning("weights that are no longer the best stay: %s", error)

    def _before(self) -> dict[int, float]:
        """Returns the means of the weights on the disk, by version."""
        kept: dict[int, float] = {}

        def usable(found: checkpoint.Checkpoint) -> None:
            kept[found.version] = loaded_run.score(found)

        try:
            found = checkpoint.load_latest(self._best, usable, loaded_run.score)
        except checkpoint.CheckpointError as error:
            log.warning("%s", error)
            return kept
        if found is None:
            return kept
        there = found.entry(dict[str, dict[str, Any]], "identity", "shared")
        difference = differences.no_continuation(there, self._identity["shared"])
        if difference is not None or found.state["identity"]["spaces"] != self._identity["spaces"]:
            raise run_file.ConfigError(
                f"{found.path} is of another run: {difference or 'other spaces'}"
                " (there = in the folder); choose another folder with --out"
            )
        return kept

    def _ended(self) -> float:
        """Returns when the last line was written; 0 = there is none."""
        try:
            moments = [line.get("t") for line in learning_curve.read(self._lines)]
        except (OSError, ValueError) as error:
            log.warning("%s cannot be read, times begin at 0: %s", self._lines, error)
            return 0.0
        return max((t for t in moments if isinstance(t, int | float)), default=0.0)


class EvaluatorMetrics:
    """Holds the metrics of an evaluator process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, words: str) -> Gauge:
            return Gauge(f"headrace_evaluator_{name}", words, registry=registry)

        self._gauges = {
            "mean": gauge("return_mean", "Mean return of the last evaluation"),
            "low": gauge("return_low", "Lower end of its 95 % confidence interval"),
            "high": gauge("return_high", "Upper end of its 95 % confidence interval"),
            "version": gauge("version", "Version that was evaluated last"),
            "episodes": gauge("episodes", "Episodes of the last evaluation"),
            "seconds": gauge("seconds", "How long the last evaluation took"),
        }
        self._gauges["version"].set(-1)
        self._metric = Gauge(
            "headrace_evaluator_metric",
            "Of env.metrics: mean of the episodes' last values in the last evaluation",
            ["name"],
            registry=registry,
        )
        self.evaluations = Counter(
            "headrace_evaluator_evaluations", "Evaluations", registry=registry
        )
        self.failures = Counter(
            "headrace_evaluator_failures", "Evaluations that failed", registry=registry
        )

    def show(self, line: dict[str, Any]) -> None:
        self.evaluations.inc()
        for name, gauge in self._gauges.items():
            value = line[name]
            gauge.set(math.nan if value is None else value)
        for name, value in line.items():
            if name.startswith("metric."):
                self._metric.labels(name.removeprefix("metric.")).set(value)
