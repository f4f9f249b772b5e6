"""Descriptors: the soft limit is raised, a hard one that is too low is said before anything starts.

Hard limits cannot be raised again, so each test runs in a process of its own.
"""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

BROKER = """
import logging, resource, sys
logging.basicConfig(level=logging.INFO, format="%(message)s")
soft, hard, *sets = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_NOFILE, (int(soft), int(hard)))
from headrace.launch.config import run_file
from headrace.launch.process import descriptors
try:
    run = descriptors.for_broker(run_file.load("cartpole", sets))
    print("peers", run.broker.peers, "soft", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
except run_file.ConfigError as error:
    print("refused:", error)
"""


def broker(*arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", BROKER, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr + done.stdout


def test_the_soft_limit_is_raised_as_far_as_needed() -> None:
    assert broker(200, 4096, "broker.peers=1000") == "peers 1000 soft 2464\n"


def test_a_soft_limit_that_suffices_stays() -> None:
    assert broker(3000, 4096, "broker.peers=1000") == "peers 1000 soft 3000\n"


def test_more_peers_than_there_can_be_are_refused_with_advice() -> None:
    said = broker(1024, 4096, "broker.peers=2000")
    assert said == (
        "refused: a broker of 2000 peers needs 4864 descriptors and may open 4096: raise the limit"
        " by `ulimit -n 4864` as root, or LimitNOFILE=4864 in its unit, or set"
        " broker.peers = 1680\n"
    )


def test_the_default_is_a_limit_and_not_a_wish() -> None:
    first, second = broker(1024, 4096).splitlines()
    assert first.startswith("4096 descriptors are allowed, enough for 1680 peers at once")
    assert second == "peers 1680 soft 4096"


def test_where_no_peer_fits_even_the_default_is_refused() -> None:
    assert "refused: a broker of 10000 peers needs 24064" in broker(60, 60)
