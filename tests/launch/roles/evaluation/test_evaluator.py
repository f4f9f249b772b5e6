"""When an evaluator plays, and what it says of it: without a broker, on short walks."""

import asyncio
import json
import math
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import gymnasium
import msgspec
import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from headrace.actors.config import EnvConfig, EvaluateConfig
from headrace.actors.envs.convert import EnvError
from headrace.actors.envs.make import probe
from headrace.actors.evaluation_thread import EvaluationThread
from headrace.actors.evaluator import Scores, StoppedError
from headrace.broker.peers.evaluator import EvaluatorEnd
from headrace.broker.weights.blobs import Blob
from headrace.launch.config import run_file
from headrace.launch.process import runtime
from headrace.launch.roles.evaluation import evaluator as launch_evaluator
from headrace.launch.roles.evaluation.evaluation_loop import EvaluationLoop
from headrace.launch.roles.evaluation.evaluation_results import EvaluationResults, EvaluatorMetrics
from headrace.launch.roles.options import PeerOptions
from headrace.learner.config import ModelConfig
from headrace.learner.models.build import build
from headrace.learner.spaces import Spaces
from headrace.learner.weights import FlatWeights, layout_digest


class Pay(gymnasium.Env[Any, Any]):
    """Five steps; what a step pays is the action. It waits in a step as long as `gate` is shut."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)
    gate = threading.Event()
    broken = False
    wage = 1.0

    def reset(self, *, seed: int | None = None, **_: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if Pay.broken:
            raise RuntimeError("out of order")
        Pay.gate.wait(20.0)
        self.steps += 1
        return self._seen(), float(action) * Pay.wage, self.steps == 5, False, {}

    def _seen(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


RUN = run_file.Run(
    env=EnvConfig(id=f"{__name__}:Pay"),
    model=ModelConfig(hidden=(4,)),
    evaluate=EvaluateConfig(episodes=6, every_s=0.0, share=1.0, envs=2, seed=5),
)


@pytest.fixture(autouse=True)
def open_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pay, "gate", threading.Event())
    monkeypatch.setattr(Pay, "broken", False)
    Pay.gate.set()


@pytest.fixture(scope="module")
def spaces() -> Spaces:
    return probe(RUN.env)


def blob(spaces: Spaces, version: int, *, likes: int = 0) -> Blob:
    """Weights of a network that is sure of one action."""
    model = build(RUN.model, spaces, seed=0)
    model.policy_head.weight.data.zero_()
    model.policy_head.bias.data[likes] += 50.0
    return Blob.of(version, layout_digest(model), FlatWeights(model).dump())


def best(out: Path) -> list[int]:
    return sorted(int(path.name) for path in (out / "best").glob("*"))


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (out / "evaluations.jsonl").read_text().splitlines()]


# ---- when it plays ------------------------------------------------------------------------------


class End:
    """In the place of an EvaluatorEnd: what the broker would have told it."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self.weights = self
        self.run: dict[str, Any] | None = None
        self.blob: Blob | None = None
        self.over = ""
        self.fetching = False
        self.stats: dict[str, float] = {}
        self.acted: list[int] = []
        self.asked = 0  # how often for weights
        self.time: float | None = 12.5
        self.said = True  # the learner, of its steps

    def ask_for_blob(self) -> None:
        self.asked += 1

    def take_blob(self) -> Blob | None:
        found, self.blob = self.blob, None
        return found

    def acts_with(self, version: int, _digest: str) -> None:
        self.acted.append(version)

    def trained_steps(self, version: int) -> int | None:
        return version * 100 if self.said else None

    def clock(self) -> float | None:
        return self.time

    def tell(self, **facts: Any) -> None:
        for name, value in facts.items():
            setattr(self, name, value)
        self.news.set()


def evaluator(
    end: End,
    spaces: Spaces,
    out: Path | None,
    run: run_file.Run = RUN,
    registry: CollectorRegistry | None = None,
) -> EvaluationLoop:
    metrics = EvaluatorMetrics(registry or CollectorRegistry())
    return EvaluationLoop(cast(EvaluatorEnd, end), run, spaces, out=out, metrics=metrics)


async def turns() -> None:
    """Time for the loop to do all that it can do now."""
    for _ in range(20):
        await asyncio.sleep(0)


async def until(condition: Any) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 - what a thread does rings no bell of ours
            await asyncio.sleep(0.001)


def test_an_evaluation_is_written_down_whole(tmp_path: Path, spaces: Spaces) -> None:
    async def main() -> End:
        end = End()
        end.tell(blob=blob(spaces, 7, likes=2), over="done")
        await evaluator(end, spaces, tmp_path, registry=registry).run()
        return end

    registry = CollectorRegistry()
    end = asyncio.run(main())
    assert registry.get_sample_value("headrace_evaluator_return_mean") == 10.0
    (found,) = lines(tmp_path)
    assert found.pop("seconds") >= 0
    assert found == {
        "t": 12.5,
        "version": 7,
        "trained_steps": 700,
        "episodes": 6,
        "mean": 10.0,
        "low": 10.0,
        "high": 10.0,
        "std": 0.0,
        "length": 5.0,
        "greedy": True,
    }
    known = {"version": 7.0, "mean": 10.0, "low": 10.0, "high": 10.0, "episodes": 6.0}
    assert end.stats == {**known, "best": 10.0, "best_version": 7.0}
    assert best(tmp_path) == [7]


def test_the_best_of_a_metric_is_told_if_all_episodes_gave_it(spaces: Spaces) -> None:
    end = End()
    told = evaluator(end, spaces, None)
    for version, last in ((7, 0.5), (8, 0.75), (9, 0.25)):
        metrics = {"far": [last, last], "won": [1.0]}  # "won" is named by those that win
        told._report(blob(spaces, version), Scores([1.0, 2.0], [5, 5], metrics), 1.0)
    assert (end.stats["metric.far"], end.stats["metric.won"]) == (0.25, 1.0)
    assert (end.stats["best.metric.far"], end.stats["best_version.metric.far"]) == (0.75, 8.0)
    assert "best.metric.won" not in end.stats
    assert (end.stats["best"], end.stats["best_version"]) == (1.5, 9.0)


@pytest.mark.parametrize(("version", "steps"), [(7, None), (0, 0)])
def test_steps_that_nobody_knows_are_left_out(
    tmp_path: Path, spaces: Spaces, version: int, steps: int | None
) -> None:
    evaluated(End(), spaces, tmp_path, version, said=False)
    (found,) = lines(tmp_path)
    assert found.get("trained_steps", None) == steps
    assert ("trained_steps" in found) == (steps is not None)


def evaluated(end: End, spaces: Spaces, out: Path | None, version: int, **facts: Any) -> None:
    async def main() -> None:
        end.tell(blob=blob(spaces, version, likes=2), over="done", **facts)
        await evaluator(end, spaces, out).run()

    asyncio.run(main())


def test_times_go_on_where_the_run_before_ended(tmp_path: Path, spaces: Spaces) -> None:
    """(the clock, what the line says); the second process starts with its clock at 0, the third
    one's clock is that of a run that went on."""
    for clock, expected in [(100.0, 100.0), (3.0, 103.0), (150.0, 150.0)]:
        evaluated(End(), spaces, tmp_path, 1, time=clock)
        assert lines(tmp_path)[-1]["t"] == expected
    keep = EvaluationResults(tmp_path, RUN, spaces)
    # On a busy machine the learner's word of its clock comes late: that is no other run.
    assert [keep.moment(clock) for clock in (1.0, 2.5, 0.5)] == [151.0, 152.5, 152.5]
    assert [keep.moment(clock) for clock in (30.0, 0.5, 1.0)] == [180.0, 180.5, 181.0]


def test_a_score_is_said_with_two_digits(
    spaces: Spaces, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(Pay, "wage", 1 / 3)
    evaluated(End(), spaces, None, 7)
    assert "version 7: return 3.33 (3.33 to 3.33), 6 episodes in" in caplog.text


def test_it_says_once_that_no_broker_answers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(launch_evaluator, "_PATIENCE_S", 0.01)
    caplog.set_level("INFO")

    class Alone(End):
        run: dict[str, Any] | None = None
        link = SimpleNamespace(endpoint="ipc:///nobody")

    async def main() -> dict[str, Any]:
        end = Alone()
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            task = group.create_task(launch_evaluator._shared(cast(EvaluatorEnd, end)))
            await until(lambda: caplog.messages)
            await asyncio.sleep(0.05)
            end.tell(run={"env": {}})
        return task.result()

    assert asyncio.run(main()) == {"env": {}}
    assert caplog.messages == ["no broker answers at ipc:///nobody yet"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"episodes": 0}, "--episodes 0: it must be "),
        ({"every_s": -1.0}, "--every-s -1.0: it must be "),
        ({"every_s": math.inf}, "--every-s inf: it must be "),
    ],
)
def test_wrong_options_are_refused_before_it_connects(
    given: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = PeerOptions("ipc:///nobody", "", sets=given)
    assert launch_evaluator.evaluate(options, out=None) == 2
    (said,) = caplog.messages
    assert said.startswith(words)


def test_the_last_weights_are_waited_for_and_played_once(tmp_path: Path, spaces: Spaces) -> None:
    async def main() -> End:
        end = End()
        end.tell(blob=blob(spaces, 1))
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            group.create_task(evaluator(end, spaces, tmp_path).run())
            await until(lambda: (tmp_path / "evaluations.jsonl").exists())
            end.tell(fetching=True, over="done")
            await turns()
            end.tell(fetching=False, blob=blob(spaces, 2, likes=1))
        return end

    assert asyncio.run(main()).acted == [1, 2]
    assert [entry["version"] for entry in lines(tmp_path)] == [1, 2]
    assert [entry["mean"] for entry in lines(tmp_path)] == [0.0, 5.0]


@pytest.mark.slow
def test_at_the_end_older_weights_are_left_for_the_last(tmp_path: Path, spaces: Spaces) -> None:
    async def main() -> None:
        end = End()
        Pay.gate.clear()
        end.tell(blob=blob(spaces, 1))
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            group.create_task(evaluator(end, spaces, tmp_path).run())
            await until(lambda: end.acted)
            end.tell(blob=blob(spaces, 2), over="done")
            await turns()
            Pay.gate.set()

    asyncio.run(main())
    assert [entry["version"] for entry in lines(tmp_path)] == [2]


def test_the_end_of_the_run_does_not_wait_for_ever(
    tmp_path: Path, spaces: Spaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.launch.roles.evaluation.evaluation_loop.LAST_S", 0.05)
    monkeypatch.setattr("headrace.actors.evaluation_thread._STOP_S", 0.0)

    async def main() -> None:
        Pay.gate.clear()
        end = End()
        end.tell(blob=blob(spaces, 1), over="done")
        async with asyncio.timeout(120):
            await evaluator(end, spaces, tmp_path).run()
        Pay.gate.set()

    asyncio.run(main())
    assert not (tmp_path / "evaluations.jsonl").exists()


def test_an_episode_that_goes_on_and_on_costs_one_evaluation(
    tmp_path: Path, spaces: Spaces, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """The next version may take twice as long, so that long episodes are scored in the end."""
    monkeypatch.setattr("headrace.launch.roles.evaluation.evaluation_loop._LONGEST", 3)

    async def main() -> End:
        end = End()
        end.tell(blob=blob(spaces, 1))
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            group.create_task(evaluator(end, spaces, tmp_path).run())
            await until(lambda: "version 1 is not evaluated: an episode was not" in caplog.text)
            end.tell(blob=blob(spaces, 2), over="done")
        return end

    assert asyncio.run(main()).acted == [1, 2]
    assert [entry["version"] for entry in lines(tmp_path)] == [2]
    assert "after 3 steps" in caplog.text


def test_it_waits_between_evaluations(tmp_path: Path, spaces: Spaces) -> None:
    run = msgspec.structs.replace(
        RUN, evaluate=msgspec.structs.replace(RUN.evaluate, every_s=3600.0)
    )

    async def main() -> End:
        end = End()
        end.tell(blob=blob(spaces, 1))
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            group.create_task(evaluator(end, spaces, tmp_path, run).run())
            await until(lambda: (tmp_path / "evaluations.jsonl").exists())
            asked = end.asked
            for version in (2, 3):
                end.tell(blob=blob(spaces, version))
                await turns()
                assert (end.acted, end.asked) == ([1], asked)
            end.tell(over="done")
        return end

    assert asyncio.run(main()).acted == [1, 3]


def test_costly_evaluations_come_less_often(
    tmp_path: Path, spaces: Spaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 2 cores 3 %: 0.06 s in a second."""
    monkeypatch.setattr(runtime, "cores", lambda: 2)
    used = iter((10.0, 10.9, 10.9, 14.5))  # before and after each; 3.6 / 0.06 = 60 s
    monkeypatch.setattr("time.process_time", lambda: next(used))
    run = msgspec.structs.replace(RUN, evaluate=msgspec.structs.replace(RUN.evaluate, share=0.03))
    dues: list[float] = []

    async def next_weights(due: float) -> Blob | None:
        dues.append(due - began)
        return blob(spaces, len(dues)) if len(dues) < 3 else None

    async def main() -> None:
        one = evaluator(End(), spaces, tmp_path, run)
        monkeypatch.setattr(one, "_next_weights", next_weights)
        await one.run()

    began = time.monotonic()
    asyncio.run(main())
    first, second, third = dues
    assert first < 0  # at once
    assert 15.0 <= second < 35.0
    assert 60.0 <= third < 80.0


def test_what_fails_in_an_environment_costs_one_evaluation(
    tmp_path: Path, spaces: Spaces, caplog: Any
) -> None:
    async def main() -> None:
        Pay.broken = True
        end = End()
        end.tell(blob=blob(spaces, 1))
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            group.create_task(evaluator(end, spaces, tmp_path).run())
            await until(lambda: "out of order" in caplog.text)
            Pay.broken = False
            end.tell(blob=blob(spaces, 2), over="done")

    asyncio.run(main())
    assert [entry["version"] for entry in lines(tmp_path)] == [2]


def test_a_network_that_makes_no_numbers_is_not_evaluated(spaces: Spaces, caplog: Any) -> None:
    model = build(RUN.model, spaces, seed=0)
    model.policy_head.weight.data.fill_(3e38)
    sick = Blob.of(4, layout_digest(model), FlatWeights(model).dump())

    async def main() -> None:
        end = End()
        end.tell(blob=sick, over="done")
        await evaluator(end, spaces, None).run()

    asyncio.run(main())
    assert "version 4 is not evaluated" in caplog.text


# ---- the thread ---------------------------------------------------------------------------------


class Zero:
    version, memory, previous = 0, 0, False

    def act(self, obs: Any, *_: Any, **__: Any) -> Any:
        count = len(obs["obs"])
        return np.zeros(count, np.int64), np.zeros(count, np.float32), None


def test_an_environment_that_hangs_holds_up_nobody(
    spaces: Spaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.actors.evaluation_thread._STOP_S", 0.0)

    async def main() -> None:
        Pay.gate.clear()
        game = EvaluationThread(
            Zero(), RUN.env, spaces, RUN.evaluate, timeout_s=0.05, tell=lambda: None
        )
        game.start()
        with pytest.raises(EnvError, match=r"has not answered for 0.05 s.*actor.step_timeout_s"):
            async with asyncio.timeout(120):
                while True:
                    game.check()
                    await asyncio.sleep(0.001)
        assert not game.done
        game.stop()
        Pay.gate.set()
        await until(lambda: game.done)
        with pytest.raises(StoppedError):
            game.result()

    asyncio.run(main())


def test_the_loop_goes_on_while_a_thread_plays(spaces: Spaces) -> None:
    async def main() -> None:
        done = asyncio.Event()
        Pay.gate.clear()
        game = EvaluationThread(Zero(), RUN.env, spaces, RUN.evaluate, timeout_s=5.0, tell=done.set)
        game.start()
        await turns()
        assert not game.done
        Pay.gate.set()
        await asyncio.wait_for(done.wait(), 20.0)
        assert game.result().returns == [0.0] * 6

    asyncio.run(main())


# ---- metrics ------------------------------------------------------------------------------------


def test_metrics_show_the_last_evaluation() -> None:
    registry = CollectorRegistry()
    metrics = EvaluatorMetrics(registry)
    assert registry.get_sample_value("headrace_evaluator_version") == -1
    shown = {"mean": 4.0, "low": None, "high": 5.0, "version": 3, "episodes": 8, "seconds": 0.5}
    metrics.show(shown)
    values = {
        name: registry.get_sample_value(f"headrace_evaluator_{name}")
        for name in ("return_mean", "return_high", "version", "episodes", "seconds")
    }
    assert list(values.values()) == [4.0, 5.0, 3.0, 8.0, 0.5]
    low = registry.get_sample_value("headrace_evaluator_return_low")
    assert low is not None
    assert math.isnan(low)
    assert registry.get_sample_value("headrace_evaluator_evaluations_total") == 1
