"""Says what a line between machines of samplers and the broker asks for and carries. Pure.

The formulas are those of docs/deploy/far-away.md.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.broker.ledger.pacing import AHEAD
from headrace.launch.config.run_file import ConfigError, Run
from headrace.launch.plan import choose_mix
from headrace.launch.plan.choose_mix import Choice
from headrace.launch.plan.costs import Costs


@dataclass(frozen=True, slots=True)
class Line:
    """Describes the line of each machine that plays."""

    round_trip_s: float = 0.0
    mbit_s: float = 0.0  # 0 = as much as is asked for

    def places(self, streams: int, unroll_s: float) -> int:
        """Returns the unrolls that must be allowed under way so that no stream waits for credit."""
        return math.ceil(round(streams * (1 + 2 * self.round_trip_s / unroll_s), 9))

    def used(self, bytes_s: float) -> float:
        """Returns the share of the line that so many bytes a second take."""
        return bytes_s / (125_000 * self.mbit_s) if self.mbit_s else 0.0


def unroll_s(run: Run, costs: Costs) -> float:
    """Returns the seconds of an unroll on a full machine: a sampler's groups take turns."""
    steps = run.unroll.length * run.unroll.envs
    return run.actor.groups * steps * costs.sampler_s / costs.busy


def check(line: Line, costs: Costs) -> None:
    """Raises ConfigError where what the line carries cannot be told."""
    if line.mbit_s and not costs.step_bytes:
        raise ConfigError("--line needs costs that say step_bytes, the bytes of a step on the line")


def words(line: Line, run: Run, costs: Costs, choice: Choice, batch: int) -> Iterator[str]:
    """Yields what the line does to this choice, whose versions have `batch` unrolls."""
    if line == Line():
        return
    takes_s, trip_ms = unroll_s(run, costs), 1000 * line.round_trip_s
    yield (
        f"line        a round trip of {trip_ms:,.3g} ms to unrolls of {1000 * takes_s:,.3g} ms:"
        f" {line.places(1000, takes_s) / 1000:.2f} places for each stream"
    )
    if line.round_trip_s > (AHEAD - 1) * takes_s:
        least = math.ceil(run.unroll.length * line.round_trip_s / (AHEAD - 1) / takes_s)
        yield (
            f"            a stream has {AHEAD} unrolls under way at most: unroll.length={least} or"
            " more keeps it playing"
        )
    if line.mbit_s:
        yield from _carried(line, run, costs, choice, batch)


def _carried(line: Line, run: Run, costs: Costs, choice: Choice, batch: int) -> Iterator[str]:
    played = choice.per_s / max(1, choose_mix.samplers(choice, costs))  # by one sampler
    version_s = batch * run.unroll.length * run.unroll.envs / choice.per_s
    weights = line.used(costs.weights_bytes / version_s)
    for machine in choice.mix:
        if samplers := choose_mix.samplers_on(machine, choice, costs):
            unrolls = line.used(samplers * played * costs.step_bytes)
            yield (
                f"            of {line.mbit_s:,.6g} Mbit/s at each {machine.name} unrolls use"
                f" {unrolls:.0%} up, whole versions of the weights {weights:.0%} down"
            )
            if unrolls > 1:
                yield f"            it carries {1 / unrolls:.0%} of what {machine.name} plays"
    if weights > 1:
        yield (
            '            versions come as what changed, or seldomer: model.wire="bfloat16", or a'
            " larger pacing.batch_unrolls"
        )
