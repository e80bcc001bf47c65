"""Ranks where there is no fork server (macOS, Windows): a pool of interpreters with torch already imported.

Each waits at a loopback connection for the call of its life, and is replaced when it gets one: nobody waits for the
replacement, which gets warm while the student reads. HW_UTILS_START=spawn chooses this path on Linux too.
"""

from __future__ import annotations

import atexit
import importlib
import os
import pickle
import secrets
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from hw_utils.core.errors import Failure, WorkerFailed
from hw_utils.processes import socket_frames

SPEC = b"A"
START_S = 120.0
LOOK_S = 0.25  # between two looks whether an interpreter has died before it was warm
FIRST = 4  # interpreters that get warm at import: as many ranks as most first launches have
MOST = 16  # that wait; about 200 MB each
_TOKEN_BYTES = 32


class SpawnStarter:
    """Starts the ranks of a launch from the pool."""

    is_alive = True  # there is no server that could die

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.wake, self._wake_from = socket.socketpair()
        self.processes: dict[int, Waiting] = {}
        self._told: set[int] = set()
        pool.fill(spec["world_size"])

    def fileno(self) -> int:
        return self.wake.fileno()

    def start(self, rank: int) -> tuple:
        """(frames, stdout, stderr) of a rank's process: a socket and two readers."""
        process = pool.take()
        self.processes[rank] = process
        socket_frames.send_frame(process.sock, SPEC, pickle.dumps((rank, self.spec)))
        return process.sock, process.out, process.err

    def news(self) -> list[dict]:
        """What has happened to processes, as ForkStarter's."""
        found = [{"rank": r, "pid": p.popen.pid} for r, p in self.processes.items() if r not in self._told]
        self._told.update(self.processes)
        ended = [(r, p.popen.poll()) for r, p in self.processes.items()]
        return found + [{"rank": r, "status": status} for r, status in ended if status is not None]

    def close(self) -> None:
        """Kills what is left of the workers."""
        for process in self.processes.values():
            process.kill()
        self.wake.close()
        self._wake_from.close()
        shutil.rmtree(self.spec["directory"], ignore_errors=True)
        pool.refill(self.spec["world_size"])


def reader_of(pipe):
    """What reads a pipe of a process and can be waited for."""
    if os.name != "posix":
        return Copied(pipe)
    from hw_utils.processes.start_by_fork import Pipe

    with pipe:
        return Pipe(os.dup(pipe.fileno()))


class Copied:
    """A pipe of a process, copied by a thread into a socket: Windows can wait for no pipe.

    What a rank has printed just before it returned may still be on its way when its result is there.
    """

    def __init__(self, pipe) -> None:
        self.sock, self._into = socket.socketpair()
        self.sock.setblocking(False)
        threading.Thread(target=self._copy, args=(pipe, self._into), daemon=True).start()

    @staticmethod
    def _copy(pipe, into: socket.socket) -> None:
        with pipe, into:
            while True:
                try:
                    data = os.read(pipe.fileno(), 1 << 16)
                    into.sendall(data)
                except OSError:
                    return
                if not data:
                    return

    def fileno(self) -> int:
        return self.sock.fileno()

    def read(self) -> bytes | None:
        """What is there; None if nothing is, b"" at the end."""
        try:
            return self.sock.recv(1 << 16)
        except BlockingIOError:
            return None
        except OSError:
            return None

    def close(self) -> None:
        self.sock.close()


class Waiting:
    """One interpreter that waits for a call."""

    def __init__(self, listener: socket.socket) -> None:
        self.token = secrets.token_bytes(_TOKEN_BYTES)
        port = listener.getsockname()[1]
        package = str(Path(__file__).resolve().parents[2])
        command = (
            f"import sys; sys.path.append({package!r}); "
            f"from hw_utils.processes import start_by_spawn; start_by_spawn.wait({port})"
        )
        options = {"start_new_session": True} if os.name == "posix" else {"creationflags": 0x200}  # own process group
        self.popen = subprocess.Popen(
            [sys.executable, "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "HW_UTILS_PRELOAD": "0", "OMP_NUM_THREADS": "1"},
            **options,
        )
        self.popen.stdin.write(self.token.hex().encode() + b"\n")
        self.popen.stdin.flush()  # and left open: its end tells the process that the kernel is gone
        self.sock: socket.socket | None = None

    def connected(self, sock: socket.socket) -> None:
        self.sock = sock
        self.out, self.err = reader_of(self.popen.stdout), reader_of(self.popen.stderr)

    def kill(self) -> None:
        import psutil

        try:
            family = psutil.Process(self.popen.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            family = []
        self.popen.kill()
        for process in family:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.popen.wait()
        self.popen.stdin.close()


class _Pool:
    """Interpreters that wait; as many as the largest launch so far used, up to MOST."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Waiting] = []
        self._listener: socket.socket | None = None
        self._owner = 0
        self._wanted = 0

    def refill(self, n: int) -> None:
        """Starts what is missing for another launch of `n` ranks, or of more if there was a larger one."""
        self._wanted = max(self._wanted, min(n, MOST))
        self.fill(self._wanted)

    def fill(self, n: int) -> None:
        with self._lock:
            if self._owner != os.getpid():
                self._owner, self._waiting = os.getpid(), []
                self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
                atexit.register(self.drain)
            while len(self._waiting) < n:
                self._waiting.append(Waiting(self._listener))

    def take(self) -> Waiting:
        """A process that has connected; the first that is ready."""
        with self._lock:
            for process in [p for p in self._waiting if p.sock is not None]:
                self._waiting.remove(process)
                if process.popen.poll() is None:
                    return process
                process.kill()
                self._waiting.append(Waiting(self._listener))
            while True:
                process = self._accept()
                if process is not None:
                    self._waiting.remove(process)
                    return process

    def _accept(self) -> Waiting | None:
        """The interpreter that connects next; None if it was somebody else.

        Raises:
            WorkerFailed: an interpreter died before it was warm, or none was in START_S.
        """
        self._listener.settimeout(LOOK_S)
        deadline = time.monotonic() + START_S
        while True:
            try:
                sock, _ = self._listener.accept()
                break
            except TimeoutError:
                self._require_all_alive()
                if time.monotonic() > deadline:
                    late = f"no new Python process was ready in {START_S:.0f} s"
                    raise WorkerFailed([Failure(0, "kit", late)]) from None
        sock.settimeout(START_S)
        try:
            token = bytes(socket_frames.receive_frame(sock)[1])
        except (EOFError, OSError):
            token = b""
        for process in self._waiting:
            if secrets.compare_digest(process.token, token):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                process.connected(sock)
                return process
        sock.close()  # not one of ours
        return None

    def _require_all_alive(self) -> None:
        for process in self._waiting:
            if process.sock is None and process.popen.poll() is not None:
                self._waiting.remove(process)
                said = process.popen.stderr.read().decode("utf-8", "replace").rstrip()
                process.kill()
                why = f"before your function began: a new Python process ended with status {process.popen.returncode}"
                raise WorkerFailed([Failure(0, "kit", why, stack=said)])

    def drain(self) -> None:
        """Ends every process that waits."""
        with self._lock:
            for process in self._waiting:
                process.kill()
            self._waiting.clear()


pool = _Pool()


def wait(port: int) -> None:
    """What a process of the pool runs: imports, connects, waits for its call."""
    from hw_utils.processes import fork_server, rank_main

    token = bytes.fromhex(sys.stdin.readline().strip())
    _die_with_parent()
    fork_server.preload_first()
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    socket_frames.send_frame(sock, SPEC, token)
    for module in fork_server.PERHAPS_USED:
        if select.select([sock], [], [], 0)[0]:
            break  # the call is there: what it needs it imports itself
        importlib.import_module(module)
    try:
        _, data = socket_frames.receive_frame(sock)
    except (EOFError, OSError):
        return
    rank, spec = pickle.loads(data)
    rank_main.main(sock, rank, spec)
    os._exit(0)


def _die_with_parent() -> None:
    """A thread that ends this process when the kernel's end of its stdin closes."""
    fd = os.dup(0)

    def watch() -> None:
        while os.read(fd, 1):
            pass
        getattr(os, "_exit_now", os._exit)(1)

    threading.Thread(target=watch, daemon=True, name="hw_utils parent watch").start()
