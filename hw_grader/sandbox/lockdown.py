"""What locks one process in, by the kernel's own means: namespaces, mounts, limits, a system call filter.

Runs in the warm parent (zygote.py), which bubblewrap has already given a read-only root without any file of the
course's. Only calls the C library; knows nothing of grading.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import resource
import socket
import struct
import sys
from dataclasses import dataclass

NEW_NS, NEW_UTS, NEW_IPC, NEW_USER, NEW_PID, NEW_NET = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 4096, 16384, 1 << 18
HUGE, MADV_COLLAPSE = 2**21, 25
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 4, 22, 24
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


def _call(name: str, *args) -> int:
    result = getattr(_libc, name)(*args)
    if result == -1:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return result


def prctl(option: int, value: int = 0) -> int:
    """prctl(2) with one argument."""
    zero = ctypes.c_ulong(0)
    return _call("prctl", option, ctypes.c_ulong(value), zero, zero, zero)


def unshare(flags: int) -> None:
    """unshare(2)."""
    _call("unshare", flags)


def huge_pages() -> None:
    """Puts what this process has allocated into pages of 2 MiB where the kernel can (Linux 6.1).

    A fork copies 512 times fewer entries then: 3 ms instead of 11 with torch imported. A page that is written to
    afterwards is still copied by 4 KiB.
    """
    with open("/proc/self/maps") as maps:
        lines = [line.split() for line in maps]
    for addresses, rights, _, _, _, *name in lines:
        if rights != "rw-p" or name not in ([], ["[heap]"]):
            continue
        low, high = (int(end, 16) for end in addresses.split("-"))
        low, high = -(-low // HUGE) * HUGE, high // HUGE * HUGE
        if low < high:  # what it gives is no matter: nothing may be there yet, or the kernel does not know it
            _libc.madvise(ctypes.c_void_p(low), ctypes.c_size_t(high - low), MADV_COLLAPSE)


def back_to(pid_namespace_fd: int) -> None:
    """Children are born in the given process namespace again."""
    _call("setns", pid_namespace_fd, NEW_PID)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    _call("mount", source.encode(), target.encode(), kind.encode() if kind else None, ctypes.c_ulong(flags),
          options.encode())  # fmt: skip


def make_private() -> None:
    """What is mounted from now on is so for this process, and what it forks, alone."""
    _mount("none", "/", None, MS_REC | MS_PRIVATE)


def cover(folder: str) -> None:
    """An empty folder in the place of one that is there."""
    _mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV | MS_RDONLY, "size=4096,mode=755")


def own_files(scratch: str, uid: int, limits: Limits) -> None:
    """A fresh /proc, and one bounded file system in memory for the scratch folder, /tmp and /dev/shm."""
    make_private()
    _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV)
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


def loopback_up() -> None:
    """Brings up `lo` in the process's own network namespace; gloo meets there, and nothing else is there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        request = struct.pack("16sh14x", b"lo", 0x1 | 0x40)  # IFF_UP, IFF_RUNNING
        fcntl.ioctl(s, 0x8914, request)  # SIOCSIFFLAGS


def set_limits(limits: Limits) -> None:
    """Per-process bounds; the total of memory is watched by the warm parent."""
    data, address = _in_use()
    bounds = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NPROC: limits.processes,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_DATA: data + limits.memory_bytes,
        resource.RLIMIT_AS: address + limits.memory_bytes + 2**33,  # thread stacks and arenas are mostly not used
    }
    for what, bound in bounds.items():
        hard = resource.getrlimit(what)[1]
        bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(what, (bound, bound))


def _in_use() -> tuple[int, int]:
    """(VmData, VmSize) in bytes."""
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
    header = struct.pack("Ii", 0x20080522, 0)
    _call("capset", ctypes.create_string_buffer(header), ctypes.create_string_buffer(24))
    prctl(PR_SET_PDEATHSIG, 9)


# System calls that an exercise never needs and an escape often does: (number, errno) by machine.
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_DENIED = {
    "x86_64": (0xC000003E, {
        "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "unshare": 272, "setns": 308, "mount": 165,
        "umount2": 166, "pivot_root": 155, "keyctl": 250, "add_key": 248, "request_key": 249, "bpf": 321,
        "perf_event_open": 298, "userfaultfd": 323, "memfd_create": 319, "shmget": 29, "msgget": 68,
        "open_by_handle_at": 304,
    }, 56),
    "aarch64": (0xC00000B7, {
        "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "unshare": 97, "setns": 268, "mount": 40,
        "umount2": 39, "pivot_root": 41, "keyctl": 219, "add_key": 217, "request_key": 218, "bpf": 280,
        "perf_event_open": 241, "userfaultfd": 282, "memfd_create": 279, "shmget": 194, "msgget": 186,
        "open_by_handle_at": 265,
    }, 220),
}  # fmt: skip
_DENIED_EVERYWHERE = {
    "io_uring_setup": 425, "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsmount": 432, "pidfd_getfd": 438,
    "mount_setattr": 442, "memfd_secret": 447,
}  # fmt: skip
_CLONE3 = 435
_SETSOCKOPT = {"x86_64": 54, "aarch64": 208}
_SOL_SOCKET, _BUFFER_SIZES = 1, (7, 8, 32, 33)  # SO_SNDBUF, SO_RCVBUF, and both by force
SOCKET_BYTES = 2**18  # at most in a socket's buffers, as long as nobody may ask for larger ones
_SOCKET = {"x86_64": (41, 53), "aarch64": (198, 199)}  # socket and socketpair
_FAMILIES = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK: all of them end at the network namespace
_SETSID = {"x86_64": 112, "aarch64": 157}


def filter_calls() -> bool:
    """Denies the system calls above for this process and its children; False on a machine it does not know."""
    known = _DENIED.get(platform.machine())
    if known is None:
        return False
    _install(_program(*known))
    _install(_sizes_stay(_SETSOCKOPT[platform.machine()]))
    _install(_families_only(*_SOCKET[platform.machine()]))
    return True


def _sizes_stay(setsockopt: int) -> list[bytes]:
    """A program for which asking for another size of a socket's buffers succeeds, and does nothing."""
    load, equal, give = 0x20, 0x15, 0x06
    n = len(_BUFFER_SIZES)
    program = [_op(load, 0), _op(equal, setsockopt, 0, n + 3), _op(load, 24), _op(equal, _SOL_SOCKET, 0, n + 1)]
    program += [_op(load, 32), *(_op(equal, name, n - k, 0) for k, name in enumerate(_BUFFER_SIZES))]
    return [*program, _op(give, 0x7FFF0000), _op(give, 0x00050000)]


def _families_only(socket: int, socketpair: int) -> list[bytes]:
    """A program that refuses sockets of other families: AF_VSOCK's reach the machine around, whatever the namespace."""
    load, equal, give = 0x20, 0x15, 0x06
    n = len(_FAMILIES)
    program = [_op(load, 0), _op(equal, socket, 1, 0), _op(equal, socketpair, 0, n + 2), _op(load, 16)]
    program += [_op(equal, family, n - k, 0) for k, family in enumerate(_FAMILIES)]
    return [*program, _op(give, 0x00050000 | _EAFNOSUPPORT), _op(give, 0x7FFF0000)]


def stay_in_session() -> None:
    """From now on setsid(2) says that it did, and does nothing: the kernel shares processors out by session."""
    if platform.machine() in _SETSID:
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        equal = _op(0x15, _SETSID[platform.machine()], 0, 1)
        _install([_op(0x20, 0), equal, _op(0x06, 0x00050000), _op(0x06, 0x7FFF0000)])


def _install(program: list[bytes]) -> None:
    array = ctypes.create_string_buffer(b"".join(program))
    fprog = struct.pack("HxxxxxxP", len(program), ctypes.addressof(array))
    _call("prctl", PR_SET_SECCOMP, ctypes.c_ulong(2), ctypes.create_string_buffer(fprog), ctypes.c_ulong(0),
          ctypes.c_ulong(0))  # fmt: skip


def _op(code: int, k: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, k)


def _program(audit_arch: int, denied: dict[str, int], clone: int) -> list[bytes]:
    """A classic BPF program over `struct seccomp_data`: nr at 0, arch at 4, the first argument's low half at 16."""
    op = _op
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, refuse = 0x7FFF0000, 0x00050000
    program = [op(load, 4), op(equal, audit_arch, 1, 0), op(give, refuse | _EPERM), op(load, 0)]
    if clone == 56:  # x86_64: the x32 numbers are another door to the same calls
        program += [op(at_least, 0x40000000, 0, 1), op(give, refuse | _ENOSYS)]
    for number in sorted([*denied.values(), *_DENIED_EVERYWHERE.values()]):
        program += [op(equal, number, 0, 1), op(give, refuse | _EPERM)]
    program += [op(equal, _CLONE3, 0, 1), op(give, refuse | _ENOSYS)]  # the C library then takes clone
    program += [op(equal, clone, 0, 3), op(load, 16), op(any_bit, NEW_USER, 0, 1), op(give, refuse | _EPERM)]
    return [*program, op(give, allow)]
