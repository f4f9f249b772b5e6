"""The notebook of docs/: each cell runs in a kernel of its own, and what it shows is there."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from tests.needs import missing

COURSE = Path(__file__).parents[3] / "docs" / "course.ipynb"
# A cell: training, and nothing beside it takes a tenth of that.
PATIENCE_S = 600


def shown(cells: list[Any]) -> list[tuple[str, bool]]:
    """The text that each cell shows, and whether there is a picture."""
    found = []
    for cell in cells:
        outputs = cell.get("outputs", ())
        texts = [output.get("text", "") for output in outputs if output.get("name") == "stdout"]
        texts += [output.get("data", {}).get("text/plain", "") for output in outputs]
        pictures = any("image/png" in output.get("data", {}) for output in outputs)
        found.append(("".join(texts), pictures))
    return found


def test_no_figure_is_typed_in() -> None:
    """What a cell can compute stands in no text: it would be of another machine."""
    nbformat = pytest.importorskip("nbformat")
    texts = [cell.source for cell in nbformat.read(COURSE, 4).cells if cell.cell_type == "markdown"]
    typed = [found for text in texts for found in re.findall(r"\d[\d,.]*(?: \w+)?", text)]
    # Headings, names of packages, and the size of a group, which is a setting.
    allowed = re.compile(r"\d+\. \w+|24( groups)?|24 all|\d+\.")
    assert [found for found in typed if not allowed.fullmatch(found)] == []


def test_the_course_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("nbclient", "ipykernel"):
        if importlib.util.find_spec(package) is None:
            missing(f"{package} is not installed: pip install nbclient ipykernel")
    import nbclient
    import nbformat

    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    course = nbformat.read(COURSE, 4)
    before = shown(course.cells)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(course, timeout=PATIENCE_S, resources=resources).execute()
    now = shown(course.cells)
    # The committed notebook shows as much as a reader's own.
    assert [(bool(text), picture) for text, picture in before] == [
        (bool(text), picture) for text, picture in now
    ]
    said = "\n".join(text for text, _ in now)
    assert re.search(r"solved after [\d,]+ steps", said)
    one, many = (float(rate.replace(",", "")) for rate in re.findall(r"([\d,]+) steps/s", said))
    assert many > one
    counts = re.findall(r"samplers: (\d), +[\d,]+ of +([\d,]+) steps a second", said)
    assert counts == [("1", "3,200"), ("2", "6,400")]
    assert set(re.findall(r"^(inline|vector) +[\d,]+ steps", said, re.MULTILINE)) == {
        "inline",
        "vector",
    }
    assert "24 environments give at most 4,061 a second" in said
    assert re.search(
        r"# The best of a search, trial-000\d: return [\d.]+, with$", said, re.MULTILINE
    )
    assert re.search(r"all of this took \d+ s", said)
    assert re.search(r"^all +\d+ +2 in order", said, re.MULTILINE)
    assert float(re.findall(r"return: ([\d.]+)", said)[-1]) > 50
