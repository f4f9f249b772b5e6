"""Renders the description of a dashboard as Grafana's JSON."""

from typing import Any, Final

from grafana.generate.panels import Board, Kind, Panel

# The newest version in @grafana/schema 13.2.3, against which the tests check the types.
SCHEMA_VERSION: Final = 42
WIDTH: Final = 24  # columns of a dashboard
# The variable at the top of every dashboard: it works in a Grafana with any number of Prometheis.
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


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
        "fieldConfig": {"defaults": _field(panel), "overrides": _overrides(panel)},
        "options": _OPTIONS[panel.kind],
        "transformations": _transformations(panel),
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
    made: dict[str, Any] = {"unit": panel.unit}
    if panel.none:
        made["noValue"] = panel.none
    if panel.colours:
        steps = [{"value": value, "color": colour} for value, colour in panel.colours]
        made["thresholds"] = {"mode": "absolute", "steps": steps}
        made["color"] = {"mode": "thresholds"}
    if panel.kind == "timeseries":
        if panel.low is not None:
            made["min"] = panel.low
        made["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 30 if panel.stacked else 0,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        }
        if _ends_at_one(panel):
            made["custom"]["axisSoftMax"] = 1
    return made


def _ends_at_one(panel: Panel) -> bool:
    """Tells whether an axis of nothing but zeros ends at 1: Grafana's would end at 100, which is
    10,000 % of a share. What may lie far below 1, such as a step size, needs its own axis."""
    counts = any(
        word in query for query in panel.queries.values() for word in ("increase(", "delta(")
    )
    return panel.unit in ("percentunit", "short", "locale") or counts


def _overrides(panel: Panel) -> list[dict[str, Any]]:
    """Returns what is special about single lines: the two edges of a band."""
    if panel.band is None:
        return []
    low, high = panel.band
    thin = {"id": "custom.lineWidth", "value": 0}
    area = [{"id": "custom.fillBelowTo", "value": low}, {"id": "custom.fillOpacity", "value": 20}]
    return [
        {"matcher": {"id": "byName", "options": low}, "properties": [thin]},
        {"matcher": {"id": "byName", "options": high}, "properties": [thin, *area]},
    ]


def _transformations(panel: Panel) -> list[dict[str, Any]]:
    """Returns what makes a table's columns of a series' labels."""
    if not panel.columns:
        return []
    shown = list(panel.columns)
    order = {name: at for at, name in enumerate(shown)}
    return [
        {"id": "filterFieldsByName", "options": {"include": {"names": shown}}},
        {"id": "organize", "options": {"indexByName": order, "renameByName": dict(panel.columns)}},
    ]


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
        "colorMode": "value",
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
