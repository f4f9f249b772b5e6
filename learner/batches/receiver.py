"""The receiver thread: unrolls from the broker into batches, outcomes and weights back.

    broker -> accept (loop thread) -> the batch being filled -> ready -> train loop
                                            ^                               |
                                            +---- with room <---------------+ trained / refill

The train loop never touches a socket; this thread never touches the model. Batches are a fixed
pool, and the broker is told how many unrolls fit, so there is nothing to overflow.
"""

import asyncio
import concurrent.futures
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

import uvloop
import zmq

from headrace.broker.peers.inbox import Key
from headrace.broker.peers.learner_ends import LearnerEnds, Windows
from headrace.broker.peers.objections import Objection
from headrace.broker.protocol.messages import Deliver, Payload
from headrace.broker.transport.endpoints import EndpointError
from headrace.broker.transport.link import RefusedError
from headrace.broker.weights.common_chunks import Versions
from headrace.learner.batches.batch import Batch
from headrace.learner.weights import Body

log = logging.getLogger(__name__)

# How long a goodbye waits until the broker has the last weights, and how often it asks. A live
# broker needs a moment for them.
_LAST_WEIGHTS_S = 5.0
_ASK_EVERY_S = 0.1
# Seconds that the loop may take to answer, waited for one by one: a process that was stopped for a
# minute wakes with only one of them over.
_LOOKS = 10


class Record(Protocol):
    """Hears of all that a learner was given, in the order it happens; see recording.py."""

    def accepted(self, message: Deliver, buffers: Sequence[Payload]) -> None: ...

    def full(self, unrolls: int) -> None: ...

    def trained(self, version: int) -> None: ...

    def rejected(self, places: tuple[int, ...], reason: str) -> None: ...

    def refilled(self) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class UnrollReceiver:
    """Runs a rank's connection. Methods are for the train thread unless they say otherwise."""

    def __init__(
        self,
        make_ends: Callable[..., LearnerEnds],
        batches: Sequence[Batch],
        *,
        layout: str,
        recorder: Record | None = None,
    ) -> None:
        self._make_ends = make_ends
        self._versions = Versions(layout)  # of the weights, as they go out
        self._recorder = recorder  # loop thread; it hears of everything in the order it happens
        self._free: deque[Batch] = deque(batches[1:])  # loop thread; the next to fill comes first
        self._filling: Batch | None = batches[0]  # loop thread; None = all are with the train loop
        self._ready: queue.Queue[Batch | None] = queue.Queue(maxsize=len(batches) + 1)
        self._welcomed = threading.Event()
        # Why the thread ended; a None in the queue says that it is to be looked at.
        self._error: BaseException | None = None
        self._latest: tuple[int, Body] | None = None  # weights not published yet; newest wins
        self._lock = threading.Lock()  # guards _latest alone
        self._thread = threading.Thread(target=self._main, name="feed", daemon=True)
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._task: asyncio.Task[None]
        self.ends: LearnerEnds

    def start(self, *, version: int, windows: Windows) -> None:
        self._start_from = (version, windows)
        self._thread.start()
        self._started.wait()

    def wait_for_welcome(self, timeout_s: float) -> int | None:
        """Waits for the broker; returns the version to continue at, None = no answer yet."""
        came = self._welcomed.wait(timeout_s)
        self._raise()
        return self.ends.welcome_version if came else None

    def next(self, timeout_s: float) -> Batch | None:
        """Returns a full batch; None = none came in time."""
        try:
            batch = self._ready.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if batch is None:
            self._raise()
        return batch

    def trained(self, batch: Batch, *, version: int) -> None:
        """Settles a batch that an optimiser step used; its memory is free again."""
        self._tell(self._on_trained, batch, version)

    def reject(self, batch: Batch, places: Sequence[int], objection: Objection) -> None:
        """Takes unrolls that cannot be used out of the batch and rejects them at the broker."""
        keys = [batch.keys[at] for at in places]
        batch.drop(places)
        self._tell(self._on_rejected, keys, tuple(places), objection)

    def refill(self, batch: Batch) -> None:
        """Gives a batch back that lacks unrolls; the others stay in it until it is full again."""
        self._tell(self._on_refill, batch)

    def publish(self, version: int, body: Body) -> None:
        """Publishes new weights; when several wait only the newest goes out."""
        with self._lock:
            waiting, self._latest = self._latest, (version, body)
        if waiting is None:
            self._tell(self._on_publish)

    def windows(self) -> Windows:
        """Returns what was trained and might come again, including all earlier calls."""
        windows: Windows = self._ask(self._on_windows)
        return windows

    def stats(self, stats: dict[str, float]) -> None:
        """Sends numbers for people who watch the run."""
        self.ends.set_stats(stats)

    def check(self, within_s: float) -> None:
        """Raises the reason why the thread ended, if it did: usually that the broker refused us."""
        self._thread.join(timeout=within_s)
        self._raise()

    def leave(self, *, final: bool, text: str) -> None:
        """Says goodbye to the broker and ends the thread."""
        if self._thread.is_alive() and self._error is None:

            async def goodbye() -> None:
                await self._until_heard()
                self.ends.leave(final=final, text=text)
                await asyncio.sleep(0.05)  # let the sockets take it
                self._task.cancel()

            self._run(goodbye())
        self._thread.join(timeout=5.0)

    # ---- the loop thread ------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # noqa: BLE001  # the train thread must hear of anything
            self._error = error
        finally:
            if self._recorder is not None:
                self._recorder.close()
            self._started.set()
            self._welcomed.set()
            self._ready.put(None)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self.ends = self._make_ends(accept=self._accept, room=self._room, context=context)
            self.ends.begins(*self._start_from)
            self._started.set()
            async with asyncio.TaskGroup() as group:
                group.create_task(self.ends.run(), name="links")
                group.create_task(self._watch_welcome(), name="welcome")
        finally:
            context.destroy(linger=500)

    async def _watch_welcome(self) -> None:
        while self.ends.welcome_version is None:  # noqa: ASYNC110  # once, at the start
            await asyncio.sleep(0.01)
        self._welcomed.set()

    async def _until_heard(self) -> None:
        """Waits until the broker has the last weights whole: ours is the only other copy, and
        evaluators still need them. Without an answering broker it does not wait."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _LAST_WEIGHTS_S
        while not self.ends.heard and loop.time() < deadline:
            self.ends.beat()
            await asyncio.sleep(_ASK_EVERY_S)

    def _accept(self, message: Deliver, buffers: Sequence[Payload]) -> Objection | None:
        batch = self._filling
        assert batch is not None, "nothing is accepted without room"
        objection = batch.place(message, buffers)
        if objection is not None:
            return objection
        if self._recorder is not None:
            self._recorder.accepted(message, buffers)
        if batch.room == 0:
            if self._recorder is not None:
                self._recorder.full(batch.unrolls)
            self._filling = self._free.popleft() if self._free else None
            self._ready.put_nowait(batch)
        return None

    def _room(self) -> int:
        filling = self._filling.room if self._filling is not None else 0
        return filling + sum(batch.room for batch in self._free)

    def _on_trained(self, batch: Batch, version: int) -> None:
        keys = batch.keys
        batch.clear()
        if self._filling is None:
            self._filling = batch
        else:
            self._free.append(batch)
        if self._recorder is not None:
            self._recorder.trained(version)
        self.ends.trained(keys, version=version)

    def _on_rejected(
        self, keys: Sequence[Key], places: tuple[int, ...], objection: Objection
    ) -> None:
        if self._recorder is not None:
            self._recorder.rejected(places, objection.words)
        self.ends.reject(keys, objection)

    def _on_refill(self, batch: Batch) -> None:
        """Puts the batch first in line: what it holds has waited longest."""
        if self._filling is not None:
            self._free.appendleft(self._filling)
        self._filling = batch
        if self._recorder is not None:
            self._recorder.refilled()
        self.ends.beat()  # the broker hears at once that there is room

    def _on_windows(self) -> Windows:
        """Flushes the recording too, because a checkpoint is about to be written."""
        if self._recorder is not None:
            self._recorder.flush()
        return self.ends.windows()

    def _on_publish(self) -> None:
        with self._lock:
            latest, self._latest = self._latest, None
        if latest is not None:
            self.ends.publish(self._versions.of(*latest))

    # ---- across ---------------------------------------------------------------------------------

    def _tell(self, call: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the loop is closed, and the thread ended with a reason
            self.check(within_s=5.0)
            raise

    def _ask(self, question: Callable[[], Any]) -> Any:
        async def answer() -> Any:
            return question()

        return self._run(answer())

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        try:
            answer = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
            for _ in range(_LOOKS):
                concurrent.futures.wait([answer], timeout=1.0)
            return answer.result(timeout=0.0)
        except (RuntimeError, TimeoutError, concurrent.futures.CancelledError) as error:
            if isinstance(error, RuntimeError):  # the loop is closed: nothing will ever run it
                coroutine.close()
            self.check(within_s=5.0)
            raise

    def _raise(self) -> None:
        error = self._error
        while isinstance(error, BaseExceptionGroup):  # two brokers may refuse us at once
            error = error.exceptions[0]
        if isinstance(error, RefusedError | EndpointError):
            raise error
        if error is not None:
            raise RuntimeError(f"the receiver thread ended: {error!r}") from self._error
