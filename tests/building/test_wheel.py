"""The kit as a wheel: pip takes it, it works away from the checkout, and it says one version everywhere."""

from __future__ import annotations

import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

import hw_utils
from tools.lesson import ROOT

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel that pip builds of a copy of what git knows."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    for name in listed.stdout.splitlines():
        if re.match(r"(hw_utils|hw_grader)/|pyproject\.toml|LICENSE|README\.md", name) and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", out, source]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (found,) = out.glob("*.whl")
    return found


def test_the_wheel_holds_every_module_every_template_and_both_licences(wheel):
    assert wheel.name == f"hw_utils-{hw_utils.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
    for package in ("hw_utils", "hw_grader"):
        files = [p for p in (ROOT / package).rglob("*") if p.is_file() and "__pycache__" not in p.parts]
        assert {p.relative_to(ROOT).as_posix() for p in files} <= names
    assert {Path(n).name for n in names if ".dist-info/licenses/" in n} == {"LICENSE", "LICENSE-TEXTS"}
    assert not [n for n in names if n.split("/")[0] in ("tests", "tools", "lessons", "solutions")]


def test_the_installed_wheel_runs_a_worker_and_its_commands(wheel, tmp_path):
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    target = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True
    ).stdout.strip()
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target, str(wheel)]
    subprocess.run(command, check=True, capture_output=True)
    here = next(p for p in sys.path if p.endswith("site-packages"))
    (Path(target) / "borrowed.pth").write_text(here + "\n")  # torch and the like; the kit itself comes first
    program = (
        "import hw_utils, hw_grader; from hw_utils import simulate\n"
        "print(hw_utils.__file__, hw_utils.__version__, simulate(lambda rank, n: rank, 3).results)"
    )
    done = subprocess.run([python, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == [
        str(Path(target) / "hw_utils" / "__init__.py"), hw_utils.__version__, "[0,", "1,", "2]",
    ], done.stderr  # fmt: skip
    listed = subprocess.run([python, "-m", "hw_utils", "--help"], cwd=tmp_path, capture_output=True, text=True)
    assert all(name in listed.stdout for name in ("doctor", "check", "progress", "submit", "update"))


def test_the_version_is_the_same_wherever_it_has_to_stand():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == hw_utils.__version__
    assert set(citation["license"]) == {"MIT", "CC-BY-4.0"}
    assert re.search(r'^version = \{ attr = "hw_utils.__version__" \}$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert "version =" not in (ROOT / "pyproject.toml").read_text().split("[project]")[1].split("\n\n")[0]
