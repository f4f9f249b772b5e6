"""The act process's work: it reads what samplers ask, and answers all who asked in one call.

While the network computes, the next questions come; so the busier it is the larger its batches are,
without a wait. Nothing of a sampler is kept beyond its connection.
"""

import contextlib
import os
import select
import socket
import time
from collections import defaultdict
from pathlib import Path
from typing import Final

import msgspec
import torch

from headrace.actors.acting.central import messages
from headrace.actors.acting.central.calls import Call, JoinedCall, SizedCall
from headrace.actors.acting.central.choice import THREADS, Choice
from headrace.actors.acting.central.messages import Answer, Ask, Greeting, Refused, Taken
from headrace.actors.acting.central.slot import Slot
from headrace.actors.acting.policy import Policy
from headrace.broker.weights.weight_shelf import SegmentReader
from headrace.learner.weights import WeightsError

_MOST_NETWORKS: Final = 16  # of different policies
_MOST_ROWS: Final = 8192  # of one call


class Held:
    """Holds a network twice: with the weights that were asked for last, and with those before,
    which some samplers still act with."""

    def __init__(self, said: Greeting, shelf: Path, device: str) -> None:
        self._shelf = SegmentReader(shelf)
        self._policies = [
            Policy(said.model, said.spaces, seed=0, precision=said.precision, device=device)
            for _ in range(2)
        ]
        self._calls: dict[Policy, Call] = {
            policy: JoinedCall(policy) if device == "cpu" else SizedCall(policy, device)
            for policy in self._policies
        }

    def at(self, weights: str) -> Call | None:
        """Returns what calls the network with the weights of this digest; takes them from the
        shelf, if they lie there."""
        for policy in self._policies:
            if policy.digest == weights:
                return self._calls[policy]
        seen = self._shelf.look()
        blob = self._shelf.take(-1) if seen is not None and seen.digest == weights else None
        if blob is None or blob.announce.digest != weights:
            return None
        older, newer = self._policies
        try:
            older.load(blob)
        except WeightsError:  # of another network
            return None
        self._policies = [newer, older]
        return self._calls[older]

    def close(self) -> None:
        self._shelf.close()

    def try_with(self, slot: Slot) -> None:
        """Raises where the network does not take such rows, or gives other numbers."""
        for call in self._calls.values():
            call([(slot, 1)])


class _Sampler:
    """Holds one sampler's connection."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line
        self.held: Held | None = None  # None = it has not greeted yet
        self.slot: Slot | None = None
        self.asks: Ask | None = None  # what it waits for

    @property
    def room(self) -> int:
        """Returns the rows of its largest call."""
        return len(self.slot.params) if self.slot is not None else 0


class ActServer:
    """Serves the samplers of a machine by a socket in the folder where their weights lie, with so
    many threads of torch at most."""

    def __init__(self, folder: Path, *, device: str, threads: int) -> None:
        self._path, self._device = folder / messages.SOCKET, device
        # All of them or one: on cores that others keep busy, threads wait for each other.
        self._most_threads, self._threads = threads, Choice(THREADS)
        self._held: dict[bytes, Held] = {}  # by what was said of the network
        self._samplers: dict[int, _Sampler] = {}  # by descriptor
        self.rows = self.calls = 0  # since the start
        self.seconds = 0.0  # in the network
        self._door = messages.new_socket()
        self._door.setblocking(False)
        self._path.unlink(missing_ok=True)  # of one that was killed
        self._door.bind(str(self._path))
        self._door.listen(1024)
        self._poll = select.epoll()
        self._poll.register(self._door, select.EPOLLIN)

    def serve(self, wait_s: float) -> None:
        """Waits for questions, at most so long, and answers all that are there."""
        for fd, _ in self._poll.poll(wait_s):
            if fd == self._door.fileno():
                self._open()
            elif fd in self._samplers:
                self._read(self._samplers[fd])
        asked = defaultdict(list)
        for sampler in self._samplers.values():
            if sampler.asks is not None:
                asked[id(sampler.held), sampler.asks.weights].append(sampler)
        for group in asked.values():
            self._answer(group)

    def close(self) -> None:
        for sampler in list(self._samplers.values()):
            self._leave(sampler)
        self._poll.close()
        self._door.close()
        self._path.unlink(missing_ok=True)
        for held in self._held.values():
            held.close()

    # ---- connections ----------------------------------------------------------------------------

    def _open(self) -> None:
        with contextlib.suppress(OSError):
            line, _ = self._door.accept()
            line.setblocking(False)
            self._samplers[line.fileno()] = _Sampler(line)
            self._poll.register(line, select.EPOLLIN)

    def _leave(self, sampler: _Sampler) -> None:
        del self._samplers[sampler.line.fileno()]
        sampler.line.close()

    def _read(self, sampler: _Sampler) -> None:
        fds: list[int] = []
        try:
            data, fds, *_ = socket.recv_fds(sampler.line, messages.MOST_BYTES, 1)
            if not data:
                raise ConnectionResetError
            said = messages.from_sampler.decode(data)
            if isinstance(said, Greeting) and fds:
                self._say(sampler, self._greeted(sampler, said, fds[0]))
            elif isinstance(said, Ask) and said.rows <= sampler.room:
                sampler.asks = said
            else:
                raise ValueError("it has no such room")
        except BlockingIOError:
            pass
        except (OSError, msgspec.MsgspecError, ValueError):
            self._leave(sampler)
        finally:
            for fd in fds:
                os.close(fd)

    def _greeted(self, sampler: _Sampler, said: Greeting, fd: int) -> Taken | Refused:
        if not said.layout.fits(os.fstat(fd).st_size):
            return Refused("its shared memory is too small")
        key = msgspec.msgpack.encode((said.shelf, said.model, said.spaces, said.precision))
        held, slot = self._held.get(key), said.layout.over(fd)
        if held is None and len(self._held) >= _MOST_NETWORKS:
            return Refused(f"it has {_MOST_NETWORKS} others already")
        try:
            held = held or Held(said, self._path.with_name(said.shelf), self._device)
            held.try_with(slot)
        except Exception as error:  # noqa: BLE001 - of a user's network, or no room on the GPU
            return Refused(" ".join(str(error).split())[:300])
        self._held[key] = sampler.held = held
        sampler.slot = slot
        return Taken()

    def _say(self, sampler: _Sampler, said: messages.ToSampler) -> None:
        # It asks one thing at a time, so there is room for the answer; or it has just ended.
        with contextlib.suppress(OSError):
            sampler.line.send(messages.encode(said))

    # ---- the network ----------------------------------------------------------------------------

    def _answer(self, samplers: list[_Sampler]) -> None:
        """Answers samplers that act with the same weights, in as few calls as there is room for."""
        begun: list[_Sampler] = []
        rows = 0
        for sampler in samplers:
            assert sampler.asks is not None
            if begun and rows + sampler.asks.rows > _MOST_ROWS:
                self._call(begun)
                begun, rows = [], 0
            begun.append(sampler)
            rows += sampler.asks.rows
        self._call(begun)

    def _call(self, samplers: list[_Sampler]) -> None:
        """Makes one call for all of them. Where the network fails each sampler makes its own call,
        and says what was wrong."""
        held, began = samplers[0].held, time.monotonic()
        asked = [(s.slot, s.asks) for s in samplers if s.slot is not None and s.asks is not None]
        assert held is not None
        call, done = held.at(asked[0][1].weights), False
        many = self._threads.first(began)
        if call is not None:
            self._work_with(self._most_threads if many else 1)
            with contextlib.suppress(ValueError, RuntimeError):
                call([(slot, ask.rows) for slot, ask in asked])
                done = True
        if done:
            rows, seconds = sum(ask.rows for _, ask in asked), time.monotonic() - began
            self.calls, self.rows = self.calls + 1, self.rows + rows
            self.seconds += seconds
            self._threads.did(many, rows, began)
        for sampler, (_, ask) in zip(samplers, asked, strict=True):
            sampler.asks = None
            self._say(sampler, Answer(ask.rows if done else 0))

    def _work_with(self, threads: int) -> None:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
