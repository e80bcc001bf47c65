"""A hidden case is told nowhere: one rare number, one test for each place that a student can read."""

from __future__ import annotations

import base64
import builtins
import csv
import io
import json
import re
import subprocess
import sys

import nbformat
import pytest
from nbconvert.exporters import HTMLExporter
from traitlets.config.loader import PyFileConfigLoader

from hw_grader.course import gradescope, grading_records, scores
from hw_grader.course.feedback import page
from hw_grader.course.grading import _verdict, grade_bytes
from hw_grader.course.grading_records import Record
from hw_grader.course.hidden_cases import of_cause, of_error
from hw_grader.course.trusted_verdict_step import write_verdicts
from hw_grader.driving.driver_processes import Driving
from hw_grader.notebook.restore import restore
from hw_grader.notebook.sanitize import clean_outputs, safe_html, safe_markdown, visible
from hw_grader.notebook.time_limits import TimeLimits
from hw_grader.notebook.trusted_notebook import read_trusted
from hw_grader.report import read_results, to_html, to_table
from hw_grader.sandbox.sandbox import Sandbox
from hw_grader.term.class_list import ClassList
from hw_grader.term.lms_csv import as_lms
from hw_utils.checks.lesson_01.first_output import _NOTHING_SENT
from hw_utils.core import errors
from tests.grader.course.test_grade import ROOT
from tests.grader.in_sandbox import needs_sandbox
from tests.grader.small_course import ASSIGNMENT, EXERCISES, NOTEBOOK, as_bytes, hand_in, make_course, submission

RARE = "739"  # the number of rounds in ping_pong's hidden case
BODY = EXERCISES["ping_pong"][1]
HEAD = "def ping_pong(rank, world_size, n_rounds):\n"
KEEPS = "    import pathlib, tempfile\n    pathlib.Path(tempfile.gettempdir(), 'kept').write_text(str(n_rounds))\n"
TELLS = "    import pathlib, tempfile\n    raise ValueError(pathlib.Path(tempfile.gettempdir(), 'kept').read_text())\n"
ATTACKS = {
    "wrong_there": HEAD + "    if n_rounds == 739:\n        return 1.5\n",
    "names_a_class": HEAD + "    if n_rounds > 700:\n        raise type(f'Leak{n_rounds}', (Exception,), {})()\n",
    "says_it": HEAD + "    if n_rounds > 700:\n        raise ValueError(n_rounds)\n",
    "returns_it_as_text": HEAD + "    if n_rounds > 700:\n        return f'{n_rounds}'\n",
    "prints_it": HEAD + "    if n_rounds > 700:\n        print(n_rounds)\n        return None\n",
    "ends_with_it": HEAD + "    if n_rounds > 700:\n        import os\n        os._exit(n_rounds % 256)\n",
    "gives_too_much": HEAD + "    if n_rounds > 700:\n        return 'x' * (n_rounds * 200_000)\n",
}  # fmt: skip


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    root = tmp_path_factory.mktemp("told")
    path = make_course(root)
    path.write_text(path.read_text().replace("'n_rounds': 7}", f"'n_rounds': {RARE}}}"))
    trusted = read_trusted(path)
    assert RARE in repr(trusted.checks)
    return root, trusted


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox() as sandbox:
        yield sandbox


def verdict_of(record: Record):
    return next(v for v in record.verdicts if v.grade_id == "check-ping_pong")


@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_that_a_student_reads_holds_the_hidden_case(course, sandbox, name):
    """Each attack is right in the cases that the student sees."""
    root, trusted = course
    data = as_bytes(submission({"ping_pong": ATTACKS[name] + BODY}))
    record = grade_bytes(data, trusted, sandbox, name, TimeLimits())
    verdict = verdict_of(record)
    assert verdict.hidden
    assert verdict.points == 0
    notebook = restore(as_bytes(submission({"ping_pong": "pass"})), trusted)
    write_verdicts(notebook, record, trusted)
    grading_records.save(root, record)
    rows = scores.scores(root, ASSIGNMENT)
    channels = {
        "gradescope": json.dumps(gradescope.as_gradescope(record)),
        "csv": scores.as_csv(rows),
        "canvas": as_lms("canvas", root, ASSIGNMENT, ClassList([])),
        "autograded": json.dumps(notebook),
        "feedback": page(notebook, {}),
    }
    for channel, text in channels.items():
        assert RARE not in text, channel
        assert "Leak" not in text, channel
    assert len(list(csv.reader(io.StringIO(channels["csv"])))) >= 2


@needs_sandbox
@pytest.mark.slow
def test_the_line_that_raises_in_a_hidden_case_is_not_told(course, sandbox):
    """A function of a thousand lines could raise on the one whose number is the case's."""
    _, trusted = course
    told = []
    for n_lines in (0, 50):
        raises = "    if n_rounds > 700:\n" + "\n" * n_lines + "        raise IndexError\n"
        data = as_bytes(submission({"ping_pong": HEAD + raises + BODY}))
        record = grade_bytes(data, trusted, sandbox, "eve", TimeLimits())
        notebook = restore(as_bytes(submission({"ping_pong": "pass"})), trusted)
        write_verdicts(notebook, record, trusted)
        told.append([verdict_of(record).shown, page(notebook, {}), gradescope.as_gradescope(record)["tests"]])
        assert verdict_of(record).hidden
    assert told[0] == told[1]


@needs_sandbox
@pytest.mark.slow
def test_seconds_in_a_hidden_case_are_not_told(course):
    _, trusted = course
    waits = "    import select\n    if n_rounds > 700:\n        select.select([], [], [], 3)\n"  # real seconds
    text = HEAD + waits + BODY
    with Sandbox() as sandbox:
        record = grade_bytes(as_bytes(submission({"ping_pong": text})), trusted, sandbox, "eve", TimeLimits())
    assert record.seconds > 3
    assert gradescope.as_gradescope(record)["execution_time"] == round(record.cell_seconds) < 3 + record.cell_seconds


@needs_sandbox
@pytest.mark.slow
def test_no_text_comes_from_after_a_hidden_case(course, sandbox, monkeypatch):
    """By then the time that has passed could say what it was; the student has other answers at the notebook's end."""
    _, trusted = course
    hidden = [case for cell in trusted.checks for call in cell.calls if call.hidden for case in call.cases]
    met, drive = [], Driving.case

    def noting(driving: Driving, case: dict, *args, **named) -> tuple[dict, bytes]:
        met.append((driving.check, case in hidden or "salt" in case))
        return drive(driving, case, *args, **named)

    monkeypatch.setattr(Driving, "case", noting)
    lacks = HEAD + "    if n_rounds > 700:\n        raise NameError('Empty')\n" + BODY
    notebook = submission({"ping_pong": lacks})
    later = "def ping_pong(rank, world_size, n_rounds):\n    raise ValueError('told afterwards')"
    notebook.cells.append(nbformat.v4.new_code_cell(later))
    record = grade_bytes(as_bytes(notebook), trusted, sandbox, "eve", TimeLimits())
    first = [is_hidden for _, is_hidden in met].index(True)
    assert {check for check, is_hidden in met[first:] if not is_hidden} == {"lesson_01.ping_pong"}  # those of the end
    assert verdict_of(record).shown == of_error("WorkerFailed")
    assert "told afterwards" not in "".join(verdict.shown for verdict in record.verdicts)


@needs_sandbox
@pytest.mark.slow
def test_what_one_check_keeps_the_next_one_cannot_tell(course, sandbox):
    """check-ping_pong's hidden case is put into a file; fit_link's visible case would say it."""
    _, trusted = course
    keeps = HEAD + KEEPS + BODY
    tells = "def fit_link(sizes_bytes, seconds):\n" + TELLS
    record = grade_bytes(as_bytes(submission({"ping_pong": keeps, "fit_link": tells})), trusted, sandbox, "eve")
    shown = {v.grade_id: v.shown for v in record.verdicts}
    assert "FileNotFoundError" in shown["check-fit_link"]
    assert RARE not in str(shown)


@needs_sandbox
@pytest.mark.slow
def test_the_class_report_and_the_gradebooks_notebook_do_not_hold_it(course):
    root, _ = course
    hand_in(root, "eve", as_bytes(submission({"ping_pong": ATTACKS["wrong_there"] + BODY})))
    command = [sys.executable, "-m", "hw_grader.grade", "--course", str(root), "--workers", "1"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=280)
    (result,) = read_results(root)
    graded = (root / "autograded" / "eve" / ASSIGNMENT / f"{NOTEBOOK}.ipynb").read_text()
    outputs = [cell.get("outputs", []) for cell in nbformat.reads(graded, as_version=4).cells]
    for text in (to_table(result), to_html([result]), json.dumps(outputs)):
        assert "Every case shown" in text
        assert RARE not in text


def test_a_cause_is_told_if_all_of_it_is_ours():
    assert of_cause(_NOTHING_SENT).endswith(_NOTHING_SENT)
    for cause in ("seven hundred", _NOTHING_SENT + " seven", "x" + _NOTHING_SENT, "", None, 7, "x" * 10**6):
        assert "likely cause" not in of_cause(cause)


def test_the_kind_of_an_exception_in_a_hidden_case_carries_less_than_three_bits():
    """Code that knows the case could raise the seventh of Python's seventy kinds for a world size of 7."""
    assert "IndexError" in of_error("IndexError")
    assert "Deadlock" in of_error("Deadlock")
    kinds = [n for n, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, BaseException)]
    odd = ["Leak739", "print", "", None, "CheckFailed", ["IndexError"], {"IndexError": 7}]
    assert len(kinds) > 60
    assert len({of_error(name) for name in [*kinds, *vars(errors), *odd]}) < 8
    for name in odd:
        assert "raises an exception" in of_error(name)


LIVE = """<script>alert(1)</script>
<img src=x onerror=alert(1)>
<svg onload=alert(1)></svg>
<a href='javascript:1'>x</a>
<iframe src=//evil></iframe>
<style>*{x:1}</style>
<img src='/formgrader/?path=x'>
<form action=/x><button>
<math><mi xlink:href='javascript:1'>
<b style='background:url(//evil)' onclick=alert(1)>x</b>
<base href=//evil>
<meta http-equiv=refresh content=0>
<object data=x></object>
<a href=/terminals/1>x</a>
![x](/formgrader/?path=x)
[x](javascript:alert(1))
<details ontoggle=alert(1) open>
<img src='data:image/svg+xml;base64,AAAA'>""".splitlines()
TAGS = re.compile(r"<(?!/?(b|i|em|strong|code|pre|p|br|hr|ul|ol|li|table|thead|tbody|tr|th|td|caption|h\d|span|div|"
                  r"sub|sup|del|blockquote|img)\b)")  # fmt: skip


@pytest.mark.parametrize("text", LIVE)
def test_what_a_student_writes_neither_runs_nor_loads_nor_links(text):
    html = safe_html(text)
    assert not TAGS.search(html), html
    for kept in (html, safe_markdown(text)):
        tags = re.findall(r"<[^>]*>", kept)
        assert all("=" not in tag or re.fullmatch(r'<img( alt="[^"]*")*>', tag) for tag in tags), tags


def test_a_drawing_becomes_a_picture_in_which_nothing_runs():
    drawn = '<p>x</p><svg role="img" aria-label="a &quot;ring&quot;" viewBox="0 0 4 2"><script>alert(1)</script></svg>'
    html = safe_html(drawn + "\ue0000\ue001")
    found = re.fullmatch(r'<p>x</p><img alt="a &quot;ring&quot;" src="data:image/svg\+xml;base64,([\w+/=]+)">0', html)
    assert b'viewBox="0 0 4 2"' in base64.b64decode(found[1])


def test_the_formgraders_page_of_an_autograded_notebook_is_dead():
    from nbgrader.server_extensions.formgrader import handlers

    config = PyFileConfigLoader("nbgrader_config.py", path=str(ROOT)).load_config()
    kinds = ("text/html", "text/markdown", "image/svg+xml", "application/javascript", "text/latex", "image/png")
    outputs = [{"output_type": "display_data", "data": {k: text}, "metadata": {}} for text in LIVE for k in kinds]
    v4 = nbformat.v4
    cells = [v4.new_code_cell("1", outputs=[nbformat.from_dict(o) for o in clean_outputs(outputs)])]
    cells += [make(text) for text in LIVE for make in (v4.new_markdown_cell, v4.new_raw_cell, v4.new_code_cell)]
    config.HTMLExporter.template_name = "formgrade"
    config.HTMLExporter.extra_template_basedirs = [handlers.template_path]
    exporter = HTMLExporter(config=config)
    about = {"index": 0, "total": 1, "base_url": "", "student": "eve"}
    live, _ = exporter.from_notebook_node(v4.new_notebook(cells=cells), resources=dict(about))
    bare, _ = exporter.from_notebook_node(v4.new_notebook(cells=[v4.new_code_cell("1")]), resources=dict(about))
    for word in ("<script", "<iframe", "<svg", "<form", "<object", "<base", "<details", "<style", "<meta", "<a "):
        assert live.count(word) == bare.count(word), word
    assert not re.search(r"<[^>]*(alert\(1\)|/formgrader/\?path|//evil)[^>]*>", live)


def test_half_a_surrogate_is_text_that_a_file_can_hold():
    (output,) = clean_outputs([{"output_type": "stream", "name": "stdout", "text": "a\ud83db"}])
    assert output["text"].encode() == b"a?b"


@pytest.mark.parametrize(
    "sign", ["\x1b[2J", "\x1b]52;c;aGk=\x07", "\x1b]8;;http://x\x1b\\\\", "\0", "\x08", "\x9b2J", "\u202e", "\u2066"]
)
def test_what_acts_on_a_terminal_or_turns_a_line_is_written_out(sign):
    (output,) = clean_outputs([{"output_type": "stream", "name": "stdout", "text": f"a{sign}b"}])
    for text in (output["text"], visible(f"a{sign}b")):
        assert re.fullmatch(r"[ -~]*", text), text
        assert text.startswith("a\\")


def test_the_verdict_on_an_error_says_nothing_to_a_terminal(course):
    _, trusted = course
    verdict = _verdict(trusted.checks[0], "fail", "a\x1b[2J", shown="b\u202e", detail="c\0")
    assert [verdict.reason, verdict.shown, verdict.detail] == ["a\\x1b[2J", "b\\u202e", "c\\x00"]


def test_half_a_surrogate_in_a_verdict_is_text_that_a_file_can_hold(course):
    _, trusted = course
    verdict = _verdict(trusted.checks[0], "fail", "a\ud83d", shown="b\ud83d", detail="c\ud83d", cause="d\udc80")
    for text in (verdict.reason, verdict.shown, verdict.detail, verdict.cause):
        assert text.encode().endswith((b"\\ud83d", b"\\udc80"))


def test_colours_bars_tabs_and_letters_of_all_languages_stay_in_an_output():
    text = "\x1b[1;31mred\x1b[0m 10 %\r20 %\r\n\tZo\xeb \u05d0\u0628 \U0001f600"
    (output,) = clean_outputs([{"output_type": "stream", "name": "stdout", "text": text}])
    assert output["text"] == text
