"""/metrics and /healthz of every role, and what they say against the journals."""

import json
import re
import urllib.error
import urllib.request

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from headrace.broker.journal import trace_reader
from headrace.broker.journal.audit import Account
from tests.system.conftest import Place, Process, until

FROM_THE_CLIENT = ("process_", "python_")


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def port_of(process: Process) -> int:
    return int(process.says(r"metrics at port (\d+)")[1])


def scrape(port: int) -> dict[str, Metric]:
    status, text = get(port, "/metrics")
    assert status == 200
    return {family.name: family for family in text_string_to_metric_families(text)}


def by(family: Metric, label: str) -> dict[str, float]:
    return {
        sample.labels[label]: sample.value for sample in family.samples if label in sample.labels
    }


def value(family: Metric) -> float:
    (sample,) = family.samples
    return float(sample.value)


def test_every_role_tells_what_it_does(place: Place) -> None:
    traced = ("--metrics-port", "0", "--set", "unroll.trace_every=5")
    broker, learner = place.broker(*traced), place.learner(*traced)
    actor = place.actor("--metrics-port", "0")
    ports = {"broker": port_of(broker), "learner": port_of(learner), "actor": port_of(actor)}
    place.trains(50)
    for role, port in ports.items():
        assert get(port, "/healthz") == (200, "ok\n")
        assert get(port, "/elsewhere")[0] == 404
        families = scrape(port)
        ours = {name for name in families if not name.startswith(FROM_THE_CLIENT)}
        known: tuple[str, ...] = (f"headrace_{role}_", "headrace_build", "headrace_run")
        known += ("headrace_samplers_",) if role == "broker" else ()
        assert all(name.startswith(known) for name in ours), ours
        assert all(families[name].documentation for name in ours)
        assert "process_cpu_seconds" in families
        assert value(families[f"headrace_{role}_ledger_unaccounted"]) == 0

    # Everything that stands in a journal by now, a later scrape must have counted.
    trained = place.trained()

    def told() -> bool:  # its DONE may be on the way
        outcomes = by(scrape(ports["broker"])["headrace_broker_fragments"], "outcome")
        return outcomes["trained"] >= trained

    until(told, "the broker counts what was trained")
    counted = scrape(ports["broker"])
    assert by(counted["headrace_broker_sessions"], "role")["learner"] == 1
    assert by(counted["headrace_broker_sessions"], "role")["actor"] == 1

    # The sampler stops and drains; then all three agree to the last unroll.
    samples = scrape(ports["learner"])
    assert value(samples["headrace_learner_samples"]) > 0
    until(lambda: beaten(ports["broker"]), "the sampler's figures come with its beat")
    ready = counted["headrace_broker_weights_ready_seconds"].samples
    assert any(sample.name.endswith("_count") and sample.value > 0 for sample in ready)
    assert actor.term() == 0
    account, broker_counts, learned = until(
        lambda: agreed(place, ports["broker"], ports["learner"]),
        "the broker's counters to follow the journals",
    )
    held = value(learned["headrace_learner_held_fragments"])
    ends = by(broker_counts["headrace_broker_fragments"], "outcome")
    assert ends["trained"] == account.outcomes["trained"]
    assert ends["abandoned"] + held == account.outcomes["abandoned"]
    assert value(broker_counts["headrace_broker_received"]) == account.generated
    assert 2 * value(learned["headrace_learner_steps"]) == account.outcomes["trained"]
    ends = by(learned["headrace_learner_fragments"], "outcome")
    assert ends["trained"] == account.outcomes["trained"]
    delivered = value(learned["headrace_learner_delivered_fragments"])
    assert delivered == ends["trained"] + ends["rejected"] + ends["abandoned"] + held
    assert (ends["rejected"], ends["duplicate"]) == (0, 0)
    # The page shows the ways of the unrolls that were sampled: those that the ledgers trace.
    status = json.loads(get(ports["broker"], "/status.json")[1])
    ways = {way["name"]: way["unrolls"] for way in status["ways"]}
    assert ways == {way.name: way.unrolls for way in trace_reader.read(place.ledger).ways()}
    assert len(ways) == 7
    # A dozen of the latest may not be trained, or their weights not be acted with; each of the two
    # streams begins with a sampled one.
    assert account.generated / 5 - 5 < ways["whole"] <= ways["played"] < account.generated / 5 + 2
    assert learner.term() == 0
    assert broker.term() == 0


def beaten(port: int) -> bool:
    families = scrape(port)
    trained = by(families["headrace_samplers_fragments"], "outcome")["trained"]
    return value(families["headrace_samplers_env_steps"]) > 0 and trained > 0


def agreed(
    place: Place, broker: int, learner: int
) -> tuple[Account, dict[str, Metric], dict[str, Metric]] | None:
    """What was in flight when the sampler ended may still be trained. What the learner holds for a
    batch that never fills has been given up by the sampler, and not yet by the broker."""
    account, families, learned = place.account(), scrape(broker), scrape(learner)
    outcomes = by(families["headrace_broker_fragments"], "outcome")
    ended = sum(count for name, count in outcomes.items() if name != "duplicate")
    ended += value(learned["headrace_learner_held_fragments"])
    settled = account.generated - account.in_flight
    return (account, families, learned) if ended == settled else None


def test_the_samplers_counters_follow_its_journal(place: Place) -> None:
    broker, learner = place.broker(), place.learner("--set", "pacing.max_lag=2")
    actor = place.actor("--metrics-port", "0")
    port = port_of(actor)
    place.trains(50)
    assert learner.term() == 0  # without a learner credit ends, and the sampler stands still

    def still() -> dict[str, Metric] | None:
        families = scrape(port)
        generated = value(families["headrace_actor_generated_fragments"])
        return families if generated == place.account().generated else None

    families = until(still, "the sampler's counters")
    account = place.account()
    assert value(families["headrace_actor_env_steps"]) == account.env_steps
    outcomes = by(families["headrace_actor_fragments"], "outcome")
    unacked = value(families["headrace_actor_unacked_fragments"])
    assert value(families["headrace_actor_ledger_unaccounted"]) == 0
    assert account.generated == sum(outcomes.values()) + unacked
    assert value(families["headrace_actor_weights_version"]) > 0
    stages = by(families["headrace_actor_fragment_bytes"], "stage")
    assert stages["raw"] == account.generated * (9 * 4 * 16 + 8 * 4 * (8 + 4 + 4 + 1))
    assert stages["raw"] < stages["wire"] < 1.5 * stages["raw"]
    assert actor.term() == 0
    assert broker.term() == 0


def test_a_sampler_without_a_broker_is_not_healthy(place: Place) -> None:
    port = port_of(place.actor("--metrics-port", "0"))
    status, text = get(port, "/healthz")
    assert status == 503
    assert re.search("broker", text)
