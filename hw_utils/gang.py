"""The kernel's side of a gang: the processes of one launch, their frames, their output, their end."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import shutil
import socket
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

from hw_utils import forkserver, payload, rank, wire
from hw_utils.board import Board
from hw_utils.errors import Failure, Frame, WaitTable
from hw_utils.output import Echo, Stream, is_noise
from hw_utils.standstill import Watcher
from hw_utils.where import locate, with_places

_CHUNK = 1 << 16
TICK_S = 0.02


@dataclass
class Member:
    """One rank as the kernel sees it."""

    rank: int
    box: wire.Mailbox
    out: int  # descriptors
    err: int
    pid: int = 0
    status: int | None = None  # how the process ended
    is_up: bool = False
    started: bool = False
    start_s: float = 0.0
    meta: dict[str, Any] = field(default_factory=dict)
    result: Any = None
    returned: bool = False
    failure: Failure | None = None
    stdout: Stream = field(default_factory=Stream)
    stderr: Stream = field(default_factory=Stream)

    @property
    def is_over(self) -> bool:
        return self.returned or self.failure is not None or self.status is not None


class Gang:
    """Fresh processes for one call: started, connected to each other, used once.

    connect=False: one process without a process group, for `run_isolated`.
    """

    def __init__(self, world_size: int, *, connect: bool = True) -> None:
        self.world_size = world_size
        self.owner = os.getpid()
        self.directory = tempfile.mkdtemp(prefix="hw_utils-")
        self.spec = {"world_size": world_size, "connect": connect, "directory": self.directory}
        self.members: list[Member] = []
        self.sock: socket.socket | None = None
        self.echo = Echo()
        self.board = Board(os.path.join(self.directory, "board"), world_size, create=True) if connect else None
        self.watcher = Watcher(self.board) if self.board is not None else None
        self.table: WaitTable | None = None
        try:
            self.sock = forkserver.connect().open_gang(self.spec)
            self.members = [self._start(r) for r in range(world_size)]
        except BaseException:
            self.close()
            raise
        self.sock.setblocking(False)

    def _start(self, r: int) -> Member:
        ours, theirs = socket.socketpair()
        (out_r, out_w), (err_r, err_w) = os.pipe(), os.pipe()
        fds = [theirs.fileno(), out_w, err_w]
        try:
            socket.send_fds(self.sock, [pickle.dumps({"rank": r})], fds)
        finally:
            theirs.close()
            os.close(out_w)
            os.close(err_w)
        for fd in (out_r, err_r):
            os.set_blocking(fd, False)
        return Member(r, wire.Mailbox(ours), out_r, err_r)

    @property
    def is_fresh(self) -> bool:
        """Whether every process still waits for its call."""
        if self.owner != os.getpid() or self.sock is None:
            return False
        self.pump(0)
        return all(m.status is None and not m.box.closed for m in self.members)

    def call(self, function: Any, args: tuple, call: bytes, **options: Any) -> None:
        """Sends `(function, args)`, pickled as `call`, to every rank."""
        self.first_line = _first_line(function)
        message = {
            "call": bytes(call), "path": list(sys.path), "cwd": os.getcwd(), "environ": dict(os.environ), **options
        }  # fmt: skip
        data = pickle.dumps(message, protocol=5)
        for member in self.members:
            member.box.queue(rank.CALL, data)

    def pump(self, timeout_s: float = TICK_S) -> None:
        """Moves frames and output for at most `timeout_s`; returns earlier when something came."""
        poll = select.poll()
        by_fd: dict[int, tuple[Member, str]] = {}
        for m in self.members:
            if not m.box.closed:
                by_fd[m.box.sock.fileno()] = (m, "box")
                poll.register(m.box.sock, select.POLLIN | (select.POLLOUT if m.box.wants_to_send else 0))
            for fd, name in ((m.out, "out"), (m.err, "err")):
                if fd >= 0:
                    by_fd[fd] = (m, name)
                    poll.register(fd, select.POLLIN)
        poll.register(self.sock, select.POLLIN)
        for fd, _ in poll.poll(timeout_s * 1000):
            if fd == self.sock.fileno():
                self._read_server()
                continue
            member, name = by_fd[fd]
            if name == "box":
                member.box.send_some()
                self._read_frames(member)
            else:
                self._read_stream(member, name)

    def _read_server(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                data = self.sock.recv(1 << 16)
                if not data:
                    self._server_died()
                    return
                message = pickle.loads(data)
                member = self.members[message["rank"]]
                if "pid" in message:
                    member.pid = message["pid"]
                else:
                    member.status = message["status"]

    def _server_died(self) -> None:
        for member in self.members:
            if member.status is None:
                member.status = -9
        raise ConnectionError("the fork server of hw_utils has died; launch again")

    def _read_frames(self, member: Member) -> None:
        for kind, data in member.box.receive_some():
            if kind == rank.UP:
                member.is_up = True
            elif kind == rank.STARTED:
                member.started, member.start_s = True, pickle.loads(data)
            elif kind == rank.META:
                member.meta = pickle.loads(data)
            elif kind == rank.RESULT:
                self._take_result(member, data)
            elif kind == rank.FAILED:
                self._take_failure(member, pickle.loads(data))

    def _take_result(self, member: Member, data: bytearray) -> None:
        try:
            member.result = payload.load(data)
            member.returned = True
        except Exception as error:
            reason = f"what it returned cannot be rebuilt here: {type(error).__name__}: {error}"
            member.failure = Failure(member.rank, "unpicklable", reason)

    def _take_failure(self, member: Member, found: dict[str, Any]) -> None:
        """Takes a rank's failure; the other ends of a mismatch have failed too."""
        member.failure = failure_from(member.rank, found)
        for r, file, line in found["ends"]:
            other = self.members[r]
            if other.failure is None and not other.returned:
                other.failure = Failure(r, found["kind"], member.failure.reason, (Frame(locate(file, line)),))

    def _read_stream(self, member: Member, name: str) -> None:
        fd = getattr(member, name)
        stream = member.stdout if name == "out" else member.stderr
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return
        if not data:
            os.close(fd)
            setattr(member, name, -1)
        self._show(member, stream, data)

    def _show(self, member: Member, stream: Stream, data: bytes, final: bool = False) -> None:
        lines = stream.feed(data, final)
        if stream is member.stderr:
            lines = [line for line in lines if not is_noise(line)]
        self.echo.show(member.rank, lines)

    def deadlock(self) -> bool:
        """Whether the ranks stand still for good; `table` then says why."""
        if self.watcher is not None:
            gone = {m.rank for m in self.members if m.failure or m.status is not None}
            start_s = min((m.start_s for m in self.members if m.started), default=0.0)
            self.table = self.watcher.deadlock(gone, start_s)
        return self.table is not None

    def blocked(self) -> list[int]:
        """The ranks that are in a wait."""
        return [] if self.watcher is None else self.watcher.blocked()

    def is_moving(self) -> bool:
        """Whether a rank neither has ended nor waits: one that fails may be followed by others."""
        waiting = set(self.blocked())
        return any(not m.is_over and m.rank not in waiting for m in self.members)

    def drain(self) -> None:
        """Reads the output that is already in the pipes, and ends unfinished lines."""
        for member in self.members:
            for name in ("out", "err"):
                while getattr(member, name) >= 0:
                    before = getattr(member, name)
                    if not select.select([before], [], [], 0)[0]:
                        break
                    self._read_stream(member, name)
            self._show(member, member.stdout, b"", final=True)
            self._show(member, member.stderr, b"", final=True)

    def close(self) -> None:
        """Kills what is left of the gang; the server does it, and removes the directory."""
        if self.sock is not None:
            self.sock.close()
        else:
            shutil.rmtree(self.directory, ignore_errors=True)
        self.sock = None
        if self.board is not None:
            self.board.close()
            self.board = self.watcher = None
        for member in self.members:
            member.box.sock.close()
            for name in ("out", "err"):
                if getattr(member, name) >= 0:
                    os.close(getattr(member, name))
                    setattr(member, name, -1)

    def stack_file(self, member: Member) -> str:
        return rank.stack_path(self.directory, member.rank)

    def stack_of(self, member: Member) -> tuple[Frame, ...]:
        """The student's lines that a dying or asked rank left in its stack file, else the worker's first line."""
        frames = read_stack(self.stack_file(member))
        return frames or ((Frame(self.first_line),) if self.first_line else ())

    def crash_of(self, member: Member) -> Failure:
        """Why a process ended without a result."""
        kind, reason = _ending(member.status)
        return Failure(member.rank, kind, reason, self.stack_of(member))


def _first_line(function: Any):
    code = getattr(function, "__code__", None)
    return locate(code.co_filename, code.co_firstlineno) if code else None


def failure_from(r: int, found: dict[str, Any]) -> Failure:
    """The Failure that a rank's FAILED frame tells of, with the student's lines looked up here."""
    exception = None
    if found["exception"] is not None:
        with contextlib.suppress(Exception):  # a class that cannot be rebuilt here: its text is in the reason
            exception = payload.load(found["exception"])
    frames = tuple(Frame(locate(file, line), name) for file, line, name in found["frames"])
    reason = with_places(" ".join(part for part in (found["reason"], found["note"]) if part))
    return Failure(r, found["kind"], reason, frames, exception)


def read_stack(path: str) -> tuple[Frame, ...]:
    """The student's frames in the last traceback that faulthandler wrote, outermost first."""
    import re

    from hw_utils.where import is_students

    try:
        with open(path, errors="replace") as file:
            text = file.read()
    except OSError:
        return ()
    last = re.split(r"(?:Current thread|Stack|Thread) [^\n]*\n", text)[-1]
    found = re.findall(r'^  File "(.*)", line (\d+) in (.*)$', last, re.MULTILINE)
    return tuple(Frame(locate(f, int(n)), name) for f, n, name in reversed(found) if is_students(f))


def _ending(status: int) -> tuple[str, str]:
    import signal

    if status >= 0:
        return "os_exit", f"its process ended with exit code {status} before the worker returned (os._exit?)"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    if name == "SIGKILL":
        return "signal", "killed by SIGKILL, as the system does when memory runs out"
    return "signal", f"killed by {name}" + (" (invalid memory access)" if name == "SIGSEGV" else "")


def wait_until(gang: Gang, done, deadline: float) -> bool:
    """Pumps until `done()`; False if the deadline came first."""
    while not done():
        left = deadline - time.perf_counter()
        if left <= 0:
            return False
        gang.pump(min(TICK_S, left))
    return True
