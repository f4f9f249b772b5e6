"""Strangers who talk nonsense to the broker: counted, and nobody else notices."""

import random
import socket

import zmq

from headrace.broker.protocol import hello_payload, messages
from tests.system.commands.test_metrics import by, port_of, scrape
from tests.system.conftest import Place, Process, until


def counted(port: int) -> dict[str, float]:
    return by(scrape(port)["headrace_broker_protocol_errors"], "reason")


def malformed(rng: random.Random) -> list[bytes]:
    """Chance may write a message now and then; not here."""
    while True:
        frames = nonsense(rng)
        try:
            messages.decode(frames)
        except messages.Malformed:
            return frames


def nonsense(rng: random.Random) -> list[bytes]:
    """Random frames, or a real message with something wrong."""
    honest = [
        messages.encode(messages.Hello("actor", "stranger", rng.getrandbits(60))),
        messages.encode(messages.Watch()),
        messages.encode(messages.Get(1, 0, 4)),
    ]
    prefix, header = (bytes(frame) for frame in rng.choice(honest)[:2])  # type: ignore[arg-type]
    spoilt = bytearray(prefix + header)
    match rng.randrange(6):
        case 0:
            return [rng.randbytes(rng.randrange(40)) for _ in range(rng.randrange(1, 40))]
        case 1:
            return [prefix]
        case 2:
            return [prefix, header + b"\0"]
        case 3:
            return [prefix, header[:-1], b"x" * rng.randrange(2000)]
        case 4:
            return [prefix, rng.randbytes(len(header))]
        case _:
            at = rng.randrange(3, len(spoilt))  # not the protocol's number: that one is answered
            spoilt[at] ^= 1 << rng.randrange(8)
            return [bytes(spoilt[: len(prefix)]), bytes(spoilt[len(prefix) :])]


def finish(place: Place, *processes: Process) -> None:
    for process in processes:
        assert process.term() == 0, process.text()
        assert "Traceback" not in process.text()
    account = place.account()
    assert (account.unaccounted(), account.untrue, account.in_flight) == (0, 0, 0)


def test_a_thousand_malformed_messages(place: Place, tcp: str) -> None:
    broker = place.broker("--metrics-port", "0", bind=tcp)
    learner, actor = place.learner(broker=tcp), place.actor(broker=tcp)
    port = port_of(broker)
    place.trains(20)
    rng = random.Random(11)
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.linger = 5000
        stranger.connect(tcp)
        for _ in range(1000):
            stranger.send_multipart(malformed(rng))
        until(lambda: counted(port)["malformed"] >= 1000, "the thousandth malformed message")
        place.trains(50)
        assert counted(port)["malformed"] == 1000
    finish(place, actor, learner, broker)


def test_bytes_that_are_no_zeromq_at_all(place: Place, tcp: str) -> None:
    broker = place.broker(bind=tcp)
    learner, actor = place.learner(broker=tcp), place.actor(broker=tcp)
    place.trains(20)
    rng = random.Random(12)
    host, _, port = tcp.removeprefix("tcp://").rpartition(":")
    for body in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"",
        rng.randbytes(65536),
        b"\xff" + bytes(8) + b"\x7f",
    ):
        with socket.create_connection((host, int(port)), timeout=10) as line:
            try:
                line.sendall(body)
            except ConnectionError:
                continue  # it hung up in the middle: as good
    place.trains(50)
    finish(place, actor, learner, broker)


def answered(stranger: "zmq.Socket[bytes]") -> bool:
    """Is the next answer the status?"""
    if not stranger.poll(1000):
        return False
    message, _ = messages.decode(stranger.recv_multipart())
    return isinstance(message, messages.Status)


def test_well_formed_lies(place: Place) -> None:
    """A stranger who knows the protocol, and claims what is not his."""
    broker = place.broker("--metrics-port", "0")
    learner, actor = place.learner(), place.actor()
    port = port_of(broker)
    place.trains(20)
    inc = 12345
    unroll = messages.Unroll(inc, 0, 0, 0, 0, 0, 32, 99)
    lies: list[list[messages.Payload]] = [
        messages.encode(messages.Ack(messages.Outcome.TRAINED, ((0, 0, 1),))),
        messages.encode(unroll, b"x"),
        messages.encode(messages.Unroll(inc, 0, 1 << 52, 0, 0, 0, 32, 99), b"x"),
        messages.encode(messages.Done(inc, 1 << 35, 1 << 35, ((0, 1 << 60),))),
        messages.encode(messages.Nack(inc, ((0, 1 << 60),), messages.Outcome.REJECTED, "because")),
        messages.encode(messages.LearnerPing(inc, 1 << 35, 1 << 35, 1 << 60, ((0, 1 << 60),), {})),
        messages.encode(messages.Announce(1 << 35, "", "", 10, 10, bytes(8))),
        messages.encode(messages.Chunk(1 << 35, 0), b"weights"),
        messages.encode(messages.Ping(((0, 0, 5),), {"env_steps": 1e300})),
        messages.encode(messages.Acting(1 << 35, "")),
        messages.encode(messages.Bye(inc, True, "everybody go home")),
    ]
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.linger = 5000
        stranger.connect(place.ipc)
        for lie in lies:  # before HELLO: who is that?
            stranger.send_multipart(lie)
        until(lambda: counted(port)["unknown"] >= len(lies), "unknown messages")
        # As a watcher, who may only watch; with spaces, as if he had environments.
        hello = messages.Hello("watcher", "stranger", inc, spaces="wide")
        said = hello_payload.encode(hello_payload.HelloPayload())
        stranger.send_multipart(messages.encode(hello, said))
        for lie in lies:
            stranger.send_multipart(lie)
        stranger.send_multipart(messages.encode(hello, said))
        stranger.send_multipart(messages.encode(messages.Watch()))
        until(lambda: answered(stranger), "the status")
    place.trains(50)
    assert broker.popen.poll() is None
    until(place.history, "a line of the history")
    assert place.history()[-1]["version"] < 1 << 30
    finish(place, actor, learner, broker)
