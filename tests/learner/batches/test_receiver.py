"""Unrolls into batches: what is refused, where each number lies, and the pool of the receiver."""

import asyncio
import concurrent.futures
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import xxhash
import zmq
from numpy.typing import NDArray

from headrace.broker.peers.inbox import Inbox, Key
from headrace.broker.peers.learner_ends import LearnerEnds
from headrace.broker.peers.objections import Objection
from headrace.broker.protocol.messages import Deliver, Payload
from headrace.broker.transport.endpoints import EndpointError
from headrace.broker.transport.link import RefusedError
from headrace.learner.batches.batch import Batch
from headrace.learner.batches.receiver import UnrollReceiver
from headrace.learner.batches.unroll_ends import EpisodeEnds
from headrace.learner.spaces import DEAD, TERMINATED, TRUNCATED, Leaf, Spaces, discrete
from tests.learner.unrolls import words as told

SPACES = Spaces((Leaf("obs", "<f4", (3,)),), discrete(2))
T, G = 4, 2
Arrays = dict[str, NDArray[Any]]


def unroll(seed: int = 0) -> Arrays:
    """Every number is another, so that none can be taken for its neighbour."""
    rng = np.random.default_rng(seed)
    return {
        "obs.obs": rng.normal(size=(T + 1, G, 3)).astype(np.float32),
        "action": rng.integers(0, 2, (T, G)),
        "logp": -rng.random((T, G), np.float32),
        "reward": rng.normal(size=(T, G)).astype(np.float32),
        "flags": np.zeros((T, G), np.uint8),
    }


def message(arrays: Arrays, *, seq: int = 0, **changes: Any) -> tuple[Deliver, list[Payload]]:
    buffers: list[Payload] = [np.ascontiguousarray(array).tobytes() for array in arrays.values()]
    digest = xxhash.xxh3_64()
    for buffer in buffers:
        assert isinstance(buffer, bytes)
        digest.update(buffer)
    fields: dict[str, Any] = {
        "tag": 100 + seq,
        "attempt": 1,
        "actor": "a",
        "inc": 5,
        "stream": 1,
        "seq": seq,
        "floor": 0,
        "version_min": 3,
        "version_max": 4,
        "digest": digest.intdigest(),
        "ended": 0,
        "episodes": (),
        "steps": T * G - int(np.count_nonzero(arrays["flags"] & DEAD)),
    }
    return Deliver(**{**fields, **changes}), buffers


def batch(unrolls: int = 2) -> Batch:
    return Batch(SPACES, length=T, envs=G, unrolls=unrolls, pinned=False)


def with_value(name: str, value: float) -> Arrays:
    arrays = unroll()
    arrays[name][1, 1] = value
    return arrays


class TestRefusals:
    @pytest.mark.parametrize(
        ("arrays", "words"),
        [
            (with_value("reward", np.nan), "reward is not finite"),
            (with_value("reward", -np.inf), "reward is not finite"),
            (with_value("logp", np.inf), "logp is not finite"),
            (with_value("obs.obs", np.nan), "obs.obs is not finite"),
            (with_value("action", 2), "an action outside 0..1"),
            (with_value("action", -1), "an action outside 0..1"),
            (with_value("flags", 8), "unknown flags"),
        ],
    )
    def test_numbers_that_cannot_be(self, arrays: Arrays, words: str) -> None:
        own = batch()
        assert told(own.place(*message(arrays))) == words
        assert own.room == 2

    def test_both_infinities_do_not_hide_in_a_sum(self) -> None:
        arrays = unroll()
        arrays["reward"][0, 0], arrays["reward"][1, 0] = np.inf, -np.inf
        assert told(batch().place(*message(arrays))) == "reward is not finite"

    def test_the_largest_number_is_no_fault(self) -> None:
        arrays = unroll()
        arrays["reward"][:] = 1e9
        assert batch().place(*message(arrays)) is None

    def test_another_number_of_buffers(self) -> None:
        deliver, buffers = message(unroll())
        assert told(batch().place(deliver, buffers[:-1])) == "4 buffers instead of 5"
        assert told(batch().place(deliver, [*buffers, b""])) == "6 buffers instead of 5"
        assert told(batch().place(deliver, [])) == "0 buffers instead of 5"

    def test_another_size(self) -> None:
        deliver, buffers = message(unroll())
        assert isinstance(buffers[1], bytes)
        buffers[1] = buffers[1][:-8]
        assert told(batch().place(deliver, buffers)) == "action has 56 bytes instead of 64"

    def test_another_content(self) -> None:
        deliver, buffers = message(unroll())
        spoilt = bytearray(buffers[2])  # type: ignore[arg-type]
        spoilt[5] ^= 1
        buffers[2] = bytes(spoilt)
        assert "digest" in told(batch().place(deliver, buffers))

    def test_live_steps_miscounted(self) -> None:
        arrays = unroll()
        arrays["flags"][2, 0] = DEAD
        assert told(batch().place(*message(arrays, steps=T * G))) == "its live steps are miscounted"
        assert batch().place(*message(arrays)) is None

    def test_a_refused_one_leaves_no_trace(self) -> None:
        own = batch()
        assert own.place(*message(unroll(1), ended=1, episodes=((0, 9.0, 3),))) is None
        before = (own.keys[:], own.versions[:], own.ends[:], own.ended, own.steps)
        tensors = {name: tensor.clone() for name, tensor in own.tensors.items()}
        assert own.place(*message(with_value("reward", np.nan), seq=1, ended=1)) is not None
        assert (own.keys, own.versions, own.ends, own.ended, own.steps) == before
        assert all(torch.equal(own.tensors[name], tensor) for name, tensor in tensors.items())


class TestLayout:
    def test_unrolls_stand_side_by_side_and_time_runs_down(self) -> None:
        own, first, second = batch(), unroll(1), unroll(2)
        assert own.place(*message(first, seq=0)) == own.place(*message(second, seq=1)) is None
        assert own.room == 0
        for name, tensor in own.tensors.items():
            both = np.concatenate([first[name], second[name]], axis=1)
            assert tensor.numpy().dtype == both.dtype
            np.testing.assert_array_equal(tensor.numpy(), both, err_msg=name)
        assert own.tensors["obs.obs"].shape == (T + 1, 2 * G, 3)
        assert own.tensors["action"].shape == (T, 2 * G)

    def test_what_stands_beside_the_columns(self) -> None:
        own = batch()
        arrays = unroll()
        arrays["flags"][1, 0], arrays["flags"][2, 0] = TERMINATED, DEAD
        arrays["flags"][3, 1] = TRUNCATED
        own.place(*message(arrays, ended=2, episodes=((0, 1.5, 2), (1, 7.0, 9))))
        own.place(*message(unroll(2), seq=1, version_min=6, version_max=6))
        assert own.keys == [(5, 1, 0), (5, 1, 1)]
        assert own.versions == [(3, 4), (6, 6)]
        assert own.ends == [
            EpisodeEnds(5, 1, G, T, ((0, 1.5, 2), (1, 7.0, 9))),
            EpisodeEnds(5, 1, G, T, ()),
        ]
        assert (own.ended, own.steps) == (2, 2 * T * G - 1)

    def test_cleared_it_is_used_again(self) -> None:
        own = batch(1)
        own.place(*message(unroll(1), ended=1, episodes=((0, 1.0, 1),)))
        own.clear()
        assert (own.room, own.keys, own.versions, own.ends) == (1, [], [], [])
        assert (own.ended, own.steps) == (0, 0)
        assert own.place(*message(unroll(2), seq=1)) is None
        np.testing.assert_array_equal(own.tensors["reward"].numpy(), unroll(2)["reward"])

    def test_frames_are_as_good_as_bytes(self) -> None:
        deliver, buffers = message(unroll(3))
        own = batch(1)
        assert own.place(deliver, [zmq.Frame(buffer) for buffer in buffers]) is None
        np.testing.assert_array_equal(own.tensors["logp"].numpy(), unroll(3)["logp"])

    def test_the_copy_is_ours(self) -> None:
        deliver, buffers = message(unroll(3))
        loose: list[Payload] = [bytearray(buffer) for buffer in buffers]  # type: ignore[arg-type]
        own = batch(1)
        own.place(deliver, loose)
        for buffer in loose:
            assert isinstance(buffer, bytearray)
            buffer[:] = bytes(len(buffer))
        np.testing.assert_array_equal(own.tensors["reward"].numpy(), unroll(3)["reward"])


# ---- the receiver thread, with an end that has no sockets --------------------------------------


class FakeLink:
    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.welcome: object | None = object()
        self.sent: list[Any] = []
        self.breaks = asyncio.Event()  # its end, with the error

    def send(self, frames: Any) -> None:
        self.sent.append(frames)

    async def run(self) -> None:
        if self.error is None:
            await self.breaks.wait()
        assert self.error is not None
        raise self.error


class FakeEnd:
    """Records in order what the feed does to it; always touched on the feed's own thread."""

    def __init__(
        self,
        *,
        accept: Any,
        free: Callable[[], int],
        share: Callable[[], int | None],
        context: Any,
        error: Exception | None = None,
    ) -> None:
        assert context is not None
        self.share = share
        self.accept = accept
        self.free = free
        self.inbox = Inbox(inc=1)
        self.link = FakeLink(error)
        self.version = 0
        self.heard = True  # the broker has what was published last
        self.welcome_version: int | None = None
        self.stats: dict[str, float] = {}
        self.done: list[Any] = []
        self.threads: set[str] = set()

    def deliver(self, seq: int) -> str:
        deliver, buffers = message(unroll(seq), seq=seq)
        self.inbox.deliver(deliver)
        return told(self.accept(deliver, buffers))

    def _note(self, *fact: Any) -> None:
        self.threads.add(threading.current_thread().name)
        self.done.append(fact)

    def begins(self, version: int) -> None:
        self.version = version

    def beat_frames(self) -> list[list[bytes]]:
        self._note("beat")
        return [[b"beat"]]

    def trained(self, keys: Sequence[Key], *, version: int) -> None:
        self.inbox.trained(keys, version=version, free=self.free())
        self._note("trained", [seq for _, _, seq in keys], version, self.free())

    def reject(self, keys: Sequence[Key], objection: Objection) -> None:
        self.inbox.give_up(keys)
        self._note("rejected", [seq for _, _, seq in keys], objection.words, self.free())

    def publish(self, blob: Any) -> None:
        self._note("published", blob.announce.version, bytes(blob.body), blob.announce.layout)

    def leave(self, *, final: bool, text: str) -> None:
        self._note("left", final, text)


class Receiver:
    """A feed of three batches of two unrolls, and its fake end."""

    def __init__(self, error: Exception | None = None) -> None:
        self.feed = UnrollReceiver(self._make, [batch() for _ in range(3)], layout="layout")
        self.error = error
        self.end: FakeEnd

    def _make(self, **options: Any) -> LearnerEnds:
        return LearnerEnds([self._make_end], rank=0, world=1, batch=2, **options)

    def _make_end(self, **options: Any) -> Any:
        self.end = FakeEnd(**options, error=self.error)
        return self.end

    def on_loop(self, call: Callable[[], Any]) -> Any:
        return self.feed._ask(call)

    def deliver(self, *seqs: int) -> None:
        for seq in seqs:
            assert self.on_loop(lambda seq=seq: self.end.deliver(seq)) == ""  # type: ignore[misc]

    def free(self) -> int:
        return int(self.on_loop(lambda: self.end.free()))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    made.feed.start(version=7, windows=[(5, 1, [[0, 3]])])
    yield made
    made.feed.leave(final=False, text="test over")
    assert not [t for t in threading.enumerate() if t.name == "feed"]


class TestFeed:
    def test_it_begins_where_the_checkpoint_ends(self, receiver: Receiver) -> None:
        assert receiver.on_loop(lambda: receiver.end.version) == 7
        assert receiver.feed.windows() == ((5, 1, ((0, 3),)),)

    def test_a_welcome_is_waited_for(self, receiver: Receiver) -> None:
        assert receiver.feed.wait_for_welcome(timeout_s=0.01) is None
        receiver.end.welcome_version = 12
        assert receiver.feed.wait_for_welcome(timeout_s=10) == 12

    def test_only_full_batches_come_out_and_in_order(self, receiver: Receiver) -> None:
        receiver.deliver(10)
        assert receiver.feed.next(timeout_s=0.01) is None
        receiver.deliver(11, 12, 13)
        for seqs in ([10, 11], [12, 13]):
            found = receiver.feed.next(timeout_s=10)
            assert found is not None
            assert [seq for _, _, seq in found.keys] == seqs

    def test_the_pool_is_all_there_is(self, receiver: Receiver) -> None:
        rooms = []
        for seq in range(10, 16):
            rooms.append(receiver.free())
            receiver.deliver(seq)
        assert [*rooms, receiver.free()] == [6, 5, 4, 3, 2, 1, 0]
        first = receiver.feed.next(timeout_s=10)
        assert first is not None
        assert receiver.free() == 0  # in training: its memory is not free
        receiver.feed.trained(first, version=8)
        assert receiver.free() == 2
        receiver.deliver(16, 17)
        assert first.keys == [(5, 1, 16), (5, 1, 17)]  # the same memory again

    def test_room_counts_the_batch_that_was_given_back(self, receiver: Receiver) -> None:
        """What DONE says about room must already include the batch it is about."""
        receiver.deliver(*range(10, 16))
        first, second = (receiver.feed.next(timeout_s=10) for _ in range(2))
        assert first is not None
        assert second is not None
        receiver.feed.trained(first, version=8)
        receiver.feed.reject(second, [0, 1], Objection("step", "because"))
        receiver.feed.refill(second)
        assert receiver.feed.windows()[0][2] == ((0, 3), (10, 12))
        assert receiver.end.done == [
            ("trained", [10, 11], 8, 2),
            ("rejected", [12, 13], "because", 2),
            ("beat",),
        ]
        assert receiver.free() == 4
        assert receiver.end.threads == {"feed"}

    def test_a_refused_unroll_takes_no_place(self, receiver: Receiver) -> None:
        deliver, buffers = message(with_value("reward", np.nan), seq=10)
        assert "finite" in told(receiver.on_loop(lambda: receiver.end.accept(deliver, buffers)))
        assert receiver.free() == 6

    def test_what_is_left_of_a_batch_is_filled_up_first(self, receiver: Receiver) -> None:
        receiver.deliver(10, 11, 12)
        first = receiver.feed.next(timeout_s=10)
        assert first is not None
        whole = {name: tensor.clone() for name, tensor in first.tensors.items()}
        receiver.feed.reject(first, [0], Objection("step", "because"))
        assert first.keys == [(5, 1, 11)]
        for name, tensor in first.tensors.items():
            assert torch.equal(tensor[:, :G], whole[name][:, G:]), name
        receiver.feed.refill(first)
        assert receiver.free() == 4  # one there, one beside 12, and a whole batch
        receiver.deliver(13, 14, 15, 16)
        found = [receiver.feed.next(timeout_s=10) for _ in range(3)]
        assert [[seq for _, _, seq in one.keys] for one in found if one is not None] == [
            [11, 13],
            [12, 14],
            [15, 16],
        ]
        assert found[0] is first
        assert receiver.on_loop(receiver.end.inbox.held) != ()
        assert receiver.end.done[0] == ("rejected", [10], "because", 3)

    def test_of_weights_that_wait_only_the_newest_goes_out(self, receiver: Receiver) -> None:
        gate = threading.Event()
        receiver.feed._loop.call_soon_threadsafe(gate.wait)  # the loop is busy
        for version in (8, 9, 10):
            receiver.feed.publish(version, bytes([version]) * 4)
        gate.set()
        receiver.feed.windows()  # everything said before has been done
        assert receiver.end.done == [("published", 10, b"\x0a" * 4, "layout")]
        receiver.feed.publish(11, b"next")
        receiver.feed.windows()
        assert receiver.end.done[-1] == ("published", 11, b"next", "layout")

    def test_leaving_twice_says_it_once(self, receiver: Receiver) -> None:
        receiver.feed.leave(final=True, text="solved")
        receiver.feed.leave(final=False, text="again")
        assert receiver.end.done == [("left", True, "solved")]

    def test_leaving_waits_until_the_broker_has_the_last_weights(self, receiver: Receiver) -> None:
        """It gives them to whoever evaluates them when the learner is gone."""
        end = receiver.end
        end.heard = False
        send, sends = end.link.send, itertools.count(1)

        def answer(frames: Any) -> None:
            send(frames)
            end.heard = next(sends) == 3

        end.link.send = answer  # type: ignore[method-assign]
        receiver.feed.leave(final=True, text="solved")
        assert end.done == [("beat",)] * 3 + [("left", True, "solved")]

    def test_leaving_waits_only_for_a_broker_that_is_there(self, receiver: Receiver) -> None:
        receiver.end.heard = False
        receiver.end.link.welcome = None
        receiver.feed.leave(final=True, text="solved")
        assert receiver.end.done == [("left", True, "solved")]

    def test_a_refusal_in_the_goodbye_comes_through_as_it_is(self, receiver: Receiver) -> None:
        end = receiver.end
        end.heard = False

        def refused(frames: Any) -> None:
            end.link.sent.append(frames)
            end.link.error = RefusedError("another run")
            end.link.breaks.set()

        end.link.send = refused  # type: ignore[method-assign]
        with pytest.raises(RefusedError, match="another run"):
            receiver.feed.leave(final=False, text="stopped")

    def test_leaving_does_not_wait_for_ever(
        self, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("headrace.learner.batches.receiver._LAST_WEIGHTS_S", 0.3)
        receiver.end.heard = False
        receiver.feed.leave(final=True, text="solved")
        assert receiver.end.done[-1] == ("left", True, "solved")
        assert len(receiver.end.done) > 2


@pytest.mark.parametrize("error", [RefusedError("another run"), EndpointError("no address")])
def test_what_the_user_can_mend_comes_through_as_it_is(error: Exception) -> None:
    receiver = Receiver(error)
    receiver.feed.start(version=0, windows=())
    with pytest.raises(type(error), match=str(error)):
        receiver.feed.wait_for_welcome(timeout_s=10)
    with pytest.raises(type(error), match=str(error)):
        receiver.feed.next(timeout_s=10)
    receiver.feed.leave(final=False, text="")
    assert not [t for t in threading.enumerate() if t.name == "feed"]


def test_a_fault_of_ours_ends_the_train_loop_too() -> None:
    receiver = Receiver(KeyError("oops"))
    receiver.feed.start(version=0, windows=())
    with pytest.raises(RuntimeError, match="receiver thread ended: KeyError"):
        receiver.feed.next(timeout_s=10)
    receiver.feed.leave(final=False, text="")


def test_a_loop_that_ended_before_it_answered_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = Receiver(KeyError("oops"))
    receiver.feed.start(version=0, windows=())
    with pytest.raises(RuntimeError, match="oops"):
        receiver.feed.next(timeout_s=10)

    def never(asked: Coroutine[Any, Any, Any], _: object) -> concurrent.futures.Future[None]:
        asked.close()
        return concurrent.futures.Future()

    monkeypatch.setattr("headrace.learner.batches.receiver._LOOKS", 0)
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", never)
    with pytest.raises(RuntimeError, match="receiver thread ended: KeyError"):
        receiver.feed.windows()


_STOPS_WHILE_IT_ANSWERS = """
import os, signal, time
from headrace.learner.batches import receiver
from tests.learner.batches.test_receiver import Receiver
def stops():
    time.sleep(0.1)  # the other thread waits by now
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.2)
receiver._LOOKS = 3
asked = Receiver()
asked.feed.start(version=7, windows=[])
asked.on_loop(stops)
asked.feed.leave(final=False, text="awake")
"""


@pytest.mark.processes
@pytest.mark.slow
def test_a_process_that_was_stopped_does_not_blame_the_loop() -> None:
    """Stops one in the middle of an answer, for longer than an answer may take."""
    with subprocess.Popen([sys.executable, "-c", _STOPS_WHILE_IT_ANSWERS]) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        time.sleep(3.5)
        process.send_signal(signal.SIGCONT)
        assert process.wait(timeout=60) == 0
