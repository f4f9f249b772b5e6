"""Keys: a whole run with them, and everybody who must not come in."""

import contextlib
import functools
import re
import time
import urllib.request
from pathlib import Path

import pytest
import zmq
from prometheus_client.parser import text_string_to_metric_families

from headrace.broker.protocol import hello_payload, messages
from headrace.broker.security import curve, keys
from headrace.broker.transport import endpoints
from headrace.launch import keygen
from tests.system.conftest import LONG_S, Place, Process, until
from tests.system.harness.figures import say

MESSAGES = 1000
# From the first word with the broker to the line, for a process that has the machine to itself.
LINE_S = 5.0
CURVE = "\n[security]\ncurve = true\nkeys = '{}'\n"


class Keys:
    """A run with keys: its folder, and what each role is started with."""

    def __init__(self, place: Place, *actors: str) -> None:
        self.folder = place.folder / "keys"
        keygen.generate(self.folder, {"actor": actors})
        run = Path(place.run)
        run.write_text(run.read_text() + CURVE.format(self.folder))

    def file(self, stem: str) -> str:
        return str(self.folder / f"{stem}.key")

    def written(self, name: str, key: keys.Key) -> str:
        """A secret file of the test's own."""
        path = self.folder / f"{name}.key"
        path.write_text(keys.text(key))
        path.chmod(0o600)
        return str(path)

    def broker(self) -> str:
        return keys.read(self.folder / "broker.key", "broker").public

    def public(self, stem: str) -> Path:
        return self.folder / "authorised" / f"{stem}.pub"


def counts(broker: Process) -> dict[tuple[str, str], float]:
    """The broker's counters that tell who came: (name, label) -> number."""
    port = broker.says(r"metrics at port (\d+)")[1]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {
            (
                sample.name.removeprefix("headrace_broker_").removesuffix("_total"),
                label,
            ): sample.value
            for family in families
            for sample in family.samples
            if sample.name in ("headrace_broker_handshakes_total", "headrace_broker_messages_total")
            for label in (sample.labels.get("outcome", "".join(sample.labels.values())),)
        }


def refused(broker: Process) -> float:
    found = counts(broker)
    return sum(found["handshakes", reason] for reason in ("unknown", "mechanism", "failed"))


def more_refused(broker: Process, before: float) -> bool:
    return refused(broker) > before


def shouts(address: str, key: keys.Key | None, number: int) -> int:
    """Says so many messages before any handshake could end; how many answers came."""
    answers = 0
    said = 0
    hello = messages.Hello("watcher", "stranger", 7)
    spoken = [
        messages.encode(hello, hello_payload.encode(hello_payload.HelloPayload())),
        messages.encode(messages.Watch()),
    ]
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        while said < number:
            with endpoints.dealer(context, key) as socket:
                socket.set(zmq.IMMEDIATE, 0)  # they wait for the handshake
                socket.set(zmq.SNDHWM, 0)
                socket.connect(address)
                with contextlib.suppress(zmq.Again):  # refused: nothing is taken any more
                    while said < number:
                        socket.send_multipart(spoken[said % 2], zmq.DONTWAIT)
                        said += 1
                deadline = time.monotonic() + 0.2
                while (left := deadline - time.monotonic()) > 0:
                    answers += bool(socket.poll(int(left * 1000)) and socket.recv_multipart())
        return answers
    finally:
        context.destroy(0)


def knocks(address: str, key: keys.Key | None) -> None:
    """One handshake, which fails."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = endpoints.dealer(context, key)
    monitor = curve.monitor_handshakes(socket)
    try:
        socket.connect(address)
        assert monitor.poll(int(LONG_S * 1000)), "the handshake did not fail"
    finally:
        context.destroy(0)


def whole(place: Place) -> None:
    account = place.account()
    assert (account.unaccounted(), account.untrue, account.twice) == (0, 0, 0)


def test_a_run_on_one_machine_trains_with_keys(place: Place) -> None:
    """Nothing is done to it: every child finds its own key, over ipc, the watcher's too."""
    Keys(place)
    train = place.train("--evaluate", "--set", "stop.steps=20000", "--set", "evaluate.every_s=0.5")
    assert train.ends() == 0, train.text()
    assert place.summary()["trained_steps"] >= 20000
    assert place.summary()["steps_per_s"], "the watcher saw nothing"
    whole(place)
    place.nothing_is_left()


def test_a_revoked_key_is_out_and_the_refused_say_nothing(place: Place, tcp: str) -> None:
    """Four kinds of strangers say a thousand messages each to a run with keys, and one of its two
    samplers has its key deleted under it."""
    began, made = time.monotonic(), Keys(place, "one", "two")
    broker = place.broker("--metrics-port", "0", bind=tcp)
    learner = place.learner(broker=tcp)
    one = place.actor("--key", made.file("actor-one"), "--name", "one", broker=tcp)
    two = place.actor("--key", made.file("actor-two"), "--name", "two", broker=tcp)
    place.trains(20)

    nobody = made.written("nobody", keys.make("actor", "nobody", made.broker()))
    refused_actor = place.actor("--key", nobody, broker=tcp)
    own = keys.read(Path(made.file("watcher")), "watcher")
    strangers = {
        "none": None,
        "unknown": keys.make("watcher", "", made.broker()),
        "another broker's": own._replace(broker=keys.make("broker").public),
    }
    for name, stranger in strangers.items():
        before = refused(broker)
        knocks(tcp, stranger)
        until(functools.partial(more_refused, broker, before), f"{name} is counted")
        assert shouts(tcp, stranger, MESSAGES) == 0, name
        assert counts(broker)["messages", "inwatch"] == 0, name
    # It is the key that makes the difference.
    until(lambda: shouts(tcp, own, 100), "an answer to one with a key")
    assert refused_actor.ends() == 2, refused_actor.text()
    assert re.search(
        rf"refused the key in {nobody}.* no such actor-nobody\.pub", refused_actor.lines()[-1]
    )
    broker.says("refused .* " + re.escape(keys.read(Path(nobody), "actor").public))

    watched = counts(broker)["messages", "inwatch"]
    made.public("actor-two").unlink()
    withdrawn = time.monotonic()
    until(lambda: "actor two is withdrawn" in broker.text(), "the broker sees it")
    seen_s = time.monotonic() - withdrawn
    assert two.ends() == 2, two.text()
    assert "was withdrawn" in two.lines()[-1]
    assert made.file("actor-two") in two.lines()[-1]
    revoked = keys.read(Path(made.file("actor-two")), "actor")
    unknown = counts(broker)["handshakes", "unknown"]
    knocks(tcp, revoked)
    assert counts(broker)["handshakes", "unknown"] == unknown + 1
    assert shouts(tcp, revoked, MESSAGES) == 0
    assert counts(broker)["messages", "inwatch"] == watched

    place.trains(20)  # the others go on
    for process in (one, learner, broker):
        assert process.term() == 0, process.text()
        assert "Traceback" not in process.text()
    account = place.account()
    assert (account.untrue, account.twice) == (0, 0)
    say(
        "keys",
        strangers=4,
        messages=4 * MESSAGES,
        accepted=0,
        revoked=1,
        seen_s=seen_s,
        generated=account.generated,
        trained=account.outcomes["trained"],
        seconds=time.monotonic() - began,
    )
    place.nothing_is_left()


LINES = {
    "unknown": r"refused the key in KEY.* no such evaluator-x\.pub",
    "another role": r"refused: .*learner.*\(our key: KEY\)",
    "stranger": r"broker's public key in KEY may be another broker's",
    "none": r"give one with --key FILE",
    "unguarded": r"works without keys, and we have the key in KEY|in KEY .* it works without keys",
}


@pytest.mark.parametrize("kind", LINES)
def test_a_wrong_key_is_a_line_that_says_which_and_what_to_do(place: Place, kind: str) -> None:
    """An evaluator's link with every kind of wrong key: how long until the line, and what it says.
    Its process has nothing else to do. On an idle machine it is half a second."""
    made = Keys(place)
    broker = place.broker(*(["--set", "security.curve=false"] if kind == "unguarded" else []))
    broker.says("run small at")
    learner = keys.read(Path(made.file("learner")), "learner")
    key = {
        "unknown": made.written("u", keys.make("evaluator", "x", made.broker())),
        "another role": made.written("a", learner._replace(role="evaluator")),
        "stranger": made.written("s", learner._replace(role="evaluator", broker=learner.public)),
        "none": "",
        "unguarded": made.file("evaluator"),
    }[kind]
    link = place.python("-c", LINK, place.ipc, key)
    seconds = float(link.says(r"LINE AFTER ([\d.]+) ")[1])
    assert re.search(LINES[kind].replace("KEY", key or "KEY"), link.text()), link.text()
    assert seconds < LINE_S
    say(f"wrong key, {kind}", line_s=seconds)


LINK = """
import asyncio, logging, sys, time, zmq
from pathlib import Path
from headrace.broker.security import keys
from headrace.broker.peers.evaluator import EvaluatorEnd
from headrace.broker.transport.link import RefusedError

address, key = sys.argv[1:]
began = time.monotonic()

class Line(logging.Handler):
    def emit(self, record):
        if record.levelno >= logging.WARNING:
            said(record.getMessage())

def said(line):
    assert "key" in line, line
    print("LINE AFTER", time.monotonic() - began, line, flush=True)
    raise SystemExit

async def main():
    own = keys.read(Path(key), "evaluator") if key else None
    end = EvaluatorEnd(address, name="e", inc=1, context=zmq.Context(), key=own)
    await end.link.run()

logging.getLogger().addHandler(Line())
try:
    asyncio.run(main())
except BaseExceptionGroup as group:
    said(str(group.exceptions[0]))
"""


def test_beyond_this_machine_only_with_keys_or_if_told_so(place: Place) -> None:
    """A broker without keys is told to listen to everybody, with and without --insecure."""
    refusal = place.broker(bind="tcp://*:*")
    assert refusal.ends() == 2
    assert "security.curve = true" in refusal.lines()[-1]
    assert "--insecure" in refusal.lines()[-1]
    announce = place.broker("--set", "broker.announce=tcp://0.0.0.0:*")
    assert announce.ends() == 2
    assert "--insecure" in announce.lines()[-1]
    for broker in (
        place.broker("--insecure", bind="tcp://*:*"),
        place.broker(bind="tcp://127.0.0.1:*"),
    ):
        broker.says("run small at")
        assert broker.term() == 0
    Keys(place)
    guarded = place.broker(bind="tcp://*:*")
    guarded.says("run small at .* for 4 keys")
    assert guarded.term() == 0


def test_without_keys_where_keys_are_asked_for_the_line_says_how_to_make_them(place: Place) -> None:
    """A run with security.curve = true is started before anybody made keys, and with an empty
    folder."""
    run = Path(place.run)
    run.write_text(run.read_text() + CURVE.format(place.folder / "keys"))
    made = re.escape(f"headrace keygen {place.folder / 'keys'}")
    for process in (place.broker(), place.train("--quiet")):
        assert process.ends() == 2
        assert re.search(rf"broker\.key: no such key file.*{made}", process.lines()[-1])
    keygen.generate(place.folder / "keys", {})
    for path in (place.folder / "keys" / "authorised").iterdir():
        path.unlink()
    empty = place.broker()
    assert empty.ends() == 2
    assert re.search(rf"authorised holds no key.* mounted.*{made}", empty.lines()[-1])
