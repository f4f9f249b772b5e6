"""The account of a run with faults: `headrace audit`, the live metric and the counters of every
role agree with each other and with the ledgers, to the last unroll."""

import functools
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from headrace.broker.journal import audit
from headrace.broker.journal.reader import Role, read
from tests.system.commands.test_metrics import by, port_of, scrape, value
from tests.system.conftest import Place, Process, until
from tests.system.harness.figures import pick, say
from tests.system.harness.watching import stop_ahead_of_its_checkpoint

ROLES = ("broker", "learner", "actor")


def audited(folder: Path) -> tuple[int, str]:
    """What a user gets from `headrace audit`."""
    done = subprocess.run(
        [sys.executable, "-m", "headrace.launch.cli", "audit", str(folder)],
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def unaccounted(role: str, port: int) -> float:
    return value(scrape(port)[f"headrace_{role}_ledger_unaccounted"])


def counted(port: int, family: str) -> Counter[str]:
    found = by(scrape(port)[family], "outcome")
    found.pop("duplicate", None)
    return Counter({outcome: int(count) for outcome, count in found.items() if count})


class Scene:
    """A broker, a learner and two samplers, all with metrics."""

    def __init__(self, place: Place, address: str) -> None:
        self.place, self.address = place, address
        self.broker = place.broker("--metrics-port", "0", bind=address)
        self.learner = place.learner("--metrics-port", "0", broker=address)
        self.names: dict[Process, str] = {}  # of samplers
        self.actors = [self.sampler(name) for name in ("stays", "dies")]
        self.faults = self.looks = 0

    def sampler(self, name: str) -> Process:
        process = self.place.actor("--metrics-port", "0", "--name", name, broker=self.address)
        self.names[process] = name
        return process

    def look(self) -> None:
        """A live run: the metric is 0 on every role, and the audit finds no gap."""
        for role, process in (
            ("broker", self.broker),
            ("learner", self.learner),
            ("actor", self.actors[0]),
        ):
            assert unaccounted(role, port_of(process)) == 0
        account = self.place.account()
        assert account.exact(), account
        self.looks += 1

    def kill(self) -> None:
        """Each of the three in turn, and another in its place."""
        self.place.trains(20)
        self.look()
        match self.faults % 3:
            case 0:
                self.actors[1].kill()
                self.actors[1] = self.sampler(f"dies-{self.faults}")
            case 1:
                self.broker.kill()
                self.broker = self.place.broker("--metrics-port", "0", bind=self.address)
            case 2:
                until(self.place.checkpoints, "a checkpoint")
                stop_ahead_of_its_checkpoint(self.place, self.learner)
                self.learner.kill()
                self.learner = self.place.learner(
                    "--metrics-port", "0", "--resume", broker=self.address
                )
        self.faults += 1


def test_counters_equal_the_ledgers_after_faults(place: Place, tcp: str) -> None:
    """Kills a sampler, the broker and the learner in turn. After each, and at the end, every
    counter of every role is compared with the ledgers."""
    began, scene = time.monotonic(), Scene(place, tcp)
    for _ in range(pick(3, 30)):
        scene.kill()
    place.trains(20)
    scene.look()

    # Without a learner credit ends, and everything stands still.
    port = port_of(scene.learner)
    samples = scrape(port)
    assert value(samples["headrace_learner_ledger_unaccounted"]) == 0
    scene.learner.signal(signal.SIGSTOP)
    for actor in scene.actors:
        said = functools.partial(agrees, place, actor, scene.names[actor])
        until(said, "a sampler's counters and its ledger")
    scene.learner.signal(signal.SIGCONT)

    for process in (*scene.actors, scene.learner):
        if process is scene.learner:
            broker_agrees(place, scene.broker)
            learner_agrees(place, port)
        assert process.term() == 0, process.text()
    assert scene.broker.term() == 0
    account = place.account()
    status, words = audited(place.out)
    say(
        "account",
        faults=scene.faults,
        looks=scene.looks,
        generated=account.generated,
        **account.outcomes,
        in_flight=account.in_flight,
        lost=account.unaccounted(),
        twice=account.twice,
        rolled_back=account.rolled_back,
        seconds=time.monotonic() - began,
    )
    assert (status, words.splitlines()[-1]) == (0, "exact"), words
    assert f"trained twice {account.twice}, rolled back {account.rolled_back}" in words
    killed = [sampler for sampler in account.samplers if not sampler.ended]
    assert {sampler.name for sampler in killed} >= {"dies"}
    assert account.in_flight == sum(sampler.in_flight for sampler in killed)
    assert account.window == 3 * 2
    assert account.rolled_back > 0
    place.nothing_is_left()


def journal_of(place: Place, name: str) -> tuple[Counter[str], int]:
    """What a sampler's ledger says: unrolls by outcome, and generated."""
    (inc,) = [sampler.inc for sampler in place.account().samplers if sampler.name == name]
    (journal,) = [j for j in read(place.ledger, Role.SAMPLER) if j.stem == f"actor-{inc}"]
    found: Counter[str] = Counter()
    for _, outcome, spans in journal.spans("A"):
        found[outcome] += sum(hi - lo for lo, hi in spans)
    generated = sum(hi - lo for _, _, spans in journal.spans("g") for lo, hi in spans)
    return found, generated


def agrees(place: Place, process: Process, name: str) -> bool:
    said = counted(port_of(process), "headrace_actor_fragments")
    generated = value(scrape(port_of(process))["headrace_actor_generated_fragments"])
    return (said, generated) == journal_of(place, name)


def broker_agrees(place: Place, broker: Process) -> None:
    """Its counters begin with its process, as its ledger does."""

    def agree() -> bool:
        said = counted(port_of(broker), "headrace_broker_fragments")
        newest = max(place.ledger.glob("broker-*.log"), key=lambda path: path.stat().st_mtime)
        (journal,) = [j for j in read(place.ledger, Role.BROKER) if j.stem == newest.stem]
        found: Counter[str] = Counter()
        for _, outcome, spans in journal.spans("B"):
            found[outcome] += sum(hi - lo for lo, hi in spans)
        return said == found

    until(agree, "the broker's counters and its ledger")


def learner_agrees(place: Place, port: int) -> None:
    def agree() -> bool:
        samples = scrape(port)
        said = by(samples["headrace_learner_fragments"], "outcome")
        newest = max(place.ledger.glob("learner-*.log"), key=lambda path: path.stat().st_mtime)
        (journal,) = [j for j in read(place.ledger, Role.LEARNER) if j.stem == newest.stem]
        nacked = said["rejected"] + said["abandoned"]
        held = value(samples["headrace_learner_held_fragments"])
        delivered = value(samples["headrace_learner_delivered_fragments"])
        assert delivered == said["trained"] + nacked + held
        return said["trained"] == journal.trained()

    until(agree, "the learner's counters and its ledger")


def test_an_audit_says_what_is_wrong(place: Place) -> None:
    """Spoils the ledger of a whole run, a file at a time."""
    train = place.train("--stop-steps", "3000")
    assert train.ends() == 0, train.text()
    assert audited(place.out)[0] == audited(place.ledger)[0] == 0
    assert place.summary()["unaccounted"] == 0
    (learner,) = place.ledger.glob("learner-*.log")
    (broker,) = place.ledger.glob("broker-*.log")
    whole = learner.read_text()

    trained = [line for line in whole.splitlines() if line.startswith("T ")]
    learner.write_text(whole.replace(trained[3] + "\n", ""))
    status, words = audited(place.out)
    assert status == 1
    assert "gap: 1 unrolls said to be trained, but in no learner's ledger" in words
    assert words.splitlines()[-1] == "NOT exact"
    learner.write_text(whole.replace(trained[3], trained[3].replace("T ", "T9 ")))
    status, words = audited(place.out)
    assert f"damage: {learner.name}, line " in words
    learner.write_text(whole)
    assert audited(place.out)[0] == 0

    broker.unlink()
    status, words = audited(place.out)
    assert status == 0
    assert "no broker's ledger" in words
    learner.unlink()
    status, words = audited(place.out)
    assert status == 1
    assert "bring the learner's" in words
    assert audit.read(place.ledger).untrue == len(trained)
