"""The grader's side of one check's driver: the processes it takes, and why they can no longer be asked."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass

from hw_grader.sandbox import Branch, Process, Sandbox, SandboxError
from hw_grader.wire import WireError

SAY_S = 5
_NAME = re.compile(r"[A-Za-z_][\w.]{0,200}", re.ASCII)


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


def what_was_replaced(process: Process | Branch) -> str:
    """The name that a process says, if it is one; a process that says nothing in time is not waited for."""
    try:
        process.wire.send({"replaced": True}, timeout_s=SAY_S)
        said = process.wire.receive(SAY_S)[0].get("replaced")
    except (EOFError, TimeoutError, WireError):
        return ""
    return said if isinstance(said, str) and _NAME.fullmatch(said) else ""


def is_kits(name: str) -> bool:
    """Whether it is something that no answer has a reason to replace."""
    return name.startswith(("hw_utils.", "hw_grader."))


class Rooms:
    """Where a submission's checks are driven: one jail for its answers, another for its drivers, while they last."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.stack = contextlib.ExitStack()
        self.jails: dict[str, Process] = {}
        self.count = 0

    def __enter__(self) -> Rooms:
        self.folder = self.stack.enter_context(self.sandbox.meeting())
        return self

    def __exit__(self, *error) -> None:
        self.stack.close()

    def new_path(self) -> str:
        """Of a socket that no check has used."""
        self.count += 1
        return f"{self.folder}/{self.count}"

    def branch(self, role: str) -> Branch:
        """A fresh process in the jail for `role`, which is a new one if the last check ended it."""
        for is_last in (False, True):
            jail = self.jails.get(role)
            if jail is None or jail.ended is not None:
                jail = self.jails[role] = self.stack.enter_context(self.sandbox.start(role, branches=True))
            try:
                return jail.branch()
            except EOFError:  # what a check before has left behind ended it
                jail.end()
                if is_last:
                    raise SandboxError(f"no process for {role}") from None
        raise AssertionError


class Driving:
    """A check's driver and the answers it drives; a context manager."""

    where = "the answer"

    def __init__(self, rooms: Rooms, answers: bytes, sources: dict, limit_s: Callable[[], float]) -> None:
        self.rooms, self.answers, self.sources, self.limit_s = rooms, answers, sources, limit_s
        self.stack = contextlib.ExitStack()

    def __enter__(self) -> Driving:
        self.driver = self.stack.enter_context(self._driver())
        return self

    def __exit__(self, *error) -> None:
        self.stack.close()

    def case(self, case: bytes) -> tuple[dict, bytes]:
        """The driver's data on one case; `{"error": ...}` or `{"stop": ...}` if there is none."""
        return self._ask(self.driver, {"case": True}, case)

    def replaced(self) -> str:
        """What of the kit the answers have replaced where they run, by that process's own word (see seal.py)."""
        return what_was_replaced(self._beside_answers())

    def _ask(self, process: Process | Branch, request: dict, blob: bytes = b"") -> tuple[dict, bytes]:
        limit_s = self.limit_s()
        try:
            process.wire.send(request, blob, timeout_s=limit_s)
            return process.wire.receive(limit_s)
        except (EOFError, TimeoutError, WireError) as error:
            return {"stop": why_stopped(process, error, self.where, limit_s)}, b""


class Beside(Driving):
    """The driver opens the answers itself: for checks whose answers do not work from afar (models, classes).

    Such a driver is as little trusted as the answers: nothing that it was in serves another check.
    """

    def _driver(self) -> Process:
        return self.rooms.sandbox.start("drive")

    def _beside_answers(self) -> Process:
        return self.driver

    def open(self, check: str) -> dict:
        """Prepares for the cases of one check."""
        return self._ask(self.driver, {"open": check, "sources": self.sources}, self.answers)[0]


class Apart(Driving):
    """The answers are in a process of their own, and the driver calls them over a socket (see remote.py)."""

    def _driver(self) -> Branch:
        self.path, self.is_open = self.rooms.new_path(), False
        self.served = self.stack.enter_context(self.rooms.branch("answers"))
        return self.rooms.branch("drive")

    def _beside_answers(self) -> Branch:
        return self.served

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
        reply, data = super().case(case)
        ended = self._ended(reply)
        return (ended, b"") if ended else (reply, data)

    def _ended(self, reply: dict) -> dict | None:
        """What to say instead if the answers' process is gone, or was stopped with its driver."""
        if reply.get("error") == "AnswerEnded" or "stop" in reply:
            served = self.served.end()
            if served.over_memory:
                return {"stop": why_stopped(self.served, EOFError(), self.where, 0)}
            if "stop" not in reply:
                return {"stop": Stop("crashed", f"{self.where} ended its process")}
        return None
