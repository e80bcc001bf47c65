"""A class of 200 of which 10 % were damaged on the way: everybody gets a row, right answers keep their points."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable

import nbformat
import pytest

from hw_grader.course.grading import grade_bytes
from hw_grader.course.grading_records import Record
from hw_grader.notebook.restore import restore
from hw_grader.notebook.trusted_notebook import read_trusted
from hw_grader.sandbox.sandbox import Sandbox
from tests.grader.in_sandbox import needs_sandbox
from tests.grader.small_course import (
    EXERCISES,
    MAX_POINTS,
    WRONG,
    as_bytes,
    make_course,
    submission,
)

DAMAGE: dict[str, Callable[[dict], bytes]] = {}
UNREADABLE = {"empty", "not_json", "cut_short", "no_cells"}
N_STUDENTS, N_DAMAGED = 200, 20


def damage(function: Callable[[dict], dict | bytes]) -> Callable:
    """Registers a way to damage a notebook."""

    def apply(notebook: dict) -> bytes:
        changed = function(copy.deepcopy(notebook))
        return changed if isinstance(changed, bytes) else json.dumps(changed).encode()

    DAMAGE[function.__name__] = apply
    return apply


def cells_of(notebook: dict, *names: str) -> list[dict]:
    return [c for c in notebook["cells"] if c["metadata"].get("nbgrader", {}).get("grade_id") in names]


@damage
def duplicate_id_stub_first(notebook):
    (cell,) = cells_of(notebook, "ping_pong")
    stub = {**copy.deepcopy(cell), "source": EXERCISES["ping_pong"][0] + "    raise NotImplementedError()"}
    notebook["cells"].insert(notebook["cells"].index(cell), stub)
    return notebook


@damage
def duplicate_id_stub_last(notebook):
    (cell,) = cells_of(notebook, "fit_link")
    (check,) = cells_of(notebook, "check-fit_link")
    notebook["cells"].remove(cell)
    notebook["cells"].insert(notebook["cells"].index(check) + 1, copy.deepcopy(cell))
    stub = {**copy.deepcopy(cell), "source": EXERCISES["fit_link"][0] + "    raise NotImplementedError()"}
    notebook["cells"].insert(3, stub)
    return notebook


@damage
def duplicate_check(notebook):
    (check,) = cells_of(notebook, "check-hello")
    notebook["cells"].append(copy.deepcopy(check))
    return notebook


@damage
def pasted_into_another_front_end(notebook):
    for n, cell in enumerate(notebook["cells"]):
        cell["metadata"], cell["id"] = {}, f"pasted{n}"
    return notebook


@damage
def marks_lost(notebook):
    for cell in notebook["cells"]:
        cell["metadata"] = {"slideshow": {"slide_type": "slide"}}
    return notebook


@damage
def some_marks_lost(notebook):
    for cell in notebook["cells"][::2]:
        cell["metadata"], cell["id"] = {}, "x" + cell["id"]
    return notebook


@damage
def wrong_marks(notebook):
    for cell in cells_of(notebook, "hello", "fit_link"):
        cell["metadata"]["nbgrader"]["grade_id"] += "-copy1"
        cell["id"] = "other" + cell["id"]
    return notebook


@damage
def marks_of_the_wrong_type(notebook):
    for cell in notebook["cells"]:
        cell["metadata"]["nbgrader"] = [1, 2, 3]
        cell["id"] = 17
    return notebook


@damage
def checks_deleted(notebook):
    for cell in cells_of(notebook, *(f"check-{name}" for name in EXERCISES)):
        notebook["cells"].remove(cell)
    return notebook


@damage
def checks_edited(notebook):
    for cell in cells_of(notebook, *(f"check-{name}" for name in EXERCISES)):
        cell["source"] = "print('ok: all right')"
        cell["metadata"]["nbgrader"]["points"] = 1000
    return notebook


@damage
def setup_deleted(notebook):
    notebook["cells"].remove(*cells_of(notebook, "setup"))
    return notebook


@damage
def exercise_became_markdown(notebook):
    (cell,) = cells_of(notebook, "hello")
    cell["cell_type"] = "markdown"
    cell.pop("outputs"), cell.pop("execution_count")
    return notebook


@damage
def exercise_became_raw_without_marks(notebook):
    (cell,) = cells_of(notebook, "ping_pong")
    cell.update(cell_type="raw", metadata={}, id="raw")
    return notebook


@damage
def checks_come_first(notebook):
    checks = cells_of(notebook, *(f"check-{name}" for name in EXERCISES))
    rest = [c for c in notebook["cells"] if c not in checks]
    notebook["cells"] = [rest[0], *checks, *rest[1:]]
    return notebook


@damage
def exercises_reversed(notebook):
    notebook["cells"][1:] = notebook["cells"][:0:-1]
    return notebook


@damage
def format_3(notebook):
    cells = []
    for cell in notebook["cells"]:
        source = cell["source"].splitlines(keepends=True)
        kept = {name: cell[name] for name in ("cell_type", "metadata")}
        cells.append({**kept, "language": "python", "input": source, "outputs": [], "prompt_number": None})
    return {"nbformat": 3, "nbformat_minor": 0, "metadata": {"name": ""}, "worksheets": [{"cells": cells}]}


@damage
def byte_order_mark(notebook):
    return b"\xef\xbb\xbf" + json.dumps(notebook).encode()


@damage
def windows_line_ends_in_lists(notebook):
    for cell in notebook["cells"]:
        cell["source"] = [line + "\r\n" for line in cell["source"].split("\n")]
    return notebook


@damage
def saved_by_vs_code(notebook):
    for n, cell in enumerate(notebook["cells"]):
        cell["id"] = f"{n:08x}"
        cell["metadata"]["vscode"] = {"languageId": "python"}
        cell["source"] = cell["source"].splitlines(keepends=True)
    notebook["metadata"] = {"kernelspec": {"display_name": ".venv (3.12.1)", "language": "python", "name": "python3"}}
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False).encode()


@damage
def saved_by_colab(notebook):
    for n, cell in enumerate(notebook["cells"]):
        del cell["id"]
        cell["metadata"] |= {"id": f"QzVb{n}", "colab": {"base_uri": "https://localhost:8080/"}}
        cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["ok\n"], "metadata": {"tags": None}}]
    notebook["metadata"] = {"colab": {"provenance": []}, "kernelspec": {"name": "python3", "display_name": "Python 3"}}
    return {**notebook, "nbformat_minor": 0}


@damage
def empty(notebook):
    return b""


@damage
def not_json(notebook):
    return b"<html>login required</html>"


@damage
def cut_short(notebook):
    return json.dumps(notebook).encode()[:700]


@damage
def no_cells(notebook):
    return {**notebook, "cells": None}


@damage
def strange_cells(notebook):
    notebook["cells"] += [None, 7, {"cell_type": 3, "source": {"a": 1}}, {"source": [1, None]}, {}]
    return notebook


@pytest.fixture(scope="module")
def trusted(tmp_path_factory):
    return read_trusted(make_course(tmp_path_factory.mktemp("damaged")))


@pytest.fixture(scope="module")
def graded(trusted):
    with Sandbox() as sandbox:

        @functools.cache
        def grade(data: bytes) -> Record:
            return grade_bytes(data, trusted, sandbox, "student")

        yield grade


@needs_sandbox
@pytest.mark.slow
def test_two_hundred_with_a_tenth_damaged_all_get_a_row_and_keep_their_points(graded):
    ways = (list(DAMAGE.values()) * 2)[:N_DAMAGED]
    whole = submission()
    handed_in = [way(whole) for way in ways] + [as_bytes(whole)] * (N_STUDENTS - N_DAMAGED)
    rows = [graded(data) for data in handed_in]
    assert len(rows) == N_STUDENTS
    assert all(r.reason and len(r.verdicts) == len(EXERCISES) for r in rows)
    readable = [r for r in rows if not r.unreadable]
    assert sum(r.points for r in readable) >= 0.99 * MAX_POINTS * len(readable)


@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(DAMAGE))
def test_a_right_answer_survives(graded, name):
    record = graded(DAMAGE[name](submission()))
    if name in UNREADABLE:
        assert record.unreadable
        assert record.points == 0
        assert not record.is_graded
    else:
        assert record.points == MAX_POINTS, (record.reason, record.notes)


@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["checks_edited", "pasted_into_another_front_end", "duplicate_check", "checks_come_first"]
)
def test_a_wrong_answer_gains_nothing_from_damage(graded, name):
    assert graded(DAMAGE[name](submission(WRONG))).points == 0


def test_a_deleted_exercise_costs_its_own_points_only_and_says_so(trusted):
    notebook = submission()
    notebook["cells"].remove(*cells_of(notebook, "ping_pong"))
    restored = restore(as_bytes(notebook), trusted)
    assert "ping_pong: the cell was missing" in restored.metadata["hw_grader"]["notes"]
    ids = [c.metadata.get("nbgrader", {}).get("grade_id") for c in restored.cells]
    assert sorted(filter(None, ids)) == sorted(["setup", *EXERCISES, *(f"check-{name}" for name in EXERCISES)])


def test_every_restored_notebook_has_each_graded_cell_once(trusted):
    for name, way in DAMAGE.items():
        restored = restore(way(submission()), trusted)
        ids = [c.metadata.get("nbgrader", {}).get("grade_id") for c in restored.cells]
        assert sorted(filter(None, ids)) == sorted(trusted.marked), name


@pytest.mark.parametrize(("encoding", "end"), [("utf-16", ""), ("utf-16-le", ""), ("latin-1", ""), ("utf-8", "\n\0\0")])
def test_a_file_in_another_encoding_or_with_a_filled_up_end_keeps_its_answers(trusted, encoding, end):
    notebook = submission()
    notebook.cells.insert(0, nbformat.v4.new_markdown_cell("caf\xe9"))
    restored = restore((json.dumps(notebook, ensure_ascii=False) + end).encode(encoding), trusted)
    assert "unreadable" not in restored.metadata.hw_grader
    (hello,) = (c for c in restored.cells if c.metadata.get("nbgrader", {}).get("grade_id") == "hello")
    assert hello.source == "".join(EXERCISES["hello"][:2])
    assert restored.metadata.hw_grader["notes"] if encoding != "utf-8" else True
