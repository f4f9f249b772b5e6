"""A sampler whose unrolls cannot be used is thrown out; one that is unlucky now and then is not."""

import random

import pytest

from headrace.broker.ledger.ledger import Ledger
from headrace.broker.protocol import messages
from headrace.broker.protocol.messages import Outcome, Refusal, ranges
from tests.broker.ledger.accounts import Sampler, join, ready, recount, send, step
from tests.broker.liars.talk import A, Broker, L


def judged(one: Ledger, sampler: Sampler, *, bad: bool, blame: str = "reward") -> list[str]:
    """One unroll of it goes to the learner, and back; returns who is thrown out."""
    sampler.hear(one.decide(0.0))
    send(one, sampler, version=one.state.credit.version)
    effects = one.decide(0.0)
    (entry,) = effects.deliver
    if bad:
        one.nack(50, ranges([entry.tag]), Outcome.REJECTED, blame)
    else:
        step(one, 50, [entry.tag], one.state.credit.version + 1)
    effects = one.decide(0.0)
    sampler.hear(effects)
    recount(one)
    return [actor.name for actor in effects.expelled]


def test_one_that_sends_nothing_else_is_out_after_twenty() -> None:
    one, sampler = ready(batch=1)
    for _ in range(19):
        assert judged(one, sampler, bad=True) == []
    assert judged(one, sampler, bad=True) == ["a1"]
    assert one.state.outcomes[Outcome.REJECTED] == 20
    assert not one.heard(1, 0.0)  # its next word meets RESYNC, and its HELLO a refusal
    assert one.state.credit.running == 0  # its credit returns
    assert "because: reward; mend it" in one.state.actors[1].expelled


def test_long_honesty_is_no_licence() -> None:
    one, sampler = ready(batch=1)
    for _ in range(500):
        judged(one, sampler, bad=False)
    assert [judged(one, sampler, bad=True) for _ in range(20)] == [[]] * 19 + [["a1"]]


@pytest.mark.parametrize("seed", range(5))
def test_one_in_five_is_bad_luck(seed: int) -> None:
    one, sampler = ready(batch=1)
    rng = random.Random(seed)
    for _ in range(1000):
        assert judged(one, sampler, bad=rng.random() < 0.2) == []


def test_what_is_nobodys_fault_is_not_counted() -> None:
    one, sampler = ready(batch=1)
    for _ in range(100):
        assert judged(one, sampler, bad=True, blame="") == []


def test_others_go_on_and_what_is_here_of_it_is_judged_one_by_one() -> None:
    one, liar = ready(batch=4, max_lag=8)
    other = join(one, inc=2)
    for _ in range(19):
        for sampler in (liar, other):
            judged(one, sampler, bad=sampler is liar)
    effects = one.decide(0.0)
    for sampler in (liar, other):
        sampler.hear(effects)
    for _ in range(2):
        send(one, liar)
    first, second = (entry.tag for entry in one.decide(0.0).deliver)
    one.nack(50, ranges([first]), Outcome.REJECTED, "reward")
    assert [actor.name for actor in one.decide(0.0).expelled] == ["a1"]
    one.nack(50, ranges([second]), Outcome.REJECTED, "reward")
    assert one.decide(0.0).expelled == []  # it is said once
    assert one.state.outcomes[Outcome.REJECTED] == 21
    assert judged(one, other, bad=False) == []
    assert one.unaccounted() == 0
    recount(one)


def test_it_is_told_why_and_does_not_come_in_again(honest: Broker) -> None:
    honest.state.actors[1].judged = (1 << 19) - 1
    (tag, *_) = honest.tags()
    honest.hears(L, messages.Nack(50, ((tag, tag + 1),), Outcome.REJECTED, "reward\nERROR", True))
    (refusal,) = honest.told(messages.Refuse)
    assert refusal.code == Refusal.UNROLLS and "because: reward?ERROR; mend it" in refusal.text
    honest.sampler(A, 1)
    (again,) = honest.told(messages.Refuse)
    assert again == refusal
    assert honest.server.counters.refused["unrolls"] == 2
    honest.sampler(b"new", 9)
    assert honest.told(messages.Refuse) == []
