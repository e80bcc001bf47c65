"""The set-up cell of a released notebook: what it says where something is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tests.building.from_lessons.tiny_course import RELEASE, cell
from tools.notebook import course_address, setup_source


def run_setup_cell(course: Path, before: str, source: str = "") -> subprocess.CompletedProcess:
    """The released set-up cell, twice, in a Python of its own; `before` is run ahead of it."""
    source = source or cell(nbformat.read(course / RELEASE, as_version=4), "setup").source
    program = "\n".join([before, source, source, "print('names:', plt.__name__, dist.__name__)"])
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, cwd=course)


ADDRESS = "https://git.example.org/a-school/its-course"
HIDE = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] == HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
"""


def test_the_set_up_cell_runs_twice_in_silence(course):
    done = run_setup_cell(course, "")
    assert (done.returncode, done.stdout, done.stderr) == (0, "names: matplotlib.pyplot torch.distributed\n", "")


@pytest.mark.parametrize(
    ("hidden", "says"), [("hw_utils", f"%pip install git+{ADDRESS}"), ("torch", "%run -m hw_utils doctor")]
)
def test_the_set_up_cell_says_what_to_run(course, hidden, says):
    done = run_setup_cell(course, f"HIDDEN = {hidden!r}{HIDE}sys.meta_path.insert(0, Hide())", setup_source(ADDRESS))
    assert done.returncode == 1
    assert f"No module named '{hidden}'. This kernel is {sys.executable}: choose the course's .venv, " in done.stderr
    assert f"or run this in a cell, then restart the kernel:  {says}" in done.stderr


COLAB = """
import importlib.util, subprocess, sys, types
sys.modules["google.colab"] = types.ModuleType("google.colab")
find, importlib.util.find_spec = importlib.util.find_spec, lambda name: None if name == "hw_utils" else find(name)
subprocess.run = lambda command, check: print("RUN", command[1:])
"""


def test_on_colab_the_set_up_cell_installs_from_the_one_address(course):
    done = run_setup_cell(course, COLAB, setup_source(ADDRESS))
    assert f"RUN ['-m', 'pip', 'install', '--quiet', 'git+{ADDRESS}']" in done.stdout


def test_a_course_without_an_address_says_so_and_installs_from_nowhere(course):
    hide = f"HIDDEN = 'hw_utils'{HIDE}sys.meta_path.insert(0, Hide())"
    done = run_setup_cell(course, COLAB + hide, setup_source(""))
    assert "RUN" not in done.stdout
    assert "your instructor has not set the course's ADDRESS: ask for it" in done.stderr


@pytest.mark.parametrize(
    ("line", "address"),
    [
        (f'Repository = "{ADDRESS}"', ADDRESS),
        ('Repository = "https://github.com/OWNER/course"', ""),
        ('Repository = ""', ""),
        ("", ""),
    ],
)
def test_a_placeholder_is_no_address(tmp_path, line, address):
    (tmp_path / "pyproject.toml").write_text(f"[project.urls]\n{line}\n")
    assert course_address(tmp_path) == address
