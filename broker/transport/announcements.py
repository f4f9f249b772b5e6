"""A peer's subscription to weight announcements, beside its link to the broker."""

import asyncio
import random
from collections.abc import Callable
from typing import Final

import zmq

from headrace.broker.protocol.messages import Announce, WireError, decode
from headrace.broker.security import curve
from headrace.broker.security.keys import Key
from headrace.broker.transport import endpoints
from headrace.broker.transport.mailbox import Mailbox

_AGAIN_S: Final = 5.0


class AnnouncementListener:
    """Owns one SUB at a time. Announcements missed meanwhile come with the beat."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        key: Key | None,
        handle: Callable[[Announce], None],
    ) -> None:
        self._context = context
        self._key = key
        self._handle = handle  # of several that wait only the newest is handed on
        self._known = asyncio.Event()  # set when there is an address to subscribe to
        # That address, and the link's connection that told it: a broker that fell silent may be
        # gone with its host, and a subscriber, which sends nothing, would be late to notice.
        self._source = ("", 0)

    def listen_to(self, address: str, connection: int) -> None:
        """Subscribes at that address, anew for each connection of the link."""
        self._source = (address, connection)
        self._known.set()

    async def run(self) -> None:
        """Opens one SUB after another, until cancelled: libzmq gives up where a handshake is
        refused."""
        await self._known.wait()
        while True:
            with Mailbox(endpoints.subscriber(self._context, self._key)) as mail:
                monitor = curve.monitor_handshakes(mail.socket)
                source = self._source
                mail.socket.connect(source[0])
                try:
                    while self._source == source and not any(curve.failures(monitor)):
                        await self._receive(mail)
                finally:
                    curve.stop_monitor(mail.socket, monitor)
            if self._source == source:  # a handshake failed
                await asyncio.sleep(_AGAIN_S * random.uniform(0.5, 1.0))

    async def _receive(self, mail: Mailbox) -> None:
        newest: Announce | None = None
        for frames in await mail.receive(1.0):
            try:
                message, _ = decode([frame.buffer for frame in frames])
            except WireError:
                continue
            if isinstance(message, Announce):
                newest = message
        if newest is not None:
            self._handle(newest)
