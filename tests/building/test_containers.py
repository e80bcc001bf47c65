"""Dev container, Docker, Binder: one script installs, the same pins everywhere, and every file they name is there."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.front_door.test_bare import needed, put_into
from tools.lesson import ROOT
from tools.publish import COPIED, publish

SCRIPT = ".devcontainer/install.sh"


def test_every_way_in_calls_the_one_script_and_names_no_version_itself():
    ways = ["Dockerfile", ".binder/postBuild", ".devcontainer/devcontainer.json", ".github/workflows/site.yml"]
    for way in ways:
        text = (ROOT / way).read_text()
        assert SCRIPT in text, way
        assert not re.search(r"torch|pip install|==\d", text), way
    for program in (SCRIPT, ".binder/postBuild"):
        assert (ROOT / program).stat().st_mode & stat.S_IXUSR, program
        subprocess.run(["bash", "-n", ROOT / program], check=True)
        assert program in COPIED


def test_the_dev_container_is_built_from_the_dockerfiles_own_stage():
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    dockerfile = (ROOT / ".devcontainer" / container["build"]["dockerfile"]).resolve()
    assert dockerfile == ROOT / "Dockerfile"
    stages = re.findall(r"^FROM \S+ AS (\w+)$", dockerfile.read_text(), re.M)
    assert container["build"]["target"] in stages
    assert f"useradd --create-home --uid 1000 {container['remoteUser']}" in dockerfile.read_text()
    python = container["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"]
    assert f"python -m venv {Path(python).parents[1]}" in dockerfile.read_text()
    for name in container["customizations"]["codespaces"]["openFiles"]:
        assert (ROOT / name).exists()


def test_all_of_them_take_the_same_python():
    runtime = (ROOT / ".binder" / "runtime.txt").read_text().strip().removeprefix("python-")
    assert f"FROM python:{runtime}-slim" in (ROOT / "Dockerfile").read_text()
    assert f"- python={runtime}\n" in (ROOT / "environment-cpu.yml").read_text()
    assert f"(Python {runtime})" in (ROOT / "requirements-cpu.txt").read_text()


@pytest.mark.slow
def test_the_script_installs_a_published_course_in_a_clean_tree(tmp_path):
    """With the pinned packages there already, links to those that run this test: what is new is the course itself."""
    course = tmp_path / "course"
    publish(course, address="https://git.example.org/a-school/its-course")
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    libraries = next((tmp_path / "env" / "lib").glob("python*")) / "site-packages"
    pins = re.findall(r"^([\w.-]+)==", (course / "requirements.txt").read_text(), re.M)
    for package in needed(["pip", *map(canonicalize_name, pins)]).values():
        put_into(libraries, package)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    environment |= {"PYTHON": str(python), "TORCH_BACKEND": ""}  # the torch that is there, whichever build it is
    command = [course / SCRIPT]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 ranks met over gloo" in done.stdout
    said = [python, "-c", "import hw_utils; print(hw_utils.__file__)"]
    where = subprocess.run(said, cwd=tmp_path, capture_output=True, text=True)
    assert where.stdout.strip() == str(course / "hw_utils" / "__init__.py")
    assert sys.prefix not in done.stdout
