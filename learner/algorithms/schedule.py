"""Schedules: settings, such as the step size, that change in the course of a run."""

import functools
import math
import re
from itertools import pairwise

from headrace.learner.config import Schedule
from headrace.learner.models import named_code
from headrace.learner.models.named_code import OwnCodeError

_function = functools.cache(named_code.function)


def value_at(schedule: Schedule, steps: int) -> float:
    """Returns the schedule's value after `steps` trained steps."""
    if isinstance(schedule, int | float):
        return float(schedule)
    if isinstance(schedule, str):
        return _own(schedule, steps)
    first, last = schedule[0], schedule[-1]
    if steps <= first[0]:
        return float(first[1])
    for (start, low), (end, high) in pairwise(schedule):
        if steps < end:
            return low + (high - low) * (steps - start) / (end - start)
    return float(last[1])


def schedule_fault(schedule: Schedule) -> str:
    """Returns what is wrong with this schedule; "" = nothing."""
    if isinstance(schedule, int | float):
        return ""
    if isinstance(schedule, str):
        named = re.fullmatch(r"[\w.]+:\w+", schedule)
        return "" if named else f"{schedule!r} is no number, no list of pairs, no module:function"
    if not schedule:
        return "it is an empty list; give a number, or pairs of [trained steps, number]"
    steps = [step for step, _ in schedule]
    if any(later <= earlier for earlier, later in pairwise(steps)):
        return f"its steps are {steps}; they must rise from pair to pair"
    return ""


def _own(name: str, steps: int) -> float:
    """Returns what the user's function gives; OwnCodeError where that is no number from 0 up."""
    function = _function("schedule", name)
    try:
        value = float(function(steps))
    except Exception as error:
        line = named_code.one_line(error)
        raise OwnCodeError(f'schedule "{name}" failed at {steps} steps, mend it: {line}') from error
    if not (math.isfinite(value) and value >= 0):
        raise OwnCodeError(f'schedule "{name}" gives {value} at {steps} steps; it must be >= 0')
    return value
