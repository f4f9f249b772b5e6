"""Runs torchrun, and ends with what its ranks ended with: python -m headrace.launch.torchrun.

torchrun itself makes every status of its ranks a 1, and an orderly stop one too, with a traceback:
whoever starts them again could not tell what will heal from what will not.

An orderly stop is 0, or what STOPPED_STATUS says: to a Kubernetes Job 0 means that the run is done.
"""

import os
import signal
import sys

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from headrace.launch.process import runtime


def main() -> int:
    """Returns the status of the rank that failed first, or of an orderly stop: SIGTERM."""
    stopped = int(os.environ.get("STOPPED_STATUS", runtime.OK))
    # Else torch 2.13 keeps one store for all groups, of which a machine that comes later is never
    # told: with --nnodes 1:2 both would wait for each other.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    try:
        run.main()
    except SignalException as ended:
        return stopped if ended.sigval == signal.SIGTERM else 128 + ended.sigval
    except ChildFailedError as error:
        _, first = error.get_first_failure()
        return first.exitcode if first.exitcode > 0 else 128 - first.exitcode
    return runtime.OK


if __name__ == "__main__":
    sys.exit(main())
