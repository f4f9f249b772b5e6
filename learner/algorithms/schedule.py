"""Schedules: settings, such as the step size, that change in the course of a run."""

from itertools import pairwise

from headrace.learner.config import Schedule


def value_at(schedule: Schedule, steps: int) -> float:
    """Returns the schedule's value after `steps` trained steps."""
    if isinstance(schedule, int | float):
        return float(schedule)
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
    if not schedule:
        return "it is an empty list; give a number, or pairs of [trained steps, number]"
    steps = [step for step, _ in schedule]
    if any(later <= earlier for earlier, later in pairwise(steps)):
        return f"its steps are {steps}; they must rise from pair to pair"
    return ""
