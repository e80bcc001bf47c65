"""The kernel's side of a workers: the processes of one launch, their frames, their output, their end."""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import shutil
import socket
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from typing import Any

from hw_utils.core import failure_reasons, pickling
from hw_utils.core.errors import Failure, WaitTable
from hw_utils.core.printed_lines import Echo, Stream, is_noise
from hw_utils.core.source.lines import Frame, Where, locate, with_places
from hw_utils.core.source.noted_frames import ASKS_WHERE, noted_frames
from hw_utils.core.source.students_files import is_students
from hw_utils.gloo.deadlock import Watcher
from hw_utils.gloo.shared_state import Board
from hw_utils.processes import rank_main, socket_frames, start_by_fork
from hw_utils.processes.lock_waits import OwnWaits
from hw_utils.processes.start_by_spawn import SpawnStarter

TICK_S = 0.02
ASK_S = 0.1  # for busy ranks to say where they are


@dataclass
class Member:
    """One rank as the kernel sees it."""

    rank: int
    box: socket_frames.Mailbox
    out: Any  # sources of bytes
    err: Any
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


class WorkerProcesses:
    """Fresh processes for one call: started, connected to each other, used once.

    connect=False: one process without a process group, for `run_isolated`.
    """

    def __init__(self, world_size: int, *, connect: bool = True) -> None:
        self.world_size = world_size
        self.owner = os.getpid()
        self.directory = tempfile.mkdtemp(prefix="hw_utils-")
        self.spec = {"world_size": world_size, "connect": connect, "directory": self.directory}
        self.members: list[Member] = []
        self.echo = Echo()
        self.board = Board(os.path.join(self.directory, "board"), world_size, create=True) if connect else None
        self.watcher = Watcher(self.board) if self.board is not None else None
        self.own_waits = OwnWaits()
        self.table: WaitTable | None = None
        self.first_line: Any = None  # of the worker
        self.oom_kills = 0
        self.selector = selectors.DefaultSelector()
        self.starter: Any = None
        try:
            self.starter = (start_by_fork.ForkStarter if start_by_fork.available() else SpawnStarter)(self.spec)
            self.selector.register(self.starter, selectors.EVENT_READ, None)
            self.members = [self._start(r) for r in range(world_size)]
        except BaseException:
            self.close()
            raise

    def _start(self, r: int) -> Member:
        sock, out, err = self.starter.start(r)
        member = Member(r, socket_frames.Mailbox(sock), out, err)
        for what, name in ((sock, "box"), (out, "out"), (err, "err")):
            self.selector.register(what, selectors.EVENT_READ, (member, name))
        return member

    @property
    def is_fresh(self) -> bool:
        """Whether every process still waits for its call."""
        if self.owner != os.getpid() or self.starter is None or not self.starter.is_alive:
            return False
        try:
            self.pump(0)
        except RuntimeError:  # the server has died, and the workers with it
            return False
        return all(m.status is None and not m.box.closed and m.failure is None for m in self.members)

    def call(self, function: Any, args: tuple, call: bytes, **options: Any) -> None:
        """Sends `(function, args)`, pickled as `call`, to every rank."""
        self.first_line, self.oom_kills = _first_line(function), _oom_kills()
        message = {
            "call": bytes(call), "path": list(sys.path), "cwd": os.getcwd(), "environ": dict(os.environ),
            "port": _free_port(), **options,
        }  # fmt: skip
        data = pickle.dumps(message, protocol=5)
        for member in self.members:
            member.box.queue(rank_main.CALL, data)
            self._send(member)

    def pump(self, timeout_s: float = TICK_S) -> None:
        """Moves frames and output for at most `timeout_s`; returns earlier when something came."""
        for key, events in self.selector.select(timeout_s):
            if key.data is None:
                continue
            member, name = key.data
            if name != "box":
                self._read_stream(member, name)
                continue
            if events & selectors.EVENT_WRITE:
                self._send(member)
            if events & selectors.EVENT_READ:
                self._read_frames(member)
        for news in self.starter.news():
            member = self.members[news["rank"]]
            member.pid, member.status = news.get("pid", member.pid), news.get("status", member.status)

    def _send(self, member: Member) -> None:
        """Sends what the socket takes now, and asks to be told when it takes more."""
        box = member.box
        box.send_some()
        if not box.closed:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if box.wants_to_send else 0)
            self.selector.modify(box.sock, events, (member, "box"))

    def _read_frames(self, member: Member) -> None:
        for kind, data in member.box.receive_some():
            if kind == rank_main.UP:
                member.is_up = True
            elif kind == rank_main.STARTED:
                member.started, member.start_s = True, pickle.loads(data)
            elif kind == rank_main.META:
                member.meta = pickle.loads(data)
            elif kind == rank_main.RESULT:
                self._take_result(member, data)
            elif kind == rank_main.FAILED:
                self._take_failure(member, pickle.loads(data))
        if member.box.closed:
            self._forget(member.box.sock)

    def _forget(self, what: Any) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(what)

    def _take_result(self, member: Member, data: bytearray) -> None:
        try:
            member.result = pickling.load(data)
            member.returned = True
        except Exception as error:
            reason = f"what it returned cannot be rebuilt here: {type(error).__name__}: {error}"
            member.failure = Failure(member.rank, "unpicklable", reason)

    def _take_failure(self, member: Member, found: dict[str, Any]) -> None:
        """Takes a rank's failure; the other ends of a mismatch have failed too."""
        member.failure = failure = failure_from(member.rank, found)
        if self.first_line and not (failure.frames or failure.stack):  # not at a line of the worker any more
            member.failure = replace(failure, frames=(Frame(self.first_line),))
        for r, file, line in found["ends"]:
            other = self.members[r]
            if other.failure is None and not other.returned:
                other.failure = Failure(r, found["kind"], member.failure.reason, (Frame(locate(file, line)),))

    def _read_stream(self, member: Member, name: str) -> bool:
        """Takes what is in the pipe; whether there was anything."""
        source = getattr(member, name)
        data = source.read()
        if data is None:
            return False
        if not data:
            self._forget(source)
        self._show(member, member.stdout if name == "out" else member.stderr, data)
        return bool(data)

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
            busy = self.watcher.unsure(gone)
            if self.own_waits.all_stand(self.members[r].pid for r in busy):
                self.table = self.watcher.deadlock(gone, start_s, dict.fromkeys(busy, self._where_it_is))
            else:
                self.table = self.watcher.deadlock(gone, start_s)
        return self.table is not None

    def _where_it_is(self, r: int) -> Where | None:
        """The student's line that a rank is at now."""
        self.ask([self.members[r]])
        return next((frame.where for frame in reversed(self.stack_of(self.members[r]))), None)

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
                while self._read_stream(member, name):
                    pass
            self._show(member, member.stdout, b"", final=True)
            self._show(member, member.stderr, b"", final=True)

    def close(self) -> None:
        """Kills what is left of the workers, grandchildren included, and removes its directory."""
        if self.starter is not None:
            self.starter.close()
            self.starter = None
        else:
            shutil.rmtree(self.directory, ignore_errors=True)
        if self.board is not None:
            self.board.close()
            self.board = self.watcher = None
        self.selector.close()
        for member in self.members:
            member.box.sock.close()
            member.out.close()
            member.err.close()

    def stack_file(self, member: Member) -> str:
        return rank_main.stack_path(self.directory, member.rank)

    def stack_of(self, member: Member) -> tuple[Frame, ...]:
        """The student's lines that a dying or asked rank left in its stack file, else the worker's first line."""
        frames = noted_frames(self.stack_file(member)) or self._last_call(member)
        return frames or ((Frame(self.first_line),) if self.first_line else ())

    def _last_call(self, member: Member) -> tuple[Frame, ...]:
        where = None if self.watcher is None else self.watcher.last_call(member.rank)
        return (Frame(where),) if where else ()

    def ask(self, members: list[Member]) -> None:
        """Makes ranks write down where they are, at once; waits for it a moment."""
        sizes = {}
        for member in members:
            if member.pid and ASKS_WHERE is not None:
                sizes[self.stack_file(member)] = os.path.getsize(self.stack_file(member))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member.pid, ASKS_WHERE)
        deadline = time.perf_counter() + ASK_S
        wait_until(self, lambda: all(os.path.getsize(path) > size for path, size in sizes.items()), deadline)

    def crash_of(self, member: Member) -> Failure:
        """Why a process ended without a result."""
        kind, reason = failure_reasons.ending(member.status, ran_out_of_memory=_oom_kills() > self.oom_kills)
        self.drain()
        lost = [line for line in member.stderr.text.splitlines() if failure_reasons.lost_connection(line)]
        if lost and member.started and reason.startswith("killed by SIGABRT"):  # gloo's own thread, see LOST_S
            return Failure(member.rank, "wire", failure_reasons.lost(lost[-1]), self.stack_of(member))
        if not member.started and kind != "out_of_memory":
            reason = f"before your function began: {reason.removesuffix(failure_reasons.PERHAPS)}"
            return Failure(member.rank, "kit", reason, stack=member.stderr.text.rstrip())
        return Failure(member.rank, kind, reason, self.stack_of(member), status=member.status)


def _free_port() -> int:
    """A port that a program's own store may listen on, as torchrun gives it in MASTER_PORT."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def _first_line(function: Any):
    code = getattr(function, "__code__", None)
    return locate(code.co_filename, code.co_firstlineno) if code and is_students(code.co_filename) else None


def failure_from(r: int, found: dict[str, Any]) -> Failure:
    """The Failure that a rank's FAILED frame tells of, with the student's lines looked up here."""
    exception = None
    if found["exception"] is not None:
        with contextlib.suppress(Exception):  # a class that cannot be rebuilt here: its text is in the reason
            exception = pickling.load_error(found["exception"])
    frames = tuple(Frame(locate(file, line), name) for file, line, name in found["frames"])
    reason = with_places(" ".join(part for part in (found["reason"], found["note"]) if part))
    causes = tuple(map(with_places, found["causes"]))
    return Failure(r, found["kind"], reason, frames, exception, stack=found.get("stack", ""), causes=causes)


def _oom_kills() -> int:
    """How many processes the kernel has ended for want of memory since it started; 0 where it does not say."""
    try:
        with open("/proc/vmstat") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    except OSError:
        return 0


def wait_until(workers: WorkerProcesses, done, deadline: float) -> bool:
    """Pumps until `done()`; False if the deadline came first."""
    while not done():
        left = deadline - time.perf_counter()
        if left <= 0:
            return False
        workers.pump(min(TICK_S, left))
    return True
