"""`headrace node`: one machine's samplers, their weights' relay, and their restarts.

    node --+-- forker             imported torch once; forks the others, which the node adopts
           +-- relay              one fetch of each version, laid into shared memory
           +-- sampler 0, 1, ..   take weights there; if there are none, from the broker

This process has no torch and no connection to the broker: nothing that comes in by the network can
end it. It starts again what ended badly, for ever; it ends when all samplers say that the run is
over (0), when one says that the user's input is wrong (2), or when it is asked to (0).
"""

import contextlib
import logging
import os
import select
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from headrace.broker.transport import endpoints
from headrace.launch.config import allowed_code as allowing
from headrace.launch.config import keyring, run_file
from headrace.launch.node.forker import Forker, ForkOrder, Settings
from headrace.launch.node.metrics import RELAY, NodeMetrics
from headrace.launch.node.repeated_lines import RepeatedLines
from headrace.launch.node.restarts import ProcessSlot
from headrace.launch.node.shared_folder import shared_folder
from headrace.launch.process import forking, http, logs, runtime, sd_notify
from headrace.launch.process.node_reports import LogLine, ReportReceiver
from headrace.launch.roles.options import NOWHERE, PeerOptions

log = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 0.1
# Beyond what the samplers may need to drain: to close their environments and their workers.
_MARGIN_S: Final = 10.0
# The default of actor.drain_s, until a sampler has told us the run's.
_DRAIN_S: Final = 5.0
_RELAY_ENDS_WITHIN_S: Final = 3.0


@logs.one_line_errors()
def node(options: PeerOptions, *, samplers: int | None) -> int:
    """Runs the node; returns the exit status. `samplers`: None = one for each core."""
    asked = runtime.StopRequested()
    endpoints.check(options.broker)
    # Each process reads these; what is wrong is said once, now.
    keyring.from_file(options.key, "actor")
    allowing.allowed(options.allow)
    if not runtime.adopt_orphans():
        raise run_file.ConfigError("headrace node needs Linux; start samplers: headrace actor")
    with shared_folder() as folder, contextlib.closing(_bind_receiver(folder / "told")) as receiver:
        settings = Settings(
            node=os.getpid(),
            peer=replace(
                options,
                ledger=options.ledger and options.ledger.absolute(),
                key=options.key and options.key.absolute(),
                metrics=NOWHERE,
            ),
            shelf=folder / "weights",
            tell=folder / "told",
            form=logs.form(),
            quiet=log.getEffectiveLevel() >= logging.WARNING,
        )
        made = _Node(settings, process_slots(samplers), receiver, asked)
        port = http.serve_metrics(
            made.registry,
            *options.metrics,
            broker=options.broker,
            healthy=made.healthy,
            stuck=made.watch.stuck,
        )
        return made.run(port)


def process_slots(samplers: int | None) -> dict[int, ProcessSlot]:
    """Returns the places of the relay and the samplers. One sampler a core is bound to its own; any
    other number the kernel places."""
    cores = sorted(os.sched_getaffinity(0))
    count = samplers or len(cores)
    bound = cores if count == len(cores) > 1 else [-1] * count
    return {
        RELAY: ProcessSlot(RELAY),
        **{at: ProcessSlot(at, core) for at, core in enumerate(bound)},
    }


def _bind_receiver(path: Path) -> ReportReceiver:
    try:
        return ReportReceiver(path)
    except OSError as error:
        raise run_file.ConfigError(f"cannot make a socket at {path}: {error.strerror}") from error


class _Node:
    """Starts, watches and ends the processes of one machine."""

    def __init__(
        self,
        settings: Settings,
        slots: Mapping[int, ProcessSlot],
        receiver: ReportReceiver,
        asked: runtime.StopRequested,
    ) -> None:
        self.registry = http.registry("node")
        self._slots = slots
        self._samplers = [slot for slot in slots.values() if slot.index != RELAY]
        self._metrics = NodeMetrics(self.registry, slots)
        self._settings = settings
        self._forker = Forker(settings)  # until there is a port to tell of
        self._forker_slot = ProcessSlot(RELAY)  # when the forker itself is started again
        self._receiver = receiver
        self._repeated = RepeatedLines(log.log)
        self._asked = asked
        self._ending = False  # True = nothing is started any more
        self._status = runtime.OK
        self.watch = sd_notify.Watchdog(self._watchdog_reading)

    def healthy(self) -> str:
        return "" if self._metrics.welcome() else "no sampler is welcome at a broker"

    def _watchdog_reading(self) -> sd_notify.WatchdogReading:
        """Returns the watchdog's reading: the node's own work is this loop. Samplers that hang have
        watchdogs of their own."""
        welcome, steps = self._metrics.welcome(), self._metrics.total("env_steps")
        text = f"{welcome} of {len(self._samplers)} samplers welcome"
        return sd_notify.WatchdogReading(
            welcome > 0, steps, (), idle=True, text=text, steps=int(steps)
        )

    def run(self, port: int) -> int:
        """Runs until the run is over, somebody asks us to stop, or nothing can be done. `port`:
        where the broker may say that the metrics are; 0 = nowhere."""
        self._forker = Forker(msgspec.structs.replace(self._settings, port=port))
        broker = self._settings.peer.broker
        log.info("%d samplers for the broker at %s", len(self._samplers), broker)
        try:
            while not self._asked and not self._ending:
                self._look(_LOOK_EVERY_S)
                self._start()
                self._ending |= all(slot.done for slot in self._samplers)
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
        for slot, status in ended:
            if status is not None:
                self._record_ended(slot, status, now)
        self._repeated.flush_due(now)
        self.watch.tick()

    def _record_forked(self, now: float) -> None:
        for index, pid in self._forker.forked():
            self._slots[index].started(pid, now)
            if self._ending and pid:
                _signal(pid, signal.SIGTERM)

    def _start(self) -> None:
        """Orders whatever is due, the relay first; starts the forker itself where it has ended."""
        now = time.monotonic()
        if not self._forker.alive:
            self._record_forked(
                now
            )  # its last answers; orders that it did not answer are sent again
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
        sampler = slot.index != RELAY
        well = sampler and status == runtime.OK and last is not None and last.over
        wrong = sampler and status == runtime.YOUR_INPUT
        if self._ending or well or wrong:
            slot.pid, slot.done = 0, True
        else:
            pause, words = slot.ended(now), forking.exit_words(status)
            log.warning("%s %s; started again in %.1f s", self._name(slot), words, pause)
        if wrong and not self._status:
            log.error("%s cannot work so; its line above says why", self._name(slot))
            self._status, self._ending = runtime.YOUR_INPUT, True

    def _name(self, slot: ProcessSlot) -> str:
        own = self._settings.peer.name
        return f"{own}'s relay" if slot.index == RELAY else f"{own}-{slot.index}"

    # ---- the end --------------------------------------------------------------------------------

    def _end(self) -> None:
        """Ends the samplers first, which wait for acknowledgements, and only then the relay. Asked
        once more, they give up what is not acknowledged, and say so."""
        self._ending = True
        again = runtime.StopRequested()
        if any(slot.pid for slot in self._samplers):
            log.info("waiting for %d samplers", sum(slot.pid > 0 for slot in self._samplers))
        self._tell(self._samplers, signal.SIGTERM)
        deadline = time.monotonic() + self._metrics.drain_s(_DRAIN_S) + _MARGIN_S
        while self._open(self._samplers) and time.monotonic() < deadline:
            if again:
                again = runtime.StopRequested()
                self._tell(self._samplers, signal.SIGTERM)
            self._look(_LOOK_EVERY_S / 5)
        for slot in self._samplers:
            if slot.pid:
                log.error("%s does not end; it is killed", self._name(slot))
                self._status = self._status or runtime.OUR_FAULT
        self._tell(self._samplers, signal.SIGKILL)
        relay = [self._slots[RELAY]]
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._tell(relay, number)
            deadline = time.monotonic() + _RELAY_ENDS_WITHIN_S
            while self._open([*relay, *self._samplers]) and time.monotonic() < deadline:
                self._look(_LOOK_EVERY_S / 5)

    def _open(self, slots: list[ProcessSlot]) -> bool:
        """Says whether one still runs, or is about to."""
        answers = self._forker.alive
        return any(slot.pid or (answers and slot.ordered_at is not None) for slot in slots)

    def _tell(self, slots: list[ProcessSlot], number: signal.Signals) -> None:
        for slot in slots:
            if slot.pid:
                _signal(slot.pid, number)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it is waited for in a moment
        os.kill(pid, number)
