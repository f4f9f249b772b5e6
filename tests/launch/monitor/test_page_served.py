"""The page as it is served: one file, a policy that fits it, readable colours, and another thread's
numbers."""

import asyncio
import base64
import hashlib
import json
import re
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.broker.ledger.ledger import Ledger
from headrace.broker.ledger.state import LedgerState
from headrace.broker.server.connections.roster import Peer, Roster
from headrace.broker.server.propagation_times import PropagationTimes
from headrace.broker.server.status import RunStatus
from headrace.broker.server.weight_messages import WeightMessages
from headrace.broker.weights.fetch import WeightFetch
from headrace.launch.monitor.loop_status import LoopStatus
from headrace.launch.monitor.page import page
from headrace.launch.web import http
from tests.launch.monitor.statuses import status


def test_one_file_and_a_policy_that_fits_it() -> None:
    document = page.document()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', document)
    for tag in ("script", "style"):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", document, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    assert re.findall(r"(?:src|href)=['\"](?!#|data:|status\.json)[^'\"]*", document) == []
    assert not re.search(
        r"@import|url\(|innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", document
    )


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_every_colour_can_be_read(scheme: int) -> None:
    """WCAG AA: 4.5 to 1 for text; 3 to 1 for what is no text."""
    style = re.findall(r"<style>(.*?)</style>", page.document(), re.DOTALL)[0]
    colours = dict(
        re.findall(
            r"--([a-z-]+): (#[0-9a-f]{6})", re.findall(r":root \{.*?\}", style, re.DOTALL)[scheme]
        )
    )
    for ground in ("ground", "raised"):
        for text in ("text", "quiet", "accent", "alarm"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
        assert contrast(colours["soft"], colours[ground]) >= 3
    assert contrast(colours["alarm"], colours["alarm-ground"]) >= 4.5


def contrast(one: str, other: str) -> float:
    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_however_many_look_the_numbers_are_made_a_few_times_a_second() -> None:
    made: list[int] = []

    def count() -> dict[str, Any]:
        made.append(1)
        return {"received": float("nan")}

    serve = page.pages(count)["/status.json"]
    bodies = {serve() for _ in range(1000)}
    assert bodies == {("application/json", b'{"received":null}')}
    assert len(made) <= 3


@pytest.fixture
def hurried() -> Iterator[None]:
    """Threads take turns at every chance."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def crowd() -> tuple[Roster, RunStatus]:
    roster = Roster("small", lambda _: None)
    state = LedgerState(
        batch=2, max_lag=2, max_lag_hard=9, queue_bytes=2**20, attempts=3, first_tag=1
    )
    weight_messages = SimpleNamespace(propagation=PropagationTimes(), fetch=WeightFetch(), unread=0)
    ledger = Ledger(state, lease_s=5.0)
    shown = RunStatus(ledger, roster, cast(WeightMessages, weight_messages), inc=1, beat_s=1.0)
    return roster, shown


async def churn(roster: Roster, ended: threading.Event) -> None:
    """A crowd whose half comes and goes, again and again, as fast as it can."""
    roles = ("actor", "learner", "evaluator")
    begin = 0
    while not ended.is_set():
        for inc in range(begin, 300):
            stats = {f"env_steps_{inc % 5}": 1.0, "env_steps": 1.0}
            roster.join(Peer(b"%d" % inc, roles[inc % 3], f"n{inc}", inc, 0.0, stats=stats))
        begin = 150
        await asyncio.sleep(0)
        for inc in range(begin, 300):
            roster.forget(inc)
        await asyncio.sleep(0)


LOOKS = 11


def beside_a_crowd(look: Callable[[LoopStatus, Roster], object]) -> list[str]:
    """What failed of looks in two threads, for a second and at least so many times each, while the
    crowd comes and goes."""
    roster, view = crowd()
    failed: list[str] = []

    async def main() -> None:
        status, ended = LoopStatus(), threading.Event()
        loop = threading.get_ident()

        def told() -> dict[str, Any]:
            assert threading.get_ident() == loop, "another thread's dicts"
            return view.status()

        def looks() -> None:
            until, looked = time.monotonic() + 1.0, 0
            try:
                while time.monotonic() < until or looked < LOOKS:
                    look(status, roster)
                    looked += 1
            except Exception as error:  # noqa: BLE001 (told below)
                failed.append(repr(error))

        status.set_source(told)
        threads = [threading.Thread(target=looks) for _ in range(2)]
        async with asyncio.TaskGroup() as group:
            group.create_task(churn(roster, ended))
            for thread in threads:
                thread.start()
            for thread in threads:
                await asyncio.to_thread(thread.join)
            ended.set()

    asyncio.run(main())
    return failed


@pytest.mark.slow
@pytest.mark.usefixtures("hurried")
def test_peers_come_and_go_while_the_page_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers are made in the loop's own thread."""
    monkeypatch.setattr("headrace.launch.monitor.loop_status._PATIENCE_S", 60.0)
    looked: list[int] = []

    def look(status: LoopStatus, _: Roster) -> None:
        found = json.loads(page.CachedStatus(status)())
        assert found["run"] == "small"
        assert "silent_s" not in found
        looked.append(found["actors"]["count"])

    assert beside_a_crowd(look) == []
    assert len(looked) >= 2 * LOOKS


@pytest.mark.slow
@pytest.mark.usefixtures("hurried")
def test_peers_come_and_go_while_metrics_are_scraped() -> None:
    """/metrics walks through the roster in a thread of its own."""

    def look(_: LoopStatus, roster: Roster) -> None:
        roster.with_role("actor")
        roster.players()

    assert beside_a_crowd(look) == []


def test_a_loop_that_hangs_is_silent_and_then_back(monkeypatch: pytest.MonkeyPatch) -> None:
    patience = "headrace.launch.monitor.loop_status._PATIENCE_S"
    monkeypatch.setattr(patience, 20.0)

    async def main() -> None:
        ask = LoopStatus()
        assert await asyncio.to_thread(ask) == {}, "before there is anything to tell"
        ask.set_source(lambda: {"run": "small"})
        assert await asyncio.to_thread(ask) == {"run": "small"}
        told: list[Any] = []
        thread = threading.Thread(target=lambda: told.extend((ask(), ask())))
        monkeypatch.setattr(patience, 0.05)
        thread.start()
        thread.join()  # the loop does nothing else meanwhile
        monkeypatch.setattr(patience, 20.0)
        assert 0.04 < told[0]["silent_s"] < told[1]["silent_s"]
        assert await asyncio.to_thread(ask) == {"run": "small"}

    asyncio.run(main())


def test_after_the_loop_has_ended_there_is_no_answer() -> None:
    async def main() -> LoopStatus:
        return LoopStatus()

    assert asyncio.run(main())().keys() == {"silent_s"}


def test_it_is_served_beside_the_metrics() -> None:
    port = http.serve(
        http.registry("broker"),
        host="127.0.0.1",
        port=0,
        healthy=lambda: "",
        pages=page.pages(status),
    )
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        assert answer.read().decode() == page.document()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/status.json?now", timeout=10) as answer:
        assert json.load(answer) == json.loads(json.dumps(status()))
