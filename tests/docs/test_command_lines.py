"""Whatever the pages tell people to type can be typed, and the names they use are there."""

import argparse
import re
import shlex
from pathlib import Path

import pytest

import headrace
from headrace.launch import cli
from headrace.launch.comparison import sweep
from headrace.launch.config import run_file
from tests.docs.pages import NAMES, PAGES, ROOT, inline, lines

every_page = pytest.mark.parametrize("page", PAGES, ids=NAMES)
# What stands after a section in the name of a file or a host: learner.json, broker.key.
_FILES = {
    "address",
    "html",
    "json",
    "jsonl",
    "key",
    "lab",
    "log",
    "onnx",
    "pub",
    "safetensors",
    "sbatch",
    "service",
    "toml",
}
# Not part of a longer name, as headrace.learner.models, nor the quoted name of a logger.
_KEY = re.compile(
    rf"(?<![\w./\"-])({'|'.join(run_file.SECTIONS)})\.([a-z_]+)(?![\w(/.])(?! is no key)"
)


def commands() -> dict[str, argparse.ArgumentParser]:
    for action in cli.parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    raise AssertionError("the parser has no commands")


def typed(page: Path) -> list[list[str]]:
    """The words after `headrace` of each line to be typed; a learner's by torchrun too."""
    found = []
    for line in lines(page):
        words = shlex.split(line, comments=True) if re.match(r"headrace |torchrun ", line) else []
        if words and words[0] == "torchrun":
            words = ["headrace", "learner", *words[words.index("-m") + 2 :]]
        if words:
            found.append(words[1:])
    return found


def settings(run: str, sets: list[str]) -> None:
    """Reads the run as the command would; a run of the reader's own is taken for an empty one."""
    if run in run_file.shipped():
        for chosen in sweep.grid(sets, [1]):  # lists are for sweeps; one value is itself
            run_file.load(run, chosen)
    else:
        run_file.build({"run": {"name": "run"}}, sets, source=run)


@every_page
def test_what_it_says_to_type_can_be_typed(page: Path) -> None:
    for words in typed(page):
        given = cli.parser().parse_args(words)
        if sets := getattr(given, "set", None):
            settings(getattr(given, "run", None) or "none", sets)


def test_every_command_is_shown_somewhere() -> None:
    assert {words[0] for page in PAGES for words in typed(page)} == set(commands())


@every_page
def test_every_command_and_option_named_in_its_text_exists(page: Path) -> None:
    known = commands()
    for code in inline(page):
        found = re.match(r"headrace ([a-z]+(?:-[a-z]+)*)(.*)", code)
        if found is None:
            continue
        assert found[1] in known, code
        options = set(known[found[1]]._option_string_actions)
        assert set(re.findall(r"(?<!\S)--[a-z-]+", found[2])) <= options, code
        for section, key in re.findall(r"--set ([a-z]+)\.([a-z_]+)", found[2]):
            assert key in run_file.SECTIONS[section], code


@every_page
def test_every_key_named_is_a_key(page: Path) -> None:
    named = {found for code in (*inline(page), *lines(page)) for found in _KEY.findall(code)}
    assert [
        f"{section}.{key}"
        for section, key in sorted(named)
        if key not in run_file.SECTIONS[section] and key not in _FILES
    ] == []


def test_keys_are_named_at_all() -> None:
    named = {found for page in PAGES for code in inline(page) for found in _KEY.findall(code)}
    assert len(named) > 60


@every_page
def test_every_make_target_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    code = [*inline(page), *lines(page)]
    named = {found[1] for text in code if (found := re.match(r"make ([a-z]+)", text))}
    assert named <= targets


@every_page
def test_every_function_named_exists(page: Path) -> None:
    code = "\n".join((*inline(page), *lines(page)))
    named = set(re.findall(r"(?<![\w./])headrace\.([a-z_]+)\(", code))
    assert named <= {*headrace.__all__}
