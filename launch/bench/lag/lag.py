"""Training at a forced lag: the area under the learning curve, lag by lag.

`pacing.max_lag` only bounds the lag, and on one machine it is mostly smaller. Here each batch is
played by weights exactly so many versions old, by the real sampler, and trained on by the real
train loop, in one process and one thread.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from headrace.launch.bench import output
from headrace.launch.bench.lag.curve_area import compare
from headrace.launch.config import run_file
from headrace.launch.local.child_plans import actor_seed
from headrace.launch.one_process import without_broker
from headrace.launch.one_process.lagged_source import LaggedSource, Score
from headrace.learner.checkpoints.config import CheckpointConfig
from headrace.learner.train import train
from headrace.learner.train_parts import Goal, to_end

_LAGS = (0, 2, 4, 8, 16, 32)
_SEEDS = 20


def bench(names: Sequence[str], sets: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Measures `headrace bench lag RUN [SEEDS [LAG ..]]`, each run for stop.steps."""
    run, numbers = _asked(names, sets)
    seeds, lags = numbers[0] if numbers else _SEEDS, tuple(numbers[1:]) or _LAGS
    assert run.stop.steps is not None
    output.parameters(
        run=run.run.name,
        env=run.env.id,
        algorithm=run.algorithm.name,
        steps=run.stop.steps,
        seeds=seeds,
        lags=list(lags),
        sets=" ".join(sets),
    )
    runs: dict[int, list[list[Score]]] = {}
    for lag in lags:
        runs[lag] = [scores_of(run, lag=lag, seed=run.run.seed + n) for n in range(seeds)]
        output.parameters(**compare(runs, steps=run.stop.steps)[-1])
    figures = compare(runs, steps=run.stop.steps)
    output.result("lag", {"run": run.run.name, "seeds": seeds, "lags": figures})
    return figures


def scores_of(run: run_file.Run, *, lag: int, seed: int) -> list[Score]:
    """Trains once; returns the episodes that ended until the weights that act were trained on
    stop.steps steps."""
    torch.set_num_threads(1)
    source = LaggedSource(run, lag=lag, seed=actor_seed(seed, 0))
    wanted = run.stop.steps or 0
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        parts = without_broker.parts(run, source, Path(folder), seed=seed)
        parts.goal, parts.saving = Goal(None, None, None), CheckpointConfig(every_s=1e9)
        parts.config = msgspec.structs.replace(run.learner, progress_s=0.0)
        parts.stopping = lambda: source.acted >= wanted
        source.serve(lambda: to_end(train(parts)))
    return source.scores


def _asked(names: Sequence[str], sets: Sequence[str]) -> tuple[run_file.Run, list[int]]:
    usage = "headrace bench lag RUN [SEEDS [LAG ..]]"
    if not names:
        shipped = ", ".join(run_file.shipped())
        raise run_file.ConfigError(f"{usage}: name the run, one of {shipped}, or a file")
    wrong = [word for word in names[1:] if not word.isdecimal() or int(word) > 1000]
    if wrong or names[1:2] == ["0"]:
        raise run_file.ConfigError(
            f"{usage}: {wrong[0] if wrong else '0 seeds'}: a number of seeds from 1, and lags from"
            " 0, at most 1000 each"
        )
    run = run_file.load(names[0], sets)
    if run.stop.steps is None:
        raise run_file.ConfigError(f"{usage}: say how long a run is: --set stop.steps=50000")
    return run, [int(word) for word in names[1:]]
