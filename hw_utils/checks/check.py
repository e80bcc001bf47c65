"""What a check is: cases, a driver that meets the student's code, and a judge that never does."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch

from hw_utils.checks import drawn_numbers
from hw_utils.checks.common_mistakes import cause_of_error
from hw_utils.checks.kept_names import KeptNames
from hw_utils.checks.time_limit import time_limit
from hw_utils.core.calls.wait_for import stand_alone
from hw_utils.core.errors import CheckFailed, Deadlock, WorkerFailed, is_stubs, ranks_text
from hw_utils.core.plain_data import encode, plain
from hw_utils.core.run_result import Run
from hw_utils.core.source.lines import Where, function_at
from hw_utils.core.source.students_files import is_students
from hw_utils.core.trace import Trace

Case = Mapping[str, Any]

REGISTRY: dict[str, Check] = {}
_SHOWN_CHARS = 200  # of a case


@dataclass(frozen=True)
class Check:
    """Grades one exercise on its cases: `driver(*answers, **case)` gives plain data, `judge(data, **case)` objects.

    Call it with the student's answers (functions or values): it raises, or prints one `ok:` line.
    `cases=` replaces the visible cases; hidden ones come that way.

    driver: runs beside the student's code; returns plain data (numbers, strings, arrays, ledger rows).
        It lets the student's own exceptions pass. It knows no right answer.
    judge: a pure function of the driver's data and the case; raises CheckFailed, and returns nothing.
    cases: keyword arguments, plain data, smallest first, so that the smallest failing case is the one shown.
    """

    name: str  # "lesson_02.ring_all_reduce"
    driver: Callable[..., Any]
    judge: Callable[..., None]
    cases: Sequence[Case] = ({},)
    ok: str = ""  # what was shown to be right, for the `ok:` line
    hint: str = ""  # "hint 2 of exercise 2.2", for a failure that no other hint is about
    # "hint 2 of exercise 2.2" -> what a failure that it explains says, as a regex; the first that is found is named
    hints: Mapping[str, str] = field(default_factory=dict)
    # What an exception of the answer says, as a regex -> what it comes from in this exercise; other exceptions are
    # put into the words of `common_mistakes`.
    errors: Mapping[str, str] = field(default_factory=dict)
    look: str = ""  # what to print next if no known mistake gives such data
    is_formula: bool = False  # the answer gives a value, and leaves what it is given as it is
    # Every rank could compute everything: what shows that it does not is that other numbers in messages make it wrong.
    follows_messages: bool = False
    in_orders: bool = False  # ranks are threads that take turns in many orders, step by step

    def __post_init__(self) -> None:
        if self.name in REGISTRY and REGISTRY[self.name].driver.__qualname__ != self.driver.__qualname__:
            raise ValueError(f"two checks are called {self.name}")
        REGISTRY[self.name] = self

    @property
    def __doc__(self) -> str:
        return self.driver.__doc__ or ""

    @property
    def __signature__(self) -> inspect.Signature:
        names = [p for p in inspect.signature(self.driver).parameters.values() if p.kind is p.POSITIONAL_ONLY]
        cases = inspect.Parameter("cases", inspect.Parameter.KEYWORD_ONLY, default=None)
        return inspect.Signature([*names, cases])

    def __call__(self, *answers: Any, cases: Sequence[Case] | None = None) -> None:
        expected = list(self.__signature__.parameters)[:-1]
        if len(answers) != len(expected):
            raise TypeError(f"checks.{self.name} takes {', '.join(expected)}; got {len(answers)} answers")
        chosen = self.cases if cases is None else cases
        if not chosen:
            raise ValueError(f"checks.{self.name} needs at least one case")
        kept = KeptNames(answers)
        for case in chosen:
            try:
                self.judge_one(self.drive_one(answers, case), case)
            except CheckFailed as error:
                raise self._with_what_is_kept(error, kept, answers, case) from None
        print(f"ok: {self.ok or self.name}")

    def _with_what_is_kept(
        self, error: CheckFailed, kept: KeptNames, answers: Sequence[Any], case: Case
    ) -> CheckFailed:
        """The failure; what the answers' calls keep outside of them is put back, and the case tried again.

        Then all of it is as the failure left it: a list may be there to be looked at.
        """
        at_the_failure, name = KeptNames(answers), kept.put_back()
        if not name:
            return error
        try:
            self.judge_one(self.drive_one(answers, case), case)
        except Exception:
            shared = _SHARED.format(name=name)
            cause = f"{shared} If that is not it: {error.cause}" if error.cause else shared
            return CheckFailed(error.message, cause=cause, hint=self.hint_for(shared) or error.hint)
        finally:
            at_the_failure.put_back()
        return CheckFailed(error.message, cause=_KEPT.format(name=name))

    def drive_one(self, answers: Sequence[Any], case: Case) -> Any:
        """Plain data from the student's code on one case; called in the student's process."""
        given = [_formula(a) if self.is_formula else a for a in answers]
        try:
            limit = time_limit(self.name.split(".")[-1])
            with limit, drawn_numbers.of(case) as own, self._autograd_stays(), _one_thread():
                return plain(self.driver(*given, **own))
        except NotImplementedError as error:
            if not is_stubs(error):
                raise
            raise self._not_written(_students_line(error)) from None
        except WorkerFailed as error:
            if all(is_stubs(failure.exception) for failure in error.failures):
                raise self._not_written(error.failures[0].where) from None
            error.note = self._note(error, case)
            raise
        except Exception as error:
            if not isinstance(error, CheckFailed):
                cause = cause_of_error(f"{type(error).__name__}: {error}", self.errors)
                _add_note(error, f"this was the check's case {case_text(case)[:_SHOWN_CHARS]}")
                _add_note(error, f"  likely cause: {cause}" if cause else "")
            raise

    @contextmanager
    def _autograd_stays(self) -> Iterator[None]:
        was_on = torch.is_grad_enabled()
        try:
            yield
            if torch.is_grad_enabled() != was_on:
                raise CheckFailed(
                    f"after {self.name.split('.')[-1]} autograd is {'off' if was_on else 'on'}, for its caller too.",
                    cause="torch.set_grad_enabled(...) stays; what `with torch.no_grad():` does ends by itself.",
                )
        finally:
            torch.set_grad_enabled(was_on)

    def _not_written(self, where: Where | None) -> CheckFailed:
        stub = function_at(where.file, where.line) if where else ""
        return CheckFailed(
            f"{stub or self.name.split('.')[-1]} is not written yet.",
            cause="the stub still raises NotImplementedError: write the function in its cell and run that.",
            hint=self.hint,
        )

    def _note(self, error: WorkerFailed, case: Case) -> str:
        """What an error of the student's own does not say: its case, what it comes from, which hint is about it."""
        lines = [error.note] if error.note else []
        lines += [f"this was the check's case {case_text(case)[:_SHOWN_CHARS]}"] if case else []
        cause = cause_of_error(str(error), self.errors)
        hint = self.hint_for(cause) if cause in self.errors.values() else ""
        hint = hint or self.hint_for(str(error))
        error.cause = cause
        if cause and "likely cause" not in str(error):
            lines.append(f"  likely cause: {cause}")
        is_told = cause or hint or "likely cause" in str(error)
        if not is_told and any(failure.where for failure in error.failures):
            lines.append("  no known mistake gives this. Next: print, just before that line, what stands in it.")
        if hint:
            lines.append(f"  see: {hint}")
        return "\n".join(lines)

    def hint_for(self, text: str) -> str:
        """The hint that explains a failure, by what it says; empty if none does."""
        return next((hint for hint, says in self.hints.items() if re.search(says, text, re.S)), "")

    def judge_one(self, data: Any, case: Case) -> None:
        """Raises CheckFailed if the data is wrong; called where the student's code is not.

        What the judge leaves out is added: the hint that its words ask for, and without a cause what to do next.
        """
        try:
            with drawn_numbers.of(case) as own, _one_thread():
                self.judge(data, **own)
        except CheckFailed as error:
            look = "" if error.cause else error.look or self.look or _LOOK.format(case=case_text(case)[:_SHOWN_CHARS])
            hint = (
                error.hint
                or self.hint_for(error.cause)
                or self.hint_for(error.message)
                or ("" if self.hints and error.cause else self.hint)
            )
            raise CheckFailed(error.message, cause=error.cause, hint=hint, look=look) from None


@contextmanager
def _one_thread() -> Iterator[None]:
    """Of torch's, as ranks have: with more, small tensors take ten times as long where cores are busy."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)


_KEPT = "tried alone this case is right, after other calls it is not: `{name}` keeps something from call to call."
_SHARED = "`{name}` is changed in a call, and all calls, objects and ranks share it: keep it in the call, or on self."
# Where neither judge nor check knows better.
_LOOK = "call your function with {case}, print what it has after every step, and work the same out by hand."


def _students_line(error: Exception) -> Where | None:
    """The innermost line of the student's that the error comes from."""
    found = [f for f in traceback.extract_tb(error.__traceback__) if is_students(f.filename)]
    return Where(found[-1].filename, found[-1].lineno or 0) if found else None


def _add_note(error: Exception, text: str) -> None:
    """A line below the traceback; above it on Python 3.10, whose exceptions take no notes."""
    if text and hasattr(error, "add_note"):
        error.add_note(text)
    elif text:
        print(text, file=sys.stderr)


def observe(run: Callable[[], Run]) -> dict[str, Any]:
    """Plain data of a run, for a judge: results, output, seconds, trace; or the deadlock it ended in.

    A deadlock is an answer that a judge explains; any other failure is the student's own error and passes.
    """
    try:
        done = run()
    except Deadlock as error:
        waiting = [[row.rank, row.op, list(row.peers)] for row in error.rows]
        return {"deadlock": str(error), "waiting": waiting}
    return {
        "deadlock": None,
        "results": plain(done.results),
        "output": list(done.output),
        "seconds": done.seconds,
        "trace": done.trace.as_plain(),
    }


def require_no_deadlock(data: dict[str, Any], what: str, *, cause: str = "", hint: str = "") -> None:
    """Raises CheckFailed with the wait-for table if the observed run ended in a deadlock."""
    if data["deadlock"] is not None:
        cause = _why_alone(data.get("waiting", [])) or _why_tags(str(data["deadlock"])) or cause
        raise CheckFailed(f"{what} hangs: {data['deadlock']}", cause=cause, hint=hint)


def _why_alone(waiting: list) -> str:
    """The cause, if a rank waits for no other rank."""
    alone = stand_alone((rank, peers) for rank, _, peers in waiting)
    if not alone:
        return ""
    return (
        f"{ranks_text(alone)} {'stands' if len(alone) == 1 else 'stand'} at the line in the table for something in the "
        "same process, a lock, an event, a queue: no message ends that. Take the wait out, or set it before."
    )


_WAITS = re.compile(r"^ *(\d+) +(?:wait for )?i?(send|recv)(?: \(tag (\d+)\))? +rank (\d+) ", re.M)


def _why_tags(table: str) -> str:
    """The cause, if a send and its receive stand in the wait-for table and only their tags differ."""
    rows = [(op, int(rank), int(peer), tag or "0") for rank, op, tag, peer in _WAITS.findall(table)]
    sends = {(rank, peer): tag for op, rank, peer, tag in rows if op == "send"}
    meets = [(sends[peer, rank], tag) for op, rank, peer, tag in rows if op == "recv" and (peer, rank) in sends]
    if any(sent != received for sent, received in meets):
        return "a message meets the receive that has its tag: give both ends the same number, or none."
    return ""


def require_waits(trace: Trace, what: str) -> None:
    """Raises CheckFailed if a call that returned at once, an isend or anything with async_op, was never waited for."""
    for event in trace:
        if event.waited is None:
            raise CheckFailed(
                f"{what}: every value is right, but rank {event.rank} never waits for its {event.op}.",
                cause="until wait() has returned the buffer is not yours: on a slower network this run would go wrong. "
                f"Keep what {event.op} gives back, and wait for it.",
            )


def _formula(answer: Callable[..., Any]) -> Callable[..., Any]:
    """The answer; it fails if it changes a list or a dictionary that it was given."""
    is_far = hasattr(type(answer), "CROSSES_AS")  # in another process, which says no names
    if not isinstance(answer, FunctionType) and not is_far:
        return answer

    def call(*arguments: Any) -> Any:
        before = [encode(plain(argument)) for argument in arguments]
        result = answer(*arguments)
        names = range(1, 1 + len(arguments)) if is_far else inspect.signature(answer).parameters
        for name, was, argument in zip(names, before, arguments):
            if encode(plain(argument)) != was:
                shown = name if is_far else f"`{name}`"
                raise CheckFailed(
                    f"{answer.__name__} changes its argument {shown}: the caller's is another one after the call.",
                    cause="pop, sort, append and assignments work in place: on a copy of the argument they do no harm.",
                )
        return result

    return functools.update_wrapper(call, answer, updated=())


def case_text(case: Case) -> str:
    """`world_size=4, n_elements=10`."""
    return ", ".join(f"{k}={v!r}" for k, v in case.items()) or "its only case"


def check(
    name: str,
    *,
    judge: Callable[..., None],
    cases: Sequence[Case] = ({},),
    ok: str = "",
    hint: str = "",
    hints: Mapping[str, str] | None = None,
    errors: Mapping[str, str] | None = None,
    look: str = "",
    is_formula: bool = False,
    follows_messages: bool = False,
    in_orders: bool = False,
):
    """Makes the decorated driver a `Check`.

    The driver's positional-only parameters are the student's answers, the others the case's:

        @check("lesson_01.hello", judge=_judge_hello, cases=[{"world_size": 1}, {"world_size": 4}], ok="...")
        def hello(worker, /, world_size): ...
    """

    def wrap(driver: Callable[..., Any]) -> Check:
        return Check(name, driver, judge, tuple(cases), ok, hint, hints or {}, errors or {}, look, is_formula,
                     follows_messages, in_orders)  # fmt: skip

    return wrap
