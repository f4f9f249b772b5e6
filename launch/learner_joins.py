"""Joins a learner's ranks to the run: together, at one version."""

import logging
from collections.abc import Callable

from learner.feed import Feed
from learner.progress import Progress
from learner.ranks import Ranks

log = logging.getLogger(__name__)


def wait_for_broker(
    feed: Feed, ranks: Ranks, progress: Progress, stopping: Callable[[], bool]
) -> bool:
    """Until every rank is welcome; all continue at the version that rank 0 was told."""
    version: int | None = None
    while version is None:
        version = feed.welcome(timeout_s=0.2)
        if stopping():
            return False
    told = ranks.same([version])[0]
    if told > 0 and not progress.version and ranks.rank == 0:
        log.warning(
            "begins with new weights at version %d: what this run has learned until now is"
            " forgotten", told,
        )  # fmt: skip
    if told > progress.version:
        # Samplers know other weights by that number: ours get one that nobody has seen.
        progress.version = told + 1
    return True
