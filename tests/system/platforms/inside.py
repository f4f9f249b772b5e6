"""Namespaces of a test's own, and commands in those of another process."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.needs import missing

NAMESPACES = ("unshare", "--mount", "--pid", "--net", "--uts", "--fork", "--kill-child")


def need_namespaces(what: str) -> None:
    """Skips where none can be made, as in a container without the right to."""
    tried = subprocess.run([*NAMESPACES, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        missing(f"{what} of its own needs namespaces: {tried.stderr.strip()}")


def first_child(popen: subprocess.Popen[bytes], log: Path) -> int:
    """Returns the pid out here of the first process in there; 0 = there is none yet."""
    assert popen.poll() is None, log.read_text(errors="replace")
    children = Path(f"/proc/{popen.pid}/task/{popen.pid}/children").read_text()
    return int(children or 0)


def run_inside(first: int, env: Sequence[str], words: Sequence[str], *, given: str = "") -> str:
    """Returns what the command prints there, whatever its status. `env`: what env takes."""
    done = subprocess.run(
        ["nsenter", "--all", "--target", str(first), "env", "-i", *env, *words],
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout.strip()
