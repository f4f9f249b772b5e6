"""Gives the files beside this one the form in which they declare commands; cli.py lists them."""

import argparse
from collections.abc import Callable
from typing import NamedTuple


class Command(NamedTuple):
    """Holds one command of `headrace`."""

    summary: str  # its line in `headrace --help`
    arguments: Callable[[argparse.ArgumentParser], None]  # adds them to the command's own parser
    call: Callable[[argparse.Namespace], int]  # does what they ask for, returns the exit status
