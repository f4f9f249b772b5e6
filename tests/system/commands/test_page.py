"""The page of a real run in a real browser, and what it costs the broker."""

import time

from prometheus_client import Metric

from tests import ports
from tests.launch.monitor.browser import browser
from tests.system.commands.test_metrics import by, get, port_of, scrape, value
from tests.system.conftest import Place, Process, until
from tests.system.harness.figures import say


def cpu_s(process: Process) -> float:
    return float(value(scrape(port_of(process))["process_cpu_seconds"]))


def counted(families: dict[str, Metric]) -> dict[str, float]:
    ends = by(families["headrace_broker_fragments"], "outcome")
    return {
        "trained": ends["trained"],
        "version": value(families["headrace_broker_version"]),
        "received": value(families["headrace_broker_received"]),
        "samplers": by(families["headrace_broker_sessions"], "role")["actor"],
    }


def test_a_real_run_is_shown_as_it_is(place: Place) -> None:
    """What the page says lies between what /metrics said just before and just after."""
    port = ports.free()  # the one that follows listens there, too
    broker = place.broker("--metrics-port", str(port))
    place.learner(), place.actor(), place.actor()
    place.trains(50)
    with browser() as chrome:
        chrome.open(f"http://127.0.0.1:{port}/")
        chrome.until("typeof seen !== 'undefined' && seen.rate('outcome_trained') > 0")
        until(lambda: by(scrape(port)["headrace_broker_sessions"], "role")["actor"] == 2, "both")
        chrome.until("shown.actors.count === 2")
        before = counted(scrape(port))
        # The next look at the broker began after that scrape.
        chrome.get("new Promise((done) => setTimeout(done, 2500))")
        told = chrome.get("shown")
        figures = chrome.figures()
        after = counted(scrape(port))
        assert before["trained"] <= told["outcomes"]["trained"] <= after["trained"]
        assert before["version"] <= told["version"] <= after["version"]
        assert before["received"] <= told["received"] <= after["received"]
        assert before["samplers"] == told["actors"]["count"] == 2
        assert figures["outcome_trained"] == f"{told['outcomes']['trained']:,}"
        assert figures["version"] == f"{told['version']:,}"
        assert figures["samplers"] == "2"
        assert figures["unaccounted"] == "0"
        assert chrome.get("at('state').textContent") == "training"
        begun, first = time.monotonic(), counted(scrape(port))
        chrome.get("new Promise((done) => setTimeout(done, 4000))")
        last = counted(scrape(port))
        speed = (last["trained"] - first["trained"]) / (time.monotonic() - begun)
        shown = chrome.get("seen.rate('outcome_trained')")
        assert speed / 2 < shown < 2 * speed, "its window is a longer one"
        assert chrome.complaints == []
        broker.kill()
        chrome.until("at('state').textContent.includes('has not answered since')")
        chrome.complaints.clear()  # the browser itself complains of refused connections
        place.broker("--metrics-port", str(port))
        chrome.until("at('state').textContent === 'training'")
        assert "the broker restarted at" in chrome.get("at('facts').textContent")
    assert "Traceback" not in broker.text()


def test_it_costs_the_broker_next_to_nothing(place: Place) -> None:
    """A broker without peers: with the page open, and with nobody looking."""
    broker = place.broker("--metrics-port", "0")
    port = port_of(broker)
    assert get(port, "/")[0] == 200

    def share(seconds: float) -> float:
        first, begun = cpu_s(broker), time.monotonic()
        time.sleep(seconds)
        return (cpu_s(broker) - first) / (time.monotonic() - begun)

    alone = share(4.0)
    with browser() as chrome:
        chrome.open(f"http://127.0.0.1:{port}/")
        chrome.until("typeof shown !== 'undefined' && !!shown")
        watched = share(4.0)
    say("an idle broker, share of a core", unwatched=alone, page_open=watched)
    assert alone < 0.05
    assert watched < 0.10
