"""Puts the statuses of a run's brokers together, where it has several, as if there were one."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from headrace.broker import league_results

# Each broker tells its own part of these, or of the numbers in them.
_SUMS: Final = (
    "queued",
    "queued_bytes",
    "queue_limit_bytes",
    "unread_bytes",
    "leased",
    "running",
    "streams",
    "window",
    "withdrawn",
    "received",
    "duplicates",
    "unaccounted",
    "redelivered",
    "rolled_back",
    "unroll_bytes",
)
_TABLES: Final = ("outcomes", "actors", "samplers")
_LISTS: Final = ("evaluators", "late", "troubles", "explain")
# Of the broker that is furthest, or the least far.
_MOST: Final = ("version", "behind_versions", "over")
_LEAST: Final = ("weights", "uptime_s")


def merged(statuses: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns one status; {} if no broker has told one. What every broker is told alike, as of the
    learner, is the first one's."""
    told = [status for status in statuses if status]
    if len(told) < 2:
        return dict(told[0]) if told else {}
    first = told[0]
    whole = dict(first)
    for names, put in ((_SUMS, sum), (_MOST, max), (_LEAST, min)):
        whole |= {name: put(status[name] for status in told) for name in names if name in first}
    for name in _TABLES:
        whole[name] = _total([status.get(name, {}) for status in told])
    for name in _LISTS:
        lines = [line for status in told for line in status.get(name, ())]
        whole[name] = [line for at, line in enumerate(lines) if line not in lines[:at]]
    if "league" in first:
        whole["league"] = league_results.together(status.get("league", ()) for status in told)
    if batch := first.get("batch_unrolls"):
        held = sum(whole[name] for name in ("queued", "leased", "running"))
        whole["ahead"] = round(held / batch, 3)
    return whole


def _total(tables: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for table in tables for name in table)
    return {name: sum(table.get(name, 0) for table in tables) for name in names}
