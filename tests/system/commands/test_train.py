"""`headrace train` from one end to the other."""

import re
import time

import pytest

from headrace.launch.config import run_file
from headrace.launch.config.run_sections import StopSection
from tests.system.conftest import Place

KEYS = {
    "run",
    "env",
    "algorithm",
    "seed",
    "stop_reason",
    "wall_s",
    "first_train_s",
    "env_steps",
    "trained_steps",
    "learner_steps",
    "version",
    "steps_per_s",
    "trained_steps_per_s",
    "episodes",
    "mean_return",
    "solved_at_s",
    "solved_at_steps",
    "lag",
    "unrolls",
    "wire_bytes_per_step",
    "cpu_s",
    "peak_rss_mb",
}
UNROLLS = {
    "generated",
    "trained",
    "stale",
    "shed",
    "duplicate",
    "rejected",
    "poison",
    "abandoned",
    "in_flight",
}


def check_books(place: Place) -> None:
    """generated = the outcomes + in flight, and no acknowledgement was a lie."""
    unrolls = place.summary()["unrolls"]
    ended = sum(n for name, n in unrolls.items() if name not in ("generated", "duplicate"))
    assert unrolls["generated"] == ended
    account = place.account()
    assert account.unaccounted() == 0
    assert account.untrue == 0
    assert account.generated == unrolls["generated"]
    assert account.in_flight == unrolls["in_flight"]


def check_files(place: Place) -> None:
    assert place.checkpoints()
    assert (place.out / "curve.png").read_bytes()[:4] == b"\x89PNG"
    assert place.history()
    assert (place.out / "run.toml").exists()


def test_a_return_goal_is_reached_and_summed_up(place: Place) -> None:
    place.cold = True  # its seconds are compared with ours
    began = time.time()
    train = place.train("--stop-return", "30", "--stop-steps", "2000000")
    assert train.ends() == 0, train.text()
    took = (place.out / "summary.json").stat().st_mtime - began
    place.nothing_is_left()

    summary = place.summary()
    assert summary.keys() >= KEYS
    assert summary["unrolls"].keys() == UNROLLS
    assert summary["lag"].keys() == {"mean", "p95", "max"}
    assert (summary["run"], summary["env"]) == ("small", "CartPole-v1")
    assert (summary["algorithm"], summary["seed"]) == ("impala", 1)
    assert summary["stop_reason"] == "return"
    assert summary["mean_return"] >= 30
    # From the start of the process as the kernel counts it; we started it a little earlier.
    assert took - 1.5 < summary["wall_s"] <= took + 0.1
    assert 0 < summary["first_train_s"] < summary["solved_at_s"] < summary["wall_s"]
    assert 0 < summary["solved_at_steps"] == summary["trained_steps"] <= summary["env_steps"]
    assert summary["learner_steps"] == summary["version"] > 0
    # Of the 8 x 4 steps of an unroll those are left out that only reset.
    assert 0.7 * 64 < summary["trained_steps"] / summary["learner_steps"] <= 64
    assert summary["unrolls"]["trained"] == 2 * summary["learner_steps"]
    assert summary["episodes"] >= 100
    # 4 float32 of observation, action, log-prob, reward, flags: 33 bytes a step, and the headers.
    assert 33 < summary["wire_bytes_per_step"] < 80
    assert 0 <= summary["lag"]["mean"] <= summary["lag"]["p95"] <= summary["lag"]["max"]
    assert summary["trained_steps_per_s"] > 0
    assert summary["cpu_s"] > 0
    assert 30 < summary["peak_rss_mb"] < 2000
    check_books(place)
    check_files(place)

    said = train.text()
    for path in (place.checkpoints()[-1], place.out / "summary.json", place.out / "curve.png"):
        assert str(path) in said
    assert "Traceback" not in said


def test_a_limit_before_the_goal_is_status_3_and_resume_goes_on(place: Place) -> None:
    train = place.train("--stop-return", "500", "--stop-steps", "4000", "--quiet", "--web", "0")
    assert train.ends() == 3
    assert train.text() == ""
    first, points = place.summary(), len(place.history())
    assert first["stop_reason"] == "steps"
    assert 4000 <= first["trained_steps"] < 4064
    check_books(place)
    check_files(place)

    again = place.train("--stop-steps", "9000")
    assert again.ends() == 2
    assert "--resume" in again.text()
    assert len(again.lines()) == 1
    assert place.summary() == first

    resumed = place.train("--stop-steps", "9000", "--resume", "--set", "learner.lr=3e-3")
    assert resumed.ends() == 3, resumed.text()  # stop.return still holds
    said = [line.split(" WARNING ")[1] for line in resumed.lines() if " WARNING " in line]
    assert said == [
        "continues with another learner.lr: 0.002 -> 0.003",
        "continues with another stop.steps: 4000 -> 9000",
    ]
    now = run_file.load(str(place.out / "run.toml"))
    assert (now.stop, now.learner.lr) == (StopSection(500.0, 9000, None), 3e-3)
    assert run_file.load(str(place.out / "starts" / "001.toml")).stop.steps == 4000
    assert run_file.load(str(place.out / "starts" / "002.toml")) == now
    second, history = place.summary(), place.history()
    assert 9000 <= second["trained_steps"] < 9064
    assert second["version"] == second["learner_steps"] > first["version"]
    assert second["episodes"] > first["episodes"]
    assert second["unrolls"]["trained"] == 2 * second["learner_steps"]
    # One clock for the whole run: what lay between its starts does not count.
    times = [line["t"] for line in history]
    assert times == sorted(times)
    assert times[points - 1] <= times[points] <= times[-1] < second["wall_s"] < first["wall_s"] + 60
    steps = [line["trained_steps"] for line in history]
    assert steps == sorted(steps)
    assert len(history) > points
    check_books(place)
    place.nothing_is_left()


def test_episodes_that_end_first_do_not_reach_the_goal(place: Place) -> None:
    """A third of them ends at once and pays 1, the others last 200 steps and pay nothing."""
    # One sampler: of a second one that comes late only the short episodes may have ended.
    train = place.train(
        "--actors",
        "1",
        "--stop-return",
        "0.8",
        "--stop-steps",
        "80000",
        "--quiet",
        "--set",
        "env.id=headrace/Chance-v0",
        "--set",
        "env.kwargs.steps=200",
        "--set",
        "unroll.envs=64",
    )
    assert train.ends() == 3, train.text()
    summary = place.summary()
    assert (summary["stop_reason"], summary["solved_at_s"]) == ("steps", None)
    # Of 64 environments: four standard deviations of a mean of 100 or more.
    assert summary["mean_return"] == pytest.approx(1 / 3, abs=4 * (2 / 9 / 100) ** 0.5)
    shown = [line["mean_return"] for line in place.history() if line["mean_return"] is not None]
    assert max(shown) < 0.8


def test_a_complete_run_is_left_as_it_is(place: Place) -> None:
    assert place.train("--stop-steps", "500", "--quiet").ends() == 0
    before = {path: path.read_bytes() for path in place.out.rglob("*") if path.is_file()}
    again = place.train("--resume")
    assert again.ends() == 0
    (line,) = again.lines()
    assert re.search(r"run is complete: 5\d\d steps are trained, stop.steps is 500; to go on", line)
    after = {path: path.read_bytes() for path in place.out.rglob("*") if path.is_file()}
    assert {p for p in before | after if before.get(p) != after.get(p)} <= {
        place.out / ".train.lock",
        place.out / ".learner-0.lock",
    }
    # Its processes find it out by themselves where the report of its end does not tell.
    (place.out / "learner.json").unlink()
    third = place.train("--resume")
    assert third.ends() == 0, third.text()
    assert place.summary()["stop_reason"] == "steps"
    assert 500 <= place.summary()["trained_steps"] < 564
    place.nothing_is_left()


def test_a_limit_before_anything_was_trained_is_no_success(place: Place) -> None:
    train = place.train("--stop-seconds", "0.1", "--quiet")
    assert train.ends() == 3, train.text()
    assert place.summary()["trained_steps"] == 0
    (line,) = train.lines()
    assert "nothing was trained before stop.seconds = 0.1 was over: no batch of 2 unrolls" in line


def test_resume_needs_something_to_resume(place: Place) -> None:
    train = place.train("--stop-steps", "1000", "--resume")
    assert train.ends() == 2
    assert len(train.lines()) == 1
    assert "nothing to resume" in train.text()
    assert not place.out.exists()


def test_runs_that_begin_together_have_folders_of_their_own(place: Place) -> None:
    """As two seeds do that are started side by side."""
    words = ("train", place.run, "--no-evaluate", "--quiet", "--stop-steps", "500", "--actors", "1")
    started = [place.headrace(*words, "--seed", str(seed)) for seed in (1, 2, 3)]
    for train in started:
        assert train.ends() == 0, train.text()
    runs = place.folder / "headrace-runs"
    assert sorted(folder.name for folder in runs.iterdir()) == ["small", "small-2", "small-3"]
    seeds = {run_file.load(str(folder / "run.toml")).run.seed for folder in runs.iterdir()}
    assert seeds == {1, 2, 3}


def test_a_time_limit(place: Place) -> None:
    train = place.train("--stop-seconds", "4", "--stop-return", "499", "--quiet")
    assert train.ends() == 3
    assert place.summary()["stop_reason"] == "seconds"
    check_books(place)
    place.nothing_is_left()


@pytest.mark.parametrize("algorithm", ["impala", "appo"])
def test_no_lag_allowed_is_no_lag_at_all(place: Place, algorithm: str) -> None:
    train = place.train(
        "--stop-steps", "4000", "--set", "pacing.max_lag=0", "--set", f"algorithm.name={algorithm}"
    )
    assert train.ends() == 0, train.text()
    assert place.summary()["lag"] == {"mean": 0.0, "p95": 0.0, "max": 0.0}
    assert all(line["lag"] == 0 for line in place.history())
    check_books(place)


def test_appo_and_the_vector_entry_point(place: Place) -> None:
    train = place.train(
        "--stop-steps",
        "4000",
        "--actors",
        "1",
        "--seed",
        "5",
        "--set",
        "actor.stepping=vector",
        "--set",
        "algorithm.name=appo",
    )
    assert train.ends() == 0, train.text()
    summary = place.summary()
    assert (summary["algorithm"], summary["seed"]) == ("appo", 5)
    check_books(place)
