"""Unrolls that take longer than a lease on their line: they arrive, and at the line's rate.

Real broker, real ends and sockets, simulated environments. What is trained must have come over the
line, so the account of bytes says how much of what the line carried was of use.
"""

import contextlib
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from headrace.launch.bench.simulated.cluster import SimulatedCluster
from headrace.launch.bench.simulated.processes import LearnerSpec, SamplersSpec
from tests.system.harness.figures import LONG, pick, say
from tests.system.network.proxy import Proxy

_KB_S_OF_MBIT = 125.0


@dataclass(frozen=True, slots=True)
class Carried:
    """From the first trained unroll on."""

    unrolls: int
    seconds: float
    line_s: float  # that the line needs for so many bytes
    of_line: int  # bytes that the line carried meanwhile
    size: int  # of an unroll
    pong_s: float  # the longest from a PING of a sampler to its PONG
    reconnects: int

    @property
    def rate(self) -> float:
        """Of the line's."""
        return self.line_s / self.seconds

    @property
    def useful(self) -> float:
        """Of the bytes that the line carried."""
        return self.unrolls * self.size / self.of_line


def carried(
    size: int,
    mbit: float,
    *,
    unrolls: int,
    far: str = "samplers",
    samplers: int = 1,
    weights: int = 0,
    lease_s: float = 10.0,
    up_mbit: float = 0.0,
    stands_s: float = 0.0,
) -> Carried:
    """Trains so many unrolls, with the samplers or the learner at the far end of a line, which
    breaks whenever it stood for `stands_s`."""
    with SimulatedCluster(
        tcp=True,
        pacing={"batch_unrolls": 1, "max_lag": 1 + samplers, "max_lag_hard": 10**6},
        broker={"beat_s": lease_s / 10, "lease_s": lease_s},
    ) as cluster:
        cluster.broker()
        with Proxy(cluster.address) as line, _broken(line, stands_s):
            line.kb_s = mbit * _KB_S_OF_MBIT
            line.kb_s_up = up_mbit * _KB_S_OF_MBIT
            ends = {"samplers": cluster.address, "learner": cluster.address, far: line.endpoint}
            learner = cluster.start(
                LearnerSpec(
                    ends["learner"],
                    cluster.run,
                    str(cluster.folder / "learner.json"),
                    bytes=size,
                    weights_bytes=weights,
                    every_s=0.05,
                )
            )
            acting = cluster.start(
                SamplersSpec(
                    ends["samplers"],
                    str(cluster.folder / "samplers.json"),
                    count=samplers,
                    bytes=size,
                    weights=weights > 0,
                    every_s=0.05,
                    drain_s=0.0,
                )
            )

            def trained(goal: int) -> tuple[dict[str, Any], int]:
                def look() -> dict[str, Any] | None:
                    report = cluster.report(learner)
                    return report if report["trained"] >= goal else None

                report = cluster.until(look, f"{goal} unrolls of {size} bytes at {mbit} Mbit/s")
                return report, line.to_broker if far == "samplers" else line.from_broker

            (first, began), (last, ended) = trained(1), trained(1 + unrolls)
            seen = cluster.report(acting)
            count = last["trained"] - first["trained"]
            way_mbit = up_mbit if up_mbit and far == "samplers" else mbit
            return Carried(
                count,
                last["at"] - first["at"],
                count * size / (1e6 / 8 * way_mbit),
                ended - began,
                size,
                max(s["pong_s"] for s in seen["samplers"]),
                seen["reconnects"] + last["reconnects"],
            )


@contextlib.contextmanager
def _broken(line: Proxy, every_s: float) -> Iterator[None]:
    """Resets all its connections, again and again; 0 = never."""
    over = threading.Event()

    def reset() -> None:
        while not over.wait(every_s):
            line.reset()

    thread = threading.Thread(target=reset, name="resets")
    if every_s:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if every_s:
            thread.join()


@pytest.mark.alone
@pytest.mark.parametrize("far", ["samplers", "learner"])
def test_an_unroll_takes_longer_than_a_lease(far: str) -> None:
    """Three leases of the line each. Where all are busy, the line carries on before it is read that
    the unroll was trained: so alone."""
    lease_s, mbit = 2.0, 1.6
    size = int(3 * lease_s * mbit * 1e6 / 8) // pick(2, 1)
    done = carried(size, mbit, unrolls=pick(1, 4), far=far, lease_s=lease_s)
    say(
        f"slow line before the {far}",
        size=size,
        mbit=mbit,
        rate=done.rate,
        useful=done.useful,
        pong_s=done.pong_s,
        reconnects=done.reconnects,
    )
    assert done.useful > 0.9


@pytest.mark.parametrize("far", ["samplers", "learner"])
def test_a_line_never_stands_as_long_as_an_unroll_takes(far: str) -> None:
    """What is there when it breaks is not sent again."""
    mbit, stands_s = 1.6, pick(1.5, 20.0)
    size = int(1.5 * stands_s * mbit * 1e6 / 8)
    done = carried(
        size, mbit, unrolls=pick(1, 3), far=far, lease_s=pick(2.0, 10.0), stands_s=stands_s
    )
    say(
        f"broken line before the {far}",
        size=size,
        mbit=mbit,
        stands_s=stands_s,
        rate=done.rate,
        useful=done.useful,
    )
    assert done.unrolls >= 1


_SIZES = (64_000, 1_000_000, 6_500_000, 20_000_000)
_RATES = (0.25, 1.0, 2.0, 10.0, 100.0)  # Mbit/s
_MOST_S = 100.0  # that a cell's unroll may take on its line
_AT_LEAST_S = 20.0  # of line


def _cell(size: int, mbit: float, **more: Any) -> tuple[str, Carried]:
    way_mbit = more.get("up_mbit", mbit) if more.get("far") != "learner" else mbit
    one_s = size / (way_mbit * 1e6 / 8)
    unrolls = max(1, round(_AT_LEAST_S / one_s))
    # Several have one each on its way when the first is trained: the more of them, the less it is.
    done = carried(size, mbit, unrolls=unrolls * more.get("samplers", 1), **more)
    words = " ".join(f"{key}={value}" for key, value in more.items())
    return f"{size / 1e6:g} MB at {mbit:g} Mbit/s {words}", done


@pytest.mark.skipif(not LONG, reason="minutes: make soak")
def test_the_table_of_sizes_and_rates() -> None:
    """Lines of up to 2 Mbit/s at the same time: there nobody needs a processor."""
    cells: list[tuple[int, float, dict[str, Any]]] = [
        (size, mbit, {})
        for size, mbit in itertools.product(_SIZES, _RATES)
        if size / (mbit * 1e6 / 8) <= _MOST_S
    ]
    cells += [
        (6_500_000, 2.0, {"far": "learner"}),
        (6_500_000, 2.0, {"far": "learner", "weights": 500_000}),
        (1_000_000, 2.0, {"samplers": 4}),
        (1_000_000, 2.0, {"weights": 500_000}),
        (1_000_000, 16.0, {"up_mbit": 1.0, "weights": 500_000}),
        (1_000_000, 1.0, {"up_mbit": 16.0, "far": "learner", "weights": 500_000}),
    ]
    slow = [cell for cell in cells if cell[1] <= 2.0 or cell[2]]
    fast = [cell for cell in cells if cell not in slow]
    with ThreadPoolExecutor(len(slow)) as pool:
        done = list(pool.map(lambda cell: _cell(cell[0], cell[1], **cell[2]), slow))
    done += [_cell(size, mbit, **more) for size, mbit, more in fast]
    for name, one in done:
        say(
            name,
            rate=one.rate,
            useful=one.useful,
            pong_s=one.pong_s,
            reconnects=one.reconnects,
            unrolls=one.unrolls,
            seconds=one.seconds,
        )
    assert all(one.reconnects == 0 for _, one in done)
    assert all(one.pong_s < 5.0 for _, one in done), "beats were behind bulk"
    assert all(one.rate > 0.9 for _, one in done)
