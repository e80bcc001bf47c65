"""The solution run whole, nbgrader's Validate button and its formgrader, in a real browser."""

from __future__ import annotations

import shutil

import nbformat
import pytest

from hw_grader.course.trusted_verdict_step import UNSAFE
from tests.front_door.lab import CELL_MS, NotebookPage, served
from tests.grader.notebook.test_pipeline import NAME, answered, hand_in, tiny_course
from tools.lesson import ROOT

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course of the tiny lesson with one submission, and lesson 01's solution beside it."""
    course = tmp_path_factory.mktemp("course")
    release = tiny_course(course)
    hand_in(course, "reference", answered(release))
    nbformat.write(answered(release), course / "right.ipynb")
    nbformat.write(release, course / "untouched.ipynb")
    shutil.copy(ROOT / "solutions" / "01_hello_ranks" / "hello_ranks.ipynb", course)
    return course


@pytest.fixture(scope="module")
def lab(browser, course):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(UNSAFE, "1")  # the plain way; tests of the sandbox are elsewhere
        with served(course) as url:
            yield url


def test_restart_and_run_all_on_the_solution_leaves_no_error(page, lab):
    notebook = NotebookPage(page, lab, "hello_ranks.ipynb")
    notebook.run("# Set-up.")
    notebook.menu("Kernel", "Restart Kernel and Run All Cells")
    page.locator(".jp-Dialog button.jp-mod-warn").click()
    cells = notebook.panel.locator(".jp-CodeCell")
    cells.last.locator(".jp-InputPrompt", has_text=f"[{cells.count()}]").wait_for(timeout=CELL_MS)
    assert notebook.panel.locator(".jp-OutputArea-output[data-mime-type*=error]").count() == 0
    checks = notebook.panel.locator(".jp-CodeCell").filter(has_text="checks.lesson_01.")
    assert all("ok:" in text for text in checks.locator(".jp-OutputArea-child").all_inner_texts())


@pytest.mark.parametrize(("name", "says"), [("right", "Success"), ("untouched", "hello is not written yet")])
def test_the_validate_button_agrees_with_the_check(page, lab, name, says):
    notebook = NotebookPage(page, lab, f"{name}.ipynb")
    notebook.run("from hw_utils import")
    for text in ("def hello(", "checks.lesson_01.hello("):
        notebook.run(text)
    passed = "ok:" in notebook.output("checks.lesson_01.hello(")
    page.get_by_role("button", name="Validate").click()
    dialog = page.locator(".jp-Dialog, .nbgrader-ValidateDialog").first
    dialog.wait_for(timeout=CELL_MS)
    assert passed == (name == "right")
    assert says in dialog.inner_text()


def test_the_formgrader_grades_one_submission_and_shows_its_marks(page, lab, course):
    NotebookPage(page, lab, "right.ipynb")  # logs in
    page.goto(f"{lab}formgrader/manage_assignments", timeout=CELL_MS)
    page.locator("tr", has_text=NAME).locator(".assign a").click()
    page.locator(".modal.in", has_text="Success").wait_for(timeout=CELL_MS)
    page.goto(f"{lab}formgrader/manage_submissions/{NAME}", timeout=CELL_MS)
    row = page.locator("tr", has_text="reference")
    row.locator(".autograde a").click()
    page.locator(".modal.in", has_text="Success").wait_for(timeout=CELL_MS)
    page.reload()
    assert row.locator(".score", has_text="/").inner_text() == "4.5 / 6.5"
    assert "needs manual grading" in row.locator(".status").inner_text()
