"""Starts a learner rank: torchrun -m headrace.launch.learner."""

import logging
import os
import sys

from headrace.launch.roles.learner import main

if __name__ == "__main__":
    ended = main()
    logging.shutdown()
    sys.stdout.flush()
    # All is saved, said and closed. What torch's threads do while an interpreter is taken down must
    # not turn a good end into a bad one: of 50 ends with two ranks, one aborted.
    os._exit(ended)
