"""Real roles and a real socket: READY after WELCOME, a watchdog that a hung loop does not feed."""

import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest

from tests.system.conftest import Place, Process, until

WATCHDOG_S = 1.0


class Ear:
    """One unit's notify socket, as systemd has one."""

    def __init__(self, path: Path) -> None:
        self.env = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6))}
        self.lines: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._thread = threading.Thread(target=self._hear)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RD)
        self._thread.join()
        self._socket.close()

    def count(self, word: str) -> int:
        return sum(line.startswith(word) for line in self.lines)

    def says(self, word: str, more: int = 1) -> None:
        goal = self.count(word) + more
        until(lambda: self.count(word) >= goal, f"{more} more {word} in ", why=lambda: self.lines)

    def hears(self, line: str) -> None:
        until(lambda: line in self.lines, f"{line} in ", why=lambda: self.lines)

    def order(self) -> list[str]:
        """What was said, in order; what was said several times in a row once."""
        words = [line for line in self.lines if not line.startswith("STATUS=")]
        return [word for at, word in enumerate(words) if at == 0 or words[at - 1] != word]

    def _hear(self) -> None:
        while message := self._socket.recv(4096):
            self.lines += message.decode().splitlines()


Listen = Callable[[str], Ear]


@pytest.fixture
def listen(place: Place) -> Iterator[Listen]:
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(Ear(place.folder / f"{name}.notify"))


def start(place: Place, ear: Ear, *arguments: str) -> Process:
    return place.headrace(*arguments, env=ear.env)


def status(ear: Ear, pattern: str) -> None:
    until(
        lambda: any(re.search(pattern, line) for line in ear.lines),
        f"{pattern}: ",
        why=lambda: ear.lines,
    )


def test_ready_fed_and_stopping_in_this_order(place: Place, listen: Listen) -> None:
    ears = {name: listen(name) for name in ("evaluator", "actor", "learner", "broker")}
    at = ("--broker", place.ipc)
    roles = {
        "actor": start(place, ears["actor"], "actor", *at),
        "evaluator": start(place, ears["evaluator"], "evaluate", *at, "--episodes", "2"),
        "learner": start(
            place, ears["learner"], "learner", *at, "--run", place.run, "--out", str(place.out)
        ),
    }
    for name in roles:  # without a WELCOME: not ready, and more time is asked for
        ears[name].says("EXTEND_TIMEOUT_USEC=", 2)
        status(ears[name], f"STATUS=no broker answers at {place.ipc}")
        assert "READY=1" not in ears[name].lines
    broker_ear = ears["broker"]
    roles["broker"] = start(place, broker_ear, "broker", "--run", place.run, "--bind", place.ipc)
    for name in reversed(ears):
        ears[name].hears("READY=1")
        ears[name].says("WATCHDOG=1", 2)
    status(ears["learner"], r"^STATUS=version [1-9]\d*, [\d,]+ steps/s$")
    status(ears["actor"], r"^STATUS=version [1-9]\d*.*, [1-9][\d,]* steps/s$")
    status(ears["evaluator"], r"^STATUS=version \d+: return \d")
    status(ears["broker"], r"^STATUS=version [1-9]\d*, 3 peers, \d+ unrolls held$")
    for name, ear in ears.items():
        assert roles[name].term() == 0
        ear.hears("STOPPING=1")
        asked = ["EXTEND_TIMEOUT_USEC=60000000"] if name != "broker" else []
        assert ear.order()[: len(asked) + 3] == [*asked, "READY=1", "WATCHDOG=1", "STOPPING=1"]


def test_a_sampler_without_credit_is_fed_and_a_hung_one_is_not(
    place: Place, listen: Listen
) -> None:
    """Nobody learns: after the first credit there is nothing to do, and that is no fault."""
    ear = listen("actor")
    broker, learner = place.broker(), place.learner()
    actor = start(place, ear, "actor", "--broker", place.ipc)
    place.trains(20)
    assert learner.term() == 0
    status(ear, "waits for credit")
    ear.says("WATCHDOG=1", 3)
    actor.signal(signal.SIGSTOP)
    before = ear.count("WATCHDOG=1")
    time.sleep(2 * WATCHDOG_S)  # the time in which systemd would have missed it
    assert ear.count("WATCHDOG=1") <= before + 1
    actor.signal(signal.SIGCONT)
    ear.says("WATCHDOG=1")
    assert actor.term() == 0
    assert broker.term() == 0


HANGS = '''
import time
import gymnasium

class Hangs(gymnasium.Wrapper):
    """Its first environment answers a while, and then never again."""
    steps = 0
    def step(self, action):
        Hangs.steps += 1
        if Hangs.steps > 2000:
            time.sleep(3600)
        return self.env.step(action)

def make():
    return Hangs(gymnasium.make("CartPole-v1"))
'''


def test_an_environment_that_hangs_feeds_nothing(place: Place, listen: Listen) -> None:
    """It has a thread of its own, so the loop turns; but nothing gets on."""
    place.toml("hangs.py", HANGS)
    run = Path(place.run)
    run.write_text(
        run.read_text()
        .replace('id = "CartPole-v1"', 'id = "hangs:make"')
        .replace("groups = 2", 'groups = 1\nstepping = "threads"')
    )
    ear = listen("actor")
    broker, learner = place.broker(), place.learner()
    actor = start(place, ear, "actor", "--broker", place.ipc, "--allow", "hangs")
    ear.hears("WATCHDOG=1")

    def quiet() -> bool:
        before = ear.count("WATCHDOG=1")
        time.sleep(2 * WATCHDOG_S)
        return ear.count("WATCHDOG=1") == before

    until(quiet, "nothing is fed")
    assert "steps/s" in ear.lines[-1]  # it looks, and sees that nothing moves
    actor.kill()
    assert learner.term() == 0
    assert broker.term() == 0


def test_a_node_speaks_for_its_samplers(place: Place, listen: Listen) -> None:
    ear = listen("node")
    node = start(place, ear, "node", "--broker", place.ipc, "--samplers", "2")
    ear.says("EXTEND_TIMEOUT_USEC=", 2)
    assert "READY=1" not in ear.lines
    broker, learner = place.broker(), place.learner()
    ear.hears("READY=1")
    ear.says("WATCHDOG=1", 2)
    status(ear, r"^STATUS=[12] of 2 samplers welcome, [1-9][\d,]* steps/s$")
    node.signal(signal.SIGSTOP)
    before = ear.count("WATCHDOG=1")
    time.sleep(2 * WATCHDOG_S)
    assert ear.count("WATCHDOG=1") <= before + 1  # its samplers are silent, and do not speak for it
    node.signal(signal.SIGCONT)
    assert node.term() == 0
    ear.hears("STOPPING=1")
    asked = "EXTEND_TIMEOUT_USEC=60000000"
    assert ear.order()[:4] == [asked, "READY=1", "WATCHDOG=1", "STOPPING=1"]
    assert learner.term() == 0
    assert broker.term() == 0
