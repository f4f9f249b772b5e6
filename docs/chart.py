"""Draws docs/pictures/uneven.svg from the table "No lock-step" of docs/benchmarks.md.

python -m docs.chart
"""

import html
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parent
TO = DOCS / "pictures" / "uneven.svg"
# A row: run and what it is, ideal, ours, our part of it, theirs and their part of it.
_ROW = re.compile(
    r"^\| `(lockstep-\w+)`: ([^|]+) \| ([\d,]+)/s \| ([\d,]+)/s \| ([\d.]+) % \|"
    r" ([\d,]+)/s, ([\d.]+) % \|",
    re.MULTILINE,
)
_WIDTH, _LEFT, _RIGHT, _TOP = 760, 262, 196, 62
_BAR, _GROUP = 18, 66
# Readable on white and on black: a picture in a README does not know the page around it.
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600; font-size: 15px }
.quiet { fill: #59636e; font-size: 12px }
.rule { stroke: #d1d9e0 }
.ours { fill: #1a7f64 }
.theirs { fill: #9aa4af }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc }
  .quiet { fill: #9198a1 }
  .rule { stroke: #3d444d }
  .ours { fill: #3fb68b }
  .theirs { fill: #656c76 }
}
"""


class Row(NamedTuple):
    """One run of the table."""

    run: str
    what: str
    ideal: str  # agent steps a second, as the table writes them
    ours: str
    ours_percent: float
    theirs: str
    theirs_percent: float


def rows(page: str) -> list[Row]:
    """Returns the runs of the table."""
    return [
        Row(run, what, ideal, ours, float(part), theirs, float(their_part))
        for run, what, ideal, ours, part, theirs, their_part in _ROW.findall(page)
    ]


def drawn(table: Sequence[Row]) -> str:
    """Returns the chart as SVG: for each run two bars, 100 % is the ideal."""
    height = _TOP + _GROUP * len(table) + 30
    full = _WIDTH - _LEFT - _RIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img"'
        f' aria-label="{html.escape(_words(table))}">',
        f"<style>{_STYLE}</style>",
        '<text class="title" x="0" y="18">Environments of uneven speed:'
        " steps a second, as a part of what they could give</text>",
        '<text class="quiet" x="0" y="38">Headrace learns meanwhile; AsyncVectorEnv plays at'
        " random and learns nothing</text>",
    ]
    for percent in (0, 50, 100):
        x = _LEFT + full * percent / 100
        bottom = height - 26
        parts.append(f'<line class="rule" x1="{x}" x2="{x}" y1="{_TOP - 8}" y2="{bottom}"/>')
        parts.append(
            f'<text class="quiet" x="{x}" y="{bottom + 17}" text-anchor="middle">{percent} %</text>'
        )
    for place, row in enumerate(table):
        parts.extend(_group(row, _TOP + place * _GROUP, full))
    return "\n".join((*parts, "</svg>", ""))


def _group(row: Row, top: int, full: int) -> list[str]:
    """Returns the two bars of one run."""
    what, _, rest = row.what.partition(" (")[0].partition(", a step ")
    lines = [
        f'<text x="0" y="{top + 14}">{html.escape(what)}</text>',
        f'<text class="quiet" x="0" y="{top + 33}">{html.escape(f"a step {rest}")}</text>',
    ]
    bars = (
        ("ours", "Headrace", row.ours, row.ours_percent),
        ("theirs", "AsyncVectorEnv", row.theirs, row.theirs_percent),
    )
    for place, (kind, name, speed, percent) in enumerate(bars):
        y, width = top + place * (_BAR + 4), full * percent / 100
        lines.append(
            f'<rect class="{kind}" x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR}" rx="2"/>'
        )
        words = f"{name} {speed}/s, {percent:g} %"
        lines.append(f'<text x="{_LEFT + width + 6:.1f}" y="{y + 14}">{words}</text>')
    return lines


def _words(table: Sequence[Row]) -> str:
    """Returns what the chart shows, for who cannot see it."""
    return "; ".join(
        f"{row.run}: Headrace {row.ours_percent:g} %, AsyncVectorEnv {row.theirs_percent:g} %"
        for row in table
    )


if __name__ == "__main__":
    TO.write_text(drawn(rows((DOCS / "benchmarks.md").read_text())))
    sys.exit(0)
