"""The grader's side of one check's driver: the processes it takes, and why they can no longer be asked."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hw_grader.sandbox.messages import WireError
from hw_grader.sandbox.sandbox import Branch, Process, Sandbox, SandboxError

FEW_RANKS = (3, 4)  # of a case that is repeated, if there is one: with two, much is simpler


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


class Jails:
    """Where a submission's checks are driven: a jail for each check's answers, one for its drivers while it lasts."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.stack = contextlib.ExitStack()
        self.meeting = self.stack.enter_context(contextlib.ExitStack())
        self.drivers: Process | None = None

    def __enter__(self) -> Jails:
        return self

    def __exit__(self, *error) -> None:
        self.stack.close()

    def new_paths(self, n: int) -> list[str]:
        """Of sockets, each in a folder that nobody has used: what one has left there another could read."""
        self.meeting.close()
        return [self.new_path(self.meeting) for _ in range(n)]

    def new_path(self, stack: contextlib.ExitStack) -> str:
        """Of a socket, in a folder that stays until the stack is closed."""
        return f"{stack.enter_context(self.sandbox.meeting())}/socket"

    def answers(self, path: str) -> Process:
        """A jail with one process in it, for one check's answers or one rank's copy of them.

        Each check has its own: files, ports and numbers of processes would carry a hidden case of one check to the
        next one's case that the student sees.
        """
        return self.sandbox.start("answers", meeting=os.path.dirname(path))

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
    """One check's driver and, in a process of their own, the answers that it calls over a socket (answer_proxy.py)."""

    where = "the answer"

    def __init__(
        self, jails: Jails, answers: bytes, sources: dict, limit_s: Callable[[], float], *, in_orders: bool = False
    ) -> None:
        """in_orders: the answers are to run in threads that take turns, and nowhere else."""
        self.jails, self.answers, self.sources, self.limit_s = jails, answers, sources, limit_s
        self.in_orders = in_orders
        self.driven: dict[str, list[tuple[dict, int, bool]]] = {}  # check -> case, ranks, whether a salt changes it
        self.served: list[Process] = []  # the answers' processes; the first case starts one
        self.of_ranks: list[Process] = []  # of the case under way, if each rank has one
        self.stack = contextlib.ExitStack()

    def __enter__(self) -> Driving:
        self.driver = self.stack.enter_context(self.jails.driver())
        return self

    def __exit__(self, *error) -> None:
        self.stack.close()

    def open(self, check: str) -> dict:
        """Prepares for the cases of one check."""
        if not self.served:
            (self.path,) = self.jails.new_paths(1)
            self.served = [self.stack.enter_context(self.jails.answers(self.path))]
            reply = self._opened(self.served, [self.path])
            if "opened" not in reply:
                return reply
        return self._open(check, self.path)

    def open_apart(self, check: str) -> dict:
        """Prepares for cases of one check that have processes of their own."""
        return self._open(check, "")

    def _open(self, check: str, path: str) -> dict:
        self.check = check
        reply, _ = self._ask(self.driver, {"open": check, "path": path, "sources": self.sources})
        return self._ended(reply) or reply

    def case(self, case: dict, own: Sequence[str] = (), *, alters: bool = False) -> tuple[dict, bytes]:
        """The driver's data on one case; `{"error": ...}` or `{"stop": ...}` if there is none."""
        self.of_ranks = self.served if own else []
        with contextlib.ExitStack() as self.of_case:
            reply, data = self._ask(
                self.driver, {"case": True, "own": own, "alters": alters}, json.dumps(case).encode()
            )
            ended = self._ended(reply)
        if "data" in reply and not own:
            self.driven.setdefault(self.check, []).append((case, reply["n_ranks"], reply["is_drawn"]))
        return (ended, b"") if ended else (reply, data)

    def to_repeat(self, check: str) -> list[tuple[dict, int]]:
        """Cases of the check, and how many ranks each has, of which one tells more in a process for each rank; where
        none has several, those with numbers that a salt changes."""
        driven = self.driven.get(check, [])
        several = [one for one in driven if one[1] > 1] or [one for one in driven if one[2]]
        drawn = [(case, n) for case, n, is_drawn in several if is_drawn] or [(case, n) for case, n, _ in several]
        fewest = min((n for _, n in drawn), default=0)
        return [one for one in drawn if one[1] in FEW_RANKS] or [one for one in drawn if one[1] == fewest]

    def case_apart(self, case: dict, n_ranks: int, *, alters: bool = False) -> tuple[dict, bytes]:
        """The same, with a process behind walls of its own for each of so many ranks' copies of the answers, or for
        those that no rank calls.

        alters: torch.distributed brings other numbers than were sent.
        """
        for served in self.served:
            served.end()
        paths = self.jails.new_paths(max(n_ranks, 1))
        self.served = [self.stack.enter_context(self.jails.answers(path)) for path in paths]
        reply = self._opened(self.served, paths)
        return self.case(case, paths, alters=alters) if "opened" in reply else (reply, b"")

    def _more(self, n_ranks: int) -> dict:
        """A process with answers for each of so many ranks, as long as this case lasts."""
        paths = [self.jails.new_path(self.of_case) for _ in range(n_ranks)]
        self.of_ranks = [self.of_case.enter_context(self.jails.answers(path)) for path in paths]
        reply = self._opened(self.of_ranks, paths)
        return {"paths": paths} if "opened" in reply else {}

    def _opened(self, processes: list[Process], paths: list[str]) -> dict:
        """What is wrong with the first process that cannot open the answers, else that they are open."""
        request = {"sources": self.sources, "in_orders": self.in_orders}
        asked = [(served, {"path": path, **request}) for served, path in zip(processes, paths)]
        replies = [reply for reply, _ in self._ask_all(asked, self.answers)]
        return next((reply for reply in replies if "opened" not in reply), {"opened": True})

    def _ask(self, process: Process | Branch, request: dict, blob: bytes = b"") -> tuple[dict, bytes]:
        return self._ask_all([(process, request)], blob)[-1]

    def _ask_all(self, asked: list[tuple[Process | Branch, dict]], blob: bytes) -> list[tuple[dict, bytes]]:
        """Their replies, who work at the same time; the last is why there are no more, if one has none."""
        replies: list[tuple[dict, bytes]] = []
        limit_s, process = self.limit_s(), asked[0][0]
        try:
            for process, request in asked:
                process.wire.send(request, blob, timeout_s=limit_s)
            for process, _ in asked:
                replies.append(self._reply(process, limit_s := self.limit_s()))
        except (EOFError, TimeoutError, WireError) as error:
            replies.append(({"stop": why_stopped(process, error, self.where, limit_s)}, b""))
        return replies

    def _reply(self, process: Process | Branch, limit_s: float) -> tuple[dict, bytes]:
        """What a process says; the driver may ask first for more processes, and what is to be seen of their memory."""
        while True:
            reply, blob = process.wire.receive(limit_s)
            if process is self.driver and "look" in reply:
                number = reply["look"]
                process.wire.send(
                    {"new": (self.served[0] if number is None else self.of_ranks[number]).look(reply["lent"])}
                )
            elif process is self.driver and "more" in reply:
                process.wire.send(self._more(reply["more"]))
            else:
                return reply, blob

    def _ended(self, reply: dict) -> dict | None:
        """What to say instead if the answers' process is gone, was stopped with its driver, or is not who speaks."""
        if "forged" in reply:
            return {"stop": Stop("tampered", f"{self.where} wrote to the grader itself: {reply['forged']}")}
        if reply.get("error") == "AnswerEnded" or "stop" in reply:
            for served in {*self.served, *self.of_ranks}:
                if served.end().over_memory:
                    return {"stop": why_stopped(served, EOFError(), self.where, 0)}
            if "stop" not in reply:
                return {"stop": Stop("crashed", f"{self.where} ended its process")}
        return None
