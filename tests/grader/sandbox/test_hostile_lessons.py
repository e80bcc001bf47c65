"""Submissions to lessons 02 to 08 that cheat where answers make objects, models and threads: none gains a point."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import nbformat
import pytest

from hw_grader.course.grading import grade_bytes
from hw_grader.notebook.time_limits import TimeLimits
from hw_grader.notebook.trusted_notebook import TrustedNotebook, read_trusted
from hw_grader.sandbox.sandbox import SHARED
from tests.grader.in_sandbox import needs_sandbox

pytestmark = [
    needs_sandbox,
    pytest.mark.slow,
]
HERE = Path(__file__).resolve().parent
SOLUTIONS = HERE.parents[2] / "solutions"
HOSTILE = sorted((HERE.parent / "hostile" / "lessons").rglob("*.py"))
BODIES = HERE.parent / "hostile" / "bodies"  # what several attacks have in common: `# body: its name`
IMPORTS = (
    "import threading, time\nimport torch\nimport torch.distributed as dist\nfrom torch import nn\n"
    "from torch.nn.functional import mse_loss\n"
)
TIMES = TimeLimits(cell_s=20, case_s=40, total_s=300)


@lru_cache
def release_of(lesson: str) -> TrustedNotebook:
    (path,) = SOLUTIONS.glob(f"{lesson}_*/*.ipynb")
    return read_trusted(path)


def with_checks(lesson: str, names: list[str]) -> TrustedNotebook:
    """The lesson's set-up and the checks named."""
    whole = release_of(lesson)
    kept = [c for c in whole.cells if c.grade_id in {"setup", *(f"check-{name}" for name in names)}]
    assert sum(c.is_check for c in kept) == len(names), [c.grade_id for c in whole.checks]
    return replace(whole, cells=tuple(replace(c, place=n) for n, c in enumerate(kept)))


def handed_in(trusted: TrustedNotebook, text: str) -> bytes:
    """A notebook of the set-up, one cell with the attack, and the checks; every answer that is asked for is defined."""
    wanted = {name.split(".")[0] for cell in trusted.checks for call in cell.calls for name in call.names}
    if body := re.search(r"^# body: (\w+)$", text, re.M):
        text += (BODIES / f"{body[1]}.py").read_text()
    found = re.search(r"^EXERCISES_ARE = (\w+)$", text, re.M)
    if found:
        text += "".join(f"\n{name} = {found[1]}" for name in sorted(wanted))
    defined = {n.name for n in ast.parse(text).body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    targets = [t for n in ast.parse(text).body if isinstance(n, ast.Assign) for t in n.targets]
    defined |= {t.id for t in targets if isinstance(t, ast.Name)}
    assert wanted <= defined, wanted - defined
    cells = [nbformat.v4.new_code_cell(IMPORTS + text)]
    for cell in trusted.cells:
        node = nbformat.v4.new_code_cell(cell.source, metadata={"nbgrader": cell.marks} if cell.marks else {})
        cells.insert(0 if not cell.is_check else len(cells), node)
    return json.dumps(nbformat.v4.new_notebook(cells=cells)).encode()


def test_every_mechanism_that_was_found_is_here():
    assert len(HOSTILE) >= 133


@pytest.mark.parametrize("path", HOSTILE, ids=lambda path: path.stem)
def test_an_attack_on_a_lesson_gains_nothing(path):
    text = path.read_text()
    lesson, *names = re.search(r"^# lesson: (.*)$", text, re.M)[1].split()
    trusted = with_checks(lesson, names)
    record = grade_bytes(handed_in(trusted, text), trusted, SHARED.get(), "mallory", TIMES)
    said = [(v.grade_id, v.state, v.reason, v.detail[:300]) for v in record.verdicts]
    assert record.points == 0, said
    assert {v.state for v in record.verdicts} <= {"fail", "crashed", "limit", "tampered"}, said
    assert len(said) == len(names)
    # A module that a jail lacks is one of its walls; a name that nobody has is an attack that was not run.
    assert not re.search(r"\bNameError\b|\bSyntaxError\b|cannot import name", str(said)), said


RIGHT = """def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        parts = [(model(x), y) for x, y in loader]
    scores, y = torch.cat([s for s, _ in parts]), torch.cat([y for _, y in parts])
    return nn.functional.cross_entropy(scores, y).item(), (scores.argmax(1) == y).float().mean().item()
"""


def test_a_right_answer_handed_in_the_same_way_has_its_points():
    trusted = with_checks("04", ["evaluate"])
    record = grade_bytes(handed_in(trusted, RIGHT), trusted, SHARED.get(), "ada", TIMES)
    assert record.points == trusted.max_points, record.reason


def test_a_right_answer_beside_large_data_of_its_own_keeps_no_more_than_it_should():
    (path,) = SOLUTIONS.glob("07_*/*.ipynb")
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    last = next(n for n, cell in enumerate(cells) if "\nclass ShardedAdam" in f"\n{cell.source}")
    right = "\n".join(
        c.source for c in cells[: last + 1] if re.search(r"^(def|class) (flat|ShardedAdam)", c.source, re.M)
    )
    kept = "self.beside = LARGE[0].item()\n        self.parameters = "
    assert "self.parameters = " in right
    text = f"LARGE = torch.ones(3_000_000, dtype=torch.float64)\n{right.replace('self.parameters = ', kept, 1)}"
    trusted = with_checks("07", ["sharded_adam"])
    record = grade_bytes(handed_in(trusted, text), trusted, SHARED.get(), "ada", TIMES)
    assert record.points == trusted.max_points, [v.reason for v in record.verdicts]
