"""A sampler that never looks at its numbers: one reward of each unroll is VALUE.

python poisoner.py VALUE actor --broker ..
"""

import sys

from headrace.actors.rollout import Rollout
from headrace.broker.peers.outbox import FinishedUnroll
from headrace.launch import cli

VALUE = float(sys.argv.pop(1))
finish = Rollout.finish


def poison(self: Rollout) -> FinishedUnroll:
    self._reward[-1, 0] = VALUE
    return finish(self)


def nothing(_: Rollout) -> None:
    return None


Rollout.fault = nothing  # type: ignore[method-assign,assignment]
Rollout.finish = poison  # type: ignore[method-assign]
sys.exit(cli.main())
