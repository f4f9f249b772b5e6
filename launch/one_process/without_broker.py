"""Builds a learner's training with no broker, on the CPU."""

import time
from pathlib import Path

import torch
from msgspec import structs
from prometheus_client import CollectorRegistry

from headrace.actors.envs.registering import episode_limit
from headrace.launch.config import algorithm_defaults, shared_run
from headrace.launch.config.run_file import Run
from headrace.launch.one_process.lagged_source import LaggedSource
from headrace.launch.roles import learner_resume
from headrace.learner.algorithms import own_loss
from headrace.learner.algorithms.curriculum import Curriculum
from headrace.learner.metrics import LearnerMetrics
from headrace.learner.models.build import build, chosen_kind
from headrace.learner.progress import Progress
from headrace.learner.ranks import Ranks
from headrace.learner.train_parts import TrainParts


def parts(run: Run, source: LaggedSource, folder: Path, *, seed: int) -> TrainParts:
    """Returns the parts of a learner that begins a run and trains on what the source plays."""
    spaces = source.spaces
    own_loss.function(run.algorithm)  # a wrong name is said now
    model, target = (build(run.model, spaces, seed=seed) for _ in range(2))
    learner_resume.first_weights(model, run.learner, seed=seed)
    target.load_state_dict(model.state_dict())
    algorithm, config, _ = algorithm_defaults.settled(
        run,
        kind=chosen_kind(run.model, spaces),
        limit=episode_limit(run.env),
        numbers=spaces.action.numbers,
    )
    return TrainParts(
        algorithm=algorithm,
        config=structs.replace(config, compile=False),  # a debugger stops in its parts
        saving=run.checkpoint,
        goal=learner_resume.goal_of(run.stop),
        ranks=Ranks(timeout_s=1.0, cuda=False),
        feed=source,
        model=model,
        target=target if run.algorithm.name == "appo" else None,
        curriculum=Curriculum(run.env.curriculum, run.env.settings, model),
        gap=None,
        progress=Progress(
            run.env.metrics, episodes=run.log.episodes, population=run.env.population
        ),
        metrics=LearnerMetrics(CollectorRegistry()),
        device=torch.device("cpu"),
        folder=folder,
        spaces=spaces,
        previous=run.model.previous,
        identity={"shared": shared_run.shared(run), "spaces": spaces.digest()},
        resume=None,
        stopping=lambda: False,
        seed=seed,
        started=time.monotonic(),
    )
