"""The doctor's checks of a run: its environment, its addresses, its keys."""

import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from headrace.broker.security import keys
from headrace.broker.security.authorised import Authorised
from headrace.broker.security.keys import BROKER, KeyFileError
from headrace.broker.transport import endpoints
from headrace.broker.transport.endpoints import EndpointError
from headrace.launch.config import keyring, unused_keys
from headrace.launch.config.run_file import Run
from headrace.launch.doctor.finding import BAD, OK, WARN, Finding, Subject, last_line, run_program

_SECONDS = 60.0
_PROBE = """
import sys
from headrace.actors.envs.convert import EnvError
from headrace.actors.envs.make import probe
from headrace.launch.config import run_file
try:
    print(probe(run_file.load(sys.argv[1], sys.argv[2:]).env))
except (EnvError, run_file.ConfigError) as error:
    raise SystemExit(str(error))
"""


def keys_that_do_nothing(subject: Subject) -> Iterator[Finding]:
    if subject.run is None:
        return
    doubts = list(unused_keys.doubts(subject.run))
    for words in doubts:
        yield Finding(WARN, "run", words)
    if not doubts:
        yield Finding(OK, "run", f"{subject.run.run.name} is sound")


def environment(subject: Subject) -> Iterator[Finding]:
    """Probes the environment in a process of its own, because it is foreign code."""
    if subject.run is None:
        return
    status, said = run_program("-c", _PROBE, *subject.source, seconds=_SECONDS)
    words = last_line(said)
    yield Finding(BAD if status else OK, "environment", words[:500])


def addresses(subject: Subject) -> Iterator[Finding]:
    """Checks that a broker can listen at the run's addresses."""
    if subject.run is None:
        return
    run = subject.run
    try:
        endpoints.check(run.broker.bind)
        beside = run.broker.announce or endpoints.announce_endpoint(run.broker.bind)
        for endpoint in (run.broker.bind, beside):
            endpoints.check_bind(endpoint, guarded=run.security.curve)
            here = subject.broker in (run.broker.bind, endpoint)
            yield _bindable(endpoint, expected=here or subject.broker == run.broker.bind)
    except EndpointError as error:
        yield Finding(BAD, "address", str(error))


def _bindable(endpoint: str, *, expected: bool) -> Finding:
    """Tries to listen at the endpoint; `expected`: a broker should be running there already."""
    scheme, _, rest = endpoint.partition("://")
    if scheme == "ipc":
        folder = Path(rest).parent
        if not os.access(folder, os.W_OK):
            return Finding(BAD, "address", f"{endpoint}: nobody may write into {folder}")
        return Finding(OK, "address", f"{endpoint} can be used")
    host, _, port = rest.rpartition(":")
    if port in ("*", "0"):
        return Finding(OK, "address", f"{endpoint} takes any free port")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    with socket.socket(family) as trial:
        # As libzmq does: connections of a broker that has just ended do not block the address.
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("" if host == "*" else host.strip("[]"), int(port)))
            trial.listen()
        except socket.gaierror as error:
            return Finding(WARN, "address", f"{endpoint}: {error.strerror}; name an address")
        except OSError as error:
            if expected:
                return Finding(OK, "address", f"{endpoint} is in use, by that broker")
            mend = "stop what listens there, or set broker.bind to another"
            return Finding(BAD, "address", f"{endpoint}: {error.strerror}; {mend}")
    return Finding(OK, "address", f"{endpoint} is free")


def key(subject: Subject) -> Iterator[Finding]:
    """Checks the given key, of any role."""
    if subject.key is None:
        return
    try:
        found = keys.read(subject.key, "")
    except KeyFileError as error:
        yield Finding(BAD, "key", str(error))
        return
    who = keys.stem(found.role, found.name)
    yield Finding(OK, "key", f"{subject.key} is {who}, {found.public[:8]}...")


def key_folder(subject: Subject) -> Iterator[Finding]:
    """Checks the broker's key folder, if the run uses keys."""
    if subject.run is None or not subject.run.security.curve:
        return
    run, folder = subject.run, Path(subject.run.security.keys)
    if not folder.is_dir():
        if subject.key is None:
            words = f"{folder}: no such folder; headrace keygen {folder}"
            yield Finding(BAD, "keys", words)
        return
    if folder.stat().st_mode & 0o022:
        words = f"others can write into {folder}; chmod go-w {folder}"
        yield Finding(BAD, "keys", words)
    yield from _broker_pair(folder)
    yield from _authorised(run)


def _broker_pair(folder: Path) -> Iterator[Finding]:
    secret, shown = folder / f"{BROKER}.key", folder / f"{BROKER}.pub"
    if not secret.exists():
        return  # a peer's machine
    try:
        own = keys.read(secret, BROKER)
        if shown.exists() and keys.parse_public(shown.read_text(), str(shown)) != own.public:
            words = f"{shown} is not the public half of {secret}; delete it, then headrace keygen"
            yield Finding(BAD, "keys", f"{words} {folder}")
            return
        for path in sorted(folder.glob("*.key")):
            if keys.read(path, "").broker != own.public:
                words = f"{path} is for another broker than {secret}; make it anew, headrace keygen"
                yield Finding(BAD, "keys", words)
                return
    except (KeyFileError, OSError, UnicodeDecodeError) as error:
        yield Finding(BAD, "keys", str(error))
        return
    yield Finding(OK, "keys", f"{secret} and its public half fit")


def _authorised(run: Run) -> Iterator[Finding]:
    folder = keyring.authorised(run)
    if not folder.is_dir():
        return
    known = Authorised(folder, time.monotonic)
    with _captured_log("headrace.broker.security.authorised") as lines:
        known.refresh()
    for line in lines:
        yield Finding(WARN, "keys", line)
    if known.problem:
        yield Finding(BAD, "keys", known.problem)
    elif not known.users:
        words = f"{folder} holds no key, so nobody may connect; headrace keygen {folder.parent}"
        yield Finding(BAD, "keys", words)
    else:
        names = ", ".join(sorted(user.strip(":") for user in known.users.values())[:8])
        yield Finding(OK, "keys", f"{len(known.users)} may connect: {names}")


@contextlib.contextmanager
def _captured_log(name: str) -> Iterator[list[str]]:
    """Collects a logger's messages meanwhile, and keeps them from all other handlers."""
    lines: list[str] = []
    logger, handler = logging.getLogger(name), logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    before, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.propagate = before


CHECKS = (keys_that_do_nothing, environment, addresses, key, key_folder)
