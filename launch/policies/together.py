"""Trains several networks in one process: each makes an optimiser step, and the next one's turn
comes.

All ranks of a group take the turns in the same order, and whether a turn makes a step is agreed on
in it; so no rank waits in one network's collective for a rank that waits in another's.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from headrace.broker.errors import DivergedError
from headrace.launch.config.run_file import ConfigError, Run
from headrace.launch.process import logs
from headrace.launch.process.log_lines import Identity
from headrace.launch.roles.learner import LearnerProcess, learn_in_turns, opened
from headrace.launch.roles.options import LearnerOptions
from headrace.learner.train_parts import Turns

log = logging.getLogger(__name__)

# Keys of the learner section that are the process's affair.
_OF_THE_PROCESS = ("device", "threads", "gpu_share", "rank_timeout_s")
# Of all of them together, after turns in which nobody had a batch.
_PATIENCE_S = 0.002


@logs.one_line_errors()
def learn(runs: Sequence[tuple[Run, LearnerOptions]]) -> int:
    """Trains all of them until each has come to its goal or limit, or until SIGTERM. Returns the
    worst of their exit statuses."""
    _check([run for run, _ in runs])
    if any(options.record for _, options in runs):
        raise ConfigError(
            "--record: what is recorded can be trained again to the same bits, and networks that"
            " are trained in turns share their dice; leave it out, or give each a learner"
        )
    with opened(*runs) as process:
        works = {run.run.name: learn_in_turns(process, run, options) for run, options in runs}
        return in_turns(process, works)


def in_turns(process: LearnerProcess, works: Mapping[str, Turns[int]]) -> int:
    """Takes a turn of each, over and over; returns the worst of their exit statuses. One whose
    training has diverged ends alone, any other error ends all."""
    left, worst, quiet = dict(works), 0, Identity("learner")
    identities = {name: replace(quiet, run=name) for name in works}  # by which each logs
    process.patience_s = 0.0
    try:
        while left:
            got_on = False
            for name, turns in list(left.items()):
                logs.swap_identity(identities[name])
                try:
                    got_on |= next(turns)
                    identities[name] = logs.swap_identity(quiet)
                    continue
                except StopIteration as end:
                    worst = max(worst, end.value)
                except DivergedError as error:
                    worst = max(worst, logs.log_end(log, error))
                del left[name]
            process.patience_s = 0.0 if got_on else _PATIENCE_S / max(1, len(left))
    finally:
        for turns in left.values():
            turns.close()
    return worst


def _check(runs: Sequence[Run]) -> None:
    """Raises ConfigError unless one process can train these."""
    first, names = runs[0], [run.run.name for run in runs]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two runs of one learner are called {name}: name them apart")
    for run in runs:
        for key in _OF_THE_PROCESS:
            ours, theirs = getattr(first.learner, key), getattr(run.learner, key)
            if ours != theirs:
                raise ConfigError(
                    f"{first.run.name} has learner.{key} = {ours!r}, {run.run.name} {theirs!r}: one"
                    " process trains both, and needs the same"
                )
