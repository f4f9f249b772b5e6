"""The release of Headrace: only peers of one release understand all of each other's messages."""

from functools import cache
from importlib import metadata


@cache
def release() -> str:
    try:
        return metadata.version("headrace")
    except metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return "unknown"
