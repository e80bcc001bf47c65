"""The class list: every system's own export is one, and a wrong one is refused with its line."""

from __future__ import annotations

import pytest

from hw_grader.term.class_list import ClassListError, read_class


@pytest.mark.parametrize(
    ("text", "student", "name"),
    [
        (
            "Student,ID,SIS User ID,SIS Login ID,Section\n    Points Possible,,,,\n\"Lovelace, Ada\",4711,S1,ada,1\n",
            "ada",
            "Ada Lovelace",
        ),
        ("First name;Surname;Email address\nAda;Lovelace;ada@x.edu\n", "ada", "Ada Lovelace"),
        ("\ufeffFirst Name,Last Name,SID,Email\nAda,Lovelace,S1,ada@x.edu\n", "ada", "Ada Lovelace"),
        ("OrgDefinedId,Username,Last Name,First Name,Email\n#S1,ada,Lovelace,Ada,ada@x.edu\n", "ada", "Ada Lovelace"),
    ],
    ids=["canvas", "moodle", "gradescope", "brightspace"],
)  # fmt: skip
def test_each_systems_own_list_is_a_class_list(tmp_path, text, student, name):
    (tmp_path / "class.csv").write_text(text, encoding="utf-8")
    (only,) = read_class(tmp_path / "class.csv").students.values()
    assert (only.student, only.name) == (student, name)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n", "needs a column"),
        ("student\n", "no student"),
        ("student\nada\nADA\n", "line 2 too"),
        ("mail\nx@y\n@z\n", "needs a student"),
    ],
)  # fmt: skip
def test_a_wrong_class_list_is_refused_with_its_line(tmp_path, text, says):
    (tmp_path / "class.csv").write_text(text)
    with pytest.raises(ClassListError, match=says):
        read_class(tmp_path / "class.csv")
