"""Runs a command in the namespaces of another process."""

import subprocess
from collections.abc import Sequence


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
