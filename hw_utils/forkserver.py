"""A small process with torch already imported that forks ranks on request (Linux).

The kernel itself is never forked: it hangs in the child once it has run a multi-threaded operation. The server never
runs one, so it has a single thread when it forks. It watches its sockets: when the kernel is gone, by whatever means,
every process that it forked is killed, grandchildren included.

    server = forkserver.connect()            # the process's own server, started if need be
    gang = server.start_gang(...)            # see gang.py

A process that is warm already can fork a server for a child of its own to use, before any student code runs:

    sock = forkserver.fork_server()          # in the warm parent, which has imported torch and has one thread
    ...fork...; forkserver.adopt(sock)       # in the child: its launches are warm from the first

Protocol, over SEQPACKET sockets: the kernel sends `{"gang": ...}` with the server's end of a gang's socket; over that,
one message a rank with its three descriptors (frames, stdout, stderr). The server answers `{"rank", "pid"}` and later
`{"rank", "status"}`. End of file on a gang's socket means: kill what is left of it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import multiprocessing
import os
import pickle
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from typing import IO

_MAX_MESSAGE = 1 << 16
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def available() -> bool:
    """Whether this platform has the fork server; others spawn (HW_UTILS_START=spawn chooses that too)."""
    return sys.platform == "linux" and os.environ.get("HW_UTILS_START") != "spawn"


# The kernel's side.


class Server:
    """The kernel's end of a fork server."""

    def __init__(
        self, sock: socket.socket, process: subprocess.Popen | None = None, log: IO[bytes] | None = None
    ) -> None:
        self.sock, self.process, self.log = sock, process, log
        self.owner = os.getpid()

    @property
    def pid(self) -> int:
        """Of the server that `connect` started; 0 if it was adopted."""
        return self.process.pid if self.process is not None else 0

    @property
    def is_alive(self) -> bool:
        if self.owner != os.getpid():
            return False  # inherited through a fork: it serves our parent
        if self.process is not None and self.process.poll() is not None:
            return False
        readable, _, _ = select.select([self.sock], [], [], 0)
        return not readable  # the server never writes on it: readable means it is gone

    def open_gang(self, spec: dict) -> socket.socket:
        """The kernel's end of a new gang's socket."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                socket.send_fds(self.sock, [pickle.dumps({"gang": spec})], [theirs.fileno()])
        except OSError:
            ours.close()
            raise self.death() from None
        return ours

    def death(self) -> RuntimeError:
        """The error that says that the server has gone, with its last words."""
        message = "the process that starts ranks has died; launch again"
        if self.log is not None and not self.log.closed:
            self.log.seek(0)
            message += f". It said:\n{self.log.read().decode('utf-8', 'replace').strip()[-2_000:]}"
        return RuntimeError(message)

    def close(self) -> None:
        """Ends the server, and with it everything that it forked."""
        self.sock.close()
        if self.log is not None:
            self.log.close()
        if self.process is not None and self.owner == os.getpid():
            self.process.wait()


_server: Server | None = None
_lock = threading.Lock()


def connect() -> Server:
    """This process's server; a new one if there is none or it has died."""
    global _server
    with _lock:
        if _server is None or not _server.is_alive:
            if _server is not None:
                _server.close()
            _server = _start()
        return _server


def adopt(sock: socket.socket) -> None:
    """Makes a server that was forked elsewhere this process's own."""
    global _server
    with _lock:
        _server = Server(sock)


@atexit.register
def stop() -> None:
    """Ends this process's server; the next launch starts another."""
    global _server
    with _lock:
        if _server is not None and _server.owner == os.getpid():
            _server.close()
            _server = None


def start_early() -> None:
    """At import: a server that gets warm in the background (not with HW_UTILS_PRELOAD=0, nor in a child)."""
    child = multiprocessing.parent_process() is not None
    if available() and not child and os.environ.get("HW_UTILS_PRELOAD") != "0":
        connect()


def _start() -> Server:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    command = f"import sys; sys.path.append({package!r}); from hw_utils import forkserver; forkserver.main()"
    log = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the server)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", command, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={**env, "HW_UTILS_PRELOAD": "0", "CUDA_VISIBLE_DEVICES": ""},  # ranks use gloo and the CPU
            start_new_session=True,  # an interrupt of the kernel's process group does not reach it
        )
    return Server(ours, process, log)


def fork_server() -> socket.socket:
    """Forks a server out of this process, which must have one thread; gives the socket for `adopt`."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    preload()
    if os.fork() == 0:
        ours.close()
        os.setsid()
        try:
            serve(theirs)
        finally:
            os._exit(0)
    theirs.close()
    return ours


class Pipe:
    """The reading end of a pipe that never blocks."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def read(self) -> bytes | None:
        """What is there; None if nothing is, b"" at the end."""
        if self._fd < 0:
            return None
        try:
            return os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return None

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class ForkStarter:
    """Starts the ranks of one gang through the server."""

    def __init__(self, spec: dict) -> None:
        self.server = connect()
        self.sock = self.server.open_gang(spec)
        self.sock.setblocking(False)

    def fileno(self) -> int:
        return self.sock.fileno()

    def start(self, rank: int) -> tuple[socket.socket, Pipe, Pipe]:
        """(frames, stdout, stderr) of a rank's new process."""
        ours, theirs = socket.socketpair()
        (out_r, out_w), (err_r, err_w) = os.pipe(), os.pipe()
        try:
            self.sock.setblocking(True)
            socket.send_fds(self.sock, [pickle.dumps({"rank": rank})], [theirs.fileno(), out_w, err_w])
        except OSError:
            raise self.server.death() from None
        finally:
            self.sock.setblocking(False)
            theirs.close()
            os.close(out_w)
            os.close(err_w)
        return ours, Pipe(out_r), Pipe(err_r)

    def news(self) -> list[dict]:
        """What has happened to processes: {"rank", "pid"} when one has started, {"rank", "status"} when it ended."""
        found = []
        try:
            while True:
                data = self.sock.recv(_MAX_MESSAGE)
                if not data:
                    raise self.server.death()
                found.append(pickle.loads(data))
        except BlockingIOError:
            return found
        except OSError:
            raise self.server.death() from None

    def close(self) -> None:
        """Ends the gang: at the end of file the server kills what is left of it."""
        self.sock.close()


# The server's side.


def preload() -> None:
    """Imports what ranks use, lazily imported parts included, and starts no thread."""
    import numpy  # noqa: F401
    import torch
    import torch._dynamo
    import torch.distributed
    import torch.nn.parallel
    import torch.optim

    import hw_utils.cluster
    import hw_utils.group
    import hw_utils.rank  # noqa: F401

    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)


def main() -> None:
    """What `connect` starts: a fresh interpreter with the socket's number as its argument."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.argv = [""]
    preload()
    serve(sock)


@dataclass
class _Gang:
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
    gc.collect()
    gc.freeze()
    gangs: list[_Gang] = []
    try:
        while True:
            poll = select.poll()  # not select: a descriptor may be over 1023
            for fd in (sock.fileno(), wake_r, *(g.sock.fileno() for g in gangs)):
                poll.register(fd, select.POLLIN)
            ready = {fd for fd, _ in poll.poll()}
            if wake_r in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_r, 4096)
            if sock.fileno() in ready and not _take_gang(sock, gangs):
                return
            for gang in [g for g in gangs if g.sock.fileno() in ready]:
                if not _take_rank(gang, [sock, *(g.sock for g in gangs)], [wake_r, wake_w], libc):
                    _end(gang, gangs)
                    gangs.remove(gang)
            _reap(gangs)
    finally:
        for gang in gangs:
            _end(gang, [])


def _take_gang(sock: socket.socket, gangs: list[_Gang]) -> bool:
    data, fds, _, _ = socket.recv_fds(sock, _MAX_MESSAGE, 1)
    if not data:
        return False
    gangs.append(_Gang(socket.socket(fileno=fds[0]), pickle.loads(data)["gang"]))
    return True


def _take_rank(gang: _Gang, sockets: list[socket.socket], fds_to_close: list[int], libc) -> bool:
    try:
        data, fds, _, _ = socket.recv_fds(gang.sock, _MAX_MESSAGE, 3)
    except ConnectionError:
        return False
    if not data:
        return False
    rank = pickle.loads(data)["rank"]
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become_rank(gang, rank, fds, sockets, fds_to_close, libc, server)
    gang.process_group = gang.process_group or pid
    with contextlib.suppress(OSError):
        os.setpgid(pid, gang.process_group)  # in both processes: whichever runs first
    gang.ranks[pid] = rank
    for fd in fds:
        os.close(fd)
    _tell(gang, {"rank": rank, "pid": pid})
    return True


def _become_rank(gang, rank, fds, sockets, fds_to_close, libc, server) -> None:
    status = 1
    try:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != server:
            return  # the server died before the line above
        os.setpgid(0, gang.process_group)
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
        from hw_utils import rank as rank_module

        rank_module.main(socket.socket(fileno=fds[0]), rank, gang.spec)
        status = 0
    finally:
        os._exit(status)


def _tell(gang: _Gang, message: dict) -> None:
    with contextlib.suppress(OSError):  # the kernel has let go of the gang: its socket will say so
        gang.sock.send(pickle.dumps(message), socket.MSG_DONTWAIT)


def _reap(gangs: list[_Gang]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        for gang in gangs:
            if pid in gang.ranks:
                _tell(gang, {"rank": gang.ranks.pop(pid), "status": os.waitstatus_to_exitcode(status)})


def _end(gang: _Gang, others: list[_Gang]) -> None:
    """Kills the gang's process group, then every orphan that had left it; removes its directory."""
    gang.sock.close()
    if gang.process_group:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(gang.process_group, signal.SIGKILL)
    for pid in list(gang.ranks):
        _kill(pid)
    gang.ranks.clear()
    _kill_orphans({g.process_group for g in others if g is not gang})
    if gang.spec.get("directory"):
        shutil.rmtree(gang.spec["directory"], ignore_errors=True)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _kill_orphans(living: set[int]) -> None:
    """Processes whose parents died are the server's children now, unless a living gang's: kill them, and theirs."""
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


if __name__ == "__main__":
    main()
