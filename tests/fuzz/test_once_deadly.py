"""Single messages each of which once ended a broker or a learner, found by the targets of this
folder; and lists so long that one message once held the loop for seconds."""

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import xxhash

from headrace.broker.peers.outbox import Outbox
from headrace.broker.protocol import hello_payload, messages
from headrace.broker.server.server import Server
from headrace.broker.transport import endpoints
from headrace.launch.config import run_file, shared_run
from headrace.learner.batches import recording
from tests.fuzz import broker_side, shaping
from tests.fuzz.broker_side import ROUTES

DEEP = b"\x91" * 100_000 + b"\0"


def frames(message: messages.Message, *buffers: bytes) -> list[bytes]:
    return [bytes(frame) for frame in messages.encode(message, *buffers)]  # type: ignore[arg-type]


def running() -> Server:
    """A learner and two samplers, and an unroll of the first leased to the learner."""
    own = broker_side.made()
    for at in range(3):
        broker_side.receive(own, ROUTES[at], broker_side.honest(at))
    broker_side.receive(own, ROUTES[1], unroll(0))
    assert own.ledger.state.received == 1 and len(own.ledger.state.leases) == 1
    return own


def unroll(seq: int) -> list[bytes]:
    return frames(messages.Unroll(2, 0, seq, 0, 0, 0, 1, 0), bytes(8))


def hello(role: str, body: bytes) -> list[bytes]:
    return frames(messages.Hello(role, "n", 77, spaces="s"), body)


def said(**fields: object) -> bytes:
    return msgspec.msgpack.encode({"unroll_bytes": shaping.UNROLL_BYTES, "want": 8, **fields})


@pytest.mark.parametrize(
    "deadly",
    [
        # More than the decoder, or what compares the runs, can call itself: by any peer at all.
        hello("actor", b"\x81\xa1x" + DEEP),
        hello("actor", b"\x81\xa6shared\x81\xa1x" + DEEP),
        hello("actor", b"\x81\xa6shared\x81\xa3env\x81\xa1x" + b"\x91" * 900 + b"\0"),
        hello("watcher", said(shared={"run": 5})),
        hello("watcher", said(shared={5: 5})),
        # A tag after which none fits a message.
        hello("learner", said(held=[[2**64 - 1, 1, 0, 0]])),
        hello("learner", said(held=[[2**63 - 1, 1, 0, 0]])),
    ],
    ids=range(7),
)
def test_a_hello(deadly: list[bytes]) -> None:
    own = running()
    broker_side.receive(own, ROUTES[3], deadly)
    for seq in range(1, 4):
        broker_side.receive(own, ROUTES[1], unroll(seq))
    assert own.ledger.state.received > 1


def test_a_lease_that_is_named_twice() -> None:
    own = running()
    session = own.ledger.state.leases.session(1)
    assert session is not None
    (tag,) = session.leases
    done = frames(messages.Done(1, 1, 9, ((tag, tag + 1), (tag, tag + 1), (tag - 1, tag + 1))))
    broker_side.receive(own, ROUTES[0], done)
    assert own.ledger.state.outcomes[messages.Outcome.TRAINED] == 1


@pytest.mark.parametrize(
    "body", [b"\x81\x91\x00\x00", b"\x81\x80\x00", DEEP, b"\xdd\xff\xff\xff\xff"], ids=range(4)
)
def test_a_run_in_welcome(body: bytes) -> None:
    with pytest.raises(messages.Malformed):
        hello_payload.unpack(body)


def test_a_run_whose_keys_are_no_text() -> None:
    run = shared_run.for_peers(run_file.Run())
    run["env"][5] = {}
    with pytest.raises(run_file.ConfigError, match=r"env\.5 is no key"):
        shared_run.from_shared(run)


@pytest.mark.parametrize("port", ["9" * 5000, "٣", "65536", "1 "])
def test_a_port_that_is_none(port: str) -> None:
    with pytest.raises(endpoints.EndpointError, match="is no address"):
        endpoints.check(f"tcp://x:{port}")


@pytest.mark.parametrize(
    "body", [bytes.fromhex("9700010001 01a172a1d673"), b"\x97" + DEEP, b"\x98\x00" + DEEP * 2]
)
def test_an_entry_of_a_recording(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "rank0.log"
    path.write_bytes(recording._PREFIX.pack(len(body), xxhash.xxh3_64_intdigest(body)) + body)
    assert list(recording.entries(path)) == []


def _quick(seconds: Sequence[float]) -> float:
    """The best of several: this machine has other work too."""
    return min(seconds)


def test_ranges_without_end_hold_no_broker() -> None:
    """As many of the longest as one PING may name."""
    own = running()
    ping = frames(messages.Ping(((0, 0, 2**53),) * messages.MAX_ENTRIES, {}))
    took = []
    for _ in range(3):
        began = time.process_time()
        broker_side.receive(own, ROUTES[1], ping)
        took.append(time.process_time() - began)
    assert _quick(took) < 2.0


def test_ranges_without_end_hold_no_sampler() -> None:
    own = Outbox(inc=1, streams=1)
    took = []
    for _ in range(3):
        began = time.process_time()
        own.on_ack(messages.Ack(messages.Outcome.TRAINED, ((0, 0, 2**53),) * 64))
        own.resend(((0, 0, 2**53),) * 64)
        took.append(time.process_time() - began)
    assert _quick(took) < 2.0
