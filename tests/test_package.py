"""What is installed, and what a build server runs: read from a wheel that is built here."""

import re
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Builds the wheel with the build backend that is installed; nothing is fetched."""
    folder = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    [path] = folder.glob("headrace-*.whl")
    return zipfile.ZipFile(path)


def metadata(wheel: zipfile.ZipFile) -> Message:
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return Parser().parsestr(wheel.read(name).decode())


def project() -> dict[str, str]:
    found: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def test_the_licence_and_the_metadata_travel_with_it(wheel: zipfile.ZipFile) -> None:
    [licence] = [name for name in wheel.namelist() if name.endswith("/licenses/LICENSE")]
    text = wheel.read(licence).decode()
    assert "Apache License" in text and "END OF TERMS AND CONDITIONS" in text
    told = metadata(wheel)
    assert told["License-Expression"] == "Apache-2.0"
    assert told["Author"] == "Headrace contributors" and told["Summary"] and told["Keywords"]
    assert "Typing :: Typed" in told.get_all("Classifier", [])


def test_every_python_that_is_named_is_one_that_the_build_server_tries(
    wheel: zipfile.ZipFile,
) -> None:
    classifiers = metadata(wheel).get_all("Classifier", [])
    named = [line.rsplit(" ", 1)[1] for line in classifiers if re.search(r":: 3\.\d+$", line)]
    assert project()["requires-python"] == f">={named[0]}"
    assert workflow()["python"] == named


def workflow() -> dict[str, list[str]]:
    """Returns the matrix: what every job of the build server is made from."""
    text = (ROOT / ".github/workflows/ci.yml").read_text()
    assert re.findall(r"run: (.+)", text) == [".ci/run ${{ matrix.step }}"]
    lists = re.findall(r"^ +(python|step): \[(.+)\]$", text, re.MULTILINE)
    return {name: re.findall(r"[\w.]+", entries) for name, entries in lists}


def test_the_build_server_runs_steps_that_there_are() -> None:
    asked = subprocess.run(
        [ROOT / ".ci/run", "no-such-step"], capture_output=True, text=True, check=False
    )
    assert asked.returncode == 2 and asked.stdout == ""
    there = re.findall(r"\w+", asked.stderr.partition("only")[2].replace(" and ", " "))
    assert workflow()["step"] == there
    makefile = (ROOT / "Makefile").read_text()
    assert all(f"\n{step}:" in makefile for step in there)


def test_the_changelog_begins_with_this_version(wheel: zipfile.ZipFile) -> None:
    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == project()["version"] == metadata(wheel)["Version"]
    assert len(versions) == len(set(versions)) and versions[-1] == "0.1.0"


def test_the_command_says_its_version_and_loads_no_torch() -> None:
    script = (
        "import sys\n"
        "from launch import cli\n"
        "try:\n    cli.main(['--version'])\n"
        "finally:\n    assert 'torch' not in sys.modules\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout == f"headrace {project()['version']}\n"
