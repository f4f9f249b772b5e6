"""Over a slow line weights come as what changed since the version before."""

import asyncio
import time
from itertools import pairwise
from statistics import median

import pytest
import zmq

from headrace.actors.envs.make import probe
from headrace.broker.peers.evaluator import EvaluatorEnd
from headrace.launch.config import run_file
from tests.system.conftest import PATIENCE_S, RUN, Place
from tests.system.harness.figures import pick, say
from tests.system.network.proxy import Proxy

HIDDEN = pick(300, 1200)  # 0.7 MB of weights, or 12 MB
LINE_KB_S = pick(2000.0, 2500.0)
VERSIONS = pick(8, 30)


async def arrivals(
    end: EvaluatorEnd, line: Proxy, spaces: tuple[str, str]
) -> list[tuple[int, int, float]]:
    """Takes version after version; returns their sizes, what the line carried until each, and
    when."""
    found: list[tuple[int, int, float]] = []
    end.open(spaces)
    end.ask_for_blob()
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        serving = group.create_task(end.link.run())
        while len(found) < VERSIONS:
            await end.news.wait()
            end.news.clear()
            blob = end.take_blob()
            end.ask_for_blob()
            if blob is not None:
                found.append((blob.announce.size, line.from_broker, time.monotonic()))
                end.weights.acts_with(blob.announce.version, blob.announce.digest)
        serving.cancel()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("wire", "most"), [("float32", 0.9), ("bfloat16", 0.6)])
def test_weights_over_a_slow_line(place: Place, tcp: str, wire: str, most: float) -> None:
    """Of the bytes of a whole version: `most`. In bfloat16 that has half of them."""
    larger = f'hidden = [{HIDDEN}, {HIDDEN}]\nwire = "{wire}"'
    run = RUN.replace("hidden = [16]", larger)
    place.run = place.toml("run.toml", f"{run}\n[learner]\nlr = 1e-4\n")
    seen = probe(run_file.load(place.run, []).env)
    broker, learner = place.broker(bind=tcp), place.learner(broker=tcp)
    sampler = place.actor(broker=tcp)
    place.trains(4)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with Proxy(tcp) as line:
        line.kb_s = LINE_KB_S
        end = EvaluatorEnd(line.endpoint, name="far", inc=77, context=context)
        found = asyncio.run(arrivals(end, line, (seen.digest(), str(seen))))
    context.destroy(linger=0)
    size = found[0][0]
    pairs = list(pairwise(found[1:]))  # the first one came whole
    parts = [(after[1] - before[1]) / size for before, after in pairs]
    say(
        "weights over a line",
        wire=wire,
        weights_mb=size / 1e6,
        line_kb_s=LINE_KB_S,
        bytes_of_whole=median(parts),
        version_s=median(after[2] - before[2] for before, after in pairs),
    )
    assert median(parts) < most
    assert sampler.term() == learner.term() == broker.term() == 0
