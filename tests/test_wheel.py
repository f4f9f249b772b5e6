"""The built wheel, in an environment of its own, beside a user's folders of everyday names."""

import json
import os
import site
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from headrace.broker.release import release

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("actors", "broker", "learner", "launch")

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds it as `pip install` would, from this checkout."""
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out), folder=ROOT)
    (built,) = out.glob(f"headrace-{release()}-py3-none-any.whl")  # as headrace units calls it
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the Python of an environment with the wheel, and what it needs from here."""
    home = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", str(home), folder=home)
    (packages,) = home.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    # A folder named in a .pth file is searched, but the .pth files in it are not read: this
    # checkout, which is installed there, stays out.
    (packages / "needed.pth").write_text("\n".join(site.getsitepackages()))
    return home / "bin" / "python"


@pytest.fixture
def users_folder(tmp_path: Path) -> Path:
    """A folder whose modules are called as our rooms are; to import one of them is an error."""
    for name in ("actors.py", "launch.py", "learner/__init__.py", "broker/__init__.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"raise SystemExit('{name} is the user\\'s own')\n")
    return tmp_path


def run(*command: str, folder: Path, status: int = 0) -> str:
    """Returns what the command prints; it must end with this status."""
    environment = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_installs_one_import_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {Path(name).parts for name in archive.namelist()}
    assert {parts[0] for parts in names if not parts[0].endswith(".dist-info")} == {"headrace"}
    assert {parts[1] for parts in names if parts[0] == "headrace" and len(parts) > 2} == {*ROOMS}
    assert ("headrace", "py.typed") in names
    assert any(parts[1:4] == ("launch", "_grafana", "alerts.yaml") for parts in names)


def test_it_works_beside_a_users_own_folders(python: Path, users_folder: Path) -> None:
    def headrace(*words: str, status: int = 0) -> str:
        script = "import sys; from headrace.launch.cli import main; sys.exit(main())"
        return run(str(python), "-c", script, *words, folder=users_folder, status=status)

    where = "import headrace.broker as room; print(room.__file__)"
    assert str(python.parent.parent) in run(str(python), "-c", where, folder=users_folder)
    headrace(
        "train",
        "cartpole",
        "--out",
        "run",
        "--stop-steps",
        "2000",
        "--quiet",
        "--set",
        "actor.stepping=processes",
        status=3,  # a limit ended it
    )
    assert json.loads((users_folder / "run" / "summary.json").read_text())["env_steps"] >= 2000
    assert "return" in headrace("play", "run", "--episodes", "1")
    headrace("export", "run", "--onnx")
    assert (users_folder / "run" / "model.onnx").stat().st_size > 1000
    headrace("units", "systemd", "--run", "cartpole", "--out", "units")
    units = {path.name for path in (users_folder / "units").iterdir()}
    assert "headrace-learner.service" in units
    # torchrun finds its door by name.
    assert "--broker" in run(
        str(python), "-m", "headrace.launch.learner", "--help", folder=users_folder
    )


def test_the_face_is_lazy_and_complete(python: Path, users_folder: Path) -> None:
    script = """
import sys
import headrace.broker, headrace
assert "torch" not in sys.modules and "headrace.launch" not in sys.modules
assert {"train", "load_policy", "Config"} <= set(dir(headrace))
try:
    headrace.no_such_name
except AttributeError as error:
    print(error)
print(headrace.Config("cartpole").run.name)
"""
    told = run(str(python), "-c", script, folder=users_folder).split("\n")
    assert told[:2] == ["module 'headrace' has no attribute 'no_such_name'", "cartpole"]
