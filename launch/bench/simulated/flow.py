"""The throughput and CPU cost of one simulated sampler, a real broker and one simulated learner."""

import time
from dataclasses import dataclass

from headrace.launch.bench.simulated.cluster import ProcessLoad, SimulatedCluster
from headrace.launch.bench.simulated.processes import LearnerSpec, SamplersSpec

BATCH = 32  # unrolls an optimiser step, as in the IMPALA paper
LAG = 1  # (1 + 1) x 32 = 64 unrolls on their way
_STREAMS = 16


@dataclass(frozen=True, slots=True)
class Flow:
    """Holds what went through during the measurement."""

    unrolls: int  # acknowledged
    seconds: float
    cpu_s: float  # of all three processes

    @property
    def per_s(self) -> float:
        return self.unrolls / self.seconds


def measure(*, size: int, seconds: float, tcp: bool = False, keys: bool = False) -> Flow:
    """Measures unrolls of that size, sent as fast as credit comes, without weights."""
    with SimulatedCluster(
        tcp=tcp,
        keys=keys,
        pacing={"batch_unrolls": BATCH, "max_lag": LAG, "max_lag_hard": 10**6},
        broker={"beat_s": 1.0},
    ) as cluster:
        broker = cluster.broker()
        learner = LearnerSpec(
            cluster.address,
            cluster.run,
            str(cluster.folder / "learner.json"),
            bytes=size,
            weights_bytes=0,
            every_s=0.1,
            key=cluster.key("learner"),
        )
        samplers = SamplersSpec(
            cluster.address,
            str(cluster.folder / "samplers.json"),
            count=1,
            streams=_STREAMS,
            bytes=size,
            weights=False,
            key=cluster.key("actor"),
        )
        roles = [broker, cluster.start(samplers), cluster.start(learner)]
        cluster.until(lambda: cluster.report(roles[2])["trained"], "the first batch is trained")
        time.sleep(0.5)  # let the flow settle
        cpu, first = sum(ProcessLoad.of(pid).cpu_s for pid in roles), cluster.report(roles[2])
        time.sleep(seconds)
        last = cluster.report(roles[2])
        cpu = sum(ProcessLoad.of(pid).cpu_s for pid in roles) - cpu
        return Flow(last["trained"] - first["trained"], last["at"] - first["at"], cpu)
