"""Searches one target with atheris, from the corpus that is kept:

    pip install -c constraints.txt -e '.[fuzz]'
    python -m tests.fuzz.run decode -max_total_time=600
    python -m tests.fuzz.keep decode fuzz-decode

What is new lies in fuzz-NAME in the working directory; libFuzzer says in its last line how often it
ran. A broken promise ends it, with the input in a file.
"""

import logging
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["broker", "learner", "launch", "tests"]):
    from tests.fuzz import targets


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in targets.TARGETS:
        sys.stderr.write(f"{__doc__}\ntargets: {' '.join(targets.TARGETS)}\n")
        return 2
    name, *options = arguments
    logging.disable(logging.CRITICAL)
    folder = Path(f"fuzz-{name}")
    folder.mkdir(exist_ok=True)
    _spread(targets.kept(name), folder)
    atheris.Setup([sys.argv[0], str(folder), *options], targets.TARGETS[name])
    atheris.Fuzz()  # ends the process
    return 0


def _spread(inputs: list[bytes], folder: Path) -> None:
    for number, data in enumerate(inputs):
        (folder / f"kept-{number:04d}").write_bytes(data)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
