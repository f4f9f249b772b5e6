"""Samplers behind a node: all that a sampler may do, under the node's key, and nothing more."""

from typing import Any

import pytest

from headrace.broker.protocol import bundles, hello_payload, messages
from headrace.broker.protocol.hello_payload import HelloPayload
from headrace.broker.protocol.messages import Bundle, Message, decode
from headrace.broker.server.connections.route import MemberRoute
from tests.broker.liars.talk import A, Broker, L, publish
from tests.broker.liars.test_keys import Gate

N = b"node"
# Of a sampler with one unroll that is not acknowledged.
HELLO_AGAIN = messages.Hello("actor", "a11", 11, spaces="s", version=0)
AGAIN = HelloPayload(streams=((0, 0, 1, 1, ((0, 1),)),))


def hello(inc: int, role: str = "actor") -> list[bytes]:
    intro = HelloPayload(streams=((0, 0, 0, 0, ()),))
    said = messages.Hello(role, f"a{inc}", inc, spaces="s", version=0)
    return frames(said, hello_payload.encode(intro))


def frames(message: Message, *buffers: bytes) -> list[bytes]:
    return [bytes(bundles.bytes_of(frame)) for frame in messages.encode(message, *buffers)]


def unroll(inc: int, seq: int) -> list[bytes]:
    return frames(messages.Unroll(inc, 0, seq, 0, 0, 0, 8, 1), b"x" * 100)


def beat() -> list[bytes]:
    return frames(messages.Ping((), {"env_steps": 5.0}, 0))


class Node:
    """A node's connection; what its samplers hear is kept."""

    def __init__(self, broker: Broker, user: str = "") -> None:
        self.broker = broker
        self.heard: list[tuple[int, Message]] = []
        broker.hello(N, messages.Hello("node", "n", 90), user=user)

    def says(self, *waiting: tuple[int, list[bytes]], user: str = "") -> None:
        for packed in bundles.pack(waiting):
            message, buffers = decode([bundles.bytes_of(frame) for frame in packed])
            self.broker.hears(N, message, *map(bytes, buffers), user=user)
        self.hears()

    def hears(self) -> list[tuple[int, Message]]:
        self.broker.pump()
        found = [
            (number, decode(inner)[0])
            for bundle, body in self.broker.bundles(N)
            for number, inner in bundles.split(bundle, body)
        ]
        self.heard += found
        return found

    def told(self, number: int, kind: type[Message]) -> list[Any]:
        return [one for to, one in self.heard if to == number and isinstance(one, kind)]


@pytest.fixture
def broker() -> Broker:
    one = Broker()
    one.learner()
    one.pump()
    return one


def test_two_samplers_by_one_connection_are_trained_and_acknowledged(broker: Broker) -> None:
    node = Node(broker)
    node.says((1, hello(11)), (2, hello(12)))
    assert node.told(1, messages.Welcome)
    assert node.told(2, messages.Limit)
    node.says((1, unroll(11, 0)), (2, unroll(12, 0)))
    delivered = [m for route, m in broker.all if isinstance(m, messages.Deliver)]
    assert [(one.inc, one.seq) for one in delivered] == [(11, 0), (12, 0)]
    ranges = tuple((one.tag, one.tag + 1) for one in delivered)
    broker.hears(L, messages.Done(50, 1, 100, ranges))
    node.hears()
    assert [one.ranges for one in node.told(2, messages.Ack)] == [((0, 0, 1),)]
    assert broker.ledger.unaccounted() == 0


def test_a_beat_is_answered_and_weights_are_left_to_the_relay(broker: Broker) -> None:
    node = Node(broker)
    node.says((1, hello(11)))
    publish(broker, L, 1)
    node.says((1, beat()))
    assert node.heard[-1] == (1, messages.Limit(((0, 4, 0),)))
    assert not node.told(1, messages.Announce)
    missing = frames(messages.Ping(((0, 0, 1),), {}, 0))
    node.says((1, missing))
    (pong,) = node.told(1, messages.Pong)
    assert pong.missing == ((0, 0, 1),), "only then it needs one"


def test_one_message_says_what_several_act_with(broker: Broker) -> None:
    node = Node(broker)
    node.says((1, hello(11)), (2, hello(12)), (3, hello(13)))
    publish(broker, L, 1)
    blob = broker.server.weights.blob
    assert blob is not None
    digest = blob.announce.digest
    acting = {one.inc: one for one in broker.state.actors.values()}
    broker.hears(N, messages.MembersActing(1, digest, (1, 2, 9)))
    assert [acting[inc].streams[0].acting for inc in (11, 12, 13)] == [1, 1, 0]
    assert sum(broker.server.weights.propagation.ready.counts) == 2
    broker.hears(N, messages.MembersActing(1, "other", (3,)))
    assert acting[13].streams[0].acting == 0, "other weights than these"
    broker.sampler(A, inc=77)
    broker.hears(A, messages.MembersActing(1, digest, (3,)))
    assert broker.errors["unexpected"] == 1, "only a node speaks for others"
    broker.hears(N, messages.MembersActing(1, digest, (3,)))
    assert acting[13].streams[0].acting == 1


def test_samplers_behind_a_node_beat_less_often(broker: Broker) -> None:
    """Four times in a lease of 10 s; a node, and whoever connects itself, each second."""
    broker.sampler(A, inc=77)
    (own,) = broker.told(messages.Welcome)
    assert own.beat_s == 1.0
    node = Node(broker)
    node.says((1, hello(11)))
    (behind,) = node.told(1, messages.Welcome)
    assert (behind.beat_s, behind.lease_s) == (2.5, 10.0)
    roster = broker.server.weights._roster
    for peer in (one for one in roster.everybody() if one.role != "learner"):
        silent_s = {"actor": 6.0, "node": 2.4}[peer.role] if peer.inc != 77 else 2.4
        assert not peer.is_late(1.0, peer.heard_at + silent_s)
        assert peer.is_late(1.0, peer.heard_at + silent_s + 0.3)


def test_who_comes_again_by_another_number_goes_on(broker: Broker) -> None:
    node = Node(broker)
    node.says((1, hello(11)))
    node.says((1, unroll(11, 0)))
    node.says((5, unroll(11, 1)))
    assert node.told(5, messages.Resync), "nobody said HELLO there"
    node.says((5, frames(HELLO_AGAIN, hello_payload.encode(AGAIN))))
    node.says((5, unroll(11, 1)))
    assert broker.state.received == 2
    assert len(broker.server.roster) == 3, "learner, node, sampler"


def test_who_comes_back_is_asked_at_once_for_what_is_not_here(broker: Broker) -> None:
    """Only once a learner has said what it holds: until then it may be there."""
    node = Node(broker)
    node.says((1, frames(HELLO_AGAIN, hello_payload.encode(AGAIN))))
    (pong,) = node.told(1, messages.Pong)
    assert pong.missing == ((0, 0, 1),)
    assert [type(said) for to, said in node.heard if to == 1][:2] == [
        messages.Welcome,
        messages.Pong,
    ], "first it is let in"
    node.says((1, unroll(11, 0)))
    node.says((1, frames(HELLO_AGAIN, hello_payload.encode(AGAIN))))
    assert len(node.told(1, messages.Pong)) == 1, "it is here"

    waits = Broker()
    before = Node(waits)
    before.says((1, frames(HELLO_AGAIN, hello_payload.encode(AGAIN))))
    assert before.told(1, messages.Welcome)
    assert not before.told(1, messages.Pong)


@pytest.mark.parametrize("role", ["learner", "evaluator", "node", "watcher"])
def test_only_samplers_are_behind_a_node(broker: Broker, role: str) -> None:
    node = Node(broker)
    node.says((1, hello(11, role)))
    assert not node.heard
    assert broker.errors["unexpected"] == 1


def test_a_sampler_s_connection_brings_no_bundles(broker: Broker) -> None:
    broker.sampler(A)
    broker.hears(A, Bundle(((1, tuple(map(len, hello(11)))),)), b"".join(hello(11)))
    assert broker.errors["unexpected"] == 1
    node = Node(broker)
    node.says((1, hello(11)))
    inner = frames(Bundle(((1, tuple(map(len, hello(13)))),)), b"".join(hello(13)))
    node.says((1, inner))
    assert broker.errors["unexpected"] == 2, "nor does one behind a node"


def test_none_speaks_as_another(broker: Broker) -> None:
    node = Node(broker)
    node.says((1, hello(11)), (2, hello(12)))
    node.says((2, unroll(11, 0)))
    assert broker.errors["identity"] == 1
    assert broker.state.received == 0


@pytest.mark.parametrize("body", [b"", b"short", b"x" * 200])
def test_what_is_no_bundle_is_counted(broker: Broker, body: bytes) -> None:
    node = Node(broker)
    broker.hears(N, Bundle(((1, (16, 20)), (2, (16, 20)))), body)
    node.says((3, [b"nonsense", b"more"]))
    assert broker.errors["malformed"] == 2
    node.says((1, hello(11)))
    assert node.told(1, messages.Welcome), "it goes on"


def test_its_key_is_its_samplers_key() -> None:
    gate = Gate("actor:a", "learner:l")
    broker = Broker(gate)
    broker.learner(user="learner:l")
    node = Node(broker, user="actor:a")
    node.says((1, hello(11)), user="actor:a")
    assert node.told(1, messages.Welcome)
    assert broker.server.roster.get(MemberRoute(N, 1)) is not None
    gate.users.remove("actor:a")
    broker.server._sweep(Broker.now)
    assert [peer.role for peer in broker.server.roster.everybody()] == ["learner"]


def test_figures_come_with_the_node_s_own_beat(broker: Broker) -> None:
    node = Node(broker)
    node.says((1, hello(11)), (2, hello(12)))
    broker.hears(N, messages.Ping((), {"env_steps": 70.0, "unacked": 3.0}))
    sums = broker.server.roster.sums()
    assert (sums["env_steps"], sums["unacked"], sums["count"]) == (70.0, 3.0, 2)
    assert broker.server.run_status.sampler_totals.totals["env_steps"] == 70.0


def test_samplers_behind_nodes_have_a_room_of_their_own() -> None:
    """They cost no connection; but they are not without bound."""
    broker = Broker(peers=2)
    broker.learner()
    node = Node(broker)
    node.says(*((number, hello(100 + number)) for number in range(16)))
    assert broker.server.roster.members == 16
    node.says((16, hello(200)))
    (refusal,) = node.told(16, messages.Refuse)
    assert "16 peers behind nodes already; raise broker.peers" in refusal.text
    broker.hears(N, messages.Ping((), {}))  # and all others go on
    node.says((3, frames(messages.Bye(103, False, "done"))))
    assert broker.server.roster.members == 15
    node.says((16, hello(200)))
    assert node.told(16, messages.Welcome)


def test_a_node_that_reads_nothing_costs_its_samplers_only_messages(broker: Broker) -> None:
    """Drops and counts what finds no room; the next beat says it again."""
    node = Node(broker)
    node.says((1, hello(11)))
    broker.deaf.add(N)
    node.says((1, beat()))
    assert broker.server.counters.peer_full == 1
    broker.deaf.clear()
    heard = len(node.heard)
    node.says((1, beat()))
    assert len(node.heard) == heard + 1
