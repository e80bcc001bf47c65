"""A small course with a class of three."""

from __future__ import annotations

import pytest

from tests.grader.small_course import make_course
from tests.grader.term.downloads import CLASS


@pytest.fixture
def course(tmp_path):
    make_course(tmp_path)
    (tmp_path / "class.csv").write_text(CLASS, encoding="utf-8")
    return tmp_path
