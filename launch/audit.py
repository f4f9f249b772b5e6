"""Joins the journals of all processes of a run: what was generated, and how every unroll ended.

generated = trained + stale + shed + rejected + poison + abandoned + in flight, unroll by unroll.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

Key = tuple[int, int, int]  # incarnation, stream, seq


@dataclass(frozen=True, slots=True)
class Account:
    """One run's unrolls."""

    generated: int
    env_steps: int
    outcomes: dict[str, int]  # one outcome an unroll; `duplicate` counts copies beside that
    in_flight: int  # nobody has said how they ended: they died with a process, or still travel
    twice: int  # trained more than once: only after a learner was killed
    untrue: int  # acknowledged as trained, but no learner's journal says so

    def unaccounted(self) -> int:
        total = sum(n for name, n in self.outcomes.items() if name != "duplicate")
        return self.generated - total - self.in_flight


_OUTCOMES = ("trained", "stale", "shed", "rejected", "poison", "abandoned")


def read(folder: Path, *, copies: int = 0) -> Account:
    """The account of a run's journals. A torn last line of a killed process does not count."""
    generated: dict[Key, int] = {}
    trained: Counter[Key] = Counter()
    ended: dict[Key, str] = {}
    given_up: list[Key] = []
    for path in sorted(folder.glob("*.log")):
        text = path.read_text()
        for line in text[: text.rfind("\n") + 1].splitlines():
            kind, *rest = line.split()
            inc, stream, first, second = (int(word) for word in rest[:4])
            if kind == "G":
                generated[inc, stream, first] = second
            elif kind == "T":
                trained[inc, stream, first] += 1
            else:
                keys = [(inc, stream, seq) for seq in range(first, second)]
                if kind == "A":
                    ended.update((key, rest[4]) for key in keys)
                else:
                    given_up += keys
    for key in given_up:
        ended.setdefault(key, "abandoned")
    untrue = sum(1 for k, how in ended.items() if how == "trained" and k not in trained)
    for key in trained:
        ended[key] = "trained"
    outcomes = Counter(how for key, how in ended.items() if key in generated)
    return Account(
        generated=len(generated),
        env_steps=sum(generated.values()),
        outcomes={**{name: outcomes[name] for name in _OUTCOMES}, "duplicate": copies},
        in_flight=sum(1 for key in generated if key not in ended),
        twice=sum(1 for count in trained.values() if count > 1),
        untrue=untrue,
    )
