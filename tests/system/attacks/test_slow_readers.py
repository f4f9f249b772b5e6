"""Peers that ask and do not read: what they hold of the broker's memory is bounded, and counted."""

import contextlib
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


class SlowReader:
    """A peer by hand, an evaluator, that asks and takes nothing off the wire."""

    def __init__(self, line: Line, inc: int) -> None:
        self._line = line
        hello = messages.Hello("evaluator", f"slow-{inc}", inc)
        self.says(messages.encode(hello, hello_payload.encode(hello_payload.HelloPayload())))

    def says(self, frames: list[Any]) -> None:
        last = len(frames) - 1
        parts = (zmtp.frame(bytes(frame), more=at < last) for at, frame in enumerate(frames))
        assert self._line.say(b"".join(parts)), "the broker hung up"


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
    it. Of each the broker holds less than a MiB, and in all three versions of the weights; sampler
    and learner go on, and every unroll is accounted for."""
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
            SlowReader(stack.enter_context(Line(cluster.address, receive_buffer=1)).shake(), number)
            for number in range(1, _PEERS + 1)
        ]
        first, asked, largest = newest.version(), 0, calm

        def attack() -> bool:
            nonlocal asked, largest
            seen = newest.version()
            for reader in readers:
                reader.says(messages.encode(messages.Get(seen, 0, 64)))
                reader.says(messages.encode(messages.Ping((), {})))
            asked += _PEERS
            largest = max(largest, ProcessLoad.of(broker).rss_kb / 1024)
            return seen >= first + versions

        cluster.until(attack, f"{versions} versions more")
        unread = newest.look()["unread_bytes"] / 2**20
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
        )
        assert (account.unaccounted(), account.twice, account.in_flight) == (0, 0, 0)
        assert 0 < unread < _PEERS * 0.75 + 3
        # Calm it may keep one version and receive one; 32 MB for what the allocator keeps.
        assert largest - calm < 3 * _WEIGHTS_MB + _PEERS * 0.75 + 32
