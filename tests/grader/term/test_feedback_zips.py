"""From an LMS's download to its feedback zip: every page under the name by which the LMS knows whom it is for."""

from __future__ import annotations

import zipfile

import pytest
from nbgrader.api import Gradebook

from hw_grader import grade
from hw_grader.__main__ import main
from hw_grader.report import read_results
from hw_grader.term.lms_file_names import known_names, remember_names
from tests.grader.in_sandbox import needs_sandbox
from tests.grader.small_course import ASSIGNMENT, WRONG, as_bytes, make_course, submission
from tests.grader.term.downloads import CLASS, NOTEBOOK, kit_zip, zipped

CANVAS, MOODLE = "lovelaceada_4711_90001_small.ipynb", "Zoë Li-Müller_102_assignsubmission_file_/small.ipynb"
ADA = as_bytes(submission({"hello": WRONG["hello"], "ping_pong": WRONG["ping_pong"]}))


@pytest.fixture(scope="module")
def term(tmp_path_factory):
    """A course that collected from two systems and from the kit's own zips, graded."""
    root = tmp_path_factory.mktemp("term")
    make_course(root)
    (root / "class.csv").write_text(CLASS, encoding="utf-8")
    downloads = [
        zipped(root / "canvas.zip", {f"submissions/{CANVAS}": ADA}),
        zipped(root / "moodle.zip", {MOODLE: NOTEBOOK}),
        kit_zip(root, "bob", NOTEBOOK),
    ]
    assert main(["--course", str(root), "collect", *map(str, downloads)]) == 0
    assert grade.main(["--course", str(root)]) == 0
    return root


def names(path) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


@needs_sandbox
@pytest.mark.slow
class TestGivenBack:
    def test_each_system_gets_its_own_names_and_the_rest_go_by_user_name(self, term, capsys):
        assert main(["--course", str(term), "feedback"]) == 0
        said = capsys.readouterr().out
        folder = term / "build" / "feedback"
        assert names(folder / f"{ASSIGNMENT}_canvas.zip") == ["lovelaceada_4711_90001_small.html"]
        assert names(folder / f"{ASSIGNMENT}_moodle.zip") == ["Zoë Li-Müller_102_assignsubmission_file_/small.html"]
        assert names(folder / f"{ASSIGNMENT}_by_name.zip") == ["bob.html"]
        assert f"{ASSIGNMENT}_canvas.zip: 1 page\n" in said
        assert len(list((term / "feedback").glob(f"*/{ASSIGNMENT}/small.html"))) == 3

    def test_the_page_has_the_students_name_and_begins_with_what_was_lost(self, term):
        assert main(["--course", str(term), "feedback", ASSIGNMENT]) == 0
        page = (term / "feedback" / "ada" / ASSIGNMENT / "small.html").read_text(encoding="utf-8")
        assert f"<h1>{ASSIGNMENT}: Ada Lovelace</h1>" in page
        lost = page[page.index("What was lost") : page.index("<h2>Points")]
        assert '<a href="#check-hello">hello</a>:\n0 of 5 points' in lost
        assert "likely cause" in lost
        assert "ping_pong" in lost
        assert "fit_link" not in lost
        assert "Nothing was lost." in (term / "feedback" / "zoe" / ASSIGNMENT / "small.html").read_text()

    def test_a_text_that_nobody_has_graded_waits_and_the_command_says_whose(self, term, capsys):
        def graded_by_hand(waits: bool):
            with Gradebook(f"sqlite:///{term / 'gradebook.db'}") as gradebook:
                grade = gradebook.find_grade("check-fit_link", "small", ASSIGNMENT, "bob")
                grade.needs_manual_grade = waits
                gradebook.db.commit()

        graded_by_hand(True)
        try:
            assert main(["--course", str(term), "feedback"]) == 0
            assert "1 student has a text without points yet, which the page says: bob." in capsys.readouterr().out
            assert main(["--course", str(term), "export", "csv"]) == 0
            assert "a text without points yet, and the marks here are without them: bob." in capsys.readouterr().err
        finally:
            graded_by_hand(False)

    def test_names_of_the_class_list_are_in_the_gradebook(self, term):
        read_results(term)
        with Gradebook(f"sqlite:///{term / 'gradebook.db'}") as gradebook:
            ada = gradebook.find_student("ada")
            assert (ada.first_name, ada.last_name, ada.email) == ("Ada", "Lovelace", "ada@x.edu")
            assert {student.id for student in gradebook.students} == {"ada", "bob", "zoe"}

    def test_a_lesson_without_marks_is_said(self, term, capsys):
        assert main(["--course", str(term), "feedback", "09_x"]) == 2
        assert "make grade" in capsys.readouterr().err


def test_names_are_kept_until_a_newer_one_comes(tmp_path):
    remember_names(
        tmp_path, {("01", "ada"): ("canvas", "a_1_2_x.ipynb"), ("01", "bob"): ("moodle", '=B "q", \udc80_3')}
    )
    assert ",=B" not in (tmp_path / "names.csv").read_text(errors="replace").replace('"', "")
    remember_names(tmp_path, {("01", "ada"): ("canvas", "a_1_9_x.ipynb"), ("02", "ada"): ("canvas", "a_1_5_y.ipynb")})
    assert known_names(tmp_path) == {
        ("01", "ada"): ("canvas", "a_1_9_x.ipynb"),
        ("01", "bob"): ("moodle", '=B "q", \udc80_3'),
        ("02", "ada"): ("canvas", "a_1_5_y.ipynb"),
    }
    assert known_names(tmp_path / "nothing") == {}
