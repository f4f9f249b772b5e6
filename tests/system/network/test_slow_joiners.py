"""Samplers that join over a slow line wait for their weights, and keep nobody waiting."""

import asyncio
import threading
import time
from types import TracebackType

import zmq

from headrace.actors.envs.make import probe
from headrace.broker.journal.journal import Journal
from headrace.broker.peers.sampler import SamplerEnd
from headrace.launch.config import run_file
from tests.system.conftest import RUN, Place, until
from tests.system.harness.figures import pick, say
from tests.system.network.proxy import Proxy

JOINERS = 16
HIDDEN = pick(600, 2200)  # 1.5 MB of weights, or 20 MB
LINE_KB_S = pick(25.0, 500.0)  # a minute for one version
SECONDS = pick(5.0, 45.0)


class Joiners:
    """Samplers' real ends on a thread of their own, without environments: they never come so far.

    In use they ask for credit and weights as any sampler does.
    """

    def __init__(self, endpoint: str, spaces: tuple[str, str]) -> None:
        self._endpoint = endpoint
        self._spaces = spaces
        self._ends = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop
        self.acting = 0  # how many of them have weights
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="joiners")

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        ends = [
            SamplerEnd(
                self._endpoint,
                name=f"joiner-{n}",
                inc=1000 + n,
                context=context,
                journal=Journal(None, ""),
            )
            for n in range(JOINERS)
        ]
        for end in ends:
            end.open(streams=1, spaces=self._spaces)
        tasks = [asyncio.create_task(end.serve()) for end in ends]
        await self._ends.wait()
        self.acting = sum(end.blob is not None for end in ends)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        context.destroy(linger=0)

    def __enter__(self) -> "Joiners":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._ends.set)
        self._thread.join(20.0)


def test_they_take_no_credit_before_they_have_weights(place: Place, tcp: str) -> None:
    run = RUN.replace("hidden = [16]", f"hidden = [{HIDDEN}, {HIDDEN}]")
    place.run = place.toml("run.toml", run.replace("lease_s = 2.0", "lease_s = 10.0"))
    spaces = probe(run_file.load(place.run, []).env)
    broker, learner = place.broker(bind=tcp), place.learner(broker=tcp)
    fast = place.actor("--name", "fast", broker=tcp)
    place.trains(20)
    began, before = time.monotonic(), place.trained()
    place.trains(20)
    alone = (place.trained() - before) / (time.monotonic() - began)
    with Proxy(tcp) as line:
        line.kb_s = LINE_KB_S
        with Joiners(line.endpoint, (spaces.digest(), str(spaces))) as joiners:
            until(lambda: broker.text().count("actor joiner-") >= JOINERS, "all to join")
            broker.says("always wait")
            # The credit that the fast one held may bring a few; then it must be given anew.
            place.trains(10)
            began, before = time.monotonic(), place.trained()
            while time.monotonic() - began < SECONDS:
                time.sleep(0.1)
            beside = (place.trained() - before) / (time.monotonic() - began)
    say(
        "slow joiners",
        joiners=JOINERS,
        weights_mb=4e-6 * HIDDEN**2,
        line_kb_s=LINE_KB_S,
        alone_unrolls_s=alone,
        beside_unrolls_s=beside,
        seconds=SECONDS,
    )
    assert joiners.acting == 0, "the line was not slow"
    assert beside > 0.3 * alone
    assert fast.term() == learner.term() == broker.term() == 0
