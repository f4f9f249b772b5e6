"""`headrace keygen FOLDER`: a broker's key, and one for each role or node; none written over."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.broker import durable
from headrace.broker.security import keys
from headrace.broker.security.keys import AUTHORISED, BROKER, ROLES, Key, KeyFileError
from headrace.launch.config import run_file
from headrace.launch.process import runtime


def keygen(folder: Path, names: Mapping[str, Sequence[str]]) -> int:
    """`names`: role -> names of its keys; a role of a new folder that has none gets one key."""
    try:
        made, kept = generate(folder, names)
    except KeyFileError as error:
        raise run_file.ConfigError(str(error)) from error
    except OSError as error:
        raise run_file.ConfigError(f"{error.filename or folder}: {error.strerror}") from error
    for path in kept:
        print(f"kept  {path}", file=sys.stderr)  # noqa: T201
    for path in made:
        print(f"made  {path}", file=sys.stderr)  # noqa: T201
    return runtime.OK


def generate(folder: Path, names: Mapping[str, Sequence[str]]) -> tuple[list[Path], list[Path]]:
    """What was made, and what was there before."""
    wanted = [(role, keys.check_name(name)) for role in ROLES for name in names.get(role, ())]
    authorised = folder / AUTHORISED
    for place in (folder, authorised):
        # Not stricter afterwards: who has a folder already has given it the rights he wants.
        place.mkdir(mode=0o700, exist_ok=True, parents=True)
    public, made, kept = _broker(folder)
    if made or not wanted:
        wanted = [(role, "") for role in ROLES if not names.get(role)] + wanted
    for role, name in wanted:
        stem = keys.stem(role, name)
        secret, shown = folder / f"{stem}.key", authorised / f"{stem}.pub"
        # Either half is there: it was handed out, or it was withdrawn. Neither must come back.
        if secret.exists() or shown.exists():
            kept.append(secret)
            continue
        key = keys.make(role, name, public)
        durable.write(secret, keys.text(key), mode=0o600, new=True)
        durable.write(shown, keys.public_text(key.public), mode=0o644, new=True)
        made.append(secret)
    return made, kept


def _broker(folder: Path) -> tuple[str, list[Path], list[Path]]:
    """The broker's public half, which is all that is needed here once its key was taken away."""
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
