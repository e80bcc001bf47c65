"""The processes of ranks: forked from the server, spoken to over a pair of sockets each, and looked after."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import shutil
import signal
import socket
import time
from multiprocessing.connection import Connection, wait
from typing import Any

from hw_utils.core.errors import Failure
from hw_utils.core.failure_reasons import ending
from hw_utils.core.source.lines import Frame
from hw_utils.core.source.noted_frames import ASKS_WHERE, noted_frames

_PR_SET_PDEATHSIG = 1


class RankProcesses:
    """The ranks' processes."""

    def __init__(self, world_size: int, call: bytes, job: dict) -> None:
        self.folder = job["folder"]
        os.mkdir(self.folder, 0o700)
        self.lines: list[Connection] = []
        self.bells: list[Connection] = []
        self.pids: list[int] = []
        self.status: dict[int, int] = {}
        gc.collect()
        gc.freeze()  # else every collection in a rank would copy all pages of the server's objects
        for rank in range(world_size):
            line, bell = socket.socketpair(), socket.socketpair()
            pid = os.fork()
            if pid == 0:
                for ours in (*self.lines, *self.bells, line[0], bell[0]):
                    ours.close()
                theirs = [Connection(end.detach()) for end in (line[1], bell[1])]
                _become(rank, *theirs, call, job, self.stack_file(rank))
            line[1].close()
            bell[1].close()
            self.pids.append(pid)
            self.lines.append(Connection(line[0].detach()))
            self.bells.append(Connection(bell[0].detach()))

    def stack_file(self, rank: int) -> str:
        return os.path.join(self.folder, f"stack-{rank}")

    def ring(self, rank: int, message: Any) -> None:
        """Tells the rank's helper, which listens beside a program that stands in C++ code."""
        with contextlib.suppress(OSError):
            self.bells[rank].send(message)

    def send(self, rank: int, message: Any) -> None:
        with contextlib.suppress(OSError):  # it has died: the next receive says so
            self.lines[rank].send(message)

    def ready(self, ranks: list[int], timeout_s: float) -> list[int]:
        """Those of the ranks that have said something, or have ended, at most `timeout_s` later."""
        lines = {self.lines[rank]: rank for rank in ranks}
        return sorted(lines[line] for line in wait(list(lines), timeout_s))

    def read(self, rank: int) -> Any:
        """The rank's next message; None if its process has ended."""
        try:
            return self.lines[rank].recv()
        except (EOFError, ConnectionError):
            return None

    def crash(self, rank: int) -> Failure:
        """Why a rank's process has ended."""
        _, status = os.waitpid(self.pids[rank], 0)
        self.status[rank] = status
        kind, reason = ending(os.waitstatus_to_exitcode(status))
        return Failure(rank, kind, reason, self.last_frames(rank))

    def frames(self, rank: int) -> tuple[Frame, ...]:
        """The student's lines that a rank is at, asked of its process."""
        path = self.stack_file(rank)
        size = os.path.getsize(path)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pids[rank], ASKS_WHERE)
        for _ in range(50):
            if os.path.getsize(path) > size:
                break
            time.sleep(0.005)
        return self.last_frames(rank)

    def last_frames(self, rank: int) -> tuple[Frame, ...]:
        """Those of the last traceback that its process has written."""
        return noted_frames(self.stack_file(rank))

    def __enter__(self) -> RankProcesses:
        return self

    def __exit__(self, *error) -> None:
        """Lets all processes end, kills those that are left, and removes what they wrote."""
        for line in (*self.lines, *self.bells):
            line.close()
        for rank, pid in enumerate(self.pids):
            if rank not in self.status:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
        shutil.rmtree(self.folder, ignore_errors=True)


def _become(rank: int, line: Connection, bell: Connection, call: bytes, job: dict, stack_file: str) -> None:
    """The forked process's life; never returns."""
    status = 1
    try:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        from hw_utils.virtual.multiprocess import rank_main

        rank_main.live(rank, line, bell, call, job, stack_file)
        status = 0
    finally:
        os._exit(status)
