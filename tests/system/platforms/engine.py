"""A container engine of a test's own: Podman, in namespaces whose end takes all containers along,
spoken to by docker-compose. Needs root, and Debian's podman, runc and docker-compose."""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.needs import missing
from tests.system.conftest import until
from tests.system.platforms.image import NAME, Store
from tests.system.platforms.inside import NAMESPACES, first_child, need_namespaces, run_inside
from tests.test_architecture import ROOT

_PROGRAMS = ("podman", "runc", "docker-compose", "prometheus")
# Of limits the engine asks for more than a container without CAP_SYS_RESOURCE may have.
_ENGINE = """
[containers]
default_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_config_dir = "{folder}/networks"
"""
_STORAGE = """
[storage]
driver = "{driver}"
graphroot = "{folder}/images"
runroot = "/run/containers/storage"
"""
_BOOT = """
mount -t tmpfs tmpfs /run
mkdir -p /var/lib/cni
mount -t tmpfs tmpfs /var/lib/cni
ip link set lo up
exec podman system service --time 0 unix:///run/engine.sock
"""


class Engine:
    """One that has the image, and answers."""

    def __init__(self, store: Store, folder: Path) -> None:
        (folder / "networks").mkdir()
        limits = {
            "files": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
            "processes": resource.getrlimit(resource.RLIMIT_NPROC)[1],
        }
        (folder / "engine.conf").write_text(_ENGINE.format(folder=folder, **limits))
        storage = _STORAGE.format(driver=store.driver, folder=store.folder)
        (folder / "storage.conf").write_text(storage)
        self._env = [
            f"--chdir={ROOT}",
            f"PATH={os.environ['PATH']}",
            "HOME=/run",
            f"CONTAINERS_CONF={folder}/engine.conf",
            f"CONTAINERS_STORAGE_CONF={folder}/storage.conf",
            "DOCKER_HOST=unix:///run/engine.sock",
            f"HEADRACE_IMAGE={NAME}",
        ]
        log = folder / "engine.log"
        with log.open("wb") as file:
            self._popen = subprocess.Popen(
                [*NAMESPACES, "--mount-proc", "env", *self._env, "bash", "-euc", _BOOT],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        try:
            self._first = until(lambda: first_child(self._popen, log), "the engine's first process")
            until(lambda: "true" in self.run("podman", "--remote=false", "info"), "an engine")
        except BaseException:
            self.off()
            raise

    def run(self, *words: str) -> str:
        """What a command prints there, whatever its status."""
        return run_inside(self._first, self._env, words)

    def get(self, url: str) -> str:
        """What a web server there answers; "" = there is none yet."""
        look = f"import urllib.request as u; print(u.urlopen({url!r}, timeout=5).read().decode())"
        said = self.run(sys.executable, "-c", look)
        return "" if "Traceback" in said else said

    def off(self) -> None:
        """Ends all that runs there."""
        self._popen.kill()
        self._popen.wait()


@pytest.fixture
def engine(store: Store, tmp_path: Path) -> Iterator[Engine]:
    if any(shutil.which(name) is None for name in _PROGRAMS):
        missing(f"containers need Debian's packages: apt-get install {' '.join(_PROGRAMS)}")
    need_namespaces("a container engine")
    made = Engine(store, tmp_path)
    try:
        yield made
    finally:
        made.off()
