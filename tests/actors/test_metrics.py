"""The sampler's metrics and the figures of its beats come from one table."""

import zmq
from prometheus_client import CollectorRegistry

from headrace.actors.metrics import SamplerMetrics
from headrace.broker.journal.journal import Journal
from headrace.broker.peers.sampler import SamplerEnd
from headrace.broker.sampler_figures import GROWING, METRICS

# These fall, too, or are for the sampler's own benchmark.
ALONE = {"wall_s", "replies_s", "unacked", "unaccounted"}


def test_every_figure_is_in_the_table() -> None:
    metrics = SamplerMetrics(CollectorRegistry())
    metrics.acted(4, 0.5)
    metrics.replied(4, 0.5)
    metrics.waited("credit", 1.0)
    metrics.failed("step")
    metrics.steps.add(0.001)
    with zmq.Context() as context:
        end = SamplerEnd(
            "tcp://127.0.0.1:1", name="", inc=1, context=context, journal=Journal(None, "")
        )
        end.acks.add(0.01)
        end.bytes_sent = 1
        metrics.watch(end)
        said = end.say()
        context.destroy(linger=0)
    assert said["calls"] == 2 and said["wait_credit_s"] == 1.0 and said["fail_step"] == 1.0
    assert said["ack_1"] == said["step_5"] == said["bytes"] == 1.0
    assert "episodes" not in said  # zeros are not sent
    assert said.keys() <= {*GROWING, *ALONE}


def test_metrics_are_whole_before_there_is_a_broker() -> None:
    registry = CollectorRegistry()
    SamplerMetrics(registry)
    shown = {family.name for family in registry.collect()}
    assert {f"headrace_actor_{metric.metric}" for metric in METRICS} <= shown
    assert registry.get_sample_value("headrace_actor_wait_seconds_total", {"phase": "env"}) == 0.0
