"""Searches for the case at which a reference and a wrong answer differ; says which visible cases do no work.

    python -m tools.search_cases lesson_                   every check; takes hours
    python -m tools.search_cases lesson_02                 every check of a lesson
    python -m tools.search_cases lesson_02.ring_all_reduce_s --examples 200

Wrong answers are the planted mistakes, and the lesson's solution with one change (`mutants`). Each is tried on
the visible cases, one at a time; a mutant that passes them all is tried on cases that Hypothesis makes from the visible
ones (valid is what the reference passes).

    hole       a mutant that passes every visible case and is refused at another one: the smallest is a case to add
    silent     a mutant that passes whatever was tried: right as well, or a target that the check does not hold
    one case   a wrong answer that a single visible case refuses
    idle       a visible case without which every wrong answer is still refused
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import io
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from hw_utils import CheckFailed, WorkerFailed, checks
from hw_utils.checks.check import REGISTRY, Check
from tests.checks.references import answers_of, lessons, namespace
from tests.checks.wrong_answers import planted
from tools.lesson import Call, Cell, Lesson
from tools.search_cases.mutants import mutants

LIMIT_S = 20  # a mutant may loop for ever


@dataclass
class Found:
    """What the search says of one check."""

    check: str
    holes: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    one_case: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)
    n_wrong: int = 0

    def text(self) -> str:
        lines = [f"{self.check}: {self.n_wrong} wrong answers"]
        for name in ("holes", "silent", "one_case", "idle"):
            lines += [f"  {name.rstrip('s').replace('_', ' ')}: {line}" for line in getattr(self, name)]
        return "\n".join(lines)


# Cases -------------------------------------------------------------------------------------------------------


def near(check: Check) -> st.SearchStrategy[dict[str, Any]] | None:
    """Cases like the visible ones: one of them with some values others; None if nothing in them can vary."""
    values: dict[str, list[Any]] = {}
    for case in check.cases:
        for key, value in case.items():
            values.setdefault(key, []).append(value)
    varied = {key: _like(found) for key, found in values.items()}
    varied = {key: strategy for key, strategy in varied.items() if strategy is not None}
    if not varied or "expected" in values:  # a case that brings its own right answer cannot be made up
        return None

    @st.composite
    def case(draw) -> dict[str, Any]:
        base = dict(draw(st.sampled_from([dict(c) for c in check.cases])))
        keys = draw(st.sets(st.sampled_from(sorted(set(varied) & set(base)) or [""]), min_size=1))
        return base | {key: draw(varied[key]) for key in keys if key}

    return case()


def _like(values: list[Any]) -> st.SearchStrategy | None:
    """Values of the same kind, up to twice as large."""
    kinds = {type(value) for value in values}
    if kinds <= {int}:
        return st.integers(min(0, *values) if len(values) > 1 else min(0, values[0]), max(2, 2 * max(values)))
    if kinds <= {int, float}:
        return st.one_of(st.sampled_from(values), st.floats(min(values) / 2, 2 * max(values), allow_nan=False))
    if kinds == {bool} or (kinds == {str} and len(set(values)) > 1):
        return st.sampled_from(sorted(set(values)))
    if kinds == {list} and all(type(v) is int for value in values for v in value) and any(values):
        flat = [v for value in values for v in value]
        return st.lists(st.integers(min(flat), min(2 * max(flat), 4096)), min_size=1, max_size=max(map(len, values)))
    return None


# Wrong answers -----------------------------------------------------------------------------------------------


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value


def wrong_answers(check: Check, lesson: Lesson, call: Call) -> Iterator[tuple[str, Sequence[Any]]]:
    """(name, answers) of the planted mistakes and of the mutants of what the check is called with."""
    for wrong in planted():
        if wrong.check == check.name:
            yield wrong.name, wrong.answers
    for cell in lesson.with_role("exercise"):
        if _defines(cell, [argument.partition(".")[0] for argument in call.arguments]):
            for what, source in mutants(cell.source):
                names = _names(lesson) | {"_rounded": _rounded}
                with contextlib.suppress(Exception), _limited():
                    exec(compile(source, f"<mutant of {cell.name}>", "exec"), names)
                    yield f"{cell.name}, {what}", answers_of(call, names)


_NAMESPACES: dict[str, dict[str, Any]] = {}


def _names(lesson: Lesson) -> dict[str, Any]:
    if lesson.name not in _NAMESPACES:
        _NAMESPACES[lesson.name] = namespace(lesson)
    return dict(_NAMESPACES[lesson.name])


def _defines(cell: Cell, names: Sequence[str]) -> bool:
    found = {n.name for n in ast.parse(cell.source).body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    return bool(found & set(names))


# The search --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def late(*_):
        raise TimeoutError("too long")

    old = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT_S)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)


def refused(check: Check, answers: Sequence[Any], case: dict[str, Any]) -> bool:
    """Whether the check refuses the answers on that case; an error of the answer's own refuses it too."""
    try:
        with _limited():
            check(*answers, cases=[case])
    except (CheckFailed, WorkerFailed):
        return True
    except Exception:
        return True
    return False


def search(check: Check, lesson: Lesson, call: Call, n_examples: int) -> Found:
    """Everything that the search says of one check."""
    found, visible = Found(check.name), [dict(case) for case in check.cases]
    right = answers_of(call, _names(lesson))
    cases, refusals = near(check), []
    for name, answers in wrong_answers(check, lesson, call):
        found.n_wrong += 1
        by = [k for k, case in enumerate(visible) if refused(check, answers, case)]
        if not by:
            case = _differs(check, right, answers, cases, n_examples) if cases is not None else None
            (found.silent if case is None else found.holes).append(name if case is None else f"{name}: {case}")
            continue
        refusals.append(set(by))
        if len(by) == 1 and len(visible) > 1:
            found.one_case.append(f"{name}: {visible[by[0]]}")
    for k, case in enumerate(visible):
        if len(visible) > 1 and refusals and all(by - {k} for by in refusals):
            found.idle.append(str(case))
    return found


def _differs(check: Check, right, answers, cases, n_examples: int) -> dict[str, Any] | None:
    """The smallest case found that the reference passes and the answers do not."""
    how = settings(
        max_examples=n_examples, database=None, deadline=None, derandomize=True,
        suppress_health_check=list(HealthCheck), phases=(Phase.generate, Phase.shrink),
    )  # fmt: skip
    try:
        return find(cases, lambda c: refused(check, answers, c) and not refused(check, right, c), settings=how)
    except NoSuchExample:
        return None


def checks_called(prefix: str) -> Iterator[tuple[Check, Lesson, Call]]:
    """Every check whose name begins so, with the lesson and the first visible statement that calls it."""
    done = set()
    for lesson in lessons():
        importlib.import_module(f"{checks.__name__}.lesson_{lesson.name[:2]}")
        for cell in lesson.with_role("check"):
            for call in cell.calls:
                if call.check.startswith(prefix) and call.check not in done and not call.hidden:
                    done.add(call.check)
                    yield REGISTRY[call.check], lesson, call


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "python -m tools.search_cases", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("check", help="lesson_, lesson_02 or lesson_02.tree_steps: how its name begins")
    parser.add_argument("--examples", type=int, default=40, help="cases tried for each mutant (40)")
    arguments = parser.parse_args(argv)
    some = list(checks_called(arguments.check))
    if not some:
        raise SystemExit(f"no check is called {arguments.check}...; write lesson_02 or lesson_02.tree_steps")
    for check, lesson, call in some:
        print(search(check, lesson, call, arguments.examples).text(), flush=True)
