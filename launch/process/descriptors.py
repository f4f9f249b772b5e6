"""Descriptors: how many a role needs, and whether this process may have them; checked at start.

A process that runs out of them later accepts no connection, opens no file, and nobody who could
help hears of it. So the soft limit is raised as far as needed; where the hard limit forbids that,
the role does not start, and says what to change.

Counted on Linux: a broker has 22 of its own, and two for each sampler (one for messages, one for
weight announcements); a learner has 21, a sampler 24.
"""

import logging
import resource

import msgspec

from headrace.broker.config import BrokerConfig
from headrace.launch.config import run_file

log = logging.getLogger(__name__)

# For what a role opens itself: files, journals, metrics connections, the event loop.
_OWN = 64
_WORKERS = 4096
_BROKER_OWN = 64
# Two connections of each, and a fifth more for those that are being replaced.
_EACH_PEER = 2.4


class DescriptorLimitError(run_file.ConfigError):
    """Says, in one line, that this process may open too few files."""


def allowed() -> int:
    """Returns the hard limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return 1 << 30 if hard == resource.RLIM_INFINITY else hard


def raise_to(needed: int) -> int:
    """Raises the soft limit as far as needed and allowed; returns what it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return needed
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, allowed()), hard))
    return min(needed, allowed())


def ensure(who: str, needed: int, *, or_else: str = "") -> None:
    """Raises the soft limit to `needed`; DescriptorLimitError, which says what to do, where that is
    not allowed."""
    have = raise_to(needed)
    if have < needed:
        raise DescriptorLimitError(
            f"{who} needs {needed} descriptors and may open {have}: raise the limit by"
            f" `ulimit -n {needed}` as root, or LimitNOFILE={needed} in its unit{or_else}"
        )


def for_peer(who: str) -> None:
    """Ensures enough for a learner, an evaluator or a sampler. Worker processes cost one more each;
    whether that many are allowed is checked where they are started."""
    ensure(who, _OWN)
    raise_to(_OWN + _WORKERS)


def of_peer() -> int:
    """Returns the descriptors of a learner, an evaluator or a sampler, with all the workers it
    could have."""
    return _OWN + _WORKERS


def of_broker(peers: int) -> int:
    """Returns the descriptors that a broker of this many peers needs."""
    return _BROKER_OWN + int(peers * _EACH_PEER)


def fitting_peers() -> int:
    """Returns how many peers a broker can have under the hard limit."""
    return max(0, int((allowed() - _BROKER_OWN) / _EACH_PEER))


def for_broker(run: run_file.Run) -> run_file.Run:
    """Returns the run with as many peers as the hard limit allows; DescriptorLimitError when the
    run asks for more.

    The default is a limit, not a wish: a machine that allows fewer starts with fewer, and refuses
    the peers beyond.
    """
    peers, fitting = run.broker.peers, fitting_peers()
    if fitting and peers > fitting and peers == BrokerConfig().peers:
        log.info(
            "%d descriptors are allowed, enough for %d peers at once, not %d; raise the limit"
            " (ulimit -Hn, LimitNOFILE=) if there may be more",
            allowed(),
            fitting,
            peers,
        )
        peers = fitting
        run = msgspec.structs.replace(run, broker=msgspec.structs.replace(run.broker, peers=peers))
    fewer = f", or set broker.peers = {fitting}" if fitting else ""
    ensure(f"a broker of {peers} peers", of_broker(peers), or_else=fewer)
    return run
