"""Starts a learner rank: torchrun -m headrace.launch.learner."""

import logging
import os
import sys

from headrace.launch.roles.learner import main

if __name__ == "__main__":
    ended = main()
    logging.shutdown()
    sys.stdout.flush()
    # All is saved, logged and closed. torch's threads may abort while the interpreter shuts down
    # (1 of 50 ends with two ranks did), which would turn success into failure.
    os._exit(ended)
