"""The folder of public keys that may connect, read again when it changes.

A file that cannot be used is ignored, and logged once. While the folder is missing no new peer is
let in and none is thrown out: a disk that comes a moment late must not cost a thousand samplers
their work. Deleting a file withdraws its key.
"""

import logging
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headrace.broker.security import keys
from headrace.broker.security.keys import KeyFileError

log = logging.getLogger(__name__)

# The folder is read again after this time: a withdrawn key works no longer.
REFRESH_EVERY_S: Final = 0.5
# An unknown key may have been made just now; a flood of them is limited to one look in this time.
_REFRESH_AGAIN_S: Final = 0.05
# Folder entries read at most, so that a wrong folder does not hold up the broker.
_MOST_FILES: Final = 20_000

_Signature = tuple[int, int, int, int]


class Authorised:
    """Maps public keys to users."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        self.folder = folder
        self.problem = ""  # why no new peer can be let in; "" = the folder can be read
        self.users: dict[bytes, str] = {}  # raw public key -> user
        self.withdrawn: dict[bytes, str] = {}  # keys that were here once
        self._clock = clock
        self._names: frozenset[str] = frozenset()  # all users
        self._read: dict[
            str, tuple[_Signature, bytes | None]
        ] = {}  # by file; None = cannot be used
        self._refreshed = -1e9  # when

    def user(self, public: bytes) -> str | None:
        """Returns the user that has this key; None = nobody."""
        self.refresh(REFRESH_EVERY_S)
        if public not in self.users:
            self.refresh(_REFRESH_AGAIN_S)
        return self.users.get(public)

    def has(self, user: str) -> bool:
        """Tells whether this user has a key."""
        self.refresh(REFRESH_EVERY_S)
        return user in self._names

    def refresh(self, oldest_s: float = 0.0) -> None:
        """Reads what changed, unless that was done in the last `oldest_s` seconds."""
        now = self._clock()
        if now - self._refreshed < oldest_s:
            return
        self._refreshed = now
        try:
            files = self._files()
        except OSError as error:
            self._trouble(f"{self.folder} cannot be read: {error.strerror}")
            return
        except KeyFileError as error:
            self._trouble(str(error))
            return
        if self.problem:
            log.warning("%s can be read again", self.folder)
            self.problem = ""
        if files != {name: signature for name, (signature, _) in self._read.items()}:
            self._read = {name: self._read_file(name, files[name]) for name in sorted(files)}
            self._map_users()

    def _trouble(self, why: str) -> None:
        if why != self.problem:
            log.error("%s; until it can be read nobody new is let in", why)
        self.problem = why

    def _files(self) -> dict[str, _Signature]:
        """Returns every public file with a signature that changes when the file does."""
        if self.folder.stat().st_mode & 0o022:
            raise KeyFileError(
                f"others can write into {self.folder}, and so let themselves in;"
                f" chmod go-w {self.folder}"
            )
        found = {}
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if not entry.name.endswith(".pub") or entry.name.startswith("."):
                    continue
                try:
                    known = entry.stat()
                except FileNotFoundError:  # deleted while we look
                    continue
                found[entry.name] = (known.st_mtime_ns, known.st_ino, known.st_size, known.st_mode)
                if len(found) > _MOST_FILES:
                    raise KeyFileError(f"{self.folder} holds more than {_MOST_FILES} keys")
        return found

    def _read_file(self, name: str, signature: _Signature) -> tuple[_Signature, bytes | None]:
        known = self._read.get(name)
        if known is not None and known[0] == signature:
            return known
        path = self.folder / name
        try:
            keys.owner(name, str(path))
            if signature[3] & 0o022:
                raise KeyFileError(f"{path}: others can write into it; chmod go-w {path}")
            return signature, keys.raw(keys.parse_public(keys.read_bounded(path), str(path)))
        except KeyFileError as error:
            log.error("not authorised: %s", error)
        except OSError as error:
            log.error("not authorised: %s: %s", path, error.strerror)
        return signature, None

    def _map_users(self) -> None:
        """Maps keys to users by the files' contents; a key that two files name belongs to
        nobody."""
        shared = Counter(public for _, public in self._read.values() if public is not None)
        before, self.users = self.users, {}
        for name, (_, public) in self._read.items():
            if public is None:
                continue
            if shared[public] > 1:
                log.error(
                    "not authorised: %s holds the same key as another file; make each its own",
                    self.folder / name,
                )
                continue
            self.users[public] = keys.user(*keys.owner(name, name))
        self._names = frozenset(self.users.values())
        for public, user in before.items():
            if public not in self.users:
                self.withdrawn[public] = user
                log.warning("the key of %s is withdrawn", user.replace(":", " ").strip())
        for public in self.users:
            self.withdrawn.pop(public, None)
        while len(self.withdrawn) > _MOST_FILES:
            self.withdrawn.pop(next(iter(self.withdrawn)))
