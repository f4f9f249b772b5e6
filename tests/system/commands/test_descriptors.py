"""Too few descriptors: said at the start, by each role. And they come back."""

import contextlib
import os
import threading
import time

import pytest
import zmq

from headrace.broker.protocol import hello_payload, messages
from headrace.broker.transport import endpoints
from headrace.launch.monitor.status_client import StatusClient
from tests.system.commands.test_metrics import port_of, scrape, value
from tests.system.conftest import Place, until
from tests.system.harness.figures import pick, say


@pytest.mark.parametrize("role", ["broker", "learner", "actor"])
def test_a_role_that_may_open_too_few_files_does_not_start(place: Place, role: str) -> None:
    """Each role is started with 50 descriptors: one line that says what to raise, status 2."""
    words = {
        "broker": ["broker", "--run", place.run, "--bind", place.ipc],
        "learner": ["learner", "--run", place.run, "--broker", place.ipc, "--out", str(place.out)],
        "actor": ["actor", "--broker", place.ipc],
    }
    limited = place.python(
        "-c",
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50));"
        "sys.argv[0] = 'headrace'; runpy.run_module('headrace.launch.cli', run_name='__main__')",
        *words[role],
    )
    assert limited.ends() == 2, limited.text()
    (said,) = [line for line in limited.lines() if " ERROR " in line or "headrace:" in line]
    assert "descriptors and may open 50: raise the limit by `ulimit -n" in said


def test_train_starts_where_few_files_are_allowed(place: Place) -> None:
    """A whole run on a machine whose hard limit is far below what 10,000 peers would need."""
    run = place.python(
        "-c",
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (300, 400));"
        "sys.argv[0] = 'headrace'; runpy.run_module('headrace.launch.cli', run_name='__main__')",
        "train",
        place.run,
        "--out",
        str(place.out),
        "--quiet",
        "--stop-steps",
        "2000",
    )
    assert run.ends() == 0, run.text()
    assert "descriptors" not in run.text()


class Honest(threading.Thread):
    """A peer that asks for the broker's numbers again and again, and keeps each answer's time."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._address = address
        self._ended = threading.Event()

    def run(self) -> None:
        with contextlib.closing(StatusClient(self._address)) as watcher:
            while not self._ended.is_set():
                began = time.monotonic()
                watcher.status = {}
                watcher.ask()
                again = began + 1.0
                while not watcher.status and not self._ended.is_set():
                    watcher.receive()
                    time.sleep(0.001)
                    if time.monotonic() > again:  # not connected yet, or not known there
                        again += 1.0
                        watcher.ask()
                self.seconds.append(time.monotonic() - began)
                time.sleep(0.005)

    def end(self) -> None:
        self._ended.set()
        self.join()

    def worst(self, seconds: float) -> float:
        """Of that time from now on."""
        begin = len(self.seconds)
        time.sleep(seconds)
        until(lambda: len(self.seconds) > begin, "an answer")
        return max(self.seconds[begin:])


@pytest.mark.alone  # it measures answers
def test_connections_that_come_and_go(place: Place, tcp: str) -> None:
    """Thousands of peers connect, say HELLO and vanish, while another one asks for numbers: it is
    not kept waiting, and every descriptor comes back."""
    began, times = time.monotonic(), pick(200, 2000)
    broker = place.broker("--metrics-port", "0", bind=tcp)
    port = port_of(broker)
    honest = Honest(tcp)
    honest.start()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        until(lambda: len(honest.seconds) > 1, "answers")
        before = value(scrape(port)["process_open_fds"])
        quiet = honest.worst(1.0)
        begin = len(honest.seconds)
        for _ in range(times):
            with endpoints.dealer(context) as peer:
                peer.connect(tcp)
                inc = int.from_bytes(os.urandom(8)) >> 1
                body = hello_payload.encode(hello_payload.HelloPayload())
                peer.set(zmq.SNDTIMEO, 30_000)
                peer.send_multipart(
                    messages.encode(messages.Hello("watcher", "passing", inc), body)
                )
                assert peer.poll(30_000), "no answer to HELLO"
        busy = sorted(honest.seconds[begin:])
        # The first message that pyzmq sends without a copy takes a few of its own, once.
        until(lambda: value(scrape(port)["process_open_fds"]) <= before + 16, "descriptors back")
    finally:
        honest.end()
        context.destroy(0)
    # A busy machine holds up any process now and then: one late answer in a hundred is its own.
    p99 = busy[int(0.99 * (len(busy) - 1))]
    assert p99 < max(0.1, 5 * quiet) and busy[-1] < 2.0, (p99, busy[-1], quiet)
    assert broker.term() == 0
    say(
        "connect and disconnect",
        faults=times,
        quiet_worst_s=quiet,
        p99_s=p99,
        worst_s=busy[-1],
        over_100_ms=sum(s > 0.1 for s in busy),
        seconds=time.monotonic() - began,
    )
