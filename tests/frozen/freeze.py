"""Freezes the roles of a release, so that tests can run them beside today's.

    python -m tests.frozen.freeze COMMIT

`release.tar.xz` holds the modules that its roles and `headrace top` import or start, without
comments, docstrings of functions and annotations: half the size. `keys.json` holds the settings
that it tells its peers, each with its type. When PROTOCOL becomes a number more, freeze the last
commit before.
"""

import ast
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
ARCHIVE, KEYS = HERE / "release.tar.xz", HERE / "keys.json"

_LOOK: Final = """
import json, sys
import headrace.launch.cli
import headrace.launch.monitor.top, headrace.launch.node.forker, headrace.launch.node.node
import headrace.launch.roles.broker, headrace.launch.roles.learner
import headrace.launch.roles.evaluation.evaluator
import headrace.launch.roles.relay, headrace.launch.roles.sampler
import headrace.actors.stepping.processes.host  # a process of its own, where steps take long
from tests.frozen.freeze import key_types
ours = [module for name, module in sys.modules.items() if name.split(".")[0] == "headrace"]
files = [getattr(module, "__file__", "") for module in ours]
print(json.dumps({"files": sorted(filter(None, files)), "keys": key_types()}))
"""


def key_types() -> dict[str, Any]:
    """Returns "section.key" -> its type, of the settings that the imported release tells."""
    import msgspec

    from headrace.launch.config import run_file, shared_run

    found = {}
    for section, keys in shared_run.for_peers(run_file.Run()).items():
        for key in keys:
            schema = msgspec.json.schema(run_file.SECTIONS[section][key].type)
            found[f"{section}.{key}"] = _without_descriptions(schema)
    return found


def unpack(folder: Path) -> Path:
    """Unpacks the frozen release there; returns what must stand first in PYTHONPATH."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def _without_descriptions(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {k: _without_descriptions(v) for k, v in schema.items() if k != "description"}
    return [_without_descriptions(part) for part in schema] if isinstance(schema, list) else schema


class _Smaller(ast.NodeTransformer):
    """Removes what a program does without. Annotations of fields and what is said of sections stay:
    they are data here."""

    def visit_Module(self, node: ast.Module) -> ast.AST:
        self.generic_visit(node)
        node.body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        if ast.get_docstring(node) is not None and "Struct" not in map(ast.unparse, node.bases):
            node.body = node.body[1:] or [ast.Pass()]
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        node.returns = None
        return node

    visit_AsyncFunctionDef: Any = visit_FunctionDef  # noqa: N815

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node


def _add(archive: tarfile.TarFile, path: Path, text: str) -> None:
    body = text.encode()
    entry = tarfile.TarInfo(str(path))
    entry.size = len(body)
    archive.addfile(entry, io.BytesIO(body))


def freeze(commit: str) -> None:
    with tempfile.TemporaryDirectory() as at:
        packed = subprocess.run(["git", "archive", commit], capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(at, filter="data")
        path = os.pathsep.join([at, str(HERE.parents[1])])
        look = [sys.executable, "-P", "-c", _LOOK]
        told = subprocess.run(
            look, capture_output=True, check=True, cwd=at, env={**os.environ, "PYTHONPATH": path}
        )
        found = json.loads(told.stdout)
        sources = [Path(file) for file in found["files"]]
        with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
            for file in sources:
                tree = ast.parse(file.read_text(encoding="utf-8"))
                _add(archive, file.relative_to(at), ast.unparse(_Smaller().visit(tree)))
            for file in sorted({o for source in sources for o in source.parent.iterdir()}):
                if file.is_file() and file.suffix not in (".py", ".md"):
                    _add(archive, file.relative_to(at), "")  # the page's, which no test looks at
    lines = (f"{json.dumps(key)}: {json.dumps(of)}" for key, of in sorted(found["keys"].items()))
    KEYS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{ARCHIVE.name}: {ARCHIVE.stat().st_size:,} bytes of {commit}")  # noqa: T201


if __name__ == "__main__":
    freeze(sys.argv[1])
