"""What `headrace train` makes of children that end: the evaluator is the one it can do without."""

import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from headrace.broker.config import SecurityConfig
from headrace.broker.sampler_figures import SamplerTotals
from headrace.launch.config.run_file import ConfigError, Run
from headrace.launch.config.run_sections import StopSection
from headrace.launch.config.starts import Start
from headrace.launch.local import summary
from headrace.launch.local.child_plans import evaluates, web_port
from headrace.launch.local.children import Child, GaveUpError
from headrace.launch.local.options import Options
from headrace.launch.local.processes import Processes
from headrace.launch.process import runtime
from headrace.launch.roles import broker, learner_report
from headrace.learner.progress import Progress


class FakeChildren:
    """In the place of Children: notes who is started again, and gives up when it is told to."""

    def __init__(self, *, patient: bool = True) -> None:
        self.patient = patient
        self.again: list[str] = []

    def restart(self, child: Child) -> None:
        if not self.patient:
            raise GaveUpError(f"{child.name} ended 6 times")
        self.again.append(child.name)


def local(children: FakeChildren) -> Processes:
    made = Processes(
        Start(Run(), Path("nowhere"), Path("run.toml"), ()),
        Options(quiet=True, evaluate=True),
        ["ipc:///b"],
        started=0.0,
        asked=cast(Any, False),
    )
    made.children = cast(Any, children)
    made.learner, made.brokers = Child("learner", [], 1), [Child("broker", [], 2)]
    made.actors, made.evaluators = [Child("actor-0", [], 3)], [Child("evaluator", [], 4)]
    return made


def test_an_evaluator_plays_unless_it_cannot_or_nobody_wants_it(tmp_path: Path) -> None:
    run = Run()
    assert [evaluates(run, asked) for asked in (None, True, False)] == [True, True, False]
    keys = SecurityConfig(curve=True, keys=str(tmp_path))
    locked = msgspec.structs.replace(run, security=keys)
    assert [evaluates(locked, asked) for asked in (None, True)] == [False, True]
    (tmp_path / "evaluator.key").touch()
    assert evaluates(locked, None)


def test_a_goal_by_evaluation_needs_an_evaluator(tmp_path: Path) -> None:
    stop, keys = StopSection(metric="evaluation"), SecurityConfig(curve=True, keys=str(tmp_path))
    run = msgspec.structs.replace(Run(), stop=stop, security=keys)
    assert evaluates(run, None)
    with pytest.raises(ConfigError, match=r"stop\.metric.*leave out --no-evaluate"):
        evaluates(run, False)


@pytest.mark.parametrize("status", [-9, runtime.OUR_FAULT])
def test_an_evaluator_that_dies_is_started_again(status: int) -> None:
    one = local(FakeChildren())
    one.evaluators[0].status = status
    assert one._expected(one.evaluators[0])
    assert cast(Any, one.children).again == ["evaluator"]


@pytest.mark.parametrize(("patient", "status"), [(False, -9), (True, runtime.YOUR_INPUT)])
def test_the_run_goes_on_without_one_that_cannot_work(
    patient: bool, status: int, caplog: Any
) -> None:
    one = local(FakeChildren(patient=patient))
    one.evaluators[0].status = status
    assert one._expected(one.evaluators[0])
    assert "the run goes on without evaluations" in caplog.text
    assert cast(Any, one.children).again == []


def test_a_goal_by_evaluation_cannot_do_without_it() -> None:
    one = local(FakeChildren(patient=False))
    stop = StopSection(return_=5.0, metric="evaluation")
    one.given = msgspec.structs.replace(one.given, stop=stop)
    one.evaluators[0].status = runtime.YOUR_INPUT
    with pytest.raises(GaveUpError, match="evaluator is needed"):
        one._expected(one.evaluators[0])


def test_one_that_was_sent_away_comes_back_like_a_sampler() -> None:
    one = local(FakeChildren())
    for child in (*one.evaluators, *one.actors):
        child.status = runtime.OK
        assert one._expected(child)
    one.left = [(at - 60.0, child) for at, child in one.left]
    one._bring_back()
    assert cast(Any, one.children).again == ["evaluator", "actor-0"]


@pytest.mark.parametrize(
    ("status", "asked", "expected"),
    [
        (runtime.OK, False, runtime.OK),
        (runtime.LIMIT, False, runtime.LIMIT),
        (runtime.DIVERGED, False, runtime.DIVERGED),
        (runtime.OK, True, runtime.LIMIT),
        (None, True, runtime.LIMIT),
    ],
)
def test_a_summary_that_cannot_be_written_changes_no_status(
    status: int | None, asked: bool, expected: int, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    one = local(FakeChildren())
    one.asked = cast(Any, asked)
    assert one.learner is not None
    one.children = cast(Any, SimpleNamespace(all=[one.learner]))
    one.learner.status = status
    monkeypatch.setattr(summary, "write", full)
    assert one._conclude("") == expected
    assert [record.message for record in caplog.records] == [
        "the run's summary is not complete: [Errno 28] No space left on device"
    ]


def test_a_report_that_cannot_be_written_is_one_line(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "learner.json").mkdir()
    learner_report.write(tmp_path, Progress(), "steps", seconds=1.0)
    server = SimpleNamespace(
        status=dict,
        ledger=SimpleNamespace(
            state=SimpleNamespace(redelivered=0),
            versions=SimpleNamespace(rolled_back=0),
            unaccounted=lambda: 0,
        ),
        counters=SimpleNamespace(unroll_bytes=0),
        run_status=SimpleNamespace(sampler_totals=SamplerTotals()),
    )
    broker._report(cast(Any, server), tmp_path / "nowhere" / "broker.json")
    ours, other = [record.message for record in caplog.records]
    assert ours.startswith("the learner's report is not written: ")
    assert other.startswith("the broker's report is not written: ")


def test_nobody_else_is_missed_so_little() -> None:
    one = local(FakeChildren())
    assert one.learner is not None
    for child in (one.learner, *one.brokers, *one.actors):
        child.status = runtime.YOUR_INPUT
        with pytest.raises(GaveUpError):
            one._expected(child)


@pytest.mark.processes
def test_roles_are_imported_once_before_they_are_forked() -> None:
    """Else each child imports torch for itself: half a second later, and in memory of its own."""
    probe = (
        "import sys; from headrace.launch.local import child_plans; child_plans.import_roles();"
        " print(*sorted({'torch', 'headrace.launch.roles.learner', 'headrace.launch.roles.sampler'}"
        " - set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_page_has_a_free_port_or_the_one_that_was_asked_for() -> None:
    assert web_port(None) is None
    assert web_port(0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}: .*choose another with --web"):
            web_port(port)
    assert web_port(port) == port
    with pytest.raises(ConfigError, match="choose another with --web"):
        web_port(70000)
