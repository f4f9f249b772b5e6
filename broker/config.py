"""The run's [broker], [security] and [pacing] sections."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

MOST_BROKERS = 64  # of a run


class BrokerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Says where the broker listens and how much it may hold."""

    bind: Annotated[
        str, Meta(description="where peers connect: tcp://host:port or ipc:///path")
    ] = "tcp://127.0.0.1:5755"
    announce: Annotated[
        str,
        Meta(description="where weight announcements go out; empty = next port, or path + .pub"),
    ] = ""
    shards: Annotated[
        int,
        Meta(
            ge=1,
            le=MOST_BROKERS,
            description="brokers of the run; each peer but the learner speaks with one of them, and"
            " each hears of weights from the learner. Needs pacing.max_lag >= 1",
        ),
    ] = 1
    queue_mb: Annotated[
        float, Meta(gt=0, description="most unroll bytes held; no credit is granted beyond it")
    ] = 512.0
    beat_s: Annotated[
        float, Meta(gt=0, le=60, description="heartbeat; any lost message is repaired within one")
    ] = 1.0
    lease_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="a peer silent this long is dead; its leases return;"
            " at least ten round trips",
        ),
    ] = 10.0
    attempts: Annotated[
        int, Meta(ge=1, le=100, description="deliveries before an unroll is given up as poison")
    ] = 3
    peers: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="most peers that connect at once, and eight times as many samplers behind"
            " nodes; further ones are refused",
        ),
    ] = 10_000
    streams: Annotated[int, Meta(ge=1, le=65536, description="most streams of one sampler")] = 1024
    peer_messages_s: Annotated[
        float, Meta(gt=0, description="messages a second of one peer; bursts of one second")
    ] = 20_000.0
    peer_mb_s: Annotated[float, Meta(gt=0, description="MiB a second of one peer; the same")] = (
        4_000.0
    )
    messages_s: Annotated[
        float, Meta(gt=0, description="messages a second of all peers together; the same")
    ] = 200_000.0
    mb_s: Annotated[
        float, Meta(gt=0, description="MiB a second of all peers together; the same")
    ] = 16_000.0
    hello_s: Annotated[
        float, Meta(gt=0, description="HELLOs a second of one peer; bursts of ten")
    ] = 5.0


class SecurityConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Says who may take part: SECURITY.md. Without keys the broker listens on this machine only."""

    curve: Annotated[
        bool, Meta(description="every connection is encrypted, and only known keys are let in")
    ] = False
    keys: Annotated[
        str, Meta(description="the folder of `headrace keygen`; relative to where one stands")
    ] = "keys"


class PacingConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits how far sampling may run ahead of learning, and how long a finished unroll may wait.

    accepted + running <= (max_lag + version + 1) * batch_unrolls
    """

    batch_unrolls: Annotated[
        int, Meta(ge=1, le=65536, description="unrolls per optimiser step, all ranks together")
    ] = 2
    max_lag: Annotated[
        int,
        Meta(
            ge=0,
            le=100000,
            description="sampling is at most this + 1 batches ahead of training; 0 is synchronous"
            " and on-policy. What is played slowly leaves in shorter unrolls, so that trained steps"
            " are at most this + 2 versions old",
        ),
    ] = 2
    balance: Annotated[
        Literal["speed", "environments"],
        Meta(
            description="speed: nobody waits, so fast environments supply more; environments: each"
            " group supplies whole unrolls alike, so the fast wait for the slow"
        ),
    ] = "speed"
    max_lag_hard: Annotated[
        int,
        Meta(
            ge=1,
            le=1000000,
            description="an unroll whose newest step is more versions old when its turn comes is"
            " settled as stale: it waited, as after a crash; slow play alone never makes it so",
        ),
    ] = 64
