"""All dashboards, in the order in which an operator opens them, and the metrics that they name."""

import re
from collections.abc import Iterable
from typing import Final

from grafana.generate.dashboards import (
    broker,
    evaluation,
    hosts,
    learner,
    ledger,
    overview,
    samplers,
    weights,
)
from grafana.generate.panels import Board
from grafana.generate.registries import MetricDescription

BOARDS: Final[tuple[Board, ...]] = (
    overview.BOARD,
    samplers.BOARD,
    broker.BOARD,
    learner.BOARD,
    weights.BOARD,
    evaluation.BOARD,
    ledger.BOARD,
    hosts.BOARD,
)

_NAME: Final = re.compile(r"\b(?:headrace|process|python)_[a-z_0-9]+")
# `level:metric:operations`, as recording.yaml makes them.
_RECORDED: Final = re.compile(r"\bjob:[a-z_0-9]+:[a-z_0-9]+")


def metrics_in(text: str) -> set[str]:
    """Finds the metrics in expressions; recorded ones count as themselves, not as their parts."""
    return set(_NAME.findall(_RECORDED.sub("", text)))


def recorded_in(text: str) -> set[str]:
    return set(_RECORDED.findall(text))


def dashboards_of(metrics: Iterable[MetricDescription]) -> dict[str, tuple[str, ...]]:
    """Maps each metric to the dashboards that name it."""
    on = {
        board.name: metrics_in(
            "\n".join(q for panel in board.panels for q in panel.queries.values())
        )
        for board in BOARDS
    }
    return {
        one.name: tuple(name for name, found in on.items() if found & set(one.series))
        for one in metrics
    }
