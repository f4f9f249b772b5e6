"""Makes the corpus smaller again, after a search:

    python -m tests.fuzz.keep decode FOLDER

Of what is kept and what lies in FOLDER the shortest inputs stay that take every way from line to
line that all of them take.
"""

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.fuzz import targets

_ROOT = str(Path(__file__).parents[2])
Way = tuple[CodeType, int, int]


def ways(target: Callable[[bytes], None], data: bytes) -> set[Way]:
    """Every step from one line of ours to the next."""
    found: set[Way] = set()

    def enter(frame: FrameType, _event: str, _value: Any) -> Callable[..., Any] | None:
        if not frame.f_code.co_filename.startswith(_ROOT):
            return None
        last = 0

        def step(inner: FrameType, event: str, _value: Any) -> Callable[..., Any]:
            nonlocal last
            if event == "line":
                found.add((inner.f_code, last, inner.f_lineno))
                last = inner.f_lineno
            return step

        return step

    sys.settrace(enter)
    try:
        target(data)
    finally:
        sys.settrace(None)
    return found


def main(name: str, folder: str) -> int:
    logging.disable(logging.CRITICAL)
    files = sorted(path for path in Path(folder).iterdir() if path.is_file())
    inputs = {*targets.kept(name), *(path.read_bytes() for path in files)}
    taken: set[Way] = set()
    chosen = []
    for data in sorted(inputs, key=lambda body: (len(body), body)):
        new = ways(targets.TARGETS[name], data) - taken
        if new:
            taken |= new
            chosen.append(data)
    targets.keep(name, chosen)
    sys.stderr.write(f"{name}: {len(chosen)} of {len(inputs)} inputs are kept\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
