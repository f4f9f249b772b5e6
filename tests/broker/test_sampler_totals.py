"""What the broker adds up from beats: never falls, never counts twice, keeps no invented names."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import Metric

from headrace.broker import histograms
from headrace.broker.histograms import Buckets, cumulative, histogram
from headrace.broker.sampler_figures import GROWING, SamplerTotals
from headrace.broker.server.sampler_metrics import summed


def beat(sampler_totals: SamplerTotals, inc: int, age_s: float = 1000.0, **stats: float) -> None:
    sampler_totals.add(inc, {"wall_s": 1.0, **stats}, here=8, age_s=age_s)


def test_samplers_are_added_up_and_one_that_leaves_takes_nothing_along() -> None:
    sampler_totals = SamplerTotals()
    beat(sampler_totals, 1, env_steps=100.0)
    beat(sampler_totals, 2, env_steps=40.0)
    beat(sampler_totals, 1, env_steps=130.0)
    assert sampler_totals.totals["env_steps"] == 170.0  # and nobody need say goodbye


def test_the_time_of_all_samplers_is_added_up() -> None:
    sampler_totals = SamplerTotals()
    for inc in (1, 2):
        beat(sampler_totals, inc, loop_env_s=0.5)
    assert sampler_totals.totals["wall_s"] == 2.0
    assert sampler_totals.totals["loop_env_s"] == 1.0


def test_one_that_comes_back_goes_on_where_it_was() -> None:
    sampler_totals = SamplerTotals()
    beat(sampler_totals, 1, env_steps=100.0)
    for other in range(2, 900):
        beat(sampler_totals, other, env_steps=1.0)
    beat(sampler_totals, 1, env_steps=110.0)
    assert sampler_totals.totals["env_steps"] == 110.0 + 898.0


def test_after_a_restart_of_the_broker_only_what_is_new_counts() -> None:
    sampler_totals = SamplerTotals()
    beat(sampler_totals, 1, age_s=0.5, env_steps=1e6)  # it ran for a second, and we for half of one
    assert sampler_totals.totals["env_steps"] == 0.0
    beat(sampler_totals, 1, age_s=1.5, env_steps=1e6 + 7)
    assert sampler_totals.totals["env_steps"] == 7.0


def test_what_falls_or_is_made_up_changes_nothing() -> None:
    sampler_totals = SamplerTotals()
    beat(sampler_totals, 1, env_steps=10.0)
    beat(sampler_totals, 1, env_steps=3.0, invented=5.0, episodes=1e200)
    assert sampler_totals.totals["env_steps"] == 10.0
    assert sampler_totals.totals["episodes"] == 0.0
    assert set(sampler_totals.totals) == {*GROWING, "wall_s", "loop_env_s"}


def test_who_is_long_gone_is_forgotten() -> None:
    sampler_totals = SamplerTotals()
    for inc in range(5000):
        beat(sampler_totals, inc, env_steps=1.0)
    assert len(sampler_totals._last) <= 8 + 1024
    assert sampler_totals.totals["env_steps"] == 5000.0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9))))
def test_the_sum_is_that_of_all_growth(moves: list[tuple[int, int]]) -> None:
    sampler_totals, own = SamplerTotals(), dict.fromkeys(range(4), 0)
    for inc, more in moves:
        own[inc] += more
        before = sampler_totals.totals["episodes"]
        beat(sampler_totals, inc, episodes=float(own[inc]))
        assert sampler_totals.totals["episodes"] >= before
    assert sampler_totals.totals["episodes"] == sum(own.values())


class One:
    """A sampler that is here."""

    def __init__(self, **stats: float) -> None:
        self.stats = stats


def values(families: list[Metric]) -> Mapping[tuple[str, str], float]:
    return {
        (sample.name, "".join(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


def test_the_metrics_of_all_samplers() -> None:
    sampler_totals, acks = SamplerTotals(), Buckets(histograms.ACK_S)
    for seconds in (0.001, 0.006, 0.006, 1e9):
        acks.add(seconds)
    beat(
        sampler_totals,
        1,
        env_steps=10.0,
        wait_env_s=2.5,
        out_trained=3.0,
        fail_step=1.0,
        raw_bytes=9.0,
    )
    beat(sampler_totals, 2, **acks.figures("ack"))
    here = [One(unacked=3.0, unaccounted=0.0), One(unacked=4.0)]
    found = values(list(summed(sampler_totals, here)))
    assert found["headrace_samplers_env_steps_total", ""] == 10.0
    assert found["headrace_samplers_wait_seconds_total", "env"] == 2.5
    assert found["headrace_samplers_wait_seconds_total", "credit"] == 0.0
    assert found["headrace_samplers_fragments_total", "trained"] == 3.0
    assert found["headrace_samplers_env_failures_total", "step"] == 1.0
    assert found["headrace_samplers_fragment_bytes_total", "raw"] == 9.0
    assert found["headrace_samplers_unacked_fragments", ""] == 7.0
    assert found["headrace_samplers_ack_seconds_bucket", "0.005"] == 1.0
    assert found["headrace_samplers_ack_seconds_bucket", "0.01"] == 3.0
    assert found["headrace_samplers_ack_seconds_bucket", "+Inf"] == 4.0
    assert found["headrace_samplers_ack_seconds_count", ""] == 4.0


def test_a_value_at_an_edge_belongs_to_it() -> None:
    counted = Buckets([1.0, 2.0])
    for value in (1.0, 1.5, 2.0, 3.0):
        counted.add(value)
    assert cumulative(counted.edges, counted.counts) == [("1.0", 1), ("2.0", 3), ("+Inf", 4)]
    assert counted.total == 7.5
    found = values([histogram("h", "words", counted)])
    assert found["h_bucket", "2.0"] == 3.0
    assert found["h_sum", ""] == 7.5
