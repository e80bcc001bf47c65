"""Role `drive`: calls a check's answers, which are in another process, on one case after the other.

No student's code has ever been in this process. It hands out plain data; whether that is right is judged elsewhere.
Requests: `{"open": check, "path": socket, "sources": {file: [count, text]}}`, then `{"case": n}` with the plain case.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import linecache
import socket
import sys
import traceback
import types
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hw_grader.driving.answer_proxy import AnswerEnded, answers_at
from hw_grader.driving.marshalling.call_channel import Forged
from hw_grader.driving.process_of_each_rank import PROCESS_OF_EACH_RANK
from hw_grader.sandbox.messages import Wire
from hw_utils.core.errors import HwError
from hw_utils.core.failure_reasons import causes_of
from hw_utils.core.plain_data import decode, encode
from hw_utils.core.source.lines import locate, with_places
from hw_utils.core.source.students_files import add_package, is_students
from hw_utils.virtual.ranks.per_rank_state import replaced_functions

add_package(str(Path(__file__).absolute().parents[2]))  # a student's error shows the student's lines


def warm_up() -> None:
    """Nothing of its own: the parent has imported hw_utils."""


def run_here() -> None:
    """This process is thrown away after one check: `simulate` needs none of its own, `launch` no ranks in reserve.

    Its ranks run checks and stand-ins, none of which replaces a function: nothing has to be compared at every run.
    """
    replaced_functions.trust()
    sys.modules["hw_utils.simulate"].stay_here()
    sys.modules["hw_utils.processes.spare_processes"].SPARE_RANKS = 0


def rehearse() -> None:
    """Drives ranks once, in the parent of all drivers: what a first run looks up, and keeps, is there in each fork."""
    run_here()
    sys.modules["hw_utils.simulate"].simulate(_meet, 2, (torch.ones(2),), echo=False)


def _meet(rank: int, world_size: int, tensor: torch.Tensor) -> torch.Tensor:
    if rank == 0:
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
    (dist.isend if rank else dist.irecv)(tensor, 1 - rank).wait()
    dist.all_reduce(tensor)
    return tensor


def main(end: socket.socket) -> None:
    """Serves requests until the grader hangs up."""
    wire = Wire(end)
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.stdout = sys.stderr = io.StringIO()
    check, answers = None, []
    PROCESS_OF_EACH_RANK.look, PROCESS_OF_EACH_RANK.more = partial(_look, wire), partial(_more, wire)
    while True:
        try:
            request, blob = wire.receive(timeout_s=24 * 3600)
        except EOFError:
            return
        if "open" in request:
            remember_sources(request.get("sources", {}))
            check = find_check(request["open"])
            run_here()
            reply, answers = _connect(request["path"]) if request["path"] else ({"opened": True}, [])
            wire.send(reply)
        elif request["own"]:
            reply, apart = _connect(request["own"][0])
            wire.send(*_drive(check, apart, decode(blob), request["own"], request["alters"]) if apart else (reply, b""))
        else:
            wire.send(*_drive(check, answers, decode(blob), []))


def _look(wire: Wire, number: int | None, lent: list[list]) -> list[int] | None:
    wire.send({"look": number, "lent": lent})
    return wire.receive(timeout_s=60)[0]["new"]


def _more(wire: Wire, n_ranks: int) -> list[str]:
    wire.send({"more": n_ranks})
    reply, _ = wire.receive(timeout_s=60)
    if "paths" not in reply:
        raise AnswerEnded("the answers cannot be opened once more")
    return reply["paths"]


def find_check(name: str):
    """The `Check` called `lesson_NN.name`."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(f"hw_utils.checks.{module}"), attribute)


def remember_sources(sources: dict[str, list]) -> None:
    """Makes errors show the student's line and cell number; the cells' process, which the student's code shares, says
    the names of the files, and a library's file is none of them."""
    shell = sys.modules["hw_grader.driving.roles.cells"]._shell
    for file, (count, text) in sources.items():
        if not is_students(file):
            continue
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        shell.compile._filename_map[file] = count


def _connect(path: str) -> tuple[dict[str, Any], list]:
    try:
        return {"opened": True}, answers_at(path)
    except Exception as error:
        return _error(error), []


def _drive(
    check, answers: list, case: dict[str, Any], own: list[str], alters: bool = False
) -> tuple[dict[str, Any], bytes]:
    draws = sys.modules["hw_utils.checks.drawn_numbers"]
    PROCESS_OF_EACH_RANK.begin(own, alters=alters)
    n_asked = draws.n_asked()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            data = encode(check.drive_one(answers, case))
        if Forged.seen:
            return {"forged": Forged.seen[0]}, b""
        return {"data": True, "n_ranks": len(PROCESS_OF_EACH_RANK.known), "is_drawn": draws.n_asked() > n_asked}, data
    except (Exception, SystemExit) as error:
        return _error(error), b""


def _error(error: BaseException) -> dict[str, Any]:
    """The student's own error as text: our errors as they show themselves, others with the student's lines."""
    if Forged.seen:  # a check may have made another error of it, or none
        return {"forged": Forged.seen[0]}
    name = type(error).__name__
    if isinstance(error, HwError):
        lines, cause = str(error).splitlines(), error.cause
        reason = lines[0]
    else:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if is_students(f.filename)]
        lines = []
        for frame in frames[-5:]:
            where = locate(frame.filename, frame.lineno)
            lines += [f"{where}, in {frame.name}", f"    {where.source}"]
        reason, notes = f"{name}: {error}", [str(note) for note in getattr(error, "__notes__", ())]
        lines += [reason, *(f"    because of {with_places(cause)}" for cause in causes_of(error))]
        lines += notes  # the check's case, and what such an exception comes from in this exercise
        cause = next((note.partition("likely cause: ")[2] for note in notes if "likely cause: " in note), "")
    return {"error": name[:100], "reason": reason[:500], "lines": [line[:500] for line in lines[:60]], "cause": cause}
