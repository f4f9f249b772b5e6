"""Attackers for the tests: they know the protocol, and say what they must not; and a tap that
passes honest messages on and remembers them, to be said again by somebody else."""

import itertools
import math
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import zmq

from headrace.broker.protocol import hello_payload, messages
from headrace.broker.protocol.hello_payload import HelloPayload
from headrace.broker.protocol.messages import Payload

FAR = 1 << 35  # a version that nobody reaches
EVERYTHING = ((0, 1 << 63),)  # tags
Frames = Sequence[Payload]


class Tap(threading.Thread):
    """Samplers connect to it as if it were the broker."""

    def __init__(self, front: str, broker: str) -> None:
        super().__init__(daemon=True)
        self.heard: list[list[bytes]] = []  # what the samplers said, whole messages
        self._front, self._broker = front, broker
        self._over = threading.Event()

    def run(self) -> None:
        with zmq.Context() as context, context.socket(zmq.ROUTER) as front:
            front.linger = 0
            front.bind(self._front)
            poller = zmq.Poller()
            poller.register(front, zmq.POLLIN)
            backs: dict[bytes, zmq.Socket[bytes]] = {}
            while not self._over.is_set():
                for socket, _ in poller.poll(20):
                    if socket is front:
                        route, *frames = front.recv_multipart()
                        if route not in backs:
                            backs[route] = context.socket(zmq.DEALER)
                            backs[route].linger = 0
                            backs[route].connect(self._broker)
                            poller.register(backs[route], zmq.POLLIN)
                        backs[route].send_multipart(frames)
                        if len(self.heard) < 20_000:
                            self.heard.append(frames)
                    else:
                        (route,) = (r for r, back in backs.items() if back is socket)
                        front.send_multipart([route, *socket.recv_multipart()])
            for back in backs.values():
                back.close()

    def close(self) -> None:
        self._over.set()
        self.join()


class Attack:
    """Some connections at one broker, and endless bad messages for them."""

    def __init__(self, broker: str, incs: Sequence[int], spaces: str, seed: int) -> None:
        self.sent = 0
        self.rng = random.Random(seed)
        self._context = zmq.Context()
        self._incs = incs  # of honest samplers: more than an attacker can know
        self._spaces = spaces
        self._own = itertools.count(1 << 40)
        self._sockets = {
            name: self._context.socket(zmq.DEALER)
            for name in ("stranger", "actor", "learner", "watcher", "evaluator", "king", "deaf")
        }
        for socket in self._sockets.values():
            socket.linger = 0
            socket.sndhwm = 100
            socket.connect(broker)
        self._said = {name: self._lies(name) for name in self._sockets}
        self._inc = {name: next(self._own) for name in self._sockets}
        for name in ("actor", "learner", "watcher", "evaluator"):
            self.say(name, self.hello(name))

    def say(self, name: str, frames: Frames) -> None:
        self._sockets[name].send_multipart(frames)
        self.sent += 1

    def strike(self, heard: Sequence[Frames]) -> None:
        """One bad message on every connection; the deaf one never reads its answers."""
        for name, socket in self._sockets.items():
            self.say(name, next(self._said[name]))
            while name != "deaf" and socket.poll(0):
                socket.recv_multipart()
        if heard:
            self.say("stranger", self.rng.choice(heard))

    def close(self) -> None:
        self._context.destroy(linger=0)

    # ---- what they say --------------------------------------------------------------------------

    def hello(self, role: str, inc: int | None = None, **intro: Any) -> Frames:
        streams = ((0, 0, 0, 0, ()),) if role == "actor" else ()
        if role == "learner":
            intro = {"want": 0, "unroll_bytes": 1, **intro}
        return messages.encode(
            messages.Hello(
                role,
                f"{role}\nERROR\x1b[2J",
                self._inc.get(role, 7) if inc is None else inc,
                spaces=self._spaces,
                rank=1,
                world=2,
                version=FAR,
            ),
            hello_payload.encode(HelloPayload(**{"streams": streams, **intro})),
        )

    def _lies(self, name: str) -> Iterator[Frames]:
        mine: dict[str, Callable[[], Iterator[Frames]]] = {
            "stranger": self._nonsense,
            "actor": self._of_an_actor,
            "learner": self._of_a_learner,
            "king": self._of_a_king,
        }
        while True:
            yield from mine.get(name, self._of_anybody)()

    def _nonsense(self) -> Iterator[Frames]:
        rng = self.rng
        yield [rng.randbytes(rng.randrange(40)) for _ in range(rng.randrange(1, 40))]
        prefix, header, *rest = (bytes(part) for part in self.hello("actor"))  # type: ignore[arg-type]
        yield [prefix]
        yield [prefix, header[:-1], *rest]
        yield [prefix[:2] + bytes([rng.randrange(2, 256)]) + prefix[3:], header, *rest]
        spoilt = bytearray(header)
        spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
        yield [prefix, bytes(spoilt), *rest]
        yield messages.encode(messages.Watch())
        yield messages.encode(self._unroll(self._inc["stranger"], 0), b"x")

    def _unroll(self, inc: int, seq: int, **other: Any) -> messages.Unroll:
        fields = {"floor": 0, "version_min": 0, "version_max": 0, "steps": 1, "digest": 0}
        return messages.Unroll(inc, 0, seq, **{**fields, **other})

    def _of_an_actor(self) -> Iterator[Frames]:
        inc, other = self._inc["actor"], self.rng.choice(self._incs)
        for seq in (0, 1, 1 << 20, 1 << 53):
            yield messages.encode(self._unroll(other, seq, floor=seq), b"x" * 100)  # another's
        yield messages.encode(self._unroll(inc, 1 << 30), b"x" * 1024)  # not granted
        yield messages.encode(self._unroll(inc, 0, version_min=FAR, version_max=1), b"x" * 1024)
        yield messages.encode(self._unroll(inc, 0), b"x" * 100_000)  # too large
        yield messages.encode(
            self._unroll(inc, 1 << 30, ended=2, episodes=((0, math.nan, 1), (0, math.inf, 1))), b"x"
        )
        yield messages.encode(
            messages.Ping(((0, 0, 1 << 53),) * 64, {"env_steps": math.nan, "x": math.inf})
        )
        yield messages.encode(
            messages.Ping((), {f"n{self.rng.random()}": 1e308 for _ in range(100)})
        )
        yield messages.encode(messages.Acting(FAR, "digest"))
        yield messages.encode(messages.Bye(other, True, "everybody go home", ((0, 0, 1 << 53),)))
        yield messages.encode(messages.Ack(messages.Outcome.TRAINED, ((0, 0, 1 << 40),)))
        yield messages.encode(messages.Done(inc, FAR, 1 << 50, EVERYTHING))
        yield messages.encode(messages.Announce(FAR, "", "", 10, 10, bytes(8)))
        yield self.hello("actor")

    def _of_a_learner(self) -> Iterator[Frames]:
        """A session that was given nothing, and settles everything."""
        inc, other = self._inc["learner"], self.rng.choice(self._incs)
        outcomes = (
            messages.Outcome.REJECTED,
            messages.Outcome.DUPLICATE,
            messages.Outcome.ABANDONED,
        )
        yield messages.encode(messages.Done(inc, FAR, 0, EVERYTHING * 3))
        for outcome in outcomes:
            yield messages.encode(messages.Nack(inc, EVERYTHING * 100, outcome, "x\n" * 100))
        yield messages.encode(messages.LearnerPing(inc, FAR, 0, 1 << 63, (), {"loss": math.nan}))
        yield messages.encode(messages.Done(other, FAR, 0, EVERYTHING))
        yield messages.encode(messages.Announce(FAR, "x", "y", 10, 10, bytes(8)))
        yield messages.encode(messages.Chunk(FAR, 0), b"weights")
        yield messages.encode(messages.Chunk(1 << 30, 1 << 50), b"x" * 10_000)
        yield self.hello(
            "learner",
            trained=((other, 0, ((1 << 30, (1 << 30) + 500),)),),
            held=(((1 << 63) - 1, other, 0, 1 << 40),),
        )
        yield messages.encode(messages.Bye(self._incs[0], True, "it is over"))

    def _of_a_king(self) -> Iterator[Frames]:
        """HELLOs that cannot be, one incarnation after the other."""
        yield self.hello("king\n")
        yield self.hello("watcher", self.rng.choice(self._incs))  # a live sampler's
        yield self.hello("watcher", next(self._own), spaces="x" * 100_000)
        yield self.hello("actor", next(self._own), streams=((0, 9, 2, 1, ()),))
        yield self.hello("actor", next(self._own), streams=((0, 0, 1 << 50, 1 << 50, ()),))
        yield messages.encode(
            messages.Hello("learner", "l", next(self._own), rank=7, world=1 << 30)
        )
        yield messages.encode(
            messages.Hello("actor", "a", next(self._own), run="another", spaces="other")
        )

    def _of_anybody(self) -> Iterator[Frames]:
        """A watcher's or an evaluator's, and what is not for them to say."""
        yield messages.encode(messages.Get(self.rng.randrange(1 << 30), 0, 1 << 53))
        yield messages.encode(
            messages.Ping(((0, 0, 1 << 53),), {"mean": math.inf, "low": math.nan})
        )
        yield messages.encode(messages.Watch())
        yield messages.encode(messages.Watch(), b"x" * 1000)
        yield messages.encode(self._unroll(self.rng.choice(self._incs), 3), b"x")
        yield messages.encode(messages.Nack(1, EVERYTHING, messages.Outcome.REJECTED, ""))
        yield messages.encode(messages.Limit(((0, 1 << 50, 0),)))
        yield messages.encode(messages.Bye(self.rng.choice(self._incs), True, "x" * 3000))
