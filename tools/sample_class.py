"""A small class for `make course`: the reference, an untouched starter, a broken file, and typical mistakes.

The mistakes are the planted ones of tests/checks/wrong_answers/, put into the exercises they answer.
"""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import nbformat
from nbformat import NotebookNode

from tests.checks.wrong_answers import Wrong, planted
from tools.lesson import Lesson

REFERENCE, STARTER, BROKEN = "ada", "fay", "gus"

# Who made which mistakes: check -> planted mistake. Everybody not named in a lesson handed in nothing.
MISTAKES: dict[str, dict[str, dict[str, str]]] = {
    "01_hello_ranks": {
        "bo": {"lesson_01.hello": "counts_from_one", "lesson_01.ping_pong": "one_player_adds"},
        "chen": {"lesson_01.predictions": "both_send_first_finishes", "lesson_01.times": "starts_when_sent"},
        "dia": {"lesson_01.relay": "everybody_sends_to_the_last", "lesson_01.fit_link": "swaps_the_two"},
        "eli": {"lesson_01.shift_by_parity": "still_sends_first", "lesson_01.shift_at_once": "waits_too_early"},
    },
}


def write_class(lesson: Lesson, release: NotebookNode, folder: Path) -> list[str]:
    """Writes submitted/STUDENT/LESSON/name.ipynb for the whole class; the students' names."""
    reference = {cell.name: answer_of(cell.source) for cell in lesson.cells if cell.role in ("exercise", "manual")}
    submissions = {
        REFERENCE: filled(release, reference),
        **{
            student: filled(release, {**reference, **mistakes(lesson, chosen)})
            for student, chosen in MISTAKES[lesson.name].items()
        },
        STARTER: release,
        BROKEN: None,
    }
    for student, notebook in submissions.items():
        target = folder / "submitted" / student / lesson.product
        target.parent.mkdir(parents=True)
        target.write_text(nbformat.writes(notebook) if notebook else "", encoding="utf-8")
    return list(submissions)


def answer_of(source: str) -> str:
    """A solution cell as a student would have written it: without the markers."""
    return "\n".join(line for line in source.splitlines() if "### BEGIN " not in line and "### END " not in line)


def filled(release: NotebookNode, answers: Mapping[str, str]) -> NotebookNode:
    """The release with the given texts in its solution cells."""
    notebook = copy.deepcopy(release)
    for cell in notebook.cells:
        marks = cell.metadata.get("nbgrader", {})
        if marks.get("solution") and marks["grade_id"] in answers:
            cell.source = answers[marks["grade_id"]]
    return notebook


def mistakes(lesson: Lesson, chosen: Mapping[str, str]) -> dict[str, str]:
    """Exercise -> wrong source, for the chosen planted mistakes.

    Raises:
        LookupError: no such mistake, or no exercise in the lesson that it answers.
    """
    by_name = {(wrong.check, wrong.name): wrong for wrong in planted()}
    answers: dict[str, str] = {}
    for check, name in chosen.items():
        if (check, name) not in by_name:
            raise LookupError(f"no planted mistake {name} for {check} in tests/checks/wrong_answers/")
        answers |= _answers(lesson, by_name[check, name])
    return answers


def _answers(lesson: Lesson, wrong: Wrong) -> dict[str, str]:
    calls = [call for cell in lesson.with_role("check") for call in cell.calls if call.check == wrong.check]
    if not calls:
        raise LookupError(f"{lesson.name} has no check that calls checks.{wrong.check}")
    return {_exercise(lesson, name): source_of(answer, name) for name, answer in zip(calls[0].arguments, wrong.answers)}


def _exercise(lesson: Lesson, name: str) -> str:
    """The exercise whose solution defines the name."""
    for cell in lesson.with_role("exercise"):
        for node in ast.parse(cell.source).body:
            targets = [t.id for t in getattr(node, "targets", []) if isinstance(t, ast.Name)]
            if getattr(node, "name", "") == name or name in targets:
                return cell.name
    raise LookupError(f"no exercise of {lesson.name} defines {name}")


def source_of(answer: object, name: str) -> str:
    """The wrong answer as the text of a cell that defines `name`."""
    if not isinstance(answer, Callable):
        return f"{name} = {answer!r}"
    module = importlib.import_module(answer.__module__)
    helpers = [inspect.getsource(helper) for helper in _helpers(answer, module)]
    tree = ast.parse(textwrap.dedent(inspect.getsource(answer)))
    tree.body[0].decorator_list, tree.body[0].name = [], name
    return "\n\n".join([*helpers, ast.unparse(tree)])


def _helpers(function: Callable, module: ModuleType) -> list[Callable]:
    """The functions of its own module that it calls, theirs first."""
    found: list[Callable] = []
    for name in function.__code__.co_names:
        helper = getattr(module, name, None)
        if inspect.isfunction(helper) and helper.__module__ == module.__name__:
            found += [h for h in [*_helpers(helper, module), helper] if h not in found]
    return found
