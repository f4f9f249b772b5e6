"""Compaction of journal lines, pure: neighbours with the same fate become one range. Nothing that
an audit asks for is lost.

    G inc stream seq steps     ->  g inc stream lo hi steps
    T inc stream seq version   ->  t inc stream lo hi     and    v lo hi unrolls
    A, B, R, X                 ->  the same, with longer ranges
    P, S, V, W, E              ->  as they were

`v` says how many unrolls each version from lo to hi - 1 trained: enough to tell how much a return
to an older checkpoint undid.
"""

from collections.abc import Callable, Iterator

from headrace.broker.protocol.messages import Outcome

# (letter, incarnation, stream, outcome), as they stand in the file.
Key = tuple[str, str, str, str]
Spans = list[list[int]]  # half-open

_OUTCOMES = frozenset(outcome.name.lower() for outcome in Outcome)


class Compaction:
    """Sums up journal lines."""

    def __init__(self) -> None:
        self.said: list[list[str]] = []  # P, S, V, W and E, word by word
        self.spans: dict[Key, Spans] = {}
        self.steps: dict[tuple[str, str], int] = {}  # by (incarnation, stream)
        self.versions: Spans = []  # lo, hi, unrolls each; in the order of training
        self.damage: list[tuple[int, str]] = []  # (line, what is wrong with it)
        self._adders: dict[str, Callable[[list[str]], None]] = {
            "G": self._generated,
            "g": self._generated_range,
            "T": self._trained,
            "t": self._range,
            "v": self._version_range,
            "A": self._ended,
            "B": self._ended,
            "R": self._range,
            "X": self._range,
            "P": self._said,
            "S": self._said,
            "V": self._said,
            "W": self._said,
            "E": self._said,
        }

    def add(self, text: str, *, first: int = 1) -> None:
        """Adds whole lines. What is not a line of a journal is noted as damage and left out."""
        adders = self._adders
        for number, line in enumerate(text.split("\n"), first):
            words = line.split(" ")
            try:
                adders[words[0]](words)
            except (KeyError, ValueError):
                if line:
                    self.damage.append((number, line))

    def tidy(self) -> None:
        """Joins neighbouring ranges, in whatever order they came."""
        for key, spans in self.spans.items():
            self.spans[key] = met(spans)

    def text(self) -> str:
        """Returns the compacted journal."""
        self.tidy()
        return "".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for words in self.said:
            yield f"{' '.join(words)}\n"
        for (letter, inc, stream, outcome), spans in self.spans.items():
            steps = self.steps.get((inc, stream), 0)
            for lo, hi in spans:
                if letter == "g":
                    yield f"g {inc} {stream} {lo} {hi} {steps}\n"
                    steps = 0  # the stream's sum stands once
                else:
                    yield f"{letter} {inc} {stream} {lo} {hi}{outcome and ' ' + outcome}\n"
        for lo, hi, unrolls in self.versions:
            yield f"v {lo} {hi} {unrolls}\n"

    # ---- one method a letter --------------------------------------------------------------------

    def _generated(self, words: list[str]) -> None:
        _, inc, stream, seq, steps = words
        at = int(seq)
        of = (inc, stream)
        self.steps[of] = self.steps.get(of, 0) + int(steps)
        self._span(("g", inc, stream, ""), at, at + 1)

    def _generated_range(self, words: list[str]) -> None:
        _, inc, stream, lo, hi, steps = words
        self.steps[inc, stream] = self.steps.get((inc, stream), 0) + int(steps)
        self._span(("g", inc, stream, ""), int(lo), int(hi))

    def _trained(self, words: list[str]) -> None:
        _, inc, stream, seq, version = words
        at, by = int(seq), int(version)
        self._span(("t", inc, stream, ""), at, at + 1)
        last = self.versions[-1] if self.versions else None
        if last is not None and last[0] == by == last[1] - 1:
            last[2] += 1
        else:
            self._versions(by, by + 1, 1)

    def _version_range(self, words: list[str]) -> None:
        _, lo, hi, unrolls = words
        self._versions(int(lo), int(hi), int(unrolls))

    def _ended(self, words: list[str]) -> None:
        letter, inc, stream, lo, hi, outcome = words
        if outcome not in _OUTCOMES:
            raise ValueError(outcome)
        self._span((letter, inc, stream, outcome), int(lo), int(hi))

    def _range(self, words: list[str]) -> None:
        letter, inc, stream, lo, hi = words
        self._span((letter, inc, stream, ""), int(lo), int(hi))

    def _said(self, words: list[str]) -> None:
        letter, *rest = words
        numbers = rest[1:2] if letter == "P" else rest
        expected = {"P": 1, "S": 2, "V": 2, "W": 1, "E": 0}[letter]
        if len([int(number) for number in numbers]) != expected:
            raise ValueError(rest)
        self.said.append(words)

    def _span(self, key: Key, lo: int, hi: int) -> None:
        spans = self.spans.get(key)
        if spans is None:
            int(key[1]), int(key[2])
            spans = self.spans[key] = []
        if not 0 <= lo < hi:
            raise ValueError(lo)
        if spans and spans[-1][1] == lo:
            spans[-1][1] = hi
            return
        spans.append([lo, hi])
        count = len(spans)
        if count >= 1024 and not count & (count - 1):  # now and then, so that it costs nothing
            self.spans[key] = met(spans)

    def _versions(self, lo: int, hi: int, unrolls: int) -> None:
        """Adds versions; the ones before the last are complete and may join their neighbour."""
        versions = self.versions
        if len(versions) > 1:
            before, last = versions[-2:]
            if before[1] == last[0] and before[2] == last[2]:
                before[1] = last[1]
                versions.pop()
        versions.append([lo, hi, unrolls])


def met(spans: Spans) -> Spans:
    """Returns the spans in order, joined where they touch. Overlaps stay: they happened twice."""
    out: Spans = []
    for lo, hi in sorted(spans):
        if out and out[-1][1] == lo:
            out[-1][1] = hi
        else:
            out.append([lo, hi])
    return out
