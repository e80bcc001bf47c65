"""Grading by an ordinary user, tried from a suite that runs as root: the same walls, the same marks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hw_grader.sandbox.sandbox import why_not
from hw_grader.sandbox.selftest import PROBES
from tests.grader.small_course import MAX_POINTS

ROOT = Path(__file__).resolve().parents[3]
NOBODY = 65534
GRADES = """
import os, sys
from pathlib import Path
from hw_grader.course.grading import grade_bytes
from hw_grader.notebook.trusted_notebook import read_trusted
from hw_grader.sandbox.sandbox import Sandbox
from tests.grader.small_course import WRONG, as_bytes, make_course, submission

trusted = read_trusted(make_course(Path(sys.argv[1])))
kills = "import os, signal\\nos.killpg(0, signal.SIGKILL)"
with Sandbox() as sandbox:
    for notebook in (submission(), submission(WRONG), submission(extra=kills), submission()):
        record = grade_bytes(as_bytes(notebook), trusted, sandbox, "ada")
        print(os.getuid(), f"{record.points:g}", record.state)
"""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="not root: every test of grading runs as an ordinary user here"),
    pytest.mark.skipif(bool(why_not()), reason=f"no sandbox: {why_not()}"),
    pytest.mark.skipif(not (shutil.which("setpriv") and shutil.which("unshare")), reason="no setpriv or unshare"),
]


def as_nobody(*command: str | Path) -> list[str]:
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *map(str, command)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """(what to put before a program's arguments so that nobody runs it with this Python, a folder of theirs)."""
    folder = Path(subprocess.run(["mktemp", "-d"], check=True, capture_output=True, text=True).stdout.strip())
    folder.chmod(0o755)
    (folder / "home").mkdir()
    os.chown(folder / "home", NOBODY, NOBODY)
    yield _start(folder), folder / "home"
    shutil.rmtree(folder)


def _start(folder: Path) -> list[str]:
    """This Python; or, if it lies where only root looks, the system's with this one's packages, mounted for it only."""
    environment = ["env", f"HOME={folder / 'home'}", "PYTHONDONTWRITEBYTECODE=1", f"PATH={os.environ['PATH']}"]
    if _works(mine := as_nobody(*environment, sys.executable)):
        return mine
    system = Path(f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}")
    if not system.exists():
        pytest.skip(f"{os.path.realpath(sys.executable)} cannot be reached by user {NOBODY}")
    (folder / "venv" / "bin").mkdir(parents=True)
    (folder / "venv" / "lib").mkdir()
    (folder / "venv" / "bin" / "python").symlink_to(system)
    (folder / "venv" / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    mount = f'mount --bind {sys.prefix}/lib {folder}/venv/lib && exec "$@"'
    theirs = as_nobody(*environment, folder / "venv" / "bin" / "python")
    command = ["unshare", "--mount", "sh", "-c", mount, "sh", *theirs]
    if not _works(command):
        pytest.skip(f"user {NOBODY} cannot run a Python with these packages")
    return command


def _works(command: list[str]) -> bool:
    done = subprocess.run([*command, "-c", "import torch, hw_grader.sandbox.lockdown"], cwd=ROOT, capture_output=True)
    return done.returncode == 0


def test_every_probe_is_blocked_for_an_ordinary_user(place):
    start, _ = place
    allowed = subprocess.run(as_nobody("bwrap", "--unshare-user", "--ro-bind", "/", "/", "true"), capture_output=True)
    if allowed.returncode:
        pytest.skip(f"users may not make namespaces here: {allowed.stderr.decode().strip()}")
    done = subprocess.run([*start, "-m", "hw_grader", "selftest"], cwd=ROOT, capture_output=True, text=True)
    assert f"{len(PROBES)} of {len(PROBES)} blocked" in done.stdout, done.stdout + done.stderr


def test_an_ordinary_user_grades_as_root_does(place):
    start, home = place
    allowed = subprocess.run(as_nobody("bwrap", "--unshare-user", "--ro-bind", "/", "/", "true"), capture_output=True)
    if allowed.returncode:
        pytest.skip(f"users may not make namespaces here: {allowed.stderr.decode().strip()}")
    done = subprocess.run([*start, "-c", GRADES, home / "course"], cwd=ROOT, capture_output=True, text=True)
    right, wrong = f"{NOBODY} {MAX_POINTS} pass", f"{NOBODY} 0 fail"
    assert done.stdout.splitlines() == [right, wrong, f"{NOBODY} 0 crashed", right], done.stdout + done.stderr
