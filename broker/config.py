"""The run's [broker] and [pacing] sections."""

from typing import Annotated

from msgspec import Meta, Struct


class BrokerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the broker listens and how much it may hold."""

    bind: Annotated[
        str, Meta(description="where peers connect: tcp://host:port or ipc:///path")
    ] = "tcp://127.0.0.1:5755"
    announce: Annotated[
        str,
        Meta(description="where weight announcements go out; empty = next port, or path + .pub"),
    ] = ""
    queue_mb: Annotated[
        float, Meta(gt=0, description="most unroll bytes held; no credit is granted beyond it")
    ] = 512.0
    beat_s: Annotated[
        float, Meta(gt=0, le=60, description="heartbeat; any lost message is repaired within one")
    ] = 1.0
    lease_s: Annotated[
        float, Meta(gt=0, le=3600, description="a peer silent this long is dead; its leases return")
    ] = 10.0
    attempts: Annotated[
        int, Meta(ge=1, le=100, description="deliveries before an unroll is given up as poison")
    ] = 3


class PacingConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How far sampling may run ahead of learning.

    accepted + running <= (max_lag + version + 1) * batch_unrolls
    """

    batch_unrolls: Annotated[
        int, Meta(ge=1, le=65536, description="unrolls per optimiser step, all ranks together")
    ] = 2
    max_lag: Annotated[
        int, Meta(ge=0, le=100000, description="versions ahead; 0 is synchronous and on-policy")
    ] = 2
    max_lag_hard: Annotated[
        int,
        Meta(ge=1, le=1000000, description="older unrolls are settled as stale (after crashes)"),
    ] = 64
