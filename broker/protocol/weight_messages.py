"""Messages about weights: what there is, what is asked for, and its chunks."""

from headrace.broker.protocol.bulk_messages import Message
from headrace.broker.protocol.fields import Count, Counts, Version


class Announce(Message, frozen=True):
    """Announces weights: learner -> broker on the DEALER, broker -> all on the XPUB."""

    version: Version
    layout: str
    digest: str  # xxh3-128 over the body
    size: Count
    chunk: Count
    hashes: bytes  # 8 bytes a chunk, xxh3-64


class Get(Message, frozen=True):
    """Asks for chunks [lo, hi) of that version of the weights."""

    version: Version
    lo: Count
    hi: Count


class Chunk(Message, frozen=True):
    """Carries one chunk of weights; buffer 0 is its bytes."""

    version: Version
    index: Count


class Acting(Message, frozen=True):
    """Confirms weights (WACK), actor -> broker: I act with this version; digest recomputed from the
    loaded module."""

    version: Version
    digest: str


class Past(Announce, frozen=True):
    """Announces weights from before the newest, which a league may meet: broker -> sampler."""


class GetDelta(Get, frozen=True):
    """Asks for the same chunks as changes of those of version `base`, which the peer has."""

    base: Version


class Delta(Chunk, frozen=True):
    """Carries what changed in one chunk since version `base`; buffer 0 is that, packed."""

    base: Version


class MembersActing(Acting, frozen=True):
    """Confirms weights for samplers of a node, by its numbers for them: node -> broker."""

    members: Counts
