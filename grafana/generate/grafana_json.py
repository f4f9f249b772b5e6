"""The description of a dashboard, and its rendering as Grafana's JSON."""

from dataclasses import dataclass
from typing import Any, Final, Literal

# The newest version in @grafana/schema 13.2.3, against which the tests check the types.
SCHEMA_VERSION: Final = 42
WIDTH: Final = 24  # columns of a dashboard
# The variable at the top of every dashboard: it works in a Grafana with any number of Prometheis.
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}

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
) -> Panel:
    """Describes a line chart over time."""
    return Panel("timeseries", title, unit, words, queries, width=width, low=low)


def stack(title: str, unit: str, words: str, queries: dict[str, str], *, width: int = 8) -> Panel:
    """Describes stacked lines over time: their sum means something."""
    return Panel("timeseries", title, unit, words, queries, width=width, stacked=True)


def number(title: str, unit: str, words: str, query: str, *, width: int = 4) -> Panel:
    """Describes a panel with the present value."""
    return Panel("stat", title, unit, words, {"": query}, width=width, height=4)


def heatmap(title: str, unit: str, words: str, buckets: str, *, width: int = 8) -> Panel:
    """Describes a histogram over time; `buckets` is the name of its bucket series."""
    query = f'sum by (le) (increase({buckets}{{job="$job"}}[$__rate_interval]))'
    return Panel("heatmap", title, unit, words, {"{{le}}": query}, width=width)


def table(title: str, words: str, query: str, *, width: int = 8) -> Panel:
    """Describes a table with one line for each series and labels as columns."""
    return Panel("table", title, "none", words, {"": query}, width=width)


def rendered(board: Board) -> dict[str, Any]:
    """Returns the dashboard as Grafana imports it."""
    return {
        "uid": f"headrace-{board.name}",
        "id": None,  # Grafana gives it one of its own
        "title": f"Headrace / {board.title}",
        "description": board.words,
        "tags": ["headrace"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,  # one crosshair through all panels
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": [_LINK],
        "templating": {"list": _VARIABLES},
        "panels": _placed(board),
    }


def _placed(board: Board) -> list[dict[str, Any]]:
    """Places panels from left to right; a panel that does not fit starts a new line."""
    placed: list[dict[str, Any]] = []
    y = 0
    for row in board.rows:
        placed.append(_heading(row.title, number=len(placed) + 1, y=y))
        x, y, tallest = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > WIDTH:
                x, y, tallest = 0, y + tallest, 0
            at = {"x": x, "y": y, "w": panel.width, "h": panel.height}
            placed.append(_panel(panel, number=len(placed) + 1, at=at))
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest
    return placed


def _heading(title: str, *, number: int, y: int) -> dict[str, Any]:
    return {
        "type": "row",
        "id": number,
        "title": title,
        "collapsed": False,
        "panels": [],
        "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1},
    }


def _panel(panel: Panel, *, number: int, at: dict[str, int]) -> dict[str, Any]:
    return {
        "type": panel.kind,
        "id": number,
        "title": panel.title,
        "description": panel.words,
        "datasource": SOURCE,
        "gridPos": at,
        "targets": [
            _target(panel, letter, legend, query)
            for letter, (legend, query) in zip("ABCDEFGH", panel.queries.items(), strict=False)
        ],
        "fieldConfig": {"defaults": _field(panel), "overrides": []},
        "options": _OPTIONS[panel.kind],
    }


def _target(panel: Panel, letter: str, legend: str, query: str) -> dict[str, Any]:
    now = panel.kind in ("stat", "table")
    formats = {"heatmap": "heatmap", "table": "table"}
    return {
        "refId": letter,
        "datasource": SOURCE,
        "editorMode": "code",
        "expr": query,
        "format": formats.get(panel.kind, "time_series"),
        "instant": now,
        "range": not now,
        "legendFormat": legend or "__auto",
    }


def _field(panel: Panel) -> dict[str, Any]:
    field: dict[str, Any] = {"unit": panel.unit}
    if panel.kind == "timeseries":
        if panel.low is not None:
            field["min"] = panel.low
        field["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 30 if panel.stacked else 0,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        }
    return field


_LINK: Final[dict[str, Any]] = {
    "type": "dashboards",
    "title": "Headrace",
    "tags": ["headrace"],
    "asDropdown": True,
    "includeVars": True,
    "keepTime": True,
    "icon": "external link",
    "tooltip": "",
    "targetBlank": False,
    "url": "",
}

# A job of Prometheus is a run: see prometheus.yml.
_JOBS: Final = 'label_values(up{role="broker"}, job)'
_VARIABLES: Final[list[dict[str, Any]]] = [
    {"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus"},
    {
        "type": "query",
        "name": "job",
        "label": "Run",
        "datasource": SOURCE,
        "query": {"query": _JOBS, "refId": "job"},
        "refresh": 2,
        "sort": 1,
        "multi": False,
        "includeAll": False,
    },
]

_REDUCED: Final = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: Final[dict[Kind, dict[str, Any]]] = {
    "timeseries": {
        "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "reduceOptions": _REDUCED,
        "orientation": "auto",
        "colorMode": "none",
        "graphMode": "none",
        "justifyMode": "auto",
        "textMode": "auto",
        "wideLayout": True,
        "showPercentChange": False,
        "percentChangeColorMode": "standard",
    },
    "heatmap": {
        "calculate": False,
        "color": {
            "mode": "scheme",
            "scheme": "Oranges",
            "fill": "dark-orange",
            "exponent": 0.5,
            "steps": 64,
            "reverse": False,
        },
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "showValue": "never",
        "tooltip": {"mode": "single", "yHistogram": False},
        "yAxis": {"axisPlacement": "left"},
    },
    "table": {"frameIndex": 0, "showHeader": True},
}
