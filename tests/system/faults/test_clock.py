"""The wall clock moved by an hour, forwards and back, while the run trains."""

import re
import time

from tests.system.conftest import LONG_S, RUN, Place, Process
from tests.system.harness.clock import Clock
from tests.system.harness.figures import pick, say
from tests.system.harness.trial import Trial

_HOUR_S = 3600
# Half an hour, which no run here takes; the jumps are longer.
_LIMIT = "\n[stop]\nseconds = 1800\n"
_TIMES = ("first_train_s", "wall_s", "steps_per_s", "trained_steps_per_s")


def _came_and_went(*processes: Process) -> list[str]:
    """What a role says when another is taken for dead, or comes and goes."""
    told = re.compile(r".*(?:fell silent|no broker answers|joins|leaves|Traceback).*")
    return [line for process in processes for line in told.findall(process.text())]


def test_each_role_s_clock_is_moved(place: Place) -> None:
    """Moves the wall clock of the broker, of the learner and of the sampler, one after the other,
    by +1 h, by -1 h, and to and fro ten times a second: nobody is taken for dead, nothing ends.
    """
    # No lease ends because a busy machine forgets a process for two seconds; the jumps are longer.
    place.toml("run.toml", RUN.replace("lease_s = 2.0", "lease_s = 20.0") + _LIMIT)
    clocks = [Clock(place.folder, role) for role in ("broker", "learner", "actor")]
    broker = place.headrace("broker", "--run", place.run, "--bind", place.ipc, env=clocks[0].env)
    broker.says("run small at")
    learner = place.headrace(
        "learner",
        "--run",
        place.run,
        "--broker",
        place.ipc,
        "--out",
        str(place.out),
        "--ledger",
        str(place.ledger),
        env=clocks[1].env,
    )
    sampler = place.actor(env=clocks[2].env)
    trial = Trial(place, broker, learner, sampler)
    said = _came_and_went(broker, learner, sampler)
    for clock in clocks:
        for away in (_HOUR_S, -_HOUR_S):
            clock.move(away)
            trial.for_seconds(pick(0.5, 5.0))
            assert trial.healed() < LONG_S
        for jump in range(pick(10, 100)):
            clock.move(_HOUR_S if jump % 2 else -_HOUR_S)
            trial.for_seconds(0.1)
            trial.faults += 1
        assert trial.healed() < LONG_S
        clock.move(0)
    assert _came_and_went(broker, learner, sampler) == said
    trial.end("clocks")
    assert all(0 < line["t"] < 1800 for line in place.history())


def test_what_a_run_says_about_time(place: Place) -> None:
    """Moves the wall clock of all processes of `headrace train` to and fro by an hour: its limit in
    seconds is not reached, and its seconds and rates are those that really passed.
    """
    place.toml("run.toml", RUN + _LIMIT)
    clock = Clock(place.folder, "all")
    began, jumps = time.monotonic(), 0
    train = place.train("--stop-steps", "4000", env=clock.env)
    while train.popen.poll() is None and time.monotonic() < began + 4 * LONG_S:
        clock.move(_HOUR_S if jumps % 2 else -_HOUR_S)
        jumps += 1
        time.sleep(0.1)
    assert train.ends() == 0, train.text()
    took_s, summary = time.monotonic() - began, place.summary()
    say("clock of a run", faults=jumps, **{k: summary[k] for k in _TIMES}, seconds=took_s)
    assert summary["stop_reason"] == "steps"
    assert 0 < summary["first_train_s"] < summary["wall_s"] < took_s
    assert 0 < summary["steps_per_s"] < 1e6
