"""Names what a learner may object to in an unroll."""

from typing import Final, NamedTuple

# What is wrong with unrolls, by the names under which they are counted.
OBJECTIONS: Final = (
    "damaged",
    "claim",
    "not_finite",
    "reward",
    "observation",
    "logp",
    "action",
    "memory",
    "metrics",
    "step",
)


class Objection(NamedTuple):
    """Says why an unroll cannot be used."""

    reason: str  # one of OBJECTIONS
    words: str  # for a person
    blame: bool = True  # its sampler is at fault
