"""Checks what a line asks of pacing, and what it carries."""

import pytest

from headrace.launch.config import run_file
from headrace.launch.config.run_file import ConfigError
from headrace.launch.plan import choose_mix, far_line
from headrace.launch.plan.choose_mix import Choice
from headrace.launch.plan.costs import Costs
from headrace.launch.plan.far_line import Line
from headrace.launch.plan.machines import Machine

BOX = Machine("box", vcpus=8, memory_gib=0.0, gpu="", gpus=0, price=1.0)
COSTS = Costs(sampler_s=1e-3, learner_s=1e-4, broker_s=1e-6, step_bytes=100.0, weights_bytes=1e6)
# 2 groups that take turns, 10 steps of 1 ms each: 20 ms an unroll.
RUN = run_file.load(
    "cartpole", ["unroll.length=10", "unroll.envs=1", "actor.groups=2", "pacing.batch_unrolls=8"]
)


def chosen(costs: Costs = COSTS) -> Choice:
    return choose_mix.choose(costs, [BOX], 6000.0)


def said(line: Line, costs: Costs = COSTS) -> str:
    return "\n".join(far_line.words(line, RUN, costs, chosen(costs), batch=8))


@pytest.mark.parametrize(
    ("streams", "round_trip_s", "unroll_s", "places"),
    [(16, 0.0, 0.2, 16), (16, 0.1, 0.2, 32), (16, 0.5, 0.2, 96), (3, 0.01, 0.1, 4)],
)
def test_a_stream_needs_two_round_trips_more(
    streams: int, round_trip_s: float, unroll_s: float, places: int
) -> None:
    """The formula of the page about samplers far away: N (1 + 2 R / d)."""
    assert Line(round_trip_s).places(streams, unroll_s) == places


def test_an_unroll_takes_its_steps_and_those_of_the_other_groups() -> None:
    assert far_line.unroll_s(RUN, COSTS) == pytest.approx(0.02)


def test_no_line_no_words() -> None:
    assert not said(Line())


def test_a_round_trip_is_told_in_places() -> None:
    assert said(Line(0.01)).endswith(
        "a round trip of 10 ms to unrolls of 20 ms: 2.00 places for each stream"
    )


def test_an_unroll_too_short_for_the_round_trip_is_told_how_long() -> None:
    """100 ms and four under way: 34 ms at least, which are 17 steps; so it then says no more."""
    assert "unroll.length=17 or more keeps it playing" in said(Line(0.1))
    longer = run_file.load("cartpole", ["unroll.length=17", "unroll.envs=1", "actor.groups=2"])
    found = "\n".join(far_line.words(Line(0.1), longer, COSTS, chosen(), batch=8))
    assert "unroll.length" not in found


def test_what_a_line_carries_is_a_share_of_it() -> None:
    """Its 8 cores play 7,000 steps a second of 100 bytes: 6 Mbit; and 90 versions of 1 MB."""
    found = said(Line(mbit_s=100))
    share = chosen().per_s * 100 / 12.5e6
    assert f"of 100 Mbit/s at each box unrolls use {share:.0%} up, whole versions" in found
    assert 'model.wire="bfloat16"' in found
    assert "it carries" not in found
    assert "it carries 20% of what box plays" in said(Line(mbit_s=100), _heavy())


def _heavy() -> Costs:
    """Costs by which the samplers fill the line five times."""
    per_s = chosen().per_s
    return Costs(sampler_s=1e-3, learner_s=1e-4, broker_s=1e-6, step_bytes=5 * 12.5e6 / per_s)


def test_a_line_needs_the_bytes_of_a_step() -> None:
    unknown = Costs(sampler_s=1e-3, learner_s=1e-4, broker_s=1e-6)
    with pytest.raises(ConfigError, match="--line needs costs that say step_bytes"):
        far_line.check(Line(mbit_s=20), unknown)
    far_line.check(Line(0.1), unknown)
