"""Colab's case: an environment with torch and no kit, in which the set-up cell installs the wheel by itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.lesson import ROOT
from tools.publish import publish

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# What Colab brings; the set-up cell has to fetch the rest.
THERE = ["torch", "torchvision", "matplotlib", "numpy", "scikit-learn", "ipywidgets", "psutil", "tqdm", "ipykernel"]
COLAB = "import sys, types\nsys.modules['google.colab'] = types.ModuleType('google.colab')"
RIGHT = 'def hello(rank, world_size, name):\n    print(f"Rank {rank}: Hello, {name}!")\n'
WRONG = 'def hello(rank, world_size, name):\n    print(f"Rank {rank + 1}: Hello, {name}!")\n'
HANGS = "def hello(rank, world_size, name):\n    dist.recv(torch.zeros(1), (rank + 1) % world_size)\n"
REPOSITORY = "https://git.example.org/a-school/its-course"


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def students(tmp_path_factory):
    """The published course as a git repository of its own."""
    folder = tmp_path_factory.mktemp("bare") / "students"
    publish(folder, address=REPOSITORY)
    me = ["-c", "user.name=course", "-c", "user.email=course@localhost"]
    for command in (["init", "-q"], ["add", "."], [*me, "commit", "-qm", "The course"]):
        run("git", *command, cwd=folder)
    return folder


def needed(names: list[str]) -> dict[str, Distribution]:
    """The packages that are installed here under these names, and all that they need."""
    found: dict[str, Distribution] = {}
    todo = [*names]
    while todo:
        name = canonicalize_name(todo.pop())
        if name not in found:
            found[name] = distribution(name)
            asked = map(Requirement, found[name].requires or [])
            todo += [r.name for r in asked if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found


def put_into(libraries: Path, package: Distribution) -> None:
    """Every file that pip wrote for the package, but its commands and data: a link where there can be one."""
    for file in package.files:
        here, there = Path(package.locate_file(file)), libraries / file
        if ".." in file.parts or not here.exists():
            continue
        there.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(here, there)
        except OSError:
            shutil.copy2(here, there)


@pytest.fixture(scope="module")
def bare(tmp_path_factory, students):
    """The kernel of a new environment with pip and `THERE` in it, for which the course's address is `students`."""
    home = tmp_path_factory.mktemp("colab")
    venv.create(home / "env")
    python = home / "env" / "bin" / "python"
    libraries = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    for package in needed(["pip", *THERE]).values():  # the very files of the environment that runs the tests
        put_into(libraries, package)
    run(python, "-m", "pip", "check", "--disable-pip-version-check")
    spec = home / "data" / "kernels" / "bare"
    spec.mkdir(parents=True)
    argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "bare", "language": "python"}))
    redirect = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.{students.as_uri()}.insteadOf"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**redirect, "GIT_CONFIG_VALUE_0": REPOSITORY, "JUPYTER_PATH": str(home / "data")}.items():
            patch.setenv(name, value)
        patch.delenv("PYTHONPATH", raising=False)
        yield python


def shown(cell) -> str:
    return "\n".join(o.get("text", "") + "\n".join(o.get("traceback", [])) for o in cell.outputs)


def executed(sources: list[str], folder: Path, *, allow_errors: bool):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    client = NotebookClient(notebook, kernel_name="bare", timeout=600, allow_errors=allow_errors)
    client.resources = {"metadata": {"path": str(folder)}}
    client.execute()
    return notebook


def test_the_set_up_cell_installs_the_kit_where_it_is_missing(bare, students, tmp_path):
    missing = subprocess.run([bare, "-c", "import hw_utils"], cwd=tmp_path, capture_output=True, text=True)
    assert "No module named 'hw_utils'" in missing.stderr
    released = nbformat.read(students / "notebooks" / "01_hello_ranks" / "hello_ranks.ipynb", 4)
    code = [c.source for c in released.cells if c.cell_type == "code"]
    (check,) = (source for source in code if source.startswith("checks.lesson_01.hello("))
    told = executed(code[:1], tmp_path, allow_errors=True)  # not on Colab: says what to run
    assert f"%pip install git+{REPOSITORY}" in shown(told.cells[0])

    (stub,) = (source for source in code if source.startswith("def hello("))
    answers = [part for answer in (stub, RIGHT, WRONG, HANGS) for part in (answer, check)]
    done = executed([COLAB, code[0], code[0], *answers], tmp_path, allow_errors=True)
    assert [shown(c) for c in done.cells[:3]] == ["", "", ""]
    verdicts = [shown(c) for c in done.cells[4::2]]
    assert "hello is not written yet" in verdicts[0]
    assert verdicts[1].startswith("ok: every rank says hello")
    assert "ranks count from 0" in verdicts[2]
    assert "no rank can go on" in verdicts[3]
    assert all("hw_utils/" not in text for text in verdicts)

    assert run(bare, "-c", "import importlib.util as u; print(u.find_spec('nbgrader'))").strip() == "None"
    assert "All is well" in run(bare, "-m", "hw_utils", "doctor", cwd=tmp_path)


def test_the_whole_solution_runs_without_nbgrader(bare, students, tmp_path):
    """From a folder that holds nothing of the kit: students' set-up cell installs it if the test above has not."""
    released = nbformat.read(students / "notebooks" / "01_hello_ranks" / "hello_ranks.ipynb", 4)
    solution = nbformat.read(ROOT / "solutions" / "01_hello_ranks" / "hello_ranks.ipynb", 4)
    set_up = next(c.source for c in released.cells if c.cell_type == "code")
    code = [c.source for c in solution.cells if c.cell_type == "code"]
    done = executed([COLAB, set_up, *code], tmp_path, allow_errors=False)
    assert str(ROOT) not in run(bare, "-c", "import hw_utils; print(hw_utils.__file__)", cwd=tmp_path)
    checks = [c for c in done.cells if c.source.startswith("checks.lesson_01.")]
    assert checks
    assert all("ok:" in shown(c) for c in checks)
