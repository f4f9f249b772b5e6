"""The parts of a node that need no processes: when what is started again, what is said and counted.
The processes themselves are in tests/system/roles/test_node.py."""

import fcntl
import logging
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from headrace.launch import cli
from headrace.launch.node import forker, shared_folder
from headrace.launch.node.metrics import RELAY, NodeMetrics
from headrace.launch.node.repeated_lines import RepeatedLines
from headrace.launch.node.restarts import ProcessSlot
from headrace.launch.node.size import NodeSize
from headrace.launch.node.unique_name import unique_name
from headrace.launch.process import node_reports
from headrace.launch.process.node_reports import (
    LogLine,
    ProcessFigures,
    ReportReceiver,
    ReportSender,
)
from headrace.launch.roles.options import PeerOptions


def figures(pid: int = 7, *, welcome: bool = True, **stats: float) -> ProcessFigures:
    return ProcessFigures(pid, welcome, False, 5.0, stats)


def test_the_forker_is_told_the_same_options_by_its_socket() -> None:
    peer = PeerOptions("ipc:///b", "n", {"groups": 2}, ledger=Path("/ledger"), allow=["games"])
    other = replace(peer, broker="ipc:///c", ledger=None)
    shelves, told = (Path("/shelf"), Path("/shelf1")), Path("/told")
    settings = forker.Settings(1, (peer, other), shelves, told, quiet=True, form="json")
    assert forker.decode(forker.encode(settings), forker.Settings) == settings


# ---- when it is started again -------------------------------------------------------------------


def test_pauses_grow_to_half_a_minute_and_never_end() -> None:
    slot, now = ProcessSlot(0), 0.0
    pauses = []
    for _ in range(100):
        assert slot.should_start(now)
        slot.started(1, now)
        assert not slot.should_start(now)
        now += 1.0
        pauses.append(slot.ended(now))
        assert not slot.should_start(now + pauses[-1] - 0.01)
        now += pauses[-1]
    assert 0.25 <= pauses[0] <= 0.5
    assert all(15.0 <= pause <= 30.0 for pause in pauses[7:])
    assert len(set(pauses)) > 90, "in step with nobody"
    assert slot.restarts == 100


def test_a_long_life_forgives_the_deaths_before() -> None:
    slot = ProcessSlot(0)
    for _ in range(10):
        slot.started(1, 0.0)
        slot.ended(1.0)
    slot.started(1, 100.0)
    assert slot.ended(161.0) <= 0.5


def test_a_relay_that_reports_nothing_hangs_and_a_sampler_has_its_own_watchdog() -> None:
    relay, sampler = ProcessSlot(-1), ProcessSlot(0)
    assert not relay.hangs(1000.0), "none runs"
    for slot in (relay, sampler):
        slot.started(7, 1000.0)
    assert not relay.hangs(1019.0)
    relay.heard_at = 1019.0
    assert not relay.hangs(1039.0)
    assert relay.hangs(1040.0)
    assert not relay.hangs(1041.0), "it is killed once"
    assert not sampler.hangs(1100.0)


def test_an_order_that_was_lost_is_given_again() -> None:
    slot = ProcessSlot(0)
    slot.ordered_at = 5.0
    assert not slot.should_start(14.0)
    assert slot.should_start(15.1)
    slot.ordered_at = 15.1
    slot.started(0, 16.0)
    assert not slot.should_start(16.1), "it could not be forked: later"
    assert slot.should_start(17.0)


# ---- how many -----------------------------------------------------------------------------------


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[int]]:
    """Those of this machine; SIGHUP is as it was afterwards."""
    made = {2, 5, 7}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: made)
    before = signal.getsignal(signal.SIGHUP)
    yield made
    signal.signal(signal.SIGHUP, before)


def bound(given: int | None) -> list[int]:
    return [slot.core for at, slot in NodeSize(given).slots().items() if at != RELAY]


def test_one_sampler_a_core_each_on_its_own(cores: set[int]) -> None:
    assert bound(None) == bound(3) == [2, 5, 7]
    assert bound(2) == [-1, -1]
    assert next(iter(NodeSize(2).slots())) == RELAY, "it is the first to start"
    cores -= {2, 5}
    assert bound(None) == [-1]


@pytest.mark.parametrize(
    ("words", "count", "line"),
    [
        ("4\n", 4, "SIGHUP: 4 samplers, 2 before"),
        ("", 3, "SIGHUP: 3 samplers, 2 before"),
        (None, 3, "one sampler for each core"),
        ("-1", 2, "'-1' is no number from 1 to 1024; 2 samplers go on"),
        ("0", 2, "'0' is no number from 1 to 1024; 2 samplers go on"),
        ("all", 2, "'all' is no number"),
        ("1025", 2, "'1025' is no number"),
    ],
)
@pytest.mark.usefixtures("cores")
def test_sighup_reads_the_file_again(
    words: str | None, count: int, line: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "samplers"
    file.write_text("2")
    size = NodeSize(file)
    assert not size.changed()
    file.unlink() if words is None else file.write_text(words)
    assert not size.changed(), "only when it is asked to"
    with caplog.at_level(logging.INFO):
        os.kill(os.getpid(), signal.SIGHUP)
        assert size.changed() == (count != 2)
    assert size.count == count
    assert line in caplog.text
    assert not size.changed()


@pytest.mark.usefixtures("cores")
def test_more_samplers_than_cores_are_told_what_they_are_of_use_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    NodeSize(3).slots()
    assert caplog.messages == []
    NodeSize(6).slots()
    assert caplog.messages == ["6 samplers on 3 cores: of use where environments wait"]


@pytest.mark.usefixtures("cores")
def test_without_a_file_sighup_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    size = NodeSize(2)
    os.kill(os.getpid(), signal.SIGHUP)
    assert not size.changed()
    assert "--samplers names no file" in caplog.text


@pytest.mark.usefixtures("cores")
def test_a_wrong_size_ends_a_node_at_its_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "samplers").write_text("-3")
    assert cli.main(["node", "--broker", "ipc:///x", "--samplers", f"{tmp_path}/samplers"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "'-3' is no number from 1 to 1024" in line


def test_one_that_is_not_wanted_is_not_started() -> None:
    assert not ProcessSlot(0, wanted=False).should_start(0.0)


# ---- what it is called --------------------------------------------------------------------------


def test_nodes_of_a_machine_have_names_of_their_own(tmp_path: Path) -> None:
    broker = f"ipc://{tmp_path}"
    with unique_name("n", broker=broker) as first, unique_name("n", broker=broker) as second:
        assert (first, second) == ("n", "n.2")
        with unique_name("n", broker=f"{broker}/other") as elsewhere:
            assert elsewhere == "n"
    with unique_name("n", broker=broker) as again:
        assert again == "n"


# ---- what is said -------------------------------------------------------------------------------


def test_what_all_say_is_said_once() -> None:
    lines: list[str] = []
    repeated = RepeatedLines(lambda level, text: lines.append(f"{level} {text}"))
    for at in range(8):
        repeated.add(f"n-{at}", 30, f"no broker answers after {5 + at % 2} s", 0.1 * at)
    repeated.add("n-1", 20, "welcome", 1.0)
    repeated.flush_due(9.0)
    assert lines == ["30 n-0: no broker answers after 5 s", "20 n-1: welcome"]
    repeated.flush_due(11.1)
    assert lines[2:] == ["30 n-0 and others, 7 more times: no broker answers after 5 s"]
    repeated.add("n-3", 30, "no broker answers after 9 s", 20.0)
    assert lines[3:] == ["30 n-3: no broker answers after 9 s"]


def test_repeated_lines_remember_at_most_256() -> None:
    lines: list[str] = []
    repeated = RepeatedLines(lambda _, text: lines.append(text))
    words = [
        f"{chr(97 + at // 26 % 26)}{chr(97 + at % 26)}" * (1 + at // 676) for at in range(1000)
    ]
    for word in words:
        repeated.add("n", 20, word, 0.0)
    assert len(repeated._known) <= 256
    repeated.add("m", 20, words[-1], 0.0)
    repeated.flush_all()
    assert lines == [*(f"n: {word}" for word in words), f"n and others, 1 more time: {words[-1]}"]


def test_figures_and_lines_arrive(tmp_path: Path) -> None:
    receiver, sender = ReportReceiver(tmp_path / "told"), ReportSender(tmp_path / "told")
    said = figures(env_steps=5.0)
    assert sender.send(said)
    assert sender.send(LogLine(7, 30, "a line"))
    assert receiver.receive() == [said, LogLine(7, 30, "a line")]
    assert receiver.receive() == []
    receiver.close()
    assert not sender.send(said), "nobody hears"
    sender.close()


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"\xff" * 100,
        msgspec.msgpack.encode(["Figures", "7", True, False, 5.0, {}]),
        msgspec.msgpack.encode(["Figures", 7, True, False, 5.0, {"x" * 65: 1.0}]),
        msgspec.msgpack.encode(["Figures", 7, True, False, -1.0, {}]),
        msgspec.msgpack.encode(["Line", 7, 30, "x" * 4001]),
        msgspec.msgpack.encode(["Line", 7, 30]),
        b"\x93\xa4Line" + b"\x91" * 10_000,
    ],
)
def test_nonsense_is_counted_and_nothing_else(tmp_path: Path, packet: bytes) -> None:
    receiver = ReportReceiver(tmp_path / "told")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(packet, str(tmp_path / "told"))
    assert receiver.receive() == []
    assert receiver.nonsense == 1
    receiver.close()


def test_a_line_that_does_not_get_through_goes_where_it_went_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before: list[str] = []

    class Before(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            before.append(record.getMessage())

    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [Before()])
    receiver = ReportReceiver(tmp_path / "told")
    sender = ReportSender(tmp_path / "told")
    node_reports.log_to_node(sender)
    logging.getLogger("any").warning("one %d", 1)
    assert [said.text for said in receiver.receive() if isinstance(said, LogLine)] == ["one 1"]
    receiver.close()
    logging.getLogger("any").warning("two")
    assert before == ["two"]
    sender.close()


# ---- what is counted ----------------------------------------------------------------------------


def scraped(registry: CollectorRegistry) -> dict[str, float]:
    lines = generate_latest(registry).decode().splitlines()
    return {
        name.removeprefix("headrace_node_"): float(value)
        for name, value in (line.split() for line in lines if not line.startswith("#"))
    }


def test_totals_do_not_fall_when_a_sampler_is_started_again() -> None:
    registry = CollectorRegistry()
    slots = {RELAY: ProcessSlot(RELAY), 0: ProcessSlot(0, restarts=1), 1: ProcessSlot(1)}
    metrics = NodeMetrics(registry, slots)
    metrics.update(0, figures(env_steps=100.0, unacked=3.0, wait_credit_s=2.0))
    metrics.update(1, figures(env_steps=50.0, unacked=1.0))
    metrics.update(RELAY, figures(version=7.0, bytes=1000.0, fetches=2.0))
    first = scraped(registry)
    assert first["samplers_env_steps_total"] == 150
    assert first["samplers_unacked_fragments"] == 4
    assert first['samplers_wait_seconds_total{phase="credit"}'] == 2
    assert (first["weights_version"], first["weights_bytes_total"]) == (7, 1000)
    assert (first["samplers_wanted"], first["samplers_welcome"], first["restarts_total"]) == (
        2,
        2,
        1,
    )
    metrics.ended(0)
    metrics.ended(RELAY)
    gone = scraped(registry)
    assert gone["samplers_env_steps_total"] == 150
    assert gone["samplers_unacked_fragments"] == 1
    assert (gone["weights_version"], gone["weights_bytes_total"]) == (-1, 1000)
    metrics.update(0, figures(8, env_steps=5.0))
    metrics.update(RELAY, figures(9, bytes=500.0))
    assert scraped(registry)["samplers_env_steps_total"] == 155
    assert scraped(registry)["weights_bytes_total"] == 1500


def test_figures_that_cannot_be_are_left_out() -> None:
    registry = CollectorRegistry()
    metrics = NodeMetrics(registry, {RELAY: ProcessSlot(RELAY), 0: ProcessSlot(0)})
    metrics.update(0, figures(env_steps=100.0, episodes=5.0))
    metrics.update(0, figures(env_steps=float("inf"), episodes=3.0, unheard_of=1.0))
    found = scraped(registry)
    assert found["samplers_env_steps_total"] == 100
    assert found["samplers_episodes_total"] == 5, "a total that falls is none"
    assert not any("unheard" in name for name in found)


# ---- its folder ---------------------------------------------------------------------------------


def test_the_folder_goes_with_the_node_and_what_a_killed_one_left_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_folder, "_MEMORY", tmp_path)
    left, young, used = (tmp_path / f"headrace-node-{word}" for word in ("left", "young", "used"))
    for folder in (left, young, used):
        folder.mkdir()
        (folder / "weights").write_text("x")
    for folder in (left, used):
        os.utime(folder, (0, 0))
    lock = os.open(used, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with shared_folder.shared_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert sorted(tmp_path.iterdir()) == sorted([folder, young, used])
    assert sorted(tmp_path.iterdir()) == sorted([young, used])
    os.close(lock)


# ---- its command --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--broker", "10.0.0.1"], "10.0.0.1"),
        (["--broker", "tcp://10.0.0.1:1", "--key", "/no/such.key"], "no such key file"),
        (["--broker", "ipc:///x", "--metrics-port", "99999999"], "cannot serve metrics"),
    ],
)
def test_wrong_input_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["node", *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert said in lines[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--samplers", "0"], "0 is not between 1 and 1024"),
        (["--samplers", "-1"], "-1 is not between 1 and 1024"),
        (["--drain-s", "601"], "601 is not between 0 and 600"),
    ],
)
def test_what_cannot_be_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["node", "--broker", "ipc:///x", *words])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
