"""A run goes from the release before to today's while it trains, one process after the other."""

import re

from headrace.broker.protocol import releases
from tests.frozen import freeze
from tests.system.conftest import Place, Process, until


class Before:
    """Starts roles of the release before."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.path = freeze.unpack(place.folder / "before")

    def headrace(self, *words: str) -> Process:
        path = {"PYTHONPATH": str(self.path)}
        return self.place.python("-m", "headrace.launch.cli", *words, env=path)

    def start(self, *words: str) -> Process:
        return self.headrace(*words, "--ledger", str(self.place.ledger))

    def broker(self, bind: str) -> Process:
        return self.start("broker", "--run", self.place.run, "--bind", bind)

    def learner(self, broker: str) -> Process:
        out = ("--out", str(self.place.out))
        return self.start("learner", "--run", self.place.run, "--broker", broker, *out)

    def actor(self, broker: str, name: str) -> Process:
        return self.start("actor", "--broker", broker, "--seed", "3", "--name", name)

    def node(self, broker: str, name: str) -> Process:
        return self.start("node", "--broker", broker, "--samplers", "1", "--name", name)

    def evaluator(self, broker: str) -> Process:
        often = ("--every-s", "0.1", "--episodes", "1")
        return self.headrace("evaluate", "--broker", broker, "--out", str(self.place.out), *often)


def test_a_run_is_upgraded_while_it_trains(place: Place, tcp: str) -> None:
    before = Before(place)
    broker, learner, first = before.broker(tcp), before.learner(tcp), before.actor(tcp, "first")
    place.trains(20)
    early = place.actor("--name", "early", broker=tcp)
    assert early.ends() == 2
    assert "upgrade the broker first" in early.lines()[-1]

    assert broker.term() == 0, broker.text()
    place.run = str(place.out / "run.toml")  # the learner's, with all defaults of its release
    broker = place.broker("--set", "algorithm.drift_limit=0", bind=tcp)
    broker.says(f"actor first joins, by protocol {releases.OLDEST}")
    place.trains(50)
    # One that is started again while its machine is still to come.
    second = before.actor(tcp, "second")
    broker.says("actor second joins")
    newer = place.actor("--name", "newer", broker=tcp)
    broker.says(r"actor newer joins\n")
    place.trains(50)
    for process in (first, second, learner):
        assert process.term() == 0, process.text()
    newest = int(place.checkpoints()[-1].name)
    learner = place.learner("--resume", broker=tcp)
    assert int(learner.says(r"continues from \S+/(\d+)")[1]) == newest
    place.trains(50)
    for process in (newer, learner, broker):
        assert process.term() == 0, process.text()
    for process in (first, second, newer, learner, broker):
        assert "Traceback" not in process.text(), process.text()
    account = place.account()
    assert (account.unaccounted(), account.untrue, account.twice) == (0, 0, 0)
    assert account.in_flight == 0
    place.nothing_is_left()


def test_node_evaluator_and_top_of_the_release_before_join_todays_broker(
    place: Place, tcp: str
) -> None:
    before = Before(place)
    learner, run = before.learner(tcp), place.out / "run.toml"
    until(run.exists, "a run with all defaults of the release before", why=learner.text)
    place.run = str(run)
    broker = place.broker("--set", "algorithm.drift_limit=0", bind=tcp)
    node, evaluator = before.node(tcp, "rack"), before.evaluator(tcp)
    for peer in ("node rack", "actor rack-0", "evaluator "):
        broker.says(rf"{peer}\S* joins, by protocol {releases.OLDEST}")
    place.trains(50)
    scores = place.out / "evaluations.jsonl"
    until(lambda: scores.exists() and scores.read_text(), "an evaluation", why=evaluator.text)
    top = before.headrace("top", "--broker", tcp)
    assert top.ends() == 0, top.text()
    assert re.search(r"^state +training$", top.text(), re.MULTILINE)
    assert re.search(r"^samplers +1, ", top.text(), re.MULTILINE)
    for process in (evaluator, node, learner, broker):
        assert process.term() == 0, process.text()
        assert "Traceback" not in process.text(), process.text()
    account = place.account()
    assert (account.unaccounted(), account.untrue, account.twice, account.in_flight) == (0, 0, 0, 0)
    place.nothing_is_left()
