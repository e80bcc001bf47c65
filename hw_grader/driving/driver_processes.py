"""The grader's side of one check's driver: the processes it takes, and why they can no longer be asked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from hw_grader.sandbox.messages import WireError
from hw_grader.sandbox.sandbox import Branch, Process, Sandbox, SandboxError


@dataclass(frozen=True)
class Stop:
    """Why a process can no longer be asked: a state and one line."""

    state: str
    reason: str


def why_stopped(process: Process | Branch, error: Exception, where: str, limit_s: float) -> Stop:
    """Ends the process and says what is known."""
    ended = process.end()
    if ended.over_memory:
        return Stop("limit", f"{where} used more than {process.sandbox.limits.memory_bytes / 2**30:.0f} GiB of memory")
    if isinstance(error, TimeoutError):
        return Stop("limit", f"{where} did not stop after {limit_s:.0f} s")
    if isinstance(error, WireError):
        return Stop("limit" if "limit" in str(error) else "tampered", f"{where}: {error}")
    return Stop("crashed", f"{where} ended the process")


class Rooms:
    """Where a submission's checks are driven: a jail for each check's answers, one for its drivers while it lasts."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.stack = contextlib.ExitStack()
        self.meeting = self.stack.enter_context(contextlib.ExitStack())
        self.drivers: Process | None = None
        self.folder = ""

    def __enter__(self) -> Rooms:
        return self

    def __exit__(self, *error) -> None:
        self.stack.close()

    def new_path(self) -> str:
        """Of a socket, in a folder that no check has used: what one has left there another could read."""
        self.meeting.close()
        self.folder = self.meeting.enter_context(self.sandbox.meeting())
        return f"{self.folder}/socket"

    def answers(self) -> Process:
        """A jail for one check's answers, with one process in it.

        Each check has its own: files, ports and numbers of processes would carry a hidden case of one check to the
        next one's case that the student sees.
        """
        return self.sandbox.start("answers", meeting=self.folder)

    def driver(self) -> Branch:
        """A fresh process in the drivers' jail, which is a new one if the last check ended it."""
        for is_last in (False, True):
            if self.drivers is None or self.drivers.ended is not None:
                self.drivers = self.stack.enter_context(self.sandbox.start("drive", branches=True))
            try:
                return self.drivers.branch()
            except EOFError:  # it ended, or was ended, since
                self.drivers.end()
                if is_last:
                    raise SandboxError("no process for drive") from None
        raise AssertionError


class Driving:
    """One check's driver and, in a process of their own, the answers that it calls over a socket (see stand_in.py)."""

    where = "the answer"

    def __init__(self, rooms: Rooms, answers: bytes, sources: dict, limit_s: Callable[[], float]) -> None:
        self.rooms, self.answers, self.sources, self.limit_s = rooms, answers, sources, limit_s
        self.path, self.is_open, self.n_ranks = rooms.new_path(), False, 0
        self.stack = contextlib.ExitStack()

    def __enter__(self) -> Driving:
        self.served = self.stack.enter_context(self.rooms.answers())
        self.driver = self.stack.enter_context(self.rooms.driver())
        return self

    def __exit__(self, *error) -> None:
        self.stack.close()

    def open(self, check: str) -> dict:
        """Prepares for the cases of one check."""
        if not self.is_open:
            reply, _ = self._ask(self.served, {"path": self.path, "sources": self.sources}, self.answers)
            if "opened" not in reply:
                return reply
            self.is_open = True
        reply, _ = self._ask(self.driver, {"open": check, "path": self.path, "sources": self.sources})
        return self._ended(reply) or reply

    def case(self, case: bytes) -> tuple[dict, bytes]:
        """The driver's data on one case; `{"error": ...}` or `{"stop": ...}` if there is none."""
        reply, data = self._ask(self.driver, {"case": True}, case)
        ended = self._ended(reply)
        self.n_ranks = reply.get("ranks", self.n_ranks)
        return (ended, b"") if ended else (reply, data)

    def says_the_same_alone(self) -> dict:
        """`{"same": ...}`: whether some ranks of a case say the same, each in a process of its own (tapes.py)."""
        for _ in range(self.n_ranks):
            self.served.end()
            self.path = self.rooms.new_path()
            self.served = self.stack.enter_context(self.rooms.answers())
            reply, _ = self._ask(self.served, {"path": self.path, "sources": self.sources}, self.answers)
            if "opened" in reply:
                reply, _ = self._ask(self.driver, {"alone": self.path})
            if reply.get("same") is not True:
                return reply
        return {"same": True}

    def _ask(self, process: Process | Branch, request: dict, blob: bytes = b"") -> tuple[dict, bytes]:
        limit_s = self.limit_s()
        try:
            process.wire.send(request, blob, timeout_s=limit_s)
            return process.wire.receive(limit_s)
        except (EOFError, TimeoutError, WireError) as error:
            return {"stop": why_stopped(process, error, self.where, limit_s)}, b""

    def _ended(self, reply: dict) -> dict | None:
        """What to say instead if the answers' process is gone, or was stopped with its driver."""
        if reply.get("error") == "AnswerEnded" or "stop" in reply:
            served = self.served.end()
            if served.over_memory:
                return {"stop": why_stopped(self.served, EOFError(), self.where, 0)}
            if "stop" not in reply:
                return {"stop": Stop("crashed", f"{self.where} ended its process")}
        return None
