"""A notebook's function as a script: what it brings along, what it leaves behind, what it refuses."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hw_utils.hosts.export import NotExported, cells_of, export, script
from hw_utils.hosts.torchrun import _versions


def defined(text: str) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.py"
        path.write_text(text)
        return runpy.run_path(str(path), run_name="exported")


def test_a_function_brings_what_it_uses_and_nothing_else():
    text = script(
        [
            "import math\nimport random\nfrom os import path, sep",
            "SCALE = 2\nOTHER = 3",
            "def double(x):\n    return SCALE * x",
            "def worker(rank, world_size):\n    return double(rank) + math.floor(1.5)",
            "print('not this')",
        ],
        "worker",
    )
    assert defined(text)["worker"](3, 4) == 7
    for left_out in ("random", "OTHER", "print", "path"):
        assert left_out not in text


def test_of_functions_that_were_defined_twice_the_last_one_counts():
    text = script(["def f():\n    return 1", "def worker(r, n):\n    return f()", "def f():\n    return 2"], "worker")
    assert defined(text)["worker"](0, 1) == 2
    assert "return 1" not in text


def test_a_value_that_is_changed_later_is_exported_as_it_became():
    text = script(["table = {}", "table['a'] = 1", "def worker(r, n):\n    return table['a']"], "worker")
    assert defined(text)["worker"](0, 1) == 1


def test_a_local_variable_does_not_bring_a_global_of_the_same_name():
    text = script(["run = open('/nowhere')", "def worker(r, n):\n    run = 1\n    return run"], "worker")
    assert "/nowhere" not in text


def test_imports_inside_try_come_one_by_one():
    text = script(["try:\n    import json\n    import nowhere\nexcept ImportError:\n    1/0",
                   "def worker(r, n):\n    return json.dumps(r)"], "worker")  # fmt: skip
    assert defined(text)["worker"](3, 1) == "3"


def test_decorators_and_classes_come_along():
    text = script(["from dataclasses import dataclass", "@dataclass\nclass Pair:\n    a: int = 1",
                   "def worker(r, n):\n    return Pair().a"], "worker")  # fmt: skip
    assert defined(text)["worker"](0, 1) == 1


def test_arguments_are_expressions_in_the_notebooks_names():
    text = script(["x = 5", "def worker(r, n, a, b):\n    return a + b"], "worker", args="x, x + 1")
    assert "x = 5" in text
    assert "args=(x, x + 1,)" in text


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        (["x = 1"], "no cell of the notebook defines worker: no such function"),
        (["def worker(r, n):\n    return helper(r)"], r"worker \(cell 1\) uses helper, which no cell defines"),
        (["run = launch(1)", "def worker(r, n):\n    return run"], "run is made in cell 1 with launch"),
        (
            ["from hw_utils import launch\nrun = launch(1)\ndef worker(r, n):\n    return run"],
            "starts ranks of its own",
        ),
    ],
)
def test_what_cannot_leave_the_notebook_is_said(cells, says):
    with pytest.raises(NotExported, match=says):
        script(cells, "worker")


def test_a_cell_that_is_not_python_stops_nobody():
    text = script(["%matplotlib inline\ndef worker(r, n):\n    return r", "this is not python"], "worker")
    assert defined(text)["worker"](2, 4) == 2


def test_a_file_that_is_no_notebook_is_said(tmp_path):
    path = tmp_path / "x.ipynb"
    path.write_text("{}")
    with pytest.raises(NotExported, match="is not a notebook"):
        cells_of(path)


def notebook(tmp_path, *cells: str):
    path = tmp_path / "lesson.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": cell} for cell in cells]}))
    return path


def test_the_command_writes_a_script_and_says_how_to_start_it(tmp_path):
    source = notebook(tmp_path, "def worker(rank, world_size):\n    return rank")
    target = tmp_path / "train.py"
    done = subprocess.run(
        [sys.executable, "-m", "hw_utils", "export", str(source), "worker", "-o", str(target)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "torchrun --nnodes N" in done.stdout
    assert "torchrun.main(worker" in target.read_text()


def test_a_script_that_torchrun_did_not_start_says_so(tmp_path):
    source = notebook(tmp_path, "def worker(rank, world_size):\n    return rank")
    script_path = export(source, "worker", tmp_path / "train.py")
    done = subprocess.run([sys.executable, str(script_path)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "Start it on every host: torchrun" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="the fork server is Linux's")
@pytest.mark.parametrize(("environment", "has_server"), [({}, True), ({"TORCHELASTIC_RUN_ID": "none"}, False)])
def test_a_rank_that_torchrun_started_warms_up_no_process_for_ranks_of_its_own(environment, has_server):
    program = "import hw_utils, psutil; print(len(psutil.Process().children()))"
    clean = {name: value for name, value in os.environ.items() if name not in ("HW_UTILS_START", "HW_UTILS_PRELOAD")}
    done = subprocess.run([sys.executable, "-c", program], env=clean | environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{int(has_server)}\n", "")


def test_two_scripts_have_two_versions(tmp_path, monkeypatch):
    versions = set()
    for number in (1, 2):
        path = tmp_path / "train.py"
        path.write_text(f"print({number})")
        monkeypatch.setattr(sys, "argv", [str(path)])
        versions.add(_versions())
    assert len(versions) == 2
