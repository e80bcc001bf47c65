"""`make course`: the sample class, and what it costs."""

from __future__ import annotations

import nbformat
import pytest

from hw_grader.course.grading import submission_key
from hw_grader.course.trusted_verdict_step import GradeInSandbox
from hw_grader.notebook.restore import restore
from hw_grader.notebook.time_limits import TimeLimits
from hw_grader.notebook.trusted_notebook import read_trusted
from tests.building.from_lessons.tiny_course import cell
from tools.lesson import ROOT, read_lesson
from tools.sample_class import MISTAKES, REFERENCE, STARTER, mistakes, source_of, write_class

LESSONS = {name: read_lesson(ROOT / "lessons" / f"{name}.py") for name in MISTAKES}


@pytest.mark.parametrize("name", MISTAKES)
def test_the_class_has_a_reference_a_starter_and_at_least_four_with_mistakes(name, tmp_path):
    lesson = LESSONS[name]
    release = nbformat.read(ROOT / "notebooks" / lesson.product, as_version=4)
    students = write_class(lesson, release, tmp_path)
    texts = {s: (tmp_path / "submitted" / s / lesson.product).read_text() for s in students}
    assert len(MISTAKES[name]) >= 4
    assert len(set(texts.values())) == len(students)
    assert "YOUR CODE HERE" in texts[STARTER]
    assert "YOUR CODE HERE" not in texts[REFERENCE]
    for text in texts.values():
        assert "SOLUTION" not in text


@pytest.mark.parametrize(("name", "student"), [(n, s) for n, students in MISTAKES.items() for s in students])
def test_a_mistake_is_put_into_the_exercise_that_it_answers(name, student):
    wrong = mistakes(LESSONS[name], MISTAKES[name][student])
    assert len(wrong) == len(MISTAKES[name][student])
    for exercise, source in wrong.items():
        namespace = {"torch": None, "dist": None}
        exec(compile(source, exercise, "exec"), namespace)  # it defines what the check asks for
        assert exercise in {c.name for c in LESSONS[name].with_role("exercise")}


def test_a_mistake_that_is_not_planted_is_told():
    lesson = next(iter(LESSONS.values()))
    with pytest.raises(LookupError, match="no planted mistake nobody_made_it"):
        mistakes(lesson, {"lesson_01.hello": "nobody_made_it"})


def helper_of_a_mistake(x):
    return x


def mistake_with_a_helper(rank):
    return helper_of_a_mistake(rank)


def test_a_mistake_brings_its_helpers_and_takes_the_exercises_name():
    namespace: dict = {}
    exec(source_of(mistake_with_a_helper, "relay"), namespace)
    assert namespace["relay"](3) == 3
    assert source_of([1, 2], "values") == "values = [1, 2]"


def test_what_make_grade_recorded_is_found_by_the_writer_of_the_gradebook():
    lesson = next(iter(LESSONS.values()))
    trusted = read_trusted(ROOT / "solutions" / lesson.product)
    notebook = restore((ROOT / "notebooks" / lesson.product).read_bytes(), trusted)
    hook = GradeInSandbox()
    by_writer = submission_key(notebook, trusted, TimeLimits(hook.cell_s, hook.case_s, hook.total_s))
    assert by_writer == submission_key(notebook, trusted, TimeLimits())
    assert cell(notebook, "setup").source
