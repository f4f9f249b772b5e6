"""The house rules that a machine can check: who imports whom, what no room does, how long it gets.

Each rule is a function from (path, source) to complaints, so that a planted violation can prove
it awake. A rule reads the source only: an import made at run time by name is not seen.
"""

import ast
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("broker", "learner", "actors", "launch")
SOURCES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in SOURCES
    if path.stem != "__main__"
)

# room -> what of the other rooms it may import; a name stands for everything below it
MAY_IMPORT = {
    "broker": (),
    "learner": ("broker",),
    "actors": ("broker", "learner.models", "learner.weights", "learner.spaces", "learner.config"),
    "launch": ("broker", "learner", "actors"),
}
VAGUE_NAMES = {"utils", "util", "common", "misc", "helpers", "helper", "base", "manager"}
# Formats and calls that run whatever they are given.
UNSAFE_MODULES = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
UNSAFE_CALLS = {"eval", "exec", "torch.load", "torch.save"}
MAX_FILE, MAX_FUNCTION = 350, 80
# Read in order, top to bottom: cutting it up would hide the order.
LONG_FUNCTIONS = {("learner/train.py", "train")}

Rule = Callable[[str, str], list[str]]


def imported(tree: ast.AST) -> Iterator[str]:
    """Every imported name in full: `from a import b` is a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def arrow(path: str, source: str) -> list[str]:
    """launch -> actors -> learner -> broker; the public face, headrace, is above them all."""
    room = path.split("/")[0]
    allowed = (room, *MAY_IMPORT[room])
    return [
        f"{path}: {room} may not import {name}"
        for name in imported(ast.parse(source))
        if name.split(".")[0] in (*ROOMS, "headrace")
        and not any(within(name, package) for package in allowed)
    ]


def heavy_packages(path: str, source: str) -> list[str]:
    """gymnasium has one door, torch none into the broker's room."""
    names = list(imported(ast.parse(source)))
    complaints = []
    if not path.startswith("actors/envs/") and any(within(name, "gymnasium") for name in names):
        complaints.append(f"{path}: only actors/envs/ imports gymnasium")
    if path.startswith("broker/") and any(within(name, "torch") for name in names):
        complaints.append(f"{path}: no torch in the broker's room")
    return complaints


def type_checking(path: str, source: str) -> list[str]:
    """An import for the type checker only is still a dependency; it is how cycles hide."""
    room = path.split("/")[0]
    return [
        f"{path}: {name} is imported under TYPE_CHECKING"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for name in imported(node)
        if name.split(".")[0] in set(ROOMS) - {room}
    ]


def vague_names(path: str, _source: str) -> list[str]:
    vague = VAGUE_NAMES & set(Path(path).with_suffix("").parts)
    return [f"{path}: {name} names no idea" for name in sorted(vague)]


def loose_tasks(path: str, source: str) -> list[str]:
    """A task is born in a TaskGroup, so that somebody waits for it and sees it fail."""
    complaints = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        owner, _, name = ast.unparse(node.func).rpartition(".")
        grouped = owner.split(".")[-1].strip("_").endswith(("group", "tg"))
        if name == "ensure_future" or (name == "create_task" and not grouped):
            complaints.append(f"{path}:{node.lineno}: {owner}.{name} outside a TaskGroup")
    return complaints


def unsafe(path: str, source: str) -> list[str]:
    tree = ast.parse(source)
    names = list(imported(tree))
    called = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    found = {name for name in names if name.split(".")[0] in UNSAFE_MODULES}
    found |= UNSAFE_CALLS & {*names, *called}
    return [f"{path}: {name} runs whatever it is given" for name in sorted(found)]


def lengths(path: str, source: str) -> list[str]:
    complaints = []
    if (count := len(source.splitlines())) >= MAX_FILE:
        complaints.append(f"{path}: {count} lines; fewer than {MAX_FILE}, please")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            count = (node.end_lineno or node.lineno) - node.lineno + 1
            if count >= MAX_FUNCTION and (path, node.name) not in LONG_FUNCTIONS:
                complaints.append(
                    f"{path}: {node.name} has {count} lines, not under {MAX_FUNCTION}"
                )
    return complaints


RULES: list[Rule] = [
    arrow,
    heavy_packages,
    type_checking,
    vague_names,
    loose_tasks,
    unsafe,
    lengths,
]


@pytest.mark.parametrize("rule", RULES)
def test_the_house_keeps_its_rules(rule: Rule) -> None:
    assert SOURCES
    complaints = [
        complaint
        for path in SOURCES
        for complaint in rule(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    ]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize(
    ("rule", "path", "source"),
    [
        (arrow, "broker/wire.py", "import actors"),
        (arrow, "broker/wire.py", "def late():\n    from learner.spaces import Spaces"),
        (arrow, "learner/train.py", "from actors import policy"),
        (arrow, "learner/train.py", "import launch.config"),
        (arrow, "actors/policy.py", "from learner import vtrace"),
        (arrow, "actors/policy.py", "import learner.models_of_another_kind"),
        (arrow, "launch/cli.py", "import headrace"),
        (heavy_packages, "broker/wire.py", "from torch import Tensor"),
        (heavy_packages, "actors/stepping/vector.py", "import gymnasium.vector"),
        (
            type_checking,
            "actors/policy.py",
            "if TYPE_CHECKING:\n    from learner.models import mlp",
        ),
        (type_checking, "actors/policy.py", "if typing.TYPE_CHECKING:\n    import broker.wire"),
        (vague_names, "broker/utils.py", ""),
        (vague_names, "learner/common/maths.py", ""),
        (loose_tasks, "broker/server.py", "asyncio.create_task(beat())"),
        (loose_tasks, "broker/server.py", "create_task(beat())"),
        (loose_tasks, "broker/server.py", "asyncio.get_running_loop().create_task(beat())"),
        (loose_tasks, "broker/server.py", "asyncio.ensure_future(beat())"),
        (unsafe, "broker/wire.py", "import pickle"),
        (unsafe, "broker/wire.py", "from cloudpickle import loads"),
        (unsafe, "learner/checkpoint.py", "torch.load(path)"),
        (unsafe, "learner/checkpoint.py", "from torch import save"),
        (unsafe, "launch/cli.py", "eval(text)"),
        (lengths, "broker/wire.py", "x = 1\n" * MAX_FILE),
        (lengths, "broker/wire.py", "def long():\n" + "    x = 1\n" * MAX_FUNCTION),
    ],
)
def test_a_planted_violation_is_caught(rule: Rule, path: str, source: str) -> None:
    assert rule(path, source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (
            "actors/policy.py",
            "from learner.models import mlp\nfrom learner import weights\nimport broker.wire",
        ),
        ("actors/envs/make.py", "import gymnasium"),
        ("broker/server.py", "async def serve(group):\n    group.create_task(beat(), name='beat')"),
        (
            "broker/server.py",
            "async def serve(self):\n    self._group.create_task(beat(), name='beat')",
        ),
        (
            "learner/train.py",
            "def train(model):\n    model.eval()\n" + "    x = 1\n" * MAX_FUNCTION,
        ),
    ],
)
def test_what_is_allowed_passes(path: str, source: str) -> None:
    assert [complaint for rule in RULES for complaint in rule(path, source)] == []


def test_the_rooms_come_from_this_checkout() -> None:
    """Their names are common ones: another package called broker could win, silently."""
    for room in ROOMS:
        assert Path(str(importlib.import_module(room).__file__)).parent == ROOT / room


def in_a_fresh_python(script: str) -> str:
    """What the script prints; warnings are as fatal there as here."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def probe(modules: list[str], *, first: str = "") -> str:
    """A script that imports the modules and prints what else changed."""
    return f"""
import importlib, os, sys, threading
{first}
before = dict(os.environ), os.getcwd(), threading.active_count(), list(sys.path)
for module in {modules!r}:
    importlib.import_module(module)
after = dict(os.environ), os.getcwd(), threading.active_count(), list(sys.path)
assert before == after, (before, after)
print(*sorted(sys.modules))
"""


def test_importing_the_brokers_room_does_nothing_and_brings_no_torch() -> None:
    modules = [module for module in MODULES if within(module, "broker")]
    loaded = in_a_fresh_python(probe(modules)).split()
    assert not {"torch", "gymnasium", "learner", "actors", "launch"} & set(loaded)


def test_importing_the_actors_room_loads_no_algorithm() -> None:
    """Also not by a detour through a module that actors may import."""
    modules = [module for module in MODULES if within(module, "actors")]
    loaded = in_a_fresh_python(probe(modules, first="import torch, gymnasium")).split()
    extra = {name for name in loaded if within(name, "learner")} - {"learner"}
    assert [name for name in sorted(extra) if arrow("actors/any.py", f"import {name}")] == []


def test_importing_every_room_does_nothing() -> None:
    # What torch and gymnasium do on import is theirs, so they come first.
    in_a_fresh_python(probe(MODULES, first="import torch, gymnasium, matplotlib"))
