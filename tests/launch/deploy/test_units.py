"""`headrace units`: what it renders is what systemd and bash take; every command in it is true."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from headrace.launch import cli
from headrace.launch.config import run_file
from headrace.launch.deploy import units
from headrace.launch.process import descriptors
from tests.needs import missing

ADDRESS = "tcp://10.0.0.1:5755"


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    """Where the units look for their executables."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("headrace", "python"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return folder


def render(kind: str, out: Path, *more: str, bin_folder: Path, run: str = "cartpole") -> Path:
    words = ["units", kind, "--run", run, "--out", str(out), "--bin", str(bin_folder), *more]
    assert cli.main(words) == 0
    return out


def tool(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        missing(f"{name} is not installed: apt-get install {package}")
    return str(found)


def reached(kind: str) -> tuple[str, ...]:
    """The words for other machines, where the kind does not find them by itself."""
    return () if kind in ("slurm", "skypilot") else ("--broker", ADDRESS)


@pytest.mark.parametrize("kind", units.KINDS)
def test_what_the_run_names_is_allowed_where_it_is_sampled(
    kind: str, tmp_path: Path, bin_folder: Path
) -> None:
    own = ("--set", "env.id=robots.arm:make", "--set", "model.kind=nets:make")
    where = (*reached(kind), "--key-folder", "/etc/headrace/keys")
    out = render(kind, tmp_path / "own", *own, *where, bin_folder=bin_folder)
    text = "".join(path.read_text() for path in out.rglob("*") if path.is_file())
    said = re.findall(r"--allow[ =](\S+)", text)
    roles = 3 if kind == "systemd" else 2  # actor, node, evaluator
    assert said == roles * ["robots.arm:make", "nets:make"]
    plain = render(kind, tmp_path / "plain", *where, bin_folder=bin_folder)
    assert not any("--allow" in path.read_text() for path in plain.rglob("*") if path.is_file())


# ---- systemd ------------------------------------------------------------------------------------

WIDE = ("--nodes", "2", "--key-folder", "/etc/headrace/keys", "--ranks", "2")
SITES = {
    "one-machine": (),
    "rack": WIDE,
    "two-learners": (*WIDE, "--learners", "2", "--set", "pacing.batch_unrolls=4"),
}


# On a machine each, and three on one.
BROKERS = f"{ADDRESS},tcp://10.0.0.2:5755"
TWO = ("--set", "broker.shards=2", "--set", "pacing.batch_unrolls=2", "--broker", BROKERS)
THREE = ("--set", "broker.shards=3", "--set", "pacing.batch_unrolls=3", "--broker", ADDRESS)


def site_words(kind: str, site: str) -> tuple[str, ...]:
    return (*SITES[site], *(reached(kind) if site != "one-machine" else ()))


@pytest.mark.processes
@pytest.mark.parametrize("site", SITES)
def test_systemd_takes_every_unit(site: str, tmp_path: Path, bin_folder: Path) -> None:
    """It exits with 0 on an unknown key: any word is one too many."""
    analyze = tool("systemd-analyze", "systemd")
    out = render("systemd", tmp_path / "units", *site_words("systemd", site), bin_folder=bin_folder)
    shutil.copy(out / "headrace-actor@.service", out / "headrace-actor@0.service")
    (out / "headrace-actor@.service").unlink()  # of no instance, its core is no number
    files = sorted(str(p) for p in out.iterdir() if p.suffix in (".service", ".target", ".slice"))
    assert len(files) == 9
    done = subprocess.run([analyze, "verify", *files], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.processes
def test_systemd_takes_a_unit_for_each_broker(tmp_path: Path, bin_folder: Path) -> None:
    analyze = tool("systemd-analyze", "systemd")
    where = ("--key-folder", "/etc/headrace/keys")
    out = render("systemd", tmp_path / "units", *TWO, *where, bin_folder=bin_folder)
    names = ("headrace-broker.service", "headrace-broker1.service", "headrace-learner.service")
    done = subprocess.run(
        [analyze, "verify", *(str(out / name) for name in names)], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    first, second, learner = (settings(out / name) for name in names)
    assert f"--bind {ADDRESS} --set" in first["ExecStart"][0]
    assert "--bind tcp://10.0.0.2:5755 --shard 1 --set" in second["ExecStart"][0]
    assert first["ExecStart"][0].endswith("--metrics-port 9100")
    assert second["ExecStart"][0].endswith("--metrics-port 9141")
    assert f"--broker {BROKERS} --key" in learner["ExecStart"][0]
    for peer in ("learner", "node", "actor@", "evaluator"):
        (after,) = settings(out / f"headrace-{peer}.service")["After"]
        assert " headrace-broker.service headrace-broker1.service" in after


def test_brokers_of_one_machine_have_the_next_ports(tmp_path: Path, bin_folder: Path) -> None:
    out = render("supervisor", tmp_path, *THREE, bin_folder=bin_folder)
    said = [
        re.findall(r"broker --run .*--bind (\S+).*--metrics-port (\d+)", path.read_text())
        for path in (out / "head.conf", out / "broker1.conf", out / "broker2.conf")
    ]
    assert said == [
        [("tcp://10.0.0.1:5755", "9100")],
        [("tcp://10.0.0.1:5757", "9141")],
        [("tcp://10.0.0.1:5759", "9142")],
    ]
    every = ",".join(address for ((address, _),) in said)
    assert f"--broker {every} " in (out / "node1.conf").read_text()


@pytest.mark.processes
def test_a_slip_in_a_unit_would_be_seen(tmp_path: Path, bin_folder: Path) -> None:
    analyze = tool("systemd-analyze", "systemd")
    unit = render("systemd", tmp_path, bin_folder=bin_folder) / "headrace-broker.service"
    unit.write_text(unit.read_text().replace("WatchdogSec=", "WatchdogSecs="))
    done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True)
    assert "WatchdogSecs" in done.stderr


@pytest.mark.processes
@pytest.mark.parametrize("unit", ["broker", "actor@", "node", "evaluator", "learner"])
def test_a_unit_is_exposed_little(unit: str, tmp_path: Path, bin_folder: Path) -> None:
    analyze = tool("systemd-analyze", "systemd")
    out = render("systemd", tmp_path, *site_words("systemd", "rack"), bin_folder=bin_folder)
    done = subprocess.run(
        [analyze, "security", "--offline=true", str(out / f"headrace-{unit}.service")],
        capture_output=True,
        text=True,
    )
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert found, done.stdout + done.stderr
    assert float(found[1]) <= 2.0


def settings(unit: Path) -> dict[str, list[str]]:
    text = unit.read_text().replace("\\\n", "")
    found: dict[str, list[str]] = {}
    for key, value in re.findall(r"^(\w+)=(.*)$", text, re.M):
        found.setdefault(key, []).append(value)
    return found


def test_limits_and_times_follow_the_run(tmp_path: Path, bin_folder: Path) -> None:
    sets = (
        "broker.peers=500",
        "broker.beat_s=20",
        "broker.lease_s=60",
        "broker.queue_mb=2000",
        "actor.drain_s=40",
        "actor.step_timeout_s=200",
        "learner.rank_timeout_s=100",
    )
    more = [word for setting in sets for word in ("--set", setting)]
    out = render("systemd", tmp_path, *more, bin_folder=bin_folder)
    broker, learner, actor, node = (
        settings(out / f"headrace-{role}.service")
        for role in ("broker", "learner", "actor@", "node")
    )
    assert broker["LimitNOFILE"] == [str(descriptors.of_broker(500))] == ["1264"]
    assert int(broker["WatchdogSec"][0]) == 80  # four beats
    assert int(broker["MemoryHigh"][0].removesuffix("M")) > 2000
    assert int(actor["WatchdogSec"][0]) > 200  # it gives an environment up by itself before
    assert int(learner["WatchdogSec"][0]) > 100
    assert int(actor["TimeoutStopSec"][0]) > 40
    assert int(node["TimeoutStopSec"][0]) > int(actor["TimeoutStopSec"][0])
    assert int(learner["TimeoutStopSec"][0]) > 100
    run = run_file.load(str(out / "cartpole.toml"))
    assert (run.broker.peers, run.actor.drain_s) == (500, 40.0)


# ---- every kind: the commands are true ---------------------------------------------------------


def commands(text: str, bin_folder: Path) -> list[list[str]]:
    """Every command line of ours in a rendered file, split as a shell would."""
    joined = re.sub(r"\$\(\(.*?\)\)", "9100", text.replace("\\\n", " "))
    lines = re.findall(rf"{re.escape(str(bin_folder))}/(?:headrace|python) .*", joined)
    return [shlex.split(line.removesuffix("&")) for line in lines]


def check(command: list[str]) -> str:
    """What our own parser says of it."""
    words = command[1:]
    if Path(command[0]).name == "python":
        assert words[:2] == ["-m", "headrace.launch.torchrun"]
        at = words.index("-m", 2)
        assert words[at + 1] == "headrace.launch.learner"
        assert "--run" not in words
        words = ["learner", *words[at + 2 :]]
    if words[0] == "node" and "node" not in known():
        return "node"  # until the command is there
    return str(cli.parser().parse_args(words).command)


def known() -> str:
    return cli.parser().format_help()


@pytest.mark.parametrize("kind", ["systemd", "supervisor", "slurm"])
@pytest.mark.parametrize("site", SITES)
def test_every_command_is_one_that_headrace_takes(
    kind: str, site: str, tmp_path: Path, bin_folder: Path
) -> None:
    out = render(kind, tmp_path / "out", *site_words(kind, site), bin_folder=bin_folder)
    found = {
        check(command)
        for path in out.iterdir()
        if path.is_file()
        for command in commands(path.read_text(), bin_folder)
    }
    assert found >= {"broker", "learner", "node", "evaluate"}


def test_keys_go_with_an_address_that_others_reach(tmp_path: Path, bin_folder: Path) -> None:
    rack = render("systemd", tmp_path / "rack", "--broker", ADDRESS, bin_folder=bin_folder)
    local = render("systemd", tmp_path / "local", bin_folder=bin_folder)
    for role in ("broker", "learner", "node", "actor@", "evaluator"):
        unit = settings(rack / f"headrace-{role}.service")
        (credential,) = unit["LoadCredential"]
        assert f"--key %d/{credential.partition(':')[0]}" in unit["ExecStart"][0]
        assert "LoadCredential" not in settings(local / f"headrace-{role}.service")
    assert "--insecure" not in (rack / "headrace-broker.service").read_text()
    assert "security.curve=true" in (rack / "headrace-broker.service").read_text()


def test_a_node_has_the_key_that_was_made_for_it(tmp_path: Path, bin_folder: Path) -> None:
    keys = tmp_path / "keys"
    assert cli.main(["keygen", str(keys), "--actor", "east"]) == 0
    out = render(
        "supervisor",
        tmp_path / "out",
        "--broker",
        ADDRESS,
        "--nodes",
        "east,west",
        "--key-folder",
        str(keys),
        bin_folder=bin_folder,
    )
    assert f"--key {keys}/actor-east.key" in (out / "east.conf").read_text()
    assert f"--key {keys}/actor.key" in (out / "west.conf").read_text()


# ---- Slurm --------------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("gpu", [False, True])
def test_slurm_scripts_are_sound(site: str, gpu: bool, tmp_path: Path, bin_folder: Path) -> None:
    shellcheck = tool("shellcheck", "shellcheck")
    more = ("--set", "learner.device=cuda") if gpu else ()
    out = render("slurm", tmp_path / "out", *SITES[site], *more, bin_folder=bin_folder)
    scripts = sorted(map(str, out.glob("*.sbatch")))
    assert len(scripts) == 2
    for script in scripts:
        subprocess.run(["bash", "-n", script], check=True)
        text = Path(script).read_text()
        head = text[: text.index("set -euo")]  # Slurm reads no further than the first command
        assert text.count("#SBATCH") == head.count("#SBATCH") > 5
        for line in ("--signal=B:USR1@120", "--requeue"):
            assert f"#SBATCH {line}" in head
        assert ("--gpus-per-node" in head) == (gpu and "learner" in script)
    subprocess.run([shellcheck, "--shell=bash", *scripts], check=True)


def test_a_slurm_jobs_ports_are_its_own(tmp_path: Path, bin_folder: Path) -> None:
    """Of job 499, the highest: up to the last rank's metrics, below what the kernel hands out."""
    most = ("--ranks", "35", "--set", "pacing.batch_unrolls=35")
    text = (render("slurm", tmp_path, *most, bin_folder=bin_folder) / "learner.sbatch").read_text()
    first, jobs, window = map(int, re.findall(r"port=.*?(\d+).*% (\d+) \* (\d+)", text)[0])
    offsets = [int(found) for found in re.findall(r"\$\(\(port \+ (\d+)\)\)", text)]
    assert max(offsets) + 35 <= window
    assert first + jobs * window < 32768
    too_many = ["--run", "cartpole", "--ranks", "36", "--set", "pacing.batch_unrolls=36"]
    assert cli.main(["units", "slurm", *too_many]) == 2


# ---- what is wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--run", "nobody"], "nobody"),
        (["--nodes", "0"], "--nodes 0: it must be from 1 to 10000"),
        (["--nodes", "-3"], "--nodes -3"),
        (["--nodes", "a,a"], "--nodes a,a: a is named twice"),
        (["--nodes", "a b"], "cannot name a key"),
        (["--nodes", ""], "cannot name a key"),
        (["--ranks", "0"], "--ranks 0: it must be 1 or more"),
        (["--ranks", "3"], "make it a multiple of 3"),
        (["--learners", "0"], "--learners 0"),
        (["--broker", "10.0.0.1"], "10.0.0.1"),
        (["--broker", "ipc:///tmp/b", "--nodes", "2"], "is for one machine"),
        ([*TWO[:4], "--broker", f"{BROKERS},tcp://10.0.0.3:5755"], "--broker has 3 addresses, and"),
        ([*TWO[:4], "--broker", f"{ADDRESS},{ADDRESS}"], "stands twice"),
        ([*TWO[:4], "--broker", f"{ADDRESS},10.0.0.2"], "10.0.0.2"),
        ([*TWO[:4], "--broker", "10.0.0.2"], "10.0.0.2"),
        (["--broker", BROKERS], "--broker has 2 addresses, and broker.shards is 1"),
        ([*THREE[:4], "--broker", "tcp://10.0.0.1:9138"], "needs this port and the next"),
        (["--key-folder", "my keys"], "choose a folder without them"),
        (["--out", "/proc/nowhere"], "cannot be written"),
        (["--image", "headrace:1"], "--image is for headrace units kubernetes"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--run", "cartpole"] if "--run" not in words else []
    assert cli.main(["units", "systemd", *given, *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert line in said.err


@pytest.mark.parametrize("kind", ["slurm", "kubernetes", "skypilot"])
def test_some_kinds_start_one_broker(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["units", kind, "--run", "cartpole", *TWO[:4]]) == 2
    assert f"the files for {kind} start one broker" in capsys.readouterr().err


def test_without_a_folder_everything_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["units", "slurm", "--run", "cartpole"]) == 0
    text = capsys.readouterr().out
    assert re.findall(r"^# ---- (.+)$", text, re.M) == [
        "learner.sbatch",
        "samplers.sbatch",
        "cartpole.toml",
    ]


def test_no_template_is_left_over() -> None:
    """Every file of a kind is rendered: what is forgotten would rot."""
    folder = Path(units.__file__).parent
    text = Path(units.__file__).read_text()
    folders = {path.name for path in folder.iterdir() if path.is_dir() and path.name[0] != "_"}
    assert folders == set(units.KINDS)
    for kind in units.KINDS:
        for path in (folder / kind).iterdir():
            assert kind in ("systemd", "kubernetes") or path.name in text, path
