"""How unrolls end, and what a new broker or a new learner makes of it: the cases worth a name."""

import itertools

import pytest

from headrace.broker.ledger.ledger import BeyondCreditError, Ledger
from headrace.broker.ledger.records import Effects
from headrace.broker.protocol.messages import Outcome, Unroll, ranges
from tests.broker.ledger.accounts import (
    BODY,
    LEASE,
    SIZE,
    Sampler,
    join,
    learn,
    ledger,
    ready,
    recount,
    send,
    step,
    tags,
)


def test_only_what_was_granted_is_taken() -> None:
    one, sampler = ready(batch=1, max_lag=0)
    send(one, sampler)
    with pytest.raises(BeyondCreditError, match="seq 1"):
        send(one, sampler)
    with pytest.raises(BeyondCreditError):
        one.unroll(Unroll(1, 9, 0, 0, 0, 0, 1, 0), BODY, SIZE)
    assert one.ping(1, sampler.ranges()) == ()  # nor asked for before its time
    recount(one)


def test_poison_after_as_many_learners_as_attempts() -> None:
    one, sampler = ready(attempts=3)
    send(one, sampler)
    for learner in (60, 61, 62):
        assert len(tags(one)) == 1
        learn(one, learner)  # the one before died with it
    sampler.hear(one.decide(0.0))
    assert sampler.ends == {(0, 0): Outcome.POISON}
    recount(one)


def test_what_got_lost_on_the_way_is_no_attempt_and_goes_to_the_same_rank() -> None:
    one, sampler = ready(attempts=2)
    learn(one, 51, rank=1, world=2)
    learn(one, 50, rank=0, world=2)
    send(one, sampler)
    (entry,) = one.decide(0.0).deliver
    home = entry.session
    for _ in range(9):
        one.redeliver_lost(home, (), entry.tag)
        (entry,) = one.decide(0.0).deliver
        assert (entry.session, entry.attempt) == (home, 1)
    one.nack(home, ranges([entry.tag]), Outcome.ABANDONED)
    assert len(one.decide(0.0).deliver) == 1
    recount(one)


def test_hello_twice_gives_nobody_elses_rank_what_is_on_its_way() -> None:
    one, sampler = ready(attempts=2)
    learn(one, 51, rank=1, world=2)
    learn(one, 50, rank=0, world=2)
    send(one, sampler)
    (entry,) = one.decide(0.0).deliver
    home, rank = entry.session, 0 if entry.session == 50 else 1
    for _ in range(5):
        learn(one, home, rank=rank, world=2)
        assert [(e.session, e.attempt) for e in one.decide(0.0).deliver] == [(home, 1)]


def turn_at(one: Ledger, version: int) -> Effects:
    """The next learner goes on at this version, and has room for what is here."""
    learn(one, 51, version=version)
    return one.decide(0.0)


def test_what_waited_too_long_is_stale_when_its_turn_comes() -> None:
    one, sampler = ready(max_lag=5, max_lag_hard=3)
    send(one, sampler, version=0)
    send(one, sampler, version=1)
    effects = turn_at(one, 4)
    sampler.hear(effects)
    assert sampler.ends == {(0, 0): Outcome.STALE}
    assert [(entry.unroll.seq, waited) for entry, waited in effects.stale] == [(0, 4)]
    assert [entry.unroll.seq for entry in effects.deliver] == [1]
    assert one.decide(0.0).stale == []


@pytest.mark.parametrize(
    ("first", "newest", "stale"),
    [
        (0, 97, False),  # played slowly, and here at once
        (0, 60, False),  # its last step alone took 40 versions, the 60 before were no faster
        (0, 40, True),  # it waited for longer than it was played
        (96, 96, True),
    ],
)
def test_what_was_played_slowly_is_not_stale(first: int, newest: int, stale: bool) -> None:
    one, sampler = ready(max_lag=1, max_lag_hard=3)
    send(one, sampler, version=first, newest=newest)
    effects = turn_at(one, 100)
    assert (bool(effects.stale), bool(effects.deliver)) == (stale, not stale)
    recount(one)


def test_no_room_is_said() -> None:
    one, sampler = ready(queue_bytes=2 * SIZE)  # sizes not known, so credit does not see the end
    assert [send(one, sampler) for _ in range(3)] == [True, True, False]
    sampler.hear(one.decide(0.0))
    assert sampler.ends == {(0, 2): Outcome.SHED}
    recount(one)


def test_a_fenced_learner_changes_nothing() -> None:
    one, sampler = ready()
    send(one, sampler)
    (old,) = tags(one)
    learn(one, 51)
    (new,) = tags(one)
    assert one.done(50, ranges([old, new])) == one.done(51, ranges([old])) == 0
    one.nack(50, ranges([new]), Outcome.REJECTED)
    assert not one.learner_heard(50, 0.0, version=99) and one.state.credit.version == 0
    assert one.done(51, ranges([new])) == 1
    assert one.done(51, ranges([new])) == 0


def test_outcomes_of_a_nack() -> None:
    one, sampler = ready()
    for _ in range(3):
        send(one, sampler)
    first, second, third = tags(one)
    one.nack(50, ranges([first]), Outcome.REJECTED)
    one.nack(50, ranges([second]), Outcome.DUPLICATE)
    one.nack(50, ranges([third]), Outcome.ABANDONED)
    sampler.hear(one.decide(0.0))
    assert sampler.ends == {(0, 0): Outcome.REJECTED, (0, 1): Outcome.TRAINED}
    assert one.state.entries == 1
    recount(one)


def test_a_clean_end_of_a_sampler() -> None:
    one, sampler = ready()
    for _ in range(3):
        send(one, sampler)
    one.state.leases.sessions[0].want = one.state.leases.sessions[0].given + 1
    assert len(tags(one)) == 1
    sampler.make(0)  # never arrives
    one.actor_bye(1, sampler.ranges())
    assert one.state.outcomes[Outcome.ABANDONED] == 3
    assert one.state.entries == 1  # leased: it will be trained all the same
    assert one.state.credit.running == 0
    recount(one)


def test_silence_is_death_and_death_returns_leases() -> None:
    one, sampler = ready()
    send(one, sampler)
    assert len(tags(one)) == 1
    assert one.tick(LEASE + 1)[0].inc == 1
    assert not one.heard(1, LEASE + 1) and not one.learner_heard(50, LEASE + 1)
    assert (len(one.state.leases), one.state.credit.running, one.state.entries) == (0, 0, 1)
    recount(one)


def test_ranks_hold_their_share_and_no_more() -> None:
    """Rank 1 is away; rank 0 must not take the unrolls without which no step is possible."""
    one = ledger(batch=4, max_lag=0)
    sampler = join(one)
    learn(one, 50, rank=0, world=2, want=8)
    learn(one, 51, rank=1, world=2, want=8)
    one.learner_bye(51, final=False)
    sampler.hear(one.decide(0.0))
    for _ in range(4):
        send(one, sampler)
    assert len(tags(one)) == 2
    learn(one, 52, rank=1, world=2, want=8)
    assert [entry.session for entry in one.decide(0.0).deliver] == [52, 52]


def test_the_end_of_the_run_stops_credit() -> None:
    one, sampler = ready()
    one.learner_bye(50, final=True)
    send(one, sampler)
    limit = one.state.actors[1].streams[0].limit
    one.decide(0.0)
    assert one.run_complete and one.state.actors[1].streams[0].limit == limit


# ---- coming back --------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(itertools.permutations(("sampler", "rank 0", "rank 1"))))
def test_a_new_broker_learns_everything_from_its_peers(order: tuple[str, ...]) -> None:
    """Version 7, four to a batch: of eight open unrolls rank 0 trained seq 0 and holds seq 1, rank
    1 trained seq 2 and holds seq 3, seqs 4..6 are only at the sampler, seq 7 is still running."""
    one = ledger(batch=4, max_lag=2)
    sampler = Sampler(1, 1)
    for _ in range(7):
        sampler.make(0)
    trained = {50: 0, 51: 2}
    held = {50: 1, 51: 3}

    def enter(who: str) -> None:
        if who == "sampler":
            streams = [(0, 0, 7, 8, ((0, 7),))]
            one.actor_hello(1, "a", streams, now=0.0)
        else:
            inc, rank = (50, 0) if who == "rank 0" else (51, 1)
            learn(
                one,
                inc,
                rank=rank,
                world=2,
                version=7,
                want=9,
                trained=[(1, 0, ranges([trained[inc]]))],
                held=[(inc, 1, 0, held[inc])],
            )

    delivered = []
    for who in order:
        enter(who)
        delivered += one.decide(0.0).deliver
        recount(one)
    credit = one.state.credit
    assert delivered == []
    for _, lo, hi in one.ping(1, sampler.ranges()):
        for seq in range(lo, hi):
            assert seq in (4, 5, 6), "asked for what a learner has"
            one.unroll(sampler.open[0, seq], BODY, SIZE)
    effects = one.decide(0.0)
    sampler.hear(effects)
    assert sampler.ends == {(0, 0): Outcome.TRAINED, (0, 2): Outcome.TRAINED}
    assert sorted(entry.unroll.seq for entry in effects.deliver) == [4, 5, 6]
    assert credit.accepted == 7 * 4 + 5
    assert credit.running == one.state.actors[1].streams[0].limit - 7
    step(one, 50, [50], 8)
    step(one, 51, [51], 8)
    sampler.hear(one.decide(0.0))
    assert sampler.ends[0, 1] is sampler.ends[0, 3] is Outcome.TRAINED
    assert credit.accepted == 8 * 4 + 3
    recount(one)


def test_dispatch_waits_for_every_rank_or_one_lease() -> None:
    one = ledger()
    sampler = join(one)
    learn(one, 50, rank=0, world=2)
    sampler.hear(one.decide(0.0))  # credit does not wait
    send(one, sampler)
    assert one.decide(LEASE - 0.1).deliver == []
    assert len(one.decide(LEASE).deliver) == 1


def test_what_a_dead_learner_held_comes_from_the_sampler_again() -> None:
    """Adopted on the learner's word, so there is no body here to deliver again."""
    one = ledger()
    learn(one, held=[(9, 1, 0, 0)])
    sampler = Sampler(1, 1)
    sampler.make(0)
    one.actor_hello(1, "a", sampler.streams(), now=0.0)
    assert one.ping(1, sampler.ranges()) == ()
    learn(one, 51)
    assert one.ping(1, sampler.ranges()) == ((0, 0, 1),)
    assert one.unroll(sampler.open[0, 0], BODY, SIZE)
    assert len(tags(one)) == 1
    recount(one)


def test_a_second_hello_takes_no_credit_back() -> None:
    """RESYNC answers every message, so a sampler often says HELLO more than once."""
    one = ledger(batch=1, max_lag=0)
    sampler, _ = join(one, 1), join(one, 2)
    learn(one)
    sampler.hear(one.decide(0.0))
    assert sampler.limit == [1]
    one.actor_hello(1, "a", sampler.streams(), now=0.0)  # sent before the LIMIT came
    ((inc, ((_, limit, _),)),) = one.decide(0.0).limits
    assert (inc, limit) == (1, 1)  # it is told again, and nobody else got it
    assert send(one, sampler)
    recount(one)


def test_what_an_earlier_broker_acknowledged_has_arrived() -> None:
    """The sampler does not name it any more, the learner still does: it counts once."""
    one = ledger()
    one.actor_hello(1, "a", [(0, 0, 3, 3, ((0, 1), (2, 3)))], now=0.0)
    learn(one, trained=[(1, 0, ((0, 2),))], want=0)
    assert one.state.actors[1].streams[0].arrived == 2
    assert one.state.credit.running == 1
    recount(one)


def test_a_sampler_thought_dead_keeps_what_it_started() -> None:
    one, sampler = ready(batch=2, max_lag=0)
    other = join(one, 2, now=LEASE)
    one.tick(LEASE + 1)
    other.hear(one.decide(LEASE + 1))
    assert other.limit == [2]  # its credit went to another
    sampler.make(0)
    one.actor_hello(1, "a", sampler.streams(), now=LEASE + 2)
    assert one.state.credit.budget() == -1
    one.decide(LEASE + 2)
    assert one.state.credit.budget() == -1  # no grant until the rule holds again
    assert one.ping(1, sampler.ranges()) == ((0, 0, 1),)
    recount(one)


def test_an_older_checkpoint_goes_on_above_and_is_counted() -> None:
    one, _ = ready()
    assert learn(one, 51, version=0) == 0
    one.learner_heard(51, 0.0, version=10)
    assert learn(one, 52, version=7) == 11
    assert one.versions.rolled_back == 3 * 4
    assert learn(one, 52, version=7) == 11  # HELLO twice is one return
    assert one.versions.rolled_back == 3 * 4
    assert one.state.credit.budget() == 2 * 4 - one.state.credit.running


def test_what_many_samplers_leave_behind_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.ledger.state._MOST_DEAD", 5)
    one = ledger()
    for inc in range(1, 100):
        join(one, inc, now=0.0)
        one.actor_bye(inc, ())
        one.tick(float(inc))
    assert len(one.state.actors) <= 7


def test_forged_ranges_do_not_hold_the_loop() -> None:
    one, _ = ready()
    far = 2**53
    one.ping(1, [(0, 0, far), (9, 0, far)])
    one.actor_hello(1, "a", [(0, 0, 0, 0, ((0, far),))], now=0.0)
    learn(one, 50, trained=[(77, 0, ((0, far),))])
    one.done(50, [(0, far)])
    one.redeliver_lost(50, [(0, far)], far)
    one.actor_bye(1, [(0, 0, far), (9, 0, 1)])
