"""Holds one thing that slows a run or its learning, and what to set against it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """Says what is wrong, by which figures, and what to try."""

    name: str  # one word for programs
    what: str  # in words, with the figures
    sets: tuple[str, ...] = ()  # section.key=value, all of them together; none = no setting helps
    advice: str = ""  # where no setting helps
    gain: float | None = None  # predicted: so many times as many steps a second

    def words(self) -> str:
        """Returns it as one line."""
        todo = f"set {' '.join(self.sets)}" if self.sets else self.advice
        gain = "" if self.gain is None else f" (about {self.gain:.1f} times the steps a second)"
        return f"{self.what}; {todo}{gain}"
