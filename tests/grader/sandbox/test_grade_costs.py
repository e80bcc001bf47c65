"""What grading holds does not grow over a class, and its processes import what they need and no more."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hw_grader.course import batch
from hw_grader.course.grading import grade_bytes
from hw_grader.course.grading_records import Record, Verdict
from hw_grader.notebook import run_cells
from hw_grader.notebook.submission import Submission
from hw_grader.notebook.time_limits import TimeLimits
from hw_grader.notebook.trusted_notebook import TrustedNotebook, read_trusted
from hw_grader.notebook.unused_cells.cell_names import facts_of
from hw_grader.sandbox.sandbox import Sandbox
from tests.grader.in_sandbox import needs_sandbox
from tests.grader.small_course import MAX_POINTS, as_bytes, make_course, submission

ROOT = Path(__file__).resolve().parents[3]
SOME = 100  # objects; what is held for each submission would be thousands


def n_objects() -> int:
    """Those that this process holds, but for the analysis of cells: the last 100 texts are kept."""
    facts_of.cache_clear()
    gc.collect()
    return len(gc.get_objects())


def graded_at_once(data: bytes, trusted: TrustedNotebook, student: str, times: TimeLimits, digest: str) -> str:
    """Stands for a worker's task: a record with outputs."""
    verdicts = [Verdict("check", "pass", 1.0, 1.0, "right")]
    return Record("a", student, "n", "key", verdicts, outputs={0: [{"text": "x" * 1000}]}).to_json()


def kept_of_itself(dask_worker) -> dict[str, int]:
    """What a worker has written down about its own time."""
    return {"profile": len(dask_worker.profile_history), "monitor": dask_worker.monitor.maxlen}


@pytest.mark.slow
def test_the_grader_and_its_workers_hold_no_more_after_600_submissions_than_after_300(monkeypatch):
    monkeypatch.setattr(batch, "grade_task", graded_at_once)
    handed_in = (Submission(f"student{n}", "a", b"x" * 10_000) for n in range(620))
    here, there = [], []
    with batch.cluster("", 2) as client:
        for n, (_, record) in enumerate(
            batch.grade_all(client, handed_in, TrustedNotebook("a", "n", (), ""), TimeLimits())
        ):
            assert record.points == 1
            if n in (300, 310, 320, 590, 600, 610):  # the least of three: some submissions are on their way at each
                while any(client.processing().values()):
                    pass  # the scheduler is in this process: what it holds for a task at work is more or less
                there.append(sum(client.run(n_objects).values()))
                here.append(n_objects())
        kept = client.run(kept_of_itself)
        monitor = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.monitor.maxlen)
    for counts in (here, there):
        assert min(counts[3:]) - min(counts[:3]) < 3 * SOME, counts
    assert {(k["profile"], k["monitor"] < 100) for k in kept.values()} == {(0, True)}
    assert monitor < 100


@needs_sandbox
@pytest.mark.slow
def test_a_worker_holds_no_more_after_eight_submissions_than_after_three(tmp_path):
    trusted = read_trusted(make_course(tmp_path))
    counts = []
    with Sandbox() as sandbox:
        for n in range(9):
            own = as_bytes(submission(extra=f"mine = {n}"))
            assert grade_bytes(own, trusted, sandbox, f"student{n}", TimeLimits()).points == MAX_POINTS
            counts.append((n_objects(), len(os.listdir("/proc/self/fd"))))
    assert counts[8][0] - counts[3][0] < SOME, counts
    assert counts[8][1] == counts[3][1], counts


def test_a_process_that_grades_compiles_no_grammar_and_imports_no_torch():
    heavy = "('rfc3987_syntax.syntax_helpers', 'lark', 'torch', 'nbgrader', 'matplotlib')"
    program = (
        f"import sys, hw_grader.course.batch, distributed\nprint(*[name for name in {heavy} if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stdout + done.stderr


SHOWS_MUCH = "# %%\nfrom IPython.display import display\nfor k in range(90):\n    display(chr(0x1F600) * 1000)\n"
HOLDS_MUCH = """
import os
held = [os.urandom(2**20) for _ in range({mib})]
def {name}(*a, **k):
    return held
"""


@needs_sandbox
@pytest.mark.slow
def test_what_one_submission_shows_and_holds_is_bounded_for_who_grades_the_class(tmp_path, monkeypatch):
    trusted = read_trusted(make_course(tmp_path))
    monkeypatch.setattr(run_cells, "MAX_OUTPUT_BYTES", 2_000_000)
    monkeypatch.setattr(run_cells, "MAX_ANSWER_BYTES", 40 * 2**20)
    large = {name: HOLDS_MUCH.format(mib=30, name=name) for name in ("hello", "ping_pong")}
    with Sandbox() as sandbox:
        shows = grade_bytes(as_bytes(submission(extra=SHOWS_MUCH * 4)), trusted, sandbox, "ada", TimeLimits())
        holds = grade_bytes(as_bytes(submission(large)), trusted, sandbox, "bob", TimeLimits())
    assert shows.points == MAX_POINTS
    assert 1_000_000 < len(shows.to_json()) < 2_100_000
    assert any("show more than 2,000,000 bytes" in note for note in shows.notes)
    assert holds.state == "limit"
    assert "the answers hold more than 40 MiB together" in str([v.reason for v in holds.verdicts])
