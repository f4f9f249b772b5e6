"""The size of one unroll of a run, and whether that can travel."""

import math

from headrace.broker.protocol.messages import MAX_BUFFER_BYTES, MAX_BUFFERS
from headrace.launch.config.run_file import ConfigError, Run
from headrace.learner.spaces import Spaces, unroll_fields


def unroll_bytes(run: Run, spaces: Spaces) -> int:
    """Returns the bytes of one unroll of these spaces; refuses one that could never travel."""
    fields = unroll_fields(
        spaces,
        length=run.unroll.length,
        envs=run.unroll.envs,
        memory=run.model.memory,
        previous=run.model.previous,
    )
    largest, total = max(fields, key=lambda field: field.nbytes), sum(f.nbytes for f in fields)
    remedy = "lower unroll.length or unroll.envs"
    if largest.nbytes > MAX_BUFFER_BYTES:
        raise ConfigError(
            f"{largest.name} of one unroll has {largest.nbytes / 2**20:.0f} MiB, and a buffer at"
            f" most {MAX_BUFFER_BYTES >> 20}; {remedy}"
        )
    if len(fields) > MAX_BUFFERS:
        raise ConfigError(f"an unroll has {len(fields)} buffers, and at most {MAX_BUFFERS} travel")
    needed = total * (run.pacing.batch_unrolls + 1) / 2**20
    if needed > run.broker.queue_mb:
        raise ConfigError(
            f"{run.pacing.batch_unrolls} unrolls of {total / 2**20:.1f} MiB and one more do not fit"
            f" into broker.queue_mb = {run.broker.queue_mb:g}; {remedy}, or raise it to"
            f" {math.ceil(needed)}"
        )
    return total
