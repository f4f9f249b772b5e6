"""A learner's metrics: each number under a name that says its unit."""

import time

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headrace.launch.web import http
from headrace.learner.metrics import LearnerMetrics
from headrace.learner.progress import Progress

STATS = {
    "policy_loss": -0.5,
    "value_loss": 0.25,
    "entropy": 0.7,
    "kl": 0.01,
    "target_kl": 0.02,
    "rho_mean": 1.1,
    "clip_fraction": 0.1,
    "drift_fraction": 0.2,
    "explained_variance": 0.9,
    "grad_norm": 3.0,
    "lr": 0.001,
}


def test_numbers_of_different_units_are_different_metrics() -> None:
    registry = http.registry("learner")
    LearnerMetrics(registry).show(Progress(), STATS, {}, {}, time.time())
    text = generate_latest(registry).decode()
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    expected = {
        ("headrace_learner_loss", "policy"): -0.5,
        ("headrace_learner_loss", "value"): 0.25,
        ("headrace_learner_entropy_nats",): 0.7,
        ("headrace_learner_kl_nats", "behaviour"): 0.01,
        ("headrace_learner_kl_nats", "target"): 0.02,
        ("headrace_learner_importance_ratio",): 1.1,
        ("headrace_learner_step_share", "clipped"): 0.1,
        ("headrace_learner_step_share", "drifted"): 0.2,
        ("headrace_learner_explained_variance",): 0.9,
        ("headrace_learner_grad_norm",): 3.0,
        ("headrace_learner_lr",): 0.001,
    }
    assert {key: found[key] for key in expected} == expected
    assert {key for key in found if key[0] == "headrace_learner_loss"} == {
        ("headrace_learner_loss", "policy"),
        ("headrace_learner_loss", "value"),
    }


def test_no_counter_has_a_series_with_the_time_when_it_was_made() -> None:
    registry = http.registry("learner")
    LearnerMetrics(registry)
    assert "_created" not in generate_latest(registry).decode()
