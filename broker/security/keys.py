"""Key files: one secret file for each peer, one public file for each peer that may connect. No
sockets.

    FOLDER/                   0700
      broker.key              0600   the broker's own pair
      broker.pub                     its public half, for peers' files that are made later
      actor-node7.key         0600   all that a peer needs: its own pair, the broker's public half
      authorised/                    where the broker looks up keys
        actor-node7.pub              public half; the file's name says who owns it

Each is a few lines of TOML; a key is 40 characters of Z85. A wrong file raises KeyFileError: one
line that names the file and what to do.
"""

import os
import re
import stat
import struct
import tomllib
from pathlib import Path
from typing import Final, NamedTuple

import zmq
from zmq.utils import z85

from headrace.broker.errors import UserError

ROLES: Final = ("learner", "actor", "evaluator", "watcher")  # of peers
BROKER: Final = "broker"
AUTHORISED: Final = "authorised"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LENGTH: Final = 40
_MOST_BYTES: Final = 4096  # far more than any key file
_FIELDS: Final = ("role", "name", "public", "secret", "broker")


class KeyFileError(UserError, ValueError):
    """Says, in one line for the user, why a key file cannot be used."""


class Key(NamedTuple):
    """Holds the keys of one process."""

    role: str
    name: str  # "" = the role's shared key
    public: str
    secret: str
    broker: str  # the broker's public half; for the broker itself its own
    path: str  # where it was read, for messages

    def __repr__(self) -> str:
        """Hides the secret: a key may come into a log by way of a traceback."""
        return f"Key({stem(self.role, self.name)}, {self.public})"


def stem(role: str, name: str) -> str:
    """Returns the file name of a key, without its ending."""
    return f"{role}-{name}" if name else role


def user(role: str, name: str) -> str:
    """Returns the user that the broker gives to connections with this key."""
    return f"{role}:{name}"


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise KeyFileError(
            f"{name!r} cannot name a key: letters, digits, dots, dashes, at most 64 characters"
        )
    return name


def make(role: str, name: str = "", broker: str = "") -> Key:
    """Makes a new pair."""
    public, secret = (half.decode() for half in zmq.curve_keypair())
    return Key(role, name, public, secret, broker or public, "")


def text(key: Key) -> str:
    """Returns the content of the secret file."""
    who = f"{key.role} {key.name}".strip()
    return (
        f"# A secret Headrace key: whoever reads this file can take part as {who}.\n"
        f'role = "{key.role}"\nname = "{key.name}"\n'
        f'public = "{key.public}"\nsecret = "{key.secret}"\n'
        + ("" if key.role == BROKER else f'broker = "{key.broker}"\n')
    )


def public_text(public: str) -> str:
    """Returns the content of the public file; the file's name says who owns it."""
    return f'# The public half of a Headrace key. Not secret.\npublic = "{public}"\n'


def raw(public: str) -> bytes:
    """Decodes a key to the bytes that travel in a handshake."""
    return bytes(z85.decode(public))


def parse(content: str, source: str, role: str = "") -> Key:
    """Reads a secret file of this role; "" = any role."""
    table = _table(content, source)
    if "secret" not in table and "public" in table:
        raise KeyFileError(f"{source} is only the public half of a key; give the .key file")
    needed = [field for field in _FIELDS if field != "broker" or table.get("role") != BROKER]
    missing = [field for field in needed if field not in table]
    if missing:
        raise KeyFileError(f"{source}: {missing[0]} is missing; make a new one: headrace keygen")
    found = table["role"]
    if found not in (*ROLES, BROKER):
        raise KeyFileError(f"{source}: {found!r} is no role; there are {', '.join(ROLES)}")
    if role and found != role:
        raise KeyFileError(
            f"{source} is the key of {_an(found)}, and {_an(role)} needs a key of its own role;"
            f" give another --key, or make one: headrace keygen FOLDER"
        )
    if table["name"]:
        check_name(table["name"])
    public, secret = (_half(table[half], f"{source}: {half}") for half in ("public", "secret"))
    if zmq.curve_public(secret.encode()).decode() != public:
        raise KeyFileError(f"{source}: public does not belong to secret; were they exchanged?")
    broker = public if found == BROKER else _half(table["broker"], f"{source}: broker")
    return Key(found, table["name"], public, secret, broker, source)


def parse_public(content: str, source: str) -> str:
    """Reads a public file."""
    table = _table(content, source)
    if "secret" in table:
        raise KeyFileError(
            f"{source} holds a secret key where a public one belongs; take the file away and"
            " make a new one, others may have read that one"
        )
    if "public" not in table:
        raise KeyFileError(f"{source}: public is missing; copy the .pub file of headrace keygen")
    return _half(table["public"], f"{source}: public")


def owner(name: str, source: str) -> tuple[str, str]:
    """Returns the role and name of the owner of a public file, by its name."""
    role, dash, own = name.removesuffix(".pub").partition("-")
    if role not in ROLES or (dash and not _NAME.fullmatch(own)):
        raise KeyFileError(
            f"{source}: the name says nobody who may connect; call it ROLE.pub or ROLE-NAME.pub,"
            f" ROLE one of {', '.join(ROLES)}"
        )
    return role, own


def read(path: Path, role: str) -> Key:
    """Reads the key of this role from a file that only its owner can read."""
    try:
        mode = path.stat().st_mode
        content = read_bounded(path)
    except FileNotFoundError:
        raise KeyFileError(
            f"{path}: no such key file; make one: headrace keygen {path.parent}"
        ) from None
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}; {_ALL_THAT_READS}") from None
    # What systemd hands over is guarded by the folder it lies in, and by an access list that shows
    # as group bits.
    handed = os.environ.get("CREDENTIALS_DIRECTORY")
    allowed = 0o040 if handed and path.resolve().is_relative_to(Path(handed).resolve()) else 0
    if stat.S_IMODE(mode) & 0o077 & ~allowed:
        raise KeyFileError(
            f"{path}: others can read this secret (mode {stat.S_IMODE(mode):04o}); chmod 600 {path}"
        )
    return parse(content, str(path), role)


_ALL_THAT_READS: Final = "the user that runs this process must be able to read it"


def read_bounded(path: Path) -> str:
    """Reads as much as a key file may hold; raises KeyFileError when that is not text."""
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise KeyFileError(f"{path}: no key file, it is too long")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise KeyFileError(f"{path}: no key file, it is not text") from None


def _table(content: str, source: str) -> dict[str, str]:
    try:
        table = tomllib.loads(content)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise KeyFileError(f"{source}: {error}; make a new one: headrace keygen") from None
    for field, value in table.items():
        if field not in _FIELDS or not isinstance(value, str):
            raise KeyFileError(f"{source}: {field} does not belong into a key file")
    return table


def _half(value: str, place: str) -> str:
    if len(value) != _LENGTH:
        raise KeyFileError(
            f"{place} has {len(value)} characters; a key has {_LENGTH}, copy it whole"
        )
    try:
        raw(value)
    except (KeyError, ValueError, struct.error):
        raise KeyFileError(f"{place} is no Z85, so it is no key; copy it whole") from None
    return value


def _an(role: str) -> str:
    return f"{'an' if role[0] in 'aeiou' else 'a'} {role}"
