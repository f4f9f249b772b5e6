"""Acting in one process for all: the same numbers as one's own, and one's own where that fails."""

import contextlib
import logging
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace.actors.acting.central import client, messages, server
from headrace.actors.acting.central.client import CentralNetwork
from headrace.actors.acting.central.server import ActServer
from headrace.actors.acting.central.slot import Array, Layout
from headrace.actors.acting.policy import Policy
from headrace.broker.weights.blobs import Blob
from headrace.broker.weights.weight_shelf import WeightShelf
from headrace.learner.config import ModelConfig
from headrace.learner.models.build import build
from headrace.learner.spaces import Action, Leaf, Part, Spaces, discrete, previous_leaves
from headrace.learner.weights import FlatWeights, layout_digest
from tests.system.conftest import until

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS = 5
PLAIN = Spaces((Leaf("obs", "<f4", (4,)),), discrete(3))
IMAGE = Spaces((Leaf("obs", "|u1", (44, 44), stack=4),), discrete(6))
MASKED = Spaces((Leaf("obs", "<f4", (4,)), Leaf("can", "|u1", (3,), mask=True)), discrete(3))
TORQUES = Action((Part((), "<f4", (2,), low=(-1.0,) * 2, high=(1.0,) * 2),))
CASES = {
    "numbers": (ModelConfig(kind="mlp", hidden=(8,)), PLAIN),
    "image": (ModelConfig(kind="nature"), IMAGE),
    "torques": (ModelConfig(kind="mlp", hidden=(8,)), Spaces(PLAIN.observation, TORQUES)),
    "memory": (ModelConfig(kind="mlp", hidden=(8,), core="lstm", core_units=6), PLAIN),
    "step before": (ModelConfig(kind="mlp", hidden=(8,), core="gru", previous=True), PLAIN),
    "mask": (ModelConfig(kind="mlp", hidden=(8,)), MASKED),
    "statistics": (ModelConfig(kind="mlp", hidden=(8,), normalise_obs=True), PLAIN),
    "critic": (
        ModelConfig(kind="mlp", hidden=(8,)),
        Spaces((*PLAIN.observation, Leaf("state", "<f4", (9,))), discrete(3), critic=("state",)),
    ),
}


class Machine:
    """A shelf, and an act process that is a thread of this one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shelf = WeightShelf(folder / "weights")
        self.socket = folder / messages.SOCKET
        self.server: ActServer | None = None
        self.players: list[Player] = []
        self.awake, self.asleep = threading.Event(), threading.Event()
        self.awake.set()
        self.ends = threading.Event()
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        made = self.server = ActServer(self.folder, device="cpu", threads=1)
        self.ends.clear()

        def run() -> None:
            with contextlib.closing(made):
                while not self.ends.is_set():
                    if not self.awake.is_set():
                        self.asleep.set()
                        self.awake.wait()
                    made.serve(0.01)

        self.thread = threading.Thread(target=run)
        self.thread.start()

    def sleeps(self) -> None:
        """Returns once it does nothing any more, until it is awake again."""
        self.asleep.clear()
        self.awake.clear()
        self.asleep.wait()

    def asked(self) -> int:
        """Counts the questions that it has not read yet."""
        assert self.server is not None
        lines = [sampler.line for sampler in self.server._samplers.values()]
        return len(select.select(lines, [], [], 0)[0])

    def player(self, case: str = "numbers", version: int = 1) -> "Player":
        made = Player(self, case)
        self.players.append(made)
        made.take(version)
        return made

    def stop(self) -> None:
        self.ends.set()
        self.awake.set()
        if self.thread is not None:
            self.thread.join()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setattr(client, "_PATIENCE_S", 60.0)  # on a busy machine, too
    made = Machine(tmp_path)
    yield made
    made.stop()
    made.shelf.close()
    for player in made.players:
        player.central.close()


def weights(case: str, version: int, *, seed: int = 0) -> Blob:
    config, spaces = CASES[case]
    model = build(config, spaces, seed=seed or version)
    with torch.no_grad():
        model.policy_head.weight.mul_(50)  # a fresh one likes all actions alike
        if model.normaliser is not None:
            model.normaliser.count.fill_(10.0)
            model.normaliser.mean.fill_(0.5)
    return Blob.of(version, layout_digest(model), FlatWeights(model).dump())


class Player:
    """A sampler's policy that asks the act process, and a twin that acts by itself."""

    def __init__(self, machine: Machine, case: str = "numbers", rows: int = ROWS) -> None:
        self.case = case
        config, self.spaces = CASES[case]
        self.policy, self.twin = (Policy(config, self.spaces, seed=3) for _ in range(2))
        self.previous = config.previous
        self.central = CentralNetwork(
            self.policy.network,
            machine.shelf.path,
            facts=(config, self.spaces, "auto"),
            rows=rows,
            sizes=(self.policy.numbers, self.policy.memory),
            weights=lambda: self.policy.digest,
            choice=None,
        )
        self.policy.network = self.central

    def take(self, version: int, *, seed: int = 0) -> None:
        blob = weights(self.case, version, seed=seed)
        for policy in (self.policy, self.twin):
            policy.load(blob)

    def joins(self) -> None:
        def taken() -> bool:
            self.central._next_try = 0.0
            return self.acts()

        until(taken, "the act process has the network")

    def acts(self, rows: int = ROWS, *, seed: int = 0) -> bool:
        """Both draw the same actions, from the same numbers; says whether it is connected."""
        dice = np.random.default_rng(seed)
        leaves = (
            *self.spaces.observation,
            *(previous_leaves(self.spaces) if self.previous else ()),
        )
        obs: dict[str, Any] = {
            leaf.name: (
                np.ones((rows, *leaf.seen)) if leaf.mask else dice.uniform(0, 9, (rows, *leaf.seen))
            ).astype(leaf.dtype)
            for leaf in leaves
        }
        size = self.policy.memory
        memory = dice.normal(size=(rows, size)).astype(np.float32) if size else None
        ours, theirs = (each.act(obs, memory) for each in (self.policy, self.twin))
        for one, other in zip(ours, theirs, strict=True):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        return self.central.taken


@pytest.mark.parametrize("case", CASES)
def test_it_acts_as_by_itself_whatever_the_network(machine: Machine, case: str) -> None:
    machine.shelf.put(weights(case, 1))
    machine.start()
    player = machine.player(case)
    player.joins()
    assert machine.server is not None
    before = machine.server.rows
    for seed in range(5):
        player.acts(rows=1 + seed, seed=seed)
    assert machine.server.rows == before + 15


def test_many_are_answered_by_one_call_each_with_its_own(machine: Machine) -> None:
    machine.shelf.put(weights("memory", 1))
    machine.start()
    players = [machine.player("memory") for _ in range(4)]
    for player in players:
        player.joins()
    assert machine.server is not None
    machine.sleeps()
    calls, rows = machine.server.calls, machine.server.rows
    wrong: list[BaseException] = []

    def act(seed: int) -> None:
        try:
            players[seed].acts(rows=1 + seed, seed=seed)
        except AssertionError as error:
            wrong.append(error)

    threads = [threading.Thread(target=act, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: machine.asked() == 4, "all have asked")
    machine.awake.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert machine.server.rows - rows == 10
    assert machine.server.calls - calls == 1


def test_each_acts_with_its_own_weights_or_by_itself(machine: Machine) -> None:
    """The numbers are never of other weights than the sampler says it acts with: also where a
    learner went back to its checkpoint, and versions come a second time."""
    machine.shelf.put(weights("numbers", 1))
    machine.start()
    slow, quick = machine.player(), machine.player()
    for player in (slow, quick):
        player.joins()
    assert machine.server is not None

    def asks(player: Player, seed: int) -> int:
        before = machine.server.rows if machine.server else 0
        player.acts(seed=seed)
        return machine.server.rows - before if machine.server else 0

    machine.shelf.put(weights("numbers", 2))
    quick.take(2)
    assert [asks(quick, 1), asks(slow, 2)] == [ROWS, ROWS], "it holds the version before, too"
    machine.shelf.put(weights("numbers", 3))
    quick.take(3)
    assert [asks(quick, 3), asks(slow, 4)] == [ROWS, 0], "not the one before that"
    quick.take(9)
    assert asks(quick, 5) == 0, "it is not on the shelf yet"
    machine.shelf.put(weights("numbers", 9))
    assert asks(quick, 6) == ROWS
    quick.take(3, seed=77)
    assert asks(quick, 7) == 0, "other weights of the same version"
    machine.shelf.put(weights("numbers", 3, seed=77))
    assert asks(quick, 8) == ROWS


def test_an_end_of_the_act_process_harms_nobody(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    player = machine.player()
    machine.shelf.put(weights("numbers", 1))
    player.acts()
    assert not player.central.taken
    assert not caplog.text, "that there is none yet is no news"
    for _ in range(2):
        machine.start()
        player.joins()
        machine.stop()
        player.acts(seed=1)
        assert not player.central.taken
    said = [record.message.partition(" (")[0] for record in caplog.records]
    lost = "the act process does not answer"
    assert said == ["the machine's act process has the network", lost] * 2


def test_one_that_hangs_is_waited_for_once_and_its_late_answer_finds_nobody(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_PATIENCE_S", 0.05)
    machine.shelf.put(weights("numbers", 1))
    machine.start()
    player = machine.player()
    player.joins()
    machine.sleeps()
    assert not player.acts(seed=1), "no patience is left"
    player.acts(seed=2)
    machine.awake.set()
    player.acts(seed=3)
    player.joins()
    player.acts(seed=4)


def test_more_rows_than_there_is_room_for_are_its_own(machine: Machine) -> None:
    machine.shelf.put(weights("numbers", 1))
    machine.start()
    player = machine.player()
    player.joins()
    player.acts(rows=ROWS + 1)
    player.acts()


def test_a_network_that_it_cannot_make_is_refused_in_a_line(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.cuda.OutOfMemoryError("there is\nno room")

    machine.shelf.put(weights("numbers", 1))
    player = machine.player()
    monkeypatch.setattr(server, "Policy", fail)
    machine.start()
    refused = "the act process does not take the network: there is no room; it acts here"
    until(lambda: not player.acts() and refused in caplog.text, "the refusal")
    assert player.central._next_try > time.monotonic() + 25


class Told:
    """Stands in for a choice: says what it is told, and remembers what was done."""

    def __init__(self) -> None:
        self.says = True
        self.done: list[tuple[bool, int]] = []

    def first(self, _: float) -> bool:
        return self.says

    def did(self, first: bool, rows: int, _: float) -> None:
        self.done.append((first, rows))


def test_where_it_acts_and_with_how_many_threads_is_chosen(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    machine.shelf.put(weights("numbers", 1))
    machine.start()
    assert machine.server is not None
    player = machine.player()
    player.joins()
    places, crowd = Told(), Told()
    monkeypatch.setattr(player.central, "_choice", places)
    monkeypatch.setattr(machine.server, "_threads", crowd)
    monkeypatch.setattr(machine.server, "_most_threads", 3)
    threads.clear()
    player.acts(rows=2)
    crowd.says = False
    player.acts(rows=3)
    places.says = False
    player.acts(rows=4)
    assert threads == [3, 1]
    assert crowd.done == [(True, 2), (False, 3)]
    assert places.done == [(True, 2), (True, 3), (False, 4)]


def test_nonsense_closes_only_the_connection_it_came_by(machine: Machine) -> None:
    machine.shelf.put(weights("numbers", 1))
    machine.start()
    player = machine.player()
    player.joins()
    for words in (b"\xff", b"\x00" * 1000, messages.encode(messages.Ask(1, ""))):
        with messages.new_socket() as line:
            line.connect(str(machine.socket))
            line.send(words)
            line.settimeout(30)
            assert line.recv(100) == b""
    with messages.new_socket() as line:
        line.connect(str(machine.socket))
        config, spaces = CASES["numbers"]
        inputs = (Array("obs", "<f4", (4,)),)
        layout = Layout(1000, inputs, params=3, memory=0)
        greeting = messages.encode(messages.Greeting("weights", config, spaces, "auto", layout))
        with (machine.folder / "short").open("wb") as short:
            socket.send_fds(line, [greeting], [short.fileno()])
        line.settimeout(30)
        said = messages.to_sampler.decode(line.recv(1000))
        assert said == messages.Refused("its shared memory is too small")
    player.acts()
    assert player.central.taken
