"""The errors that end a process in order: with one line in its log, and an exit status.

    ExpectedError    1: not by a fault of this process, nor by its input; starting it again may help
      UserError      2: the user's input is wrong, or what it leads to; the line says what to change
      DivergedError  4: training has diverged, and would again; the line says why and what to change

Whatever else ends a process is a fault of ours, and has a traceback.
"""

import os
from typing import ClassVar


class ExpectedError(Exception):
    """Ends a process; its text is one line, fit to be the last one a user reads."""

    status: ClassVar[int] = 1  # of the process that it ends

    def __init__(self, sentence: str) -> None:
        super().__init__(" ".join(sentence.split()))


class UserError(ExpectedError):
    """Says, for the user, what is wrong and what to change."""

    status = 2


class DivergedError(ExpectedError):
    """Ends a run whose loss, gradients, weights or optimiser are not finite any more."""

    status = 4


def install_extra(extra: str) -> str:
    """Returns how to get an extra's packages: our image has no pip, and its Containerfile sets
    this variable."""
    if os.environ.get("HEADRACE_IN_IMAGE"):
        return f"build the image with --build-arg EXTRAS={extra}"
    return f"pip install 'headrace[{extra}]'"
