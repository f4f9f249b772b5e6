"""The house rules that a machine can check: who imports whom, what no room does, how long it gets.

Each rule is a function from (path, source) to complaints, so that a planted violation can prove
it awake. A rule reads the source only: an import made at run time by name is not seen.
"""

import ast
import functools
import gc
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("broker", "learner", "actors", "launch")
SOURCES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
MODULES = sorted(
    ".".join(("headrace", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    for path in SOURCES
)

# Every folder, from the bottom up: what the files in it may import of other folders, each of which
# stands above it in this table. Between a folder and those inside it, or its parents, the rule is
# that of `circles`.
MAY_IMPORT = {
    "broker": "",
    "broker/protocol": "",
    "broker/journal": "broker/protocol",
    "broker/ledger": "broker/journal broker/protocol",
    "broker/security": "broker/protocol",
    "broker/transport": "broker/protocol broker/security",
    "broker/weights": "broker/protocol broker/transport",
    "broker/peers": (
        "broker/journal broker/protocol broker/security broker/transport broker/weights"
    ),
    "broker/transport/bulk": "broker/protocol",
    "broker/server": (
        "broker/ledger broker/protocol broker/transport broker/transport/bulk broker/weights"
    ),
    "broker/server/connections": (
        "broker/ledger broker/protocol broker/transport broker/transport/bulk"
    ),
    "learner": "broker broker/peers",
    "learner/models": "",
    "learner/models/kernels": "",
    "learner/models/population": "broker/weights learner",
    "learner/sharding": "learner learner/models",
    "learner/checkpoints": "broker learner/sharding",
    "learner/algorithms": (
        "learner/models learner/models/kernels learner/models/population learner/sharding"
    ),
    "learner/batches": (
        "broker broker/peers broker/protocol broker/transport broker/weights "
        "learner/algorithms learner/models"
    ),
    "learner/models/encoders": "learner/models/kernels",
    "learner/history": "learner",
    "learner/step": (
        "learner learner/algorithms learner/batches learner/history learner/models "
        "learner/models/kernels learner/models/population learner/sharding"
    ),
    "actors": "broker broker/peers broker/protocol learner",
    "actors/envs/agents": "broker learner learner/models",
    "actors/envs/toys": "",
    "actors/envs": "broker learner learner/models",
    "actors/stepping": "actors/envs actors/envs/agents learner",
    "actors/stepping/groups": "actors actors/envs actors/envs/agents learner",
    "actors/acting": (
        "actors/envs actors/stepping broker/weights learner learner/models learner/models/encoders "
        "learner/models/population"
    ),
    "actors/acting/central": "broker/weights learner learner/models/kernels",
    "actors/stepping/processes": "actors/envs actors/stepping/groups",
    "actors/policies": (
        "actors actors/acting actors/envs actors/envs/agents actors/stepping "
        "actors/stepping/groups learner"
    ),
    "actors/league": (
        "actors actors/acting actors/envs actors/stepping broker broker/weights learner "
        "learner/models"
    ),
    "launch": (
        "actors actors/acting actors/envs broker broker/protocol broker/security learner "
        "learner/models"
    ),
    "launch/config": (
        "actors actors/envs actors/envs/toys broker broker/protocol broker/security learner "
        "learner/algorithms learner/checkpoints"
    ),
    "launch/process": "actors broker launch/config",
    "launch/web": "broker broker/transport",
    "launch/monitor": (
        "broker broker/journal broker/protocol broker/security broker/server/connections "
        "broker/transport launch/config launch/process launch/web"
    ),
    "launch/monitor/page": "launch/web",
    "launch/results": (
        "actors actors/acting actors/envs actors/policies broker broker/journal "
        "broker/weights launch/config launch/process launch/web learner learner/algorithms "
        "learner/batches learner/checkpoints learner/models learner/models/population"
    ),
    "launch/ratings": (
        "actors actors/acting actors/envs actors/policies broker launch/config launch/process "
        "launch/results learner"
    ),
    "launch/comparison": "broker launch/config launch/process launch/results",
    "launch/explain": (
        "broker launch/comparison launch/config launch/monitor launch/process launch/results"
    ),
    "launch/sinks": "actors broker launch/config launch/process launch/results learner/models",
    "launch/trace": "broker broker/journal launch/config launch/process launch/results",
    "launch/roles": (
        "actors actors/acting actors/acting/central actors/envs actors/league actors/policies "
        "actors/stepping broker broker/journal broker/ledger broker/peers broker/protocol "
        "broker/security broker/server broker/server/connections broker/transport "
        "broker/weights launch/config launch/explain launch/monitor launch/monitor/page "
        "launch/process launch/results launch/web learner learner/algorithms learner/batches "
        "learner/checkpoints learner/models learner/models/encoders learner/models/population "
        "learner/step"
    ),
    "launch/roles/evaluation": (
        "actors actors/acting actors/envs actors/policies broker/peers broker/transport "
        "broker/weights launch/config launch/process launch/results learner "
        "learner/checkpoints learner/models"
    ),
    "launch/bench/simulated": (
        "broker broker/journal broker/peers broker/protocol broker/security broker/transport "
        "broker/weights launch/config launch/process"
    ),
    "launch/deploy": (
        "broker broker/security broker/server broker/transport launch/config launch/process"
    ),
    "launch/plan": (
        "broker broker/ledger broker/transport launch/comparison launch/config launch/process "
        "launch/results"
    ),
    "launch/doctor": (
        "broker broker/protocol broker/security broker/transport launch/config launch/plan "
        "launch/process"
    ),
    "launch/export": (
        "actors broker launch/config launch/process launch/results learner learner/models"
    ),
    "launch/local": (
        "broker broker/journal broker/peers broker/transport launch/config launch/explain "
        "launch/monitor launch/process launch/results launch/roles launch/roles/evaluation "
        "launch/sinks learner learner/batches learner/models"
    ),
    "launch/search": (
        "broker launch/comparison launch/config launch/local launch/process launch/results"
    ),
    "launch/policies": (
        "actors actors/acting actors/league actors/policies broker broker/peers launch/config "
        "launch/local launch/monitor launch/process launch/results launch/roles learner"
    ),
    "launch/node": (
        "broker broker/transport launch/config launch/policies launch/process launch/roles "
        "launch/web"
    ),
    "launch/one_process": (
        "actors actors/envs actors/policies actors/stepping broker/journal broker/peers "
        "broker/protocol broker/weights launch/config launch/local launch/process launch/roles "
        "learner learner/algorithms learner/batches learner/models"
    ),
    "launch/on_ray": "broker broker/peers broker/security launch/config launch/node launch/process",
    "launch/bench/learner": (
        "broker/peers broker/protocol broker/server launch/config learner learner/algorithms "
        "learner/batches learner/checkpoints learner/models learner/step"
    ),
    "launch/bench": (
        "actors actors/acting actors/acting/central actors/envs actors/envs/agents "
        "actors/envs/toys actors/stepping broker/journal broker/peers broker/protocol "
        "broker/transport broker/weights launch/comparison launch/config launch/local launch/plan "
        "launch/process launch/results launch/roles learner learner/algorithms learner/batches "
        "learner/models"
    ),
    "launch/bench/gates": "actors launch/config launch/policies launch/results",
    "launch/bench/lag": "launch/config launch/local launch/one_process learner learner/checkpoints",
    "launch/commands": (
        "broker broker/security broker/transport launch/bench launch/bench/gates launch/bench/lag "
        "launch/bench/learner launch/comparison launch/config launch/deploy launch/doctor "
        "launch/explain launch/export launch/local launch/monitor launch/node launch/on_ray "
        "launch/one_process launch/plan launch/policies launch/process launch/ratings "
        "launch/results launch/roles launch/roles/evaluation launch/search launch/sinks "
        "launch/trace"
    ),
}
# Of the learner's own files, those that a sampler needs, too.
FOR_ACTORS = {"learner.weights", "learner.spaces", "learner.config"}
VERB = re.compile(r"[A-Z][a-z]*s[,;.]?")
NO_VERBS = {"Always", "Its", "Thus", "This", "Yes", "Figures", "Rows", "Values", "Names", "Lines"}
VAGUE_NAMES = {"utils", "util", "common", "misc", "helpers", "helper", "base", "manager"}
# Formats and calls that run whatever they are given.
UNSAFE_MODULES = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
# What headrace.train is given as an object, on its way to the processes that it starts itself.
MAY_PICKLE = {
    "launch/local/given_objects.py",
    "learner/models/named_code.py",
    "learner/step/compile_ahead.py",  # a network, to the process that compiles its step
}
UNSAFE_CALLS = {"eval", "exec", "torch.load", "torch.save"}
# Its loop turns only while a batch is asked for, and then it waits for its tasks by name.
WAITS_ITSELF = "launch/one_process/lagged_source.py"
MAX_FILE, MAX_FUNCTION, MAX_FILES = 300, 80, 12
# Read in order, top to bottom: cutting it up would hide the order.
LONG_FUNCTIONS = {("learner/train.py", "train")}

Rule = Callable[[str, str], list[str]]


@functools.cache  # every rule reads every file
def parse(source: str) -> ast.Module:
    """Parses without the garbage collector: what it ends may write a traceback, which is parsed
    too, and Python 3.11 counts the depth of both together."""
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        gc.enable()


def imported(tree: ast.AST) -> Iterator[str]:
    """Every imported name in full: `from a import b` is a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def ours(source: str) -> Iterator[str]:
    """What is imported of this project: `from headrace.broker import config` is broker.config."""
    for name in imported(parse(source)):
        if within(name, "headrace"):
            yield name.removeprefix("headrace").removeprefix(".")


def folder_of(name: str) -> str:
    """Returns where it stands: broker.ledger.pacing.Credit -> broker/ledger."""
    folder = ROOT
    for part in name.split("."):
        if not (folder / part).is_dir():
            break
        folder /= part
    return folder.relative_to(ROOT).as_posix()


def arrow(path: str, source: str) -> list[str]:
    """A folder imports what the table allows; the public face, headrace, is above them all."""
    folder = Path(path).parent.as_posix()
    complaints = [
        f"{path}: {name} is not this project's; ours are imported as headrace.{name}"
        for name in imported(parse(source))
        if name.split(".")[0] in ROOMS
    ]
    for name in ours(source):
        other = folder_of(name)
        related = f"{other}/".startswith(f"{folder}/") or f"{folder}/".startswith(f"{other}/")
        if not name or (not related and other not in MAY_IMPORT[folder].split()):
            complaints.append(f"{path}: {folder} may not import {name or 'the public face'}")
        for_actors = other != "learner" or any(within(name, allowed) for allowed in FOR_ACTORS)
        if folder.startswith("actors") and not for_actors:
            complaints.append(f"{path}: actors may not import {name}")
    return complaints


def circles(sources: dict[str, str]) -> list[str]:
    """In every folder, its files and the folders in it import one another in one direction."""
    graph: dict[tuple[str, str], set[str]] = {}  # (folder, file or folder in it) -> of the same
    for path, source in sources.items():
        mine = Path(path).with_suffix("").parts
        for name in ours(source):
            theirs = name.split(".")
            same = 0
            while same < min(len(mine), len(theirs)) and mine[same] == theirs[same]:
                same += 1
            if 0 < same < len(mine) and same < len(theirs):
                node = ("/".join(mine[:same]), mine[same])
                graph.setdefault(node, set()).add(theirs[same])
    found = []
    finished: set[tuple[str, str]] = set()

    def visit(node: tuple[str, str], above: tuple[str, ...]) -> None:
        folder, name = node
        if name in above:
            found.append(f"{folder}: {' -> '.join((*above[above.index(name) :], name))}")
        elif node not in finished:
            for other in sorted(graph.get(node, ())):
                visit((folder, other), (*above, name))
            finished.add(node)

    for node in sorted(graph):
        visit(node, ())
    return found


def heavy_packages(path: str, source: str) -> list[str]:
    """gymnasium has one door, torch none into the broker's room; a benchmark compares with it."""
    names = list(imported(parse(source)))
    complaints = []
    allowed = path.startswith("actors/envs/") or path == "launch/bench/lockstep.py"
    if not allowed and any(within(name, "gymnasium") for name in names):
        complaints.append(f"{path}: only actors/envs/ imports gymnasium")
    if path.startswith("broker/") and any(within(name, "torch") for name in names):
        complaints.append(f"{path}: no torch in the broker's room")
    return complaints


def type_checking(path: str, source: str) -> list[str]:
    """An import for the type checker only is still a dependency; it is how circles hide."""
    return [
        f"{path}: {name} is imported under TYPE_CHECKING"
        for node in ast.walk(parse(source))
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for name in imported(node)
        if within(name, "headrace")
    ]


def vague_names(path: str, _source: str) -> list[str]:
    vague = VAGUE_NAMES & set(Path(path).with_suffix("").parts)
    return [f"{path}: {name} names no idea" for name in sorted(vague)]


def loose_tasks(path: str, source: str) -> list[str]:
    """A task is born in a TaskGroup, so that somebody waits for it and sees it fail."""
    if path == WAITS_ITSELF:
        return []
    complaints = []
    for node in ast.walk(parse(source)):
        if not isinstance(node, ast.Call):
            continue
        owner, _, name = ast.unparse(node.func).rpartition(".")
        grouped = owner.split(".")[-1].strip("_").endswith(("group", "tg"))
        if name == "ensure_future" or (name == "create_task" and not grouped):
            complaints.append(f"{path}:{node.lineno}: {owner}.{name} outside a TaskGroup")
    return complaints


def unsafe(path: str, source: str) -> list[str]:
    tree = parse(source)
    names = list(imported(tree))
    called = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    found = {name for name in names if name.split(".")[0] in UNSAFE_MODULES}
    found -= {"pickle", "cloudpickle"} if path in MAY_PICKLE else set()
    found |= UNSAFE_CALLS & {*names, *called}
    return [f"{path}: {name} runs whatever it is given" for name in sorted(found)]


def docstrings(path: str, source: str) -> list[str]:
    """Each begins with a verb: Returns, Counts, Raises."""
    return [
        f"{path}:{node.lineno}: {node.name}: {text.split()[0]} is no verb in the third person"
        for node in ast.walk(parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and (text := ast.get_docstring(node))
        and (not VERB.fullmatch(text.split()[0]) or text.split()[0] in NO_VERBS)
    ]


def code_lines(source: str) -> int:
    """Without empty lines, comments and docstrings."""
    words = (
        number
        for node in ast.walk(parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    )
    text = set(words)
    lines = enumerate((line.strip() for line in source.splitlines()), 1)
    return sum(bool(line) and line[0] != "#" and number not in text for number, line in lines)


def lengths(path: str, source: str) -> list[str]:
    complaints = []
    if (count := code_lines(source)) > MAX_FILE:
        complaints.append(f"{path}: {count} lines of code; at most {MAX_FILE}")
    for node in ast.walk(parse(source)):
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
    docstrings,
    lengths,
]


@pytest.fixture(scope="module")
def house() -> dict[str, str]:
    """Parses every file, so that the first rule does not take the time of all."""
    house = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in SOURCES}
    for source in house.values():
        parse(source)
    return house


@pytest.mark.parametrize("rule", RULES)
def test_the_house_keeps_its_rules(rule: Rule, house: dict[str, str]) -> None:
    assert house
    complaints = [complaint for path, source in house.items() for complaint in rule(path, source)]
    assert not complaints, "\n".join(complaints)


def test_no_folder_is_crowded() -> None:
    """And each says in one sentence what lives in it, and holds nothing else of its own."""
    for folder in MAY_IMPORT:
        files = [path for path in (ROOT / folder).glob("*.py") if path.stem != "__init__"]
        assert len(files) <= MAX_FILES, folder
        tree = ast.parse((ROOT / folder / "__init__.py").read_text(encoding="utf-8"))
        assert ast.get_docstring(tree) and len(tree.body) == 1, folder


def test_the_table_lists_every_folder_from_the_bottom_up() -> None:
    assert set(MAY_IMPORT) == {path.parent.relative_to(ROOT).as_posix() for path in SOURCES}
    above: set[str] = set()
    for folder, allowed in MAY_IMPORT.items():
        assert set(allowed.split()) <= above, folder
        above.add(folder)


def test_the_table_allows_nothing_that_is_not_needed() -> None:
    needed: dict[str, set[str]] = {folder: set() for folder in MAY_IMPORT}
    for path in SOURCES:
        folder = path.parent.relative_to(ROOT).as_posix()
        needed[folder] |= {folder_of(name) for name in ours(path.read_text(encoding="utf-8"))}
    for folder, allowed in MAY_IMPORT.items():
        assert set(allowed.split()) <= needed[folder], folder


def test_nothing_imports_in_a_circle() -> None:
    read = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in SOURCES}
    assert not circles(read)


def test_a_circle_would_be_seen() -> None:
    def importing(*names: str) -> str:
        return "\n".join(f"from headrace.{name} import X" for name in names)

    assert circles({"a/b.py": importing("a.c"), "a/c.py": importing("a.b")})
    three = {"a/b/x.py": importing("a.c.y"), "a/c/z.py": importing("a.d"), "a/d.py": ""}
    assert not circles(three)
    assert circles({**three, "a/d.py": "def f():\n    " + importing("a.b.w")})
    assert not circles({"a/b.py": importing("a.c.x"), "a/c/y.py": importing("a.c.x")})


@pytest.mark.parametrize(
    ("rule", "path", "source"),
    [
        (arrow, "broker/server/server.py", "import actors"),
        (arrow, "broker/server/server.py", "from broker.ledger import ledger"),
        (
            arrow,
            "broker/ledger/ledger.py",
            "def late():\n    from headrace.learner.spaces import Spaces",
        ),
        (arrow, "broker/ledger/ledger.py", "from headrace.broker.server import server"),
        (arrow, "learner/train.py", "from headrace.actors.acting import policy"),
        (arrow, "learner/train.py", "import headrace.launch.config.run_file"),
        (arrow, "actors/acting/policy.py", "from headrace.learner import train"),
        (arrow, "actors/acting/policy.py", "from headrace.learner.algorithms import vtrace"),
        (arrow, "actors/sampler.py", "import headrace.learner.models_of_another_kind"),
        (arrow, "launch/cli.py", "import headrace"),
        (heavy_packages, "broker/wire.py", "from torch import Tensor"),
        (heavy_packages, "actors/stepping/groups/vector.py", "import gymnasium.vector"),
        (
            type_checking,
            "actors/acting/policy.py",
            "if TYPE_CHECKING:\n    from headrace.learner.models import build",
        ),
        (
            type_checking,
            "actors/acting/policy.py",
            "if typing.TYPE_CHECKING:\n    import headrace.broker.config",
        ),
        (vague_names, "broker/utils.py", ""),
        (vague_names, "learner/common/maths.py", ""),
        (loose_tasks, "broker/server.py", "asyncio.create_task(beat())"),
        (loose_tasks, "broker/server.py", "create_task(beat())"),
        (loose_tasks, "broker/server.py", "asyncio.get_running_loop().create_task(beat())"),
        (loose_tasks, "broker/server.py", "asyncio.ensure_future(beat())"),
        (unsafe, "broker/wire.py", "import pickle"),
        (unsafe, "broker/wire.py", "from cloudpickle import loads"),
        (unsafe, "learner/checkpoints/checkpoint.py", "torch.load(path)"),
        (unsafe, "learner/checkpoints/checkpoint.py", "from torch import save"),
        (unsafe, "launch/cli.py", "eval(text)"),
        (lengths, "broker/wire.py", "x = 1\n" * (MAX_FILE + 1)),
        (docstrings, "broker/wire.py", 'def f():\n    """What it does."""'),
        (docstrings, "broker/wire.py", 'class A:\n    """Its sockets."""'),
        (lengths, "broker/wire.py", "def long():\n" + "    x = 1\n" * MAX_FUNCTION),
    ],
)
def test_a_planted_violation_is_caught(rule: Rule, path: str, source: str) -> None:
    assert rule(path, source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (
            "actors/acting/policy.py",
            "from headrace.learner.models import build\nfrom headrace.learner import weights\n"
            "import headrace.broker.weights.blobs",
        ),
        ("actors/envs/make.py", "import gymnasium"),
        (
            "broker/server/server.py",
            "async def serve(group):\n    group.create_task(beat(), name='beat')",
        ),
        (
            "broker/server/server.py",
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
    for room in ROOMS:
        module = importlib.import_module(f"headrace.{room}")
        assert Path(str(module.__file__)).resolve().parent == ROOT / room


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


@pytest.mark.processes
def test_importing_the_brokers_room_does_nothing_and_brings_no_torch() -> None:
    modules = [module for module in MODULES if within(module, "headrace.broker")]
    loaded = set(in_a_fresh_python(probe(modules)).split())
    others = {f"headrace.{room}" for room in ROOMS if room != "broker"}
    assert "headrace.broker" in loaded
    assert not {"torch", "gymnasium", *others} & loaded


@pytest.mark.processes
def test_importing_the_actors_room_loads_no_algorithm() -> None:
    """Also not by a detour through a module that actors may import."""
    modules = [module for module in MODULES if within(module, "headrace.actors")]
    loaded = in_a_fresh_python(probe(modules, first="import torch, gymnasium")).split()
    allowed = {"learner", "learner.models", *FOR_ACTORS}
    extra = {name.removeprefix("headrace.") for name in loaded if within(name, "headrace.learner")}
    extra = {name for name in extra if name not in allowed and not within(name, "learner.models")}
    assert extra == set()


@pytest.mark.processes
def test_importing_every_room_does_nothing() -> None:
    # What torch and gymnasium do on import is theirs, so they come first.
    in_a_fresh_python(probe(MODULES, first="import torch, gymnasium, matplotlib"))
