"""The image, built from the Containerfile on a Debian that debootstrap made, and a run in it.

Where base images cannot be fetched, BASE is a root of our own: the rest is what everybody builds.
Needs root, and Debian's buildah and debootstrap; ten minutes, so `make soak` runs it.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.needs import missing
from tests.test_architecture import ROOT

pytestmark = pytest.mark.skipif("HEADRACE_SOAK" not in os.environ, reason="long: make soak")

# That a build for CPUs adds to its base: with the 130 MB of the slim one it stays below 1 GB.
MOST_BYTES = 850_000_000
BUILDS = ("--isolation", "chroot", "--network", "host")
_PACKAGES = "binutils,python3,python3-venv,ca-certificates"


class Store:
    """Buildah's images, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self._own = ["--root", str(folder / "images"), "--runroot", str(folder / "run")]

    def __call__(self, *words: str) -> str:
        done = subprocess.run(
            ["buildah", *self._own, "--storage-driver", "vfs", *words],
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=1800,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout.strip()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    for tool in ("buildah", "debootstrap"):
        if os.geteuid() or shutil.which(tool) is None:
            missing(f"building an image needs root and, on Debian, apt-get install {tool}")
    return Store(tmp_path)


def base(store: Store, folder: Path) -> str:
    """An image of a small Debian with Python."""
    root = folder / "debian"
    words = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm", str(root)]
    subprocess.run(words, check=True, capture_output=True, timeout=1800)
    for leftover in (root / "var/cache/apt/archives").glob("*.deb"):
        leftover.unlink()
    made = store("from", "scratch")
    store("add", "--quiet", made, str(root), "/")
    store("commit", "--quiet", made, "localhost/base:1")
    return "localhost/base:1"


def mounts(folder: Path) -> list[str]:
    """What this machine's pip is told, for the pip in there."""
    told = {"find-links": "PIP_FIND_LINKS", "cert": "PIP_CERT", "index-url": "PIP_INDEX_URL"}
    lines = [f"{key} = {os.environ[name]}" for key, name in told.items() if name in os.environ]
    (folder / "pip.conf").write_text("\n".join(["[global]", "timeout = 180", *lines, ""]))
    links = os.environ.get("PIP_FIND_LINKS", "")
    given = [f"{folder / 'pip.conf'}:/etc/pip.conf:ro", "/etc/ssl/certs:/etc/ssl/certs:ro"]
    given += [f"{path}:{path}:ro" for path in links.split() if Path(path).is_dir()]
    return [word for volume in given for word in ("--volume", volume)]


def test_the_image_is_small_and_trains_as_nobody(store: Store, tmp_path: Path) -> None:
    more = ("--build-arg", f"BASE={base(store, tmp_path)}", "--file", "Containerfile")
    store("build", *BUILDS, *mounts(tmp_path), *more, "--tag", "localhost/headrace:1", ".")
    made = store("from", "localhost/headrace:1")
    files = Path(store("mount", made))
    taken = sum(
        path.lstat().st_blocks * 512
        for path in (files / "opt/headrace").rglob("*")
        if not path.is_symlink()
    )
    print(f"{taken / 1e6:.0f} MB")  # noqa: T201
    assert taken < MOST_BYTES
    inside = ("run", "--isolation", "chroot", made, "--")
    assert store(*inside, "id", "-u") == "10001"
    train = ("headrace", "train", "cartpole", "--out", "/runs/one", "--set", "stop.steps=2000")
    store(*inside, *train, "--set", "stop.return=none", "--no-evaluate", "--quiet")
    store(*inside, "headrace", "audit", "/runs/one")  # 0 = exact
