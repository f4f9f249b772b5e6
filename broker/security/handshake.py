"""Decides what a peer does after a failed handshake, and what its user is told. Pure.

    what libzmq tells                       because                                 then
    AUTH 400            REFUSED    the broker does not know our key                 end; or wait
    AUTH 500            LATER      the broker cannot read its keys now              wait
    PROTOCOL, mechanism MISMATCH   one side has keys, the other has not             end; or wait
    anything else       HUNG_UP    another broker's key, or it died just now        wait

"End; or wait": a peer that was never let in was started wrongly, and ends. One that was let in
before waits: what it holds is worth more than a quick answer to a slip at the broker. The last row
cannot be told apart from a broker that is being restarted, so no peer ends because of it, and it is
logged only when it repeats.
"""

from enum import Enum
from typing import Final

import zmq

from headrace.broker.line_limiter import LineLimiter
from headrace.broker.security.curve import MECHANISM_MISMATCH
from headrace.broker.security.keys import Key, stem

_REFUSED: Final = 400
# This many broken handshakes in a row are not an accident.
_PATIENCE: Final = 3
_LONGEST_S: Final = {"refused": 30.0, "later": 5.0, "mismatch": 30.0, "hung up": 5.0}
_SHORTEST_S: Final = 0.5


class Failure(Enum):
    REFUSED = "refused"
    LATER = "later"
    MISMATCH = "mismatch"
    HUNG_UP = "hung up"


def failure(event: int, value: int) -> Failure:
    """Classifies a monitor's event."""
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return Failure.REFUSED if value == _REFUSED else Failure.LATER
    if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value == MECHANISM_MISMATCH:
        return Failure.MISMATCH
    return Failure.HUNG_UP


class Handshakes:
    """Follows the handshakes of one link, over all its sockets."""

    def __init__(self, endpoint: str, key: Key | None) -> None:
        self._endpoint = endpoint
        self._key = key
        self._let_in = False  # ever
        self._failures = 0  # in a row
        self._last = Failure.HUNG_UP
        self._lines = LineLimiter()  # since we were last let in

    def succeeded(self) -> None:
        """Notes that the broker spoke with us."""
        self._let_in = True
        self._failures = 0
        self._lines.clear()

    def failed(self, what: Failure) -> bool:
        """Counts a failure; True = close this socket, and back off."""
        self._failures += 1
        self._last = what
        return what is not Failure.HUNG_UP or self._failures >= _PATIENCE

    def fatal(self) -> str:
        """Says why to give up; "" = go on."""
        if self._let_in or not self._failures:
            return ""
        return self._words() if self._last in (Failure.REFUSED, Failure.MISMATCH) else ""

    def line(self, now: float) -> str:
        """Returns the next line for the user; "" = nothing new."""
        quiet = self._last is Failure.HUNG_UP and self._failures < _PATIENCE
        if not self._failures or quiet:
            return ""
        line = f"{self._words()}; still trying"
        return line if self._lines.allows(line, now) else ""

    def pause_s(self) -> float:
        """Returns the back-off in seconds; 0 = no handshake failed."""
        if not self._failures:
            return 0.0
        # Exponential back-off: soon at first, seldom while it goes on failing.
        doubled = _SHORTEST_S * 2.0 ** min(self._failures - 1, 10)
        return min(doubled, _LONGEST_S[self._last.value])

    def _words(self) -> str:
        broker, key = f"the broker at {self._endpoint}", self._key
        match self._last, key:
            case Failure.LATER, _:
                return f"{broker} cannot read its authorised keys now; its own log says why"
            case Failure.REFUSED, Key():
                name = stem(key.role, key.name)
                return (
                    f"{broker} refused the key in {key.path}: there is no such {name}.pub in the"
                    " folder of authorised keys of the broker; put it there (headrace keygen"
                    " makes both), or give another key with --key"
                )
            case Failure.MISMATCH, Key():
                return (
                    f"{broker} works without keys, and we have the key in {key.path}; start the"
                    " broker with security.curve = true, or leave out the key (--key,"
                    " security.curve)"
                )
            case Failure.HUNG_UP, Key():
                return (
                    f"{broker} breaks off: the broker's public key in {key.path} may be another"
                    " broker's (compare `broker` there with broker.pub in the broker's key"
                    " folder), or it works without keys"
                )
            case ((Failure.REFUSED | Failure.MISMATCH), None):
                return (
                    f"{broker} lets in only who has a key; give one with --key FILE"
                    " (headrace keygen makes it, SECURITY.md tells more)"
                )
            case _:
                return (
                    f"{broker} breaks off: it may want a key, give one with --key FILE"
                    " (SECURITY.md tells more)"
                )
