"""What counts as the student's own program, and what as a package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hw_utils.core.source import students_files


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A program's folder, and one that PYTHONPATH lists."""
    program, listed = tmp_path / "program", tmp_path / "listed"
    monkeypatch.setattr(students_files, "_programs", [students_files._as_folder(str(program))])
    monkeypatch.setattr(students_files, "_LISTED", (students_files._as_folder(str(listed)),))
    monkeypatch.setattr(students_files, "_is_library", dict(students_files._KNOWN))
    return program, listed


@pytest.mark.parametrize(
    ("file", "is_students"),
    [
        ("program/train.py", True),
        ("program/models/resnet.py", True),
        ("program/venv/lib/python3.11/site-packages/torch_fidelity/x.py", False),
        ("elsewhere/worker.py", True),
        ("elsewhere/lib/python3/dist-packages/six.py", False),
        (".local/lib/python3.11/site-packages/wandb/sdk.py", False),
        ("listed/wandb/sdk.py", False),
        ("listed/ipykernel_7/12.py", True),  # a cell, where PYTHONPATH lists the temporary folder
    ],
)
def test_what_lies_where_packages_are_is_not_the_students(folders, tmp_path, file, is_students):
    assert students_files.is_students(str(tmp_path / file)) is is_students


def test_a_listed_folder_with_the_program_in_it_is_the_programs(folders, tmp_path, monkeypatch):
    monkeypatch.setattr(students_files, "_LISTED", (students_files._as_folder(str(tmp_path)),))
    assert students_files.is_students(str(tmp_path / "program" / "train.py"))
    assert not students_files.is_students(str(tmp_path / "common" / "tools.py"))


def test_a_scripts_folder_becomes_the_programs(folders):
    _, listed = folders
    file = str(listed / "train.py")
    assert not students_files.is_students(file)
    students_files.add_program(str(listed))
    assert students_files.is_students(file)


def test_a_package_that_pip_has_linked_is_none_of_the_students(folders, tmp_path, monkeypatch):
    packages, linked = tmp_path / "packages", tmp_path / "my linked"
    (packages / "linked-1.0.dist-info").mkdir(parents=True)
    told = {"url": linked.as_uri(), "dir_info": {"editable": True}}
    (packages / "linked-1.0.dist-info" / "direct_url.json").write_text(json.dumps(told))
    monkeypatch.setattr(students_files, "_PURE", str(packages))
    students_files._linked.cache_clear()
    try:
        assert not students_files.is_students(str(linked / "linked" / "core.py"))
        assert students_files.is_students(str(tmp_path / "not linked" / "core.py"))
    finally:
        students_files._linked.cache_clear()


def test_an_error_in_a_listed_package_is_shown_at_the_programs_line(tmp_path):
    listed, program = tmp_path / "listed", tmp_path / "program"
    listed.mkdir()
    program.mkdir()
    (listed / "tools_of_others.py").write_text("def fail():\n    raise ValueError('no')\n")
    (program / "train.py").write_text("import tools_of_others\n\ntools_of_others.fail()\n")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(students_files.__file__).parents[3]), str(listed)])}
    command = [sys.executable, "-m", "hw_utils", "run", "train.py", "--ranks", "2", "--simulate"]
    done = subprocess.run(command, cwd=program, env=env, capture_output=True, text=True, timeout=100)
    shown = done.stdout + done.stderr
    assert "train.py, line 3" in shown
    assert "tools_of_others.py, line" not in shown
