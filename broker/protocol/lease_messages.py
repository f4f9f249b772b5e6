"""The messages about leases, between the broker and a learner; part of the union in wire.py."""

from headrace.broker.protocol.bulk_messages import Message
from headrace.broker.protocol.fields import Count, Episodes, Inc, Name, Outcome, Version


class Deliver(Message, frozen=True):
    """Broker -> learner: a lease. The fields of Unroll, and who made it; buffers as they came."""

    tag: int
    attempt: int
    actor: Name
    inc: int
    stream: int
    seq: int
    floor: int
    version_min: int
    version_max: int
    steps: int
    digest: int
    ended: int
    episodes: Episodes


class Done(Message, frozen=True):
    """Learner -> broker: an optimiser step used these leases."""

    inc: Inc
    version: Version
    want: Count  # absolute: unrolls this session is ready to have been given
    tags: tuple[tuple[int, int], ...]  # half-open ranges


class Nack(Message, frozen=True):
    """Learner -> broker: these leases end without a step.

    outcome REJECTED settles them; DUPLICATE: trained here before, acknowledge them as trained;
    ABANDONED gives them back untouched.
    """

    inc: Inc
    tags: tuple[tuple[int, int], ...]
    outcome: Outcome
    reason: str
    blame: bool = False  # REJECTED: their samplers are at fault


class LearnerPing(Message, frozen=True):
    """Learner -> broker, every beat: leases held, so that a lost DELIVER or DONE is noticed."""

    inc: Inc
    version: Version
    want: Count
    max_tag: int
    held: tuple[tuple[int, int], ...]
    stats: dict[str, float]


class LearnerPong(Message, frozen=True):
    """Broker -> learner: `weights` is the newest version whole here; announce again if it lags."""

    broker_inc: int
    version: int
    weights: int
