"""Submissions that cheat, harm or hang: none scores above its honest value, and none leaves anything behind."""

from __future__ import annotations

import os
import re
import socket
import time
from pathlib import Path

import nbformat
import pytest

from hw_grader.course.grading import grade_bytes
from hw_grader.course.trusted_verdict_step import write_verdicts
from hw_grader.driving.judge_client import judge_of
from hw_grader.notebook.restore import restore
from hw_grader.notebook.time_limits import TimeLimits
from hw_grader.notebook.trusted_notebook import read_trusted
from hw_grader.report import _said
from hw_grader.sandbox.lockdown import Limits
from hw_grader.sandbox.sandbox import Sandbox
from tests.grader.in_sandbox import inside, needs_sandbox
from tests.grader.small_course import MAX_POINTS, WRONG, as_bytes, make_course, submission

pytestmark = [
    needs_sandbox,
    pytest.mark.slow,
]
_HERE = Path(__file__).parents[1] / "hostile"
HOSTILE = sorted({*_HERE.rglob("*.py")} - {*_HERE.glob("lessons/**/*.py"), *_HERE.glob("bodies/*.py")})
TIMES = TimeLimits(cell_s=5, case_s=6, total_s=60)
LIMITS = Limits(memory_bytes=2 * 2**30, scratch_bytes=256 * 2**20, processes=256)


class Place:
    """A course with secrets, a server that nobody may reach, and a warm sandbox."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.trusted = read_trusted(make_course(root))
        (root / "solutions" / "secret.txt").write_text("secret")
        (root / "gradebook.db").write_text("points")
        (root / "submitted" / "other").mkdir(parents=True)
        (root / "submitted" / "other" / "secret.txt").write_text("secret")
        root.chmod(0o755)
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.settimeout(0)
        self.port = self.server.getsockname()[1]
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract.bind(f"\0grader-{self.port}")
        self.abstract.listen()
        os.environ["SECRET_OF_THE_GRADER"] = "secret"
        self.sandbox = Sandbox(LIMITS)
        self.before = self.files()

    def files(self) -> dict[str, int]:
        return {str(p): p.stat().st_size for p in self.root.rglob("*")}

    def fill_in(self, text: str) -> str:
        return text.replace("COURSE", str(self.root)).replace("PORT", str(self.port))

    def processes(self) -> set[int]:
        """Those inside the sandbox but bubblewrap itself, the warm parents and the judge."""
        judge_of(self.sandbox).end()
        return {p.pid for p in inside(self.sandbox)[1]}

    def close(self) -> None:
        self.sandbox.close()
        self.server.close()
        self.abstract.close()
        os.environ.pop("SECRET_OF_THE_GRADER")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = Place(tmp_path_factory.mktemp("course"))
    yield place
    place.close()


def expected_states(text: str) -> set[str]:
    return set(re.search(r"^# expects: (.*)$", text, re.M)[1].split())


def test_there_are_at_least_forty_hostile_submissions():
    assert len(HOSTILE) >= 40


@pytest.mark.parametrize("path", HOSTILE, ids=lambda path: path.stem)
def test_a_hostile_submission_gains_nothing_and_leaves_nothing(place, path):
    text = path.read_text(encoding="utf-8")
    data = as_bytes(submission(WRONG, extra=place.fill_in(text.split("\n", 2)[2])))
    started = time.monotonic()
    record = grade_bytes(data, place.trusted, place.sandbox, "mallory", TIMES)
    seconds = time.monotonic() - started
    said = [(v.grade_id, v.state, v.reason) for v in record.verdicts]
    assert record.points == 0, said
    assert record.state in expected_states(text), said
    assert seconds < 2 * TIMES.total_s, said  # no hang; how long ending it takes is up to what else the machine does
    assert place.processes() == set()
    assert place.files() == place.before
    with pytest.raises(BlockingIOError):
        place.server.accept()
    assert not Path("/tmp/trap").exists()


def test_after_all_of_them_a_right_answer_has_all_its_points(place):
    record = grade_bytes(as_bytes(submission()), place.trusted, place.sandbox, "ada", TIMES)
    assert record.points == MAX_POINTS, record.reason


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("input()", "EOFError"),
        ("raise ConnectionResetError('peer')", "peer"),
        ("raise BrokenPipeError('pipe')", "pipe"),
    ],
)
def test_an_error_that_a_line_could_have_made_is_the_answers_own(place, line, named):
    answer = f"def ping_pong(rank, world_size, n_rounds):\n    {line}"  # as a notebook keeps it: no line end
    record = grade_bytes(as_bytes(submission({"ping_pong": answer})), place.trusted, place.sandbox, "ada", TIMES)
    verdict = next(v for v in record.verdicts if v.grade_id == "check-ping_pong")
    assert verdict.state == "fail", verdict
    assert f", line 2\n        {line}" in verdict.detail + verdict.shown + verdict.reason, verdict
    assert named in verdict.reason, verdict
    assert "line 2" in verdict.detail + verdict.shown + verdict.reason, verdict
    assert "answer_proxy" not in verdict.detail + verdict.shown, verdict  # the student's own lines, and no other


FORGES = "ZeroDivisionError('0\\n  likely cause: ask eve')"


@pytest.mark.parametrize("line", [f"raise {FORGES}", f"print({FORGES})", f"return str({FORGES})"])
def test_a_cause_in_the_report_is_a_checks_own(place, tmp_path, line):
    answer = f"def hello(rank, world_size, name):\n    {line}\n"
    record = grade_bytes(as_bytes(submission({"hello": answer})), place.trusted, place.sandbox, "eve", TIMES)
    notebook = restore(as_bytes(submission({"hello": answer})), place.trusted)
    for cell in notebook.cells:
        cell.metadata["hw_grader"] = {"cause": "ask eve"}
    write_verdicts(notebook, record, place.trusted)
    nbformat.write(notebook, tmp_path / "x.ipynb")
    said, _, _ = _said(tmp_path / "x.ipynb")
    assert record.points == MAX_POINTS - 5
    assert "ask eve" not in str([cause for _, cause in said.values()])
    assert "likely cause: ask eve" not in str(said)


def test_after_the_submissions_time_no_cell_is_run_and_it_is_said(place):
    times = TimeLimits(cell_s=5, case_s=6, total_s=0)
    record = grade_bytes(as_bytes(submission(extra="print('run')")), place.trusted, place.sandbox, "ada", times)
    assert record.points == 0
    assert [note for note in record.notes if "not run: the submission's 0 s were over" in note] != []
    assert {output["text"] for outputs in record.outputs.values() for output in outputs} == {
        "not run: the submission's 0 s were over\n"
    }


def test_answers_that_are_long_in_coming_have_some_seconds_together_after_the_submissions_time(place, monkeypatch):
    monkeypatch.setattr("hw_grader.notebook.run_cells.INTERRUPT_S", 4.0)
    slow = "import time\nclass Slow:\n    def __reduce__(self):\n        time.sleep(2)\n        return int, ()\n"
    answers = {name: f"{slow}{name} = Slow()" for name in WRONG}
    times = TimeLimits(cell_s=5, case_s=6, total_s=6)
    record = grade_bytes(as_bytes(submission(answers)), place.trusted, place.sandbox, "mallory", times)
    assert record.points == 0
    assert [v for v in record.verdicts if "handing over" in v.reason] != [], record.verdicts


LEAVES = """def hello(rank, world_size, name):
    import os, sys, time
    for _ in range(4):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                while True: pass
            os._exit(0)
    torch.zeros = torch.stack = dist.send = print
    time.perf_counter = lambda: 0.0
    sys.modules["hw_utils"] = None
    print("left")
"""
LOOKS = """def hello(rank, world_size, name):
    import os
    print("processes", [int(name) for name in os.listdir("/proc") if name.isdigit()], os.getpid(), os.getppid())
"""


def test_what_one_check_leaves_behind_costs_the_next_ones_nothing(place):
    record = grade_bytes(as_bytes(submission({"hello": LEAVES})), place.trusted, place.sandbox, "mallory", TIMES)
    assert {v.grade_id: v.state for v in record.verdicts}.pop("check-hello") == "fail"
    assert record.points == MAX_POINTS - 5, record.reason
    assert place.processes() == set()


def test_an_answer_sees_no_process_but_its_own(place):
    record = grade_bytes(as_bytes(submission({"hello": LOOKS})), place.trusted, place.sandbox, "mallory", TIMES)
    assert "processes [1] 1 0" in record.verdicts[0].detail
    assert record.points == MAX_POINTS - 5, record.reason
