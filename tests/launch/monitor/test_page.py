"""The page in a real browser, against a server that says what a test wants it to."""

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from headrace.launch.monitor.page import page
from tests.launch.monitor.browser import NARROW, Browser, browser
from tests.launch.monitor.statuses import BARE, LONG, SCRIPT, hostile, status

pytestmark = pytest.mark.processes  # a browser

CONTROL = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f\\u202a-\\u202e\\u2066-\\u2069]")


class Frozen:
    """Answers with what `says` makes of how often it was asked; None = it hangs up."""

    def __init__(self) -> None:
        self.says: Callable[[int], dict[str, Any] | None] = lambda _: BARE
        self.asked = 0
        document = page.document().encode()
        frozen = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # the standard library's name
                body: bytes | None = document
                if self.path == "/status.json":
                    said = frozen.says(frozen.asked)
                    frozen.asked += 1
                    body = None if said is None else json.dumps(said).encode()
                if body is not None:
                    self.send_response(200)
                    self.send_header(
                        "Content-Type", "text/html" if self.path == "/" else "application/json"
                    )
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as made:
        yield made


@pytest.fixture
def frozen(chrome: Browser) -> Iterator[Frozen]:
    made = Frozen()
    chrome.complaints.clear()
    chrome.see()
    yield made
    chrome.open("about:blank")
    made.close()


def shown(chrome: Browser, frozen: Frozen, says: Callable[[int], Any], looks: int = 3) -> None:
    frozen.says = says
    chrome.open(frozen.url)
    chrome.until(f"location.href === {frozen.url!r} && typeof shown !== 'undefined' && !!shown")
    goal = frozen.asked + looks
    while frozen.asked < goal:
        chrome.get("new Promise((done) => setTimeout(done, 50))")
    chrome.get("new Promise((done) => setTimeout(done, 200))")


def test_the_figures_are_those_of_the_status(chrome: Browser, frozen: Frozen) -> None:
    """Totals as they are, rates as differences: exactly, by the broker's own clock."""
    shown(chrome, frozen, lambda asked: status(min(asked, 4)), looks=6)
    found = chrome.figures()
    last = status(4)
    expected = {
        "samplers": "312",
        "samplers_note": "10 behind",
        "queued": "37",
        "leased": "64 at learners",
        "running": "912 being made",
        "full": "25 % full",
        "ranks": "Learner, 8 ranks",
        "learner_rate": "24,100",
        "sent_rate": "1,205/s",
        "sent_more": "2.0 MiB/s",
        "given_rate": "1,205/s",
        "weights_rate": "weights, version 18",
        "weights_words": "2.00 a second, 6.0 MiB each",
        "trained_rate": "24,100",
        "trained_rate_note": "96,400 in all",
        "sampled_rate": "24,200",
        "mean_return": "312.4",
        "mean_return_note": "evaluation 341.0",
        "lag": "1.31",
        "lag_note": "mean when trained; sampling 3.5 of 5 batches ahead",
        "version": "18",
        "unaccounted": "0",
        "outcome_trained": "4,920",
        "outcome_trained_rate": "1,205",
        "outcome_stale": "120",
        "outcome_stale_rate": "0",
        "outcome_duplicate": "7",
        "wait_env": "55 %",
        "wait_credit": "4.0 %",
        "wait_weights": "0.5 %",
        "wait_gather": "0 %",
        "loop_env": "12 %",
        "network": "21 %",  # less what ran in environments' own threads
        "rest": "7.5 %",  # so that all rows are the whole
        "way_unrolls_0": "1,234",
        "way_p50_0": "41.3",
        "way_longest_0": "\u2013",
        "way_shortest_1": "-3.0",
        "rank_lag_7": "1.31",
        "rank_policy_loss_0": "-0.012",
        "rank_lr_0": "2.5e-4",
        "rank_mean_length_0": "55.50",
        "metric_training_0": "0.250",
        "metric_evaluation_0": "0.500",
        "metric_training_1": "\u2013",
        "metric_evaluation_1": "3.00",
        "games_won_0": "1,234",
        "games_points_1": "64 %",
        "games_rating_1": "+412",
    }
    assert {key: found.get(key) for key in expected} == expected
    assert "rank_clock_0" not in found  # the time of day at which a rank said all this
    assert f"{last['received']:,} came in. Each" in chrome.get("at('ledger').textContent")
    assert chrome.get("at('state').textContent") == "training"
    assert not chrome.get("at('traces').hidden")
    lines = chrome.get("[...at('explain').children].map((line) => line.textContent)")
    assert lines == last["explain"]
    assert chrome.get("document.querySelectorAll('#ways td.alarm').length") == 1  # below zero
    assert chrome.get("document.title") == "24,100 steps/s · breakout"
    assert chrome.get("at('attention').hidden")
    assert chrome.complaints == []


def test_words_of_strangers_stay_words(chrome: Browser, frozen: Frozen) -> None:
    shown(chrome, frozen, hostile)
    assert chrome.get("at('run').textContent") == SCRIPT
    assert SCRIPT[:64] in chrome.get("at('late').textContent")
    assert SCRIPT in chrome.get("at('troubles').textContent")
    assert SCRIPT in chrome.get("at('explain').textContent")
    assert chrome.get("document.querySelectorAll('script').length") == 1
    assert chrome.get("document.querySelectorAll('img, main a, iframe').length") == 0
    text = chrome.get("document.body.textContent")
    assert not CONTROL.search(text)
    assert "txet" in text
    assert "שלום" in text
    assert LONG[:64] in text
    assert LONG[:2500] not in text, "cut off"
    assert chrome.complaints == []


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("usual", status),
        ("hostile", hostile),
        ("thousand", lambda second: status(second, samplers=1000, ranks=1)),
        ("bare", lambda _: BARE),
    ],
)
def test_it_fits_every_window(
    chrome: Browser, frozen: Frozen, name: str, says: Callable[[int], Any], tmp_path: Path
) -> None:
    """Nothing is wider than the window, no letters of the picture overlap. HEADRACE_PICTURES names
    a folder that keeps what was seen."""
    folder = Path(os.environ.get("HEADRACE_PICTURES", tmp_path))
    shown(chrome, frozen, says)
    for width, dark in ((320, False), (NARROW, True), (700, False), (805, False), (1280, True)):
        chrome.see(width=width, dark=dark)
        chrome.get("new Promise((done) => setTimeout(done, 200))")  # it draws itself anew
        picture = folder / f"{name}-{width}-{'dark' if dark else 'light'}.png"
        picture.write_bytes(chrome.picture())
        assert chrome.get("document.documentElement.scrollWidth") <= width
        assert chrome.get(OVERLAPS) == [], width
        ground = chrome.get("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(17, 21, 26)" if dark else "rgb(251, 251, 249)")
    assert chrome.complaints == []


OVERLAPS = """(() => {
  const boxes = [...document.querySelectorAll('#pipeline text, .tank')]
    .filter((one) => one.textContent || one.matches('.tank'))
    .map((one) => [one.textContent || 'the tank', one.getBoundingClientRect()]);
  const whole = document.querySelector('#pipeline svg').getBoundingClientRect();
  const found = boxes.filter(([, p]) => p.left < whole.left || p.right > whole.right + 1)
    .map(([a]) => `${a} / the edge`);
  boxes.forEach(([a, p], n) => boxes.slice(n + 1).forEach(([b, q]) => {
    const [w, h] = [Math.min(p.right, q.right) - Math.max(p.left, q.left),
                    Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top)];
    if (w > 1 && h > 5) found.push(`${a} / ${b}`);
  }));
  return found;
})()"""


def test_a_broker_that_falls_silent_and_comes_back(chrome: Browser, frozen: Frozen) -> None:
    shown(chrome, frozen, lambda asked: status(asked))
    frozen.says = lambda _: None
    words = chrome.until("at('state').className === 'bad' && at('state').textContent")
    assert re.fullmatch(r"the broker has not answered since \d\d:\d\d:\d\d \(\d+ s\)", words)
    assert chrome.get("at('main').classList.contains('old')")
    assert chrome.get("document.title").startswith("no answer")
    # Another one in its place: its totals begin anew, and no rate is negative.
    begun = frozen.asked
    frozen.says = lambda asked: status(asked - begun, uptime_s=float(asked - begun))
    chrome.until("at('state').textContent === 'training'")
    assert "the broker restarted at" in chrome.get("at('facts').textContent")
    assert not chrome.get("at('main').classList.contains('old')")
    assert not any(
        value.startswith("-") for key, value in chrome.figures().items() if "rate" in key
    )


def test_who_serves_it_may_have_no_answer_either(chrome: Browser, frozen: Frozen) -> None:
    """headrace top --web is there, its broker is not: the last numbers, and since when."""
    shown(chrome, frozen, lambda _: {**status(), "silent_s": 90.0}, looks=2)
    words = chrome.get("at('state').textContent")
    assert words.startswith("the broker has not answered since ")
    assert words.endswith("(1 min 30 s)")
    assert chrome.figures()["queued"] == "37"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"unaccounted": 3}, "3 unrolls not accounted for"),
        ({"late": [{"role": "actor", "name": "a", "silent_s": 5.0}]}, "1 role is late"),
        (
            {"troubles": [{"role": "node", "name": "n", "text": "t", "count": 1, "ago_s": 4.0}]},
            "1 error reported within the last hour",
        ),
        ({"queued_bytes": 9.5e8}, "the broker\N{RIGHT SINGLE QUOTATION MARK}s queue is 95 % full"),
        ({"behind_versions": 9}, "the oldest acting weights are 9 versions behind"),
    ],
)
def test_what_is_wrong_stands_on_top(
    chrome: Browser, frozen: Frozen, more: dict[str, Any], says: str
) -> None:
    shown(chrome, frozen, lambda asked: status(asked, **more), looks=2)
    assert chrome.get("at('attention').innerText") == says


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"over": True}, "the run is over"),
        ({"learners": []}, "no learner is here"),
        ({"actors": {"count": 0, "behind": 0}}, "no sampler is here"),
    ],
)
def test_what_the_run_does(
    chrome: Browser, frozen: Frozen, more: dict[str, Any], says: str
) -> None:
    shown(chrome, frozen, lambda asked: status(asked, **more), looks=2)
    assert chrome.get("at('state').textContent") == says


def test_a_run_that_has_trained_does_not_start(chrome: Browser, frozen: Frozen) -> None:
    """Its rate is not known at the first look, however long it has run."""
    shown(chrome, frozen, lambda _: status(400), looks=1)
    assert chrome.get("at('state').textContent") == "it has trained; how fast is not known yet"
    shown(chrome, frozen, lambda _: BARE | {"actors": {"count": 1}, "learners": [{}]}, looks=1)
    assert chrome.get("at('state').textContent") == "starting"
    assert chrome.get("at('traces').hidden")


def test_nothing_is_asked_while_nobody_looks(chrome: Browser, frozen: Frozen) -> None:
    shown(chrome, frozen, lambda asked: status(asked))
    hide = (
        "Object.defineProperty("
        "document, 'visibilityState', {{get: () => '{}', configurable: true}});"
    )
    turn = "document.dispatchEvent(new Event('visibilitychange'))"
    chrome.get(hide.format("hidden") + turn)
    chrome.get("new Promise((done) => setTimeout(done, 1500))")  # what was under way
    asked = frozen.asked
    chrome.get("new Promise((done) => setTimeout(done, 2500))")
    assert frozen.asked == asked
    chrome.get(hide.format("visible") + turn)
    chrome.get("new Promise((done) => setTimeout(done, 1500))")
    assert asked < frozen.asked <= asked + 3


def test_its_policy_runs_no_other_script(chrome: Browser, frozen: Frozen) -> None:
    shown(chrome, frozen, status)
    chrome.get(
        "(() => { const one = document.createElement('script'); one.textContent = 'var broken = 1';"
        " document.body.append(one); })()"
    )
    assert chrome.get("typeof broken") == "undefined"
    assert any("Content Security Policy" in said for said in chrome.complaints)
