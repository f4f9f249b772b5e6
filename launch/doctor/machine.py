"""The machine: packages, cores, memory, descriptors, disk. Nothing is left behind."""

import importlib.metadata
import os
import platform
import re
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path

import zmq

from headrace.broker.config import BrokerConfig
from headrace.launch.doctor.finding import BAD, OK, WARN, Finding, Subject
from headrace.launch.process import descriptors as limits
from headrace.launch.process import runtime

_MB = 2**20
# Memory of one learner, sampler or evaluator: torch takes most of it.
_PROCESS_MB = 300
_SHM_MB = 64
_ROOM_MB, _LITTLE_ROOM_MB = 100, 1024
_SHOWN = ("torch", "numpy", "gymnasium", "pyzmq", "uvloop")


def packages(_: Subject) -> Iterator[Finding]:
    """Compares the installed packages with what this release requires, extras left out."""
    wrong = []
    for wanted in importlib.metadata.requires("headrace") or []:
        if "extra ==" in wanted:
            continue
        name, least = _requirement(wanted)
        have = _installed(name)
        if have is None:
            wrong.append(f"{name} is not installed")
        elif _version_numbers(have) < _version_numbers(least):
            wrong.append(f"{name} is {have}, at least {least} is needed")
    if wrong:
        yield Finding(BAD, "packages", f"{'; '.join(wrong)}: pip install -U headrace")
        return
    shown = ", ".join(f"{name} {_installed(name)}" for name in _SHOWN if _installed(name))
    ours = f"headrace {_installed('headrace')}, Python {platform.python_version()}"
    yield Finding(OK, "packages", f"{ours}, {shown}, libzmq {zmq.zmq_version()}")


def curve(subject: Subject) -> Iterator[Finding]:
    wanted = subject.key is not None or (subject.run is not None and subject.run.security.curve)
    if not zmq.has("curve"):
        words = "this libzmq has no CURVE, so no keys: pip install --force-reinstall pyzmq"
        yield Finding(BAD if wanted else WARN, "encryption", words)


def cores(subject: Subject) -> Iterator[Finding]:
    mine, all_of_them = runtime.cores(), os.cpu_count() or 1
    share = _quota(Path("/sys/fs/cgroup/cpu.max"))
    words = f"{mine}" if mine == all_of_them else f"{mine} of {all_of_them} by affinity"
    if share is not None and share < mine:
        words, mine = f"{words}, held down to {share:g} by the cgroup's cpu.max", max(1, int(share))
    count = 0 if subject.run is None else subject.run.actor.count
    if count > mine:
        lower = f"; lower actor.count, {count}, to as many: more only get into each other's way"
        yield Finding(WARN, "cores", f"{words}{lower}")
    else:
        yield Finding(OK, "cores", words)


def memory(subject: Subject) -> Iterator[Finding]:
    free = _free_mb(Path("/proc/meminfo"), Path("/sys/fs/cgroup"))
    if free is None:
        yield Finding(WARN, "memory", "unknown: /proc/meminfo cannot be read")
        return
    run = subject.run
    needed = float(_PROCESS_MB)
    if run is not None:
        needed = run.broker.queue_mb + _PROCESS_MB * (1 + run.actor.count)
    words = f"{free:,.0f} MB free, about {needed:,.0f} needed"
    if free < needed:
        lower = "; lower broker.queue_mb or actor.count" if run is not None else ""
        yield Finding(WARN, "memory", f"{words}{lower}")
    else:
        yield Finding(OK, "memory", words)


def shared_memory(_: Subject) -> Iterator[Finding]:
    """Checks memfd (used by actor.stepping = processes) and /dev/shm (used by NCCL with several
    GPUs)."""
    try:
        descriptor = os.memfd_create("doctor")
        try:
            os.ftruncate(descriptor, _MB)
            os.pwrite(descriptor, b"x", _MB - 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        words = f'no memfd here ({error.strerror}): set actor.stepping = "inline" or "threads"'
        yield Finding(BAD, "shared memory", words)
        return
    room = _free_disk_mb(Path("/dev/shm"))
    if room is None or room <= _SHM_MB:
        size = "no /dev/shm" if room is None else f"/dev/shm has {room:,.0f} MB"
        words = f"{size}: too little for learners on several GPUs; docker run --shm-size=1g"
        yield Finding(WARN, "shared memory", words)
    else:
        yield Finding(OK, "shared memory", f"memfd works, /dev/shm has {room:,.0f} MB")


def descriptors(subject: Subject) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    fitting = limits.fitting_peers()
    words = f"{soft} (at most {hard}), enough for a broker of {fitting:,} peers"
    peers = 0 if subject.run is None else subject.run.broker.peers
    if peers == BrokerConfig().peers:  # the default: the user has not set it
        peers = 0
    if fitting < 1:
        yield Finding(BAD, "descriptors", f"{words}; raise it: ulimit -n 4096, or LimitNOFILE=4096")
    elif peers > fitting:
        needed = limits.of_broker(peers)
        mend = f"{peers:,} need {needed}: ulimit -n {needed}, or LimitNOFILE={needed}"
        yield Finding(WARN, "descriptors", f"{words}; {mend}")
    else:
        yield Finding(OK, "descriptors", words)


def disk(subject: Subject) -> Iterator[Finding]:
    """Checks the folders of runs and of sockets."""
    run = subject.run
    out = Path("headrace-runs") / (run.run.name if run is not None else "")
    folders = {
        "disk": _existing_folder(out.absolute()),
        "temporary files": Path(tempfile.gettempdir()),
    }
    for what, folder in folders.items():
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(bytes(65536))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            mend = "choose another folder with --out" if what == "disk" else "set TMPDIR"
            yield Finding(BAD, what, f"{folder}: {error.strerror}; {mend}")
            continue
        yield _disk_finding(what, folder, _free_disk_mb(folder) or 0.0)


def _disk_finding(what: str, folder: Path, room: float) -> Finding:
    words = f"{folder} has {room:,.0f} MB free"
    if room < _ROOM_MB:
        return Finding(BAD, what, f"{words}: make room, checkpoints could not be written")
    if room < _LITTLE_ROOM_MB and what == "disk":
        return Finding(WARN, what, f"{words}: little for checkpoints and the ledger")
    return Finding(OK, what, words)


def _existing_folder(path: Path) -> Path:
    """Returns the folder itself, or its nearest parent that exists."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _free_disk_mb(folder: Path) -> float | None:
    try:
        state = os.statvfs(folder)
    except OSError:
        return None
    return state.f_bavail * state.f_frsize / _MB


def _quota(cpu_max: Path) -> float | None:
    """Returns the cores that the control group may use; None = all."""
    try:
        quota, period = cpu_max.read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError):  # "max 100000"
        return None


def _free_mb(meminfo: Path, cgroup: Path) -> float | None:
    """Returns the free memory by the kernel, or by the control group's limit if that is less."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
    except OSError:
        return None
    if found is None:
        return None
    free = int(found[1]) / 1024
    try:
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
    except (OSError, ValueError):  # "max"
        return free
    return min(free, (limit - used) / _MB)


def _requirement(wanted: str) -> tuple[str, str]:
    """Splits a requirement: `pyzmq>=26; marker` -> pyzmq, 26."""
    plain = wanted.partition(";")[0]
    name = re.match(r"[A-Za-z0-9._-]+", plain)
    least = re.search(r">=\s*([0-9.]+)", plain)
    return name[0] if name else plain, least[1] if least else "0"


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _version_numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"[0-9.]+", version)
    return tuple(int(part) for part in found[0].split(".") if part) if found else ()


CHECKS = (packages, curve, cores, memory, shared_memory, descriptors, disk)
