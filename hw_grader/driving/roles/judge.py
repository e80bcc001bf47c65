"""Role `judge`: says whether a driver's data is right, in a process that no student's code has ever been in.

Requests: `{"cases": check}` for a check's own cases; `{"judge": check}` with a plain `{"case", "data"}`.
It is sandboxed too, because the data may be made to hurt: deep, huge, of the wrong types.
"""

from __future__ import annotations

import contextlib
import io
import socket
import sys
from typing import Any

from hw_grader.driving.roles.drive import find_check, run_here
from hw_grader.sandbox.messages import Wire
from hw_utils.core.errors import CheckFailed
from hw_utils.core.plain_data import decode, encode


def warm_up() -> None:
    """Nothing of its own: the parent has imported hw_utils."""


def main(end: socket.socket) -> None:
    """Serves requests until the grader hangs up."""
    wire = Wire(end)
    run_here()
    sys.stdout = sys.stderr = io.StringIO()
    while True:
        try:
            request, blob = wire.receive(timeout_s=24 * 3600)
        except EOFError:
            return
        if "cases" in request:
            check = find_check(request["cases"])
            about = {"ok": check.ok, "follows_messages": check.follows_messages, "in_orders": check.in_orders}
            wire.send(about, encode([dict(c) for c in check.cases]))
        else:
            case, _, data = blob.partition(b"\n")
            wire.send(judge(request["judge"], case, data))


def judge(name: str, case: bytes, data: bytes) -> dict[str, Any]:
    """The verdict on one case: `{"right": True}`, `{"wrong": ...}`, `{"malformed": ...}`,
    `{"undecodable": ...}` or `{"fault": ...}`."""
    check = find_check(name)
    try:
        value = decode(data)
    except ValueError as error:
        return {"undecodable": str(error)[:500]}
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            check.judge_one(value, decode(case))
    except CheckFailed as error:
        return {"wrong": str(error)[:4000], "message": error.message[:2000], "cause": error.cause, "hint": error.hint}
    except OSError as error:  # the machine's
        return {"fault": f"{type(error).__name__}: {error}"[:500]}
    except (
        Exception
    ) as error:  # data of another form than asked for (a list for a number, 10 ** 400), as nothing else is new
        return {"malformed": f"{type(error).__name__}: {error}"[:500]}
    return {"right": True}
