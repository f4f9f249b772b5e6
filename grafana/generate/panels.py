"""The description of a dashboard: its rows and panels."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Kind = Literal["timeseries", "stat", "heatmap", "table"]


@dataclass(frozen=True)
class Panel:
    """Describes one panel."""

    kind: Kind
    title: str
    unit: str  # by Grafana's names
    words: str  # what it shows, and what to think of it
    queries: dict[str, str]  # legend -> expression
    width: int = 8
    height: int = 8
    stacked: bool = False
    low: float | None = 0  # where the axis begins; None = at the data
    none: str = ""  # stands in the panel when there is no data; "" = there is always some
    band: tuple[str, str] | None = None  # the legends of two lines, and the area between is filled
    columns: Mapping[str, str] = field(
        default_factory=dict
    )  # a table's, by label; others are hidden
    # A number's colours from these values up; None = from the smallest one up.
    colours: tuple[tuple[float | None, str], ...] = ()


@dataclass(frozen=True)
class Row:
    """Groups panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Board:
    """Describes one dashboard."""

    name: str  # of its file, and the end of its uid: never change it
    title: str
    words: str
    rows: tuple[Row, ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for row in self.rows for panel in row.panels)


def lines(
    title: str,
    unit: str,
    words: str,
    queries: dict[str, str],
    *,
    width: int = 8,
    low: float | None = 0,
    none: str = "",
    band: tuple[str, str] | None = None,
) -> Panel:
    """Describes a line chart over time."""
    return Panel(
        "timeseries", title, unit, words, queries, width=width, low=low, none=none, band=band
    )


def stack(
    title: str, unit: str, words: str, queries: dict[str, str], *, width: int = 8, none: str = ""
) -> Panel:
    """Describes stacked lines over time: their sum means something."""
    return Panel("timeseries", title, unit, words, queries, width=width, stacked=True, none=none)


# A number's colours. Text: neither good nor bad.
PLAIN: Final = ((None, "text"),)
ZERO: Final = ((None, "red"), (0, "green"), (0.5, "red"))  # anything else is a fault
BAD: Final = ((None, "green"), (0.5, "red"))  # any is one too many
ODD: Final = ((None, "text"), (0.5, "orange"))  # any is to be explained
MOVES: Final = ((None, "red"), (0.001, "text"))  # none = it stands still


def number(
    title: str,
    unit: str,
    words: str,
    query: str,
    *,
    colours: tuple[tuple[float | None, str], ...] = PLAIN,
    none: str = "",
) -> Panel:
    """Describes a panel with the present value."""
    return Panel(
        "stat", title, unit, words, {"": query}, width=4, height=4, colours=colours, none=none
    )


def heatmap(title: str, unit: str, words: str, buckets: str, *, width: int = 8) -> Panel:
    """Describes a histogram over time; `buckets` is the name of its bucket series."""
    query = f'sum by (le) (increase({buckets}{{job="$job"}}[$__rate_interval]))'
    return Panel("heatmap", title, unit, words, {"{{le}}": query}, width=width)


def table(
    title: str, words: str, query: str, columns: Mapping[str, str], *, none: str = ""
) -> Panel:
    """Describes a table with one line for each series; `columns` names those that are shown, by
    label, and "Value" is the series' value."""
    return Panel("table", title, "none", words, {"": query}, columns=columns, none=none)


def age(timestamp: str) -> str:
    """Returns the expression for the seconds since a timestamp, 0 = there is none yet, as it was at
    the scrape: time() would add the age of the scrape itself. What is set during the scrape, whose
    time is that of its beginning, is 0 s old."""
    return f"clamp_min(timestamp({timestamp}) - ({timestamp} > 0), 0)"
