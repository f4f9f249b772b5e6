"""Learner ranks in processes of their own, which find each other as torchrun's do."""

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests import ports, warm
from tests.warm import Forked

_PATIENCE_S = 300  # of a rank on a busy machine


class Rank(NamedTuple):
    """Holds a rank's process."""

    process: Forked
    log: Path


def start(file: str, folder: Path, world: int, *arguments: str, **env: str) -> list[Rank]:
    """Starts so many ranks, each of which runs the file; their logs lie beside the folder."""
    port = ports.free()
    ranks = []
    for rank in range(world):
        log = folder.with_name(f"{folder.name}-{rank}.log")
        process = warm.nest_of_the_session().fork(
            file,
            [str(folder), *arguments],
            folder=folder.parent,
            log=log,
            env={
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
                **env,
            },
        )
        ranks.append(Rank(process, log))
    return ranks


def ends(ranks: Sequence[Rank]) -> list[tuple[int, str]]:
    """Returns the exit status and the words of each."""
    try:
        return [(rank.process.wait(_PATIENCE_S), rank.log.read_text()) for rank in ranks]
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.process.wait()


def live(call: Callable[[], None]) -> None:
    """Ends this process as headrace.launch.learner does; what went wrong is said."""
    try:
        call()
    except BaseException:  # noqa: BLE001  # said, and the status tells
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)
