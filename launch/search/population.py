"""`headrace search --population`: runs side by side, whose settings change as they go.

After every segment of so many steps a member that is among the worst goes on from the checkpoint of
one of the best, with that one's settings changed a little. Each segment is a trial of the search,
with the settings and the checkpoint that it began with; the folder of each is a run of its own.
"""

import logging
import math
import random
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from optuna.trial import FrozenTrial, Trial, TrialState

from headrace.launch.comparison import training
from headrace.launch.comparison.training import Training
from headrace.launch.config import run_file, starts
from headrace.launch.local import branch
from headrace.launch.process import folder_lock, logs, runtime
from headrace.launch.results import learning_curve
from headrace.launch.search import page, study
from headrace.launch.search.search import AS_IT_IS, Plan
from headrace.launch.search.study import Study

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.5
_SHARE = 0.25  # of the members are the worst, and as many the best
_FACTORS = (0.8, 1.25)
_MOST_FAILURES = 3  # in a row
# What a history says of the settings as they were used, by the same names.
_USED = ("learner.lr", "algorithm.entropy_coef", "algorithm.clip", "algorithm.kl_coef")
SECTIONS = ("learner", "algorithm")  # whose settings a run may change as it goes


class NotAppliedError(RuntimeError):
    """Says that a segment did not train by the settings that it was given."""


@dataclass(slots=True)
class Segment:
    """Holds one member's training from one checkpoint to the next."""

    member: int
    number: int  # of the member's segments, from 0
    parent: str  # the folder that it goes on from, within OUT; "" = it begins
    params: Mapping[str, float | str]
    as_it_is: bool = False  # the run's own settings, of which `params` are what is nearest
    trial: Trial | None = None
    training: Training | None = None

    @property
    def folder(self) -> str:
        return f"member-{self.member}/{self.number:03d}"


def search(plan: Plan, *, members: int, every: int) -> int:
    """Trains the population until the time or the run's steps are over; returns the exit status."""
    _check(plan, members)
    logs.start("search")
    branch.log.setLevel(logging.WARNING)  # the page says where each segment goes on from
    asked = runtime.StopRequested()
    of = {**plan.of(), "population": {"members": members, "every": every}}
    with (
        folder_lock.lock_folder(plan.out, "population"),
        study.opened(plan.out, of, less=False, sampler=None) as kept,
    ):
        kept.take_over(again=False)
        try:
            failed = _Population(plan, kept, members, every).train(asked)
        except OSError as error:
            raise run_file.ConfigError(f"cannot write into {plan.out}: {error.strerror}") from error
        page.write(plan.out, kept.ended(), plan.metric)
        best = kept.best()
    if asked:
        log.warning("stopped; the same command goes on")
        return runtime.LIMIT
    if best is not None:
        place = plan.out / best.user_attrs[study.FOLDER]
        print(f"best: {plan.metric.name} {best.value:.6g}; play it: headrace play {place}")  # noqa: T201
    print(f"every segment: {plan.out / page.NAME}")  # noqa: T201
    return runtime.OUR_FAULT if failed else runtime.OK


def decide(
    segment: tuple[int, int], ended: Mapping[int, FrozenTrial], plan: Plan, members: int
) -> Segment:
    """Returns a member's next segment: where it begins, and with what. `ended`: the segments before
    it, of those members that have trained it. Pure, and the same for the same figures."""
    member, number = segment
    chance = random.Random(f"{plan.loaded().run.seed}-{member}-{number}")
    if member not in ended:
        return Segment(member, number, "", _first(plan, member, chance), as_it_is=member == 0)
    ranked = sorted(ended, key=lambda one: (-_value(ended[one]), one))
    share = max(1, math.floor(_SHARE * members))
    own = ended[member]
    if member not in ranked[-share:] or len(ranked) < 2:
        return _onwards(member, number, own.user_attrs[study.FOLDER], own)
    better = ended[chance.choice(ranked[: min(share, len(ranked) - 1)])]
    params = explore(better.params, plan, chance)
    return Segment(member, number, better.user_attrs[study.FOLDER], params)


def _onwards(member: int, number: int, parent: str, held: FrozenTrial) -> Segment:
    """Returns a segment with the settings of another one."""
    as_it_is = held.user_attrs.get(AS_IT_IS, False)
    return Segment(member, number, parent, held.params, as_it_is=as_it_is)


def explore(
    params: Mapping[str, float | str], plan: Plan, chance: random.Random
) -> dict[str, float | str]:
    """Returns the settings changed a little: numbers by a factor, choices to a neighbour."""
    found: dict[str, float | str] = {}
    for one in plan.ranges:
        value = params[one.key]
        if one.choices:
            at = one.choices.index(str(value)) + chance.choice((-1, 1))
            found[one.key] = one.choices[min(max(at, 0), len(one.choices) - 1)]
            continue
        moved = min(max(float(value) * chance.choice(_FACTORS), one.low), one.high)
        found[one.key] = round(moved) if one.whole else moved
    return found


def prove_applied(folder: Path, sets: Sequence[str]) -> None:
    """Raises NotAppliedError where a segment trained by other settings than it was given: what its
    folder holds, and what its history says that it used."""
    kept = starts.load_kept(folder)
    given = starts.load_kept(folder, sets)
    if difference := training.difference(folder, given):
        raise NotAppliedError(
            f"{folder}: {difference.place} was {difference.there}, not {difference.here}"
        )
    used = learning_curve.last(folder / "history.jsonl", "lr")
    wanted = training.settings(kept, _USED)
    if kept.algorithm.kl_target:  # it goes its own way from there
        del wanted["algorithm.kl_coef"]
    for key, value in wanted.items():
        name = key.partition(".")[2]
        there = used.get(name)
        if there is None or not isinstance(value, float):  # a schedule
            continue
        if not math.isclose(there, value, rel_tol=1e-5):  # a history keeps six digits
            raise NotAppliedError(f"{folder}: {name} was {there:g}, not {value:g}")


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


def _first(plan: Plan, member: int, chance: random.Random) -> dict[str, float | str]:
    """Returns what a member begins with: the first has the run's own settings."""
    found: dict[str, float | str] = {}
    own = training.settings(plan.loaded(), [one.key for one in plan.ranges])
    for one in plan.ranges:
        nearest = one.nearest(own[one.key])
        if member == 0 and nearest is not None:
            found[one.key] = nearest
        elif one.choices:
            found[one.key] = chance.choice(one.choices)
        else:
            low, high = (math.log(end) if one.log else end for end in (one.low, one.high))
            value = chance.uniform(low, high)
            value = math.exp(value) if one.log else value
            found[one.key] = round(value) if one.whole else min(max(value, one.low), one.high)
    return found


def _value(trial: FrozenTrial) -> float:
    return -math.inf if trial.value is None else trial.value


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
                while len(self._trains) < self._plan.parallel and (due := self._due()):
                    self._start(due)
                if not self._trains:
                    return False
                time.sleep(_LOOK_EVERY_S)
                for segment in self._trains.copy():
                    if not asked and segment.training and segment.training.ended:
                        self._trains.remove(segment)
                        failed = 0 if self._tell(segment) else failed + 1
        finally:
            training.end(one.training for one in self._trains if one.training)
        return failed == _MOST_FAILURES

    def _due(self) -> Segment | None:
        """Returns the segment that is to be trained next; None = there is none now."""
        ended = self._kept.ended()
        done = [
            {t.user_attrs["member"]: t for t in ended if t.user_attrs["segment"] == number}
            for number in range(self._segments)
        ]
        trains = {one.member for one in self._trains}
        for number, there in enumerate(done):
            for member in range(self._members):
                if member in trains or _trained(there.get(member)):
                    continue
                if member in there:  # it was cut off, or failed: it goes on as it began
                    held = there[member]
                    return _onwards(member, number, held.user_attrs["parent"], held)
                before = done[number - 1] if number else {}
                compared = {m: trial for m, trial in before.items() if _trained(trial)}
                return decide((member, number), compared, self._plan, self._members)
        return None

    def _sets(self, segment: Segment) -> tuple[str, ...]:
        plan = self._plan
        steps = min((segment.number + 1) * self._every, plan.metric.steps)
        seed = plan.seeds[0] + segment.member
        varied = () if segment.as_it_is else plan.ranges
        own = (f"{one.key}={one.text(segment.params[one.key])}" for one in varied)
        return (*plan.metric.sets, f"stop.steps={steps}", f"run.seed={seed}", *own)

    def _start(self, segment: Segment) -> None:
        plan, out = self._plan, self._plan.out / segment.folder
        self._kept.trials.enqueue_trial(
            dict(segment.params),
            user_attrs={
                study.FOLDER: segment.folder,
                "member": segment.member,
                "segment": segment.number,
                "parent": segment.parent,
                AS_IT_IS: segment.as_it_is,
                "sets": self._sets(segment),
            },
        )
        segment.trial = self._kept.begin()
        for one in plan.ranges:
            one.ask(segment.trial)
        if not segment.parent:
            segment.training = Training(plan.run, (*plan.sets, *self._sets(segment)), out)
        else:
            if not starts.has_checkpoints(out):
                shutil.rmtree(out, ignore_errors=True)  # of a branch that was cut off
                branch.branch(
                    plan.out / segment.parent, out, version=None, sets=self._sets(segment)
                )
            segment.training = Training(str(out / starts.RUN), (), out)
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
            prove_applied(out, self._sets(segment))
        except (NotAppliedError, run_file.ConfigError) as error:
            log.error("%s failed: %s; see %s", segment.folder, error, segment.training.log)
            value = None
            state = TrialState.FAIL
        else:
            state = self._state(segment, value)
        segment.trial.set_user_attr("cost", self._plan.metric.cost(out))
        self._kept.trials.tell(segment.trial, value, state=state)
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
