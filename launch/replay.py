"""Replays a recording of several ranks: torchrun -m headrace.launch.replay RUN_DIR."""

import logging
import sys
from pathlib import Path

from headrace.launch.config import run_file
from headrace.launch.process import logs, runtime
from headrace.launch.results.replay import replay

log = logging.getLogger(__name__)

if __name__ == "__main__":  # by torchrun
    logs.start("replay")
    try:
        sys.exit(replay(Path(sys.argv[1])))
    except run_file.ConfigError as refused:
        log.error("%s", refused)
        sys.exit(runtime.YOUR_INPUT)
