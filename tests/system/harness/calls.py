"""A forked child that stops before each of its system calls on files, and what can befall it there.

Linux on x86_64, by ptrace: the parent sees every call before the kernel does. So a kill or an error
can be put at each of them in turn, which no random moment can promise.
"""

import ctypes
import errno
import os
import platform
import signal
import sys
from collections.abc import Callable
from typing import Final, NamedTuple

# Calls that touch files, by their numbers on x86_64.
FILES: Final = {
    0: "read",
    1: "write",
    2: "open",
    3: "close",
    4: "stat",
    5: "fstat",
    6: "lstat",
    8: "lseek",
    74: "fsync",
    75: "fdatasync",
    77: "ftruncate",
    82: "rename",
    83: "mkdir",
    84: "rmdir",
    87: "unlink",
    217: "getdents64",
    257: "openat",
    258: "mkdirat",
    262: "newfstatat",
    263: "unlinkat",
    264: "renameat",
    316: "renameat2",
    332: "statx",
}

_TRACEME, _SYSCALL, _PEEKUSER, _POKEUSER, _SETOPTIONS = 0, 24, 3, 6, 0x4200
_EXITKILL, _SYSGOOD = 0x100000, 1
_ORIG_RAX, _RAX = 15 * 8, 10 * 8


class Ended(NamedTuple):
    """How the child ended."""

    status: int  # of its exit; -9 = killed
    calls: list[str]  # on files, in order


def possible() -> bool:
    return sys.platform == "linux" and platform.machine() == "x86_64"


def run(
    work: Callable[[], int],
    *,
    kill: int = -1,
    fail: int = -1,
    code: int = errno.EIO,
    lasting: bool = False,
) -> Ended:
    """Forks a child that does `work` and exits with what it returns.

    kill: before its call of that number on files it gets a SIGKILL. fail: that call fails with
    `code`, and with `lasting` every later one, too.
    """
    child = os.fork()
    if child == 0:
        status = 99
        try:
            _ptrace(_TRACEME, 0, 0, 0)
            os.kill(os.getpid(), signal.SIGSTOP)
            status = work()
        finally:
            os._exit(status)
    os.waitpid(child, 0)
    _ptrace(_SETOPTIONS, child, 0, _EXITKILL | _SYSGOOD)
    calls: list[str] = []
    entering, broken, deliver = True, False, 0
    while True:
        _ptrace(_SYSCALL, child, 0, deliver)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            return Ended(os.waitstatus_to_exitcode(status), calls)
        deliver = os.WSTOPSIG(status)
        if deliver != signal.SIGTRAP | 0x80:
            continue  # a signal on its way to the child
        deliver = 0
        if entering:
            name = FILES.get(_ptrace(_PEEKUSER, child, _ORIG_RAX, 0))
            if name is not None:
                at = len(calls)
                calls.append(name)
                if at == kill:
                    os.kill(child, signal.SIGKILL)
                    while not os.WIFSIGNALED(status):
                        _, status = os.waitpid(child, 0)
                    return Ended(-signal.SIGKILL, calls)
                broken = at == fail or (lasting and -1 < fail < at)
                if broken:
                    _ptrace(_POKEUSER, child, _ORIG_RAX, -1)  # no such call: it does nothing
        elif broken:
            _ptrace(_POKEUSER, child, _RAX, -code)
            broken = False
        entering = not entering


def _ptrace(request: int, pid: int, address: int, data: int) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    library.ptrace.restype = ctypes.c_long
    library.ptrace.argtypes = [ctypes.c_long] * 4
    ctypes.set_errno(0)
    result = int(library.ptrace(request, pid, address, data))
    if result == -1 and ctypes.get_errno():
        code = ctypes.get_errno()
        raise OSError(code, f"ptrace({request}): {os.strerror(code)}")
    return result
