"""A course of one tiny lesson, for tests of what is made of lessons."""

from __future__ import annotations

import shutil

import pytest

from tests.building.from_lessons.tiny_course import FIXTURE
from tools.build import build


@pytest.fixture
def course(tmp_path):
    """A course of one tiny lesson, built."""
    shutil.copytree(FIXTURE.parent, tmp_path / "lessons")
    build(tmp_path, unchecked=True)
    return tmp_path
