"""A network that asks the act process of the machine, and acts by itself while that does not
answer.

What comes back are the network's numbers by the very weights that were asked for: the action is
drawn here, and its probability is exact, whoever computed them.
"""

import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from headrace.actors.acting.central import messages
from headrace.actors.acting.central.choice import Choice
from headrace.actors.acting.central.messages import Answer, Ask, Greeting, Refused, Taken
from headrace.actors.acting.central.slot import Array, Layout, Slot
from headrace.actors.acting.networks import Network, Numbers, Obs
from headrace.learner.config import ModelConfig
from headrace.learner.spaces import Spaces

log = logging.getLogger(__name__)

# For an answer. An act process that takes longer hangs, or its machine is overloaded.
_PATIENCE_S: Final = 1.0
_PAUSE_S: Final = (0.5, 30.0)  # before it is tried again


class CentralNetwork:
    """Stands for a network: its numbers come from the act process, or from itself."""

    def __init__(
        self,
        own: Network,
        shelf: Path,
        *,
        facts: tuple[ModelConfig, Spaces, str],
        rows: int,
        sizes: tuple[int, int],
        weights: Callable[[], str],
        choice: Choice | None,
    ) -> None:
        self._own = own
        self._path = shelf.with_name(messages.SOCKET)
        self._facts = (shelf.name, *facts)  # facts: model, spaces and precision
        self._rows = rows  # of the largest call
        self._sizes = sizes  # numbers of a row of the output, and of its memory
        self._weights = weights  # the digest of those that `own` holds now
        self._choice = choice  # None = the act process, whenever it answers
        self._socket: socket.socket | None = None
        self._slot: Slot | None = None
        self.taken = False  # the act process has the network
        self._pause_s = _PAUSE_S[0]
        self._next_try = 0.0  # by time.monotonic()

    @property
    def names(self) -> tuple[str, ...]:
        return self._own.names

    @property
    def quick(self) -> bool:
        return self._own.quick

    def refresh(self) -> None:
        """Follows a change of the model's weights."""
        self._own.refresh()

    def params(self, obs: Obs, memory: Numbers | None = None) -> tuple[Numbers, Numbers | None]:
        """Returns what the network makes of the rows, as ActingNetwork.params does."""
        began, rows = time.monotonic(), len(obs[self._own.names[0]])
        ready = self._ready(obs, began)
        there = ready and (self._choice is None or self._choice.first(began))
        found = self._asked(obs, memory, rows) if there else None
        if found is None:
            there, found = False, self._own.params(obs, memory)
        if self._choice is not None and ready:
            self._choice.did(there, rows, began)
        return found

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._slot, self.taken = None, None, False

    def _ready(self, obs: Obs, now: float) -> bool:
        """Says whether the act process has the network; greets it where it was not yet."""
        if self._socket is None and now >= self._next_try:
            self._greet(obs, now)
        if self._socket is not None and not self.taken:
            self._hear(now)
        return self.taken

    def _greet(self, obs: Obs, now: float) -> None:
        line, fd = messages.new_socket(), -1
        line.setblocking(False)
        try:
            line.connect(str(self._path))
            self._socket = line
            read = {name: obs[name] for name in self._own.names}
            inputs = tuple(Array(name, x.dtype.str, x.shape[1:]) for name, x in read.items())
            layout = Layout(self._rows, inputs, *self._sizes)
            fd = os.memfd_create("headrace-act", os.MFD_CLOEXEC)
            os.posix_fallocate(fd, 0, layout.nbytes)  # no hole: a write without room is a SIGBUS
            self._slot = layout.over(fd)
            socket.send_fds(line, [messages.encode(Greeting(*self._facts, layout))], [fd])
        except OSError as error:
            if self._socket is None:  # nobody is there, or too many are at the door
                line.close()
                self._next_try = now + _PAUSE_S[0]
            else:
                self._lost(now, f"cannot be asked: {error}")
        finally:
            if fd >= 0:
                os.close(fd)

    def _hear(self, now: float) -> None:
        """Reads what the act process says to the greeting, if it is there."""
        try:
            said = self._received()
        except BlockingIOError:
            return
        except (OSError, msgspec.MsgspecError) as error:
            self._lost(now, f"does not answer ({error})")
            return
        if isinstance(said, Taken):
            self.taken, self._pause_s = True, _PAUSE_S[0]
            log.info("the machine's act process has the network")
        elif isinstance(said, Refused):
            self._pause_s = _PAUSE_S[1]
            self._lost(now, f"does not take the network: {said.why}")

    def _asked(
        self, obs: Obs, memory: Numbers | None, rows: int
    ) -> tuple[Numbers, Numbers | None] | None:
        """Returns the act process's numbers; None = act here."""
        slot, line = self._slot, self._socket
        if slot is None or line is None or rows > self._rows:
            return None
        for name, into in slot.inputs.items():
            into[:rows] = obs[name]
        if memory is not None:
            slot.before[:rows] = memory
        try:
            line.settimeout(_PATIENCE_S)
            line.send(messages.encode(Ask(rows, self._weights())))
            said = self._received()
            line.setblocking(False)
        except (OSError, msgspec.MsgspecError) as error:
            self._lost(time.monotonic(), f"does not answer ({error})")
            return None
        if not isinstance(said, Answer) or said.rows != rows:
            return None
        after = None if memory is None else slot.after[:rows].copy()
        return slot.params[:rows].copy(), after

    def _received(self) -> messages.ToSampler:
        assert self._socket is not None
        data = self._socket.recv(messages.MOST_BYTES)
        if not data:
            raise ConnectionResetError("it has ended")
        said: messages.ToSampler = messages.to_sampler.decode(data)
        return said

    def _lost(self, now: float, why: str) -> None:
        """Leaves the act process, to be tried again after a pause. Its memory goes, too: an answer
        that is late finds nobody."""
        log.warning("the act process %s; it acts here", why)
        self.close()
        self._next_try = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, _PAUSE_S[1])
