"""Unrolls as a learner hears of them, and what it says of those that it cannot use."""

from typing import Any

from headrace.broker.peers.objections import Objection
from headrace.broker.protocol.messages import Deliver


def message(seq: int, **said: Any) -> Deliver:
    """Of one that is in a batch already."""
    plain = {
        "tag": seq,
        "attempt": 1,
        "actor": "a",
        "inc": 1,
        "stream": 0,
        "seq": seq,
        "floor": 0,
        "version_min": 0,
        "version_max": 0,
        "steps": 0,
        "digest": 0,
        "ended": 0,
        "episodes": (),
    }
    return Deliver(**{**plain, **said})


def words(objection: Objection | None) -> str:
    """ "" = it can be used."""
    return "" if objection is None else objection.words
