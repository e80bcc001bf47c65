"""Grades one submission: its cells in one sandboxed process, each check's driver in another, judges in a third.

The process that runs this never meets the student's code or unpickles anything: it passes blobs on and reads short
JSON messages, each within limits.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from nbformat import NotebookNode

from hw_grader.course.grading_records import Record, Verdict
from hw_grader.course.hidden_cases import OF_HIDDEN, cause_in, of_cause, of_error
from hw_grader.driving.driver_processes import Driving, Jails, Stop
from hw_grader.driving.judge_client import judge_of
from hw_grader.notebook.restore import restore
from hw_grader.notebook.run_cells import Ran, run_cells
from hw_grader.notebook.sanitize import visible
from hw_grader.notebook.time_limits import TimeLimits
from hw_grader.notebook.trusted_notebook import Call, Cell, TrustedNotebook
from hw_grader.notebook.unused_cells.unused import unused
from hw_grader.sandbox.sandbox import Sandbox, SandboxError


def submission_key(notebook: NotebookNode, trusted: TrustedNotebook, times: TimeLimits) -> str:
    """Changes whenever the verdict could: what was handed in, then, after a dash, all that grades it."""
    ours = {cell.grade_id for cell in trusted.checks}  # their text is not the student's
    ids = [c.metadata.get("nbgrader", {}).get("grade_id", "") for c in notebook.cells]
    cells = [[i, c.cell_type, "" if i in ours else c.source] for i, c in zip(ids, notebook.cells)]
    limits_s = [float(times.cell_s), float(times.case_s), float(times.total_s)]  # 60 and 60.0 are one limit
    return f"{_digest(cells, notebook.metadata.get('hw_grader', {}))}-{_digest(trusted.digest, limits_s)}"


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def is_same_work(key: str, other: str) -> bool:
    """Whether two keys are of the same submission, whatever graded it."""
    return key.partition("-")[0] == other.partition("-")[0]


def grade_bytes(
    data: bytes, trusted: TrustedNotebook, sandbox: Sandbox, student: str, times: TimeLimits | None = None
) -> Record:
    """The record of a submitted notebook file."""
    return grade(restore(data, trusted), trusted, sandbox, student, times or TimeLimits())


def grade(
    notebook: NotebookNode, trusted: TrustedNotebook, sandbox: Sandbox, student: str, times: TimeLimits
) -> Record:
    """The record of a restored notebook (see restore.py)."""
    runs_all = trusted.runs_all or not sandbox.walls  # there, a second time would know hidden cases from the first
    left_out = frozenset() if runs_all else unused(notebook.cells, trusted)
    deadline = time.monotonic() + times.total_s  # of both times, if there are two
    record = _grade(notebook, trusted, sandbox, student, times, left_out, deadline)
    if left_out and record.lacks_a_name and time.monotonic() < deadline:  # it was said that nobody could notice
        return _grade(notebook, trusted, sandbox, student, times, frozenset(), deadline, before=record)
    return record


# What computes what some exercises ask for: parts of the kit, and torch's own schedules. Lessons show them.
_TELLS = {
    "hw_utils": {"collective_algorithms", "replay", "played_costs", "play"},
    "torch": {"pipelining"},
}
_INNER = re.compile(r"\bhw_utils(?:\.[a-z_]\w*){2,}|\bhw_utils\.[a-z_]\w*(?=\s+import\b)")
_SPEAKS_FOR_ITSELF = {name: package for package, names in _TELLS.items() for name in names - {"replay", "play"}}


def noticed(notebook: NotebookNode, trusted: TrustedNotebook) -> list[str]:
    """Notes on cells of the student's own that import what computes an exercise's answer: for a person to look at."""
    given = {cell.source for cell in trusted.cells}
    shown = set(_INNER.findall("\n".join(given)))
    notes = []
    for n, cell in enumerate(notebook.cells):
        if cell.cell_type == "code" and cell.source not in given:
            if told := next(_told(cell.source), None):
                notes.append(f"cell {n + 1} uses {told}, which computes what exercises ask for")
            elif inner := sorted(set(_INNER.findall(cell.source)) - shown):
                notes.append(f"cell {n + 1} uses {inner[0]}, which no lesson shows")
    return notes


def _told(source: str) -> Iterator[str]:
    """The names of `_TELLS`: anywhere, also in a text; or, of a name like any other, in dotted names that begin with a
    package's, or imported from it, a line at a time."""
    words = set(re.findall(r"\w+", source))
    yield from (f"{package}'s {name}" for name, package in _SPEAKS_FOR_ITSELF.items() if name in words)
    for line in source.split("\n"):
        words = [word.split(".") for word in re.findall(r"[\w.]+", line)]
        for package, names in _TELLS.items():
            is_imported = False
            for before, parts in zip([[], *words], words if package in line else ()):
                is_imported |= parts == ["import"] and package in before
                told = names.intersection(parts if is_imported or package in parts else ())
                yield from (f"{package}'s {name}" for name in told)


def _grade(
    notebook: NotebookNode,
    trusted: TrustedNotebook,
    sandbox: Sandbox,
    student: str,
    times: TimeLimits,
    left_out: frozenset[int],
    deadline: float,
    before: Record | None = None,
) -> Record:
    """left_out: cells that do not run; if something lacks a name then, no hidden case is met.

    before: what was found so. Where it has met a hidden case all the same, no more than it has is shown.
    """
    started = time.monotonic()
    about = notebook.metadata.get("hw_grader", {})
    record = Record(trusted.assignment, student, trusted.notebook, submission_key(notebook, trusted, times), [])
    record.notes, record.noticed = list(about.get("notes", [])), noticed(notebook, trusted)
    if about.get("unreadable"):
        record.unreadable = about["unreadable"]
        record.verdicts = [_verdict(c, "crashed", record.unreadable) for c in trusted.to_run]
        return record
    try:
        ran = run_cells(notebook, trusted, sandbox, times, left_out, deadline)
        work, _, _ = record.key.partition("-")
        record.outputs = ran.outputs
        cells = trusted.to_run
        if before and any(verdict.hidden for verdict in before.verdicts):
            record.outputs = before.outputs
            cells = [replace(cell, calls=tuple(replace(call, hidden=True) for call in cell.calls)) for cell in cells]
        with Judging(sandbox, times, deadline, partial(drawn, trusted.secret, work)) as judging:
            record.verdicts = judging.on_visible_cases(cells, ran)
            if not (left_out and record.lacks_a_name):
                record.verdicts = judging.on_hidden_cases(cells, ran, record.verdicts)
    except SandboxError as error:
        graded = {v.grade_id for v in record.verdicts}
        shown = OF_HIDDEN["grader-fault"]  # what happened is staff's to read
        left = [c for c in trusted.to_run if c.grade_id not in graded]
        record.verdicts += [_verdict(c, "grader-fault", str(error), shown=shown) for c in left]
        return record
    record.notes += ran.notes
    record.cell_seconds, record.seconds = round(ran.seconds, 3), round(time.monotonic() - started, 3)
    record.peak_bytes = ran.peak_bytes
    return record


def drawn(secret: bytes, work: str, what: str) -> int:
    """A number from the course's secret and what was handed in: again the same, and nobody can choose or know it."""
    return int.from_bytes(hmac.digest(secret, f"{work} {what}".encode(), "sha256")[:7], "big")


def _verdict(cell: Cell, state: str, reason: str, **more) -> Verdict:
    points = cell.points if state == "pass" else 0.0
    more.setdefault("shown", OF_HIDDEN[state] if more.get("hidden") else reason)
    texts = {name: visible(more.pop(name)) for name in ("shown", "detail") if name in more}
    texts["cause"] = " ".join(visible(str(more.pop("cause", None) or ""))[:500].split())
    line = visible(reason.splitlines()[0][:300]) if reason else ""
    return Verdict(cell.grade_id, state, points, cell.points, line, **texts, **more)


NOT_APART = (
    "every case is right, but one that is run again is not: with other numbers, or other ones in what arrives, and "
    "each rank in a process of its own. What a rank knows comes to it as its arguments and by torch.distributed, and "
    "what arrives has to be used, whatever it is."
)


def _has_others_at_the_end(cell: Cell, ran: Ran) -> bool:
    """Whether the notebook's end has other answers than the check's place."""
    return any(len(ran.answers.get((cell.grade_id, call.names), ())) > 1 for call in cell.calls)


class Judging:
    """Grades the checks of one submission: a fresh driver process for each, one judge process for all."""

    def __init__(self, sandbox: Sandbox, times: TimeLimits, deadline: float, draw: Callable[[str], int]) -> None:
        """draw: a number that nobody can know, the same for the same words."""
        self.times, self.deadline, self.draw = times, deadline, draw
        self.of_the_end: set[str] = set()  # cells whose visible cases the answers of the notebook's end have passed
        self.driven: dict[tuple[str, int, int], dict] = {}  # cell, which answers, place of these -> Driving's
        self.jails, self.judge = Jails(sandbox), judge_of(sandbox)

    def __enter__(self) -> Judging:
        self.jails.__enter__()
        return self

    def __exit__(self, *error) -> None:
        self.judge.forget_submission()
        self.jails.__exit__(*error)

    def on_visible_cases(self, cells: Sequence[Cell], ran: Ran) -> list[Verdict]:
        """The verdict on each check cell by what it shows: whoever has met a hidden case could tell of it afterwards,
        by the time that has passed for example. So every text of theirs that is shown comes of this first round."""
        return [self._on_visible_cases(cell, ran) for cell in cells]

    def on_hidden_cases(self, cells: Sequence[Cell], ran: Ran, seen: Sequence[Verdict]) -> list[Verdict]:
        """The second round, for checks that passed the first one; it shows no more than of hidden cases."""
        return [
            self._on_hidden_cases(cell, ran) if first.state == "pass" else first for first, cell in zip(seen, cells)
        ]

    def _on_visible_cases(self, cell: Cell, ran: Ran) -> Verdict:
        """With the answers as they stood at the check's place, else as they were at the end."""
        verdict = self._with_answers(cell, ran, 0)
        if verdict.state == "fail" and _has_others_at_the_end(cell, ran):
            again = self._with_answers(cell, ran, -1)
            if again.state == "pass" or (again.state == "fail" and verdict.lacks_a_name):  # the end has it
                self.of_the_end.add(cell.grade_id)
                return again
        return verdict

    def _on_hidden_cases(self, cell: Cell, ran: Ran) -> Verdict:
        if cell.grade_id in self.of_the_end:
            return self._with_answers(cell, ran, -1, hidden=True)
        verdict = self._with_answers(cell, ran, 0, hidden=True)
        if verdict.state == "pass" or not _has_others_at_the_end(cell, ran):
            return verdict
        if self._with_answers(cell, ran, -1).state != "pass":
            return verdict
        again = self._with_answers(cell, ran, -1, hidden=True)
        return again if again.state == "pass" else verdict

    def _with_answers(self, cell: Cell, ran: Ran, which: int, *, hidden: bool = False) -> Verdict:
        """On visible cases; or on hidden ones, and a case of each check once more, apart."""
        for call in cell.calls:
            key = (cell.grade_id, call.names)
            if key not in ran.answers:
                if ran.stop is not None:
                    return _verdict(cell, ran.stop.state, f"not reached: {ran.stop.reason}")
                return _verdict(cell, "fail", ran.missing.get(key, "the check did not run"))
        if time.monotonic() > self.deadline:
            return _verdict(cell, "limit", f"the submission took more than {self.times.total_s:.0f} s")
        in_orders = any(self.judge.is_in_orders(call.check) for call in cell.calls)
        groups = itertools.groupby(cell.calls, lambda call: ran.answers[cell.grade_id, call.names][which])
        for place, (blob, calls) in enumerate(groups):
            chosen = [call for call in calls if call.hidden is hidden]
            if not chosen and not hidden:
                continue
            with Driving(self.jails, blob, ran.sources, self._limit_s, in_orders=in_orders) as driving:
                driving.driven = self.driven.setdefault((cell.grade_id, which, place), {})
                problems = (self._call(cell, call, driving) for call in chosen)
                problem = next((p for p in problems if p is not None), None)
                if problem is None and hidden:
                    problem = self._apart(cell, driving)
            if problem is not None:
                return problem
        return _verdict(cell, "pass", "right", shown=self._ok_lines(cell))

    def _apart(self, cell: Cell, driving: Driving) -> Verdict | None:
        """What is wrong if one case of each check is run again, with other numbers and ranks that share nothing."""
        for check in dict.fromkeys(call.check for call in cell.calls):
            cases = driving.to_repeat(check)
            if not cases:
                continue
            case, n_ranks = cases[self.draw(f"{check} case") % len(cases)]
            case = {**case, "salt": self.draw(f"{check} numbers")}
            problem = self._repeated(cell, check, case, driving, n_ranks)
            if problem is None and n_ranks > 1 and self.judge.follows_messages(check):
                reply, data = driving.case_apart(case, n_ranks, alters=True)
                is_right = "data" in reply and self.judge.judge(check, case, data, self.times.case_s).get("right")
                problem = _verdict(cell, "fail", NOT_APART) if is_right else None
            if problem is not None:
                return problem
        return None

    def _repeated(self, cell: Cell, check: str, case: dict, driving: Driving, n_ranks: int) -> Verdict | None:
        driving.open_apart(check)
        reply, data = driving.case_apart(case, n_ranks)
        if isinstance(stop := reply.get("stop"), Stop):
            return _verdict(cell, stop.state, stop.reason, hidden=True)
        if "data" not in reply:
            return _verdict(cell, "fail", NOT_APART, detail="\n".join(map(str, reply.get("lines", ()))))
        problem = self._problem(cell, Call(check, (), [case], hidden=True), case, data)
        is_wrong = problem is not None and problem.state == "fail"
        return _verdict(cell, "fail", NOT_APART, detail=problem.detail) if is_wrong else problem

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
            reply, data = driving.case(case)
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
        shown = of_error(reply.get("error")) if call.hidden else text
        reason = text if reply.get("error") == "CheckFailed" else str(reply.get("reason") or text)[:500]
        cause = cause_in(shown) if call.hidden else reply.get("cause")
        return _verdict(cell, "fail", reason, shown=shown, detail=text, hidden=call.hidden, cause=cause)

    def _problem(self, cell: Cell, call: Call, case: dict, data: bytes) -> Verdict | None:
        said = self.judge.judge(call.check, case, data, self.times.case_s)
        if said.get("right") is True:
            return None
        if "wrong" in said:
            shown, cause = said["wrong"], said.get("cause")
            if call.hidden:
                shown = of_cause(cause)
                cause = cause_in(shown)
            return _verdict(
                cell, "fail", said["message"], shown=shown, detail=said["wrong"], hidden=call.hidden, cause=cause
            )
        if "undecodable" in said:
            return _verdict(cell, "tampered", f"made-up data: {said['undecodable']}", hidden=call.hidden)
        if "malformed" in said:
            return _verdict(cell, "fail", f"the data has the wrong form: {said['malformed']}", hidden=call.hidden)
        if "slow" in said:
            return _verdict(cell, "limit", said["slow"], hidden=call.hidden)
        return _verdict(cell, "grader-fault", f"the judge failed: {said.get('fault')}", shown="not graded yet",
                        hidden=call.hidden)  # fmt: skip
