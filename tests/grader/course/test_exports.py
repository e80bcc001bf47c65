"""Marks for other systems, the feedback page, the similarity report."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import subprocess
import sys
import tempfile
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

import jsonschema
import nbformat
import pytest

from hw_grader.course import gradescope, grading_records, scores
from hw_grader.course.feedback import MAX_BYTES, page
from hw_grader.course.grading_records import Record, Verdict
from hw_grader.course.similarity import MOST_CHARS, MOST_OF_ONE, alike, own_code, report, runs_text, texts_in, tokens
from hw_grader.notebook.restore import restore
from hw_grader.notebook.trusted_notebook import read_trusted
from hw_grader.term.class_list import ClassList
from hw_grader.term.lms_csv import as_lms
from tests.grader.small_course import ASSIGNMENT, EXERCISES, as_bytes, make_course, submission

ROOT = Path(__file__).resolve().parents[3]
GRADESCOPE = {  # https://gradescope-autograders.readthedocs.io/en/latest/specs/
    "type": "object",
    "required": ["tests", "score"],
    "additionalProperties": False,
    "properties": {
        "score": {"type": "number", "minimum": 0},
        "execution_time": {"type": "integer"},
        "output": {"type": "string"},
        "visibility": {"enum": ["hidden", "after_due_date", "after_published", "visible"]},
        "stdout_visibility": {"enum": ["hidden", "after_due_date", "after_published", "visible"]},
        "tests": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["score", "max_score", "name"],
                "additionalProperties": False,
                "properties": {
                    "score": {"type": "number"},
                    "max_score": {"type": "number"},
                    "status": {"enum": ["passed", "failed"]},
                    "name": {"type": "string"},
                    "output": {"type": "string"},
                    "visibility": {"enum": ["hidden", "after_due_date", "after_published", "visible"]},
                },
            },
        },
    },
}


def record(student: str, *states: str, unreadable: str = "") -> Record:
    verdicts = [
        Verdict(f"check-{n}", state, 5.0 if state == "pass" else 0.0, 5.0, f"why {state}", f"shown {state}")
        for n, state in enumerate(states)
    ]
    return Record(ASSIGNMENT, student, "small", "key", verdicts, unreadable=unreadable)


@pytest.fixture
def course(tmp_path):
    for one in (
        record("ada", "pass", "pass"),
        record("bob", "fail", "pass"),
        record("cy", "grader-fault", "pass"),
        record("dan", "fail", "fail"),
        record("eve", "crashed", "crashed", unreadable="the file is empty"),
    ):
        grading_records.save(tmp_path, one)
    return tmp_path


def rows(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


def test_a_real_zero_and_what_could_not_be_graded_look_different_in_the_csv(course):
    head, *students = rows(scores.as_csv(scores.scores(course, ASSIGNMENT)))
    points = {row[0]: row[head.index("points")] for row in students}
    assert points == {"ada": "10", "bob": "5", "cy": "", "dan": "0", "eve": ""}
    states = {row[0]: row[head.index("state")] for row in students}
    assert states == {"ada": "pass", "bob": "fail", "cy": "grader-fault", "dan": "fail", "eve": "crashed"}
    assert all(len(row) == len(head) for row in students)


def test_canvas_gets_its_columns_its_points_row_and_empty_cells(course):
    head, possible, *students = rows(as_lms("canvas", course, ASSIGNMENT, ClassList([])))
    assert head == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", ASSIGNMENT]
    assert possible == ["    Points Possible", "", "", "", "", "10"]
    assert [row[5] for row in students] == ["10", "5", "", "0", ""]


def test_a_formula_in_a_name_is_not_run_by_a_spreadsheet(tmp_path):
    grading_records.save(tmp_path, record("=cmd", "pass"))
    assert rows(scores.as_csv(scores.scores(tmp_path, ASSIGNMENT)))[1][0] == "'=cmd"


@pytest.mark.parametrize("text", [
    "=cmd", " =1", "x;=1", "x;+1;-1;@A1", "x\t=1", "x\n=1", "x\r=1", 'x;"=1', "x; '=1", "x\t\t=1", "\t=1", "x;\uff1d1",
    ";;=1", 'x, y;"\u00a0 -1',
])  # fmt: skip
def test_no_spreadsheet_finds_a_formula_whatever_it_splits_at(text):
    """Those that know quotation marks only where a cell begins, and those that know none."""
    table = scores.csv_text([["ada", text, 1.5], [f"{text}, also first", "", -1]])
    for splits_at in (",", ";", "\t", ";\t,", ";\t"):
        read = rows(re.sub(f"[{splits_at}]", ",", table))
        read += [re.split(f"[{splits_at}]", line) for line in table.split("\n")]
        cells = [cell.strip().strip('"').strip() for row in read for cell in row]
        assert [cell for cell in cells if cell[:1] in tuple("=+-@\uff1d") and cell != "-1"] == []
    assert scores.unsafe(scores.safe(text)) == text


def test_ordinary_texts_stay_as_they_are_in_a_csv():
    texts = ["Lovelace, Ada", "Müller-Lüdenscheidt", "ada@x.edu", "rank 0: got [1, -2]; wanted 4", "", "O'Hara", "#"]
    assert rows(scores.csv_text([texts, [10, 0.5, None]])) == [texts, ["10", "0.5", ""]]


def test_gradescope_results_follow_the_schema(course):
    for one in grading_records.all_of(course, ASSIGNMENT):
        results = gradescope.as_gradescope(one)
        jsonschema.validate(results, GRADESCOPE)
        assert ("not your mark" in results["output"]) == (not one.is_graded)
    assert gradescope.as_gradescope(record("ada", "pass", "fail"))["score"] == 5
    looked_at = replace(record("ada", "pass"), notes=["a repair"], noticed=["for a person to look at"])
    assert looked_at.for_staff == ["a repair", "for a person to look at"]
    said = json.dumps(gradescope.as_gradescope(looked_at))
    assert ("a repair" in said, "look at" in said) == (True, False)


def test_the_autograder_zip_holds_the_judges_and_the_trusted_notebook(tmp_path):
    solution = make_course(tmp_path)
    path = tmp_path / "autograder.zip"
    gradescope.autograder_zip(path, read_trusted(solution), solution, ROOT)
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        assert {
            "setup.sh",
            "run_autograder",
            "hw_utils/checks/lesson_01/__init__.py",
            "hw_grader/driving/roles/judge.py",
        } <= names
        assert archive.getinfo("run_autograder").external_attr >> 16 & 0o111


WRONG = "def hello(rank, world_size, name):\n    print('no')"
READS = f"""
from glob import glob
try:
    open(glob(PATH)[0], 'rb').close()
    def hello(rank, world_size, name):
        print(f"Rank {{rank}}: Hello, {{name}}!")
except (IndexError, OSError):
    {WRONG.replace(chr(10), chr(10) + "    ")}
"""
OUT_OF_REACH = ("{box}/source/solutions/*/*.ipynb", "{box}/source/.grading_secret")


@pytest.fixture
def container():
    """A folder that every user may go into, as a container's."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.slow
@pytest.mark.parametrize("read", OUT_OF_REACH)
def test_the_autograder_grades_in_a_container_without_namespaces(tmp_path, container, read):
    solution = make_course(tmp_path / "course")
    gradescope.autograder_zip(tmp_path / "autograder.zip", read_trusted(solution), solution, ROOT)
    box = container
    with zipfile.ZipFile(tmp_path / "autograder.zip") as archive:
        archive.extractall(box / "source")
    (box / "submission").mkdir()
    wrong = {"hello": READS.replace("PATH", repr(read.format(box=box)))}
    (box / "submission" / "small.ipynb").write_bytes(as_bytes(submission(wrong)))
    start = (
        f"import sys; sys.path.insert(0, {str(box / 'source')!r})\n"
        "from hw_grader.course import gradescope\nfrom hw_grader.sandbox import sandbox\n"
        "gradescope.why_not = lambda: 'as in a container without bubblewrap'\n"
        f"sys.exit(gradescope.main({str(box)!r}))"
    )
    subprocess.run([sys.executable, "-I", "-c", start], check=True, cwd=box)
    results = json.loads((box / "results" / "results.json").read_text())
    jsonschema.validate(results, GRADESCOPE)
    assert results["score"] == sum(p for *_, p in EXERCISES.values()) - 5, results


def graded_notebook(outputs: list[dict]) -> nbformat.NotebookNode:
    marks = {"grade": True, "solution": False, "grade_id": "check-ring", "points": 5, "score": 0}
    cell = nbformat.v4.new_code_cell("checks.ring(f)\n### BEGIN HIDDEN TESTS\nsecret(7)\n### END HIDDEN TESTS")
    cell.metadata["nbgrader"] = marks
    cell.outputs = [nbformat.from_dict(o) for o in outputs]
    return nbformat.v4.new_notebook(cells=[cell])


def test_feedback_holds_no_script_and_no_hidden_test():
    html = page(
        graded_notebook(
            [
                {"output_type": "stream", "name": "stdout", "text": "</pre><script>alert(1)</script>"},
                {"output_type": "display_data", "metadata": {}, "data": {
                    "text/html": "<b>kept</b><script>alert(2)</script><img src=x onerror=alert(3)>"
                    "<a href='javascript:4'>x</a>"}},
                {"output_type": "error", "ename": "CheckFailed", "evalue": "", "traceback": ["rank 0 <script>"]},
            ]
        ),
        {"assignment": "01", "notebook": "<script>", "score": 0, "max_score": 5},
    )  # fmt: skip
    assert "<script" not in html
    assert "onerror" not in html
    assert "javascript:" not in html
    assert "<b>kept</b>" in html
    assert "rank 0 &lt;script&gt;" in html
    assert "secret(7)" not in html


def test_feedback_stays_below_one_megabyte():
    nb = graded_notebook([{"output_type": "stream", "name": "stdout", "text": "ü" * 10**6}] * 100)
    nb.cells = nb.cells * 50
    html = page(nb, {})
    assert len(html.encode()) <= MAX_BYTES
    assert "left out" in html


def test_copied_code_is_found_although_names_and_layout_differ(tmp_path):
    trusted = read_trusted(make_course(tmp_path))
    one = EXERCISES["ping_pong"][0] + EXERCISES["ping_pong"][1]
    copy = "# mine\n" + one.replace("ball", "token").replace("rank == 0", "rank  ==  0")
    other = (
        "def ping_pong(rank, world_size, n_rounds):\n    x = torch.zeros(1)\n    if rank > 1:\n        return 0.0\n"
        "    peer = 1 - rank\n    while n_rounds:\n        first = rank == 0\n"
        "        if not first: dist.recv(x, peer)\n"
        "        x.add_(1)\n        dist.send(x, peer)\n        if first: dist.recv(x, peer)\n        n_rounds -= 1\n"
        "    return float(x)"
    )
    notebooks = {
        name: restore(
            as_bytes(submission({"ping_pong": text, "fit_link": EXERCISES["fit_link"][0] + "    return 0"})), trusted
        )
        for name, text in (("ada", one), ("bob", copy), ("cy", other))
    }
    pairs = alike({name: own_code(notebook, trusted) for name, notebook in notebooks.items()})
    assert [(p.exercise, p.first, p.second) for p in pairs] == [("ping_pong", "ada", "bob")]
    assert "ada, bob" in report(pairs)


HEAD = EXERCISES["ping_pong"][0]
OWN = HEAD + EXERCISES["ping_pong"][1]
MOVED = OWN.replace("def ping_pong", "def played").replace("ball", "token")
PACKED = base64.b64encode(zlib.compress(MOVED.encode())).decode()


@pytest.mark.parametrize(
    ("answer", "helper", "where"),
    [
        (HEAD + "    return played(rank, world_size, n_rounds)\n", MOVED, "another cell"),
        (
            HEAD + f"    exec({MOVED!r}, globals())\n    return played(rank, world_size, n_rounds)\n",
            "",
            "a text in ping",
        ),
        (HEAD + f"    exec(zlib.decompress(base64.b64decode({PACKED!r})))\n    return played(rank)\n", "", "a text in"),
        (
            HEAD + "    return played(rank, world_size, n_rounds)\n",
            f"exec(bytes.fromhex('{MOVED.encode().hex()}'))",
            "a text",
        ),
    ],
)
def test_copied_code_is_found_in_helper_cells_and_in_texts_that_are_run(tmp_path, answer, helper, where):
    trusted = read_trusted(make_course(tmp_path))
    notebooks = {
        name: restore(as_bytes(submission({"ping_pong": text}, extra=extra)), trusted)
        for name, text, extra in (("ada", OWN, ""), ("bob", answer, helper))
    }
    code = {name: own_code(notebook, trusted) for name, notebook in notebooks.items()}
    (pair,) = [p for p in alike(code) if p.exercise == "ping_pong"]
    assert (pair.first, pair.second) == ("ada", "bob")
    assert pair.where.startswith(where)
    told = report([pair], {name: runs_text(notebook, trusted) for name, notebook in notebooks.items()})
    assert ("bob runs a text as code" in told) is ("exec(" in answer + helper)
    assert "ada runs" not in told


@pytest.mark.parametrize("first", ["'", '"', "x = "])
@pytest.mark.parametrize("more", [r"\'", r"\"", "ab", "'''", '"""', "r'", "\\\\", "0e+", "=*"])
@pytest.mark.parametrize("last", ["", "\\", "\n"])
def test_each_character_is_read_once_whatever_the_line_is(first, more, last):
    source = first + more * (MOST_OF_ONE // len(more)) + last
    assert 0 < sum(len(token) for token in tokens(source)) <= len(source)


def test_tokens_are_those_of_python_but_for_names_comments_and_layout():
    source = '''
def f(x: int, *, y=1.5e-3) -> str:  # a comment: 'no string'
    if x != 0x1F and y >= .5 or not x <<= 2:
        return f"a {x!r}" + rb'\\'' """three
        lines""" \\
            @ z[1:2, ...] ** 2 // 3
'''
    assert tokens(source) == [
        "def", "n", "(", "n", ":", "n", ",", "*", ",", "n", "=", "1.5e-3", ")", "-", ">", "n", ":", "if", "n", "!=",
        "0x1F", "and", "n", ">=", ".5", "or", "not", "n", "<<=", "2", ":", "return", 'f"a {x!r}"', "+", r"rb'\''",
        '"""three\n        lines"""', "@", "n", "[", "1", ":", "2", ",", ".", ".", ".", "]", "**", "2", "//", "3",
    ]  # fmt: skip


def test_what_is_too_long_to_be_looked_into_is_said(tmp_path):
    trusted = read_trusted(make_course(tmp_path))
    line = "x = 1\n"
    for length, said in ((MOST_CHARS, f"over {MOST_CHARS:,}"), (MOST_OF_ONE, f"comes after {MOST_OF_ONE:,}")):
        notebook = restore(as_bytes(submission(extra=line * (length // len(line) + 1))), trusted)
        assert said in report([], {}, {"ada": own_code(notebook, trusted)})
    assert "looked into" not in report([], {}, {"ada": own_code(restore(as_bytes(submission()), trusted), trusted)})


def test_packed_texts_are_looked_into_up_to_a_length():
    packed = [base64.b85encode(zlib.compress(f"def f{n}():\n".encode() + b"    pass\n" * 5_000)) for n in range(40)]
    left_out: list[str] = []
    found = list(texts_in("\n".join(map(repr, packed)), left_out=left_out))
    assert 1 <= len(found) <= MOST_OF_ONE // 45_000
    assert len(left_out) == 1
    assert len(list(texts_in("\n".join([repr(packed[0])] * 40)))) == 1


def test_a_line_that_runs_a_text_says_nothing_to_a_terminal(tmp_path):
    trusted = read_trusted(make_course(tmp_path))
    notebook = restore(as_bytes(submission(extra="exec('1')  # \x1b[2J\u202e")), trusted)
    assert runs_text(notebook, trusted) == ["exec('1')  # \\x1b[2J\\u202e"]
