"""The build: lessons/ -> solutions/ -> notebooks/."""

from __future__ import annotations

import shutil

import nbformat
import pytest

from tests.building.from_lessons.tiny_course import FIXTURE, RELEASE, SOLUTION, cell, edit, rewrite
from tools.build import BuildFailed, build, find_drift, main
from tools.lesson import find_problems, parse_lesson, read_lesson, starter_source
from tools.notebook import to_notebook, to_text
from tools.solution import solution_namespace


def test_the_release_has_stubs_and_checks_but_no_solution_and_no_hidden_case(course):
    release = (course / RELEASE).read_text()
    assert "raise NotImplementedError()" in release
    assert "YOUR ANSWER HERE" in release
    assert "checks.lesson_01.hello(hello)" in release
    for secret in ("secret_greeting", "HIDDEN", "Grace", "Rubric", "BEGIN SOLUTION"):
        assert secret not in release


def test_the_release_is_what_the_starter_of_each_cell_says(course):
    released = nbformat.read(course / RELEASE, as_version=4)
    lesson = read_lesson(FIXTURE)
    for built, written in zip(released.cells, lesson.cells, strict=True):
        if written.role != "setup":
            assert built.source == starter_source(written)


def test_markers_become_nbgraders_metadata(course):
    solution = nbformat.read(course / SOLUTION, as_version=4)
    kinds = {
        c.metadata.nbgrader.grade_id: (
            c.metadata.nbgrader.grade,
            c.metadata.nbgrader.solution,
            c.metadata.nbgrader.locked,
        )
        for c in solution.cells
        if "nbgrader" in c.metadata
    }
    assert kinds == {
        "setup": (False, False, True),
        "helpers": (False, False, True),
        "hello": (False, True, False),
        "check-hello": (True, False, True),
        "check-hello-again": (True, False, True),
        "why_ranks": (True, True, False),
    }
    assert cell(solution, "check-hello-again").metadata.nbgrader.points == 1.5
    assert solution.metadata.kernelspec.name == "python3"
    assert (solution.nbformat, solution.nbformat_minor) == (4, 5)
    assert all(not c.get("outputs") for c in solution.cells)


def test_a_rebuild_gives_the_same_bytes(course):
    before = [(course / name).read_bytes() for name in (SOLUTION, RELEASE)]
    report = build(course, unchecked=True)
    assert report.written == []
    assert report.unchanged == [SOLUTION, RELEASE]
    for name in (SOLUTION, RELEASE):
        (course / name).unlink()
    build(course, unchecked=True)
    assert [(course / name).read_bytes() for name in (SOLUTION, RELEASE)] == before


def test_equal_cells_get_ids_of_their_own(course):
    ids = [c.id for c in nbformat.read(course / SOLUTION, as_version=4).cells]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("points=3", "", "needs points"),
        ('check="hello-again"', 'check="hello"', "already taken"),
        ("    ### END SOLUTION\n", "", "needs its `### END SOLUTION`"),
        ("    ### BEGIN SOLUTION\n", "", "needs its `### END SOLUTION`, got 0 and 1"),
        ("# %% setup\n", "# %% setup\nx = 1\n", "filled in by the builder"),
        ("checks.lesson_01.hello(hello)\n", "hello(0, 1, 'x')\n", "only statements like"),
        ("checks.lesson_01.hello(hello)\n", "checks.lesson_02.hello(hello)\n", "lesson_01"),
        ("checks.lesson_01.hello(hello)\n", "checks.lesson_01.helo(hello)\n", "is not there; .* fit_link, hello, "),
        ("checks.lesson_01.hello(hello)\n", "checks.lesson_01.hello(hello, shout)\n", "takes worker; got hello, shout"),
        ('"world_size": 5, "name"', '"ranks": 5, "name"', "no such case .*'ranks'"),
        ('"world_size": 5', '"world_size": len(numbers)', "cases are literals"),
        ('(hello, cases=[{"world_size": 2', '(lambda: 0, cases=[{"world_size": 2', "names of the student's namespace"),
        ("numbers = [1, 2, 3]", "%timeit 1", "magics"),
        ("numbers = [1, 2, 3]", "numbers = [1, 2, 3", "not Python"),
        ('manual="why_ranks"', 'manuel="why_ranks"', "unknown marker manuel"),
        ('exercise="hello"', 'exercise="hello" check="hello"', "one role"),
        ('exercise="hello"', 'exercise="hel lo"', "a name is"),
        ('tags=["nbval-skip"]', 'tags=["skip-execution"]', "unknown tag"),
        ("# %% [markdown]\n# # 1.", "# ---\n# title: x\n# ---\n# %% [markdown]\n# # 1.", "no jupytext header"),
    ],
)
def test_a_lesson_that_breaks_a_rule_stops_the_build_and_changes_nothing(course, old, new, says):
    before = [(course / name).read_bytes() for name in (SOLUTION, RELEASE)]
    rewrite(course, old, new)
    with pytest.raises(BuildFailed, match=f"01_tiny_lesson.py:[0-9]+: .*{says}"):
        build(course, unchecked=True)
    assert [(course / name).read_bytes() for name in (SOLUTION, RELEASE)] == before
    assert list((course / "build").iterdir()) == []


def test_a_lesson_of_a_number_that_has_no_checks_is_told(tmp_path):
    text = FIXTURE.read_text().replace("lesson_01", "lesson_99")
    (tmp_path / "lessons").mkdir()
    (tmp_path / "lessons" / "99_new.py").write_text(text)
    with pytest.raises(BuildFailed, match="a lesson's checks are the package hw_utils/checks/lesson_99/"):
        build(tmp_path, unchecked=True)


def test_a_new_solution_has_to_pass_its_own_checks_hidden_cases_too(course, capsys):
    before = [(course / name).read_bytes() for name in (SOLUTION, RELEASE)]
    rewrite(course, "{name}!", "{name.split()[0]}!")
    rewrite(course, '"name": "Grace"}', '"name": "Grace Hopper"}')
    with pytest.raises(BuildFailed, match=r"01_tiny_lesson: the solution fails check-hello: (.|\n)*UNCHECKED=1"):
        build(course)
    assert [(course / name).read_bytes() for name in (SOLUTION, RELEASE)] == before
    assert main(["--root", str(course), "--unchecked"]) == 0
    rewrite(course, "{name.split()[0]}!", "{name}!")
    assert build(course).written == [SOLUTION]


def test_a_lesson_that_is_worth_something_else_is_told(course, capsys):
    rewrite(course, "points=3", "points=5")
    assert main(["--root", str(course)]) == 0
    said = capsys.readouterr().out
    assert "01_tiny_lesson is worth 8.5 points, 6.5 before (check-hello 3 -> 5)" in said
    assert "make grade ASSIGNMENT=01_tiny_lesson" in said
    assert build(course).points == []


def test_all_problems_of_a_lesson_are_told_at_once(course):
    rewrite(course, "points=3", "")
    rewrite(course, 'check="hello-again" points=1.5', 'check="hello"')
    with pytest.raises(BuildFailed) as failed:
        build(course, unchecked=True)
    assert len(str(failed.value).splitlines()) == 3


def test_an_nbgrader_failure_leaves_the_committed_copies(course, monkeypatch):
    before = [(course / name).read_bytes() for name in (SOLUTION, RELEASE)]
    monkeypatch.setattr("tools.build.read_lesson", lambda path: parse_lesson(path.read_text(), path))  # past our checks
    rewrite(course, "    ### END SOLUTION\n", "")
    with pytest.raises(BuildFailed, match="no end solution statement found"):
        build(course, unchecked=True)
    assert [(course / name).read_bytes() for name in (SOLUTION, RELEASE)] == before


def test_drift_is_found_and_shown(course, capsys):
    assert find_drift(course) == []
    rewrite(course, "numbers = [1, 2, 3]", "numbers = [1, 2, 4]")
    assert main(["--check", "--root", str(course)]) == 1
    out = capsys.readouterr().out
    assert f"{RELEASE} differs" in out
    assert "[1, 2, 4]" in out
    assert "make notebooks" in out


def test_a_missing_and_a_leftover_notebook_are_drift(course):
    (course / RELEASE).rename(course / "notebooks" / "01_tiny_lesson" / "other.ipynb")
    assert find_drift(course) == [f"{RELEASE} is missing", "notebooks/01_tiny_lesson/other.ipynb has no lesson"]


def test_a_students_work_is_kept_and_the_new_release_put_beside_it(course):
    edit(course / RELEASE, lambda nb: cell(nb, "hello").update(source="def hello(): return 'mine'"))
    mine = (course / RELEASE).read_bytes()
    report = build(course, unchecked=True)
    assert "kept as it is" in report.kept[0]
    assert (course / RELEASE).read_bytes() == mine
    rewrite(course, "numbers = [1, 2, 3]", "numbers = [1, 2, 4]")
    report = build(course, unchecked=True)
    assert (course / RELEASE).read_bytes() == mine
    assert "tiny_lesson.new.ipynb beside it" in report.kept[0]
    assert "[1, 2, 4]" in (course / RELEASE).with_name("tiny_lesson.new.ipynb").read_text()
    build(course, unchecked=True, replace=True)
    assert b"mine" not in (course / RELEASE).read_bytes()


def test_outputs_a_student_made_are_work_and_a_damaged_notebook_is_kept(course):
    edit(course / RELEASE, lambda nb: cell(nb, "setup").update(outputs=[nbformat.v4.new_output("stream", text="hi")]))
    assert len(build(course, unchecked=True).kept) == 1
    (course / RELEASE).write_text("{")
    assert len(build(course, unchecked=True).kept) == 1
    assert (course / RELEASE).read_text() == "{"


def test_other_files_in_notebooks_are_not_touched(course):
    folder = (course / RELEASE).parent
    shutil.copy(course / RELEASE, folder / "my copy.ipynb")
    edit(folder / "my copy.ipynb", lambda nb: cell(nb, "hello").update(source="mine"))
    (folder / "answers.txt").write_text("42")
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    rewrite(course, "numbers = [1, 2, 3]", "numbers = [1, 2, 4]")
    build(course, unchecked=True)
    after = {p.name: p.read_bytes() for p in folder.iterdir()}
    assert after.keys() == before.keys()
    assert [name for name in after if after[name] != before[name]] == ["tiny_lesson.ipynb"]


def test_an_instructors_edit_is_not_built_over(course):
    edit(course / SOLUTION, lambda nb: cell(nb, "hello").update(source="edited"))
    with pytest.raises(BuildFailed, match=f"make import NOTEBOOK={SOLUTION}"):
        build(course, unchecked=True)
    build(course, unchecked=True, replace=True)
    assert find_drift(course) == []


def test_running_a_solution_is_no_edit(course):
    edit(course / SOLUTION, lambda nb: cell(nb, "setup").update(outputs=[nbformat.v4.new_output("stream", text="hi")]))
    assert build(course, unchecked=True).written == [SOLUTION]


def test_a_removed_lesson_takes_its_notebooks_with_it_but_no_work(course):
    shutil.copy(FIXTURE, course / "lessons" / "02_other.py")
    text = FIXTURE.read_text().replace("lesson_01.hello", "lesson_02.ring_sum")
    (course / "lessons" / "02_other.py").write_text(text)
    build(course, unchecked=True)
    edit(course / RELEASE, lambda nb: cell(nb, "hello").update(source="mine"))
    for lesson in (course / "lessons").iterdir():
        if lesson.name == FIXTURE.name:
            lesson.unlink()
    report = build(course, unchecked=True)
    assert report.removed == [SOLUTION]
    assert (course / RELEASE).exists()
    assert not (course / SOLUTION).parent.exists()


def test_the_calls_of_a_check_cell_are_read():
    calls = read_lesson(FIXTURE).with_role("check")[0].calls
    assert [(c.check, c.arguments, c.cases, c.hidden) for c in calls] == [
        ("lesson_01.hello", ("hello",), None, False),
        ("lesson_01.hello", ("hello",), [{"world_size": 5, "name": "Grace"}], True),
    ]


def test_a_lesson_says_its_points_and_its_secrets():
    lesson = read_lesson(FIXTURE)
    assert lesson.points == 6.5
    assert "secret_greeting" in lesson.with_role("exercise")[0].solution
    assert "Grace" in lesson.with_role("check")[0].hidden
    assert find_problems(lesson) == []


def test_a_solution_gives_its_answers_without_running_checks_or_experiments():
    namespace = solution_namespace(FIXTURE)
    assert namespace["numbers"] == [1, 2, 3]
    assert namespace["shout"]("a") == "A"
    code = namespace["hello"].__code__
    assert FIXTURE.read_text().splitlines()[code.co_firstlineno - 1].startswith("def hello(")


def test_the_committed_notebooks_are_what_the_lessons_give():
    assert find_drift() == []


def test_two_lessons_of_the_same_cells_give_the_same_text():
    lesson = read_lesson(FIXTURE)
    assert to_text(to_notebook(lesson)) == to_text(to_notebook(lesson))
