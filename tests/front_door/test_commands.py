"""What a student does outside a cell: doctor, check, submit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import hw_utils.__main__
from hw_utils.commands import check as preflight
from hw_utils.commands import doctor, submit

SOLUTION = Path("solutions/01_hello_ranks/hello_ranks.ipynb")
RELEASE = Path("notebooks/01_hello_ranks/hello_ranks.ipynb")


def notebook(folder: Path, *sources: str) -> Path:
    cells = [{"cell_type": "code", "source": s, "metadata": {}} for s in sources]
    path = folder / "mine.ipynb"
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return path


def test_every_part_of_this_installation_is_good():
    findings = [doctor.examine(part, probe) for part, probe in doctor.PROBES.items()]
    assert [str(f) for f in findings if not f.good] == []


def test_a_probe_that_breaks_is_a_finding_with_something_to_do():
    def broken():
        raise RuntimeError("operator torchvision::nms does not exist\nmore")

    finding = doctor.examine("torchvision", broken)
    assert not finding.good
    assert "RuntimeError: operator torchvision::nms does not exist" in str(finding)
    assert "-> install the torchvision that belongs to your torch" in str(finding)
    assert "more" not in str(finding)


def test_doctor_imports_a_library_as_programs_do(tmp_path, monkeypatch, capsys):
    """The lessons get along with a torchvision that was built for another torch; other programs do not."""
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    (tmp_path / "whole.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert doctor.why_not_imported("whole") == ""
    monkeypatch.setattr(doctor, "PROBES", {"torchvision": doctor.PROBES["torchvision"]})
    assert hw_utils.__main__.main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "`import torchvision` fails in programs of your own" in shown
    assert "operator torchvision::nms does not exist" in shown
    assert "-> install the torchvision that belongs to your torch" in shown
    assert shown.endswith("All is well for the lessons, not for all programs: torchvision.\n")


@pytest.mark.slow
def test_the_solution_passes_every_check_of_its_notebook():
    verdicts = preflight.check_notebook(SOLUTION)
    assert [v for v in verdicts if not v.passed] == []
    assert sum(v.points for v in verdicts) == 15


@pytest.mark.slow
def test_the_untouched_release_passes_no_check_and_says_why():
    verdicts = preflight.check_notebook(RELEASE)
    assert not any(v.passed for v in verdicts)
    assert "hello is not written yet" in verdicts[0].message
    assert "0 of 15 points" in preflight.table(verdicts)


def test_checks_are_found_without_any_metadata(tmp_path):
    path = notebook(
        tmp_path,
        "from hw_utils import checks\ndef fit_link(sizes, seconds):\n    return 0.0, 1.0",
        "checks.lesson_01.fit_link(fit_link)",
    )
    (verdict,) = preflight.check_notebook(path)
    assert (verdict.name, verdict.passed, verdict.points) == ("lesson_01.fit_link", False, None)
    assert "latency_s is 0, expected 0.001" in verdict.message


def test_a_check_that_was_replaced_does_not_pass(tmp_path):
    path = notebook(
        tmp_path,
        "class checks:\n    class lesson_01:\n        fit_link = staticmethod(lambda f: None)",
        "checks.lesson_01.fit_link(print)",
    )
    (verdict,) = preflight.check_notebook(path)
    assert not verdict.passed
    assert "did not report a result" in verdict.message


def test_a_cell_that_ends_the_process_fails_every_check_after_it(tmp_path):
    call = "checks.lesson_01.fit_link(print)"
    path = notebook(tmp_path, "import os\ndef stop():\n    os._exit(3)", "from hw_utils import checks", call)
    text = path.read_text().replace("def stop():\\n    os._exit(3)", "x = [os._exit(3)]")
    path.write_text(text)
    (verdict,) = preflight.check_notebook(path, everything=True)
    assert (verdict.passed, "did not run" in verdict.message) == (False, True)


@pytest.mark.parametrize("content", ["", "{}", "not json", '{"cells": 3}'])
def test_what_is_no_notebook_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "mine.ipynb"
    path.write_text(content)
    with pytest.raises(ValueError, match="is not a notebook"):
        preflight.check_notebook(path)


def test_a_missing_file_and_a_foreign_notebook_are_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no file"):
        preflight.check_notebook(tmp_path / "none.ipynb")
    with pytest.raises(ValueError, match="has no check in it"):
        preflight.check_notebook(notebook(tmp_path, "1 + 1"))


def test_a_submission_has_the_layout_that_nbgrader_collects(tmp_path):
    path, said = submit.pack(RELEASE, "ada", tmp_path / "out.zip", checked=False)
    with zipfile.ZipFile(path) as packed:
        assert packed.namelist() == ["ada/01_hello_ranks/hello_ranks.ipynb", "ada/01_hello_ranks/timestamp.txt"]
    assert "cells still say" in said


@pytest.mark.parametrize("student", ["", "../ada", "a b", "-x", "a/b"])
def test_a_user_name_that_is_a_path_is_refused(tmp_path, student):
    with pytest.raises(ValueError, match="user name"):
        submit.pack(RELEASE, student, tmp_path / "out.zip", checked=False)


def test_the_command_line_knows_its_commands():
    shown = subprocess.run([sys.executable, "-m", "hw_utils", "--help"], capture_output=True, text=True, check=True)
    assert all(name in shown.stdout for name in ("doctor", "check", "submit", "export"))
    assert shown.stderr == ""


def test_what_a_command_says_to_nobody_is_no_error(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "hw_utils", "check", str(notebook(tmp_path, "checks.lesson_01.hello(None)"))]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_a_pipe_of_a_commands_own_that_breaks_is_an_error_as_ever(monkeypatch):
    def breaks(argv):
        raise BrokenPipeError("a driver's")

    monkeypatch.setattr(hw_utils.__main__, "main", breaks)
    with pytest.raises(BrokenPipeError, match="a driver's"):
        hw_utils.__main__.main_for_a_reader([])
