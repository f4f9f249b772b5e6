"""Saves that are killed or refused at every system call in turn; run as a script, prints figures.

A process of its own: what it forks must have one thread.
"""

import errno
import itertools
import json
import shutil
import sys
from collections import Counter
from pathlib import Path

import torch

from headrace.learner.checkpoints import checkpoint
from tests.system.harness import calls

SAVED, REFUSED, CRASHED = 0, 10, 11
# What lies there, what is saved, what may be found when it fails: (version, attempt).
SITUATIONS = ("first", "next", "again")
TROUBLES = {"kill": errno.EIO, "once": errno.ENOSPC, "lasting": errno.EROFS}


def save(folder: Path, version: int, attempt: int) -> None:
    tensors = {"model": {"w": torch.full((300,), float(attempt))}, "optimiser": {}}
    checkpoint.save(
        folder, step_version=version, tensors=tensors, state={"attempt": attempt}, keep=2
    )


def found(folder: Path) -> tuple[int, int]:
    """What a restart would begin with; (0, 0) = nothing."""
    there = checkpoint.load_latest(folder)
    if there is None:
        return 0, 0
    attempt = int(there.state["attempt"])
    assert bool((there.tensors["model"]["w"] == attempt).all())
    return there.version, attempt


def attempt_at(folder: Path, situation: str, trouble: str, at: int) -> calls.Ended:
    """One save that something befalls at its system call of that number; checks what is left."""
    shutil.rmtree(folder, ignore_errors=True)
    before, version = (0, 0), 1
    if situation != "first":
        for older in (1, 2, 3):
            save(folder, older, 1)
        (folder / "000000000002.tmp").mkdir()
        (folder / "000000000002.tmp" / "model.safetensors").write_bytes(b"half")
        before, version = (3, 1), 3 if situation == "again" else 4

    def work() -> int:
        try:
            save(folder, version, 2)
        except checkpoint.CheckpointError as error:
            return REFUSED if "\n" not in str(error) else CRASHED
        except BaseException as error:  # noqa: BLE001  # it would have ended the training
            sys.stderr.write(f"{situation} {trouble} {at}: {error!r}\n")
            return CRASHED
        return SAVED

    lasting, code = trouble == "lasting", TROUBLES[trouble]
    kill, fail = (at, -1) if trouble == "kill" else (-1, at)
    ended = calls.run(work, kill=kill, fail=fail, code=code, lasting=lasting)
    where = f"{situation} {trouble} at call {at} of {ended.calls[:-1]}"
    assert ended.status in (SAVED, REFUSED, -9), f"{where}: ended with {ended.status}"
    now = found(folder)
    assert now in (before, (version, 2)), f"{where}: {now}"
    assert ended.status != SAVED or now == (version, 2), f"{where}: said to be saved: {now}"
    save(folder, 9, 3)
    assert found(folder) == (9, 3), where
    return ended


def main(folder: Path, step: int) -> None:
    """At every step-th call. The figures go to standard output."""
    torch.set_num_threads(1)
    save(folder, 1, 1)  # whatever is imported late is imported now
    results: Counter[str] = Counter()
    for situation in SITUATIONS:
        for trouble in TROUBLES:
            for at in itertools.count(0, step):
                ended = attempt_at(folder, situation, trouble, at)
                if at >= len(ended.calls):
                    break  # beyond the last one: nothing befell it
                results["faults"] += 1
                results[{SAVED: "saved", REFUSED: "refused", -9: "killed"}[ended.status]] += 1
    sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
