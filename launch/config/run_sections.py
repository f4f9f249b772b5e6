"""A whole run: its sections, each beside the code that obeys it, save those that belong to no role;
and what sections cannot be together."""

from typing import Annotated

from msgspec import Meta, Struct, field

from headrace.actors.config import (
    PICKS,
    ActorConfig,
    EnvConfig,
    EvaluateConfig,
    LeagueConfig,
    names_code,
)
from headrace.broker.config import BrokerConfig, PacingConfig, SecurityConfig
from headrace.broker.errors import UserError
from headrace.learner.algorithms.schedule import schedule_fault
from headrace.learner.checkpoints.config import CheckpointConfig
from headrace.learner.config import AlgorithmConfig, ModelConfig, Schedule, UnrollConfig
from headrace.learner.learner_config import LearnerConfig


class RunSection(Struct, frozen=True, forbid_unknown_fields=True):
    """Holds the run's name, and the seed of its randomness."""

    name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z",
            max_length=64,
            description="names the run's folder, and the run on the wire",
        ),
    ] = "run"
    seed: Annotated[
        int, Meta(ge=0, lt=2**31, description="networks, environments and actions start from it")
    ] = 1


class StopSection(Struct, frozen=True, forbid_unknown_fields=True):
    """Ends the run: by success, or by whichever limit comes first."""

    return_: Annotated[
        float | None, Meta(description="solved: the mean return that is wanted, by stop.metric")
    ] = field(default=None, name="return")
    steps: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="limit on agent steps trained on")
    ] = None
    seconds: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="limit on seconds at work, over all starts"),
    ] = None
    metric: Annotated[
        str,
        Meta(
            description="what stop.return is compared with. training: the mean return of the latest"
            " training episodes, 100 or more; evaluation: of an evaluation of evaluate.episodes or"
            " more; NAME, one of env.metrics: its mean over the latest training episodes;"
            " evaluation.NAME: over the episodes of such an evaluation"
        ),
    ] = "training"

    @property
    def evaluated(self) -> str:
        """Returns what of an evaluation must reach the goal: "mean", its mean return, or
        "metric.NAME"; "" = training must."""
        goal, _, name = self.metric.partition(".")
        return "" if goal != "evaluation" else f"metric.{name}" if name else "mean"


# Or module:class, the user's own callbacks.
Sink = Annotated[str, Meta(pattern=r"^(tensorboard|wandb|mlflow|trackio|csv|parquet|[\w.]+:\w+)\Z")]


class LogSection(Struct, frozen=True, forbid_unknown_fields=True):
    """Says where else people look at the run."""

    sinks: Annotated[
        tuple[Sink, ...],
        Meta(
            description="headrace train starts a headrace log for each: tensorboard, wandb, mlflow,"
            " trackio, csv, parquet, every one has its extra; module:class: your callbacks"
        ),
    ] = ()
    episodes: Annotated[
        int,
        Meta(
            ge=0,
            le=1000,
            description="training episodes that are told one by one, in episodes.jsonl and to"
            " on_episode: at most so many, the latest, for each line of history.jsonl; 0 = none",
        ),
    ] = 0


class SearchSection(Struct, frozen=True, forbid_unknown_fields=True):
    """Says what headrace search does where its options say nothing; training does not read it."""

    vary: Annotated[
        tuple[str, ...],
        Meta(
            description="KEY, KEY=LOW..HIGH or KEY=A,B each, as --vary; empty: what ships for the"
            " run"
        ),
    ] = ()
    metric: Annotated[str, Meta(description="what trials are compared by, as --metric")] = (
        "evaluation"
    )
    seeds: Annotated[
        tuple[Annotated[int, Meta(ge=0, lt=2**31)], ...],
        Meta(description="of each trial, as --seeds; empty: the run's own"),
    ] = ()


AUTO_SCHEDULES = ("learner.lr", "algorithm.entropy_coef")  # which may be "auto"
SCHEDULES = (*AUTO_SCHEDULES, "algorithm.clip")


def fault_of_schedule(place: str, schedule: Schedule) -> str:
    """Returns what is wrong with the schedule of this key; "" = nothing."""
    return "" if place in AUTO_SCHEDULES and schedule == "auto" else schedule_fault(schedule)


class ConfigError(UserError, ValueError):
    """Says that a run, or what was said with it, is wrong."""


class Run(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Holds the whole run. A process hands each of its parts only that part's own section."""

    run: RunSection = field(default_factory=RunSection)
    env: EnvConfig = field(default_factory=EnvConfig)
    unroll: UnrollConfig = field(default_factory=UnrollConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    pacing: PacingConfig = field(default_factory=PacingConfig)
    broker: BrokerConfig = field(default_factory=BrokerConfig)
    security: SecurityConfig = field(default_factory=SecurityConfig)
    actor: ActorConfig = field(default_factory=ActorConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    league: LeagueConfig = field(default_factory=LeagueConfig)
    stop: StopSection = field(default_factory=StopSection)
    log: LogSection = field(default_factory=LogSection)
    search: SearchSection = field(default_factory=SearchSection)


def check(run: Run) -> None:
    """Refuses what each section allows on its own but can never work together."""
    if run.pacing.max_lag_hard <= run.pacing.max_lag:
        raise ConfigError(
            f"pacing.max_lag_hard is {run.pacing.max_lag_hard}; it must be above pacing.max_lag,"
            f" {run.pacing.max_lag}, or ordinary unrolls would be settled as stale"
        )
    for place, named in (
        ("evaluate.against", run.evaluate.against),
        ("env.curriculum", run.env.curriculum),
    ):
        if named and run.env.agents:
            raise ConfigError(
                f"{place} needs a policy that plays all agents; env.agents names only"
                f" {', '.join(run.env.agents)}"
            )
    for place, given in (
        ("env.agents", bool(run.env.agents)),
        ("league.share", run.league.share),
        ("evaluate.against", run.evaluate.against),
        ("learner.optimiser", run.learner.optimiser != "adam"),
    ):
        if given and run.env.population:
            raise ConfigError(
                f"{place} is set beside env.population, whose policies play alone, by adam; leave"
                " one of them out"
            )
    if run.env.others and not run.env.agents:
        raise ConfigError("env.others says who plays the other agents; name its own in env.agents")
    if run.league.pick not in PICKS and not names_code(run.league.pick):
        raise ConfigError(
            f"league.pick is {run.league.pick!r}; it is {', '.join(PICKS)} or module:function"
        )
    if run.broker.lease_s <= run.broker.beat_s:
        raise ConfigError(
            f"broker.lease_s is {run.broker.lease_s}; it must be above broker.beat_s,"
            f" {run.broker.beat_s}, or a healthy peer would be taken for dead between two beats"
        )
    _check_shards(run)
    if run.stop.evaluated and run.stop.return_ is None:
        raise ConfigError(
            f'stop.metric is "{run.stop.metric}", and stop.return is not set: no evaluation would'
            " end the run; set stop.return, or leave stop.metric out"
        )
    _check_metrics(run)
    if run.env.curriculum and not run.env.settings:
        raise ConfigError(
            "env.curriculum changes env.settings, and there are none: name the attributes there"
        )
    for place in SCHEDULES:
        section, _, key = place.partition(".")
        if fault := fault_of_schedule(place, getattr(getattr(run, section), key)):
            raise ConfigError(f"{place}: {fault}")
    if isinstance(run.learner.lr, tuple) and max(lr for _, lr in run.learner.lr) > 10:
        raise ConfigError("learner.lr: a number in its list is above 10; each must be <= 10")
    if run.algorithm.name == "ppo" and run.algorithm.normalise_advantages == "running":
        raise ConfigError(
            'algorithm.normalise_advantages = "running" is for impala and appo; ppo normalises over'
            " its whole batch: true, or false"
        )
    if run.algorithm.kl_target and not run.algorithm.kl_coef:
        raise ConfigError(
            "algorithm.kl_target adapts algorithm.kl_coef, which is 0; set it to 1.0 to begin with"
        )
    copied = run.algorithm.target_interval == 1 and run.algorithm.target_rate == 1
    if run.algorithm.name == "appo" and run.algorithm.kl_target and copied:
        raise ConfigError(
            "algorithm.kl_target: KL to a target network that was just copied is 0; raise"
            " algorithm.target_interval"
        )
    steps = run.unroll.length * run.unroll.envs * run.pacing.batch_unrolls
    columns = run.unroll.envs * run.pacing.batch_unrolls
    parts, unit = (columns, "columns") if run.model.memory else (steps, "steps")
    asked = run.algorithm.minibatches
    if run.algorithm.name == "ppo" and asked != "auto" and asked > parts:
        raise ConfigError(
            f"algorithm.minibatches is {asked}, a batch has {parts} {unit};"
            " lower it, or raise pacing.batch_unrolls"
        )


def _check_shards(run: Run) -> None:
    """Refuses what needs one broker where a run has several."""
    shards = run.broker.shards
    if shards == 1:
        return
    unfit = {
        "pacing.max_lag is 0, and a step in lock-step is played for by one broker": (
            not run.pacing.max_lag
        ),
        f"pacing.batch_unrolls is {run.pacing.batch_unrolls}, less than one for each": (
            run.pacing.batch_unrolls < shards
        ),
        "broker.announce names one address; leave it out": bool(run.broker.announce),
    }
    for reason in (reason for reason, true in unfit.items() if true):
        raise ConfigError(f"broker.shards is {shards}: {reason}")


_GOALS = ("training", "evaluation")


def _check_metrics(run: Run) -> None:
    """Refuses a goal that nothing tells of, and names that would stand for two things."""
    names, goal = run.env.metrics, run.stop.metric
    for name in names:
        if name.partition(".")[0] in _GOALS or names.count(name) > 1:
            why = "stands there twice" if names.count(name) > 1 else "means a return in stop.metric"
            raise ConfigError(f"env.metrics: {name!r} {why}; name each entry of info once")
        whole, _, end = name.rpartition(".")
        if whole in names and end in ("mean", "min", "max", "count", "last"):
            raise ConfigError(
                f"env.metrics: {name!r} would be taken for the {end} of {whole!r}; rename one of"
                " them in the environment"
            )
    if goal not in (*_GOALS, *names) and goal.removeprefix("evaluation.") not in names:
        raise ConfigError(
            f"stop.metric = {goal!r} is neither training nor evaluation, nor one of env.metrics,"
            f" which has {[*names]}, nor evaluation.NAME of one"
        )
    if goal in names and run.stop.return_ is None:
        raise ConfigError(
            f"stop.metric is {goal!r}, and stop.return is not set: set it to the mean of"
            f" {goal!r} that is wanted"
        )
