"""`make nbval`: the solutions' cells, in kernels of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[2]
CELL = """
import json
from ipykernel.connect import get_connection_file
assert json.load(open(get_connection_file()))["transport"] == "ipc"
"""


def test_no_kernel_depends_on_a_port_that_another_process_may_take(tmp_path):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    options = re.search(r"^nbval:.*\n.*? (--nbval-lax .*) solutions$", makefile, re.M).group(1).split()
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    nbformat.write(notebook, tmp_path / "transport.ipynb")
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "1 passed" in done.stdout, done.stdout
