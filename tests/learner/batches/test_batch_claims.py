"""What a sampler says of its unroll, and numbers that are none: refused, counted, never trained."""

import time
from typing import Any

import msgspec
import numpy as np
import pytest
import xxhash
import zmq

from headrace.broker.journal.journal import Journal
from headrace.broker.peers.learner import LearnerEnd
from headrace.broker.protocol import messages
from headrace.broker.protocol.fields import MAX_VERSION
from headrace.broker.protocol.hello_payload import HelloPayload
from headrace.broker.protocol.messages import Deliver, Nack, Outcome
from headrace.learner.batches.batch import Batch
from headrace.learner.spaces import Leaf, Spaces, discrete, unroll_fields
from tests.learner.unrolls import words as told

T, G = 4, 2
PLAIN = Spaces((Leaf("obs", "<f4", (3,)),), discrete(2))
WIDE = Spaces((Leaf("obs", "<f8", (3,)),), discrete(2))
NOT_FINITE = (np.nan, np.inf, -np.inf)


def batch(spaces: Spaces = PLAIN) -> Batch:
    return Batch(spaces, length=T, envs=G, unrolls=2, pinned=False)


def message(
    spaces: Spaces = PLAIN, *, seq: int = 0, **values: float
) -> tuple[Deliver, list[bytes]]:
    """An unroll of zeros, but for one value in each field that is named."""
    buffers = []
    for field in unroll_fields(spaces, length=T, envs=G):
        array = np.zeros(field.shape, field.dtype)
        array[seq % T, seq % G] = values.get(field.name.partition(".")[0], 0)
        buffers.append(array.tobytes())
    deliver = Deliver(
        tag=seq,
        attempt=1,
        actor="a",
        inc=5,
        stream=1,
        seq=seq,
        floor=0,
        version_min=0,
        version_max=0,
        steps=T * G,
        digest=xxhash.xxh3_64_intdigest(b"".join(buffers)),
        ended=2,
        episodes=((0, 1.0, 3), (1, 2.0, 4)),
    )
    return deliver, buffers


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"version_min": -1}, "versions -1 to 0"),
        ({"version_min": 5, "version_max": 4}, "versions 5 to 4"),
        ({"version_max": MAX_VERSION + 1}, f"versions 0 to {MAX_VERSION + 1}"),
        ({"version_max": 2**64 - 1}, "versions 0 to"),
        ({"ended": -1}, "-1 episodes ended in 8 steps"),
        ({"ended": 9}, "9 episodes ended in 8 steps"),
        ({"ended": 2**64 - 1}, "episodes ended in 8 steps"),
        ({"episodes": ((G, 1.0, 3),)}, f"an episode of environment {G}, and it has {G}"),
        ({"episodes": ((-1, 1.0, 3),)}, "an episode of environment -1"),
        ({"episodes": ((0, np.nan, 3),)}, "an episode of return nan"),
        ({"episodes": ((0, 1.0, 3), (0, np.inf, 3))}, "an episode of return inf"),
        ({"episodes": ((0, -np.inf, 3),)}, "an episode of return -inf"),
        (
            {"episodes": ((0, 4e9, 3),)},
            "an episode of return 4000000000.0",
        ),  # 3 rewards of 1e9 each
        ({"episodes": ((0, 1.0, -3),)}, "and length -3"),
        ({"episodes": ((0, 1.0, 2**64 - 1),)}, "and length 18446744073709551615"),
        ({"steps": 7}, "live steps are miscounted"),
        ({"steps": -1}, "live steps are miscounted"),
        ({"steps": 2**64 - 1}, "live steps are miscounted"),
        ({"digest": 1}, "its digest is wrong"),
    ],
)
def test_claims_that_cannot_be(claims: dict[str, Any], words: str) -> None:
    """They go into means, into the goal of the run, and into every checkpoint."""
    own = batch()
    deliver, buffers = message()
    assert words in told(own.place(msgspec.structs.replace(deliver, **claims), buffers))
    assert (own.room, own.ended, own.ends, own.versions) == (2, 0, [], [])
    assert own.place(deliver, buffers) is None


@pytest.mark.parametrize("value", NOT_FINITE)
@pytest.mark.parametrize("name", ["obs", "logp", "reward"])
@pytest.mark.parametrize("seq", [0, T * G - 1])
def test_what_is_not_finite(name: str, value: float, seq: int) -> None:
    own = batch()
    assert "is not finite" in told(own.place(*message(PLAIN, seq=seq, **{name: value})))
    assert own.room == 2


@pytest.mark.parametrize("spaces", [PLAIN, WIDE])
@pytest.mark.parametrize("name", ["obs", "logp", "reward"])
def test_what_is_too_large(name: str, spaces: Spaces) -> None:
    """Counted by what it is; observations of 64 bits may hold more than float32 can."""
    reason = {"obs": "observation"}.get(name, name)
    own = batch(spaces)
    for value in (
        3e38,
        -3e38,
        1.001e9,
        -1.001e9,
        1e39 if spaces is WIDE and name == "obs" else 2e9,
    ):
        found = own.place(*message(spaces, seq=0, **{name: value}))
        assert found is not None
        assert (found.reason, found.blame) == (reason, True)
        assert "beyond unroll.largest = 1e+09" in found.words
    for value in (1e9, -1e9, 1e6):
        own.clear()
        assert own.place(*message(spaces, seq=0, **{name: value})) is None


def test_the_bound_is_the_runs() -> None:
    own = Batch(PLAIN, length=T, envs=G, unrolls=2, pinned=False, largest=5.0)
    assert own.place(*message(reward=5.0)) is None
    assert told(own.place(*message(reward=-6.0))) == "reward has -6, beyond unroll.largest = 5"


def test_what_is_said_to_be_not_finite_is_counted_as_that() -> None:
    found = batch().place(*message(reward=np.nan))
    assert found is not None and found.reason == "not_finite"


class Heard:
    """Stands for the link: what the learner said."""

    def __init__(self) -> None:
        self.said: list[messages.Message] = []

    def send(self, frames: list[messages.Payload]) -> bool:
        self.said.append(messages.decode([bytes(frame) for frame in frames])[0])  # type: ignore[arg-type]
        return True


def rank(own: Batch) -> tuple[LearnerEnd, Heard]:
    heard = Heard()
    end = LearnerEnd(
        "ipc:///nowhere",
        messages.Hello("learner", "l", inc=1, run="r"),
        HelloPayload(),
        accept=own.place,
        free=lambda: own.room,
        journal=Journal(None, ""),
        context=zmq.Context.instance(),
    )
    end.link = heard  # type: ignore[assignment]
    return end, heard


def test_a_flood_of_nan_is_rejected_one_by_one_and_takes_no_place() -> None:
    """A thousand unrolls that are no use, in every way, and two honest ones."""
    own = batch()
    end, heard = rank(own)
    rng = np.random.default_rng(0)
    spoilt = 0
    for seq in range(1002):
        if seq in (400, 1001):
            end.handle(*message(seq=seq))
            continue
        name = ("obs", "logp", "reward", "return", "digest")[seq % 5]
        deliver, buffers = message(seq=seq, **{name: rng.choice(NOT_FINITE)})
        if name == "return":
            deliver = msgspec.structs.replace(deliver, episodes=((0, float("nan"), 1),))
        if name == "digest":
            deliver = msgspec.structs.replace(deliver, digest=deliver.digest ^ 1)
        end.handle(deliver, buffers)
        spoilt += 1
    nacks = [said for said in heard.said if isinstance(said, Nack)]
    assert end.rejected == len(nacks) == spoilt == 1000
    assert {nack.outcome for nack in nacks} == {Outcome.REJECTED}
    assert all(nack.reason for nack in nacks)
    assert own.keys == [(5, 1, 400), (5, 1, 1001)] and own.room == 0
    assert all(bool(t.isfinite().all()) for t in own.tensors.values() if t.is_floating_point())
    assert len(end.inbox.held()) == 2


def test_looking_at_every_number_costs_little() -> None:
    """Against the least that must be done with an unroll: its digest and one copy."""
    spaces = Spaces((Leaf("obs", "<f4", (4096,)),), discrete(2))
    own, least, looked = batch(spaces), [], []
    for _ in range(30):
        deliver, buffers = message(spaces)
        began = time.perf_counter()
        xxhash.xxh3_64_intdigest(b"".join(buffers))
        copies = [np.frombuffer(buffer, np.uint8).copy() for buffer in buffers]
        least.append(time.perf_counter() - began)
        began = time.perf_counter()
        own.clear()
        assert own.place(deliver, buffers) is None and copies
        looked.append(time.perf_counter() - began)
    assert min(looked) < 20 * min(least)
