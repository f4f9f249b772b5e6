"""The learner's side of metrics: refused where they lie, added up where they do not."""

import math
from typing import Any

import numpy as np
import pytest
import xxhash

from headrace.broker.peers.objections import OBJECTIONS, Objection
from headrace.learner.batches.batch import Batch
from headrace.learner.batches.env_metrics import EnvMetrics
from headrace.learner.batches.unroll_ends import EpisodeEnds, StepSums, UnrollMetrics
from headrace.learner.mean_return import LAST as WANTED
from headrace.learner.progress import Progress
from headrace.learner.spaces import (
    ENDED,
    FIGURES,
    LAST,
    LEAST,
    MEAN,
    MOST,
    STEPS,
    Leaf,
    Spaces,
    discrete,
    unroll_fields,
)
from tests.learner.unrolls import message

T, G = 4, 2
SPACES = Spaces((Leaf("obs", "<f4", (1,)),), discrete(2), ("won", "far"))


def metrics(**cells: float) -> Any:
    """As of an environment that won in its only episode, beside one that never ended any."""
    array = np.zeros((1, G, 2, len(FIGURES)))
    array[0, 0, 0] = (2.0, 1.0, 3.0, 0.5, 0.0, 1.0)  # in the order of FIGURES
    array[0, 0, 1, ENDED] = 1.0
    for name, value in cells.items():
        array[0, 0, 0, ("ended", "last", "steps", "mean", "least", "most").index(name)] = value
    return array


def placed(batch: Batch, array: Any) -> Objection | None:
    buffers = [bytes(field.nbytes) for field in unroll_fields(SPACES, length=T, envs=G)]
    buffers[-1] = array.tobytes()
    digest = xxhash.xxh3_64_intdigest(b"".join(buffers))
    return batch.place(message(len(batch.keys), steps=T * G, digest=digest), buffers)


def test_they_come_out_of_a_batch_as_they_went_in() -> None:
    assert (ENDED, LAST, STEPS, MEAN, LEAST, MOST) == (0, 1, 2, 3, 4, 5)
    batch = Batch(SPACES, length=T, envs=G, unrolls=2, pinned=False)
    assert placed(batch, metrics()) is None
    assert placed(batch, np.zeros_like(metrics())) is None
    nothing = StepSums(0.0, 0.0, 0.0, 0.0)
    assert [end.metrics for end in batch.ends] == [
        UnrollMetrics(((0, (1.0, None)),), (StepSums(3.0, 1.5, 0.0, 1.0), nothing)),
        UnrollMetrics((), (nothing, nothing)),
    ]


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"last": math.nan}, "not finite"),
        ({"mean": math.inf}, "not finite"),
        ({"most": -1e16}, "too large"),
        ({"ended": 3.0}, "half ended"),
        ({"ended": 0.5}, "half ended"),
        ({"ended": 0.0}, "half ended"),  # and its other metric says that it did
        ({"steps": T + 1}, "number of steps"),
        ({"steps": -1}, "number of steps"),
        ({"steps": 0.5}, "number of steps"),
    ],
)
def test_what_no_sampler_says_is_refused_and_counted(cells: dict[str, float], words: str) -> None:
    batch = Batch(SPACES, length=T, envs=G, unrolls=1, pinned=False)
    objection = placed(batch, metrics(**cells))
    assert objection is not None and words in objection.words
    assert objection.reason == "metrics" and objection.reason in OBJECTIONS
    assert batch.room == 1


def ends(at: int, *lasts: float | None, steps: int = 1) -> EpisodeEnds:
    """One episode of each of two environments, and what their steps gave."""
    told = UnrollMetrics(
        tuple((column, (last,)) for column, last in enumerate(lasts)),
        (StepSums(steps, 2.0 * steps, float(at), 10.0 + at),),
    )
    return EpisodeEnds(1, 0, 2, T, tuple((column, 0.0, 7) for column in range(2)), told)


def test_of_steps_until_they_were_shown() -> None:
    own = EnvMetrics(["won"])
    told = (ends(1, 0.25, 0.5), ends(0, 0.75, None, steps=3))
    own.add_steps([e.metrics for e in told if e.metrics is not None])
    assert own.steps() == {
        "metric.won.mean": 2.0,
        "metric.won.min": 0.0,
        "metric.won.max": 11.0,
        "metric.won.count": 4.0,
        "metric.won.last": 0.75,
    }
    assert own.steps() == {}


def test_the_last_value_is_that_of_the_latest_episode_which_had_one() -> None:
    own = EnvMetrics(["won"])
    for lasts in ((0.25, 0.5), (None, None), ()):
        own.add_steps([one] if (one := ends(1, *lasts).metrics) is not None else [])
    assert own.steps()["metric.won.last"] == 0.5


def test_of_episodes_each_environment_weighs_the_same() -> None:
    own = EnvMetrics(["won", "far"])
    own.look([[(1.0, None), (1.0, 3.0), (1.0, None)], [(0.0, None)]], whole=True)
    assert own.means == {"won": 0.5, "far": 3.0}
    assert own.whole == {"won"}  # an episode without the other one


def run(progress: Progress, unrolls: int, *lasts: float | None) -> None:
    for _ in range(unrolls):
        progress.version += 1
        progress.add_episodes(2, [ends(progress.version, *lasts)])


def test_a_goal_needs_as_many_episodes_as_the_mean_return() -> None:
    progress = Progress(["won"])
    run(progress, WANTED // 2 - 1, 1.0, 1.0)
    assert progress.mean_of("won") == 1.0 and not progress.reached(0.9, "won")
    run(progress, 1, 1.0, 1.0)
    assert progress.reached(0.9, "won") and not progress.reached(1.1, "won")
    assert not progress.reached(0.9)  # the mean return is 0
    assert progress.score.mean_length == 7.0


def test_episodes_that_say_nothing_do_not_reach_a_goal() -> None:
    """An environment that names only its successes would succeed always."""
    progress = Progress(["won"])
    run(progress, 2 * WANTED, 1.0, None)
    assert progress.mean_of("won") == 1.0 and not progress.reached(0.9, "won")


def test_a_name_that_never_comes_is_said_once() -> None:
    progress = Progress(["won"])
    nothing = UnrollMetrics(((0, (None,)), (1, (None,))), (StepSums(0, 0, 0, 0),))
    for version in range(WANTED // 2):
        progress.add_episodes(2, [ends(version)._replace(metrics=nothing)])
    assert "'won'" in progress.news()
    assert not progress.news()
