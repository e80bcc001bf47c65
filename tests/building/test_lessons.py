"""The lessons as they stand: complete, in the format, with the points of the curriculum."""

from __future__ import annotations

import re

import pytest

from hw_utils.material import data
from tests.checks.references import lessons as all_lessons
from tests.checks.references import namespace
from tools.lesson import lesson_files, read_lesson

POINTS = {
    "01_hello_ranks": 15,
    "02_all_reduce": 50,
    "03_distributed_sgd": 35,
    "04_data_parallel": 40,
    "05_scaling": 40,
    "06_parallel_simulator": 70,
    "07_who_holds_what": 55,
    "08_pipelines": 60,
}
LESSONS = {path.stem: path for path in lesson_files()}


def test_the_lessons_are_those_of_the_curriculum():
    assert list(LESSONS) == list(POINTS)


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_has_the_points_of_the_curriculum(name):
    assert read_lesson(LESSONS[name]).points == POINTS[name]


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_has_a_set_up_cell_before_its_first_code(name):
    cells = [cell for cell in read_lesson(LESSONS[name]).cells if cell.kind == "code"]
    assert [cell.role for cell in cells].index("setup") == 0


@pytest.mark.parametrize("name", LESSONS)
def test_every_exercise_is_checked_and_every_check_with_points_is_about_an_exercise(name):
    lesson = read_lesson(LESSONS[name])
    exercises = {cell.name: cell for cell in lesson.with_role("exercise")}
    asked = {a.partition(".")[0] for cell in lesson.with_role("check") for call in cell.calls for a in call.arguments}
    for exercise in exercises.values():
        assert any(f"def {a}(" in exercise.source or f"class {a}" in exercise.source or f"{a} =" in exercise.source
                   for a in asked), f"no check of {name} asks for what {exercise.name} defines"  # fmt: skip


@pytest.mark.parametrize("name", LESSONS)
def test_the_minutes_in_a_lessons_head_are_those_of_its_tasks_and_reading(name):
    cells = read_lesson(LESSONS[name]).cells
    whole, tasks, reading = map(
        int,
        re.search(
            r"About (\d+) minutes(?:, \d+ points)?: (\d+) for the tasks, (\d+) for reading", cells[0].source
        ).groups(),
    )
    counted = [cell.source for cell in cells if cell.kind == "markdown" and "no points" not in cell.source]
    assert tasks == sum(int(m) for text in counted for m in re.findall(r"\((\d+) minutes, ", text))
    assert whole == tasks + reading


def test_lesson_08s_four_ranks_have_the_gradients_of_one_process():
    (lesson,) = (lesson for lesson in all_lessons() if lesson.name.startswith("08"))
    names, seen = namespace(lesson), []
    names |= {"text": data.alice(say=False).train, "seen": seen}
    (cell,) = (cell for cell in lesson.cells if "plot_gradients(norms" in cell.source)
    exec(cell.source.replace("lesson_08.plot_gradients(", "seen[:] = ("), names)
    whole, in_parts = seen
    assert in_parts == pytest.approx(whole, rel=1e-12)
