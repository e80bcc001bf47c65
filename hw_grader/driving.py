"""The grader's side of one check's driver: the processes it takes, and why they can no longer be asked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from hw_grader.sandbox import Process, Sandbox
from hw_grader.wire import WireError


@dataclass(frozen=True)
class Stop:
    """Why a process can no longer be asked: a state and one line."""

    state: str
    reason: str


def why_stopped(process: Process, error: Exception, where: str, limit_s: float) -> Stop:
    """Ends the process and says what is known."""
    ended = process.end()
    if ended.over_memory:
        return Stop("limit", f"{where} used more than {process.sandbox.limits.memory_bytes / 2**30:.0f} GiB of memory")
    if isinstance(error, TimeoutError):
        return Stop("limit", f"{where} did not stop after {limit_s:.0f} s")
    if isinstance(error, WireError):
        return Stop("limit" if "limit" in str(error) else "tampered", f"{where}: {error}")
    return Stop("crashed", f"{where} ended the process")


class Driving:
    """A check's driver and the answers it drives; a context manager."""

    where = "the answer"

    def __init__(self, sandbox: Sandbox, answers: bytes, sources: dict, limit_s: Callable[[], float]) -> None:
        self.sandbox, self.answers, self.sources, self.limit_s = sandbox, answers, sources, limit_s
        self.stack = contextlib.ExitStack()

    def __enter__(self) -> Driving:
        self.driver = self.stack.enter_context(self.sandbox.start("drive"))
        return self

    def __exit__(self, *error) -> None:
        self.stack.close()

    def case(self, case: bytes) -> tuple[dict, bytes]:
        """The driver's data on one case; `{"error": ...}` or `{"stop": ...}` if there is none."""
        return self._ask(self.driver, {"case": True}, case)

    def _ask(self, process: Process, request: dict, blob: bytes = b"") -> tuple[dict, bytes]:
        limit_s = self.limit_s()
        try:
            process.wire.send(request, blob, timeout_s=limit_s)
            return process.wire.receive(limit_s)
        except (EOFError, TimeoutError, WireError) as error:
            return {"stop": why_stopped(process, error, self.where, limit_s)}, b""


class Beside(Driving):
    """The driver opens the answers itself: for checks whose answers do not work from afar (models, classes)."""

    def open(self, check: str) -> dict:
        """Prepares for the cases of one check."""
        return self._ask(self.driver, {"open": check, "sources": self.sources}, self.answers)[0]


class Apart(Driving):
    """The answers are in a process of their own, and the driver calls them over a socket (see remote.py)."""

    def __enter__(self) -> Driving:
        self.path = self.stack.enter_context(self.sandbox.meeting())
        self.served = self.stack.enter_context(self.sandbox.start("answers"))
        self.is_open = False
        return super().__enter__()

    def open(self, check: str) -> dict:
        """Prepares for the cases of one check."""
        if not self.is_open:
            reply, _ = self._ask(self.served, {"path": self.path, "sources": self.sources}, self.answers)
            if "opened" not in reply:
                return reply
            self.is_open = True
        return self._ask(self.driver, {"open": check, "path": self.path, "sources": self.sources})[0]

    def case(self, case: bytes) -> tuple[dict, bytes]:
        reply, data = super().case(case)
        if reply.get("error") == "AnswerEnded" or "stop" in reply:
            served = self.served.end()
            if served.over_memory:
                return {"stop": why_stopped(self.served, EOFError(), self.where, 0)}, b""
            if "stop" not in reply:
                return {"stop": Stop("crashed", f"{self.where} ended its process")}, b""
        return reply, data
