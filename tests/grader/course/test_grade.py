"""Grading a class: the same verdict everywhere, again and again, over a cluster that loses a worker."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest
from nbgrader.api import Gradebook

from hw_grader import grade
from hw_grader.course import grading_records
from hw_grader.course.grading import grade_bytes
from hw_grader.course.grading_records import Record, Verdict
from hw_grader.course.reference_solution import CalibrationError, calibrated
from hw_grader.notebook.time_limits import TimeLimits
from hw_grader.notebook.trusted_notebook import TrustedNotebookError, parse_calls, read_trusted
from hw_grader.sandbox.sandbox import Sandbox
from tests.grader.in_sandbox import inside, needs_sandbox
from tests.grader.small_course import (
    ASSIGNMENT,
    MAX_POINTS,
    WRONG,
    as_bytes,
    hand_in,
    make_course,
    submission,
)

ROOT = Path(__file__).resolve().parents[3]
NOISE = """
import logging, sys, warnings
from tqdm.auto import tqdm
warnings.warn("careful")
logging.warning("logged")
print("to stderr", file=sys.stderr)
for _ in tqdm(range(3)): pass
# %%
def hello(rank, world_size, name):
    import os, sys, warnings
    warnings.warn("in a rank")
    print("noise", file=sys.stderr)
    os.write(2, b"[W1121 c10d] a log line\\n")
    print(f"Rank {rank}: Hello, {name}!")
"""


@pytest.fixture
def course(tmp_path):
    make_course(tmp_path)
    hand_in(tmp_path, "ada", as_bytes(submission()))
    hand_in(tmp_path, "bob", as_bytes(submission({"hello": WRONG["hello"]})))
    hand_in(tmp_path, "cy", b"")
    hand_in(tmp_path, "dan", as_bytes(submission()), "renamed.ipynb")
    return tmp_path


@pytest.fixture(scope="module")
def trusted(tmp_path_factory):
    return read_trusted(make_course(tmp_path_factory.mktemp("release")))


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox() as sandbox:
        yield sandbox


def points_in_gradebook(root: Path) -> dict[str, float]:
    with Gradebook(f"sqlite:///{root / 'gradebook.db'}") as gradebook:
        return {s.student.id: s.score for s in gradebook.assignment_submissions(ASSIGNMENT)}


def when_in_gradebook(root: Path, student: str) -> datetime | None:
    with Gradebook(f"sqlite:///{root / 'gradebook.db'}") as gradebook:
        return gradebook.find_submission(ASSIGNMENT, student).timestamp


def run_grade(root: Path, *options: str, **more) -> subprocess.CompletedProcess:
    """With one worker, which is enough for four submissions: each takes some seconds to start."""
    command = [sys.executable, "-m", "hw_grader.grade", "--course", str(root), "--workers", "1", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, **more)


RIGHT = {"ada": MAX_POINTS, "bob": MAX_POINTS - 5, "cy": 0, "dan": MAX_POINTS}


@needs_sandbox
@pytest.mark.slow
def test_a_class_is_graded_once_and_nbgrader_gives_the_same_marks(course):
    done = run_grade(course)
    assert done.returncode == 0, done.stderr
    assert points_in_gradebook(course) == RIGHT
    assert {r.student: r.points for r in grading_records.all_of(course, ASSIGNMENT)} == RIGHT
    files = {p: p.stat().st_mtime_ns for p in course.rglob("records/**/*.json")}
    assert run_grade(course).returncode == 0  # nothing is left to do
    assert files == {p: p.stat().st_mtime_ns for p in course.rglob("records/**/*.json")}
    (course / "submitted" / "ada" / ASSIGNMENT / "timestamp.txt").write_text("2026-03-02 10:00 +0100")
    assert run_grade(course).returncode == 0  # when it was handed in is part of what is handed in
    assert when_in_gradebook(course, "ada") == datetime(2026, 3, 2, 9)
    for path in files:
        path.unlink()
    dan = course / "submitted" / "dan" / ASSIGNMENT
    (dan / "renamed.ipynb").rename(dan / "small.ipynb")
    command = [sys.executable, "-m", "nbgrader", "autograde", ASSIGNMENT, "--force"]
    subprocess.run(command, cwd=course, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert points_in_gradebook(course) == RIGHT


@needs_sandbox
@pytest.mark.slow
def test_after_a_correction_one_check_is_graded_anew_and_whose_points_changed_is_said(course):
    picky = "def hello(rank, world_size, name):\n    print(f'Rank {rank}: Hello, {name}!' if world_size != 3 else 'no')"
    hand_in(course, "bob", as_bytes(submission({"hello": picky, "ping_pong": WRONG["ping_pong"]})))
    assert run_grade(course).returncode == 0
    before = {r.student: r for r in grading_records.all_of(course, ASSIGNMENT)}
    assert before["bob"].points == MAX_POINTS - 5 - 3
    solution = course / "solutions" / ASSIGNMENT / "small.ipynb"
    solution.write_text(solution.read_text().replace("'world_size': 3", "'world_size': 6"))
    hand_in(course, "cy", as_bytes(submission()))  # in the place of the empty file
    refused = run_grade(course, ASSIGNMENT, "--check", "helo")
    assert refused.returncode == 2
    assert "one of hello, predictions, ping_pong, fit_link; got" in refused.stderr
    done = run_grade(course, ASSIGNMENT, "--check", "hello")
    assert "other points for the same work, 1:\n  bob: 3 -> 8 (hello 0 -> 5)\n" in done.stdout
    assert "cy: has no marks for what is handed in now: run make grade" in done.stderr
    assert points_in_gradebook(course) == {**RIGHT, "bob": MAX_POINTS - 3}
    after = {r.student: r for r in grading_records.all_of(course, ASSIGNMENT)}
    assert [v for v in after["bob"].verdicts if v.grade_id != "check-hello"] == [
        v for v in before["bob"].verdicts if v.grade_id != "check-hello"
    ]
    assert run_grade(course).returncode == 0
    assert points_in_gradebook(course) == {**RIGHT, "bob": MAX_POINTS - 3, "cy": MAX_POINTS}


@needs_sandbox
@pytest.mark.slow
def test_an_interrupted_class_goes_on_where_it_stopped(course):
    command = [sys.executable, "-m", "hw_grader.grade", "--course", str(course), "--workers", "1"]
    running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not list(course.glob(f"records/{ASSIGNMENT}/*.written")):
        assert running.poll() is None, running.communicate()
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    kept = {p: p.stat().st_mtime_ns for p in course.glob(f"records/{ASSIGNMENT}/*.written")}
    assert run_grade(course).returncode == 0
    assert points_in_gradebook(course) == RIGHT
    assert {p: p.stat().st_mtime_ns for p in kept} == kept


@needs_sandbox
@pytest.mark.slow
def test_a_worker_that_dies_loses_no_submission(course):
    long = "# too long for the scheduler's own memory: it lies in a worker\n" * 5_000
    for n in range(8):
        hand_in(course, f"eve{n}", as_bytes(submission({"hello": f"# {n}\n{long}" + WRONG["hello"]})))
    address_file = course / "scheduler.json"
    start = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0",
             "--no-dashboard", "--scheduler-file", str(address_file)]  # fmt: skip
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", str(address_file),
              "--nthreads", "1", "--no-nanny", "--no-dashboard"]  # fmt: skip
    started = [subprocess.Popen(start, cwd=ROOT, stderr=subprocess.DEVNULL)]
    try:
        while not address_file.exists():
            time.sleep(0.05)
        started += [subprocess.Popen(worker, cwd=ROOT, stderr=subprocess.DEVNULL) for _ in range(2)]
        import json

        address = json.loads(address_file.read_text())["address"]
        command = [sys.executable, "-m", "hw_grader.grade", "--course", str(course), "--scheduler", address]
        grading = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while len(list(course.glob(f"records/{ASSIGNMENT}/*.written"))) < 3:
            assert grading.poll() is None, grading.communicate()
            time.sleep(0.05)
        started[1].kill()
        out, errors = grading.communicate(timeout=250)
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert grading.returncode == 0, (out, errors)
    assert points_in_gradebook(course) == {**RIGHT, **{f"eve{n}": MAX_POINTS - 5 for n in range(8)}}


@needs_sandbox
@pytest.mark.slow
def test_nine_regrades_in_any_order_are_identical(trusted, sandbox):
    handed_in = {"ada": submission(), "bob": submission(WRONG), "cy": submission(extra="raise ValueError(1)")}
    first = {s: grade_bytes(as_bytes(n), trusted, sandbox, s).verdict_part() for s, n in handed_in.items()}
    order = list(handed_in) * 3
    random.Random(0).shuffle(order)
    for student in order:
        assert grade_bytes(as_bytes(handed_in[student]), trusted, sandbox, student).verdict_part() == first[student]


@needs_sandbox
def test_a_hang_is_told_with_the_line_of_the_students_cell(trusted, sandbox):
    waits = "def ping_pong(rank, world_size, n_rounds):\n    ball = torch.zeros(1)\n    dist.recv(ball, 1 - rank)"
    record = grade_bytes(as_bytes(submission({"ping_pong": waits})), trusted, sandbox, "ada")
    (told,) = (verdict.shown for verdict in record.verdicts if verdict.grade_id == "check-ping_pong")
    assert re.search(r"0 +recv +rank 1 +Cell In\[\d+\], line 3  dist\.recv\(ball, 1 - rank\)\n", told), told


@needs_sandbox
def test_an_exception_of_the_answers_own_is_told_with_its_case_and_what_it_comes_from(trusted, sandbox):
    divides = "def fit_link(sizes_bytes, seconds):\n    return 1 / 0"
    record = grade_bytes(as_bytes(submission({"fit_link": divides})), trusted, sandbox, "ada")
    (verdict,) = (v for v in record.verdicts if v.grade_id == "check-fit_link")
    assert verdict.reason == "ZeroDivisionError: division by zero"
    raised = r"line 2, in .*\n    return 1 / 0\nZeroDivisionError: .*\nthis was the check's case .*\n"
    assert re.search(raised + "  likely cause: something is divided", verdict.shown), verdict.shown
    assert verdict.cause.startswith("something is divided by 0")


ODD = ["10**5000", "torch.ones(3, device='meta')", "functools.reduce(lambda x, _: [x], range(10**4), 1)"]


@needs_sandbox
@pytest.mark.parametrize("value", ODD)
def test_what_cannot_be_read_is_said_of_the_value_and_not_of_the_code(trusted, sandbox, value):
    text = f"import functools\ndef ping_pong(rank, world_size, n_rounds):\n    return {value}"
    record = grade_bytes(as_bytes(submission({"ping_pong": text})), trusted, sandbox, "ada")
    (verdict,) = (v for v in record.verdicts if v.grade_id == "check-ping_pong")
    assert verdict.state == "fail"
    assert re.search("what your code returned cannot be read, it is a (int|list|Tensor)", verdict.shown), verdict.shown


@needs_sandbox
@pytest.mark.slow
@pytest.mark.alone
def test_noise_costs_no_point_on_two_loaded_cores(trusted, sandbox):
    load = "import time\nend = time.monotonic() + 250\nwhile time.monotonic() < end: pass"
    burning = [subprocess.Popen([sys.executable, "-c", load]) for _ in range(2)]
    try:
        for n in range(10):
            record = grade_bytes(as_bytes(submission(extra=NOISE + f"\n# {n}")), trusted, sandbox, "ada")
            assert record.points == MAX_POINTS, (n, record.reason)
    finally:
        for process in burning:
            process.kill()
            process.wait()


@needs_sandbox
@pytest.mark.slow
def test_grading_twice_needs_no_more_memory_than_once(trusted, sandbox):
    import psutil

    for _ in range(3):
        grade_bytes(as_bytes(submission()), trusted, sandbox, "ada")
    process = psutil.Process()
    parent = inside(sandbox)[0][-1]
    before = process.memory_info().rss, parent.memory_info().rss
    for _ in range(10):
        grade_bytes(as_bytes(submission()), trusted, sandbox, "ada")
    after = process.memory_info().rss, parent.memory_info().rss
    assert all(b - a < 10 * 2**20 for a, b in zip(before, after))


@needs_sandbox
@pytest.mark.slow
def test_a_reference_that_fails_its_own_check_is_said_before_a_class_is_graded(trusted, sandbox, tmp_path):
    path = make_course(tmp_path)
    assert calibrated(read_trusted(path), path, tmp_path, TimeLimits()).runs_all is False
    path.write_text(path.read_text().replace("Hello, {name}!", "Bye, {name}!"))
    with pytest.raises(CalibrationError, match="does not pass its own checks: check-hello"):
        calibrated(read_trusted(path), path, tmp_path, TimeLimits())


def test_without_bubblewrap_grading_refuses_and_names_the_package(course):
    done = run_grade(course, env={**os.environ, "PATH": "/nowhere", "PYTHONPATH": str(ROOT)})
    assert done.returncode == 2
    assert "apt install bubblewrap" in done.stderr
    assert "--unsafe" in done.stderr
    assert not (course / "gradebook.db").exists()


@needs_sandbox
def test_a_lesson_that_nobody_handed_in_is_said_with_those_that_are_there(course):
    done = run_grade(course, "01_smal")
    assert done.returncode == 2
    assert done.stderr == f"nobody has handed in 01_smal; submitted/ has {ASSIGNMENT}\n"


def test_points_need_a_pass():
    with pytest.raises(ValueError, match="only a pass has points"):
        Verdict("check", "fail", 1.0, 1.0, "")
    with pytest.raises(ValueError, match="state must be one of"):
        Verdict("check", "fine", 0.0, 1.0, "")


def test_a_record_survives_its_file(tmp_path):
    record = Record("a", "ada", "n", "key", [Verdict("check", "pass", 1.0, 1.0, "right")], outputs={3: []})
    grading_records.save(tmp_path, record)
    assert grading_records.load(tmp_path, "a", "ada", "key") == record
    assert grading_records.load(tmp_path, "a", "ada", "other key") is None


def test_a_check_cell_holds_checks_and_nothing_else():
    (call,) = parse_calls("checks.lesson_02.ring(f, net.size, cases=[{'n': 1}])", "cell", hidden=True)
    assert (call.check, call.names, call.cases, call.hidden) == ("lesson_02.ring", ("f", "net.size"), [{"n": 1}], True)
    for bad in ("print(1)", "x = checks.lesson_02.ring(f)", "checks.lesson_02.ring(f())",
                "checks.lesson_02.ring(f, seed=1)", "checks.lesson_02.ring(f, cases=make())", "import os"):  # fmt: skip
        with pytest.raises(TrustedNotebookError, match="cell: "):
            parse_calls(bad, "cell", hidden=False)


def test_the_table_has_a_row_for_everybody():
    bad = Record("a", "bob", "n", "", [Verdict("check", "limit", 0.0, 5.0, "too long")])
    text = grade.table([Record("a", "ada", "n", "", [Verdict("check", "pass", 5.0, 5.0, "right")]), bad])
    assert [line.split()[0] for line in text.splitlines()] == ["student", "ada", "bob"]
    assert "check: too long" in text
