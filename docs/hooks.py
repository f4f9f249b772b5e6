"""Adds the pages that do not lie in docs/: those made from the code, and those that live elsewhere.

MkDocs calls the functions named `on_...`. A link in a page names a file of the repository, so that
it works there too; here it is rewritten to the page that the file becomes.
"""

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from docs import generate  # noqa: E402, the folder above is needed for it

# A file of the repository -> its page here. One that is there takes the place of the page in docs/.
INCLUDED = {
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "grafana/README.md": "monitor/dashboards.md",
    "grafana/RUNBOOK.md": "monitor/runbook.md",
}
_LINK = re.compile(r"\[([^\[\]]*)\]\(([^()\s#:]+)((?:#[^()\s]*)?)\)")
_FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds the generated and the included pages."""
    added = {page: make() for page, make in generate.PAGES.items()}
    for file, page in INCLUDED.items():
        if (ROOT / file).is_file():
            added[page] = (ROOT / file).read_text()
    for page, text in added.items():
        there = files.get_file_from_path(page)
        if there is not None:
            files.remove(there)
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Rewrites the links of a page; code blocks stay as they are."""
    parts = _FENCED.split(markdown)
    parts[::2] = [rewritten(part, page.file.src_uri) for part in parts[::2]]
    return "".join(parts)


def rewritten(markdown: str, page: str) -> str:
    """Returns the text with each link to a file of the repository as a link to its page.

    A file that becomes no page, such as source code, is named without a link.
    """
    sources = {there: file for file, there in INCLUDED.items() if (ROOT / file).is_file()}
    source = sources.get(page, f"docs/{page}")

    def link(found: re.Match[str]) -> str:
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), found[2]))
        if not file.startswith("docs/") and file not in INCLUDED and (ROOT / file).exists():
            return found[1]
        target = INCLUDED.get(file) or file.removeprefix("docs/")
        there = posixpath.relpath(target, posixpath.dirname(page) or ".")
        return f"[{found[1]}]({there}{found[3]})"

    return _LINK.sub(link, markdown)
