"""Leaves a broker that is gone for another one of its run: the process begins anew.

What a broker has of a peer is known there alone, so nothing is taken along: the peer joins the
other as one that was never there. Unrolls that nobody acknowledged are given up, and counted so;
those that the old broker holds are trained if it comes back.
"""

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, NoReturn

from headrace.broker.transport import several
from headrace.broker.transport.link import Link
from headrace.launch.process import runtime

log = logging.getLogger(__name__)

# A broker that is started again is back long before this many leases.
_LEASES: Final = 6
_LEASE_S: Final = 10.0  # until a broker has said its own
_LOOK_EVERY_S: Final = 1.0
ANEW: Final = 5  # exit status of a relay, by which its node begins anew


class BrokerGoneError(Exception):
    """Says that another broker of the run answers, and ours has not for long."""


async def watch(link: Link, brokers: str) -> None:
    """Raises BrokerGoneError once the link's broker is gone, and ends in no other way; `brokers`:
    all of the run's, "" = there is no other."""
    others = [one for one in several.addresses(brokers or link.endpoint) if one != link.endpoint]
    heard, lease_s = time.monotonic(), _LEASE_S
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        if link.welcome is not None:
            heard, lease_s = time.monotonic(), link.welcome.lease_s
        late = time.monotonic() > heard + _LEASES * lease_s
        if late and await asyncio.to_thread(lambda: any(map(several.answers, others))):
            raise BrokerGoneError(
                f"the broker at {link.endpoint} is gone since {_LEASES * lease_s:.0f} s, and"
                " another of the run answers: begins anew, with that"
            )


def run(main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Runs an asyncio role whose tasks `watch`; begins the process anew where its broker is gone
    and nobody has asked it to stop."""
    gone: list[Exception] = []

    async def guarded() -> int:
        role = asyncio.current_task()
        assert role is not None
        try:
            return await main()
        except* BrokerGoneError as found:
            if not role.cancelling():  # a task group takes back its own request, not a signal's
                gone.extend(found.exceptions)
        return runtime.OK

    status = runtime.run_async(guarded)
    if gone:
        log.warning("%s", gone[0])
        begin_anew()
    return status


def begin_anew() -> NoReturn:
    """Runs the command of this process from its beginning, in its place."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "headrace.launch.cli", *sys.argv[1:]])
