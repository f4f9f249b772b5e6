"""The learner's end: what it holds, and what it will never train on twice."""

from hypothesis import given
from hypothesis import strategies as st
from pytest import MonkeyPatch

from headrace.broker.peers import inbox as inbox_module
from headrace.broker.peers.inbox import Inbox, Verdict
from headrace.broker.protocol.messages import MAX_ENTRIES, MAX_HEADER, Deliver, encode


def unroll(tag: int, seq: int, *, stream: int = 0, inc: int = 5, floor: int = 0) -> Deliver:
    return Deliver(tag, 1, "a", inc, stream, seq, floor, 0, 0, 1, 0, 0, ())


def test_held_trained_and_never_again() -> None:
    inbox = Inbox(inc=1)
    assert inbox.deliver(unroll(10, 0)) is Verdict.NEW
    assert inbox.deliver(unroll(11, 1)) is Verdict.NEW
    assert inbox._tags[5, 0, 1] == 11
    (done,) = inbox.trained([(5, 0, 0), (5, 0, 1)], version=3, free=4)
    assert (done.inc, done.version, done.want, done.tags) == (1, 3, 6, ((10, 12),))
    assert inbox.deliver(unroll(12, 0)) is Verdict.TRAINED
    assert inbox.windows() == ((5, 0, ((0, 2),)),)
    assert inbox.held() == ()


def test_the_newest_lease_counts_and_a_copy_takes_no_place() -> None:
    inbox = Inbox(inc=1)
    inbox.deliver(unroll(10, 0))
    assert inbox.deliver(unroll(20, 0)) is Verdict.HELD
    assert inbox.received == 1
    assert inbox.trained([(5, 0, 0)], version=1, free=0)[0].tags == ((20, 21),)


def test_given_up_is_not_trained() -> None:
    inbox = Inbox(inc=1)
    inbox.deliver(unroll(10, 0))
    inbox.deliver(unroll(11, 1))
    assert inbox.give_up([(5, 0, 1), (5, 0, 0)]) == [((10, 12),)]
    assert inbox.deliver(unroll(12, 0)) is Verdict.NEW
    assert inbox.windows() == ()


def test_a_beat() -> None:
    inbox = Inbox(inc=1)
    assert inbox.ping(version=0, free=3, stats={}).max_tag == -1
    for tag in (4, 5, 9):
        inbox.deliver(unroll(tag, tag))
    ping = inbox.ping(version=2, free=3, stats={"loss": 1.0})
    assert (ping.want, ping.max_tag, ping.held) == (6, 9, ((4, 6), (9, 10)))


def test_a_beat_that_cannot_name_all_says_how_far_it_speaks() -> None:
    inbox = Inbox(inc=2**62)
    for number in range(1000):
        inbox.deliver(unroll(2**62 + 2 * number, number))
    ping = inbox.ping(version=2, free=3, stats={})
    assert len(ping.held) == MAX_ENTRIES
    assert ping.max_tag == ping.held[-1][1] - 1
    assert len(bytes(encode(ping)[1])) <= MAX_HEADER  # type: ignore[arg-type]


def test_a_batch_whose_tags_lie_apart_takes_more_than_one_message() -> None:
    """With two ranks every other tag is the other's: more ranges than one header holds."""
    inbox = Inbox(inc=2**62)
    keys = [(5, 0, number) for number in range(1000)]
    for number in range(1000):
        inbox.deliver(unroll(2**62 + 2 * number, number))
    done = inbox.trained(keys[:500], version=7, free=3)
    assert all(len(bytes(encode(part)[1])) <= MAX_HEADER for part in done)  # type: ignore[arg-type]
    assert {(part.version, part.want) for part in done} == {(7, 1003)}
    assert sum((part.tags for part in done), ()) == tuple(
        (2**62 + 2 * n, 2**62 + 2 * n + 1) for n in range(500)
    )
    given = inbox.give_up(keys[500:])
    assert sum(map(len, given)) == 500 and max(map(len, given)) <= MAX_ENTRIES
    assert inbox.held() == ()


def test_a_step_is_said_even_when_it_used_nothing_that_is_held() -> None:
    (done,) = Inbox(inc=1).trained([], version=7, free=3)
    assert (done.version, done.want, done.tags) == (7, 3, ())


def test_a_tag_names_one_unroll() -> None:
    """Whatever a broker says: an answer by this tag must mean what it meant."""
    inbox = Inbox(inc=1)
    inbox.deliver(unroll(10, 0))
    assert inbox.deliver(unroll(10, 1)) is Verdict.HELD
    for tag in (-1, 2**63, 2**64 - 1):  # no range of it could be packed
        assert inbox.deliver(unroll(tag, 2)) is Verdict.HELD
    assert inbox.held() == ((10, 5, 0, 0),)
    (done,) = inbox.trained([(5, 0, 0)], version=1, free=1)
    assert (done.want, done.tags) == (1, ((10, 11),))


def test_another_broker_counts_from_where_it_likes() -> None:
    """Else what it delivers below the old tags would look lost while it is on its way."""
    inbox = Inbox(inc=1)
    inbox.deliver(unroll(900, 0))
    inbox.deliver(unroll(901, 1))
    inbox.trained([(5, 0, 1)], version=1, free=0)
    assert inbox.held() == ((900, 5, 0, 0),)
    assert (inbox.received, inbox.ping(version=1, free=0, stats={}).max_tag) == (0, -1)
    inbox.deliver(unroll(100, 2))
    ping = inbox.ping(version=1, free=0, stats={})
    assert (ping.max_tag, ping.held) == (100, ((100, 101), (900, 901)))


def test_what_an_older_broker_called_high_does_not_speak_for_a_newer_one() -> None:
    """More is held than one beat can name, and the last that it names has an old tag."""
    inbox = Inbox(inc=1)
    for number in range(MAX_ENTRIES):
        inbox.deliver(unroll(900 + 2 * number, number))
    inbox.held()
    for number in range(10):
        inbox.deliver(unroll(100 + 2 * number, 500 + number))
    ping = inbox.ping(version=1, free=0, stats={})
    assert len(ping.held) == MAX_ENTRIES and ping.held[-1][0] > 900
    assert ping.max_tag == 118


def test_the_window_follows_the_floor() -> None:
    inbox = Inbox(inc=1)
    for seq in range(500):
        inbox.deliver(unroll(seq, seq, floor=max(0, seq - 4)))
        inbox.trained([(5, 0, seq)], version=seq, free=1)
    assert inbox.windows() == ((5, 0, ((495, 500),)),)


def test_streams_that_fell_silent_are_forgotten_first(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "_MOST_STREAMS", 3)
    inbox = Inbox(inc=1)
    for number, stream in enumerate((0, 1, 2, 0, 3, 4)):
        inbox.deliver(unroll(number, number, stream=stream))
        inbox.trained([(5, stream, number)], version=1, free=1)
    assert [stream for _, stream, _ in inbox.windows()] == [0, 3, 4]


def test_the_checkpoint_remembers() -> None:
    inbox = Inbox(inc=1)
    for seq in (0, 1, 4):
        inbox.deliver(unroll(seq, seq))
        inbox.trained([(5, 0, seq)], version=1, free=1)
    later = Inbox(inc=2)
    later.restore(inbox.windows())
    verdicts = [later.deliver(unroll(70 + seq, seq)) for seq in range(5)]
    assert [v is Verdict.TRAINED for v in verdicts] == [True, True, False, False, True]


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(("deliver", "train", "drop")))))
def test_tags_and_keys_agree(moves: list[tuple[int, str]]) -> None:
    inbox, trained, held = Inbox(inc=1), set[int](), dict[int, int]()
    for tag, (seq, move) in enumerate(moves):
        key = (5, 0, seq)
        if move == "deliver":
            verdict = inbox.deliver(unroll(tag, seq))
            assert (verdict is Verdict.TRAINED) == (seq in trained)
            if verdict is not Verdict.TRAINED:
                assert (verdict is Verdict.HELD) == (seq in held)
                held[seq] = tag
        elif seq in held and move == "train":
            tag = held.pop(seq)
            assert inbox.trained([key], version=1, free=1)[0].tags == ((tag, tag + 1),)
            trained.add(seq)
        elif seq in held:
            tag = held.pop(seq)
            assert inbox.give_up([key]) == [((tag, tag + 1),)]
    assert sorted(inbox.held()) == sorted((tag, 5, 0, seq) for seq, tag in held.items())
