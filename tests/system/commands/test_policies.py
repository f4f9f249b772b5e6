"""A run of several policies, from training to its books; what goes wrong on the way."""

import json
import os
import signal
from pathlib import Path

import pytest

from headrace.broker.journal import audit
from headrace.launch.results import learning_curve
from tests.system.commands.test_metrics import port_of, scrape
from tests.system.commands.test_train import check_books
from tests.system.conftest import Place, Process, children, env_of_ranks, until
from tests.system.roles import test_node
from tests.trainings import trained

# The best is 1 an episode; agents that draw get a third.
SIGNALS = """
[run]
name = "signals"

[env]
id = "headrace.actors.envs.toys.several_agents:Signals"

[unroll]
length = 16
envs = 4

[model]
hidden = [32]

[algorithm]
name = "appo"

[actor]
count = 1
groups = 4

[broker]
beat_s = 0.2
lease_s = 2.0

[checkpoint]
every_s = 0.5

[stop]
steps = 3000

[policies.speaker]
agents = ["speaker"]

[policies.listener]
agents = ["listener_*"]
algorithm.name = "ppo"
unroll.length = 12
unroll.envs = 4
pacing.batch_unrolls = 4
"""
POLICIES = ("speaker", "listener")
LEARNS_S = 900.0  # several learners on a busy machine; only what hangs takes so long


def train(place: Place, *arguments: str) -> Process:
    """Starts a run of several policies."""
    return place.headrace("train", place.run, "--out", str(place.out), *arguments)


TOGETHER = ("--set", "learner.together=true")


def exact(folder: Path) -> audit.Account:
    account = audit.read(folder / "ledger", copies=0)
    assert account.unaccounted() == account.untrue == account.twice == 0
    return account


@pytest.mark.parametrize("stepping", ["threads", "processes"])
def test_each_policy_is_trained_and_its_books_are_exact(place: Place, stepping: str) -> None:
    place.run = place.toml("signals.toml", SIGNALS)
    process = train(place, "--set", f"actor.stepping={stepping}")
    assert process.ends(timeout_s=LEARNS_S) == 0, process.text()
    for name in POLICIES:
        account = exact(place.out / name)
        assert account.outcomes["trained"] * 48 >= 3000 / 2
        assert f"{name}: step limit reached" in process.text()
        evaluated = learning_curve.read(place.out / name / "evaluations.jsonl")
        assert all(line["episodes"] == 20 and line["length"] == 10 for line in evaluated)
        assert list((place.out / name / "best").glob("0*"))
        audited = place.headrace("audit", str(place.out / name))
        assert audited.ends() == 0 and "exact" in audited.text()
    summary = place.summary()
    assert summary["stop_reason"] == "steps" and summary["policies"].keys() == {*POLICIES}
    play = place.headrace("play", str(place.out), "--episodes", "3")
    assert play.ends() == 0, play.text()
    assert all(f"signals-{name}  " in play.text() for name in POLICIES)
    for command in ("report", "audit", "export"):
        named = place.headrace(command, str(place.out))
        assert named.ends() == 2 and "holds several runs, name one of them" in named.text()
    alone = place.headrace("play", str(place.out / "speaker"), "--episodes", "3")
    assert alone.ends() == 2 and "nobody plays listener_0" in alone.text()


def test_one_that_is_done_plays_on_while_the_other_learns(place: Place) -> None:
    place.run = place.toml("signals.toml", SIGNALS)
    process = train(place, "--quiet", "--set", "policies.speaker.stop.steps=1000")
    assert process.ends(timeout_s=LEARNS_S) == 0, process.text()
    steps = {name: exact(place.out / name).env_steps for name in POLICIES}
    assert steps["speaker"] < 2500 and steps["listener"] >= 3000


FIXED = """
[run]
name = "nim"

[env]
id = "headrace.actors.envs.toys.several_agents:Nim"
agents = ["first"]
others = { second = "random" }

[unroll]
length = 16
envs = 8

[model]
hidden = [32]

[algorithm]
name = "appo"

[evaluate]
episodes = 20

[stop]
steps = 12000
"""


@pytest.mark.parametrize("stepping", ["processes"])
def test_a_policy_has_fixed_agents_and_others_play_the_rest(place: Place, stepping: str) -> None:
    place.run = place.toml("nim.toml", FIXED)
    process = place.train("--evaluate", "--quiet", "--set", f"actor.stepping={stepping}")
    assert process.ends(timeout_s=LEARNS_S) == 0, process.text()
    check_books(place)
    assert place.summary()["mean_return"] > 0.1, "who draws as well wins every second game"
    assert (place.out / "evaluations.jsonl").read_text()
    play = place.headrace("play", str(place.out), "--episodes", "3")
    assert play.ends() == 0, play.text()


GAME = """
[run]
name = "game"

[env]
id = "headrace.actors.envs.toys.several_agents:Nim"
metrics = ["right"]

[unroll]
length = 8
envs = 1

[model]
hidden = [32]

[algorithm]
name = "appo"

[pacing]
batch_unrolls = 16

[actor]
count = 2
groups = 16

[stop]
steps = 4000

[policies.first]
agents = ["first"]

[policies.second]
agents = ["second"]
"""


def test_two_policies_play_a_game_of_turns(place: Place) -> None:
    place.run = place.toml("game.toml", GAME)
    process = train(place, "--quiet")
    assert process.ends(timeout_s=LEARNS_S) == 0, process.text()
    for name in ("first", "second"):
        assert exact(place.out / name).env_steps >= 4000
    play = place.headrace("play", str(place.out), "--episodes", "5")
    assert play.ends() == 0, play.text()
    wide = train(place, "--quiet", "--out", str(place.out / "wide"), "--set", "unroll.envs=2")
    assert wide.ends() == 2 and "each plays one agent" in wide.text()


def test_an_unknown_player_is_said_in_a_line(place: Place) -> None:
    place.run = place.toml("nim.toml", FIXED)
    process = place.train("--quiet", "--set", 'env.others={ second = "nowhere" }')
    assert process.ends() == 2
    assert "env.others = 'nowhere' is no folder of a run" in process.text()


def test_a_run_of_several_policies_goes_on(place: Place) -> None:
    place.run = place.toml("signals.toml", SIGNALS)
    assert train(place, "--quiet").ends(timeout_s=LEARNS_S) == 0
    before = {name: exact(place.out / name).env_steps for name in POLICIES}
    process = train(place, "--quiet", "--resume", "--stop-steps", "5000")
    assert process.ends(timeout_s=LEARNS_S) == 0, process.text()
    for name in POLICIES:
        assert exact(place.out / name).env_steps >= before[name] + 1500


def test_whoever_is_evaluated_may_meet_code_that_only_the_others_runs_name(place: Place) -> None:
    place.run = place.toml("signals.toml", SIGNALS)
    process = train(place, "--set", "policies.listener.league.pick=statistics:mean")
    assert process.ends(timeout_s=LEARNS_S) == 0, process.text()
    assert "the run goes on without evaluations" not in process.text()
    assert all((place.out / name / "evaluations.jsonl").exists() for name in POLICIES)


def test_the_goal_may_be_one_of_evaluations(place: Place) -> None:
    place.run = place.toml("signals.toml", SIGNALS.replace("steps = 3000", "steps = 200_000"))
    goal = ("--stop-return", "0.6", "--set", "stop.metric=evaluation")
    process = train(place, "--quiet", "--set", "evaluate.share=0.2", *goal)
    assert process.ends(timeout_s=LEARNS_S) == 0, process.text()
    each = place.summary()["policies"].values()
    assert all(one["evaluation"]["best"]["mean"] >= 0.6 for one in each)


def test_it_ends_when_asked_and_leaves_nothing_behind(place: Place) -> None:
    place.run = place.toml("signals.toml", SIGNALS.replace("steps = 3000", "steps = 10_000_000"))
    process = train(place)
    folders = [place.out / name for name in POLICIES]
    until(lambda: all(trained(folder / "ledger") >= 20 for folder in folders), "both are trained")
    process.signal(signal.SIGINT)
    assert process.ends() == 3, process.text()
    place.nothing_is_left(timeout_s=10)
    for folder in folders:
        assert exact(folder).in_flight == 0
    assert place.summary()["stop_reason"] == "stopped"


def test_where_several_policies_cannot_be_trained(place: Place) -> None:
    place.run = place.toml("signals.toml", SIGNALS)
    goal = train(place, "--no-evaluate", "--set", "stop.metric=evaluation", "--stop-return", "1")
    assert goal.ends() == 2 and "without an evaluator nobody could say" in goal.text()
    nothing = train(place, "--resume")
    assert nothing.ends() == 2 and "nothing to resume" in nothing.text()
    place.out.mkdir(exist_ok=True)
    (place.out / "run.toml").touch()
    other = train(place)
    assert other.ends() == 2 and "holds the run of one policy" in other.text()


def test_what_is_done_plays_on_when_the_others_are_continued(place: Place) -> None:
    place.run = place.toml("signals.toml", SIGNALS)
    sets = ("--set", "policies.speaker.stop.steps=1000")
    assert train(place, "--quiet", *sets).ends(timeout_s=LEARNS_S) == 0
    more = ("--set", "policies.listener.stop.steps=5000")
    evaluations = place.out / "listener" / "evaluations.jsonl"
    before = learning_curve.read(evaluations)
    process = train(place, "--quiet", "--resume", *sets, *more)
    assert process.ends(timeout_s=LEARNS_S) == 0, process.text()
    assert "speaker: run is complete" in process.text()
    assert exact(place.out / "listener").env_steps >= 5000
    assert exact(place.out / "speaker").env_steps < 3000
    assert learning_curve.read(evaluations)[-1]["version"] > before[-1]["version"]
    again = train(place, "--quiet", "--resume", *sets, *more)
    assert again.ends() == 0 and "listener: run is complete" in again.text()


def test_one_process_trains_both_and_ends_with_each(place: Place) -> None:
    place.run = place.toml("signals.toml", SIGNALS)
    sets = ("--set", "policies.speaker.stop.steps=1000")
    process = train(place, "--quiet", *TOGETHER, *sets)
    until(lambda: (place.out / "speaker" / "summary.json").exists(), "the speaker's run is over")
    assert process.ends(timeout_s=LEARNS_S) == 0, process.text()
    for name, least in (("speaker", 1000), ("listener", 3000)):
        assert exact(place.out / name).env_steps >= least
        summary = json.loads((place.out / name / "summary.json").read_text())
        assert summary["stop_reason"] == "steps" and summary["phase_seconds"]["others"] > 0
        assert learning_curve.read(place.out / name / "evaluations.jsonl")
        assert list((place.out / name / "best").glob("0*"))
    more = ("--set", "policies.listener.stop.steps=4000")
    again = train(place, "--quiet", "--resume", *TOGETHER, *sets, *more)
    assert again.ends(timeout_s=LEARNS_S) == 0, again.text()
    assert "speaker: run is complete" in again.text()
    assert exact(place.out / "listener").env_steps >= 4000
    named = place.headrace("learner", "a.toml", "b.toml", "--broker", place.ipc)
    assert named.ends() == 2 and "1 --broker for 2 runs" in named.text()


def test_all_that_are_asked_to_stop_at_once_report_what_was_trained(place: Place) -> None:
    """As by a terminal, whose signal goes to every process of it."""
    place.run = place.toml("signals.toml", SIGNALS.replace("steps = 3000", "steps = 10_000_000"))
    process = train(place, "--quiet", *TOGETHER)
    folders = [place.out / name for name in POLICIES]
    until(lambda: all(trained(folder / "ledger") >= 20 for folder in folders), "both are trained")
    for pid in (process.pid, *children(process.pid)):
        os.kill(pid, signal.SIGTERM)
    assert process.ends(timeout_s=LEARNS_S) == 3, process.text()
    for folder in folders:
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["stop_reason"] == "stopped" and summary["trained_steps"] > 0
        exact(folder)


def test_a_sampler_that_is_killed_comes_back_with_what_is_done(place: Place) -> None:
    text = SIGNALS.replace("steps = 3000", "steps = 12000")
    place.run = place.toml("signals.toml", text)
    process = train(place, "--quiet", "--set", "policies.speaker.stop.steps=1000")
    until(lambda: (place.out / "speaker" / "summary.json").exists(), "the speaker's run is over")
    until(lambda: len(children(process.pid)) == 2, "its process has ended")
    os.kill(process_of(process, "actor"), signal.SIGKILL)
    assert process.ends(timeout_s=LEARNS_S) == 0, process.text()
    assert exact(place.out / "listener").env_steps >= 12000


@pytest.mark.parametrize(
    "role", ["actor", "learner", "broker", "evaluator", "run", "learner of both", "run of both"]
)
def test_it_goes_on_when_a_process_is_killed(place: Place, role: str) -> None:
    place.run = place.toml("signals.toml", SIGNALS.replace("steps = 3000", "steps = 8000"))
    process = train(place, "--quiet", *TOGETHER * role.endswith("of both"))
    folders = [place.out / name for name in POLICIES]
    until(lambda: all(trained(folder / "ledger") >= 20 for folder in folders), "both are trained")
    os.kill(process_of(process, role), signal.SIGKILL)
    assert process.ends(timeout_s=LEARNS_S) == 0, process.text()
    assert "was killed by SIGKILL; starting it again" in process.text()
    for folder in folders:
        account = audit.read(folder / "ledger", copies=0)
        assert account.unaccounted() == account.untrue == 0


ALONE = (
    SIGNALS.partition("[policies.speaker]")[0].replace("steps = 3000", "steps = 2000")
    + "[pacing]\nbatch_unrolls = 2\n"  # so many ranks may share a batch
)
ALLOW = ("--allow", "headrace.actors.envs.toys")


class Apart:
    """Has a broker for each policy, each started by hand, and learners for each or for both."""

    def __init__(
        self, place: Place, *, ranks: int, run: str = ALONE, together: bool = False
    ) -> None:
        self.brokers: list[Process] = []
        self.learners: list[Process] = []
        self.folders = [place.folder / name for name in POLICIES]
        self.addresses = [f"{place.ipc}-{name}" for name in POLICIES]
        for at, agents in enumerate(("speaker", "listener_*")):
            text = run.replace('Signals"', f'Signals"\nagents = ["{agents}"]')
            name, place.out = POLICIES[at], self.folders[at]
            place.run = place.toml(f"{name}.toml", text.replace('"signals"', f'"{name}"'))
            place.ledger, broker = place.out / "ledger", self.addresses[at]
            self.brokers.append(place.broker("--ledger", str(place.ledger), bind=broker))
            if not together:
                alone = ranks == 1
                learners = (
                    [place.learner(broker=broker)] if alone else place.two_ranks(broker=broker)
                )
                self.learners += learners
        if together:
            runs = [str(folder.with_suffix(".toml")) for folder in self.folders]
            folders = [word for folder in self.folders for word in ("--out", str(folder))]
            for env in env_of_ranks() if ranks == 2 else [{}]:
                words = ("learner", *runs, *self.options, *folders)
                self.learners.append(place.headrace(*words, env=env))

    @property
    def options(self) -> list[str]:
        """Of who samples for both."""
        ledgers = [str(folder / "ledger") for folder in self.folders]
        both = zip(self.addresses, ledgers, strict=True)
        return [word for one, two in both for word in ("--broker", one, "--ledger", two)]

    def ends(self, *others: Process) -> None:
        """Waits for the end of the runs and of these, and reads the books."""
        for process in (*self.learners, *others):
            assert process.ends(timeout_s=LEARNS_S) == 0, process.text()
        for broker in self.brokers:
            assert broker.term() == 0, broker.text()
        for folder in self.folders:
            assert exact(folder).outcomes["trained"] * 16 * 4 >= 2000 / 2


@pytest.mark.parametrize("together", [False, True])
def test_two_ranks_train_each_of_two_policies(place: Place, together: bool) -> None:
    """Each policy's ranks are a group of their own, so none waits for the order of another's; or
    there is one group, whose ranks train both, in the same order."""
    apart = Apart(place, ranks=2, together=together)
    apart.ends(place.headrace("actor", *apart.options, *ALLOW, "--seed", "3"))


def test_a_node_and_an_evaluator_work_for_several_brokers(place: Place) -> None:
    apart = Apart(place, ranks=1)
    node = place.headrace("node", *apart.options, *ALLOW, "--samplers", "2")
    scores = place.folder / "scores"
    own, other = apart.addresses
    words = ("--broker", own, "--beside", other, "--out", str(scores), "--episodes", "3")
    evaluator = place.headrace("evaluate", *words, *ALLOW)
    names = {"relay", "relay-2", "sampler-0", "sampler-1"}
    until(lambda: names <= {*children(node.pid).values()}, "all of the node's run")
    (sampler,) = test_node.named(node, "sampler-1")
    os.kill(sampler, signal.SIGKILL)
    apart.ends(node, evaluator)
    assert "sampler" in node.text() and "killed by SIGKILL; started again" in node.text()
    assert all(line["episodes"] == 3 for line in learning_curve.read(scores / "evaluations.jsonl"))


def test_a_node_has_one_act_process_for_all_policies(place: Place) -> None:
    remembers = ALONE.replace("hidden = [32]", 'hidden = [32]\ncore = "gru"\ncore_units = 8')
    apart = Apart(place, ranks=1, run=remembers.replace("steps = 2000", "steps = 10_000_000"))
    words = ("--samplers", "2", "--acting", "central", "--metrics-port", "0")
    node = place.headrace("node", *apart.options, *ALLOW, *words)
    port = port_of(node)

    def figure(name: str) -> float:
        return test_node.number(scrape(port), f"headrace_node_{name}")

    # More than one of the two policies has steps: so it acts for both.
    until(
        lambda: figure("act_rows_total") > 0.75 * figure("samplers_env_steps_total") > 500,
        "nearly all rows are the act process's",
    )
    assert len(test_node.named(node, "act")) == 1
    for process in (node, *apart.learners, *apart.brokers):
        assert process.term() in (0, 3), process.text()
    for folder in apart.folders:
        assert exact(folder).outcomes["trained"]


def process_of(process: Process, role: str) -> int:
    """Returns a process of this role below the one that the user started: the sampler comes last
    there, and in the process of a policy's run the broker first."""
    below = sorted(children(process.pid))
    if role == "learner of both":  # it is started after the samplers
        return below[-1]
    if role in ("actor", "run", "run of both"):
        return below[-1 if role == "actor" else 0]
    return sorted(children(below[0]))[("broker", "learner", "evaluator").index(role)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ('policies.speaker.agents=["speeker"]', "'speeker' names none of its agents"),
        ("policies.listener.unroll.envs=8", "must be the same multiple of each policy's agents"),
        ("policies.listener.env.kwargs.words=5", "policies that share environments need the same"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(place: Place, change: str, words: str) -> None:
    place.run = place.toml("signals.toml", SIGNALS)
    process = train(place, "--quiet", "--set", change)
    assert process.ends() == 2, process.text()
    assert any(words in line for line in process.lines()), process.text()
    assert "Traceback" not in process.text()
    place.nothing_is_left(timeout_s=10)
