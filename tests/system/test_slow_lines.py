"""Unrolls that take longer than a lease on their line: they arrive, and at the line's rate.

Real broker, real ends and sockets, simulated environments. What is trained must have come over the
line, so the account of bytes says how much of what the line carried was of use.
"""

from dataclasses import dataclass
from typing import Any

import pytest

from launch.bench.simulated import Learner, Samplers
from launch.bench.stage import Stage
from tests.system.figures import pick, say
from tests.system.proxy import Proxy

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
) -> Carried:
    """Trains so many unrolls, with the samplers or the learner at the far end of a line."""
    with Stage(
        tcp=True,
        pacing={"batch_unrolls": 1, "max_lag": 1 + samplers, "max_lag_hard": 10**6},
        broker={"beat_s": lease_s / 10, "lease_s": lease_s},
    ) as stage:
        stage.broker()
        with Proxy(stage.address) as line:
            line.kb_s = mbit * _KB_S_OF_MBIT
            line.kb_s_up = up_mbit * _KB_S_OF_MBIT
            ends = {"samplers": stage.address, "learner": stage.address, far: line.endpoint}
            learner = stage.start(
                Learner(
                    ends["learner"], stage.run, str(stage.folder / "learner.json"), bytes=size,
                    weights_bytes=weights, every_s=0.05,
                )
            )  # fmt: skip
            acting = stage.start(
                Samplers(
                    ends["samplers"], str(stage.folder / "samplers.json"), count=samplers,
                    bytes=size, weights=weights > 0, every_s=0.05, drain_s=0.0,
                )
            )  # fmt: skip

            def trained(goal: int) -> tuple[dict[str, Any], int]:
                def look() -> dict[str, Any] | None:
                    report = stage.report(learner)
                    return report if report["trained"] >= goal else None

                report = stage.until(look, f"{goal} unrolls of {size} bytes at {mbit} Mbit/s")
                return report, line.to_broker if far == "samplers" else line.from_broker

            (first, began), (last, ended) = trained(1), trained(1 + unrolls)
            seen = stage.report(acting)
            count = last["trained"] - first["trained"]
            way_mbit = up_mbit if up_mbit and far == "samplers" else mbit
            return Carried(
                count, last["at"] - first["at"], count * size / (1e6 / 8 * way_mbit),
                ended - began, size, max(s["pong_s"] for s in seen["samplers"]),
                seen["reconnects"] + last["reconnects"],
            )  # fmt: skip


@pytest.mark.parametrize("far", ["samplers", "learner"])
def test_an_unroll_takes_longer_than_a_lease(far: str) -> None:
    """Three leases of the line each."""
    lease_s, mbit = 2.0, 1.6
    size = int(3 * lease_s * mbit * 1e6 / 8) // pick(2, 1)
    done = carried(size, mbit, unrolls=pick(1, 4), far=far, lease_s=lease_s)
    say(
        f"slow line before the {far}", size=size, mbit=mbit, rate=done.rate, useful=done.useful,
        pong_s=done.pong_s, reconnects=done.reconnects,
    )  # fmt: skip
    assert done.useful > 0.9
