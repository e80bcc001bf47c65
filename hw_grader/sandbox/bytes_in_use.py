"""How much an answers' process has in use, whatever holds it: tensors or texts, on an object or nowhere to be found.

What the C library and Python's own allocator have given out, and what lies in files, pipes and child processes. It says
nothing of a small object among all that a process has; so a check asks before and after, with large numbers between.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import stat
import sys
import termios
from gc import collect  # our own: a student may replace gc's

from hw_grader.sandbox.memory_in_use import of_process

_SMALL_BYTES = 32  # of what Python's own allocator gives out, the least that a number takes
_FILE_BYTES = 256  # of a file's name
_JAILS_BYTES = 2**30  # a larger file system is not a jail's own


class _Given(ctypes.Structure):
    """mallinfo2(3)."""

    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks",
                                                     "fsmblks", "uordblks", "fordblks", "keepcost")]  # fmt: skip


_mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
if _mallinfo is not None:
    _mallinfo.restype = _Given


def bytes_in_use() -> int | None:
    """All of it, to some kilobytes; None where the C library does not say, as another one than glibc."""
    if _mallinfo is None:
        return None
    collect()
    given = _mallinfo()
    small = sys.getallocatedblocks() * _SMALL_BYTES
    return given.uordblks + given.hblkhd + small + _in_files() + _under_way() + _in_children()


def _in_files() -> int:
    systems: dict[int, os.statvfs_result] = {}
    for folder in (".", "/tmp", "/dev/shm"):
        with contextlib.suppress(OSError):  # it is not there
            systems[os.stat(folder).st_dev] = os.statvfs(folder)
    own = [system for system in systems.values() if system.f_blocks * system.f_frsize <= _JAILS_BYTES]
    return sum((s.f_blocks - s.f_bfree) * s.f_frsize + (s.f_files - s.f_ffree) * _FILE_BYTES for s in own)


def _under_way() -> int:
    """In pipes and sockets that this process can read."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile; or it listens, and there is nothing to read
            mode = os.fstat(int(name)).st_mode
            if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
                count = fcntl.ioctl(int(name), termios.FIONREAD, bytes(4))
                total += int.from_bytes(count, sys.byteorder)
    return total


def _in_children() -> int:
    """In the other processes of this session, which what a jailed process starts cannot leave."""
    others = (pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != os.getpid())
    return sum(of_process(pid) for pid in others if _session_of(pid) == os.getsid(0))


def _session_of(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[3])
    except OSError:
        return -1
