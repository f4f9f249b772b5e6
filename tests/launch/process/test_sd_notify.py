"""What goes to the socket of NOTIFY_SOCKET, and when the watchdog is fed."""

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.launch.process import sd_notify
from headrace.launch.process.sd_notify import Watchdog, WatchdogReading


@pytest.fixture(params=["path", "abstract"])
def heard(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], list[str]]]:
    """All messages since the last call, by both kinds of address."""
    name = f"{tmp_path}/notify" if request.param == "path" else f"@headrace-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(name.replace("@", "\0"))
        ear.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        yield lambda: received(ear)


def received(ear: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(ear.recv(4096).decode())
        except BlockingIOError:
            return found


def test_each_line(heard: Callable[[], list[str]]) -> None:
    sd_notify.send("READY=1", "STATUS=at work")
    sd_notify.stopping()
    ready, stopping = heard()
    assert ready == "READY=1\nSTATUS=at work"
    assert stopping.startswith("STOPPING=1\nSTATUS=")


def test_a_status_is_one_line(heard: Callable[[], list[str]]) -> None:
    Watchdog(lambda: reading()._replace(text="at\nwork")).notify()
    assert heard() == ["STATUS=at work\nREADY=1"]


def test_the_other_ranks_of_a_machine_are_silent(
    heard: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """RANK is no matter: the second machine's first rank speaks for its own unit."""
    monkeypatch.setenv("RANK", "4")
    monkeypatch.setenv("LOCAL_RANK", "1")
    sd_notify.send("WATCHDOG=1")
    assert heard() == []
    monkeypatch.setenv("LOCAL_RANK", "0")
    sd_notify.send("WATCHDOG=1")
    assert heard() == ["WATCHDOG=1"]


@pytest.mark.parametrize("address", [None, "", "vsock:3:4", "/nobody/listens/here"])
def test_nobody_listens(address: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if address is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
    sd_notify.send("READY=1")
    sd_notify.stopping()


def test_a_full_socket_holds_nobody_up(heard: Callable[[], list[str]]) -> None:
    for _ in range(5000):
        sd_notify.send("WATCHDOG=1")
    assert 0 < len(heard()) < 5000


def said(heard: Callable[[], list[str]], *readings: WatchdogReading) -> list[set[str]]:
    """What each look says beside the status."""
    queue = list(readings)
    watch = Watchdog(lambda: queue.pop(0))
    looks = []
    for _ in readings:
        watch.notify()
        (message,) = heard()
        looks.append({line for line in message.splitlines() if not line.startswith("STATUS=")})
    return looks


def reading(
    *, ready: bool = True, moved: int = 0, turn: int = 0, idle: bool = False
) -> WatchdogReading:
    return WatchdogReading(ready=ready, moved=moved, turns=(turn, 7 * turn), idle=idle, text="")


FED, UNSAID = {"WATCHDOG=1"}, set[str]()


def test_progress_feeds_it(heard: Callable[[], list[str]]) -> None:
    looks = said(heard, reading(), reading(moved=1), reading(moved=2), reading(moved=2))
    assert looks == [{"READY=1"}, FED, FED, UNSAID]


def test_turning_loops_feed_it_only_when_there_is_no_work(heard: Callable[[], list[str]]) -> None:
    looks = said(
        heard, reading(), reading(turn=1), reading(turn=2, idle=True), reading(turn=2, idle=True)
    )
    assert looks == [{"READY=1"}, UNSAID, FED, UNSAID]


def test_one_of_two_loops_that_hangs_is_enough(heard: Callable[[], list[str]]) -> None:
    both = [WatchdogReading(True, 0, (turn, 5), idle=True, text="") for turn in (1, 2)]
    assert said(heard, *both) == [{"READY=1"}, UNSAID]


def test_who_waits_for_a_broker_asks_for_time_and_is_not_ready(
    heard: Callable[[], list[str]],
) -> None:
    waits = [reading(ready=False, turn=turn, idle=True) for turn in (0, 1, 1)]
    asks = {"EXTEND_TIMEOUT_USEC=60000000"}
    assert said(heard, *waits, reading()) == [UNSAID, asks, UNSAID, {"READY=1"}]


def test_who_has_not_got_on_for_three_looks_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether somebody listens at NOTIFY_SOCKET or not: /livez tells it."""
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    clock, moved = [100.0], [0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    watch = Watchdog(lambda: reading(moved=moved[0]))
    for clock[0], moved[0] in ((100.0, 0), (105.0, 1), (110.0, 1), (120.0, 1)):
        watch.notify()
        assert watch.stuck() == ""
    clock[0] = 120.1  # a loop that hangs looks no more: that is no progress either
    assert watch.stuck() == "has not got on for 15 s"
    moved[0] = 2
    watch.notify()
    assert watch.stuck() == ""


def test_the_status_shows_the_rate(
    heard: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, steps = [10.0], [0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    watch = Watchdog(lambda: WatchdogReading(True, 0, (), True, "version 812", steps=steps[0]))
    watch.notify()
    clock[0], steps[0] = 12.0, 10208
    watch.notify()
    assert heard()[1].splitlines()[0] == "STATUS=version 812, 5,104 steps/s"


def test_a_tick_looks_when_it_is_time(
    heard: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setenv("WATCHDOG_USEC", "8000000")
    watch = Watchdog(lambda: WatchdogReading(True, clock[0], (), False, ""))
    for clock[0] in (100.0, 101.9, 102.0, 103.9, 104.1):
        watch.tick()
    said = [message.splitlines()[1] for message in heard()]
    assert said == ["READY=1", "WATCHDOG=1", "WATCHDOG=1"]


def test_a_role_that_was_long_in_the_making_is_not_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    watch = Watchdog(lambda: WatchdogReading(True, 0, (), False, ""))
    clock[0] = 160.0
    watch.start()
    assert not watch.stuck()
    clock[0] = 180.0
    watch.start()  # once more: it goes on
    assert watch.stuck() == "has not got on for 20 s"
    watch.stop()
