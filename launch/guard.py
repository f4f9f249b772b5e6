"""What may be wrong with a peer that gets its run from the broker, as one line and a status."""

import logging
from collections.abc import Callable

from actors.envs.convert import EnvError
from broker.endpoints import EndpointError
from broker.link import RefusedError
from launch import config, logs, process, web
from learner.weights import WeightsError

log = logging.getLogger(__name__)


def guarded(role: Callable[[], int]) -> int:
    """The role's exit status; every expected failure is said."""
    try:
        return role()
    except BaseExceptionGroup as group:
        expected = (EnvError, RefusedError, config.ConfigError, WeightsError, ValueError)
        ours, other = group.split(expected)
        if ours is None or other is not None:
            raise
        logs.ends(log, ours)
    except (EndpointError, config.ConfigError, web.PortError) as error:
        logs.ends(log, error)
    return process.YOUR_INPUT
