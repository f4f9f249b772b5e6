"""`headrace top` beside a real broker: once, in a terminal, and as a page."""

import json
import re
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from headrace.launch.cli import main
from tests.system.conftest import RUN, Place, until
from tests.system.harness.terminal import Terminal


def test_nobody_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begun = time.monotonic()
    assert main(["top", "--broker", f"ipc://{tmp_path}/nobody"]) == 2
    assert 4.9 < time.monotonic() - begun < 10
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "no broker answers at ipc://" in said
    assert "headrace doctor --broker ipc://" in said


def test_what_is_no_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--broker", "10.0.0.1:5755"]) == 2
    assert "is no address" in capsys.readouterr().err


def test_once_into_a_file(place: Place) -> None:
    place.broker()
    place.learner(), place.actor()
    place.trains(20)
    top = place.headrace("top", "--broker", place.ipc)
    assert top.ends() == 0, top.text()
    text = top.text()
    assert "\x1b" not in text
    assert re.search(r"^run +small$", text, re.MULTILINE)
    assert re.search(r"^state +training$", text, re.MULTILINE)
    assert re.search(r"^samplers +1, ", text, re.MULTILINE)
    assert re.search(r"^ledger +every unroll that came in has its place$", text, re.MULTILINE)


def test_explain_of_a_run_that_trains(place: Place) -> None:
    place.broker()
    place.learner(), place.actor()
    place.trains(20)

    def explained() -> str:
        explain = place.headrace("explain", "--broker", place.ipc)
        assert explain.ends() == 0, explain.text()
        return explain.text() if "not known yet" not in explain.text() else ""

    *_, learner, samplers = until(explained, "looks at the run").splitlines()
    assert re.match(r"learner   .*\d %", learner)
    assert re.match(r"samplers  .*\d %", samplers)


def test_in_a_terminal_it_outlives_the_broker(place: Place) -> None:
    broker = place.broker()
    place.learner(), place.actor()
    place.trains(20)
    top = Terminal("top", "--broker", place.ipc)
    try:
        top.says(r"small +● training")
        top.says(r"every unroll that came in has its place")
        broker.kill()
        top.forget()
        top.says(r"▲ the broker has not answered since \d\d:\d\d:\d\d")
        place.broker()
        top.forget()
        top.says(r"the broker restarted at \d\d:\d\d:\d\d")
        top.forget()
        top.says(r"● training")
        top.types(b"q")
        assert top.ends() == 0
        assert "\x1b[?1049l" in top.said, "the screen that was before comes back"
    finally:
        top.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it(place: Place, number: int) -> None:
    place.broker()
    top = Terminal("top", "--broker", place.ipc)
    try:
        top.says("no learner is here")
        top.popen.send_signal(number)
        assert top.ends() == 0
    finally:
        top.close()


def test_as_a_page_of_its_own(place: Place) -> None:
    broker = place.broker()
    top = place.headrace("top", "--broker", place.ipc, "--web", "0")
    url = top.says(r"http://127\.0\.0\.1:\d+/")[0]

    def look() -> dict[str, Any]:
        with urllib.request.urlopen(f"{url}status.json", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    with urllib.request.urlopen(url, timeout=10) as answer:
        assert b"Content-Security-Policy" in answer.read()
    assert look()["run"] == "small"
    assert "silent_s" not in look()
    broker.kill()
    silent = until(lambda: (found := look()).get("silent_s") and found, "that it is silent")
    assert silent["run"] == "small", "what was heard last"
    place.broker()
    until(lambda: "silent_s" not in look(), "the new broker's numbers")
    top.signal(signal.SIGTERM)
    assert top.ends() == 0, top.text()
    assert "Traceback" not in top.text()


def test_beyond_this_machine_it_warns(place: Place) -> None:
    place.broker()
    top = place.headrace("top", "--broker", place.ipc, "--web", "0", "--host", "0.0.0.0")
    top.says(r"the page at 0\.0\.0\.0: open to whoever reaches it; .* leave --host at 127\.0\.0\.1")
    assert top.term() == 0


def test_a_port_that_is_taken(place: Place) -> None:
    broker = place.broker("--metrics-port", "0")
    port = broker.says(r"metrics at port (\d+)")[1]
    top = place.headrace("top", "--broker", place.ipc, "--web", port)
    assert top.ends() == 2
    assert f"cannot serve the page at 127.0.0.1:{port}" in top.text()
    assert "choose another with --web" in top.text()


def test_with_keys_any_key_of_the_run_may_look(place: Place) -> None:
    keys = place.folder / "keys"
    assert place.headrace("keygen", str(keys)).ends() == 0
    place.run = place.toml("keyed.toml", f'{RUN}[security]\ncurve = true\nkeys = "{keys}"\n')
    place.broker()
    for role in ("watcher", "actor"):
        top = place.headrace("top", "--broker", place.ipc, "--key", str(keys / f"{role}.key"))
        assert top.ends() == 0, top.text()
        assert "no learner is here" in top.text()
    stranger = place.headrace("top", "--broker", place.ipc)
    assert stranger.ends() == 2
    assert "does it want a --key?" in stranger.text()
