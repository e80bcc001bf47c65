"""The judge that a sandbox keeps: asked about one driver's data at a time, never for two submissions by one process.

A judge is a pure function of its case and the data, so what it said about the same bytes is said again without it.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from typing import Any

from hw_grader.sandbox.messages import WireError
from hw_grader.sandbox.sandbox import Branch, Process, Sandbox, SandboxError

KEPT = 2_000  # what was said about so many different data


class Judge:
    """A jail in which no student's code has ever been, and a fresh process in it for each submission."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.start = sandbox.start
        self.jail: Process | None = None
        self.branch: Branch | None = None
        self.known: dict[str, tuple[list[dict], dict]] = {}
        self.said: OrderedDict[bytes, dict] = OrderedDict()

    def cases(self, check: str) -> list[dict[str, Any]]:
        """A check's own cases."""
        return self._about(check)[0]

    def ok(self, check: str) -> str:
        """What a check says when every case is right."""
        return self._about(check)[1].get("ok") or check

    def follows_messages(self, check: str) -> bool:
        """Whether only an answer can be right that uses the numbers in its messages."""
        return self._about(check)[1].get("follows_messages") is True

    def is_in_orders(self, check: str) -> bool:
        """Whether threads take turns in it, step by step, in many orders."""
        return self._about(check)[1].get("in_orders") is True

    def _about(self, check: str) -> tuple[list[dict], dict]:
        if check not in self.known:
            reply = self._ask({"cases": check}, b"", 60)
            if reply is None:
                raise SandboxError(f"no cases for {check}: the judge's process ended")
            self.known[check] = json.loads(reply[1]), reply[0]
        return self.known[check]

    def judge(self, check: str, case: dict, data: bytes, timeout_s: float) -> dict[str, Any]:
        """What judge.py's `judge` says, or `{"slow": ...}`."""
        blob = json.dumps(case).encode() + b"\n" + data
        key = hashlib.sha256(check.encode() + b"\n" + blob).digest()
        if key in self.said:
            self.said.move_to_end(key)
            return self.said[key]
        reply = self._ask({"judge": check}, blob, timeout_s)
        if reply is None:
            return {"slow": "the data was too much for the judge"}
        if "right" in reply[0] or "wrong" in reply[0]:
            self.said[key] = reply[0]
            if len(self.said) > KEPT:
                self.said.popitem(last=False)
        return reply[0]

    def _ask(self, request: dict, blob: bytes, timeout_s: float) -> tuple[dict, bytes] | None:
        """The reply; asked once more if the process has ended, as it may have before; None if there is none."""
        for _ in range(2):
            try:
                if self.branch is None:
                    self.jail = self.jail or self.start("judge", branches=True)
                    self.branch = self.jail.branch()
                self.branch.wire.send(request, blob, timeout_s)
                return self.branch.wire.receive(timeout_s)
            except (EOFError, WireError):
                self.end()
            except TimeoutError:
                self.end()
                return None
        return None

    def forget_submission(self) -> None:
        """The next question is for another submission: another process answers it."""
        if self.branch is not None:
            self.branch.wire.close()
            self.branch = None

    def end(self) -> None:
        """Ends the judge's processes; the next question starts them again."""
        self.forget_submission()
        if self.jail is not None:
            self.jail.end()
            self.jail = None

    def drop(self) -> None:
        """Closes the wires; the processes end with their sandbox."""
        self.forget_submission()
        if self.jail is not None:
            self.jail.wire.close()


_judges: dict[Sandbox, Judge] = {}


def judge_of(sandbox: Sandbox) -> Judge:
    """The sandbox's one, until it is closed."""
    if sandbox not in _judges:
        _judges[sandbox] = Judge(sandbox)
        sandbox.at_close(lambda: _judges.pop(sandbox).drop())
    return _judges[sandbox]
