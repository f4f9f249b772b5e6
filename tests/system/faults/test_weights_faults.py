"""Weights on their way while who sends them dies and who takes them sleeps."""

import re
import signal
import time
import urllib.request

from tests.system.conftest import LONG_S, RUN, Place, Process, until
from tests.system.harness.figures import pick
from tests.system.harness.trial import Trial
from tests.system.network.proxy import Proxy

_BLOB = 2_120_000  # bytes of the weights below, about: policy and value
_RUN = RUN.replace("hidden = [16]", "hidden = [512, 512]")


class Shown:
    """One number that a process exports, and whether it ever fell."""

    def __init__(self, process: Process, name: str) -> None:
        port = process.says(r"metrics at port (\d+)", timeout_s=4 * LONG_S)[1]
        self._url = f"http://127.0.0.1:{port}/metrics"
        self._line = re.compile(rf"^{name} (\S+)$", re.MULTILINE)
        self.last = -1.0
        self.fell = 0

    def now(self) -> float:
        with urllib.request.urlopen(self._url, timeout=LONG_S) as answer:
            found = self._line.search(answer.read().decode())
        assert found is not None
        self.fell += float(found[1]) < self.last
        self.last = float(found[1])
        return self.last


def _carries(proxy: Proxy, more: int) -> None:
    """Waits until it has brought the broker so many further bytes."""
    goal = proxy.to_broker + more
    until(lambda: proxy.to_broker > goal, "part of a version")


def test_a_receiver_sleeps_and_a_publisher_dies(place: Place, tcp: str) -> None:
    """Stops a sampler for 100 versions; then kills the learner in the middle of sending weights,
    over a line that takes a second for one version, and starts it again from its checkpoint.
    """
    place.toml("run.toml", _RUN)
    broker = place.broker("--metrics-port", "0", bind=tcp)
    broker.says("run small at")
    with Proxy(tcp) as to_learner, Proxy(tcp, at="127.0.0.3") as to_sleeper:
        learner = place.learner(broker=to_learner.endpoint)
        near = place.actor("--name", "near", broker=tcp)
        sleeper = place.actor(
            "--name", "sleeper", "--metrics-port", "0", broker=to_sleeper.endpoint
        )
        acts = Shown(sleeper, "headrace_actor_weights_version")
        newest = Shown(broker, "headrace_broker_weights_version")
        until(lambda: acts.now() >= 0, "the sleeper acts", timeout_s=4 * LONG_S)
        trial = Trial(place, broker, learner, near, sleeper)

        sleeper.signal(signal.SIGSTOP)
        goal = newest.now() + 100
        until(lambda: newest.now() >= goal, "100 versions", timeout_s=4 * LONG_S)
        goal, began = newest.last, time.monotonic()
        carried = to_sleeper.from_broker
        sleeper.signal(signal.SIGCONT)
        until(lambda: acts.now() >= goal, "the sleeper acts with newer weights")
        caught_up_s = time.monotonic() - began
        transfers = (to_sleeper.from_broker - carried) / _BLOB
        since = newest.now() - goal  # versions that came while we looked
        trial.healed()

        for _ in range(pick(2, 20)):
            until(place.checkpoints, "a checkpoint")
            to_learner.kb_s = _BLOB / 1000  # one version a second
            trial.for_seconds(1.0)
            _carries(to_learner, _BLOB // 4)
            learner.kill()
            to_learner.kb_s = 0.0
            killed, learner = learner, place.learner("--resume", broker=to_learner.endpoint)
            trial.replaces(killed, learner)
            trial.healed(timeout_s=4 * LONG_S)
            acts.now()
            newest.now()
        trial.end(
            "weights", caught_up_s=caught_up_s, transfers=transfers, fell=acts.fell + newest.fell
        )
    assert (acts.fell, newest.fell) == (0, 0)
    assert "acts with other weights" not in broker.text()
    # The rest of the version that was on its way, the newest, and perhaps some that came since; not
    # the hundred that it slept through.
    assert transfers < min(2.5 + since, 50)
