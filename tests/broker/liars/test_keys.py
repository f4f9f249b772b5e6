"""What a key lets one say."""

from headrace.broker.protocol import messages
from tests.broker.liars.talk import A, B, Broker


class Gate:
    """Whose keys are in the folder."""

    def __init__(self, *users: str) -> None:
        self.users = set(users)

    def allowed(self, user: str) -> bool:
        return user in self.users


def refused(one: Broker) -> str:
    ((_, refuse),) = one.pump()
    assert isinstance(refuse, messages.Refuse)
    assert refuse.code == messages.Refusal.IDENTITY
    return refuse.text


def test_a_key_speaks_for_its_role_only() -> None:
    one = Broker(Gate("actor:a", "learner:l", "evaluator:e"))
    one.learner(user="actor:a")
    assert "actor:a" in refused(one)
    one.sampler(user="learner:l")
    assert "learner:l" in refused(one)
    one.sampler(user="")
    refused(one)
    for n, user in enumerate(("actor:a", "learner:l", "evaluator:e")):
        one.hello(b"%d" % n, messages.Hello("watcher", "w", 70 + n), user=user)
    one.sampler(user="actor:a")
    one.learner(user="learner:l")
    assert len(one.told(messages.Welcome)) == 5


def test_an_incarnation_belongs_to_its_first_user() -> None:
    one = Broker(Gate("actor:a", "actor:b"))
    one.sampler(A, 1, user="actor:a")
    one.pump()
    one.sampler(B, 1, user="actor:b")
    assert "another key" in refused(one)
    one.hears(A, messages.Bye(1, False, "gone"))
    one.sampler(B, 1, user="actor:b")  # its windows are still here
    assert "another key" in refused(one)
    one.sampler(b"elsewhere", 1, user="actor:a")
    assert len(one.told(messages.Welcome)) == 1


def test_a_key_that_is_withdrawn_is_out_at_the_next_tick() -> None:
    gate = Gate("actor:a", "actor:b", "learner:l")
    one = Broker(gate)
    one.sampler(A, 1, user="actor:a")
    one.sampler(B, 2, user="actor:b")
    one.learner(user="learner:l")
    one.pump()
    one.unrolls([0, 1])
    one.pump()
    running = one.state.actors[2].streams[0].running
    assert running > 0
    gate.users -= {"actor:b"}
    one.server._sweep(Broker.now)
    assert not one.state.actors[2].streams[0].joined  # its credit is for others
    one.unrolls([0], route=B, inc=2)
    assert [type(m) for route, m in one.pump() if route == B] == [messages.Resync]
    one.sampler(B, 2, user="actor:b")
    assert "withdrawn" in refused(one)
    gate.users -= {"learner:l"}
    one.server._sweep(Broker.now)
    assert one.state.leases.sessions == {}
    assert one.state.entries == 2  # they wait for another
