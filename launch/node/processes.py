"""The processes of a node: started, watched, started again, ended."""

import contextlib
import logging
import math
import os
import select
import signal
import time
from typing import Final

import msgspec

from headrace.launch.node.forker import Forker, ForkOrder, Settings, relay_name
from headrace.launch.node.metrics import ACT, RELAY, NodeMetrics
from headrace.launch.node.notice import Notice
from headrace.launch.node.repeated_lines import RepeatedLines
from headrace.launch.node.restarts import ProcessSlot
from headrace.launch.node.size import NodeSize
from headrace.launch.process import forking, runtime, sd_notify
from headrace.launch.process.node_reports import WANTS_ACT, LogLine, ReportReceiver
from headrace.launch.roles.gone_broker import ANEW
from headrace.launch.web import http

log = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 0.1
# Beyond what the samplers may need to drain: to close their environments and their workers.
_MARGIN_S: Final = 10.0
# The default of actor.drain_s, until a sampler has told us the run's.
_DRAIN_S: Final = 5.0
_RELAY_ENDS_WITHIN_S: Final = 3.0


class NodeProcesses:
    """Starts, watches and ends them."""

    def __init__(
        self,
        settings: Settings,
        size: NodeSize,
        receiver: ReportReceiver,
        asked: runtime.StopRequested,
        notice: Notice,
    ) -> None:
        self.registry = http.registry("node")
        self._size = size
        relays = range(RELAY, RELAY - len(settings.peers), -1)
        self._slots = {at: ProcessSlot(at) for at in relays} | size.slots()
        self._metrics = NodeMetrics(self.registry, self._slots)
        self._settings = settings
        self._forker = Forker(settings)  # until there is a port to tell of
        self._forker_slot = ProcessSlot(RELAY)  # when the forker itself is started again
        self._receiver = receiver
        self._repeated = RepeatedLines(log.log)
        self._asked = asked
        self._notice = notice
        self._ending = False  # True = nothing is started any more
        self.begins_anew = False  # a broker is gone, and another answers
        self._status = runtime.OK
        self.watch = sd_notify.Watchdog(self._watchdog_reading)

    @property
    def _samplers(self) -> list[ProcessSlot]:
        """Returns all that there ever were."""
        return [slot for index, slot in self._slots.items() if index >= 0]

    def healthy(self) -> str:
        return "" if self._metrics.welcome() else "no sampler is welcome at a broker"

    def _watchdog_reading(self) -> sd_notify.WatchdogReading:
        """Returns the watchdog's reading: the node's own work is this loop. Samplers that hang have
        watchdogs of their own."""
        welcome, steps = self._metrics.welcome(), self._metrics.total("env_steps")
        text = f"{welcome} of {self._size.count} samplers welcome"
        return sd_notify.WatchdogReading(
            welcome > 0, steps, (), idle=True, text=text, steps=int(steps)
        )

    def run(self, port: int) -> int:
        """Runs until the run is over, somebody asks us to stop, or nothing can be done. `port`:
        where the broker may say that the metrics are; 0 = nowhere."""
        self._forker = Forker(msgspec.structs.replace(self._settings, port=port))
        brokers = " and ".join(peer.broker for peer in self._settings.peers)
        log.info("%d samplers for the broker at %s", self._size.count, brokers)
        try:
            while not self._asked and not self._ending and not self._notice.has_come():
                self._look(_LOOK_EVERY_S)
                self._resize()
                self._start()
                self._ending |= all(slot.done for slot in self._samplers if slot.wanted)
            self._end()
        finally:
            self._forker.close()
            self._repeated.flush_all()
        return self._status

    # ---- every tenth of a second ----------------------------------------------------------------

    def _look(self, wait_s: float) -> None:
        fds = [fd for fd in (self._receiver.socket.fileno(), self._forker.fd) if fd >= 0]
        select.select(fds, [], [], wait_s)
        now = time.monotonic()
        self._record_forked(now)
        # Before their reports are read: so their last ones are among them.
        ended = [(slot, forking.exit_status(slot.pid)) for slot in self._slots.values() if slot.pid]
        names = {slot.pid: self._name(slot) for slot in self._slots.values() if slot.pid}
        indices = {slot.pid: slot.index for slot in self._slots.values() if slot.pid}
        for said in self._receiver.receive():
            if isinstance(said, LogLine):
                who = names.get(said.pid, "one that begins")
                self._repeated.add(who, said.level, said.text, now)
            elif said.pid in indices:
                self._metrics.update(indices[said.pid], said)
                self._slots[indices[said.pid]].heard_at = now
                if WANTS_ACT in said.stats:
                    self._slots.setdefault(ACT, ProcessSlot(ACT))
        for slot, status in ended:
            if status is not None:
                self._record_ended(slot, status, now)
        self._kill([slot for slot in self._slots.values() if slot.hangs(now)], "does not report")
        self._repeated.flush_due(now)
        self.watch.tick()

    def _record_forked(self, now: float) -> None:
        for index, pid in self._forker.forked():
            self._slots[index].started(pid, now)
            if self._ending and pid:
                _signal(pid, signal.SIGTERM)

    def _resize(self) -> None:
        """Starts or ends samplers as SIGHUP asked for. Those that are too many drain."""
        if self._size.changed():
            for at, made in self._size.slots().items():
                self._slots.setdefault(at, made).core = made.core  # when it is started again
            for slot in self._slots.values():
                slot.wanted = slot.index < self._size.count
        now = time.monotonic()
        for slot in self._samplers:
            if slot.pid and not slot.wanted and math.isinf(slot.leave_by):
                slot.leave_by = now + self._drain_s()
                self._tell([slot], signal.SIGTERM)
            elif now > slot.leave_by:
                self._kill([slot])
                slot.leave_by = now + self._drain_s()

    def _start(self) -> None:
        """Orders whatever is due, the relay first; starts the forker itself where it has ended."""
        now = time.monotonic()
        if not self._forker.alive:
            self._record_forked(now)  # its last answers; what it did not answer is ordered again
            for slot in self._slots.values():
                slot.ordered_at = None
            self._start_forker(now)
        for slot in self._slots.values():
            if slot.should_start(now) and self._forker.order(ForkOrder(slot.index, slot.core)):
                slot.ordered_at = now

    def _start_forker(self, now: float) -> None:
        """Starts the forker at once: a sampler that ends should not wait for its imports."""
        if self._forker_slot.pid:
            pause = self._forker_slot.ended(now)
            log.warning("the forker of the samplers ended; again in %.1f s", pause)
        elif now >= self._forker_slot.due_at:
            self._forker_slot.started(self._forker.start(), now)

    def _record_ended(self, slot: ProcessSlot, status: int, now: float) -> None:
        last = self._metrics.ended(slot.index)
        sampler = slot.index >= 0
        well = sampler and status == runtime.OK and last is not None and last.over
        wrong = status == runtime.YOUR_INPUT
        self.begins_anew |= not sampler and status == ANEW
        self._ending |= self.begins_anew
        if self._ending or well or wrong:
            slot.pid, slot.done = 0, True
        elif not slot.wanted:
            slot.pid, slot.leave_by = 0, math.inf
        else:
            pause, words = slot.ended(now), forking.exit_words(status)
            log.warning("%s %s; started again in %.1f s", self._name(slot), words, pause)
        if wrong and not self._status:
            log.error("%s cannot work so; its line above says why", self._name(slot))
            self._status, self._ending = runtime.YOUR_INPUT, True

    def _name(self, slot: ProcessSlot) -> str:
        own = self._settings.peers[0].name
        return f"{own}'s {relay_name(slot.index)}" if slot.index < 0 else f"{own}-{slot.index}"

    # ---- the end --------------------------------------------------------------------------------

    def _end(self) -> None:
        """Ends the samplers first, which wait for acknowledgements, and only then the relay. Asked
        once more, they give up what is not acknowledged, and say so."""
        self._ending = True
        again = runtime.StopRequested()
        if any(slot.pid for slot in self._samplers):
            log.info("waiting for %d samplers", sum(slot.pid > 0 for slot in self._samplers))
        self._tell([slot for slot in self._samplers if math.isinf(slot.leave_by)], signal.SIGTERM)
        deadline = time.monotonic() + self._drain_s()
        while self._open(self._samplers) and time.monotonic() < deadline:
            if again:
                again = runtime.StopRequested()
                self._tell(self._samplers, runtime.GIVE_UP)
            self._look(_LOOK_EVERY_S / 5)
        if any(slot.pid for slot in self._samplers):
            self._status = self._status or runtime.OUR_FAULT
        self._kill(self._samplers)
        relays = [slot for index, slot in self._slots.items() if index < 0]
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._tell(relays, number)
            deadline = time.monotonic() + _RELAY_ENDS_WITHIN_S
            while self._open([*relays, *self._samplers]) and time.monotonic() < deadline:
                self._look(_LOOK_EVERY_S / 5)

    def _open(self, slots: list[ProcessSlot]) -> bool:
        """Says whether one still runs, or is about to."""
        answers = self._forker.alive
        return any(slot.pid or (answers and slot.ordered_at is not None) for slot in slots)

    def _drain_s(self) -> float:
        """Returns the seconds that a sampler has to end."""
        return self._metrics.drain_s(_DRAIN_S) + _MARGIN_S

    def _kill(self, slots: list[ProcessSlot], why: str = "does not end") -> None:
        for slot in slots:
            if slot.pid:
                log.error("%s %s; it is killed", self._name(slot), why)
        self._tell(slots, signal.SIGKILL)

    def _tell(self, slots: list[ProcessSlot], number: signal.Signals) -> None:
        for slot in slots:
            if slot.pid:
                _signal(slot.pid, number)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it is waited for in a moment
        os.kill(pid, number)
