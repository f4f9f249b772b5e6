"""The name of a node that no other one of its machine has at the same broker."""

import contextlib
import errno
import hashlib
import itertools
import logging
import socket
from collections.abc import Iterator

log = logging.getLogger(__name__)


@contextlib.contextmanager
def unique_name(name: str, *, broker: str) -> Iterator[str]:
    """Gives the name, or NAME.2, NAME.3 .. where others have it. A socket without a file holds it,
    which the kernel closes however we end: so a node that is started again has its name again."""
    for number in itertools.count(1):
        ours = name if number == 1 else f"{name}.{number}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as holder:
            digest = hashlib.sha256(f"{broker} {ours}".encode()).hexdigest()
            try:
                holder.bind(f"\0headrace-node-{digest}")
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            if number > 1:
                log.info("another node of this machine is %s: this one is %s", name, ours)
            yield ours
            return
