"""Tests that a settled unroll stands in the journal before the ledger's decisions are sent."""

from pathlib import Path

from headrace.broker.journal.journal import Journal
from headrace.broker.ledger.ledger import Ledger
from headrace.broker.ledger.state import LedgerState
from headrace.broker.protocol.hello_payload import HelloPayload
from headrace.broker.protocol.messages import Hello, Outcome, Unroll


def test_it_writes_what_ended_once_a_pump(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "broker-9.log")
    state = LedgerState(
        batch=2,
        max_lag=3,
        max_lag_hard=8,
        queue_bytes=1000,
        attempts=3,
        first_tag=50,
        journal=journal,
    )
    ledger = Ledger(state, lease_s=5.0)
    ledger.actor_hello(7, "a", [(0, 0, 0, 0, ()), (1, 0, 0, 0, ())], now=0.0)
    ledger.learner_hello(Hello("learner", "l", 3), HelloPayload(want=9), now=0.0)
    ledger.decide(0.0)
    for stream in range(2):
        for seq in range(3):
            ledger.unroll(Unroll(7, stream, seq, 0, 0, 0, 8, 1), (b"x" * 300,), 300)

    def lines() -> list[str]:
        return (tmp_path / "broker-9.log").read_text().splitlines()

    assert lines() == ["W 8"]  # three found no room, but nobody was told yet
    effects = ledger.decide(0.0)
    assert lines() == ["W 8", "B 7 1 0 3 shed"]
    assert (7, Outcome.SHED, ((1, 0, 3),)) in effects.acks
    tags = [entry.tag for entry in effects.deliver]
    ledger.done(3, [(min(tags), min(tags) + 2)])
    ledger.nack(3, [(max(tags), max(tags) + 1)], Outcome.REJECTED)
    ledger.decide(0.0)
    assert sorted(lines()[2:]) == ["B 7 0 0 2 trained", "B 7 0 2 3 rejected"]
    ledger.decide(0.0)
    assert len(lines()) == 4
    assert sum(state.outcomes.values()) == 6
    journal.close()
