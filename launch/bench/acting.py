"""Acting in every sampler beside acting in one process for all of them.

Processes call a network for their rows again and again, as samplers do whose environments take no
time and whose `actor.acting` is "auto". They go through one trial of both ways, which begins every
two minutes, and go on for a while as it was decided.
"""

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import torch

from headrace.actors.acting.central.choice import EVERY_S, PLACES, THREADS, Choice
from headrace.actors.acting.central.client import CentralNetwork
from headrace.actors.acting.policy import Policy
from headrace.broker.weights.blobs import Blob
from headrace.broker.weights.weight_shelf import WeightShelf
from headrace.launch.bench import output
from headrace.launch.bench.learner.learner import NETWORKS
from headrace.launch.config.run_file import ConfigError
from headrace.launch.process import forking, runtime
from headrace.launch.process.node_reports import ReportSender
from headrace.launch.roles.act import act
from headrace.learner.models.build import build
from headrace.learner.weights import FlatWeights, layout_digest

_SHELF: Final = "weights"
_STARTED_BY_S: Final = 20.0  # before a trial
_GO_ON_S: Final = 10.0  # after it
# What is counted, in seconds of the trial. Of the act process's ways the second half, as there.
_COUNTED: Final = {
    "all_threads": (THREADS[0] + THREADS[1] / 2, THREADS[0] + THREADS[1]),
    "one_thread": (THREADS[0] + THREADS[1] * 1.5, THREADS[0] + THREADS[1] * 2),
    "local": (PLACES[0] + PLACES[1] * 1.5, PLACES[0] + PLACES[1] * 2),
    "auto": (PLACES[0] + PLACES[1] * 2 + 1, PLACES[0] + PLACES[1] * 2 + _GO_ON_S),
}
_WORDS: Final = "headrace bench acting [NETWORK [SAMPLERS [ROWS]]]"


class _Way(msgspec.Struct):
    """Holds what one process did by one way."""

    rows: int
    took_ms: list[float]  # of each call


def bench(words: Sequence[str]) -> dict[str, Any]:
    """Measures both ways, and prints the figures."""
    name, samplers, rows = _asked(words)
    torch.set_num_threads(1)  # forks keep one thread only
    output.parameters(network=name, samplers=samplers, rows=rows)
    with tempfile.TemporaryDirectory(prefix="hr-") as made:
        ways = _measure(Path(made), name, samplers, rows)
    figures: dict[str, Any] = {"network": name, "samplers": samplers, "rows": rows}
    figures["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    for way, (begin, end) in _COUNTED.items():
        took = [ms for each in ways for ms in each[way].took_ms]
        figures[f"{way}_rows_per_s"] = round(sum(each[way].rows for each in ways) / (end - begin))
        p50, p99 = np.quantile(took, (0.5, 0.99))
        figures[f"{way}_ms"] = [round(float(p50), 3), round(float(p99), 3)]
    figures["auto_over_local"] = round(
        figures["auto_rows_per_s"] / max(figures["local_rows_per_s"], 1), 3
    )
    output.result("acting", figures)
    return figures


def _asked(words: Sequence[str]) -> tuple[str, int, int]:
    name, *sizes = words or ["nature"]
    if name not in NETWORKS or len(sizes) > 2 or not all(x.isdigit() and int(x) for x in sizes):
        raise ConfigError(f"{_WORDS}: the network is one of {', '.join(NETWORKS)}")
    samplers, rows = [*map(int, sizes), *(4 * runtime.cores(), 1)[len(sizes) :]]
    return name, samplers, rows


def _measure(folder: Path, name: str, samplers: int, rows: int) -> list[dict[str, _Way]]:
    network = NETWORKS[name]
    model = build(network.model, network.spaces, seed=0)
    begin = -(-(time.monotonic() + _STARTED_BY_S) // EVERY_S) * EVERY_S
    with contextlib.closing(WeightShelf(folder / _SHELF)) as shelf:
        blob = Blob.of(0, layout_digest(model), FlatWeights(model).dump())
        shelf.put(blob)
        sender = ReportSender(folder / "nobody")
        server = forking.fork(forking.Work("act", partial(act, folder=folder, sender=sender)))
        facts = (folder, name, rows, blob.announce.digest, begin)
        works = [partial(_act, *facts, number=n) for n in range(samplers)]
        pids = [forking.fork(forking.Work(f"sampler-{n}", work)) for n, work in enumerate(works)]
        try:
            ended = [os.waitpid(pid, 0)[1] for pid in pids]
        finally:
            os.kill(server, signal.SIGTERM)
            os.waitpid(server, 0)
            sender.close()
    if any(ended):
        raise ChildProcessError("a sampler failed; its lines above say why")
    reports = [(folder / str(n)).read_bytes() for n in range(samplers)]
    return [msgspec.json.decode(report, type=dict[str, _Way]) for report in reports]


def _act(folder: Path, name: str, rows: int, weights: str, begin: float, *, number: int) -> int:
    """Acts through a trial that begins then, beside the others; writes down what came of it."""
    network = NETWORKS[name]
    policy = Policy(network.model, network.spaces, seed=0)
    asks = CentralNetwork(
        policy.network,
        folder / _SHELF,
        facts=(network.model, network.spaces, "auto"),
        rows=rows,
        sizes=(policy.numbers, policy.memory),
        weights=lambda: weights,
        choice=Choice(PLACES),
    )
    dice = np.random.default_rng(number)
    obs: dict[str, Any] = {
        leaf.name: dice.integers(0, 256, (rows, *leaf.seen)).astype(leaf.dtype)
        for leaf in network.spaces.observation
    }
    memory = np.zeros((rows, policy.memory), np.float32) if policy.memory else None
    while time.monotonic() < begin:
        asks.params(obs, memory)
        time.sleep(0.1)
    if not asks.taken:
        raise ConfigError("the act process did not start")
    ways = {way: _Way(0, []) for way in _COUNTED}
    while (since := time.monotonic() - begin) < _COUNTED["auto"][1]:
        asks.params(obs, memory)
        took = time.monotonic() - begin - since
        for way, (start, end) in _COUNTED.items():
            if start <= since < end:
                ways[way].rows += rows
                ways[way].took_ms.append(took * 1e3)
    asks.close()
    (folder / str(number)).write_bytes(msgspec.json.encode(ways))
    return runtime.OK
