"""Many simulated samplers at real brokers: do all connect, get equal shares, and at what cost?

All samplers connect at once while there is no learner: the broker's memory then is the cost of a
connection. Then a learner starts, and all send as fast as credit lets them.
"""

import re
import statistics
import time
import urllib.request
from collections.abc import Sequence
from typing import Any

from headrace.broker.weights.blobs import MAX_BYTES
from headrace.launch.bench import broker, output
from headrace.launch.bench.simulated.cluster import ProcessLoad, SimulatedCluster
from headrace.launch.bench.simulated.latency import Latencies
from headrace.launch.bench.simulated.processes import LearnerSpec, SamplersSpec
from headrace.launch.config import run_file

_MAX_LAG = 2


def size_of(words: Sequence[str]) -> tuple[int, int, int, int, int, int]:
    """Parses `headrace bench crowd [SAMPLERS [NODES [BROKERS [WEIGHTS [GROUPS [BATCH]]]]]]`."""
    numbers = [int(word) for word in words if word.isdecimal()]
    given = (*numbers, *(1000, 0, 1, 4096, 1, 0)[len(numbers) :])
    samplers, nodes, brokers, weights, groups, batch, *more = given
    known = not more and len(numbers) == len(words) and 1 <= brokers <= 8 and 1 <= groups <= 64
    if not known or not 10 <= samplers <= 20_000 or nodes > samplers or weights > MAX_BYTES:
        raise run_file.ConfigError(
            f"headrace bench crowd {' '.join(words)}: say how many samplers, 10 to 20000, behind"
            " how many nodes they are (0: each speaks for itself), with how many brokers, 1 to 8,"
            f" of how many bytes their weights are, up to {MAX_BYTES}, how many groups of"
            " environments each has, 1 to 64, and how many unrolls make a step (0: one of each"
            " group)"
        )
    return samplers, nodes, brokers, weights, groups, batch


def bench(
    samplers: int,
    nodes: int = 0,
    brokers: int = 1,
    weights: int = 4096,
    groups: int = 1,
    batch: int = 0,
    *,
    size: int = 1024,
    seconds: float = 30.0,
) -> dict[str, Any]:
    # Those of nodes are few connections, and more processes would only take turns.
    processes = min(2, nodes) or 10
    batch = batch or samplers * groups  # one unroll of each group, which is when weights go out
    output.parameters(
        samplers=samplers,
        nodes=nodes,
        brokers=brokers,
        processes=processes,
        bytes=size,
        groups=groups,
        batch=batch,
        max_lag=_MAX_LAG,
        weights_bytes=weights,
        seconds=seconds,
    )
    figures = measure(
        samplers=samplers,
        nodes=nodes,
        brokers=brokers,
        groups=groups,
        batch=batch,
        processes=processes,
        size=size,
        seconds=seconds,
        weights=weights,
    )
    figures["batch"] = batch
    figures["bare_per_s"] = round(broker.forward_bare(size, min(3.0, seconds)))
    output.result("crowd", figures)
    return figures


def measure(
    *,
    samplers: int,
    nodes: int = 0,
    brokers: int = 1,
    groups: int = 1,
    batch: int,
    processes: int,
    size: int,
    seconds: float,
    weights: int,
) -> dict[str, Any]:
    pacing = {"batch_unrolls": batch, "max_lag": _MAX_LAG}
    with SimulatedCluster(pacing=pacing, broker={"shards": brokers}) as cluster:
        served = [
            cluster.broker("--ledger", cluster.ledger, "--metrics-port", "0", shard=shard)
            for shard in range(brokers)
        ]
        base = ProcessLoad.of(*served)
        gate = cluster.folder / "gate"
        crowd = [
            cluster.start(
                _samplers(
                    cluster,
                    n,
                    every_s=min(2.0, seconds / 10),
                    bytes=size,
                    count=samplers // processes + (n < samplers % processes),
                    nodes=nodes // processes + (n < nodes % processes),
                    weights=weights > 0,
                    streams=groups,
                )
            )
            for n in range(processes)
        ]
        for pid in crowd:
            cluster.report(pid)
        began = time.monotonic()
        gate.touch()
        cluster.until(lambda: _welcomed(cluster, crowd) == samplers, "every sampler is welcomed")
        connected = max(one["welcomed"] for one in _sampler_reports(cluster, crowd)) - began
        time.sleep(2.0)  # lets its memory settle
        idle, scrape = ProcessLoad.of(*served), _scrape_ms(cluster)
        learner = cluster.start(_learner(cluster, size, weights))
        cluster.until(
            lambda: all(one["settled"] for one in _sampler_reports(cluster, crowd)),
            "every sampler is answered",
        )
        loaded = _measure_load(cluster, served, crowd, learner, seconds)
        cluster.end(crowd)
        cluster.end([learner])
        hellos, versions, arrived = (
            sum(cluster.report(pid)[name] for pid in crowd)
            for name in ("hellos", "versions", "weights_arrived")
        )
        cluster.end(served)  # only then is their ledger whole
        account = cluster.account()
        return {
            "samplers": samplers,
            "nodes": nodes,
            "brokers": brokers,
            "groups": groups,
            "connected_s": round(connected, 2),
            "metrics_idle_ms": scrape,
            "idle_kb_each": _kb_each(idle, base, samplers),
            "loaded_kb_each": _kb_each(loaded.pop("load"), base, samplers),
            "descriptors": loaded.pop("descriptors"),
            **loaded,
            "hellos_each": round(hellos / samplers, 2),
            # Bytes of weights that nodes got, over those of the versions that they then had.
            "weights_copies": round(arrived / max(1, versions * (weights + 8)), 3),
            "generated": account.generated,
            **account.outcomes,
            "lost": account.in_flight,
            "twice": account.twice,
            "unaccounted": account.unaccounted(),
            "exact": account.exact(),
        }


def _learner(cluster: SimulatedCluster, size: int, weights: int) -> LearnerSpec:
    return LearnerSpec(
        cluster.address,
        cluster.run,
        str(cluster.folder / "learner.json"),
        bytes=size,
        weights_bytes=weights,
        ledger=cluster.ledger,
    )


def _samplers(cluster: SimulatedCluster, number: int, **given: Any) -> SamplersSpec:
    """Returns what one of the processes with samplers is told; they wait at the gate."""
    return SamplersSpec(
        cluster.address,
        str(cluster.folder / f"samplers-{number}.json"),
        gate=str(cluster.folder / "gate"),
        ledger=cluster.ledger,
        drain_s=10.0,
        **given,
    )


def _measure_load(
    cluster: SimulatedCluster,
    served: Sequence[int],
    crowd: Sequence[int],
    learner: int,
    seconds: float,
) -> dict[str, Any]:
    """Measures the crowd at work; the first seconds, in which the flow settles, are left out."""
    time.sleep(min(3.0, seconds / 4))
    before, settled, latencies = (
        ProcessLoad.of(*served),
        _settled(cluster, crowd),
        _latencies(cluster, crowd),
    )
    first, began, most = cluster.report(learner), time.monotonic(), before
    spread = _spread(cluster)
    while time.monotonic() < began + seconds:
        time.sleep(min(1.0, seconds / 4))
        most = max(most, ProcessLoad.of(*served), key=lambda load: load.pss_kb)
    scrape = _scrape_ms(cluster)
    after, last, lasted = ProcessLoad.of(*served), cluster.report(learner), time.monotonic() - began
    shares = [b - a for a, b in zip(settled, _settled(cluster, crowd), strict=True)]
    took = Latencies(_latencies(cluster, crowd).counts - latencies.counts)
    return {
        "load": most,
        "descriptors": max(after.descriptors, most.descriptors),
        "unrolls_per_s": round((last["trained"] - first["trained"]) / (last["at"] - first["at"])),
        "broker_cpu": round((after.cpu_s - before.cpu_s) / lasted, 2),
        "broker_us_an_unroll": round(
            1e6 * (after.cpu_s - before.cpu_s) / max(1, last["trained"] - first["trained"]), 1
        ),
        "jain": round(jain_fairness(shares), 4),
        "shares": [min(shares), max(shares)],
        "version_s": _mean_s(spread, _spread(cluster)),
        "versions_per_s": round((last["version"] - first["version"]) / lasted, 2),
        "metrics_loaded_ms": scrape,
        "ack_p50_ms": round(1e3 * took.quantile(0.5), 1),
        "ack_p99_ms": round(1e3 * took.quantile(0.99), 1),
    }


def _metrics(cluster: SimulatedCluster) -> str:
    """Returns what the first broker serves at /metrics."""
    port = re.findall(r"metrics at port (\d+)", cluster.log_of(0).read_text())[-1]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def _scrape_ms(cluster: SimulatedCluster, times: int = 9) -> float:
    """Returns the median time of a /metrics request."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        _metrics(cluster)
        took.append(time.perf_counter() - began)
    return round(1e3 * statistics.median(took), 1)


def _spread(cluster: SimulatedCluster) -> tuple[float, float]:
    """Returns seconds from when a version was whole at the first broker until samplers acted with
    it, added up, and how often that was."""
    text = _metrics(cluster)
    seconds, count = (
        float(re.findall(rf"^headrace_broker_weights_ready_seconds_{what} (\S+)", text, re.M)[0])
        for what in ("sum", "count")
    )
    return seconds, count


def _mean_s(before: tuple[float, float], after: tuple[float, float]) -> float:
    return round((after[0] - before[0]) / max(1.0, after[1] - before[1]), 3)


def jain_fairness(shares: Sequence[float]) -> float:
    """Computes Jain's fairness index: 1 = all have the same share, 1 / n = one has all."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0


def _kb_each(load: ProcessLoad, base: ProcessLoad, samplers: int) -> float:
    return round((load.pss_kb - base.pss_kb) / samplers, 1)


def _sampler_reports(cluster: SimulatedCluster, crowd: Sequence[int]) -> list[dict[str, Any]]:
    return [one for pid in crowd for one in cluster.report(pid).get("samplers", [])]


def _welcomed(cluster: SimulatedCluster, crowd: Sequence[int]) -> int:
    return sum(1 for one in _sampler_reports(cluster, crowd) if one["welcomed"] is not None)


def _settled(cluster: SimulatedCluster, crowd: Sequence[int]) -> list[int]:
    return [one["settled"] for one in _sampler_reports(cluster, crowd)]


def _latencies(cluster: SimulatedCluster, crowd: Sequence[int]) -> Latencies:
    found = Latencies()
    for pid in crowd:
        found.merge(cluster.report(pid)["latencies"])
    return found
