"""What a check is: cases, a driver that meets the student's code, and a judge that never does."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hw_utils.errors import CheckFailed, Deadlock, WorkerFailed
from hw_utils.plain import plain
from hw_utils.run import Run

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
    hint: str = ""  # "hint 2 of exercise 2.2", for a failure whose judge names no better one

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
        for case in chosen:
            self.judge_one(self.drive_one(answers, case), case)
        print(f"ok: {self.ok or self.name}")

    def drive_one(self, answers: Sequence[Any], case: Case) -> Any:
        """Plain data from the student's code on one case; called in the student's process."""
        try:
            return plain(self.driver(*answers, **case))
        except NotImplementedError:
            raise self._not_written() from None
        except WorkerFailed as error:
            if all(isinstance(failure.exception, NotImplementedError) for failure in error.failures):
                raise self._not_written() from None
            if not error.note and case:
                error.note = f"this was the check's case {case_text(case)[:_SHOWN_CHARS]}"
            raise

    def _not_written(self) -> CheckFailed:
        return CheckFailed(f"{self.name.split('.')[-1]} is not written yet.", hint=self.hint)

    def judge_one(self, data: Any, case: Case) -> None:
        """Raises CheckFailed if the data is wrong; called where the student's code is not."""
        try:
            self.judge(data, **case)
        except CheckFailed as error:
            if not error.hint and self.hint:
                raise CheckFailed(error.message, cause=error.cause, hint=self.hint) from None
            raise


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
        raise CheckFailed(f"{what} hangs: {data['deadlock']}", cause=cause, hint=hint)


def case_text(case: Case) -> str:
    """`world_size=4, n_elements=10`."""
    return ", ".join(f"{k}={v!r}" for k, v in case.items()) or "its only case"


def check(name: str, *, judge: Callable[..., None], cases: Sequence[Case] = ({},), ok: str = "", hint: str = ""):
    """Makes the decorated driver a `Check`.

    The driver's positional-only parameters are the student's answers, the others the case's:

        @check("lesson_01.hello", judge=_judge_hello, cases=[{"world_size": 1}, {"world_size": 4}], ok="...")
        def hello(worker, /, world_size): ...
    """

    def wrap(driver: Callable[..., Any]) -> Check:
        return Check(name, driver, judge, tuple(cases), ok, hint)

    return wrap
