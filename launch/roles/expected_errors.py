"""The expected failures of a peer that gets its run from the broker, as one line and a status."""

import logging
from collections.abc import Callable

from headrace.actors.envs.convert import EnvError
from headrace.broker.transport.endpoints import EndpointError
from headrace.broker.transport.link import RefusedError
from headrace.launch.config import run_file
from headrace.launch.process import http, logs, runtime
from headrace.learner.weights import WeightsError

log = logging.getLogger(__name__)


def guarded(role: Callable[[], int]) -> int:
    """Runs the role; returns its exit status, and logs every expected failure in one line."""
    try:
        return role()
    except BaseExceptionGroup as group:
        expected = (EnvError, RefusedError, run_file.ConfigError, WeightsError, ValueError)
        ours, other = group.split(expected)
        if ours is None or other is not None:
            raise
        logs.log_end(log, ours)
    except (EndpointError, run_file.ConfigError, http.PortError) as error:
        logs.log_end(log, error)
    return runtime.YOUR_INPUT
