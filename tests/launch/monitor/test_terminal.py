"""A live view on a terminal on which others write, too: seen as a person would see it."""

import os
import pty
import re
import sys
import textwrap

import pytest

pytestmark = pytest.mark.processes

ROWS, COLUMNS = 200, 100
STATUS = {
    "version": 7,
    "queued": 1,
    "leased": 2,
    "outcomes": {"trained": 3},
    "duplicates": 0,
    "actors": {"behind": 0, "count": 2, "env_steps": 640.0},
    "learners": [{"mean_return": 21.5, "lag": 0.25}],
}
# A child writes between two pictures, each time when it is told to.
SCRIPT = f"""
import os
from headrace.launch.monitor.terminal import CapturedTerminal
from headrace.launch.config.run_sections import StopSection
from headrace.launch.monitor.live_view import LiveView

terminal = CapturedTerminal()
tell, told = os.pipe(), os.pipe()
if os.fork() == 0:
    for number in range(4):
        os.read(tell[0], 1)
        os.write(2, b"sampler says %d\\n" % number)
        os.write(told[1], b".")
    os.write(2, b"half a line")
    os._exit(0)
view = LiveView(run="small", stop=StopSection(), began=0.0, quiet=False, terminal=terminal)
for _ in range(4):
    view.show({STATUS})
    os.write(tell[1], b".")
    os.read(told[0], 1)
os.wait()
view.show({STATUS})
view.close()
terminal.close()
os.write(2, b"the end\\n")
"""


def run(script: str) -> str:
    """What a process writes on a terminal of its own."""
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm", COLUMNS=str(COLUMNS), LINES="30")
        os.execv(sys.executable, [sys.executable, "-c", textwrap.dedent(script)])
    data = b""
    try:
        while chunk := os.read(fd, 2**16):
            data += chunk
    except OSError:  # nobody holds its other end any more
        pass
    _, status = os.waitpid(pid, 0)
    os.close(fd)
    text = data.decode(errors="replace")
    assert os.waitstatus_to_exitcode(status) == 0, text
    return text


def pictures(text: str) -> list[str]:
    """The screen after every line, as far as our view uses what a terminal can do."""
    screen = [[" "] * COLUMNS for _ in range(ROWS)]
    row = column = 0
    seen = []
    for code, letter, character in re.findall(r"\x1b\[([\d;?]*)([A-Za-z])|([^\x1b])", text):
        if letter == "A":
            row = max(0, row - int(code or 1))
        elif letter == "K":
            screen[row] = [" "] * COLUMNS
        elif character == "\r":
            column = 0
        elif character == "\n":
            row += 1
            seen.append("\n".join("".join(cells).rstrip() for cells in screen).rstrip())
        elif character:
            screen[row][column] = character
            column += 1
    return seen


def test_lines_of_others_stand_above_the_view_and_do_not_break_it() -> None:
    seen = pictures(run(SCRIPT))
    assert max(picture.count("headrace small") for picture in seen) == 1
    last = seen[-1].splitlines()
    says = [f"sampler says {number}" for number in range(4)]
    assert [line for line in last if line.startswith("sampler")] == says
    assert [line for line in last if line][-2:] == ["half a line", "the end"]
    assert "headrace small" not in seen[-1]  # the view has gone


def test_without_a_view_nothing_is_lost() -> None:
    """As when no process could be started."""
    text = run(
        """
        import os, sys
        from headrace.launch.monitor.terminal import CapturedTerminal
        terminal = CapturedTerminal()
        print("what went wrong", file=sys.stderr)
        terminal.close()
        """
    )
    assert pictures(text)[-1] == "what went wrong"
