"""Says where a peer is: at a connection of its own, or behind the one of its node."""

from typing import NamedTuple, TypeAlias


class MemberRoute(NamedTuple):
    """Points at a sampler behind a node. No bytes are equal to it: whatever routing id a connection
    chooses, it cannot pass for one."""

    node: bytes  # route of the node's connection
    member: int  # the node's number for it


Route: TypeAlias = bytes | MemberRoute
