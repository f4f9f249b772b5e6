"""Counts how the unrolls of a stream ended: a few bytes each, whole ranges at a time."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from headrace.broker.journal.compaction import Spans
from headrace.broker.protocol.messages import Outcome

# The final outcomes, and what they mean, for the user.
OUTCOMES = {
    "trained": "an optimiser step used them",
    "stale": "waited too long for their turn (pacing.max_lag_hard)",
    "shed": "the broker had no room for what came back after a pause",
    "rejected": "the learner could not use them; its lines say why",
    "poison": "learners ended with them again and again",
    "abandoned": "left unused when their sampler ended, as some are at every end of a run",
}
IN_FLIGHT = len(OUTCOMES)
TRAINED = 0  # its place in OUTCOMES
_FATE = {name: at for at, name in enumerate(OUTCOMES)}
_TRAINED, _TWICE, _GIVEN_UP, _REFUSED = 1, 2, 4, 8

# The fate that an acknowledgement (outcome + 1) or what brokers settled (a bit each) stands for.
_BY_WORD = np.full(256, IN_FLIGHT, np.uint8)
_BY_BITS = np.full(256, IN_FLIGHT, np.uint8)
for _outcome in Outcome:
    if _outcome.name.lower() in _FATE:
        _BY_WORD[_outcome + 1] = _FATE[_outcome.name.lower()]
for _bits in range(1, 256):
    _BY_BITS[_bits] = _BY_WORD[(_bits & -_bits).bit_length()]

Bytes = NDArray[np.uint8]


def meanings(counts: Mapping[str, int]) -> list[str]:
    """Returns a line for each way to end untrained that occurred."""
    return [
        f"{name}: {meaning}"
        for name, meaning in OUTCOMES.items()
        if name != "trained" and counts.get(name)
    ]


class Marks:
    """Marks what each process said of the seqs from 0 to `count`; ranges must lie within."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.contradictions = 0  # unrolls of which one process said two things
        self._bits = np.zeros(count, np.uint8)
        self._heard = np.zeros(count, np.uint8)  # by the sampler: outcome + 1; 0 = nothing
        self._settled = np.zeros(count, np.uint8)  # by brokers: bit n for outcome n

    def heard(self, outcome: str, spans: Spans) -> None:
        word = Outcome[outcome.upper()] + 1
        for lo, hi in spans:
            part = self._heard[lo:hi]
            self.contradictions += int(np.count_nonzero((part != 0) & (part != word)))
            part[:] = word

    def given_up(self, spans: Spans) -> None:
        for lo, hi in spans:
            self.contradictions += int(np.count_nonzero(self._heard[lo:hi]))
            self._bits[lo:hi] |= _GIVEN_UP

    def settled(self, ends: dict[str, Spans]) -> None:
        """Marks what one broker settled; it may settle an unroll only once."""
        once = np.zeros(self.count, np.bool_)
        for outcome, spans in ends.items():
            for lo, hi in spans:
                self.contradictions += int(np.count_nonzero(once[lo:hi]))
                once[lo:hi] = True
                self._settled[lo:hi] |= 1 << Outcome[outcome.upper()]

    def trained(self, spans: Spans) -> None:
        for lo, hi in spans:
            part = self._bits[lo:hi]
            part |= (part & _TRAINED) << 1
            part |= _TRAINED

    def refused(self, spans: Spans) -> None:
        for lo, hi in spans:
            self._bits[lo:hi] |= _REFUSED

    def fates(self) -> list[int]:
        """Counts how many unrolls ended in each of OUTCOMES, then those in flight. The learner's
        word counts most, then what the sampler heard, then what a broker settled unheard."""
        fate = np.full(self.count, IN_FLIGHT, np.uint8)
        fate[self._bits & _GIVEN_UP != 0] = _FATE["abandoned"]
        fate[self._bits & _REFUSED != 0] = _FATE["rejected"]
        for said in (_BY_BITS[self._settled], _BY_WORD[self._heard]):
            fate = np.where(said == IN_FLIGHT, fate, said)
        fate[self._bits & _TRAINED != 0] = _FATE["trained"]
        return [int(count) for count in np.bincount(fate, minlength=IN_FLIGHT + 1)]

    def twice(self) -> int:
        return int(np.count_nonzero(self._bits & _TWICE))

    def untrue(self) -> int:
        """Counts unrolls acknowledged or settled as trained that no learner trained."""
        said = (self._heard == Outcome.TRAINED + 1) | (self._settled & 1 << Outcome.TRAINED != 0)
        return int(np.count_nonzero(said & (self._bits & _TRAINED == 0)))

    def unfounded(self) -> int:
        """Counts acknowledgements of an outcome that no broker settled, other than trained."""
        word = self._heard
        other = (word != 0) & (word != Outcome.TRAINED + 1)
        bit = np.left_shift(np.uint8(1), word - other)
        return int(np.count_nonzero(other & (self._settled & bit == 0)))
