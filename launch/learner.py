"""Starts a learner rank of one run, or of several: `headrace learner`, or torchrun -m
headrace.launch.learner."""

import argparse
import logging
import os
import signal
import sys
from dataclasses import replace

from headrace.launch.config import run_file, starts, unused_keys
from headrace.launch.policies import together
from headrace.launch.process import logs, runtime
from headrace.launch.roles.learner import learn
from headrace.launch.roles.options import LearnerOptions, learner_arguments, learner_options
from headrace.launch.shared_options import log_form, start_log


@logs.one_line_errors()
def main(given: argparse.Namespace | None = None) -> int:
    """Trains as a role of `headrace`, or under torchrun."""
    if given is None:
        parser = argparse.ArgumentParser(prog="headrace.launch.learner")
        learner_arguments(parser)
        log_form(parser)
        parser.set_defaults(log_level="info")
        given = parser.parse_args()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # Else they would keep the folder from the next torchrun's ranks. Not by SIGTERM: one that
        # hangs, or waits in a collective for one that does, would not hear of it.
        runtime.die_with_parent(by=signal.SIGKILL)
    start_log("learner", given)
    names: list[str] = given.run
    counts = {"--broker": given.broker, "--out": given.out, "--ledger": given.ledger}
    for option, values in counts.items():
        if values and len(values) != len(names):
            raise run_file.ConfigError(
                f"{len(values)} {option} for {len(names)} runs: each has its own, in their order"
            )
    runs = [_begun(given, number) for number in range(len(names))]
    return together.learn(runs) if len(runs) > 1 else learn(*runs[0])


def _begun(given: argparse.Namespace, number: int) -> tuple[run_file.Run, LearnerOptions]:
    """Returns one of the runs as it is trained now, and its learner's options."""
    name: str = given.run[number]
    run = run_file.load(name, given.set)
    options = learner_options(given, run, number)
    if not given.final:  # else it is part of `headrace train`, which has seen to the run
        start = starts.begin(name, given.set, options.out, resume=given.resume)
        run, options = start.run, replace(options, start=start)
    logs.set_identity(run=run.run.name)
    # Of several ranks one says it.
    if not given.final and os.environ.get("RANK", "0") == "0":
        unused_keys.warn(run)
    return run, options


if __name__ == "__main__":
    ended = main()
    logging.shutdown()
    sys.stdout.flush()
    # All is saved, logged and closed. torch's threads may abort while the interpreter shuts down
    # (1 of 50 ends with two ranks did), which would turn success into failure.
    os._exit(ended)
