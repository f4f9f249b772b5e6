"""The addresses of a run's brokers where it has several, and which of them a peer speaks with.

A sampler stays with one broker as long as it lives: what it sent there is known there alone. Which
one follows from its name, so that a crowd spreads evenly and nobody needs to ask. (Where its broker
is gone for good, its process begins anew: launch/roles/gone_broker.py.)
"""

import socket
from hashlib import blake2b

from headrace.broker.transport import endpoints
from headrace.broker.transport.endpoints import EndpointError

# For a broker that may be gone: else the next one is chosen.
_ANSWERS_WITHIN_S = 2.0


def addresses(text: str) -> tuple[str, ...]:
    """Returns the addresses in a text that has commas between them; EndpointError for one that is
    none, or that stands there twice."""
    found = tuple(endpoints.check(part.strip()) for part in text.split(","))
    if twice := sorted({address for address in found if found.count(address) > 1}):
        raise EndpointError(f"{twice[0]} stands twice among the brokers {text}")
    return found


def choose(text: str, name: str) -> str:
    """Returns the address of the broker that a peer of this name speaks with: of several the first
    in its own order that answers, or the first of all."""
    given = addresses(text)
    order = sorted(given, key=lambda one: blake2b(f"{name} {one}".encode()).digest())
    if len(order) == 1:
        return order[0]
    return next(filter(answers, order), order[0])


def of_run(bind: str, shards: int) -> str:
    """Returns the addresses of a run's brokers as it names them: each takes the port for its
    announcements too, so the next broker has the second port after it."""
    return ",".join(of_shard(bind, shard) for shard in range(shards))


def of_shard(bind: str, shard: int) -> str:
    """Returns the address of one of the brokers, from that of the first."""
    host, _, port = bind.rpartition(":")
    if bind.startswith("ipc://"):
        return f"{bind}.{shard}" if shard else bind
    return bind if port in ("*", "0") else f"{host}:{int(port) + 2 * shard}"


def answers(address: str) -> bool:
    """Tells whether somebody listens at an address."""
    scheme, _, place = address.partition("://")
    host, _, port = place.rpartition(":")
    try:
        if scheme == "ipc":
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.connect(place)
        else:
            socket.create_connection((host.strip("[]"), int(port)), _ANSWERS_WITHIN_S).close()
    except (OSError, ValueError):
        return False
    return True
