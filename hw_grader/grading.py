"""Grades one submission: its cells in one sandboxed process, each check's driver in another, judges in a third.

The process that runs this never meets the student's code or unpickles anything: it passes blobs on and reads short
JSON messages, each within limits.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from dataclasses import dataclass, field
from typing import Any

from nbformat import NotebookNode

from hw_grader.driving import Apart, Beside, Driving, Rooms, Stop, why_stopped
from hw_grader.judging import judge_of
from hw_grader.match import restore
from hw_grader.outputs import clean_outputs
from hw_grader.release import Call, Cell, Release
from hw_grader.sandbox import Process, Sandbox, SandboxError
from hw_grader.unused import NOTE, unused
from hw_grader.verdict import Record, Verdict
from hw_grader.wire import WireError

INTERRUPT_S = 1.5


@dataclass(frozen=True)
class Times:
    """How long a submission may take, in seconds."""

    cell_s: float = 60
    case_s: float = 75  # more than the 60 s after which launch and simulate stop by themselves
    total_s: float = 600


@dataclass
class Ran:
    """What came out of the student's cells."""

    answers: dict[tuple[str, tuple[str, ...]], list[Any]] = field(default_factory=dict)  # (check, names) -> blobs
    missing: dict[tuple[str, tuple[str, ...]], str] = field(default_factory=dict)
    outputs: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    sources: dict[str, list] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    stop: Stop | None = None
    seconds: float = 0.0
    peak_bytes: int = 0


def submission_key(notebook: NotebookNode, release: Release, times: Times) -> str:
    """Changes whenever the verdict could."""
    ours = {cell.grade_id for cell in release.checks}  # their text is not the student's
    ids = [c.metadata.get("nbgrader", {}).get("grade_id", "") for c in notebook.cells]
    cells = [[i, c.cell_type, "" if i in ours else c.source] for i, c in zip(ids, notebook.cells)]
    limits_s = [float(times.cell_s), float(times.case_s), float(times.total_s)]  # 60 and 60.0 are one limit
    parts = [cells, notebook.metadata.get("hw_grader", {}), release.digest, limits_s]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def grade_bytes(data: bytes, release: Release, sandbox: Sandbox, student: str, times: Times | None = None) -> Record:
    """The record of a submitted notebook file."""
    return grade(restore(data, release), release, sandbox, student, times or Times())


def grade(notebook: NotebookNode, release: Release, sandbox: Sandbox, student: str, times: Times) -> Record:
    """The record of a restored notebook (see match.py).

    The checks in `release.apart` (all of them if it is None) are driven by a process that never holds the answers.
    """
    left_out = frozenset() if release.runs_all else unused(notebook.cells, release)
    record = _grade(notebook, release, sandbox, student, times, left_out)
    if left_out and record.lacks_a_name:  # it was said that nobody could notice
        record = _grade(notebook, release, sandbox, student, times, frozenset())
    return record


def _grade(
    notebook: NotebookNode, release: Release, sandbox: Sandbox, student: str, times: Times, left_out: frozenset[int]
) -> Record:
    started = time.monotonic()
    about = notebook.metadata.get("hw_grader", {})
    record = Record(release.assignment, student, release.notebook, submission_key(notebook, release, times), [])
    record.notes = list(about.get("notes", []))
    if about.get("unreadable"):
        record.unreadable = about["unreadable"]
        record.verdicts = [_verdict(c, "crashed", record.unreadable) for c in release.checks]
        return record
    try:
        ran = run_cells(notebook, release, sandbox, times, left_out)
        with Judging(sandbox, times, started + times.total_s, release.apart) as judging:
            record.verdicts = [judging.check(cell, ran) for cell in release.checks]
    except SandboxError as error:
        graded = {v.grade_id for v in record.verdicts}
        record.verdicts += [_verdict(c, "grader-fault", str(error)) for c in release.checks if c.grade_id not in graded]
        return record
    record.notes += ran.notes
    record.outputs = ran.outputs
    record.cell_seconds, record.seconds = round(ran.seconds, 3), round(time.monotonic() - started, 3)
    record.peak_bytes = ran.peak_bytes
    return record


def _verdict(cell: Cell, state: str, reason: str, **more) -> Verdict:
    points = cell.points if state == "pass" else 0.0
    more.setdefault("shown", reason)
    return Verdict(cell.grade_id, state, points, cell.points, reason.splitlines()[0][:300] if reason else "", **more)


# The student's cells.


def run_cells(
    notebook: NotebookNode, release: Release, sandbox: Sandbox, times: Times, left_out: frozenset[int] = frozenset()
) -> Ran:
    """Runs the cells in order, and takes the answers where their check stands and again at the end."""
    ran, marked = Ran(), release.marked
    deadline = time.monotonic() + times.total_s
    wanted: list[tuple[str, tuple[str, ...]]] = []
    with sandbox.start("cells") as process:
        for place, node in enumerate(notebook.cells):
            cell = marked.get(node.metadata.get("nbgrader", {}).get("grade_id", ""))
            if cell is not None and cell.is_check:
                wanted += [
                    (cell.grade_id, call.names) for call in cell.calls if (cell.grade_id, call.names) not in wanted
                ]
                for key in wanted:
                    if key[0] == cell.grade_id:
                        _take_answer(process, key, ran)
            elif place in left_out:
                ran.outputs[place] = [{"output_type": "stream", "name": "stdout", "text": NOTE + "\n"}]
            elif node.cell_type == "code" and ran.stop is None and node.source.strip():
                _run_cell(process, place, node.source, ran, times, deadline)
        for key in wanted:
            _take_answer(process, key, ran)
        ended = process.end()
    ran.peak_bytes = ended.peak_bytes
    return ran


def _run_cell(process: Process, place: int, source: str, ran: Ran, times: Times, deadline: float) -> None:
    limit_s = max(0.1, min(times.cell_s, deadline - time.monotonic()))
    started = time.monotonic()
    try:
        process.wire.send({"run": source}, timeout_s=limit_s)
        reply = _reply_or_interrupt(process, place, limit_s, ran)
    except (EOFError, TimeoutError, WireError) as error:
        ran.stop = why_stopped(process, error, f"cell {place + 1}", limit_s)
        note = {"output_type": "error", "ename": "Stopped", "evalue": ran.stop.reason, "traceback": [ran.stop.reason]}
        ran.outputs[place] = [note]
        return
    finally:
        ran.seconds += time.monotonic() - started
    ran.outputs[place] = clean_outputs(reply.get("outputs"))
    file, count = reply.get("file"), reply.get("count")
    if isinstance(file, str) and len(file) < 300 and type(count) is int:
        ran.sources[file] = [count, source]


def _reply_or_interrupt(process: Process, place: int, limit_s: float, ran: Ran) -> dict:
    try:
        return process.wire.receive(limit_s)[0]
    except TimeoutError:
        process.interrupt()
        reply = process.wire.receive(INTERRUPT_S)[0]
        ran.notes.append(f"cell {place + 1} was stopped after {limit_s:.0f} s")
        return reply


def _take_answer(process: Process, key: tuple[str, tuple[str, ...]], ran: Ran) -> None:
    if ran.stop is not None:
        return
    try:
        process.wire.send({"answers": list(key[1])})
        reply, blob = process.wire.receive(INTERRUPT_S + 10)
    except (EOFError, TimeoutError, WireError) as error:
        ran.stop = why_stopped(process, error, "handing over " + ", ".join(key[1]), 10)
        return
    if "pickled" in reply:
        blobs = ran.answers.setdefault(key, [])
        if blob not in blobs:
            blobs.append(blob)
    elif "missing" in reply:
        ran.missing[key] = f"{str(reply['missing'])[:500]} is not defined"
    else:
        ran.missing[key] = f"the answer cannot leave the notebook: {str(reply.get('unpicklable'))[:500]}"


# The checks.


class Judging:
    """Grades the checks of one submission: a fresh driver process for each, one judge process for all."""

    def __init__(self, sandbox: Sandbox, times: Times, deadline: float, apart: frozenset[str] | None) -> None:
        self.times, self.deadline, self.apart = times, deadline, apart
        self.rooms, self.judge = Rooms(sandbox), judge_of(sandbox)

    def __enter__(self) -> Judging:
        self.rooms.__enter__()
        return self

    def __exit__(self, *error) -> None:
        self.judge.forget_submission()
        self.rooms.__exit__(*error)

    def check(self, cell: Cell, ran: Ran) -> Verdict:
        """The verdict on one check cell: the answers as they stood at its place, else as they were at the end."""
        verdict = self._with_answers(cell, ran, 0)
        second = any(len(ran.answers.get((cell.grade_id, call.names), ())) > 1 for call in cell.calls)
        if verdict.state == "fail" and second:
            again = self._with_answers(cell, ran, -1)
            if again.state == "pass":
                return again
        return verdict

    def _with_answers(self, cell: Cell, ran: Ran, which: int) -> Verdict:
        for call in cell.calls:
            key = (cell.grade_id, call.names)
            if key not in ran.answers:
                stop = ran.stop or Stop("fail", ran.missing.get(key, "the check did not run"))
                return _verdict(cell, stop.state, stop.reason)
        if time.monotonic() > self.deadline:
            return _verdict(cell, "limit", f"the submission took more than {self.times.total_s:.0f} s")
        for blob, calls in itertools.groupby(cell.calls, lambda call: ran.answers[cell.grade_id, call.names][which]):
            with self._driving(cell, blob, ran.sources) as driving:
                problems = (self._call(cell, call, driving) for call in calls)
                problem = next((p for p in problems if p is not None), None)
            if problem is not None:
                return problem
        return _verdict(cell, "pass", "right", shown=self._ok_lines(cell))

    def _driving(self, cell: Cell, answers: bytes, sources: dict) -> Driving:
        kind = Apart if self.apart is None or cell.grade_id in self.apart else Beside
        return kind(self.rooms, answers, sources, self._limit_s)

    def _limit_s(self) -> float:
        return max(0.1, min(self.times.case_s, self.deadline - time.monotonic()))

    def _ok_lines(self, cell: Cell) -> str:
        names = dict.fromkeys(call.check for call in cell.calls)
        return "\n".join(f"ok: {self.judge.ok(name)}" for name in names)

    def _call(self, cell: Cell, call: Call, driving: Driving) -> Verdict | None:
        cases = self.judge.cases(call.check) if call.cases is None else call.cases
        reply = driving.open(call.check)
        for case in cases:
            if "opened" not in reply and "data" not in reply:
                return self._stopped(cell, call, reply)
            reply, data = driving.case(json.dumps(case).encode())
            if "data" not in reply:
                return self._stopped(cell, call, reply)
            problem = self._problem(cell, call, case, data)
            if problem is not None:
                return problem
        return None if cases else _verdict(cell, "grader-fault", f"{call.check} has no case")

    def _stopped(self, cell: Cell, call: Call, reply: dict) -> Verdict:
        """The driver has no data: the student's own error, or its process is gone."""
        stop = reply.get("stop")
        if isinstance(stop, Stop):
            return _verdict(cell, stop.state, stop.reason, hidden=call.hidden)
        lines = [str(line)[:500] for line in reply.get("lines", ()) if isinstance(line, str)][:60]
        text = "\n".join(lines) or str(reply.get("error", "no reply"))[:200]
        shown = _without_case(call, "your code raises " + str(reply.get("error"))[:100]) if call.hidden else text
        reason = text if reply.get("error") == "CheckFailed" else str(reply.get("reason") or text)[:500]
        return _verdict(cell, "fail", reason, shown=shown, detail=text, hidden=call.hidden)

    def _problem(self, cell: Cell, call: Call, case: dict, data: bytes) -> Verdict | None:
        said = self.judge.judge(call.check, case, data, self.times.case_s)
        if said.get("right") is True:
            return None
        if "wrong" in said:
            shown = said["wrong"]
            if call.hidden:
                shown = _without_case(call, _without_numbers(said.get("cause", "")))
            return _verdict(cell, "fail", said["message"], shown=shown, detail=said["wrong"], hidden=call.hidden)
        if "undecodable" in said:
            return _verdict(cell, "tampered", f"made-up data: {said['undecodable']}", hidden=call.hidden)
        if "malformed" in said:
            return _verdict(cell, "fail", f"the data has the wrong form: {said['malformed']}", hidden=call.hidden)
        if "slow" in said:
            return _verdict(cell, "limit", said["slow"], hidden=call.hidden)
        return _verdict(cell, "grader-fault", f"the judge failed: {said.get('fault')}", shown="not graded yet",
                        hidden=call.hidden)  # fmt: skip


def _without_case(call: Call, cause: str) -> str:
    """What a student may know about a hidden case that failed."""
    text = "Every case shown in the notebook is right, but one that is not shown fails."
    return f"{text}\n  likely cause: {cause}" if cause else text


def _without_numbers(cause: Any) -> str:
    """A cause that holds a number may give a hidden case away."""
    return cause if isinstance(cause, str) and not any(c.isdigit() for c in cause) else ""
