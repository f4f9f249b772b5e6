"""Keeps how the policy's games with others of a league ended, by opponent. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

# Weights of the policy from before, and others by their place in league.others, from 1 on.
PAST: Final = "past"
MOST_OTHERS: Final = 16
OPPONENTS: Final = (PAST, *(f"other_{place}" for place in range(1, MOST_OTHERS + 1)))
GAMES: Final = ("won", "drawn", "lost")
# The figures that samplers send of them: opponent and result, by name.
FIGURES: Final = {f"league_{who}_{how}": (who, how) for who in OPPONENTS for how in GAMES}

_POINTS: Final = (1.0, 0.5, 0.0)
# Games that a rating is made of, about: the policy changes, and older ones fade.
_RECENT: Final = 1000
_SCALE: Final = 400 / math.log(10)
_Z: Final = 1.96  # of an interval of 95 %


class LeagueResults:
    """Adds up results; a rating is made of the newer ones."""

    def __init__(self) -> None:
        self.names: Sequence[str] = ()  # league.others of the run; set by its owner
        self._all: dict[str, list[float]] = {}  # games by opponent, as GAMES
        self._recent: dict[str, list[float]] = {}  # the same, older ones faded

    def add(self, figure: str, games: float) -> None:
        """Adds games that ended in one way, by the name of their figure."""
        who, how = FIGURES[figure]
        recent = self._recent.setdefault(who, [0.0] * len(GAMES))
        kept = max(0.0, 1.0 - games / _RECENT)
        recent[:] = [kept * one for one in recent]
        recent[GAMES.index(how)] += games
        self._all.setdefault(who, [0.0] * len(GAMES))[GAMES.index(how)] += games

    def shown(self) -> list[dict[str, Any]]:
        """Returns a row for each opponent that was met: its name, games of the whole run, the share
        of points that the policy took of the newer ones, and how far it is above the opponent by
        these, as Elo counts, with the interval."""
        # Another thread may ask: every table is copied before it is walked.
        met, recent = self._all.copy(), self._recent.copy()
        return [
            {
                "who": who,
                "opponent": self._name(who),
                **dict(zip(GAMES, map(int, met[who]), strict=True)),
                **rating(*_points(recent[who])),
            }
            for who in OPPONENTS
            if who in met
        ]

    def _name(self, who: str) -> str:
        place = OPPONENTS.index(who)
        return self.names[place - 1] if 0 < place <= len(self.names) else who


def together(brokers: Iterable[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Returns the rows of several brokers, each of the games that it has heard of, as of one."""
    rows = [row for shown in brokers for row in shown]
    return [
        {
            **each[0],
            **{how: sum(row[how] for row in each) for how in GAMES},
            **rating(
                sum(row["points"] * row["recent"] for row in each),
                sum(row["recent"] for row in each),
            ),
        }
        for who in OPPONENTS
        if (each := [row for row in rows if row["who"] == who])
    ]


def _points(results: Sequence[float]) -> tuple[float, float]:
    """Returns the points in games (won, drawn, lost), and how many games these are."""
    return sum(p * many for p, many in zip(_POINTS, results, strict=True)), sum(results)


def rating(points: float, games: float) -> Mapping[str, float]:
    """Returns the share of points of these games, and the Elo rating above the opponent that fits
    them, with its interval (Wilson's). One drawn game more is counted, so that nobody is infinitely
    good."""
    share = (points + 0.5) / (games + 1.0)
    low, high = _wilson(share, games + 1.0)
    found = {"rating": _elo(share), "low": _elo(low), "high": _elo(high)}
    mean = round(points / games if games else 0.5, 4)
    return {"points": mean, "recent": round(games, 1), **found}


def _wilson(share: float, games: float) -> tuple[float, float]:
    spread = _Z**2 / games
    middle = share + spread / 2
    half = _Z * math.sqrt(share * (1.0 - share) / games + spread / (4 * games))
    return (middle - half) / (1.0 + spread), (middle + half) / (1.0 + spread)


def _elo(share: float) -> float:
    return round(_SCALE * math.log(share / (1.0 - share)), 1)
