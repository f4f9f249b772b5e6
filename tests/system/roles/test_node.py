"""`headrace node` as processes: what it starts, keeps alive, fetches, counts, and leaves."""

import os
import re
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric

from headrace.launch import keygen
from headrace.launch.process.memory_use import pss_bytes, with_descendants
from tests.system.commands.test_metrics import get, port_of, scrape
from tests.system.conftest import RUN, Place, Process, children, shared_memory, until
from tests.system.harness.figures import say
from tests.system.harness.tally import tally

# An unroll a version, so that each is trained, also the last; and room for a busy machine.
WHOLE = RUN.replace("batch_unrolls = 2", "batch_unrolls = 1").replace("drain_s = 2", "drain_s = 20")


class Machine:
    """One node, and the broker and the learner that it works for."""

    def __init__(
        self,
        place: Place,
        *more: str,
        samplers: int | Path = 4,
        learner: bool = True,
        model: str = "hidden = [128]",
    ) -> None:
        place.run = place.toml("run.toml", WHOLE.replace("hidden = [16]", model))
        self.place = place
        self.broker = place.broker("--metrics-port", "0")
        self.learner = place.learner() if learner else None
        self.samplers = samplers
        self.more = more
        self.broker_port = port_of(self.broker)
        self.node = self.starts()

    def starts(self) -> Process:
        self.began = time.monotonic()
        self.node = node(self.place, "--samplers", str(self.samplers), *self.more)
        self.port = port_of(self.node)
        return self.node

    def figure(self, name: str) -> float:
        return number(scrape(self.port), f"headrace_node_{name}")

    def reaches(self, name: str, least: float) -> None:
        until(lambda: self.figure(name) >= least, f"{name} {least}:\n", why=self.node.text)

    def has(self, samplers: int) -> bool:
        """Says whether there are as many, and no others."""
        figures = [self.figure(name) for name in ("samplers_wanted", "samplers_welcome")]
        return [*figures, len(named(self.node, "sampler"))] == [samplers] * 3

    def pids(self) -> dict[str, int]:
        """Its children by what ps calls them: forker, relay, sampler-0, .."""
        return {name: pid for pid, name in children(self.node.pid).items()}

    def kills(self, which: str) -> int:
        pid: int = until(lambda: self.pids().get(which), f"a {which}")
        os.kill(pid, signal.SIGKILL)
        return pid

    def ends(self) -> None:
        """All of them, in order; nothing is lost."""
        assert self.node.term() == 0, self.node.text()
        if self.learner is not None:
            self.learner.term()
        self.broker.term()
        self.place.nothing_is_left()


def node(place: Place, *words: str, broker: str = "", env: Any = None) -> Process:
    return place.headrace(
        "node",
        "--broker",
        broker or place.ipc,
        "--ledger",
        str(place.ledger),
        "--name",
        "n",
        "--metrics-port",
        "0",
        *words,
        env=env,
        cold=True,
    )


def named(process: Process, stem: str) -> list[int]:
    return [pid for pid, name in children(process.pid).items() if name.startswith(stem)]


def number(families: dict[str, Metric], name: str, **labels: str) -> float:
    (found,) = [
        sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    ]
    return float(found)


def check_books(place: Place) -> None:
    account = place.account()
    assert (account.unaccounted(), account.untrue) == (0, 0)


def test_weights_cross_the_network_once_and_all_samplers_act_with_them(place: Place) -> None:
    machine = Machine(place)
    machine.reaches("samplers_welcome", 4)
    machine.reaches("weights_fetches_total", 50)
    assert get(machine.port, "/healthz") == (200, "ok\n")
    pids = machine.pids()
    assert len(pids) == 6
    samplers = named(machine.node, "sampler")
    each_mb = pss_bytes(samplers) / 4 / 2**20
    whole_mb = pss_bytes([machine.node.pid]) / 2**20
    threads = len(list(Path(f"/proc/{pids['forker']}/task").iterdir()))
    assert threads == 1, "a fork of a process with threads is not safe"
    machine.learner.signal(signal.SIGSTOP)  # type: ignore[union-attr]

    def still() -> dict[str, Any] | None:
        """What was announced before the learner slept is on its way for a moment."""
        now = scrape(machine.broker_port)
        sent = number(now, "headrace_broker_messages_total", dir="out", type="chunk")
        same = machine.figure("weights_fetches_total") == sent
        return now if same and not number(now, "headrace_broker_weights_lagging_actors") else None

    after = until(still, "what was fetched is what was sent, and all act with it")
    chunks = number(after, "headrace_broker_messages_total", dir="out", type="chunk")
    acting = number(after, "headrace_broker_messages_total", dir="in", type="acting")
    assert number(after, "headrace_broker_sessions", role="node") == 1
    machine.learner.signal(signal.SIGCONT)  # type: ignore[union-attr]
    cpu_s = cpu(machine.node.pid)
    say(
        "a node of 4 samplers",
        each_sampler_mb=each_mb,
        all_mb=whole_mb,
        versions=chunks,
        acting_each=acting / 5 / chunks,
        own_cpu=cpu_s / (time.monotonic() - machine.began),
    )
    assert each_mb <= 90  # one with a torch of its own takes 280
    assert acting <= 5 * chunks
    assert "other weights than version" not in machine.broker.text()
    machine.ends()
    found = tally(place.ledger)
    assert found.lost(found.journals()) == []
    check_books(place)
    assert machine.node.text().count("welcome: run") <= 2, "not once for each"


def cpu(pid: int) -> float:
    """Its own seconds."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def test_whatever_is_killed_comes_back_and_the_others_go_on(place: Place) -> None:
    machine = Machine(place)
    machine.reaches("samplers_welcome", 4)
    machine.reaches("weights_fetches_total", 3)
    # The relay: samplers go on from the broker meanwhile, and from the shelf afterwards.
    steps = machine.figure("samplers_env_steps_total")
    machine.kills("relay")
    machine.reaches("samplers_env_steps_total", steps + 3000)
    fetches = machine.figure("weights_fetches_total")
    machine.reaches("weights_fetches_total", fetches + 20)
    # What forks: nobody else notices.
    pids = machine.pids()
    machine.kills("forker")
    until(lambda: machine.pids().get("forker", pids["forker"]) != pids["forker"], "another")
    assert set(pids.values()) - {pids["forker"]} < set(machine.pids().values())
    # A sampler: totals do not fall.
    steps = machine.figure("samplers_env_steps_total")
    machine.kills("sampler-1")
    until(lambda: machine.figure("restarts_total") == 1, "it is noticed")
    assert machine.figure("samplers_env_steps_total") >= steps
    machine.reaches("samplers_welcome", 4)
    place.trains(20)
    text = machine.node.text()
    assert re.search(r"n's relay was killed by SIGKILL; started again in 0\.\d s", text)
    assert re.search(r"n-\d was killed by SIGKILL; started again in 0\.\d s", text)
    machine.ends()
    check_books(place)


def test_killed_itself_it_leaves_nothing(place: Place) -> None:
    leaves_nothing(place)


def leaves_nothing(place: Place, *words: str, model: str = "", reaches: str = "") -> None:
    """Kills a node of two. Its samplers hear of what they sent before they end."""
    before = shared_memory()
    machine = Machine(place, *words, samplers=2, model=model or "hidden = [128]")
    machine.reaches("samplers_welcome", 2)
    if reaches:
        machine.reaches(reaches, 1)
    place.trains(20)
    family = with_descendants(machine.node.pid)
    own = {name for name in shared_memory() - before if name.startswith("headrace-node-")}
    machine.node.kill()
    until(lambda: not set(family) & place.alive().keys(), "all of them end")
    until(lambda: not own & shared_memory(), "its memory is given back")
    found = tally(place.ledger)
    assert found.given_up == set(), machine.node.text()
    assert found.lost(found.journals()) == []


def waits(ledger: Path) -> bool:
    """Says whether an unroll has no outcome."""
    found = tally(ledger)
    return bool(found.generated.keys() - found.acked.keys() - found.trained.keys())


def test_asked_once_it_waits_and_asked_again_it_does_not(place: Place) -> None:
    """The learner sleeps, so nothing that samplers have sent is acknowledged."""
    machine = Machine(place, samplers=2)
    machine.reaches("samplers_welcome", 2)
    place.trains(10)
    learner = machine.learner
    assert learner is not None
    learner.signal(signal.SIGSTOP)
    until(partial(waits, place.ledger), "an unroll that nobody will acknowledge")
    machine.node.signal(signal.SIGTERM)
    machine.node.says(r"waiting for \d+ acknowledgements")  # of one; others are told in short
    family = named(machine.node, "sampler")
    began = time.monotonic()
    machine.node.signal(signal.SIGTERM)
    assert machine.node.ends() == 0, machine.node.text()
    assert time.monotonic() - began < 15, "drain_s is 20"
    assert not set(family) & place.alive().keys()
    learner.signal(signal.SIGCONT)
    learner.term()
    machine.broker.term()
    assert tally(place.ledger).given_up, "they say what they gave up"
    check_books(place)


def test_it_grows_and_shrinks_while_it_runs_and_goes_with_its_machine(place: Place) -> None:
    """Nothing is lost, whoever leaves; and a second node of the machine has names of its own."""
    size, notice = place.folder / "size", place.folder / "notice"
    size.write_text("3")
    machine = Machine(place, "--notice", str(notice), samplers=size)
    machine.reaches("samplers_welcome", 3)
    for wanted in (1, 2):
        size.write_text(str(wanted))
        machine.node.signal(signal.SIGHUP)
        until(partial(machine.has, wanted), f"{wanted} samplers:\n", why=machine.node.text)
    size.write_text("-1")
    machine.node.signal(signal.SIGHUP)
    machine.node.says(r"'-1' is no number from 1 to 1024; 2 samplers go on")
    second = node(place, "--samplers", "1", "--notice", str(notice))
    machine.broker.says(r"actor n\.2-0 joins")
    place.trains(20)
    notice.touch()
    for each in (machine.node, second):
        assert each.ends() == 0, each.text()
    assert "started again" not in machine.node.text()
    found = tally(place.ledger)
    assert found.given_up == set()
    assert found.lost(found.journals()) == []
    check_books(place)


def test_the_end_of_the_run_is_its_end(place: Place) -> None:
    place.run = place.toml("run.toml", f"{RUN}\n[stop]\nsteps = 3000\n")
    broker, learner = place.broker(), place.learner()
    started = node(place, "--samplers", "2")
    assert started.ends() == 0, started.text()
    learner.ends()
    assert "the run is over" in started.text()
    assert "started again" not in started.text()
    broker.term()
    place.nothing_is_left()
    check_books(place)


def no_game(place: Place) -> tuple[str, list[str]]:
    place.run = place.toml("run.toml", RUN.replace("CartPole-v1", "NoSuchGame-v1"))
    place.broker()
    return "NoSuchGame", []


def withdrawn_key(place: Place) -> tuple[str, list[str]]:
    keys = place.folder / "keys"
    keygen.generate(keys, {"actor": ["withdrawn"]})
    (keys / "authorised" / "actor-withdrawn.pub").unlink()
    secured(place)
    place.broker()
    return "actor-withdrawn.key", ["--key", str(keys / "actor-withdrawn.key")]


def secured(place: Place) -> None:
    place.run = place.toml(
        "run.toml", f'{RUN}\n[security]\ncurve = true\nkeys = "{place.folder}/keys"\n'
    )


@pytest.mark.parametrize("wrong", [no_game, withdrawn_key])
def test_what_no_sampler_can_work_with_ends_it(
    place: Place, wrong: Callable[[Place], tuple[str, list[str]]]
) -> None:
    said, words = wrong(place)
    started = node(place, "--samplers", "4", *words)
    assert started.ends() == 2, started.text()
    errors = [line for line in started.lines() if " ERROR " in line]
    assert said in errors[0]
    assert len(errors) <= 4, started.text()


def test_nobody_there_is_said_once_and_waited_for(place: Place) -> None:
    started = node(place, "--samplers", "4")
    started.says("no broker answers")
    port = port_of(started)
    assert get(port, "/healthz") == (503, "no sampler is welcome at a broker\n")
    broker, learner = place.broker(), place.learner()
    place.trains(10)
    broker.kill()  # and again
    place.broker()
    place.trains(10)
    assert started.term() == 0
    assert learner.term() in (0, 3)
    assert started.text().count("no broker answers") <= 2, started.text()
    assert started.text().count("fell silent") <= 4, started.text()


def test_keys_of_samplers_are_enough(place: Place) -> None:
    """And nothing else need be said: there is one sampler for each core, on that core."""
    keygen.generate(place.folder / "keys", {})
    secured(place)
    broker, _ = place.broker("--metrics-port", "0"), place.learner()
    started = node(place, "--key", str(place.folder / "keys" / "actor.key"))
    port = port_of(started)
    until(lambda: number(scrape(port), "headrace_node_weights_fetches_total") > 5, "weights")
    place.trains(10)
    cores = sorted(os.sched_getaffinity(0))
    bound = [os.sched_getaffinity(pid) for pid in named(started, "sampler")]
    assert sorted(map(sorted, bound)) == [[core] for core in cores], "one for each core"
    assert number(scrape(port_of(broker)), "headrace_broker_sessions", role="node") == 1
    assert started.term() == 0


def test_where_there_is_no_room_samplers_fetch_for_themselves(place: Place) -> None:
    """A limit on the size of files stands for a full /dev/shm: the same call fails."""
    place.run = place.toml("run.toml", RUN.replace("hidden = [16]", "hidden = [256, 256]"))
    broker, _ = place.broker("--metrics-port", "0"), place.learner()
    words = ["node", "--broker", place.ipc, "--samplers", "2", "--metrics-port", "0"]
    started = place.python(
        "-c",
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000));"
        f" from headrace.launch import cli; sys.exit(cli.main({words!r}))",
    )
    started.says("no room for 1 MiB of weights in /dev/shm/headrace-node-")
    place.trains(20)
    port = port_of(started)
    assert number(scrape(port), "headrace_node_weights_fetches_total") == 0
    chunks = scrape(port_of(broker))
    assert number(chunks, "headrace_broker_messages_total", dir="out", type="chunk") > 10
    assert started.text().count("no room for") == 1
    assert started.term() == 0


def test_a_cold_start(place: Place) -> None:
    """Eight samplers: from the command to the first unroll at the broker."""
    broker = place.broker("--metrics-port", "0")
    place.learner()
    port = port_of(broker)
    until(lambda: number(scrape(port), "headrace_broker_weights_version") >= 0, "weights")
    began = time.monotonic()
    started = node(place, "--samplers", "8")
    until(lambda: number(scrape(port), "headrace_broker_received_total") > 0, "an unroll")
    first_s = time.monotonic() - began
    own = port_of(started)
    until(lambda: number(scrape(own), "headrace_node_samplers_welcome") == 8, "all of them")
    all_s = time.monotonic() - began
    say("a node of 8 samplers", first_unroll_s=first_s, all_welcome_s=all_s)
    assert started.term() == 0
