"""What locks one process in, by the kernel's own means: namespaces, mounts, limits, rights (and see call_filter.py).

Runs in the warm parent (jail_starter.py), which bubblewrap has already given a read-only root without any file of the
course's. Only calls the C library; knows nothing of grading.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import resource
import socket
import struct
import sys
from dataclasses import dataclass

NEW_NS, NEW_UTS, NEW_IPC, NEW_USER, NEW_PID, NEW_NET = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = (
    1, 2, 4, 8, 32, 4096, 16384, 1 << 18,
)  # fmt: skip
_FLAGS = {"nosuid": MS_NOSUID, "nodev": MS_NODEV, "noexec": MS_NOEXEC, "noatime": 1 << 10, "nodiratime": 1 << 11,
          "relatime": 1 << 21}  # fmt: skip
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP = 1, 4, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Limits:
    """Bounds of one sandboxed process and of everything it starts."""

    memory_bytes: int = 4 * 2**30  # all processes together, beyond what they share with the warm parent
    scratch_bytes: int = 512 * 2**20
    file_bytes: int = 256 * 2**20
    processes: int = 384  # threads count
    open_files: int = 4096
    nice: int = 0  # of what runs a student's code: it gives way to the other processes of its control group


def call(name: str, *args) -> int:
    """A function of the C library.

    Raises:
        OSError: it failed.
    """
    result = getattr(_libc, name)(*args)
    if result == -1:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return result


def prctl(option: int, value: int = 0) -> int:
    """prctl(2) with one argument."""
    zero = ctypes.c_ulong(0)
    return call("prctl", option, ctypes.c_ulong(value), zero, zero, zero)


def unshare(flags: int) -> None:
    """unshare(2)."""
    call("unshare", flags)


def back_to(pid_namespace_fd: int) -> None:
    """Children are born in the given process namespace again."""
    call("setns", pid_namespace_fd, NEW_PID)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    call("mount", source.encode(), target.encode(), kind.encode() if kind else None, ctypes.c_ulong(flags),
          options.encode())  # fmt: skip


def make_private() -> None:
    """What is mounted from now on is so for this process, and what it forks, alone."""
    _mount("none", "/", None, MS_REC | MS_PRIVATE)


def cover(folder: str) -> None:
    """An empty folder in the place of one that is there."""
    _mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV | MS_RDONLY, "size=4096,mode=755")


def close_what_is_mounted(meet: str) -> None:
    """From now on nothing that is mounted here can be written to but a bounded folder `meet`, also by its owner.

    As an ordinary user the jailed processes own what bubblewrap has made, /dev for example, and all jails have it.
    """
    make_private()
    _mount("/dev/full", "/dev/zero", None, MS_BIND)  # which gives zeros, too, but no memory to share
    with open("/proc/self/mountinfo") as mounted:
        rows = [line.split() for line in mounted]
    for _, _, _, _, folder, options, *_ in rows:
        flags = sum(_FLAGS.get(option, 0) for option in options.split(","))
        folder = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), folder)
        if not folder.startswith("/proc"):  # each jail has its own
            _mount("none", folder, None, MS_REMOUNT | MS_BIND | MS_RDONLY | flags)
    _mount("tmpfs", meet, "tmpfs", MS_NOSUID | MS_NODEV, "size=1048576,nr_inodes=200,mode=711")


def own_files(scratch: str, uid: int, limits: Limits, *, sees_machine: bool) -> None:
    """A fresh /proc, terminals, and one bounded file system in memory for the scratch folder, /tmp and /dev/shm.

    sees_machine: whether /proc also tells what the machine does: counts that a later process could compare.
    """
    make_private()
    own_processes(sees_machine=sees_machine)
    _mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620,max=16")
    options = f"size={limits.scratch_bytes},nr_inodes=20000,mode=700,uid={uid},gid={uid}"
    _mount("tmpfs", scratch, "tmpfs", MS_NOSUID | MS_NODEV, options)
    kept = [
        (path, os.open(path, os.O_PATH)) for path in sorted({sys.prefix, sys.base_prefix}) if path.startswith("/tmp/")
    ]
    for name, target in (("tmp", "/tmp"), ("shm", "/dev/shm"), ("home", None)):
        path = os.path.join(scratch, "." + name)
        os.mkdir(path, 0o700)
        os.chown(path, uid, uid)
        if target:
            _mount(path, target, None, MS_BIND)
    for path, fd in kept:  # an environment that lies in /tmp stays visible
        os.makedirs(path, exist_ok=True)
        _mount(f"/proc/self/fd/{fd}", path, None, MS_BIND | MS_REC)
        os.close(fd)


def own_processes(*, sees_machine: bool) -> None:
    """A /proc of this process namespace."""
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    try:
        _mount("proc", "/proc", "proc", flags, "" if sees_machine else "subset=pid")
    except OSError:  # Linux before 5.8
        _mount("proc", "/proc", "proc", flags)


def open_meeting(folder: str) -> None:
    """Makes one folder writable again in this mount namespace."""
    _mount(folder, folder, None, MS_BIND)
    _mount("none", folder, None, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV)


def read_only(folder: str) -> None:
    """Nothing below a mount can be written to in this mount namespace."""
    _mount("none", folder, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def loopback_up() -> None:
    """Brings up `lo` in the process's own network namespace; gloo meets there, and nothing else is there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        request = struct.pack("16sh14x", b"lo", 0x1 | 0x40)  # IFF_UP, IFF_RUNNING
        fcntl.ioctl(s, 0x8914, request)  # SIOCSIFFLAGS


def set_limits(limits: Limits) -> None:
    """Per-process bounds; the total of memory is watched by the warm parent."""
    data, address = in_use()
    bounds = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NPROC: limits.processes,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_SIGPENDING: limits.open_files,  # timers count
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_DATA: data + limits.memory_bytes,
        resource.RLIMIT_AS: address + limits.memory_bytes + 2**33,  # thread stacks and arenas are mostly not used
    }
    for what, bound in bounds.items():
        hard = resource.getrlimit(what)[1]
        bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(what, (bound, bound))


def goes_first() -> None:
    """If memory is short, the kernel ends this process and what it starts before any other."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def in_use() -> tuple[int, int]:
    """(VmData, VmSize) of this process, in bytes."""
    with open("/proc/self/status") as status:
        sizes = dict(line.split(":", 1) for line in status)
    return tuple(int(sizes[name].split()[0]) * 1024 for name in ("VmData", "VmSize"))


def drop_rights(uid: int | None) -> None:
    """No capability is left, none can come back; as root the process also becomes user `uid`."""
    for capability in range(64):
        if _libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) == -1:
            break  # past the last one
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    drop_capabilities()
    prctl(PR_SET_PDEATHSIG, 9)


def drop_capabilities() -> None:
    """This process has no capability."""
    header = struct.pack("Ii", 0x20080522, 0)
    call("capset", ctypes.create_string_buffer(header), ctypes.create_string_buffer(24))
