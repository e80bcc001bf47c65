"""Executed solutions, kept: one is run again only if the lesson or the kit changed."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from tqdm import tqdm

from tools.build import SOLUTIONS
from tools.lesson import ROOT, Lesson

TIMEOUT_S = 1_800  # of one cell


def executed(lessons: list[Lesson], made: Path, cache: Path) -> Iterator[NotebookNode]:
    """Each lesson's solution with its outputs, in order; `made` holds the built solutions."""
    kit = _kit()
    with tqdm(lessons, desc="solutions", unit="lesson", file=sys.stdout, leave=False, disable=None) as bar:
        for lesson in bar:
            bar.set_postfix_str(lesson.name)
            solution = made / SOLUTIONS / lesson.product
            digest = hashlib.sha256("\n".join([kit, *code_of(nbformat.read(solution, 4))]).encode()).hexdigest()[:16]
            kept = cache / f"{lesson.name}-{digest}.ipynb"
            if not kept.exists():
                cache.mkdir(parents=True, exist_ok=True)
                run(solution, kept)
                for old in cache.glob(f"{lesson.name}-*.ipynb"):
                    if old != kept:
                        old.unlink()
            yield nbformat.read(kept, as_version=4)


def run(solution: Path, target: Path) -> None:
    """Executes a notebook as JupyterLab would; one that stops on an error is not kept."""
    notebook = nbformat.read(solution, as_version=4)
    client = NotebookClient(notebook, kernel_name="python3", timeout=TIMEOUT_S, store_widget_state=True)
    client.resources = {"metadata": {"path": str(solution.parent)}}
    client.execute()
    part = target.with_suffix(".part")
    nbformat.write(notebook, part)
    part.replace(target)


def code_of(notebook: NotebookNode) -> list[str]:
    """What decides the outputs: the code, but not the set-up cell, which holds an address."""
    return [c.source for c in notebook.cells if c.cell_type == "code" and c.id != "setup"]


def _kit() -> str:
    """A hash of everything in hw_utils."""
    found = hashlib.sha256()
    for path in sorted((ROOT / "hw_utils").rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()
