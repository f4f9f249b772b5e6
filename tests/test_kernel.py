"""ARCHITECTURE.md is true: the kernel is small and imports no leaf, folders and paths are there.

The page is the only list; each rule takes its text, so that a planted violation can prove it awake.
"""

import re
from collections.abc import Callable

import pytest

from tests.test_architecture import MAY_IMPORT, ROOT, folder_of, ours

PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
MAX_KERNEL, MAX_PAGE = 6000, 250

Rule = Callable[[str], list[str]]


def kernel(page: str) -> list[str]:
    """Returns the files of the numbered lines of its section, in reading order."""
    return re.findall(r"^\d+\. `([^`]+)`: ", section(page, "The kernel"), re.MULTILINE)


def leaves(page: str) -> list[str]:
    """Returns the files and folders that the kernel does without."""
    listed = re.findall(
        r"^- leaves of .*\n(?:  .*\n)*", section(page, "The kernel") + "\n", re.MULTILINE
    )
    return re.findall(r"`([^`]+)`", "".join(listed))


def section(page: str, name: str) -> str:
    _, _, below = page.partition(f"\n## {name}\n")
    return below.partition("\n## ")[0]


def module_file(name: str) -> str:
    """Returns the file of an imported name: broker.ledger.pacing.Credit -> its pacing.py."""
    folder = folder_of(name)
    rest = name.split(".")[len(folder.split("/")) :]
    return f"{folder}/{rest[0] if rest else '__init__'}.py"


def missing_files(page: str) -> list[str]:
    return [f"{path} is no file" for path in kernel(page) if not (ROOT / path).is_file()]


def named_twice(page: str) -> list[str]:
    files = kernel(page)
    return [f"{path} is listed twice" for path in set(files) if files.count(path) > 1]


def too_long(page: str) -> list[str]:
    files = [ROOT / path for path in kernel(page) if (ROOT / path).is_file()]
    count = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    return [f"the kernel has {count} lines, not {MAX_KERNEL}"] if count > MAX_KERNEL else []


def leaf_imports(page: str) -> list[str]:
    """A folder's name stands for all that is in it."""
    features = tuple(leaves(page))
    complaints = [f"{path} is a leaf itself" for path in kernel(page) if path.startswith(features)]
    for path in kernel(page):
        if (ROOT / path).is_file():
            used = {module_file(name) for name in ours((ROOT / path).read_text(encoding="utf-8"))}
            found = sorted(file for file in used if file.startswith(features))
            complaints += [f"{path} imports the leaf {file}" for file in found]
    return complaints


def folders(page: str) -> list[str]:
    """Each has one line, in the order of the table of imports."""
    listed = re.findall(r"^- `([^`]+)/`: ", section(page, "The rooms"), re.MULTILINE)
    if listed == list(MAY_IMPORT):
        return []
    return [f"the folders are not {list(MAY_IMPORT)}, but {listed}"]


def paths(page: str) -> list[str]:
    """What looks like a path between backticks, or is linked to, is there."""
    named = re.findall(r"`([\w.-]+/[\w./-]*|[\w-]+\.(?:md|py|toml))`", page)
    linked = re.findall(r"\]\(([^)#]+)\)", page)
    return [f"{path} is not there" for path in (*named, *linked) if not exists(path)]


def exists(path: str) -> bool:
    there = ROOT / path
    return there.is_dir() if path.endswith("/") else there.is_file()


def page_length(page: str) -> list[str]:
    count = len(page.splitlines())
    return [f"the page has {count} lines, not {MAX_PAGE}"] if count > MAX_PAGE else []


RULES: list[Rule] = [
    missing_files,
    named_twice,
    too_long,
    leaf_imports,
    folders,
    paths,
    page_length,
]


@pytest.mark.parametrize("rule", RULES)
def test_the_page_is_true(rule: Rule) -> None:
    complaints = rule(PAGE)
    assert not complaints, "\n".join(complaints)


def test_the_page_has_its_lists() -> None:
    """An empty list would please every rule."""
    assert len(kernel(PAGE)) > 25 and len(leaves(PAGE)) > 20
    assert [path for path in leaves(PAGE) if not exists(path)] == []


def with_kernel(*files: str, page: str = PAGE) -> str:
    """Returns the page with these behind the first file of the kernel."""
    first = f"1. `{kernel(page)[0]}`: "
    added = "".join(f"1. `{file}`: planted\n" for file in files)
    return page.replace(first, f"{added}{first}", 1)


@pytest.mark.parametrize(
    ("rule", "page"),
    [
        (missing_files, with_kernel("broker/ledger/nowhere.py")),
        (named_twice, with_kernel("learner/train.py")),
        (too_long, with_kernel(*["tests/test_architecture.py"] * 20)),
        (leaf_imports, with_kernel("broker/peers/relay.py")),
        (leaf_imports, with_kernel("actors/stepping/choose.py")),
        (leaf_imports, with_kernel("broker/weights/shelf_reader.py")),
        (
            leaf_imports,
            PAGE.replace("- leaves of broker: ", "- leaves of broker: `broker/ledger/`, "),
        ),
        (
            leaf_imports,
            PAGE.replace("- leaves of broker: ", "- leaves of broker: `learner/config.py`, "),
        ),
        (folders, PAGE.replace("- `broker/ledger/`: ", "- ")),
        (folders, PAGE.replace("- `broker/ledger/`: ", "- `broker/ledgers/`: ")),
        (paths, f"{PAGE}\nSee `broker/ledger/nowhere.py`."),
        (paths, f"{PAGE}\nSee `broker/nowhere/`."),
        (paths, f"{PAGE}\nSee `NOWHERE.md`."),
        (paths, f"{PAGE}\nSee [it](docs/nowhere.md)."),
        (page_length, PAGE + "\n" * MAX_PAGE),
    ],
)
def test_a_planted_violation_is_caught(rule: Rule, page: str) -> None:
    assert rule(page)
