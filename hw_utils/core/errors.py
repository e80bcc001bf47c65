"""What can go wrong, as a tree.

    HwError
    ├── CheckFailed      the answer is wrong
    └── WorkerFailed     the run went wrong: at least one rank did not return
        ├── Deadlock     every rank that was left waited for another one
        └── TimedOut     some rank was still busy when the time was up

    MessageMismatch      raised in a rank: a message and its receive differ
    └── CollectiveMismatch   ... or the members' calls of one collective

A helper that was misused raises a plain `ValueError` or `TypeError`.
None of them shows a stack of this package in a notebook: IPython asks `_render_traceback_` for the lines.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hw_utils.core.source.lines import Frame, Where, locate, with_places
from hw_utils.core.source.students_files import is_students
from hw_utils.core.versions import what_to_do


class HwError(Exception):
    """The root of the tree; shows its own message and no stack in a notebook."""

    cause = ""  # what a check knows that it comes from, in the check's words

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()


class CheckFailed(HwError, AssertionError):
    """An exercise's answer is wrong: which property, the smallest failing case, got, expected.

    Shown as `CheckFailed: <message>`, then the likely cause, or that none is known and what to look at next, then the
    hint that fits.
    """

    def __init__(self, message: str, *, cause: str = "", hint: str = "", look: str = "") -> None:
        self.message, self.cause, self.hint, self.look = message, cause, hint, look
        super().__init__(message)

    def __str__(self) -> str:
        lines = [self.message]
        if self.cause:
            lines.append(f"  likely cause: {self.cause}")
        elif self.look:
            lines.append(f"  no known mistake gives this. Next: {self.look}")
        if self.hint:
            lines.append(f"  see: {self.hint}")
        return "\n".join(lines)

    def _render_traceback_(self) -> list[str]:
        return f"CheckFailed: {self}".splitlines()

    def __reduce__(self):
        return (_check_failed, (self.message, self.cause, self.hint, self.look))


def _check_failed(message: str, cause: str, hint: str, look: str = "") -> CheckFailed:
    return CheckFailed(message, cause=cause, hint=hint, look=look)


@dataclass(frozen=True)
class Failure:
    """Why one rank did not return.

    `kind` is one of: exception, exit (`sys.exit`), os_exit, signal, out_of_memory, timeout, interrupted,
    unpicklable, mismatch, collective, wire (a communication error), deadlock, kit (no line of the student's is the
    cause: it happened before their function began; `stack` has the traceback).
    """

    rank: int
    kind: str
    reason: str  # one line, complete: "ValueError: x must not be empty"
    frames: tuple[Frame, ...] = ()  # the student's own lines, outermost first
    exception: BaseException | None = None  # of its own type, where it could be sent
    status: int | None = None  # how its process ended, if that is what went wrong: exit code, or minus the signal
    stack: str = ""  # the kit's own, if it is the kit that failed
    causes: tuple[str, ...] = ()  # what its exception comes of, nearest first: "IndexError: ..., at train.py, line 12"

    @property
    def where(self) -> Where | None:
        """The innermost line of the student's code."""
        return self.frames[-1].where if self.frames else None


def _frame_lines(frames: Iterable[Frame]) -> list[str]:
    lines = []
    for frame in frames:
        name = f", in {frame.function}" if frame.function not in ("", "<module>") else ""
        lines.append(f"    {frame.where}{name}")
        if frame.where.source:
            lines.append(f"        {frame.where.source}")
    return lines


@contextmanager
def without_our_stack() -> Iterator[None]:
    """A plain error that leaves it shows only the student's own lines in a notebook, as those of the tree do."""
    try:
        yield
    except (ValueError, TypeError, KeyboardInterrupt) as error:
        error._render_traceback_ = partial(_students_traceback, error)
        raise


def say_what_is_missing() -> None:
    """In a notebook: a cell that needs what is not written or not run yet says that in a line, and shows no stack."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None:
        return

    def show(shell, kind, error, tb, tb_offset=None):
        while tb.tb_next is not None:
            tb = tb.tb_next
        if missing := _missing(error, tb.tb_frame, locate(tb.tb_frame.f_code.co_filename, tb.tb_lineno)):
            error._render_traceback_ = lambda: [missing]
        shell.showtraceback((kind, error, error.__traceback__), tb_offset=tb_offset)

    shell.set_custom_exc((NotImplementedError, NameError), show)


def is_stubs(error: BaseException | None) -> bool:
    """Whether a stub raised it: a NotImplementedError without a word; torch's own say what they cannot do."""
    return type(error) is NotImplementedError and not str(error)


def _missing(error: Exception, frame, where: Where) -> str:
    """Which function of the student's is still a stub, or which name no cell has defined; empty for other errors.

    frame, where: the innermost of the error's.
    """
    if not is_students(frame.f_code.co_filename):
        return ""
    if type(error) is NameError and frame.f_code.co_name == "<module>":
        return (
            f"NameError: {error} ({where}): run the cell that defines it first (Run > Run All Above Selected Cell), "
            "or correct the name."
        )
    if is_stubs(error) and frame.f_code.co_name != "<module>":
        own = frame.f_locals.get("self")
        name = frame.f_code.co_name if own is None else f"{type(own).__name__}.{frame.f_code.co_name}"
        name = name.removesuffix(".__init__")
        return f"{name} is not written yet ({where}): write it, run its cell, then this one again."
    return ""


def _students_traceback(error: BaseException) -> list[str]:
    found = traceback.extract_tb(error.__traceback__)
    frames = [Frame(locate(f.filename, f.lineno or 0), f.name) for f in found if is_students(f.filename)]
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return [*text.splitlines(), *_frame_lines(frames)]


class WorkerFailed(HwError, RuntimeError):
    """At least one rank did not return; `.failures` has every one of them, `.rank` and `.reason` the first.

    The exception that a rank raised, of its own type, is `__cause__` and `.failures[i].exception`, with its own
    `__cause__`. `.memory` is what the ranks of a simulation held until then, if it kept memory; else None.
    """

    memory: Any = None  # a hw_utils.core.memory.Memory

    def __init__(self, failures: list[Failure], *, headline: str = "", note: str = "") -> None:
        self.failures = list(failures)
        self.rank = self.failures[0].rank
        self.reason = self.failures[0].reason
        self.headline, self.note = headline, note
        super().__init__(self.text())

    def text(self) -> str:
        """The message: every failing rank, its reason and the student's own lines."""
        lines = [self.headline] if self.headline else []
        groups: dict[tuple, list[Failure]] = {}
        for f in self.failures:
            is_both_sides = f.kind in ("mismatch", "collective")  # the reason names both, each at its line
            groups.setdefault((_reason_of_each(f), () if is_both_sides else f.frames, f.causes), []).append(f)
        for (reason, _, causes), failures in groups.items():
            said = reason if len(failures) > 1 else failures[0].reason
            lines.append(f"{ranks_text([f.rank for f in failures])}: {said}")
            lines += [f"    {line}" for line in failures[0].stack.splitlines()]
            lines += _frame_lines({frame.where: frame for f in failures for frame in f.frames}.values())
            lines += [f"    because of {cause}" for cause in causes]
        if self.note:
            lines.append(self.note)
        if any(f.kind == "kit" for f in self.failures):
            lines.append(what_to_do())
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()

    def _render_traceback_(self) -> list[str]:
        return f"{type(self).__name__}: {self}".splitlines()


def _reason_of_each(failure: Failure) -> str:
    """Its reason, in a collective's mismatch without the rank's own number: several ranks say the same then."""
    own = rf"\brank {failure.rank} calls\b"
    is_own = failure.kind == "collective" and len(re.findall(rf"\brank {failure.rank}\b", failure.reason)) == 1
    return re.sub(own, "each of them calls", failure.reason) if is_own else failure.reason


class TimedOut(WorkerFailed):
    """Some rank was still busy after `timeout_s`; its failure names the line it was at."""


@dataclass(frozen=True)
class Waiting:
    """One row of a wait-for table: what a rank waits for, on whom, since when, at which line."""

    rank: int
    op: str  # "recv", "send", "all_reduce", "wait for isend", ...
    peers: tuple[int, ...]  # the ranks that would have to move; empty if nobody can
    since_s: float  # seconds since the start of the run at which it began to wait
    where: Where | None = None
    tag: int = 0
    note: str = ""  # "rank 2 has returned", "rank 1 sends with tag 7", ...


_AT_ONCE = "0.000 s"  # a column of it alone says nothing


@dataclass
class WaitTable:
    """Who waits for whom: the rows, the cycle in rank order, and one sentence that says it.

    The text says since when only where some rank did something else first.
    """

    rows: list[Waiting]
    cycle: list[int] = field(default_factory=list)
    sentence: str = ""

    def text(self) -> str:
        head = ("rank", "waits in", "for", "since", "at")
        body = [
            (
                str(w.rank),
                w.op + (f" (tag {w.tag})" if w.tag else ""),
                ranks_text(w.peers) if w.peers else "nobody",
                f"{w.since_s:.3f} s",
                (str(w.where) if w.where else "?")
                + (f"  {w.where.source}" if w.where and w.where.source else "")
                + (f"  ({w.note})" if w.note else ""),
            )
            for w in self.rows
        ]
        columns = [column for column in zip(head, *body) if set(column[1:]) != {_AT_ONCE}]
        widths = [max(map(len, column)) for column in columns]
        rows = ["  ".join(c.ljust(n) for c, n in zip(row, widths)).rstrip() for row in zip(*columns)]
        return "\n".join([*rows, self.sentence] if self.sentence else rows)


class Deadlock(WorkerFailed):
    """Every rank that was left waited for another one; `.table` says who for whom, at which line.

    `.rows` and `.cycle` are the table's.
    """

    def __init__(self, table: WaitTable, failures: list[Failure] | None = None) -> None:
        self.table = table
        waiting = [
            Failure(
                w.rank,
                "deadlock",
                f"waits in {w.op} for {ranks_text(w.peers) if w.peers else 'nobody'}",
                (Frame(w.where),) if w.where else (),
            )
            for w in table.rows
        ]
        super().__init__([*(failures or []), *waiting])

    @property
    def rows(self) -> list[Waiting]:
        return self.table.rows

    @property
    def cycle(self) -> list[int]:
        return self.table.cycle

    def text(self) -> str:
        lines = ["no rank can go on: " + (self.table.sentence or "every one waits for another")]
        table = WaitTable(self.table.rows, self.table.cycle)
        lines.append(table.text())
        for f in self.failures:
            if f.kind != "deadlock":
                lines.append(f"rank {f.rank}: {f.reason}")
        if self.note:
            lines.append(self.note)
        return "\n".join(lines)


def ranks_text(ranks) -> str:
    """`rank 3`, `ranks 0, 2`, `ranks 0 to 7`."""
    ranks = sorted(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    shown = ", ".join(map(str, ranks[:12])) + (f" and {len(ranks) - 12} more" if len(ranks) > 12 else "")
    return f"ranks {shown}"


class MessageMismatch(RuntimeError):
    """A message and its receive, or the members' calls of one collective, differ; `ends` has the other side's line."""

    hw_utils_kind = "mismatch"

    def __init__(self, message: str, ends: tuple[tuple[int, str, int], ...] = ()) -> None:
        super().__init__(message)
        self.ends = ends  # (rank, file, line)

    def __str__(self) -> str:
        """For who catches it in its rank; `args` has the marks of places, which the kernel reads."""
        return with_places(self.args[0])


class CollectiveMismatch(MessageMismatch):
    hw_utils_kind = "collective"
