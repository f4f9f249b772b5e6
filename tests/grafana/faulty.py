"""A headrace command with one fault: python -m faulty FAULT COMMAND ... A test copies it into its
folder."""

import sys
import time
from dataclasses import replace
from typing import Final

from headrace.actors.rollout import Rollout
from headrace.broker.ledger.records import Entry
from headrace.broker.ledger.state import LedgerState
from headrace.broker.peers.outbox import FinishedUnroll
from headrace.launch.cli import main

_LEAK_BYTES_S: Final = 10 << 20
_MOST_LEAKED: Final = 2 << 30

_add, _finish = LedgerState.add, Rollout.finish
_began = time.monotonic()
_leaked: list[bytearray] = []


def miscount(state: LedgerState, entry: Entry) -> None:
    """Counts the first unroll that arrives twice."""
    state.received += not state.received
    _add(state, entry)


def old(rollout: Rollout) -> FinishedUnroll:
    """Says of every unroll that it was played with the first weights."""
    return replace(_finish(rollout), versions=(0, 0))


def leak(rollout: Rollout) -> FinishedUnroll:
    """Keeps some memory with every unroll: so many bytes a second, however fast it plays."""
    due = min(int((time.monotonic() - _began) * _LEAK_BYTES_S), _MOST_LEAKED)
    _leaked.append(bytearray(b"x" * (due - sum(map(len, _leaked)))))
    return _finish(rollout)


FAULTS: Final = {
    "miscount": (LedgerState, "add", miscount),
    "old": (Rollout, "finish", old),
    "leak": (Rollout, "finish", leak),
}

if __name__ == "__main__":
    setattr(*FAULTS[sys.argv.pop(1)])
    sys.exit(main())
