"""The messages about leases, between the broker and a learner; part of the union in messages.py."""

from headrace.broker.protocol.bulk_messages import Message
from headrace.broker.protocol.fields import Count, Episodes, Inc, Name, Outcome, Version


class Deliver(Message, frozen=True):
    """Gives a lease, broker -> learner: Unroll's fields, who made it, its buffers as they came."""

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
    """Says, learner -> broker, that an optimiser step used these leases."""

    inc: Inc
    version: Version
    want: Count  # absolute: unrolls this session is ready to have been given
    tags: tuple[tuple[int, int], ...]  # half-open ranges


class Nack(Message, frozen=True):
    """Ends leases without a step, learner -> broker.

    outcome REJECTED settles them; DUPLICATE: trained here before, acknowledge them as trained;
    ABANDONED gives them back untouched.
    """

    inc: Inc
    tags: tuple[tuple[int, int], ...]
    outcome: Outcome
    reason: str
    blame: bool = False  # REJECTED: their samplers are at fault


class LearnerPing(Message, frozen=True):
    """Lists the leases held, learner -> broker, every beat, so that a lost DELIVER or DONE is
    noticed."""

    inc: Inc
    version: Version
    want: Count
    max_tag: int
    held: tuple[tuple[int, int], ...]
    stats: dict[str, float]
    share: Count | None = None  # rank 0, of several brokers: unrolls of each step from this one


class LearnerPong(Message, frozen=True):
    """Tells, broker -> learner, the newest version whole at the broker (`weights`); announce again
    if it lags."""

    broker_inc: int
    version: int
    weights: int
    streams: int = 0  # that play there
