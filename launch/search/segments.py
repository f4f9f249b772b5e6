"""The segments of a population's members: what each one begins with, and the proof that it trained
by that. Pure, but for the proof, which reads the segment's folder."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from optuna.trial import FrozenTrial, Trial

from headrace.launch.comparison import training
from headrace.launch.comparison.training import Training
from headrace.launch.config import starts
from headrace.launch.results import learning_curve
from headrace.launch.search import study
from headrace.launch.search.search import AS_IT_IS, Plan

_SHARE = 0.25  # of the members are the worst, and as many the best
_FACTORS = (0.8, 1.25)
# What a history says of the settings as they were used, by the same names.
_USED = ("learner.lr", "algorithm.entropy_coef", "algorithm.clip", "algorithm.kl_coef")


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
    # Once it is claimed:
    trial: Trial | None = None
    sets: tuple[str, ...] = ()  # what `params` are in the run
    training: Training | None = None

    @property
    def folder(self) -> str:
        return f"member-{self.member}/{self.number:03d}"


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
        as_it_is = own.user_attrs.get(AS_IT_IS, False)
        parent = own.user_attrs[study.FOLDER]
        return Segment(member, number, parent, own.params, as_it_is=as_it_is)
    better = ended[chance.choice(ranked[: min(share, len(ranked) - 1)])]
    params = explore(better.params, plan, chance)
    return Segment(member, number, better.user_attrs[study.FOLDER], params)


def of_trial(trial: FrozenTrial | Trial) -> Segment:
    """Returns the segment that a trial is."""
    held = trial.user_attrs
    as_it_is = held[AS_IT_IS]
    return Segment(held["member"], held["segment"], held["parent"], trial.params, as_it_is=as_it_is)


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
