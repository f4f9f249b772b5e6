"""`headrace doctor`: checks this machine, a run and its broker, and says what to repair.

One line for each check: ok, warn or bad. Each check has its own time limit; none leaves anything
behind.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from headrace.launch.config import run_file
from headrace.launch.doctor import broker, machine, run, torch
from headrace.launch.doctor.finding import BAD, WARN, Finding, Subject, run_check
from headrace.launch.process import runtime

# Each check has shorter limits of its own: this one is for unforeseen hangs.
_SECONDS = 90.0
_CHECKS = (*machine.CHECKS, *torch.CHECKS, *run.CHECKS, *broker.CHECKS)


def doctor(
    source: str | None, sets: Sequence[str], *, address: str | None, key: Path | None
) -> int:
    """Runs all checks and prints their findings; returns 0 if nothing is bad."""
    loaded, first = _load(source, sets)
    subject = Subject(loaded, (source, *sets) if source else (), address, key)
    levels = [_print_finding(finding) for finding in first]
    for check in _CHECKS:
        levels += [_print_finding(finding) for finding in run_check(check, subject, _SECONDS)]
    bad, warned = levels.count(BAD), levels.count(WARN)
    print(f"{len(levels)} checks, {bad} bad, {warned} to think about")  # noqa: T201
    sys.stdout.flush()
    return runtime.OUR_FAULT if bad else runtime.OK


def _load(source: str | None, sets: Sequence[str]) -> tuple[run_file.Run | None, list[Finding]]:
    if source is None:
        return None, []
    try:
        return run_file.load(source, sets), []
    except run_file.ConfigError as error:
        return None, [Finding(BAD, "run", str(error))]


def _print_finding(finding: Finding) -> str:
    words = " ".join(finding.words.split())
    print(f"{finding.level:4}  {finding.what:16}  {words}", flush=True)  # noqa: T201
    return finding.level
