"""Peers that ask and do not read: what they hold of the broker's memory is bounded, and counted."""

import contextlib
import functools
import time
from typing import Any

from headrace.broker.protocol import hello_payload, messages
from headrace.launch.bench.simulated.cluster import ProcessLoad, SimulatedCluster
from headrace.launch.bench.simulated.processes import LearnerSpec, SamplersSpec
from headrace.launch.monitor.status_client import StatusClient
from tests.system.attacks import zmtp
from tests.system.attacks.zmtp import Line
from tests.system.harness.figures import pick, say

_WEIGHTS_MB = 20
_PEERS = 60
# The kernel gives up a peer that takes nothing for so long, gone or not (TCP_USER_TIMEOUT).
_UNREAD_S = 25.0


class SlowReader:
    """A peer by hand, an evaluator, that asks and takes nothing off the wire. Cut off, as one that
    took nothing for so long must be, it comes again; never before."""

    def __init__(self, address: str, inc: int) -> None:
        self._address = address
        self._inc = inc
        self.cut_off = 0  # times
        self._come()

    def _come(self) -> None:
        self._since = time.monotonic()
        self._line = Line(self._address, receive_buffer=1).shake()
        hello = messages.Hello("evaluator", f"slow-{self._inc}", self._inc)
        payload = hello_payload.encode(hello_payload.HelloPayload())
        assert self._say(messages.encode(hello, payload))

    def says(self, frames: list[Any]) -> None:
        if not self._say(frames):
            assert time.monotonic() - self._since >= _UNREAD_S, "the broker hung up"
            self.cut_off += 1
            self.close()
            self._come()

    def _say(self, frames: list[Any]) -> bool:
        last = len(frames) - 1
        parts = (zmtp.frame(bytes(frame), more=at < last) for at, frame in enumerate(frames))
        return self._line.say(b"".join(parts))

    def close(self) -> None:
        self._line.close()


class Newest:
    """Knows the newest version at the broker, and how the run goes."""

    def __init__(self, watcher: StatusClient) -> None:
        self._watcher = watcher

    def look(self) -> dict[str, Any]:
        self._watcher.ask()
        self._watcher.wait(0.5)
        self._watcher.receive()
        return self._watcher.status

    def version(self) -> int:
        return int(self.look().get("weights", -1))


def test_slow_readers_of_weights_end_nobody() -> None:
    """Sixty peers ask for each new version, again and again, and ping for answers, and read none of
    it. Who takes nothing for 25 s is cut off, and comes again. Of each the broker holds less than a
    MiB, and in all three versions of the weights; sampler and learner go on, and every unroll is
    accounted for."""
    versions = pick(25, 1000)
    pacing, own = {"batch_unrolls": 2, "max_lag": 2}, {"queue_mb": 32.0}
    with (
        SimulatedCluster(tcp=True, pacing=pacing, broker=own) as cluster,
        contextlib.ExitStack() as stack,
    ):
        broker = cluster.broker("--ledger", cluster.ledger)
        learner = cluster.start(
            LearnerSpec(
                cluster.address,
                cluster.run,
                str(cluster.folder / "learner.json"),
                delay_s=0.05,
                weights_bytes=_WEIGHTS_MB << 20,
                ledger=cluster.ledger,
            )
        )
        samplers = cluster.start(
            SamplersSpec(
                cluster.address,
                str(cluster.folder / "samplers.json"),
                count=2,
                ledger=cluster.ledger,
            )
        )
        newest = Newest(stack.enter_context(contextlib.closing(StatusClient(cluster.address))))
        cluster.until(lambda: newest.version() >= 5, "weights are published")
        calm = ProcessLoad.of(broker).rss_kb / 1024
        readers = [
            stack.enter_context(contextlib.closing(SlowReader(cluster.address, number)))
            for number in range(1, _PEERS + 1)
        ]
        first, asked, largest, unread = newest.version(), 0, calm, 0.0

        def attack(goal: int) -> bool:
            nonlocal asked, largest, unread
            status = newest.look()
            seen = int(status.get("weights", -1))
            for reader in readers:
                reader.says(messages.encode(messages.Get(seen, 0, 64)))
                reader.says(messages.encode(messages.Ping((), {})))
            asked += _PEERS
            largest = max(largest, ProcessLoad.of(broker).rss_kb / 1024)
            unread = max(unread, status.get("unread_bytes", 0) / 2**20)
            return seen >= goal and unread > 0

        # Bit by bit: how long all of them take is the machine's affair.
        for goal in range(first + 25, first + versions + 1, 25):
            cluster.until(functools.partial(attack, goal), "25 versions more")
        cluster.end([samplers])
        cluster.end([learner])
        cluster.end([broker])
        account = cluster.account()
        say(
            "slow readers",
            weights_mb=_WEIGHTS_MB,
            peers=_PEERS,
            asked=asked,
            versions=versions,
            calm_mb=calm,
            largest_mb=largest,
            unread_mb=unread,
            cut_off=sum(reader.cut_off for reader in readers),
        )
        assert (account.unaccounted(), account.twice, account.in_flight) == (0, 0, 0)
        assert 0 < unread < _PEERS * 0.75 + 3
        # Calm it may keep one version and receive one; 32 MB for what the allocator keeps.
        assert largest - calm < 3 * _WEIGHTS_MB + _PEERS * 0.75 + 32
