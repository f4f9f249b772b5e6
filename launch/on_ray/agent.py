"""Runs one command of ours on a machine of a Ray cluster: Ray makes an actor of the agent.

The secret half of its key is made where it is used, in shared memory, and goes nowhere. When the
agent dies, however that happens, Linux sends its command SIGTERM.
"""

import contextlib
import os
import random
import runpy
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from headrace.broker import durable
from headrace.broker.security import keys
from headrace.launch.config import run_file
from headrace.launch.node.shared_folder import shared_folder
from headrace.launch.process import forking

# Below the ports that the kernel hands out by itself, above those of Ray's own workers.
_PORTS = range(20_000, 30_000)


class Seat(NamedTuple):
    """Tells the driver where an agent is."""

    host: str
    port: int  # the first of three in a row that nobody listens at
    public: str  # half of its key
    folder: str  # of its key, on its machine


class Agent:
    """Starts one command, and tells how it ended."""

    def __init__(self, name: str) -> None:
        self._name = name  # of its key: ROLE or ROLE-NUMBER
        self._open = contextlib.ExitStack()
        self._folder = self._open.enter_context(shared_folder())
        self._child: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        """Returns what Ray writes before each line of the command."""
        return self._name

    def join(self, token: Path, word: str, broker: str) -> Seat:
        """Makes its key, for the broker with this public half. `token`: a file in the run's folder;
        ConfigError where that does not hold the word, so that this machine has another folder."""
        import ray

        host = ray.util.get_node_ip_address()
        if not token.is_file() or token.read_text() != word:
            raise run_file.ConfigError(
                f"{host} does not see {token.parent}: name a folder that all machines share, --out"
            )
        role, _, own = self._name.partition("-")
        key = keys.make(role, own, broker)
        durable.write(self._folder / f"{role}.key", keys.text(key), mode=0o600)
        (self._folder / keys.AUTHORISED).mkdir(mode=0o700)
        return Seat(host, _free_ports(host), key.public, str(self._folder))

    def authorise(self, name: str, public: str) -> None:
        """Lets in, as the broker's agent, who has this key; "" = no longer."""
        path = self._folder / keys.AUTHORISED / f"{name}.pub"
        if public:
            durable.write(path, keys.public_text(public), mode=0o644)
        else:
            path.unlink(missing_ok=True)

    def start(self, module: str, words: Sequence[str], env: Mapping[str, str]) -> None:
        own = [sys.executable, "-m", "headrace.launch.on_ray.agent", str(os.getpid()), module]
        self._child = subprocess.Popen([*own, *words], env={**os.environ, **env})

    def ended(self, within_s: float) -> int | None:
        """Returns the command's exit status, negative if a signal killed it; None while it runs."""
        if self._child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._child.wait(within_s)
        return None

    def stop(self, patience_s: float, drain_s: float) -> None:
        """Waits for the command's own end, then asks for it, and kills it after the time to
        drain."""
        if self._child is not None and self.ended(patience_s) is None:
            self._child.terminate()
            if self.ended(drain_s) is None:
                self._child.kill()
                self._child.wait()

    def close(self) -> None:
        """Removes its key."""
        self._open.close()


def _free_ports(host: str) -> int:
    for first in random.sample(_PORTS, 100):
        with contextlib.suppress(OSError), contextlib.ExitStack() as probes:
            for port in range(first, first + 3):
                probes.enter_context(socket.socket()).bind((host, port))
            return first
    raise run_file.ConfigError(f"{host} has no free ports from {_PORTS[0]} to {_PORTS[-1]}")


def _run_as_child(agent: str, module: str, *words: str) -> None:
    """Runs a module. The agent has threads, and what runs between a fork and an exec in such a
    process is not safe: so the child itself asks for the signal at the agent's death."""
    forking.become_child(int(agent))
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _run_as_child(*sys.argv[1:])
