"""docs/deploy/systemd.md on a machine with a real systemd: head and samplers on one."""

import re
from functools import partial
from pathlib import Path

from tests.system.conftest import RUN, until
from tests.system.platforms.machine import BIN, Machine, machine

__all__ = ["machine"]

# On a busy machine: four units start at once, most of them with torch.
PATIENCE_S = 240.0
LEARNER = "headrace-learner"
UNITS = ("headrace-broker", LEARNER, "headrace-evaluator", "headrace-node")
ACTOR = "headrace-actor@0"  # instead of the node
ADDRESS = "tcp://10.0.0.1:5755"
GUIDE = Path(__file__).parents[3] / "docs" / "deploy" / "systemd.md"


def install(machine: Machine, run: str, *options: str) -> None:
    """What the guide says, for the head and a sampler machine in one."""
    machine.run("ip", "address", "add", "10.0.0.1/32", "dev", "lo")
    machine.write("/srv/cartpole.toml", run)
    blocks = re.findall(r"^```sh\n(install.*?)^```", GUIDE.read_text(), re.M | re.S)
    assert len(blocks) == 2
    lines = [line for line in blocks[0].splitlines() if line.startswith("install")]
    lines.append("install -m 600 keys/actor.key /etc/headrace/keys/")
    words = f"headrace units systemd --run cartpole.toml --nodes 1 --broker {ADDRESS}"
    words += f" --key-folder /etc/headrace/keys --bin {BIN} --out units {' '.join(options)}"
    script = "\n".join(["set -e", "cd /srv", "headrace keygen keys", words, *lines])
    said = machine.run("sh", "-c", f"{script}\nsystemctl daemon-reload && echo installed")
    assert said.endswith("installed"), said


def active(machine: Machine, unit: str) -> bool:
    state = machine.show(unit, "ActiveState")
    assert state in ("active", "activating", "inactive", "deactivating"), machine.journal(unit)
    return state == "active"


def until_active(machine: Machine, unit: str, what: str) -> None:
    try:
        until(partial(active, machine, unit), f"{unit} {what}", timeout_s=PATIENCE_S)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{machine.journal(unit)}") from None


def another(machine: Machine, unit: str, before: str) -> bool:
    # In this order: just killed it is still called active.
    return machine.show(unit, "MainPID") not in ("0", before) and active(machine, unit)


def stopped(machine: Machine, unit: str) -> bool:
    return machine.show(unit, "ActiveState") in ("inactive", "failed")


def restarted(machine: Machine, unit: str) -> bool:
    return machine.show(unit, "NRestarts") != "0"


def start(machine: Machine) -> None:
    for unit in ("headrace.target", *UNITS):
        machine.run("systemctl", "enable", "--quiet", unit)
    machine.run("systemctl", "start", "--no-block", "headrace.target")
    for unit in UNITS:
        until_active(machine, unit, "to be active")


def says(machine: Machine, unit: str, words: str) -> None:
    """Waits for its status line."""
    until(lambda: words in machine.show(unit, "StatusText"), f"{unit}: {words}")


def hangs_soon(machine: Machine, *units: str, seconds: int = 10) -> None:
    """Gives their watchdogs less time, from the next start on. On a busy machine that may be too
    little now and then, so that no number of starts is too many here."""
    for unit in units:
        folder = f"/etc/systemd/system/{unit}.service.d"
        machine.run("mkdir", "-p", folder)
        machine.write(
            f"{folder}/soon.conf", f"[Unit]\nStartLimitBurst=1000\n[Service]\nWatchdogSec={seconds}"
        )
    machine.run("systemctl", "daemon-reload")


def check_credentials(machine: Machine, *units: str) -> None:
    """Each has its own key and no other, and is no user of this machine."""
    for unit in units:
        peer = unit in ("headrace-node", ACTOR)
        role = "actor" if peer else unit.removeprefix("headrace-")
        found = machine.run("ls", f"/run/credentials/{unit}.service")
        assert found == f"{role}.key", machine.journal(unit)
        user = machine.run("stat", "--format=%u", f"/proc/{machine.show(unit, 'MainPID')}")
        assert 61184 <= int(user) <= 65519, "of those that systemd makes up"


def check_size(machine: Machine) -> None:
    """As the guide says it: a file, and a reload."""
    before = machine.show("headrace-node", "MainPID")
    for samplers in ("3", "1"):
        machine.write("/etc/headrace/samplers", samplers)
        assert machine.run("systemctl", "reload", "headrace-node") == ""
        says(machine, "headrace-node", f"{samplers} of {samplers} samplers welcome")
    assert machine.show("headrace-node", "MainPID") == before


def check_withdrawal(machine: Machine) -> None:
    """Who used a key is out without it, and is not started again by itself."""
    key = "/etc/headrace/keys/authorised/actor.pub"
    machine.run("mv", key, "/srv/actor.pub")
    until(lambda: machine.show("headrace-node", "ActiveState") == "failed", "it to be out")
    assert "was withdrawn" in machine.journal("headrace-node")
    machine.run("mv", "/srv/actor.pub", key)
    machine.run("systemctl", "start", "--no-block", "headrace-node")
    until_active(machine, "headrace-node", "to be back")


def check_single(machine: Machine) -> None:
    """One sampler on one core, by a unit of its own, in the place of all of them."""
    machine.run("systemctl", "stop", "headrace-node")
    assert machine.show("headrace-node", "ActiveState") == "inactive"
    hangs_soon(machine, ACTOR)
    machine.run("systemctl", "start", "--no-block", ACTOR)
    until_active(machine, ACTOR, "to be active")
    check_credentials(machine, ACTOR)
    for signal in ("-9", "-STOP"):
        before = machine.show(ACTOR, "MainPID")
        machine.run("kill", signal, before)
        until(partial(another, machine, ACTOR, before), f"{ACTOR} to be back", timeout_s=PATIENCE_S)
    assert "Watchdog timeout" in machine.journal(ACTOR)
    says(machine, ACTOR, "steps/s")


def test_what_is_killed_comes_back_and_what_is_stopped_ends_well(machine: Machine) -> None:
    install(machine, RUN.replace('name = "small"', 'name = "cartpole"'), "--ranks", "2")
    start(machine)
    for unit in UNITS:
        before = machine.show(unit, "MainPID")
        machine.run("kill", "-9", before)
        until(partial(another, machine, unit, before), f"{unit} to be back")
    check_credentials(machine, *UNITS)
    check_size(machine)
    check_withdrawal(machine)
    check_single(machine)
    machine.run("systemctl", "stop", "headrace.target")
    for unit in (*UNITS, ACTOR):
        until(partial(stopped, machine, unit), f"{unit} to stop")
        assert machine.show(unit, "ActiveState") == "inactive", machine.journal(unit)
    journals = "cp /var/lib/private/headrace/cartpole/ledger/* /var/lib/private/headrace-node/*"
    journals += " /var/lib/private/headrace-actor/0/*"
    said = machine.run("sh", "-ec", f"mkdir /srv/j; {journals} /srv/j; headrace audit /srv/j")
    assert said.endswith("\nexact"), said


def test_the_broker_waits_for_its_address_at_boot(machine: Machine) -> None:
    install(machine, RUN.replace('name = "small"', 'name = "cartpole"'))
    machine.run("ip", "address", "delete", "10.0.0.1/32", "dev", "lo")
    machine.run("systemctl", "start", "--no-block", "headrace-broker")
    waits = f"waits for the address of {ADDRESS}"
    until(lambda: waits in machine.show("headrace-broker", "StatusText"), "it to wait")
    assert machine.show("headrace-broker", "ActiveState") == "activating"
    warnings = machine.journal("headrace-broker", "--priority=warning")
    assert waits in warnings and '"info"' not in warnings
    machine.run("ip", "address", "add", "10.0.0.1/32", "dev", "lo")
    until(lambda: active(machine, "headrace-broker"), "it to listen")
    assert machine.show("headrace-broker", "NRestarts") == "0"


def test_what_hangs_is_killed_by_its_watchdog(machine: Machine) -> None:
    install(machine, RUN.replace('name = "small"', 'name = "cartpole"'))
    hangs_soon(machine, *UNITS)
    start(machine)
    for unit in UNITS:
        machine.run("kill", "-STOP", machine.show(unit, "MainPID"))
    for unit in UNITS:
        until(partial(restarted, machine, unit), f"{unit}'s watchdog")
        until_active(machine, unit, "to be back")
        assert "Watchdog timeout" in machine.journal(unit)


def rank(machine: Machine, number: int) -> str:
    """The pid of a learner's rank, a child of torchrun."""
    children = f"pgrep --parent {machine.show(LEARNER, 'MainPID')}"
    its = f"grep --quiet --null-data '^RANK={number}$' /proc/$pid/environ"
    pid = machine.run("sh", "-c", f"for pid in $({children}); do {its} && echo $pid; done")
    assert pid.isdigit(), pid
    return pid


def check_the_run_goes_on(machine: Machine) -> None:
    def version() -> int:
        found = re.search(r"version (\d+)", machine.show(LEARNER, "StatusText"))
        return int(found[1]) if found else 0

    before = until(version, "a version")
    until(lambda: version() > before, "the next version", timeout_s=PATIENCE_S)


def test_ranks_that_hang_come_back_with_their_unit(machine: Machine) -> None:
    run = RUN.replace('name = "small"', 'name = "cartpole"') + "[learner]\nrank_timeout_s = 60\n"
    install(machine, run, "--ranks", "2")
    # Before torchrun's 30 s for a rank that does not end are over. As long as rank_timeout_s do
    # ranks wait for each other at a start, which is slow on a busy machine.
    hangs_soon(machine, LEARNER, seconds=20)
    start(machine)
    for hangs in ("rank 0", "rank 1", "torchrun"):
        before = machine.show(LEARNER, "MainPID")
        if hangs == "torchrun":
            machine.run("kill", "-STOP", before)
            check_the_run_goes_on(machine)
            machine.run("kill", "-9", rank(machine, 1))  # and nobody collects it
        else:
            machine.run("kill", "-STOP", rank(machine, int(hangs[-1])))
        what = f"{LEARNER} to be back after {hangs}"
        until(
            partial(another, machine, LEARNER, before),
            what,
            timeout_s=PATIENCE_S,
            why=lambda: f"\n{machine.journal(LEARNER)}",
        )
        check_the_run_goes_on(machine)
    said = machine.journal(LEARNER)
    assert said.count("Watchdog timeout") >= 3, said
    assert "another rank is gone or stuck" in said
