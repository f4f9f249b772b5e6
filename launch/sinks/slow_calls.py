"""Says of a call of somebody else's code, while it lasts, that it takes long."""

import contextlib
import logging
import threading
from collections.abc import Iterator

log = logging.getLogger(__name__)


@contextlib.contextmanager
def told(what: str, *, after_s: float) -> Iterator[None]:
    """Logs one line if what happens inside is not over after so many seconds."""
    words = "%s takes longer than %.0f s; the run goes on"
    timer = threading.Timer(after_s, log.warning, (words, what, after_s))
    timer.daemon = True  # a process that ends need not wait for it
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
