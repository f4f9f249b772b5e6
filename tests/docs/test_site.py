"""The site builds without a warning: every link and every anchor of a page leads somewhere."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from docs import chart, generate, zoo
from headrace.launch.config import run_file
from tests.docs.pages import ROOT

README = ROOT / "README.md"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    words = (sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder))
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.processes
def test_it_has_every_page_and_every_picture(site: Path) -> None:
    made = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    assert {path.with_suffix(".html").as_posix() for path in pages} <= made
    assert {"index.html", "security.html", "changelog.html", "monitor/runbook.html"} <= made
    assert {path.removesuffix(".md") + ".html" for path in generate.PAGES} <= made
    for picture in (ROOT / "docs" / "pictures").iterdir():
        assert (site / "pictures" / picture.name).read_bytes() == picture.read_bytes()


@pytest.mark.processes
def test_it_loads_nothing_from_elsewhere(site: Path) -> None:
    loaded = r"<(?:script|img|iframe)[^>]* src=\"(?:https?:)?//|<link[^>]* href=\"(?:https?:)?//"
    for page in site.rglob("*.html"):
        assert not re.search(loaded, page.read_text()), page


def test_settings_lists_every_key_of_every_section() -> None:
    page = generate.settings()
    parts = re.split(r"^## \[(\w+)\][^\n]*\n", page, flags=re.MULTILINE)
    told = {
        name: re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
        for name, text in zip(parts[1::2], parts[2::2], strict=True)
    }
    assert told == {name: list(keys) for name, keys in run_file.SECTIONS.items()}


@pytest.mark.parametrize("page", ["settings", "commands"])
def test_every_key_and_every_option_has_words(page: str) -> None:
    made = generate.PAGES[f"reference/{page}.md"]()
    rows = [line for line in made.splitlines() if line.startswith("| `")]
    assert len(rows) > 80
    assert [row for row in rows if "|  |" in row] == []


def test_a_reader_of_the_repository_finds_what_the_readme_links_to() -> None:
    """Pages that are made at build time are not there."""
    for target in re.findall(r"\]\(([^)#]+)", README.read_text()):
        assert (ROOT / target).is_file(), target


def test_the_readme_of_the_package_has_no_relative_link() -> None:
    """An index of packages shows it, where docs/ is not."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["metadata"]
    text = README.read_text()
    for rule in tools["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    assert [link for link in re.findall(r"\]\(([^)]*)\)", text) if "://" not in link] == []
    assert "[" not in re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)


def test_the_chart_shows_the_figures_of_the_benchmarks() -> None:
    table = chart.rows((ROOT / "docs" / "benchmarks.md").read_text())
    assert len(table) == 3
    assert chart.TO.read_text() == chart.drawn(table), "draw it anew: python -m docs.chart"
    for row in table:
        assert row.ours_percent > row.theirs_percent


def test_the_pictures_are_light() -> None:
    for picture in (ROOT / "docs" / "pictures").iterdir():
        assert picture.stat().st_size <= 200_000, picture


def test_the_page_of_measured_runs_shows_what_was_measured() -> None:
    """As often as a gate has seeds, and within its steps."""
    runs, again = zoo.read_curves(), "make them anew: python -m docs.zoo"
    assert zoo.table(runs) in zoo.PAGE.read_text(), again
    assert zoo.PICTURE.read_text() == zoo.drawn(runs), again
    assert zoo.tuned_table(runs) in zoo.PAGE.read_text(), again
    assert len({run[:4] for run in runs}) == len(runs)
    for run in runs:
        assert list(run.curve) == sorted(run.curve)
        if run.run != zoo.BARE:
            continue
        gate = zoo.gate_of(run.env, run.algorithm)
        assert run.seed in gate.seeds
        assert run.solved is None or run.solved <= gate.steps
        # A curve ends where the run did: at the goal, or without it.
        assert (run.curve[-1][1] >= gate.goal) == (run.solved is not None), run[:4]
