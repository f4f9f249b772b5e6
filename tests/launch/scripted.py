"""Runs a script that tells facts, one JSON value a line."""

import json
import subprocess
import sys
import textwrap
from typing import Any


def run_script(prelude: str, script: str) -> tuple[list[Any], str]:
    """Returns what it told, and its standard error. All that inherited its output has ended
    then."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", prelude + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        start_new_session=True,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr
