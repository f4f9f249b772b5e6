"""`headrace search`: trains a run with many settings, each trial an ordinary `headrace train`, and
keeps the best in OUT/best.toml. Optuna chooses the settings.

Started again on its folder it goes on; started on several machines that share the folder, all of
them work on one search.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from headrace.broker import durable
from headrace.launch.comparison import training
from headrace.launch.config import run_file
from headrace.launch.process import logs, runtime
from headrace.launch.search import metric as metrics
from headrace.launch.search import page, space, study
from headrace.launch.search.metric import Metric
from headrace.launch.search.space import Range
from headrace.launch.search.study import Study
from headrace.launch.search.trial import Outcome, SearchTrial
from headrace.launch.writing import writing

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.5
_STARTUP_TRIALS = 6  # at random, before anything is learnt from them
_MOST_FAILURES = 3  # in a row: then it is not chance
AS_IT_IS = "as it is"  # a trial of the run's own settings, wherever the ranges end
_MOST_ASKED = 100  # combinations in a row that no run can have


@dataclass(frozen=True, slots=True)
class Plan:
    """Holds what is searched, and how much of it."""

    run: str
    sets: tuple[str, ...]  # that hold for all trials
    ranges: Sequence[Range]
    metric: Metric
    seeds: Sequence[int]
    out: Path
    budget_s: float
    most_trials: int | None  # in all; None = as many as there is time for
    parallel: int

    def loaded(self, sets: Sequence[str] = ()) -> run_file.Run:
        """Returns the run with further settings."""
        return run_file.load(self.run, (*self.sets, *sets))

    def of(self) -> dict[str, object]:
        """Returns what all trials of one search share."""
        # In the place of the section, which says as much only where no option does.
        search = {"metric": self.metric.name, "seeds": list(self.seeds)}
        vary = {one.key: " ".join(one.ends) for one in self.ranges}
        return {**run_file.to_dict(self.loaded()), "search": search, "vary": vary}


def search(plan: Plan) -> int:
    """Searches until the time or the trials are over; returns the exit status."""
    logs.start("search")
    asked = runtime.StopRequested()
    sampler = optuna.samplers.TPESampler(n_startup_trials=_STARTUP_TRIALS, constant_liar=True)
    with study.opened(plan.out, plan.of(), less=plan.metric.less, sampler=sampler) as kept:
        if taken := kept.take_over(again=True):
            log.info("goes on with %d trials that a search left behind", taken)
        with kept.alone():
            if not kept.trials.get_trials(deepcopy=False):
                near = space.nearest(plan.ranges, plan.loaded())
                kept.trials.enqueue_trial(near, user_attrs={AS_IT_IS: True})
        with writing(f"into {plan.out}"):
            in_vain = _train(plan, kept, asked)
        page.write(plan.out, kept.ended(), plan.metric)
        told = _told(plan, kept.best())
    if asked:
        log.warning("stopped; the same command goes on")
        return runtime.LIMIT
    print(told)  # noqa: T201
    if in_vain:
        log.error("%d trials failed in a row: the last lines above say where to look", in_vain)
    return runtime.OUR_FAULT if in_vain else runtime.OK


def _train(plan: Plan, kept: Study, asked: runtime.StopRequested) -> int:
    """Trains trials, so many at a time, until the end; returns how many failed in a row, if that
    was the end."""
    deadline, failed = time.monotonic() + plan.budget_s, 0
    trains: list[SearchTrial] = []
    try:
        while not asked and failed < _MOST_FAILURES and time.monotonic() < deadline:
            while len(trains) < plan.parallel and (begun := _begin(plan, kept)):
                trains.append(begun)
                begun.start()
            if not trains:
                return 0
            time.sleep(_LOOK_EVERY_S)
            best = kept.best()
            for one in trains.copy():
                # A Ctrl-C reaches the trainings, too: their end is no outcome then.
                outcome = None if asked else one.look(None if best is None else best.value)
                if outcome is not None:
                    trains.remove(one)
                    _tell(plan, kept, one, outcome)
                    failed = failed + 1 if outcome.state is TrialState.FAIL else 0
    finally:
        training.end(one.training for one in trains)
    return failed if failed == _MOST_FAILURES else 0


def _more(plan: Plan, kept: Study) -> bool:
    """Tells whether there are trials left to begin."""
    if plan.most_trials is None:
        return True
    states = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
    return len(kept.trials.get_trials(deepcopy=False, states=states)) < plan.most_trials


def _begin(plan: Plan, kept: Study) -> SearchTrial | None:
    """Begins the next trial; None = there is none. A combination that no run can have is over at
    once; another comes."""
    for left in range(_MOST_ASKED, -1, -1):
        with kept.alone():
            if not _more(plan, kept):
                return None
            trial = kept.begin()
        sets = tuple(one.ask(trial) for one in plan.ranges)
        if trial.user_attrs.get(AS_IT_IS):
            sets = ()
        try:
            plan.loaded(sets)
        except run_file.ConfigError:
            kept.trials.tell(trial, state=TrialState.PRUNED)
            if not left:
                raise
            continue
        trial.set_user_attr("sets", sets)
        folder = plan.out / trial.user_attrs[study.FOLDER]
        every = (*plan.sets, *plan.metric.sets, *sets)
        log.info("trial %d trains with %s", trial.number, " ".join(sets) or "what the run has")
        return SearchTrial(trial, plan.run, every, plan.seeds, plan.metric, folder)
    raise AssertionError


def _tell(plan: Plan, kept: Study, one: SearchTrial, outcome: Outcome) -> None:
    """Keeps how a trial ended, and says it."""
    number = one.trial.number
    one.trial.set_user_attr("cost", one.cost)
    keep(plan, kept, one.trial, outcome.value, outcome.state)
    if outcome.value is None:
        (log.error if outcome.state is TrialState.FAIL else log.info)(
            "trial %d %s", number, outcome.why
        )
        return
    log.info("trial %d has %.6g%s", number, outcome.value, plan.metric.unit)


def keep(plan: Plan, kept: Study, trial: Trial, value: float | None, state: TrialState) -> None:
    """Keeps how a trial ended, and its run if it is the best."""
    with kept.alone():
        kept.trials.tell(trial, value, state=state)
        best = kept.best()
        if best is not None and best.number == trial.number:
            _write_best(plan, best)


def _write_best(plan: Plan, best: FrozenTrial) -> None:
    """Writes the best trial's run as a run file that ends as the given one does."""
    sets = best.user_attrs["sets"]
    value = f"{plan.metric.name} {best.value:.6g}{plan.metric.unit}"
    head = f"# The best of a search, {best.user_attrs[study.FOLDER]}: {value}, with\n" + "\n".join(
        f"#   {one}" for one in sets or (AS_IT_IS,)
    )
    durable.write(plan.out / "best.toml", run_file.effective(plan.loaded(sets), head=head))


def _told(plan: Plan, best: FrozenTrial | None) -> str:
    """Returns the last lines of a search."""
    shown = f"every trial: {plan.out / page.NAME}"
    if best is None:
        return f"no trial got there: no {plan.out / 'best.toml'}; {shown}"
    value = f"{plan.metric.name} {best.value:.6g}{plan.metric.unit}"
    train = f"headrace train {plan.out / 'best.toml'}"
    return f"best: trial {best.number}, {value}; train it: {train}\n{shown}"


def plan(
    run: str,
    *,
    sets: Sequence[str],
    vary: Sequence[str],
    metric: str | None,
    seeds: Sequence[int],
    out: Path | None,
    budget_s: float,
    most_trials: int | None,
    parallel: int | None,
    sections: Sequence[str] = (),
) -> Plan:
    """Returns what is searched: what is given, else what the run's section says; without either
    --vary what ships of these sections. ConfigError before anything starts."""
    given = run_file.load(run, sets)
    own = given.search
    return Plan(
        run=run,
        sets=tuple(sets),
        ranges=space.read(vary or own.vary, run, sets, sections=sections),
        metric=metrics.choose(metric or own.metric, given),
        seeds=seeds or own.seeds or [given.run.seed],
        out=out or Path("headrace-searches") / Path(run).stem,
        budget_s=budget_s,
        most_trials=most_trials,
        parallel=parallel or max(1, runtime.cores() // training.CORES),
    )
