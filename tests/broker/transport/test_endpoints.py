"""Sockets as every process opens them."""

import subprocess
import sys
from pathlib import Path

import pytest
import zmq

from headrace.broker.transport import endpoints

# A sender fills a router's queue and is killed; the router does not read, and must live on. With
# ZeroMQ's own heartbeats (a line that is not there) libzmq 4.3.5 aborts within half a second.
FULL_QUEUE = """
import os, signal, sys, time, zmq
from headrace.broker.transport import endpoints

address = sys.argv[1]
child = os.fork()
if child == 0:
    sender = endpoints.dealer(zmq.Context())
    sender.connect(address)
    while True:
        sender.send(b"x" * 100_000)
router = endpoints.router(zmq.Context())
router.set(zmq.RCVHWM, 8)
EXTRA
router.bind(address)
assert router.poll(5000)
time.sleep(0.2)
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
time.sleep(1.0)
print("alive")
"""
HEARTBEATS = "router.set(zmq.HEARTBEAT_IVL, 200); router.set(zmq.HEARTBEAT_TIMEOUT, 5000)"


def run(script: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, f"ipc://{folder}/s"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.stdout.strip()


@pytest.mark.processes
def test_a_peer_that_dies_while_our_queue_is_full_does_not_take_us_along(tmp_path: Path) -> None:
    assert run(FULL_QUEUE.replace("EXTRA", ""), tmp_path) == "alive"


@pytest.mark.processes
@pytest.mark.skipif(zmq.zmq_version_info() != (4, 3, 5), reason="only known of libzmq 4.3.5")
def test_the_library_still_aborts_with_its_own_heartbeats(tmp_path: Path) -> None:
    """When this fails, libzmq was mended and its heartbeats may come back."""
    assert run(FULL_QUEUE.replace("EXTRA", HEARTBEATS), tmp_path) == ""


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "tcp://",
        "tcp://host",
        "tcp://host:port",
        "tcp://h:70000",
        "udp://h:1",
        "ipc://",
        "tcp://a b:1",
        "tcp://kö.ln:1",
        f"tcp://{'x' * 254}:1",
        "ipc:///a\0b",
    ],
)
def test_no_address(wrong: str) -> None:
    with pytest.raises(endpoints.EndpointError, match="address"):
        endpoints.check(wrong)


def test_announcements_go_next_door() -> None:
    assert endpoints.announce_endpoint("tcp://10.0.0.1:5755") == "tcp://10.0.0.1:5756"
    assert endpoints.announce_endpoint("ipc:///run/b") == "ipc:///run/b.pub"
    seen = endpoints.seen_from("tcp://10.0.0.1:5755", "tcp://0.0.0.0:5756")
    assert seen == "tcp://10.0.0.1:5756"


@pytest.mark.parametrize(
    "here",
    ["tcp://127.0.0.1:5755", "tcp://127.9.9.9:*", "tcp://localhost:1", "tcp://[::1]:1", "ipc:///b"],
)
def test_this_machine_needs_no_keys(here: str) -> None:
    assert endpoints.check_bind(here, guarded=False) == here


@pytest.mark.parametrize(
    "beyond",
    [
        "tcp://*:5755",
        "tcp://0.0.0.0:1",
        "tcp://10.0.0.1:1",
        "tcp://[::]:1",
        "tcp://eth0:1",
        "tcp://node7.example:1",
        "tcp://[2001:db8::1]:1",
    ],
)
def test_beyond_it_only_with_keys_or_if_told_so(beyond: str) -> None:
    assert endpoints.check_bind(beyond, guarded=True) == beyond
    with pytest.raises(endpoints.EndpointError, match="or say --insecure"):
        endpoints.check_bind(beyond, guarded=False)


@pytest.mark.parametrize(
    ("endpoint", "here"),
    [
        ("tcp://127.0.0.1:5755", True),
        ("tcp://*:5755", True),
        ("tcp://0.0.0.0:5755", True),
        ("tcp://node7.example:1", True),  # nobody can tell without asking
        ("ipc:///b", True),
        ("tcp://192.0.2.7:5755", False),  # kept for examples: nobody has it
        ("tcp://[2001:db8::1]:1", False),
    ],
)
def test_an_address_that_this_machine_does_not_have(endpoint: str, here: bool) -> None:
    assert endpoints.is_here(endpoint) == here


def test_what_is_no_address_is_none_with_keys_either() -> None:
    with pytest.raises(endpoints.EndpointError, match="is no address"):
        endpoints.check_bind("nowhere", guarded=True)


@pytest.mark.parametrize("make", ["router", "publisher", "dealer", "subscriber"])
def test_no_connection_to_a_vanished_host_lasts(make: str) -> None:
    """Nor an attempt to reach it: the next one looks its name up again. What it is good for shows
    on a network (tests/system/network/test_real_network.py)."""
    with zmq.Context() as context, getattr(endpoints, make)(context) as socket:
        assert socket.get(zmq.TCP_MAXRT) == 25_000
        assert socket.get(zmq.CONNECT_TIMEOUT) == (2000 if make in ("dealer", "subscriber") else 0)
