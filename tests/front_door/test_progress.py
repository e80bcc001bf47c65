"""How far a student is, with one run a lesson and none where nothing changed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from hw_utils.commands import progress

LESSONS = ("01_hello_ranks/hello_ranks", "02_all_reduce/all_reduce")
LINK = "import torch\nfrom hw_utils import checks\ndef fit_link(sizes, seconds):\n    {body}"
RIGHT = LINK.format(
    body="""t = torch.tensor(seconds, dtype=torch.float64)
    columns = torch.stack([1 / t, torch.tensor(sizes, dtype=torch.float64) / t], dim=1)
    start, slope = torch.linalg.lstsq(columns, torch.ones(len(t), 1, dtype=torch.float64)).solution
    return start.item(), 1 / slope.item()"""
)


@pytest.fixture
def folder(tmp_path):
    """The first two lessons as released."""
    for name in LESSONS:
        (tmp_path / "notebooks" / name).parent.mkdir(parents=True)
        shutil.copy(Path("notebooks") / f"{name}.ipynb", tmp_path / "notebooks" / f"{name}.ipynb")
    return tmp_path / "notebooks"


def small(folder: Path, source: str) -> Path:
    """A lesson of one exercise whose check takes no time."""
    marks = {"grade": True, "solution": False, "locked": True, "grade_id": "check-link", "points": 5}
    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": "# 9. A lesson\n\n## 9.1 The link"},
        {"cell_type": "code", "metadata": {"nbgrader": {"solution": True, "grade_id": "link"}}, "source": source},
        {"cell_type": "code", "metadata": {"nbgrader": marks}, "source": "checks.lesson_01.fit_link(fit_link)"},
    ]
    path = folder / "notebooks" / "09_small" / "small.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return path


def test_lessons_that_nobody_began_are_not_run_and_the_first_exercise_is_next(folder):
    lessons = progress.progress(folder)
    assert [v.message for x in lessons for v in x.verdicts] == ["not begun"] * sum(len(x.verdicts) for x in lessons)
    said = progress.table(lessons)
    assert "01_hello_ranks" in said.splitlines()[1]
    assert "0 of 15" in said.splitlines()[1]
    assert "Next: 1.1 Hello, in " in said


def test_a_lesson_is_run_once_and_again_only_when_its_code_changes(tmp_path, monkeypatch):
    path = small(tmp_path, LINK.format(body="return 0.0, 1.0"))
    folder = tmp_path / "notebooks"
    ran = []
    real = progress.check_notebook
    monkeypatch.setattr(progress, "check_notebook", lambda p, **named: ran.append(p) or real(p, **named))
    (lesson,) = progress.progress(folder)
    assert (lesson.points, lesson.of, ran) == (0, 5, [path])
    assert "Next: 9.1 The link, in " in progress.table([lesson])
    assert "latency_s is 0" in progress.table([lesson])

    notebook = json.loads(path.read_text())
    notebook["cells"][1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "run"}]
    path.write_text(json.dumps(notebook))
    assert progress.progress(folder) == [lesson]
    assert ran == [path]

    small(tmp_path, RIGHT)
    (lesson,) = progress.progress(folder)
    assert (lesson.points, ran) == (5, [path, path])
    assert progress.table([lesson]).endswith("Every visible check passes.")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".progress.json", "notebooks"]
    assert [p.name for p in path.parent.iterdir()] == ["small.ipynb"]


@pytest.mark.parametrize("kept", ["", "[]", "{", '{"01_hello_ranks/hello_ranks.ipynb": {"digest": 3}}'])
def test_what_was_kept_and_is_damaged_is_made_anew(folder, kept):
    store = folder.parent / ".progress.json"
    store.write_text(kept)
    assert len(progress.progress(folder)) == 2
    assert set(json.loads(store.read_text())) == {f"{name}.ipynb" for name in LESSONS}


def test_copies_and_checkpoints_beside_a_lesson_do_not_count(folder):
    own = folder / "01_hello_ranks" / "hello_ranks.ipynb"
    shutil.copy(own, own.with_name("Untitled.ipynb"))
    (own.parent / ".ipynb_checkpoints").mkdir()
    shutil.copy(own, own.parent / ".ipynb_checkpoints" / "hello_ranks-checkpoint.ipynb")
    assert [p.name for p in progress.find_notebooks(folder)] == ["hello_ranks.ipynb", "all_reduce.ipynb"]


def test_a_lesson_with_one_written_exercise_is_begun(folder):
    path = folder / "01_hello_ranks" / "hello_ranks.ipynb"
    assert not progress.is_begun(progress.read_cells(path))
    notebook = nbformat.read(path, 4)
    (cell,) = (c for c in notebook.cells if c.id == "hello")
    cell.source = "def hello(rank, world_size, name):\n    pass"
    nbformat.write(notebook, path)
    assert progress.is_begun(progress.read_cells(path))


def test_a_folder_without_lessons_is_refused_with_what_to_do(tmp_path):
    command = [sys.executable, "-m", "hw_utils", "progress", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "has no lessons" in done.stderr
    assert "run this in the course's folder" in done.stderr
