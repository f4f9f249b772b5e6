"""What a long search found, again: every kept input through its target, without the searcher."""

import logging

import pytest

from tests.fuzz import targets
from tests.fuzz.targets import CORPUS, TARGETS


@pytest.fixture(autouse=True)
def quiet() -> object:
    """The broker tells its log of everyone it refuses."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", TARGETS)
def test_kept_inputs(name: str) -> None:
    inputs = targets.kept(name)
    assert inputs, f"nothing is kept for {name}: python -m tests.fuzz.run {name}"
    for data in (b"", *inputs):
        TARGETS[name](data)


def test_the_corpus_is_small_and_of_targets_there_are() -> None:
    files = list(CORPUS.iterdir())
    assert {path.stem for path in files} == set(TARGETS)
    assert sum(path.stat().st_size for path in files) < 200_000
