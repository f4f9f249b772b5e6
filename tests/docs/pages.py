"""Every page that people read, as its source stands in the repository."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
_TOP = ("README.md", "SECURITY.md", "CONTRIBUTING.md", "ARCHITECTURE.md")
_FENCED = re.compile(r"^( *)```[^\n]*\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?<=\n\n)((?:    [^\n]*\n)+)")
_INLINE = re.compile(r"`([^`\n]+)`")

PAGES = sorted(
    path
    for path in (
        *(ROOT / name for name in _TOP),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "grafana").glob("*.md"),
    )
    if path.is_file()
)
NAMES = [str(path.relative_to(ROOT)) for path in PAGES]


def blocks(path: Path) -> Iterator[str]:
    """Yields its code blocks, fenced or indented."""
    text = path.read_text()
    for found in _FENCED.finditer(text):
        yield found[2]
    yield from (found[1] for found in _INDENTED.finditer(_FENCED.sub("", text)))


def lines(path: Path) -> Iterator[str]:
    """Yields the lines of its code blocks; a line that ends with a backslash goes on."""
    for block in blocks(path):
        for line in block.replace("\\\n", " ").splitlines():
            yield line.strip()


def inline(path: Path) -> Iterator[str]:
    """Yields what stands between backticks in its text."""
    for found in _INLINE.finditer(_FENCED.sub("", path.read_text())):
        yield found[1]
