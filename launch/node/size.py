"""Says how many samplers a node has: a number, or what a file says, which SIGHUP reads again."""

import argparse
import logging
import os
import signal
from pathlib import Path

from headrace.launch import shared_options
from headrace.launch.config import run_file
from headrace.launch.node.metrics import RELAY
from headrace.launch.node.restarts import ProcessSlot

log = logging.getLogger(__name__)


class NodeSize:
    """Holds the number of samplers. From now on SIGHUP does not end this process."""

    def __init__(self, given: int | Path | None) -> None:
        # None = one for each core, as where the file is not there or is empty.
        self._given = given
        self._asked = False
        self.count = self._read()
        signal.signal(signal.SIGHUP, self._ask)

    def changed(self) -> bool:
        """Reads the file again if SIGHUP asked for it; says whether there shall be others now."""
        asked, self._asked = self._asked, False
        before = self.count
        if asked and not isinstance(self._given, Path):
            log.warning("SIGHUP: --samplers names no file, so there is nothing to read again")
        elif asked:
            try:
                self.count = self._read()
                log.info("SIGHUP: %d samplers, %d before", self.count, before)
            except run_file.ConfigError as error:
                log.error("SIGHUP: %s; %d samplers go on", error, before)
        return self.count != before

    def slots(self) -> dict[int, ProcessSlot]:
        """Returns the places of the relay and the samplers. One sampler a core is bound to its own;
        any other number the kernel places."""
        cores = sorted(os.sched_getaffinity(0))
        if self.count > len(cores):
            words = "%d samplers on %d cores: of use where environments wait"
            log.info(words, self.count, len(cores))
        bound = cores if self.count == len(cores) > 1 else [-1] * self.count
        return {
            RELAY: ProcessSlot(RELAY),
            **{at: ProcessSlot(at, core) for at, core in enumerate(bound)},
        }

    def _read(self) -> int:
        words = ""
        if isinstance(self._given, int):
            return self._given
        if self._given is not None:
            try:
                words = self._given.read_text()[:40].strip()
            except FileNotFoundError:
                log.info("no file %s: one sampler for each core", self._given)
            except (OSError, UnicodeDecodeError) as error:
                raise run_file.ConfigError(f"--samplers {self._given}: {error}") from error
        try:
            return shared_options.count(words) if words else len(os.sched_getaffinity(0))
        except (ValueError, argparse.ArgumentTypeError):
            raise run_file.ConfigError(
                f"--samplers {self._given}: {words!r} is no number from 1 to 1024"
            ) from None

    def _ask(self, *_: object) -> None:
        self._asked = True
