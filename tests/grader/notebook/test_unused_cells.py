"""Cells that are left out when a class is graded: only those that nothing which counts can notice."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from hw_grader.notebook.restore import restore
from hw_grader.notebook.trusted_notebook import Call, Cell, TrustedNotebook, read_trusted
from hw_grader.notebook.unused_cells.pure_functions import PURE
from hw_grader.notebook.unused_cells.unused import MAX_CELLS, unused
from tests.grader.small_course import (
    SETUP,
    as_bytes,
    make_course,
    source_notebook,
    submission,
)

ROOT = Path(__file__).resolve().parents[3]
SOLUTION = {"grade": False, "grade_id": "ring", "locked": False, "solution": True, "schema_version": 3, "task": False}
LOCKED = {**SOLUTION, "grade_id": "setup", "locked": True, "solution": False}
RING = "def ring(rank, world_size):\n    return torch.ones(rank)"
REPORTS = "from hw_utils.hosts import training_report\ntraining_report.save('x', 1)"
PICTURE = "numbers = [1, 2]\nrun = simulate(ring, 4)\nplots.plot_space_time(run.trace)"


def left_out(released: list[str], submitted: list[str] | None = None, ring: str = RING) -> list[str]:
    """The submitted texts that need not run; set-up and the exercise `ring` come first, released cells after it."""
    cells = [Cell(0, "code", SETUP, "", LOCKED), Cell(1, "code", "def ring(rank, world_size):\n    pass", "", SOLUTION)]
    cells += [Cell(2 + n, "code", text, f"id-{n}") for n, text in enumerate(released)]
    check = Cell(90, "code", "checks.lesson_01.ring(ring)", "", {"grade_id": "check", "grade": True},
                 (Call("lesson_01.ring", ("ring",), None, False),))  # fmt: skip
    nodes = [nbformat.v4.new_code_cell(SETUP, metadata={"nbgrader": LOCKED})]
    nodes += [nbformat.v4.new_code_cell(ring, metadata={"nbgrader": SOLUTION})]
    nodes += [nbformat.v4.new_code_cell(text) for text in (released if submitted is None else submitted)]
    found = unused(nodes, TrustedNotebook("a", "n", (*cells, check), ""))
    assert not found & {0, 1}
    return [nodes[place].source for place in sorted(found)]


def test_an_unchanged_picture_that_nothing_uses_is_left_out():
    assert left_out([PICTURE]) == [PICTURE]


def test_of_many_cells_all_are_run():
    """Each of a chain of functions would be found to lead out of the notebook only after the next one was."""
    chain = [f"def f{k}():\n    return f{k + 1}()" for k in range(MAX_CELLS)]
    assert left_out([PICTURE], [PICTURE, *chain[:50]]) == [PICTURE]
    assert left_out([PICTURE], [PICTURE, *chain]) == []


def test_a_changed_cell_is_run():
    assert left_out([PICTURE], [PICTURE + " "]) == []
    assert left_out([PICTURE], [PICTURE.replace("4", "5")]) == []


def test_a_cell_is_run_if_the_answer_reads_a_name_of_it():
    assert left_out([PICTURE], ring="def ring(rank, world_size):\n    return numbers[rank]") == []
    assert left_out([PICTURE], ring="def ring(rank, world_size, of=numbers):\n    return of[rank]") == []
    assert left_out([PICTURE], ring="class ring:\n    of = numbers") == []
    assert left_out([PICTURE], ring="ring = lambda rank: (lambda: numbers)()[rank]") == []


def test_a_parameter_or_variable_of_the_same_name_is_not_the_cells():
    ring = "def ring(rank, numbers):\n    run = numbers[rank]\n    run += 1\n    return run"
    assert left_out([PICTURE], ring=ring) == [PICTURE]


@pytest.mark.parametrize("more", ["print(numbers)", "numbers.append(3)", "numbers[0] = 3", "numbers += [3]",
                                  "del numbers", "def f():\n    global numbers\n    numbers += [1]",
                                  "f'{numbers}'", "[n for n in numbers]", "print(run)"])  # fmt: skip
def test_a_cell_is_run_if_the_students_own_cell_uses_a_name_of_it(more):
    assert left_out([PICTURE], [PICTURE, more]) == []


def test_a_cell_is_run_for_another_one_that_must_run():
    given, drawn = "sizes = [1, 2]\nsmall = Network(latency_s=1.0)", "values = [simulate(ring, n) for n in sizes]"
    assert left_out([given, drawn]) == [given, drawn]
    assert left_out([given, drawn], [given, drawn, "print(values)"]) == []
    assert left_out([given, PICTURE], [given, PICTURE, "print(small)"]) == [PICTURE]


@pytest.mark.parametrize("more", [
    "globals()['numbers']", "eval('num' + 'bers')", "exec('x = 1')", "locals()", "vars()", "dir()", "_", "_3", "Out[3]",
    "__", "_i1", "get_ipython().user_ns", "import sys\nsys.modules['x']", "from sys import modules", "import __main__",
    "import importlib", "from os.path import *", "ring.__globals__", "import inspect\ninspect.stack()", "%time 1",
    "!ls", "setattr(plots, 'x', 1)", "plots.plot_space_time = print", "simulate.__kwdefaults__['echo'] = False",
    "torch.ones = None", "getattr(__builtins__, 'eval')", "x = '__main__'", "this is no python", "1 +", "#" * 30_000,
])  # fmt: skip
def test_everything_is_run_beside_a_cell_that_may_reach_any_name(more):
    assert left_out([PICTURE], [PICTURE, more]) == []


@pytest.mark.parametrize("more", ["x = 1", "run_2 = simulate(ring, 2)\nrun_2.results", "print(ring(1, 2))", "# w",
                                  "import os\nos.getcwd()", "m.eval()\nm.modules()\ntorch.stack([])"])  # fmt: skip
def test_an_ordinary_cell_of_the_students_changes_nothing(more):
    assert left_out([PICTURE], [PICTURE, more]) == [PICTURE]


@pytest.mark.parametrize("text", [
    "torch.manual_seed(0)", "torch.set_default_dtype(torch.float64)", "import os\nos.environ['X'] = '1'",
    "plt.rcParams['font.size'] = 3", "open('x', 'w').write('x')", REPORTS,
    "import random\nrandom.seed(1)", "torch.rand(3)", "import numpy as np\nnp.random.seed(0)", "ring.calls = 0",
    "import unknown_module", "x = compile('1', '', 'eval')", "checks.lesson_01.hello(ring)", "rc = plt.rcParams",
    "from hw_utils import *", "async def f(): pass\nawait f()", "plots.COLOURS = []", "unknown_name()",
])  # fmt: skip
def test_a_released_cell_with_effects_is_run(text):
    acts = "seen = ring(1, 2)"
    assert left_out([text, PICTURE], [text, PICTURE, acts]) in ([PICTURE], [])


PASSING = ["torch.manual_seed(0)", "x = torch.rand(3)", REPORTS,
           "net = torch.nn.Linear(2, 1)\ntorch.optim.SGD(net.parameters(), lr=1.0).step()",
           "done = torch.futures.Future()\ndone.set_result(3)",
           "from hw_utils import data\nimages = data.digits()"]  # fmt: skip
DEFINES = ["import random",
           "class Mine(torch.nn.Module):\n    limit = 3\n\n    def forward(self, x):\n        return x + 1",
           "limit: int = 3", "'A text.'", "calls = {'a': None}\nraise NotImplementedError()",
           "def f(x: torch.Tensor, of=dist.all_reduce) -> list[int]:\n    return f(of)",
           "@torch.no_grad()\ndef f(x):\n    return torch.rand(x)", "sizes = [1, (2, 3), {'a': -4}]",
           "@dataclass(frozen=True)\nclass Found:\n    losses: list[float]\n    best: int = 0",
           "import threading\nf = lambda x, n=3: limits.append(x)\nGUARD = threading.Lock()"]  # fmt: skip
ACTS = ["x = torch.rand(1)", "def f(x=torch.rand(1)):\n    return x", "f = lambda x=torch.rand(1): x",
        "class C:\n    x = torch.rand(1)",
        "@traced\ndef f(x):\n    return x", "for i in [1]:\n    pass", "del f", "print(limits)", "limits.append(1)",
        "class D(make()):\n    pass", "def f(x: make()):\n    return x", "print(unknown())",
        "i = (j := 3)", "@dataclass(frozen=ring())\nclass C:\n    x: int", "@dataclass\nclass C:\n    x: int = ring()",
        "limits.x = 3", "limits[0] = 3", "setattr(ring, 'x', 1)", "import os\nos.nice(1)"]  # fmt: skip
SHOWS = ["print(1)", "[i for i in [1]]", "assert ring", "1 if ring else 2", "f'{ring}'", "with ring:\n    pass",
         "print(torch.rand(1))", "print(sum(p.numel() for p in torch.nn.Linear(2, 1).parameters()))",
         "print('largest', max(ring(r, 2).sum() for r in range(2)))"]  # fmt: skip


@pytest.mark.parametrize("text", PASSING)
def test_a_training_is_left_out_if_what_runs_after_it_only_defines(text):
    assert left_out([text], [text, *DEFINES]) == [text]


@pytest.mark.parametrize("acts", ACTS)
def test_a_training_is_run_if_a_cell_after_it_does_anything(acts):
    for text in PASSING:
        assert left_out([text], [text, acts]) == []
        assert left_out([text], [text, *DEFINES, acts]) == []


@pytest.mark.parametrize("shows", SHOWS)
def test_a_training_is_left_out_if_a_cell_after_it_only_shows_something(shows):
    for text in PASSING:
        assert left_out([text], [text, *DEFINES, shows]) == [text]


def test_a_training_is_left_out_if_what_does_something_ran_before_it():
    for text in PASSING:
        assert left_out([text], ["y = torch.rand(1)", text, *DEFINES]) == [text]


@pytest.mark.parametrize("ring", [
    "ring = lambda rank, world_size: torch.ones(rank)",
    "import threading\nGUARD = threading.Lock()\ndef ring(rank, world_size):\n    with GUARD:\n        return rank",
    "STEP, SHAPE = 0.1, (2, 3)\nLARGE = -1\ndef ring(rank, world_size):\n    return torch.full((2,), LARGE)",
    "import functools\n@functools.lru_cache(maxsize=None)\ndef ring(rank, world_size):\n    return torch.ones(rank)",
    "def ring(rank, world_size):\n    parts = torch.zeros(4)\n    parts.view(-1)[:2] = rank\n    return parts",
    "class ring:\n    __slots__ = ('rank',)\n    axis = 1\n    def __init__(self, rank, n):\n        self.rank = rank",
    "def twice(f):\n    def g(*a):\n        f(*a)\n        return f(*a)\n    return g\n"
    "@twice\ndef ring(rank, world_size):\n    return torch.ones(rank)",
    "from dataclasses import dataclass, field\n"
    "@dataclass\nclass ring:\n    rank: int\n    kept: list = field(default_factory=list)",
    "def ring(rank, world_size):\n    it = iter([rank])\n    return torch.einsum('i->', torch.mm(next(it), rank))",
    "import numpy as np\ndef ring(rank, world_size):\n    return np.ceil(np.log2(world_size))",
    "class ring:\n    class Pass:\n        def __init__(self, k):\n            self.k = k\n"
    "    def __getitem__(self, k):\n        return ring.Pass(k)",
])  # fmt: skip
def test_what_students_write_in_other_ways_runs_no_picture(ring):
    assert left_out([PICTURE], ring=ring) == [PICTURE]


GONE = {"numpy.row_stack"}  # from numpy 2.5 on


def test_functions_that_are_called_pure_are_there_and_draw_no_random_numbers():
    import numpy
    import torch

    modules = {"torch": torch, "numpy": numpy}
    for path in sorted(PURE):
        module, _, name = path.partition(".")
        assert hasattr(modules[module], name) or path in GONE, path
        operation = getattr(torch.ops.aten, name, None) if module == "torch" else None
        for overload in operation.overloads() if operation is not None else ():
            assert "Generator" not in str(getattr(operation, overload)._schema), path


def test_a_harmless_cell_that_calls_what_passes_is_run_with_it():
    seeds, calls = "def seeds():\n    torch.manual_seed(0)", "seeds()"
    assert left_out([seeds, calls]) == [seeds, calls]
    assert calls not in left_out([seeds, calls], [seeds, calls, "x = torch.rand(1)"])
    ring = "def ring(rank, world_size):\n    torch.manual_seed(rank)"
    assert left_out(["print(ring(1, 2))"], ["print(ring(1, 2))", "x = torch.rand(1)"], ring=ring) == []


def test_a_cell_that_runs_for_its_imports_may_give_its_variables_to_one_that_does_not():
    given, drawn = "import statistics\nnumbers = [1, 2]", "numbers.append(3)\nprint(numbers)"
    uses = "def ring(rank, world_size):\n    return statistics.mean([rank])"
    assert left_out([given, drawn], ring=uses) == [drawn]
    assert left_out([given, drawn], ring=uses.replace("[rank]", "numbers")) == []
    assert left_out([given, drawn], [given, drawn, "print(numbers)"], ring=uses) == []


def test_a_caught_exception_has_its_name_in_its_handler_only():
    tries = "try:\n    ring(1, 2)\nexcept ValueError as error:\n    print(error)"
    assert left_out([tries], [tries, "def f():\n    return error"]) == [tries]
    assert left_out([tries + "\nerror = 3"], [tries + "\nerror = 3", "def f():\n    return error"]) == []


def test_a_released_cell_that_changes_a_students_value_is_run():
    value = "table = {}\nshared = table"
    for text in ("table[1] = 2", "table.update(a=1)", "list(map(table.get, [1]))", "t = table\nt.clear()",
                 "print(shared.popitem())", "for row in shared:\n    row.clear()"):  # fmt: skip
        assert left_out([text], [value, text]) == []


def test_a_picture_is_run_if_it_calls_an_answer_that_keeps_something():
    drawn = "print(ring(1, 2))"
    assert left_out([drawn]) == [drawn]
    for ring in ("seen = []\ndef ring(rank, world_size):\n    seen.append(rank)",
                 "def ring(rank, world_size):\n    global seen\n    seen = rank",
                 "def ring(rank, world_size, seen=[]):\n    seen.append(rank)",
                 "def ring(rank, world_size):\n    ring.calls = 1",
                 "class ring:\n    seen = []\n    def __init__(self, *a): self.seen.append(a)",
                 "def make():\n    seen = []\n    return lambda *a: seen.append(a)\nring = make()",
                 "def ring(rank, world_size, seen=shared):\n    seen.append(rank)\nshared = []",
                 "def ring(rank, world_size):\n    setattr(ring, 'calls', 1)",
                 "base = []\nclass ring(type('T', (), {'seen': base})):\n    pass",
                 "def ring(rank, world_size):\n    plots.seen = rank",
                 "def ring(rank, world_size):\n    import torch\n    torch.set_default_dtype(torch.float64)",
                 "def ring(rank, world_size):\n    import os\n    os.nice(1)\n    os = 3",
                 "def ring(rank, world_size):\n    import os\n    os.environ['X'] = '1'"):  # fmt: skip
        assert left_out([drawn], ring=ring) == [], ring


def test_a_picture_is_run_if_the_student_gave_its_function_another_meaning():
    assert left_out([PICTURE], [PICTURE, "def simulate(*a): table.append(a)"]) == []
    assert left_out([PICTURE], ["simulate = print", PICTURE]) == []


def test_what_a_submission_claims_about_a_cell_has_no_say(tmp_path):
    """The same id, another text; the same text, another kind; forged marks: only the text and the kind count."""
    trusted = with_picture(tmp_path, PICTURE_01)
    notebook = submission(extra=PICTURE_01)
    (picture,) = (cell for cell in notebook.cells if cell.source == PICTURE_01)
    for claim in ({"id": "picture", "source": PICTURE_01 + "\nfit_link = None"}, {"cell_type": "markdown"},
                  {"cell_type": "raw"}, {"metadata": {"nbgrader": {"grade_id": "mine", "locked": True}}}):  # fmt: skip
        changed = nbformat.from_dict({**notebook, "cells": [
            {**c, **claim} if c is picture else c for c in notebook.cells]})  # fmt: skip
        cells = restore(as_bytes(changed), trusted).cells
        found = [cells[n].source for n in unused(cells, trusted)]
        assert found == ([PICTURE_01] if "metadata" in claim else []), claim
    cells = restore(as_bytes(notebook), trusted).cells
    assert [cells[n].source for n in unused(cells, trusted)] == [PICTURE_01]
    changed = nbformat.from_dict({**notebook, "cells": [
        c if c is not picture else {**c, "metadata": {"hw_grader": {"left_out": True}, "tags": ["skip-execution"]},
                                    "source": "# of mine\n" + PICTURE_01} for c in notebook.cells]})  # fmt: skip
    assert unused(restore(as_bytes(changed), trusted).cells, trusted) == frozenset()


PICTURE_01 = "run = simulate(ping_pong, 2, args=(3,), compute='free')\nplots.plot_space_time(run.trace)"


def with_picture(root: Path, *texts: str) -> TrustedNotebook:
    """The small course with released cells that hold these texts, before its first check."""
    path = make_course(root)
    notebook = source_notebook()
    notebook.cells[3:3] = [nbformat.v4.new_code_cell(t, id=f"picture-{n}") for n, t in enumerate(texts)]
    nbformat.write(notebook, path)
    return read_trusted(path)


@pytest.mark.parametrize(
    ("lesson", "n_left_out"),
    [
        ("01_hello_ranks", 12),
        ("02_all_reduce", 18),
        ("03_distributed_sgd", 16),
        ("04_data_parallel", 17),
        ("05_scaling", 11),
        ("06_parallel_simulator", 16),
        ("07_who_holds_what", 10),
        ("08_pipelines", 10),
    ],
)
def test_the_solution_of_a_lesson_leaves_its_pictures_out(lesson, n_left_out):
    (path,) = (ROOT / "solutions" / lesson).glob("*.ipynb")
    trusted = read_trusted(path)
    assert len(unused(restore(path.read_bytes(), trusted).cells, trusted)) >= n_left_out
