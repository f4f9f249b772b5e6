"""The image of Headrace, built by buildah from the Containerfile on a Debian that debootstrap made.

Where base images cannot be fetched, BASE is a root of our own: the rest is what everybody builds.
Needs root, and Debian's buildah and debootstrap.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.needs import missing
from tests.test_architecture import ROOT

NAME, BASE = "localhost/headrace:1", "localhost/base:1"
BUILDS = ("--isolation", "chroot", "--network", "host")
_PACKAGES = "binutils,python3,python3-venv,ca-certificates"
# As in the slim images; and what only apt reads.
_NOT_IN_SLIM = ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/lib/apt/lists")


class Store:
    """Buildah's images, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # vfs copies every file for every layer, but runs everywhere.
        self.driver = "overlay"
        if self._run("info").returncode:
            self.driver = "vfs"

    def __call__(self, *words: str) -> str:
        done = self._run(*words)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout.strip()

    def size(self, name: str) -> int:
        """Bytes of all layers, as they lie on a disk."""
        found: dict[str, Any] = json.loads(self("inspect", "--type", "image", name))
        return sum(layer["size"] for layer in json.loads(found["Manifest"])["layers"])

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        own = ("--root", str(self.folder / "images"), "--runroot", str(self.folder / "run"))
        return subprocess.run(
            ["buildah", *own, "--storage-driver", self.driver, *words],
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=1800,
            check=False,
        )


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One that has the image, and leaves none of its gigabytes behind."""
    for tool in ("buildah", "debootstrap"):
        if os.geteuid() or shutil.which(tool) is None:
            missing(f"building an image needs root and, on Debian, apt-get install {tool}")
    folder = tmp_path_factory.mktemp("image")
    store = Store(folder)
    try:
        _make_base(store, folder / "debian")
        words = ("--build-arg", f"BASE={BASE}", "--file", "Containerfile", "--tag", NAME)
        store("build", *BUILDS, *_mounts(folder), *words, ".")
        yield store
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _make_base(store: Store, root: Path) -> None:
    """An image of a small Debian with Python."""
    words = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm", str(root)]
    subprocess.run(words, check=True, capture_output=True, timeout=1800)
    for leftover in (root / "var/cache/apt/archives").glob("*.deb"):
        leftover.unlink()
    for folder in _NOT_IN_SLIM:
        shutil.rmtree(root / folder)
    made = store("from", "scratch")
    store("add", "--quiet", made, str(root), "/")
    store("commit", "--quiet", made, BASE)
    store("rm", made)
    shutil.rmtree(root)


def _mounts(folder: Path) -> list[str]:
    """What this machine's pip is told, for the pip in there."""
    told = {"find-links": "PIP_FIND_LINKS", "cert": "PIP_CERT", "index-url": "PIP_INDEX_URL"}
    lines = [f"{key} = {os.environ[name]}" for key, name in told.items() if name in os.environ]
    (folder / "pip.conf").write_text("\n".join(["[global]", "timeout = 180", *lines, ""]))
    links = os.environ.get("PIP_FIND_LINKS", "")
    given = [f"{folder / 'pip.conf'}:/etc/pip.conf:ro", "/etc/ssl/certs:/etc/ssl/certs:ro"]
    given += [f"{path}:{path}:ro" for path in links.split() if Path(path).is_dir()]
    return [word for volume in given for word in ("--volume", volume)]
