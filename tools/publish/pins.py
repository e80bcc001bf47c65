"""The students' requirements.txt: those of the course's pins that their part needs."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LAB = ("ipykernel", "jupyterlab", "notebook")
_HEAD = """\
# The versions that the course was tried with, for pip and uv; the last line is this folder itself.
# Python 3.10 takes what it finds within pyproject.toml's ranges. How to install: README.md.
"""


def students_pins(about: str, pins: str) -> str:
    """requirements.txt, from the texts of pyproject.toml and requirements-cpu.txt.

    Raises:
        ValueError: something that students need has no pin.
    """
    pinned = dict(line.split("==") for line in pins.splitlines() if "==" in line and not line.startswith("#"))
    by_name = {canonicalize_name(name): f"{name}=={version}" for name, version in pinned.items()}
    needs = re.search(r"^dependencies = \[\n(.*?)^\]", about, re.S | re.M)[1]
    wanted = [canonicalize_name(Requirement(text).name) for text in re.findall(r'"([^"]+)"', needs)] + list(LAB)
    if missing := [name for name in wanted if name not in by_name]:
        raise ValueError(f"every package that students need has a pin in requirements-cpu.txt; none: {missing}")
    lines = [f'{by_name[name]} ; python_version >= "3.11"' for name in sorted(_closure(wanted, by_name.keys()))]
    return _HEAD + "\n".join([*lines, "-e .[lab]"]) + "\n"


def _closure(wanted: list[str], pinned) -> set[str]:
    """The packages and all that they need here, as far as they are pinned: a CUDA build's libraries are not."""
    found: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name in found or name not in pinned:
            continue
        found.add(name)
        try:
            asked = map(Requirement, requires(name) or [])
        except PackageNotFoundError:
            continue  # pinned, and nothing is known of what it needs: pip finds that out
        wanted += [canonicalize_name(r.name) for r in asked if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found
