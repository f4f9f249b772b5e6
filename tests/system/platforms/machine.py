"""A machine of its own with systemd as its first process: this one's files, seen through an overlay
that forgets what is written. Needs root and Debian's systemd-container."""

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.needs import missing
from tests.system.conftest import children, until
from tests.system.platforms.inside import need_namespaces, run_inside

ROOT = Path(__file__).resolve().parents[3]
BIN = Path("/opt/headrace/bin")  # of headrace and python in the machine
# Everybody must be able to read it: /root is closed to the users that systemd makes up.
_PYTHON = (
    "export PYTHONHOME=/opt/headrace/python LD_LIBRARY_PATH=/opt/headrace/python/lib"
    " PYTHONPATH=/opt/headrace/source:/opt/headrace/packages;"
    f" exec /opt/headrace/python/bin/python{sys.version_info[0]}.{sys.version_info[1]}"
)
# The mounts are this process's own and end with it. The first boot of a machine without an id.
_START = """
mount -t tmpfs tmpfs "$1" && mkdir "$1/upper" "$1/work" "$1/whole"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/whole"
rm -f "$1/whole/etc/machine-id"; touch "$1/whole/etc/machine-id"
rm -rf "$1/whole/var/log/journal"
exec systemd-nspawn --quiet --directory="$1/whole" --register=no --keep-unit --private-network \
    --hostname=rack1 --bind-ro="$2:/opt/headrace/source" --bind-ro="$3:/opt/headrace/packages" \
    --bind-ro="$4:/opt/headrace/python" --console=pipe --boot systemd.unit=basic.target
"""
_COMMANDS = {"headrace": '-m headrace.launch.cli "$@"', "python": '"$@"'}


class Machine:
    """One that has booted."""

    def __init__(self, folder: Path) -> None:
        self._console = folder / "console.log"
        overlay = folder / "overlay"
        overlay.mkdir()
        with self._console.open("wb") as console:
            self._popen = subprocess.Popen(
                [
                    "unshare",
                    "--mount",
                    "sh",
                    "-ec",
                    _START,
                    "-",
                    overlay,
                    ROOT,
                    sysconfig.get_path("purelib"),
                    sys.base_prefix,
                ],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
        self._first = 0  # its pid out here
        try:
            self._first = until(self._first_process, "the machine's first process")
            booted = ("systemctl", "is-active", "basic.target")
            until(lambda: self.run(*booted) == "active", "the boot")
        except BaseException:
            self.off()
            raise
        self.run("mkdir", "-p", str(BIN))
        for name, words in _COMMANDS.items():
            self.write(f"{BIN}/{name}", f"#!/bin/sh\n{_PYTHON} {words}\n")
            self.run("chmod", "755", f"{BIN}/{name}")

    def _first_process(self) -> int:
        """Its pid out here, once it is one of systemd's."""
        assert self._popen.poll() is None, self._console.read_text()
        found = children(self._popen.pid).items()
        return next((pid for pid, name in found if name == "systemd"), 0)

    def run(self, *words: str, given: str = "") -> str:
        """What a command prints there, whatever its status."""
        env = [f"PATH={BIN}:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/srv"]
        return run_inside(self._first, env, words, given=given)

    def write(self, path: str, text: str) -> None:
        assert self.run("tee", path, given=text) == text.strip()

    def show(self, unit: str, what: str) -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", "--value", "--property", what, unit)

    def journal(self, unit: str, *more: str) -> str:
        return self.run("journalctl", "--no-pager", "--output=cat", f"--unit={unit}", *more)

    def off(self) -> None:
        self._popen.terminate()
        try:
            self._popen.wait(20.0)
        except subprocess.TimeoutExpired:
            os.kill(self._first or self._popen.pid, signal.SIGKILL)
            self._popen.wait(20.0)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    if os.geteuid() or shutil.which("systemd-nspawn") is None:
        missing("a systemd of its own needs root and, on Debian, apt-get install systemd-container")
    need_namespaces("a systemd")
    machine = Machine(tmp_path)
    try:
        yield machine
    finally:
        machine.off()
