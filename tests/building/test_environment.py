"""The lists of packages say the same: pins for pip, ranges in pyproject.toml, versions for conda."""

from __future__ import annotations

import re
import subprocess

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.lesson import ROOT

CONDA_NAMES = {"pytorch-cpu": "torch", "matplotlib-base": "matplotlib"}


def pins() -> dict[str, str]:
    """requirements-cpu.txt: name -> version."""
    lines = (ROOT / "requirements-cpu.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def ranges(*groups: str) -> dict[str, Requirement]:
    """pyproject.toml: name -> requirement, of the package itself and of the groups named."""
    about = (ROOT / "pyproject.toml").read_text()
    found = {}
    for group in ("dependencies", *groups):
        block = re.search(rf"^{group} = \[(.*?)\]", about, re.S | re.M)[1]
        for text in re.findall(r'"([^"]+)"', block):
            requirement = Requirement(text)
            found[canonicalize_name(requirement.name)] = requirement
    return found


def conda() -> dict[str, str]:
    """environment-cpu.yml: name as pip calls it -> version."""
    packages = yaml.safe_load((ROOT / "environment-cpu.yml").read_text())["dependencies"]
    pairs = [p.split("=") for p in packages if isinstance(p, str) and "=" in p]
    return {CONDA_NAMES.get(name, canonicalize_name(name)): version for name, version in pairs if name != "python"}


def test_every_pin_is_an_exact_version_within_the_range():
    pinned = pins()
    for name, requirement in ranges("course", "test", "bench", "site").items():
        assert name in pinned, f"{name} is not pinned in requirements-cpu.txt"
        assert requirement.specifier.contains(pinned[name]), f"{name} {pinned[name]} is not {requirement.specifier}"
    assert pinned["torch"] == "2.13.0"
    assert pinned["torchvision"] == "0.28.0"


def test_conda_has_the_versions_of_the_pins_for_all_that_the_course_needs():
    assert conda() == {name: pins()[name] for name in ranges("course")}


def test_conda_uses_conda_forge_alone_and_installs_this_package_with_pip():
    environment = yaml.safe_load((ROOT / "environment-cpu.yml").read_text())
    assert environment["channels"] == ["conda-forge", "nodefaults"]
    assert environment["dependencies"][-1] == {"pip": ["-e ."]}


def test_the_address_of_the_course_stands_in_one_place():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    address = re.search(r'^Repository = "([^"]+)"', (ROOT / "pyproject.toml").read_text(), re.M)[1]
    sources = [name for name in listed if not name.endswith(".ipynb") and (ROOT / name).is_file()]
    holders = [name for name in sources if address in (ROOT / name).read_text(errors="replace")]
    assert holders == ["pyproject.toml"]


def test_make_help_names_every_target_of_the_architecture():
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    for target in ("course", "test", "lab", "notebooks", "grade", "bench", "clean", "publish", "import", "report"):
        assert f"make {target} " in done.stdout
