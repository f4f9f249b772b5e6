"""The figures of `headrace bench crowd`, against what they must be."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.launch.bench import crowd
from headrace.launch.bench.simulated.latency import Latencies
from headrace.launch.config import run_file


def test_quantiles_are_right_within_the_width_of_a_step() -> None:
    rng = random.Random(1)
    times = sorted(rng.lognormvariate(-5, 2) for _ in range(20_000))
    one, other, both = Latencies(), Latencies(), Latencies()
    for at, seconds in enumerate(times):
        (one if at % 3 else other).add(seconds)
    for process in (one, other):
        both.merge(json.loads(json.dumps(process.counts)))
    for part in (0.1, 0.5, 0.9, 0.99, 1.0):
        exact = times[round(part * len(times)) - 1]
        assert exact <= both.quantile(part) * (1 + 1e-9) <= exact * 1.052


def test_nothing_counted_has_no_quantile() -> None:
    assert str(Latencies().quantile(0.5)) == "nan"


@pytest.mark.parametrize(
    ("shares", "fairness"), [([3, 3, 3], 1.0), ([1, 0, 0, 0], 0.25), ([4, 2], 0.9), ([0, 0], 0.0)]
)
def test_jains_fairness(shares: list[int], fairness: float) -> None:
    assert crowd.jain_fairness(shares) == pytest.approx(fairness)


@pytest.mark.processes
def test_a_bench_that_is_killed_leaves_no_broker() -> None:
    words = (
        "import time\nfrom headrace.launch.bench.simulated.cluster import SimulatedCluster\n"
        "with SimulatedCluster() as cluster:\n"
        "    print(cluster.broker(), flush=True)\n    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE) as bench:
        assert bench.stdout is not None
        stat = Path("/proc", bench.stdout.readline().decode().strip(), "stat")
        assert stat.exists()
        bench.kill()
    deadline = time.monotonic() + 60
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, "it still runs"
        time.sleep(0.02)


def test_how_many() -> None:
    assert crowd.size_of([]) == (1000, 0, 1, 4096, 1, 0)
    assert crowd.size_of(["5000"]) == (5000, 0, 1, 4096, 1, 0)
    assert crowd.size_of(["3000", "48"]) == (3000, 48, 1, 4096, 1, 0)
    assert crowd.size_of(["3000", "48", "2"]) == (3000, 48, 2, 4096, 1, 0)
    assert crowd.size_of(["160", "160", "1", "7000000"]) == (160, 160, 1, 7_000_000, 1, 0)
    assert crowd.size_of(["1000", "16", "2", "4096", "4"]) == (1000, 16, 2, 4096, 4, 0)
    whole = ["1000", "16", "2", "4096", "4", "500"]
    assert crowd.size_of(whole) == (1000, 16, 2, 4096, 4, 500)
    for words in (
        ["9"],
        ["many"],
        ["30000"],
        ["10", "20"],
        ["10", "some"],
        ["10", "1", "9"],
        ["10", "1", "1", "500000000"],
        ["10", "1", "1", "1", "65"],
        ["10", "1", "1", "1", "1", "1", "1"],
    ):
        with pytest.raises(run_file.ConfigError, match="how many samplers"):
            crowd.size_of(words)
