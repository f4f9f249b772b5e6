"""Which Headrace this is: peers of one release understand each other's words, not only frames."""

from functools import cache
from importlib import metadata


@cache
def release() -> str:
    try:
        return metadata.version("headrace")
    except metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return "unknown"
