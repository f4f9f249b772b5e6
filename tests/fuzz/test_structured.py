"""Messages whose types are right and whose values are not, put together by hypothesis: through the
wire and back, and through everything pure that hears them. What fails is shown as small as it goes.
"""

import logging
import typing
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import inspect

from headrace.broker.protocol import messages
from tests.fuzz import broker_side, states
from tests.fuzz.decoders import kept
from tests.fuzz.framing import framed
from tests.fuzz.shaping import NUMBERS, TEXTS
from tests.system.harness.figures import pick, say

# Of each test; a few hundred messages in make test, more than 10^4 in make soak.
_SOME = settings(
    max_examples=pick(150, 3000),
    deadline=None,
    database=None,
    derandomize=pick(True, False),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
_seen: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The broker tells its log of everyone it refuses."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


# Small numbers meet each other, edges break sums, and the rest is for chance. Mostly small: one
# number out of bounds, and the whole message is none.
_ODD = st.sampled_from(NUMBERS) | st.integers(-(2**63), 2**64 - 1)
_NUMBERS = st.integers(0, 15).flatmap(lambda n: st.integers(0, 7) if n else _ODD)
_TEXTS = st.sampled_from(TEXTS) | st.text(max_size=40)


def _values(told: inspect.Type) -> st.SearchStrategy[Any]:
    """Plain values of a type, beyond its bounds too: those are for decode to keep."""
    match told:
        case inspect.VarTupleType():
            return st.lists(_values(told.item_type), max_size=4)
        case inspect.TupleType():
            return st.tuples(*map(_values, told.item_types)).map(list)
        case inspect.DictType():
            return st.dictionaries(_TEXTS, st.floats(), max_size=3)
        case inspect.FloatType():
            return st.floats()
        case inspect.StrType():
            return _TEXTS
        case inspect.BytesType():
            return st.binary(max_size=64)
        case inspect.BoolType():
            return st.booleans()
        case inspect.EnumType():
            return st.integers(0, 6) | st.integers(-1, 9)
        case inspect.Metadata():
            return _values(told.type)
        case inspect.UnionType():
            return st.one_of(*map(_values, told.types))
        case inspect.NoneType():
            return st.none()
        case _:
            assert isinstance(told, inspect.IntType), told
            return _NUMBERS


def _fields(kind: type[messages.Message]) -> list[st.SearchStrategy[Any]]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return [_values(inspect.type_info(hints[name])) for name in kind.__struct_fields__]


def _frames(tag: int) -> st.SearchStrategy[list[bytes]]:
    header = st.tuples(*_fields(messages.TYPES[tag])).map(msgspec.msgpack.encode)
    return header.map(lambda packed: framed(packed, tag))


_ANY = st.integers(0, len(messages.TYPES) - 1).flatmap(_frames)


@pytest.mark.slow
@_SOME
@given(_ANY)
def test_what_decodes_says_the_same_when_it_is_said_again(frames: list[bytes]) -> None:
    _seen["messages"] += 1
    try:
        message, _ = messages.decode(frames)
    except messages.WireError:
        return
    _seen["taken"] += 1
    kept(message)
    try:
        again = [bytes(frame) for frame in messages.encode(message)]  # type: ignore[arg-type]
    except AssertionError:
        return  # numbers that were short on the way in; nobody passes those on
    same, _ = messages.decode(again)
    assert [bytes(frame) for frame in messages.encode(same)] == again  # type: ignore[arg-type]


@pytest.mark.slow
@_SOME
@given(st.lists(st.tuples(st.integers(0, 3), _ANY), max_size=20), st.integers(0, 4))
def test_no_messages_stop_the_broker(said: list[tuple[int, list[bytes]]], honest: int) -> None:
    """After up to three samplers and a learner that said an honest HELLO."""
    own = broker_side.made()
    for at in range(honest):
        broker_side.receive(own, broker_side.ROUTES[at], broker_side.honest(at))
    for at, frames in said:
        _seen["messages"] += 1
        broker_side.receive(own, broker_side.ROUTES[at], frames)
    broker_side.scrape(own)


@_SOME
@given(st.binary(max_size=300))
def test_no_deliveries_stop_a_learner(data: bytes) -> None:
    states.inbox(data)


@_SOME
@given(st.binary(max_size=300))
def test_nothing_heard_stops_a_sampler(data: bytes) -> None:
    states.outbox(data)


@_SOME
@given(st.binary(max_size=300))
def test_only_what_a_publisher_had_is_ever_whole(data: bytes) -> None:
    states.fetch(data)


def test_how_much_that_was() -> None:
    """The last of this file."""
    if not _seen:
        pytest.skip("nothing ran before")
    assert _seen["messages"] >= pick(200, 10_000) and _seen["taken"]
    say("structured messages", faults=_seen["messages"], taken=_seen["taken"])
