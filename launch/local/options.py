"""Holds what the command line says of `headrace train`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Options:
    """Holds what the command line says beside the run."""

    quiet: bool = False
    evaluate: bool | None = None  # an evaluator plays beside it; None = if it can
    record: bool = False  # every batch is kept
    web: int | None = None  # the page is served there; 0 = at a free port, None = nowhere
    # Of its broker, where samplers of somebody else come, who has prepared its folder; "" = it has
    # its own.
    endpoint: str = ""
    elsewhere: bool = False  # so is its learner, who trains several
    beside: Sequence[str] = ()  # brokers of the other policies there
    done: Sequence[Path] = ()  # folders of those that learn no more
    allow: Sequence[str] = ()  # code that the others' runs name
