"""The fork server's own process: one thread, torch imported, forks ranks as it is told and sees to their end.

Protocol, over SEQPACKET sockets: the kernel sends `{"launch": ...}` with the server's end of a launch's socket; over
that, one message a rank with its three descriptors (frames, stdout, stderr). The server answers `{"rank", "pid"}` and
later `{"rank", "status"}`. End of file on a launch's socket means: kill what is left of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import pickle
import select
import shutil
import signal
import socket
import sys
import threading
import traceback
from dataclasses import dataclass, field

from hw_utils.processes.copy_on_write import keep_freed_memory, no_collections, share_with_forks

MAX_MESSAGE = 1 << 16
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


PERHAPS_USED = ("torch.nn.parallel", "torch.optim", "torch._dynamo")  # slow: some 2 s


def preload_first() -> None:
    """Imports what every rank uses, and looks up what a process looks up for its first group, and keeps."""
    import numpy  # noqa: F401
    import torch.distributed  # noqa: F401

    import hw_utils.processes.rank_main  # noqa: F401
    from hw_utils.core.calls.c10d_operations import Kernels
    from hw_utils.core.versions import torch_version
    from hw_utils.gloo.group import LedgerGroup

    torch_version()
    kernels = Kernels(LedgerGroup)
    kernels.install()
    kernels.remove()


def preload() -> None:
    """Imports what ranks use, lazily imported parts included, and starts no thread."""
    preload_first()
    for module in PERHAPS_USED:
        importlib.import_module(module)
    import torch

    import hw_utils.virtual.simulation  # noqa: F401

    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if hasattr(rules, "clear_lru_cache"):
        rules.clear_lru_cache()  # as init_process_group does: each rank would copy 280 pages to free them
    know_modules()


def know_modules() -> None:
    """Looks at what has been imported, and how torch draws: a forked process that looks again looks at what is new."""
    from hw_utils.virtual.ranks.clock import know_packages
    from hw_utils.virtual.ranks.per_rank_state.random_states import moving_places
    from hw_utils.virtual.ranks.per_rank_state.replaced_functions import Replaced
    from hw_utils.virtual.ranks.per_rank_state.thread_locals import know_locals

    know_packages()
    know_locals()
    moving_places()
    Replaced().learn()


def main() -> None:
    """What `connect` starts: a fresh interpreter with the socket's number as its argument."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.argv = [""]
    keep_freed_memory()
    with no_collections():
        preload()
        share_with_forks()
    serve(sock)
    os._exit(0)  # taking all the modules apart again would cost a third of a second


@dataclass
class _Launch:
    sock: socket.socket
    spec: dict
    ranks: dict[int, int] = field(default_factory=dict)  # pid -> rank, those not reaped yet
    process_group: int = 0


def serve(sock: socket.socket) -> None:
    """Forks ranks as asked until the socket closes; then kills everything that is left."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake_r, wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
    launches: list[_Launch] = []
    try:
        while True:
            poll = select.poll()  # not select: a descriptor may be over 1023
            for fd in (sock.fileno(), wake_r, *(g.sock.fileno() for g in launches)):
                poll.register(fd, select.POLLIN)
            ready = {fd for fd, _ in poll.poll()}
            if wake_r in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_r, 4096)
            if sock.fileno() in ready and not _take_launch(sock, launches):
                return
            for launch in [g for g in launches if g.sock.fileno() in ready]:
                if not _take_rank(launch, [sock, *(g.sock for g in launches)], [wake_r, wake_w], libc):
                    _end(launch, launches)
                    launches.remove(launch)
            _reap(launches)
    finally:
        for launch in launches:
            _end(launch, [])


def _take_launch(sock: socket.socket, launches: list[_Launch]) -> bool:
    data, fds, _, _ = socket.recv_fds(sock, MAX_MESSAGE, 1)
    if not data:
        return False
    launches.append(_Launch(socket.socket(fileno=fds[0]), pickle.loads(data)["launch"]))
    return True


def _take_rank(launch: _Launch, sockets: list[socket.socket], fds_to_close: list[int], libc) -> bool:
    try:
        data, fds, _, _ = socket.recv_fds(launch.sock, MAX_MESSAGE, 3)
    except ConnectionError:
        return False
    if not data:
        return False
    rank = pickle.loads(data)["rank"]
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become_rank(launch, rank, fds, sockets, fds_to_close, libc, server)
    launch.process_group = launch.process_group or pid
    with contextlib.suppress(OSError):
        os.setpgid(pid, launch.process_group)  # in both processes: whichever runs first
    launch.ranks[pid] = rank
    for fd in fds:
        os.close(fd)
    _tell(launch, {"rank": rank, "pid": pid})
    return True


def _become_rank(launch, rank, fds, sockets, fds_to_close, libc, server) -> None:
    status = 1
    try:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != server:
            return  # the server died before the line above
        os.setpgid(0, launch.process_group)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for sock in sockets:
            sock.close()
        for fd in fds_to_close:
            os.close(fd)
        for fd, target in ((fds[1], 1), (fds[2], 2)):
            os.dup2(fd, target)
            os.close(fd)
        from hw_utils.processes import rank_main

        rank_main.main(socket.socket(fileno=fds[0]), rank, launch.spec)
        status = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(status)


def _tell(launch: _Launch, message: dict) -> None:
    with contextlib.suppress(OSError):  # the kernel has let go of the launch: its socket will say so
        launch.sock.send(pickle.dumps(message), socket.MSG_DONTWAIT)


def _reap(launches: list[_Launch]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        for launch in launches:
            if pid in launch.ranks:
                _tell(launch, {"rank": launch.ranks.pop(pid), "status": os.waitstatus_to_exitcode(status)})


def _end(launch: _Launch, others: list[_Launch]) -> None:
    """Kills the launch's process group, then every orphan that had left it; removes its directory."""
    launch.sock.close()
    if launch.process_group:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(launch.process_group, signal.SIGKILL)
    for pid in list(launch.ranks):
        _kill(pid)
    launch.ranks.clear()
    _kill_orphans({g.process_group for g in others if g is not launch})
    if launch.spec.get("directory"):
        shutil.rmtree(launch.spec["directory"], ignore_errors=True)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _kill_orphans(living: set[int]) -> None:
    """Processes whose parents died are the server's children now, unless a living launch's: kill them, and theirs."""
    tid = threading.get_native_id()
    while True:
        with open(f"/proc/self/task/{tid}/children") as file:
            children = [int(pid) for pid in file.read().split()]
        orphans = []
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(pid) not in living:
                    orphans.append(pid)
        if not orphans:
            return
        for pid in orphans:
            _kill(pid)
