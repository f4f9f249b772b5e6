"""Memory of a tree of processes: grandchildren count."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.launch.process.memory_use import ProcessTree, with_descendants

pytestmark = pytest.mark.processes

# A process that starts another one and holds it until its input ends.
PARENT = """
import subprocess, sys, time
while time.process_time() < 0.1:
    pass
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"],
                         stdin=subprocess.PIPE)
print(child.pid, flush=True)
sys.stdin.read()
child.stdin.close()
child.wait()
"""


def test_children_of_children_are_found_and_weighed() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdin is not None and parent.stdout is not None
    with parent:
        child = int(parent.stdout.readline())
        assert with_descendants(parent.pid) == [parent.pid, child]
        alone, both = ProcessTree(), ProcessTree()
        alone.measure([])
        both.measure([parent.pid])
        # Two bare interpreters hold some megabytes each.
        assert both.peak_rss_sum_mb - alone.peak_rss_sum_mb > 8
        assert both.peak_mb > alone.peak_mb
        own, theirs = both.uses[os.getpid()], both.uses[parent.pid]
        assert both.uses.keys() == {os.getpid(), parent.pid}
        assert own.pss_mb + theirs.pss_mb == pytest.approx(both.peak_mb)
        assert theirs.cpu_s == pytest.approx(0.1, abs=0.05), "ours is not in it"
        parent.stdin.close()
    assert parent.returncode == 0


def test_a_process_that_is_gone_has_no_children() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    assert with_descendants(pid) == [pid]


def test_a_process_may_end_while_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    glob = Path.glob

    def ended(self: Path, pattern: str) -> Any:
        """As glob does where the folder goes between its two looks at it."""
        if str(self) == "/proc/12345678/task":
            raise FileNotFoundError(str(self))
        return glob(self, pattern)

    monkeypatch.setattr(Path, "glob", ended)
    assert with_descendants(12345678) == [12345678]
