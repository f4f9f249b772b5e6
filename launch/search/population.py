"""`headrace search --population`: runs side by side, whose settings change as they go.

After every segment of so many steps a member that is among the worst goes on from the checkpoint of
one of the best, with that one's settings changed a little. Each segment is a trial of the search,
with the settings and the checkpoint that it began with; the folder of each is a run of its own.
Several machines that share the folder train one population: each trains what no other does.
"""

import logging
import math
import shutil
import time

from optuna.trial import FrozenTrial, TrialState

from headrace.launch.comparison import training
from headrace.launch.comparison.training import Training
from headrace.launch.config import run_file, starts
from headrace.launch.local import branch
from headrace.launch.process import logs, runtime
from headrace.launch.search import page, segments, study
from headrace.launch.search.search import AS_IT_IS, Plan, keep
from headrace.launch.search.segments import Segment
from headrace.launch.search.study import Study
from headrace.launch.writing import writing

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.5
_MOST_FAILURES = 3  # in a row
SECTIONS = ("learner", "algorithm")  # whose settings a run may change as it goes


def search(plan: Plan, *, members: int, every: int) -> int:
    """Trains the population until the time or the run's steps are over; returns the exit status."""
    _check(plan, members)
    logs.start("search")
    branch.log.setLevel(logging.WARNING)  # the page says where each segment goes on from
    asked = runtime.StopRequested()
    of = {**plan.of(), "population": {"members": members, "every": every}}
    with study.opened(plan.out, of, less=False, sampler=None) as kept:
        with writing(f"into {plan.out}"):
            failed = _Population(plan, kept, members, every).train(asked)
        page.write(plan.out, kept.ended(), plan.metric)
        best = kept.best()
    if asked:
        log.warning("stopped; the same command goes on")
        return runtime.LIMIT
    if best is not None:
        place, file = plan.out / best.user_attrs[study.FOLDER], plan.out / "best.toml"
        told = f"best: {plan.metric.name} {best.value:.6g}; play it: headrace play {place}"
        print(f"{told}\ntrain by its settings: headrace train {file}")  # noqa: T201
    print(f"every segment: {plan.out / page.NAME}")  # noqa: T201
    return runtime.OUR_FAULT if failed else runtime.OK


def _check(plan: Plan, members: int) -> None:
    """Raises ConfigError where a population cannot have what was asked for."""
    if plan.metric.less:
        raise run_file.ConfigError(
            f"--metric {plan.metric.name} is of whole runs; a population has evaluation, return"
        )
    if members < 2:
        raise run_file.ConfigError("--population: it takes two members to compare")
    if len(plan.seeds) > 1:
        raise run_file.ConfigError("--seeds: each member of a population has a seed of its own")
    fixed = [one.key for one in plan.ranges if one.key.partition(".")[0] not in SECTIONS]
    if fixed:
        raise run_file.ConfigError(
            f"--vary {fixed[0]}: as a run goes on, [{'] and ['.join(SECTIONS)}] may change"
        )
    if plan.most_trials is not None:
        raise run_file.ConfigError("--trials: a population ends by stop.steps, or by --budget")


def _trained(trial: FrozenTrial | None) -> bool:
    return trial is not None and trial.state is not TrialState.FAIL


class _Population:
    """Trains the members, a segment at a time, the one that is furthest behind first."""

    def __init__(self, plan: Plan, kept: Study, members: int, every: int) -> None:
        self._plan, self._kept = plan, kept
        self._members, self._every = members, every
        # stop.steps may not be a multiple: the last segment is the shorter one.
        self._segments = math.ceil(plan.metric.steps / every)
        self._trains: list[Segment] = []

    def train(self, asked: runtime.StopRequested) -> bool:
        """Trains until the end; tells whether something failed for good."""
        deadline, failed = time.monotonic() + self._plan.budget_s, 0
        try:
            while not asked and failed < _MOST_FAILURES and time.monotonic() < deadline:
                while len(self._trains) < self._plan.parallel and (claimed := self._claim()):
                    self._start(claimed)
                if not self._trains and self._over():
                    return False
                time.sleep(_LOOK_EVERY_S)
                for segment in self._trains.copy():
                    if not asked and segment.training and segment.training.ended:
                        self._trains.remove(segment)
                        failed = 0 if self._tell(segment) else failed + 1
        finally:
            training.end(one.training for one in self._trains if one.training)
        return failed == _MOST_FAILURES

    def _claim(self) -> Segment | None:
        """Begins the segment that is to be trained next; None = there is none now."""
        kept, ranges = self._kept, self._plan.ranges
        with kept.alone():
            kept.take_over(again=True)
            if not kept.waits():
                due = self._due()
                if due is None:
                    return None
                kept.trials.enqueue_trial(
                    dict(due.params),
                    user_attrs={
                        study.FOLDER: due.folder,
                        "member": due.member,
                        "segment": due.number,
                        "parent": due.parent,
                        AS_IT_IS: due.as_it_is,
                    },
                )
            trial = kept.begin()
        sets = [one.ask(trial) for one in ranges]
        claimed = segments.of_trial(trial)
        claimed.trial, claimed.sets = trial, () if claimed.as_it_is else tuple(sets)
        trial.set_user_attr("sets", claimed.sets)
        return claimed

    def _over(self) -> bool:
        """Tells whether every member is at its end."""
        return all(_trained(self._done()[-1].get(member)) for member in range(self._members))

    def _done(self) -> list[dict[int, FrozenTrial]]:
        """Returns what has ended, by number and member."""
        ended = self._kept.ended()
        return [
            {t.user_attrs["member"]: t for t in ended if t.user_attrs["segment"] == number}
            for number in range(self._segments)
        ]

    def _due(self) -> Segment | None:
        """Returns the segment that is to be trained next and that no search trains; None = there is
        none now."""
        done = self._done()
        trains = {trial.user_attrs["member"] for trial in self._kept.running()}
        for number, there in enumerate(done):
            for member in range(self._members):
                if member in trains or _trained(there.get(member)):
                    continue
                if member in there:  # it failed: it goes on as it began
                    return segments.of_trial(there[member])
                before = done[number - 1] if number else {}
                compared = {m: trial for m, trial in before.items() if _trained(trial)}
                return segments.decide((member, number), compared, self._plan, self._members)
        return None

    def _sets(self, segment: Segment) -> tuple[str, ...]:
        plan = self._plan
        steps = min((segment.number + 1) * self._every, plan.metric.steps)
        seed = plan.seeds[0] + segment.member
        return (*plan.metric.sets, f"stop.steps={steps}", f"run.seed={seed}", *segment.sets)

    def _start(self, segment: Segment) -> None:
        plan, out = self._plan, self._plan.out / segment.folder
        evaluate = plan.metric.evaluates
        if not segment.parent:
            sets = (*plan.sets, *self._sets(segment))
            segment.training = Training(plan.run, sets, out, evaluate=evaluate)
        else:
            if not starts.has_checkpoints(out):
                shutil.rmtree(out, ignore_errors=True)  # of a branch that was cut off
                branch.branch(
                    plan.out / segment.parent, out, version=None, sets=self._sets(segment)
                )
            segment.training = Training(str(out / starts.RUN), (), out, evaluate=evaluate)
        self._trains.append(segment)
        segment.training.start()
        origin = f" from {segment.parent}" if segment.parent else ""
        log.info("%s trains%s", segment.folder, origin)

    def _tell(self, segment: Segment) -> bool:
        """Keeps how a segment ended; tells whether it did."""
        assert segment.trial is not None and segment.training is not None
        out = self._plan.out / segment.folder
        value = self._plan.metric.value(out)
        try:
            segments.prove_applied(out, self._sets(segment))
        except (segments.NotAppliedError, run_file.ConfigError) as error:
            log.error("%s failed: %s; see %s", segment.folder, error, segment.training.log)
            value = None
            state = TrialState.FAIL
        else:
            state = self._state(segment, value)
        segment.trial.set_user_attr("cost", self._plan.metric.cost(out))
        keep(self._plan, self._kept, segment.trial, value, state)
        return state is not TrialState.FAIL

    def _state(self, segment: Segment, value: float | None) -> TrialState:
        """Says how a segment ended. A short one may have no score yet: its member is among the
        worst then, and goes on."""
        assert segment.training is not None
        if value is not None:
            log.info("%s has %.6g", segment.folder, value)
            return TrialState.COMPLETE
        if self._plan.metric.too_early(segment.training.out):
            log.warning("%s has no %s yet", segment.folder, self._plan.metric.name)
            return TrialState.PRUNED
        log.error("%s failed; see %s", segment.folder, segment.training.log)
        return TrialState.FAIL
