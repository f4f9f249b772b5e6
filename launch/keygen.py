"""`headrace keygen FOLDER`: a broker's key, and one for each role or node; never overwrites one."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.broker import durable
from headrace.broker.security import keys
from headrace.broker.security.keys import AUTHORISED, BROKER, ROLES, Key, KeyFileError
from headrace.launch.config import run_file
from headrace.launch.process import runtime


def keygen(folder: Path, names: Mapping[str, Sequence[str]]) -> int:
    """Makes keys; `names`: role -> names of its keys. In a new folder a role without names gets one
    key."""
    try:
        made, kept = generate(folder, names)
    except OSError as error:
        raise run_file.ConfigError(f"{error.filename or folder}: {error.strerror}") from error
    for path in kept:
        print(f"kept  {path}", file=sys.stderr)  # noqa: T201
    for path in made:
        print(f"made  {path}", file=sys.stderr)  # noqa: T201
    return runtime.OK


def generate(folder: Path, names: Mapping[str, Sequence[str]]) -> tuple[list[Path], list[Path]]:
    """Makes the missing keys; returns the files made, and those that were there before."""
    wanted = [(role, keys.check_name(name)) for role in ROLES for name in names.get(role, ())]
    authorised = folder / AUTHORISED
    for place in (folder, authorised):
        # The mode of an existing folder stays as its owner set it.
        place.mkdir(mode=0o700, exist_ok=True, parents=True)
    public, made, kept = _broker_key(folder)
    if made or not wanted:
        wanted = [(role, "") for role in ROLES if not names.get(role)] + wanted
    for role, name in wanted:
        stem = keys.stem(role, name)
        secret, shown = folder / f"{stem}.key", authorised / f"{stem}.pub"
        # If either half exists, the key was handed out or withdrawn: it must not be made again.
        if secret.exists() or shown.exists():
            kept.append(secret)
            continue
        key = keys.make(role, name, public)
        durable.write(secret, keys.text(key), mode=0o600, new=True)
        durable.write(shown, keys.public_text(key.public), mode=0o644, new=True)
        made.append(secret)
    return made, kept


def _broker_key(folder: Path) -> tuple[str, list[Path], list[Path]]:
    """Returns the broker's public key, and the files made and kept. The public half is enough here:
    the secret one may be on the broker's machine only."""
    secret, shown = folder / f"{BROKER}.key", folder / f"{BROKER}.pub"
    if shown.exists():
        return keys.parse_public(keys.read_bounded(shown), str(shown)), [], [secret]
    if secret.exists():
        key = keys.read(secret, BROKER)
        durable.write(shown, keys.public_text(key.public), mode=0o644, new=True)
        return key.public, [], [secret]
    if any(folder.glob("*.key")):
        raise KeyFileError(
            f"{folder} holds keys for a broker whose own are gone (broker.key, broker.pub); bring"
            " broker.pub back, or make all keys anew in another folder"
        )
    key = Key(*keys.make(BROKER)[:5], path=str(secret))
    durable.write(secret, keys.text(key), mode=0o600, new=True)
    durable.write(shown, keys.public_text(key.public), mode=0o644, new=True)
    return key.public, [secret], []
