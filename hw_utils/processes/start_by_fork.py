"""A small process with torch already imported that forks ranks on request (Linux).

The kernel itself is never forked: it hangs in the child once it has run a multi-threaded operation. The server never
runs one, so it has a single thread when it forks. It watches its sockets: when the kernel is gone, by whatever means,
every process that it forked is killed, grandchildren included.

    server = start_by_fork.connect()          # the process's own server, started if need be
    workers = server.start_processes(...)              # see worker_processes.py

A process that is warm already can fork a server for a child of its own to use, before any student code runs:

    sock = start_by_fork.fork_server()        # in the warm parent, which has imported torch and has one thread
    ...fork...; start_by_fork.adopt(sock)   # in the child: its launches are warm from the first
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO

from hw_utils.core.errors import Failure, WorkerFailed
from hw_utils.processes import start_by_spawn
from hw_utils.processes.fork_server import MAX_MESSAGE, preload, serve


def available() -> bool:
    """Whether this platform has the fork server; others spawn (HW_UTILS_START=spawn chooses that too)."""
    return sys.platform == "linux" and os.environ.get("HW_UTILS_START") != "spawn"


class Server:
    """The kernel's end of a fork server."""

    def __init__(
        self, sock: socket.socket, process: subprocess.Popen | None = None, log: IO[bytes] | None = None
    ) -> None:
        self.sock, self.process, self.log = sock, process, log
        self.owner, self.is_used = os.getpid(), False

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

    def open_launch(self, spec: dict) -> socket.socket:
        """The kernel's end of the socket of a new launch's workers."""
        self.is_used = True
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                socket.send_fds(self.sock, [pickle.dumps({"launch": spec})], [theirs.fileno()])
        except OSError:
            ours.close()
            raise self.death() from None
        return ours

    def death(self) -> WorkerFailed:
        """The error that says that the server has gone, with its last words."""
        said = ""
        if self.log is not None and not self.log.closed:
            self.log.seek(0)
            said = self.log.read().decode("utf-8", "replace").strip()[-2_000:]
        return WorkerFailed([Failure(0, "kit", "the process that starts ranks has died; launch again", stack=said)])

    def close(self) -> None:
        """Ends the server, and with it everything that it forked."""
        self.sock.close()
        if self.log is not None:
            self.log.close()
        if self.process is not None and self.owner == os.getpid():
            if not self.is_used:  # it has forked nothing, and may be importing for seconds yet
                self.process.kill()
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
    """At import: a server or a pool that gets warm in the background.

    Not with HW_UTILS_PRELOAD=0, in a child, under torchrun.
    """
    is_rank = multiprocessing.parent_process() is not None or "TORCHELASTIC_RUN_ID" in os.environ
    if is_rank or os.environ.get("HW_UTILS_PRELOAD") == "0":
        return
    if available():
        connect()
    else:
        start_by_spawn.pool.refill(start_by_spawn.FIRST)


def _start() -> Server:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    package = str(Path(__file__).resolve().parents[2])
    command = (
        f"import sys; sys.path.append({package!r}); from hw_utils.processes import fork_server; fork_server.main()"
    )
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
    """Starts the ranks of one workers through the server."""

    def __init__(self, spec: dict) -> None:
        self.server, self.directory = connect(), spec["directory"]
        self.sock = self.server.open_launch(spec)
        self.sock.setblocking(False)

    def fileno(self) -> int:
        return self.sock.fileno()

    @property
    def is_alive(self) -> bool:
        """Whether its server is there; one that dies while it forks leaves its sockets open in the child a while."""
        return self.server.is_alive

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
                data = self.sock.recv(MAX_MESSAGE)
                if not data:
                    raise self.server.death()
                found.append(pickle.loads(data))
        except BlockingIOError:
            return found
        except OSError:
            raise self.server.death() from None

    def close(self) -> None:
        """Ends the workers: at the end of file the server, unless it has died, kills what is left of it."""
        self.sock.close()
        if self.server.owner == os.getpid():
            shutil.rmtree(self.directory, ignore_errors=True)
