"""Which system calls a jailed process may make: a filter in the kernel, by number and arguments.

Denied is what no exercise needs and an escape does, what holds memory of the kernel's that nobody counts, and what asks
or changes which parts of the machine's files are in memory: there one jail could write down for a later one to read.
"""

from __future__ import annotations

import ctypes
import platform
import struct
from functools import cache

from hw_grader.sandbox.lockdown import NEW_USER, PR_SET_NO_NEW_PRIVS, call, prctl

_PR_SET_SECCOMP = 22
_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY_BIT, _GIVE = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ANSWER = 0x7FFF0000, 0x00050000  # with an errno, or 0: as if it had been done
_EPERM, _ENOMEM, _EINVAL, _ENOSYS, _ENOLCK, _EOPNOTSUPP, _EAFNOSUPPORT = 1, 12, 22, 38, 37, 95, 97
_DENIED = {  # number by machine, and clone's
    "x86_64": (0xC000003E, {
        "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "unshare": 272, "setns": 308, "mount": 165,
        "umount2": 166, "pivot_root": 155, "keyctl": 250, "add_key": 248, "request_key": 249, "bpf": 321,
        "perf_event_open": 298, "userfaultfd": 323, "memfd_create": 319, "shmget": 29, "msgget": 68, "semget": 64,
        "mq_open": 240, "open_by_handle_at": 304, "vmsplice": 278, "inotify_init": 253, "inotify_init1": 294,
        "fanotify_init": 300, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "io_setup": 206,
        "modify_ldt": 154, "mincore": 27, "readahead": 187, "seccomp": 317, "mknod": 133, "mknodat": 259,
    }, 56),
    "aarch64": (0xC00000B7, {
        "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "unshare": 97, "setns": 268, "mount": 40,
        "umount2": 39, "pivot_root": 41, "keyctl": 219, "add_key": 217, "request_key": 218, "bpf": 280,
        "perf_event_open": 241, "userfaultfd": 282, "memfd_create": 279, "shmget": 194, "msgget": 186, "semget": 190,
        "mq_open": 180, "open_by_handle_at": 265, "vmsplice": 75, "inotify_init1": 26, "fanotify_init": 262,
        "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "io_setup": 0, "mincore": 232, "readahead": 213,
        "seccomp": 277, "mknodat": 33,
    }, 220),
}  # fmt: skip
_DENIED_EVERYWHERE = {
    "io_uring_setup": 425, "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsmount": 432, "pidfd_getfd": 438,
    "process_madvise": 440, "mount_setattr": 442, "memfd_secret": 447, "cachestat": 451, "setxattrat": 463,
}  # fmt: skip
_NUMBERS = {  # of what is allowed with some arguments, or does nothing
    "x86_64": {
        "setsockopt": 54, "socket": 41, "socketpair": 53, "setsid": 112, "mmap": 9, "fcntl": 72, "fadvise64": 221,
        "madvise": 28, "preadv2": 327, "prctl": 157,
    },
    "aarch64": {
        "setsockopt": 208, "socket": 198, "socketpair": 199, "setsid": 157, "mmap": 222, "fcntl": 25, "fadvise64": 223,
        "madvise": 233, "preadv2": 286, "prctl": 167,
    },
}  # fmt: skip
_CLONE3, _CLOSE_RANGE = 435, 436
_OWN_TABLE = 2  # CLOSE_RANGE_UNSHARE: descriptors of one thread alone, which nobody counts; clone has it, too
_THREAD, _FILES = 0x10000, 0x400  # CLONE_THREAD, CLONE_FILES
_SOL_SOCKET, _BUFFER_SIZES = 1, (7, 8, 32, 33)  # SO_SNDBUF, SO_RCVBUF, and both by force
FAMILIES = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK: all of them end at the network namespace
ONLY_FILES = (1,)  # AF_UNIX
_SHARED_NAMELESS = 0x21  # MAP_SHARED | MAP_ANONYMOUS: what is in it stays when it is no longer mapped
# F_SETLK, F_SETLKW, of open files too, leases, notices: without a limit, which flock has; F_SETPIPE_SZ: a large pipe.
_HOLDING = (6, 7, 37, 38, 1024, 1026, 1031)
_OUT_OF_MEMORY = (20, 21)  # MADV_COLD, MADV_PAGEOUT
_IF_IT_IS_THERE, _LEAVES_NOTHING = 0x8, 0x80  # RWF_NOWAIT, RWF_DONTCACHE
_ALL_BITS = 0xFFFFFFFF


def filter_calls(families: tuple[int, ...] = FAMILIES) -> bool:
    """Denies system calls for this process and its children; False on a machine whose numbers are not known.

    families: of the sockets that can be made.
    """
    whole = program(families)
    if whole:
        _install(whole)
    return bool(whole)


def stay_in_session() -> None:
    """From now on setsid(2) says that it did, and does nothing: the kernel shares processors out by session."""
    if platform.machine() in _NUMBERS:
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        _install(_answered(_NUMBERS[platform.machine()]["setsid"], (), 0))


def start_no_thread() -> None:
    """From now on the calling thread can start no other one; processes it can."""
    if platform.machine() in _DENIED:
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        _install(_answered(_DENIED[platform.machine()][2], ((0, (_THREAD,), _THREAD),), _EPERM))


def no_more_filters() -> None:
    """From now on this process adds no filter: each is memory of the kernel's, which can be asked what stands in it."""
    if platform.machine() in _NUMBERS:
        _install(_answered(_NUMBERS[platform.machine()]["prctl"], ((0, (_PR_SET_SECCOMP,), _ALL_BITS),), _EPERM))


@cache
def program(families: tuple[int, ...] = FAMILIES) -> list[bytes]:
    """What `filter_calls` installs: one, because the kernel makes machine code of each, and runs all at each call."""
    return _in_turn(*_programs(platform.machine(), families)) if platform.machine() in _DENIED else []


def _programs(machine: str, families: tuple[int, ...]) -> list[list[bytes]]:
    known, numbers = _DENIED[machine], _NUMBERS[machine]
    sizes = ((1, (_SOL_SOCKET,), _ALL_BITS), (2, _BUFFER_SIZES, _ALL_BITS))
    return [
        _program(*known),
        _families_only(numbers["socket"], numbers["socketpair"], families),
        _answered(numbers["setsockopt"], sizes, 0),
        _answered(numbers["mmap"], ((3, (_SHARED_NAMELESS,), _SHARED_NAMELESS),), _ENOMEM),
        _answered(numbers["fcntl"], ((1, _HOLDING, _ALL_BITS),), _ENOLCK),
        _answered(numbers["fadvise64"], (), 0),
        _answered(numbers["madvise"], ((2, _OUT_OF_MEMORY, _ALL_BITS),), _EINVAL),
        *(_answered(numbers["preadv2"], ((5, (n,), n),), _EOPNOTSUPP) for n in (_IF_IT_IS_THERE, _LEAVES_NOTHING)),
        _answered(_CLOSE_RANGE, ((2, (_OWN_TABLE,), _OWN_TABLE),), _EPERM),
        _answered(known[2], ((0, (_THREAD,), _THREAD | _FILES),), _EPERM),
    ]


def _in_turn(*programs: list[bytes]) -> list[bytes]:
    """Programs that end by allowing a call: each asks the next one in place of that."""
    assert all(program[-1] == _op(_GIVE, _ALLOW) for program in programs)
    return [*(op for program in programs[:-1] for op in program[:-1]), *programs[-1]]


def _install(program: list[bytes]) -> None:
    array = ctypes.create_string_buffer(b"".join(program))
    fprog = struct.pack("HxxxxxxP", len(program), ctypes.addressof(array))
    call("prctl", _PR_SET_SECCOMP, ctypes.c_ulong(2), ctypes.create_string_buffer(fprog), ctypes.c_ulong(0),
         ctypes.c_ulong(0))  # fmt: skip


def _op(code: int, k: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, k)


def _argument(n: int) -> bytes:
    """Loads the low half of a system call's n-th argument."""
    return _op(_LOAD, 16 + 8 * n)


def _answered(number: int, when: tuple[tuple[int, tuple[int, ...], int], ...], errno: int) -> list[bytes]:
    """A program that answers one system call with an errno if each argument in `when` has one of its values.

    when: (which argument, values, the bits that count).
    """
    program = [_op(_GIVE, _ANSWER | errno), _op(_GIVE, _ALLOW)]
    for n, values, bits in reversed(when):
        last = len(values) - 1
        compared = [_op(_EQUAL, value, last - k, 0 if k < last else len(program) - 1) for k, value in enumerate(values)]
        program = [_argument(n), _op(_AND, bits), *compared, *program]
    return [_op(_LOAD, 0), _op(_EQUAL, number, 0, len(program) - 1), *program]


def _families_only(socket: int, socketpair: int, families: tuple[int, ...]) -> list[bytes]:
    """A program that refuses sockets of other families: AF_VSOCK's reach the machine around, whatever the namespace."""
    n = len(families)
    program = [_op(_LOAD, 0), _op(_EQUAL, socket, 1, 0), _op(_EQUAL, socketpair, 0, n + 2), _argument(0)]
    program += [_op(_EQUAL, family, n - k, 0) for k, family in enumerate(families)]
    return [*program, _op(_GIVE, _ANSWER | _EAFNOSUPPORT), _op(_GIVE, _ALLOW)]


def _program(audit_arch: int, denied: dict[str, int], clone: int) -> list[bytes]:
    """A classic BPF program over `struct seccomp_data`: nr at 0, arch at 4, arguments from 16 on."""
    refused = _op(_GIVE, _ANSWER | _EPERM)
    program = [_op(_LOAD, 4), _op(_EQUAL, audit_arch, 1, 0), refused, _op(_LOAD, 0)]
    if clone == 56:  # x86_64: the x32 numbers are another door to the same calls
        program += [_op(_AT_LEAST, 0x40000000, 0, 1), _op(_GIVE, _ANSWER | _ENOSYS)]
    for number in sorted([*denied.values(), *_DENIED_EVERYWHERE.values()]):
        program += [_op(_EQUAL, number, 0, 1), refused]
    program += [_op(_EQUAL, _CLONE3, 0, 1), _op(_GIVE, _ANSWER | _ENOSYS)]  # the C library then takes clone
    program += [_op(_EQUAL, clone, 0, 3), _argument(0), _op(_ANY_BIT, NEW_USER, 0, 1), refused]
    return [*program, _op(_GIVE, _ALLOW)]
