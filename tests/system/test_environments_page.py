"""The examples of actors/ENVIRONMENTS.md, word for word."""

import re
from pathlib import Path

import pytest

from tests.system.conftest import Place

PAGE = Path(__file__).parents[2] / "actors" / "ENVIRONMENTS.md"
BLOCK = re.compile(r"([^\n]+(?:\n[^\n]+)*)\n\n```(?:python|toml)\n(.*?)```", re.DOTALL)


def files() -> dict[str, str]:
    """The first `name.ext` in the paragraph before a block says which file the block is."""
    found = {}
    for paragraph, text in BLOCK.findall(PAGE.read_text()):
        name = re.search(r"`(\w+\.(?:py|toml))`", paragraph)
        assert name is not None, paragraph
        found[name[1]] = text
    return found


def test_the_page_shows_these_files() -> None:
    assert sorted(files()) == ["cost.py", "costly.toml", "walk.py", "walk.toml"]


@pytest.mark.parametrize(("run", "status"), [("walk.toml", 0), ("costly.toml", 0)])
def test_its_examples_train(place: Place, run: str, status: int) -> None:
    for name, text in files().items():
        (place.folder / name).write_text(text)
    train = place.headrace("train", run, "--out", str(place.out), "--quiet")
    assert train.ends() == status, train.text()
    summary = place.summary()
    assert summary["trained_steps"] > 0
    if run == "walk.toml":
        assert summary["mean_return"] >= 0.95
    else:
        # 50 steps at most, each costs 0.01, and the end pays 1.
        assert -0.5 <= summary["mean_return"] <= 1.0
