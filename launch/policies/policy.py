"""Begins the run of one of several policies that are trained on this machine."""

import copy
import logging
from dataclasses import dataclass
from pathlib import Path

from headrace.broker import durable
from headrace.launch.config import run_file, starts
from headrace.launch.config.run_file import ConfigError
from headrace.launch.local import run_folder
from headrace.launch.local.child_plans import ChildPlans, evaluates, web_port
from headrace.launch.policies.split import PolicyRun
from headrace.launch.results import learning_curve
from headrace.launch.writing import writing

log = logging.getLogger(__name__)

_HEAD = "# The run of one policy; headrace train made it from the file that names them all."


@dataclass(frozen=True, slots=True)
class Options:
    """Holds what the command line says beside the runs."""

    quiet: bool = False
    evaluate: bool | None = None  # an evaluator plays for each; None = where it can
    record: bool = False
    web: int | None = None  # the page of the first is served there, the next one's a port above
    resume: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """Holds one policy's run, and where its broker listens."""

    name: str
    start: starts.Start
    endpoint: str
    web: int | None

    @property
    def out(self) -> Path:
        return self.start.out

    @property
    def together(self) -> bool:
        """Tells whether it is trained by a process that trains others, too."""
        return self.start.run.learner.together

    def plans(self, started: float, *, record: bool) -> ChildPlans:
        """Returns the plans of its learner."""
        began = started - learning_curve.ended_at(self.out / "history.jsonl")
        return ChildPlans(self.start, [self.endpoint], record=record, started=started, began=began)

    def is_done(self) -> bool:
        """Tells, and logs, whether its run has nothing to go on for."""
        words = starts.finished(self.start.run.stop, self.out) or starts.diverged(self.start)
        if words:
            log.warning("%s: %s", self.name, words)
        return bool(words)


def begun(one: PolicyRun, out: Path, endpoint: str, number: int, options: Options) -> Policy:
    """Writes the policy's run file; returns its start. ConfigError for what cannot be."""
    path, folder = out / f"{one.name}.toml", out / one.name
    if (out / starts.RUN).exists():
        raise ConfigError(f"{out} holds the run of one policy; choose another with --out")
    run_folder.check(folder, resume=options.resume)
    run = run_file.build(copy.deepcopy(one.tables), one.sets, source=path.name)
    evaluates(run, options.evaluate)
    with writing(path, "choose another --out"):
        durable.write(path, run_file.text(one.tables, head=_HEAD))
    start = starts.begin(str(path), one.sets, folder, resume=options.resume)
    web = None if options.web is None else web_port(options.web and options.web + number)
    return Policy(one.name, start, endpoint, web)
