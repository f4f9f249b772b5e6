"""Replays a recording of several ranks: torchrun -m headrace.launch.replay RUN_DIR."""

import sys
from pathlib import Path

from headrace.launch.process import logs
from headrace.launch.results.replay import replay

if __name__ == "__main__":  # by torchrun
    logs.start("replay")
    sys.exit(logs.one_line_errors()(replay)(Path(sys.argv[1])))
