"""Lines between hosts that can be long, slow, lossy or cut: a router of IP packets in user space.

Each host is a network namespace with one TUN device. What its programs send is read here, and
written to the host that has the destination's address; both of the two ways that it takes, to the
router and from it, may delay, drop, double or hold it back.

Run as a process with the number of a socket, which carries orders as packets of JSON, each answered
when it is done:

    {"open": NAMESPACE}                          a host, numbered from 0; its device is eth0
    {"address": "10.88.0.1", "host": 0}          packets for it go there
    {"condition": {...}, "host": 0, "way": "to"} of its line "to" the router or "from" it
"""

import fcntl
import heapq
import itertools
import json
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from tests import nest

_TUNSETIFF, _TUN_WITHOUT_HEADER = 0x400454CA, 0x1001
_MOST_BYTES = 65536
_AT_ONCE = 64  # packets of one host before another's turn
# What a slow way lets wait; beyond, packets are dropped, as by a modem of a sensible size.
_QUEUE_S = 0.4
_OVERTAKEN_S = 0.02  # later than it should be: many packets of a busy line pass by meanwhile


class Condition(NamedTuple):
    """One way of a line; as it is made, nothing is wrong with it."""

    delay_s: float = 0.0
    loss: float = 0.0  # share of the packets that vanish; 1 = it is cut
    twice: float = 0.0  # share that comes two times
    overtaken: float = 0.0  # share that comes after some of those behind it
    kbit_s: float = 0.0  # 0 = as fast as it can


class Way:
    """One direction of a host's line, pure: when does a packet come out?"""

    def __init__(self, random: Random) -> None:
        self.condition = Condition()
        self._random = random
        self._free_at = 0.0  # when the last packet that waits here is through

    def out(self, size: int, now: float) -> Iterator[float]:
        """Of a packet that comes in now: never, once or twice."""
        delay_s, loss, twice, overtaken, kbit_s = self.condition
        if loss and self._random.random() < loss:
            return
        at = now
        if kbit_s:
            begins = max(now, self._free_at)
            if begins - now > _QUEUE_S:
                return
            self._free_at = at = begins + size / (125 * kbit_s)
        if overtaken and self._random.random() < overtaken:
            at += _OVERTAKEN_S
        yield at + delay_s
        if twice and self._random.random() < twice:
            yield at + delay_s


class Router:
    """All hosts, and what is under way between them."""

    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders
        self._random = Random(1)
        self._poll = select.epoll()
        self._poll.register(orders, select.EPOLLIN)
        self._hosts: list[int] = []  # descriptors of their devices
        self._ways: dict[int, dict[str, Way]] = {}  # by descriptor
        self._routes: dict[bytes, int] = {}  # address -> descriptor
        # (when, serial number, packet, where to, still to pass that host's own way)
        self._later: list[tuple[float, int, bytes, int, bool]] = []
        self._serial = itertools.count()

    def run(self) -> None:
        """Until the orders' other end is closed."""
        while True:
            wait = max(0.0, self._later[0][0] - time.monotonic()) if self._later else -1.0
            for descriptor, _ in self._poll.poll(wait):
                if descriptor != self._orders.fileno():
                    self._take(descriptor)
                elif not self._order(self._orders.recv(_MOST_BYTES)):
                    return
            now = time.monotonic()
            while self._later and self._later[0][0] <= now:
                at, _, packet, target, way_is_ahead = heapq.heappop(self._later)
                if way_is_ahead:
                    self._arrives(packet, target, at)
                else:
                    _write(target, packet)

    def _take(self, descriptor: int) -> None:
        """What a host sends."""
        way = self._ways[descriptor]["to"]
        for _ in range(_AT_ONCE):
            try:
                packet = os.read(descriptor, _MOST_BYTES)
            except BlockingIOError:
                return
            target = self._routes.get(packet[16:20])  # IPv4: the destination
            now = time.monotonic()
            for at in way.out(len(packet), now) if target is not None else ():
                assert target is not None
                if at > now:
                    self._keep(at, packet, target, True)
                else:
                    self._arrives(packet, target, now)

    def _arrives(self, packet: bytes, target: int, now: float) -> None:
        """At the way of the host that it is for."""
        for at in self._ways[target]["from"].out(len(packet), now):
            if at > now:
                self._keep(at, packet, target, False)
            else:
                _write(target, packet)

    def _keep(self, at: float, packet: bytes, target: int, way_is_ahead: bool) -> None:
        heapq.heappush(self._later, (at, next(self._serial), packet, target, way_is_ahead))

    def _order(self, text: bytes) -> bool:
        if not text:
            return False
        order: dict[str, Any] = json.loads(text)
        if "open" in order:
            nest.enter_network(order["open"])
            descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH", b"eth0", _TUN_WITHOUT_HEADER))
            self._hosts.append(descriptor)
            self._ways[descriptor] = {way: Way(self._random) for way in ("to", "from")}
            self._poll.register(descriptor, select.EPOLLIN)
        elif "address" in order:
            self._routes[socket.inet_aton(order["address"])] = self._hosts[order["host"]]
        else:
            way = self._ways[self._hosts[order["host"]]][order["way"]]
            way.condition = Condition(**order["condition"])
        self._orders.send(b"done")
        return True


def _write(descriptor: int, packet: bytes) -> None:
    try:
        os.write(descriptor, packet)
    except OSError:  # no room there, or the host is gone: so a wire would have it
        return


if __name__ == "__main__":
    Router(socket.socket(fileno=int(sys.argv[1]))).run()
