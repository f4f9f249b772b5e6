"""A learner is given what it has room for, also after sleep and reconnection have crossed its
HELLO with deliveries that were on their way."""

import random
from collections.abc import Callable

import pytest

from headrace.broker.protocol.messages import Deliver
from tests.broker.peers import test_ends as ends

begin = ends.begin


def of(seed: int) -> ends.Plan:
    rng = random.Random(seed)
    return ends.Plan(
        seed=seed,
        batch=rng.choice((2, 4, 4, 6)),
        max_lag=rng.choice((1, 2, 3)),
        ranks=2,
        actors=rng.randint(1, 4),
        streams=rng.randint(1, 4),
        freezes=True,
    )


@pytest.mark.parametrize("seed", [3, 10, 99])
def test_nothing_is_given_back_for_want_of_room_once_it_is_calm(
    seed: int, begin: Callable[[ends.Plan], ends.World]
) -> None:
    """Two ranks that sleep past their lease. What they were given beyond their room must be counted
    away, not given again and again for the rest of the session."""
    world = begin(of(seed))
    world.actors = [ends.Actor(world) for _ in range(world.plan.actors)]
    world.go(60.0)
    world.faulty = False
    world.go(6 * ends.LEASE)
    assert world.server is not None
    messages, version = world.server.counters.messages, world.group.version
    before, delivered = given_back(world), messages["out", Deliver]
    world.go(4 * ends.LEASE)
    assert world.group.version > version
    assert messages["out", Deliver] > delivered
    assert given_back(world) == before


def given_back(world: ends.World) -> int:
    return sum(rank.end.given_back for rank in world.group.ranks)
