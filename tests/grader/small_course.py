"""A course with one short assignment, for tests of grading: lesson 01's checks on four exercises."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat

SETUP = (
    "import matplotlib.pyplot as plt\nimport torch\nimport torch.distributed as dist\n"
    "from hw_utils import Network, checks, launch, plots, simulate"
)
EXERCISES = {  # name -> (signature, solution, hidden cases, points)
    "hello": (
        "def hello(rank, world_size, name):\n",
        '    print(f"Rank {rank}: Hello, {name}!")',
        [{"world_size": 3, "name": "Barbara"}],
        5,
    ),
    "predictions": (
        "predictions = {}\n",
        "predictions = dict(both_send_first='hangs', one_sends_first='finishes', wait_comes_last='finishes',\n"
        "                   changed_too_early='fails', one_recv_too_many='hangs')",
        [],
        1,
    ),
    "ping_pong": (
        "def ping_pong(rank, world_size, n_rounds):\n",
        "    ball = torch.zeros(1)\n    for _ in range(n_rounds):\n        if rank == 0:\n"
        "            ball += 1\n            dist.send(ball, 1)\n            dist.recv(ball, 1)\n"
        "        elif rank == 1:\n            dist.recv(ball, 0)\n"
        "            ball += 1\n            dist.send(ball, 0)\n"
        "    return ball.item()",
        [{"world_size": 3, "n_rounds": 7}],
        3,
    ),
    "fit_link": (
        "def fit_link(sizes_bytes, seconds):\n",
        "    t = torch.tensor(seconds, dtype=torch.float64)\n"
        "    s = torch.tensor(sizes_bytes, dtype=torch.float64)\n"
        "    a = torch.stack([1 / t, s / t], dim=1)\n"
        "    latency_s, slope = torch.linalg.lstsq(a, torch.ones(len(t), 1, dtype=torch.float64)).solution\n"
        "    return latency_s.item(), 1 / slope.item()",
        [{"latency_s": 0.25, "bandwidth_Bps": 1000.0, "noise": 0.0}],
        2,
    ),
}
MAX_POINTS = sum(points for *_, points in EXERCISES.values())
ASSIGNMENT, NOTEBOOK = "01_small", "small"


def _marks(grade_id: str, *, grade: bool = False, solution: bool = False, points: float | None = None) -> dict:
    marks = {"grade": grade, "grade_id": grade_id, "locked": not solution, "schema_version": 3, "solution": solution,
             "task": False, "cell_type": "code"}  # fmt: skip
    return {**marks, "points": points} if grade else marks


def _cell(source: str, marks: dict | None = None) -> dict:
    cell = nbformat.v4.new_code_cell(source, metadata={"nbgrader": marks} if marks else {})
    if marks:
        cell["id"] = marks["grade_id"]
    return cell


def _check(name: str, hidden: list[dict]) -> str:
    text = f"checks.lesson_01.{name}({name})"
    if hidden:
        text += f"\n### BEGIN HIDDEN TESTS\nchecks.lesson_01.{name}({name}, cases={hidden!r})\n### END HIDDEN TESTS"
    return text


def source_notebook() -> nbformat.NotebookNode:
    """The instructor's notebook."""
    cells = [_cell(SETUP, _marks("setup")), nbformat.v4.new_markdown_cell("# Small", id="title")]
    for name, (signature, solution, hidden, points) in EXERCISES.items():
        indent = "    " if signature.startswith("def") else ""
        body = f"{signature}{indent}### BEGIN SOLUTION\n{solution}\n{indent}### END SOLUTION"
        cells += [
            nbformat.v4.new_markdown_cell(f"## Exercise {name}", id=f"text-{name}"),
            _cell(body, _marks(name, solution=True)),
            _cell(_check(name, hidden), _marks(f"check-{name}", grade=True, points=points)),
        ]
    return nbformat.v4.new_notebook(cells=cells)


def submission(answers: dict[str, str] | None = None, extra: str = "", before: str = "") -> nbformat.NotebookNode:
    """A student's notebook: the given sources in the exercise cells, the right ones elsewhere.

    `extra` cells, separated by `# %%`, come after the exercises and before the checks; `before` comes first.
    """
    answers = answers or {}
    cells = [_cell(SETUP, _marks("setup"))]
    cells += [_cell(text) for text in before.split("# %%\n") if text.strip()]
    for name, (signature, solution, _, _) in EXERCISES.items():
        right = signature + solution if signature.startswith("def") else solution
        cells.append(_cell(answers.get(name, right), _marks(name, solution=True)))
    cells += [_cell(text) for text in extra.split("# %%\n") if text.strip()]
    for name, (_, _, _, points) in EXERCISES.items():
        cells.append(_cell(f"checks.lesson_01.{name}({name})", _marks(f"check-{name}", grade=True, points=points)))
    return nbformat.v4.new_notebook(cells=cells)


WRONG = {
    "hello": "def hello(rank, world_size, name):\n    print('hello')",
    "predictions": "predictions = {}",
    "ping_pong": "def ping_pong(rank, world_size, n_rounds):\n    return 0.0",
    "fit_link": "def fit_link(sizes_bytes, seconds):\n    return 0.0, 0.0",
}


def as_bytes(notebook: nbformat.NotebookNode) -> bytes:
    """The notebook as a file."""
    return json.dumps(notebook).encode()


def make_course(root: Path) -> Path:
    """A course folder with this one assignment; gives the trusted notebook's path."""
    path = root / "solutions" / ASSIGNMENT / f"{NOTEBOOK}.ipynb"
    path.parent.mkdir(parents=True)
    nbformat.write(source_notebook(), path)
    config = Path(__file__).resolve().parents[2] / "nbgrader_config.py"
    (root / "nbgrader_config.py").write_text(config.read_text())
    return path


def hand_in(root: Path, student: str, data: bytes, name: str = f"{NOTEBOOK}.ipynb") -> Path:
    """Puts a submission into the course."""
    folder = root / "submitted" / student / ASSIGNMENT
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)
    return folder
