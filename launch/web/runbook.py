"""Makes the page of the runbook: every process serves it, and alerts link to its sections."""

import html
import re
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).resolve()
# Of an installed package, and of a checkout.
_PLACES: Final = (
    _HERE.parents[1] / "_grafana" / "RUNBOOK.md",
    _HERE.parents[2] / "grafana" / "RUNBOOK.md",
)
_HEAD: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Headrace: runbook</title>'
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'">'
)


def page() -> tuple[str, bytes]:
    """Returns its content type and its HTML."""
    text = next(path for path in _PLACES if path.is_file()).read_text(encoding="utf-8")
    blocks = re.split(r"\n{2,}", text.strip())
    return "text/html; charset=utf-8", "\n".join([_HEAD, *map(_block, blocks), ""]).encode()


def _block(block: str) -> str:
    """Makes HTML of a heading, a listing or a paragraph in Markdown."""
    words = html.escape(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", block), quote=False)
    if heading := re.fullmatch(r"(#+) (.*)", words):
        level, title = len(heading[1]), heading[2]
        return f'<h{level} id="{title.lower()}">{title}</h{level}>'
    if words.startswith("    "):
        return f"<pre>{words}</pre>"
    words = re.sub(r"`([^`]*)`", r"<code>\1</code>", words)
    words = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", words)
    return f"<p>{re.sub(r'(?m)^- ', '<br>- ', words)}</p>"
