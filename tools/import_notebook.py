"""An instructor's edit of solutions/NN_name/name.ipynb, brought back to lessons/NN_name.py.

`python -m tools.import_notebook solutions/01_hello_ranks/hello_ranks.ipynb`
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

import nbformat

from tools.lesson import ROOT, Cell, LessonError, find_problems, marker_lines, parse_lesson
from tools.notebook import to_lesson_text


def import_notebook(notebook: Path, root: Path = ROOT) -> Path:
    """Writes the notebook's lesson, which gives the same notebook when built; returns the lesson's path.

    Raises:
        LessonError: the notebook holds what a lesson cannot, or breaks a rule; the lesson stays as it was.
    """
    lesson = root / "lessons" / f"{notebook.resolve().parent.name}.py"
    text = to_lesson_text(nbformat.read(notebook, as_version=4), lesson)
    if problems := find_problems(parse_lesson(text, lesson)):
        raise LessonError(notebook.name, [f", as text{problem}" for problem in problems])
    if lesson.exists():
        text = keep_spelling(text, lesson.read_text(encoding="utf-8"), lesson)
    beside = lesson.with_name(f".{lesson.name}.part")
    beside.write_text(text, encoding="utf-8", newline="\n")
    os.replace(beside, lesson)
    return lesson


def keep_spelling(new: str, old: str, path: Path) -> str:
    """The new text, with every cell that did not change as it was written in the old one, blank lines included."""
    written: dict[Cell, list[str]] = {}
    for cell, chunk in _chunks(old, path):
        written.setdefault(_key(cell), []).append(chunk)
    chunks = [_next(written.get(_key(cell)), chunk) for cell, chunk in _chunks(new, path)]
    return "".join(chunks).rstrip("\n") + "\n"


def _next(same: list[str] | None, otherwise: str) -> str:
    return same.pop(0) if same else otherwise


def _chunks(text: str, path: Path) -> list[tuple[Cell, str]]:
    lines, starts = text.splitlines(keepends=True), marker_lines(text)
    ends = [*(n - 1 for n in starts[1:]), len(lines)]
    cells = parse_lesson(text, path).cells
    chunks = ["".join(lines[a - 1 : b]) for a, b in zip(starts, ends)]
    return [(cell, c if c.endswith("\n\n") else c.rstrip("\n") + "\n\n") for cell, c in zip(cells, chunks)]


def _key(cell: Cell) -> Cell:
    return replace(cell, line=0)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.import_notebook", description=__doc__.splitlines()[0])
    parser.add_argument("notebook", type=Path, help="solutions/NN_name/name.ipynb, as saved in JupyterLab")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if not chosen.notebook.is_file():
        print(f"there is no file {chosen.notebook}; give a notebook of solutions/", file=sys.stderr)
        return 1
    try:
        lesson = import_notebook(chosen.notebook, chosen.root)
    except LessonError as error:
        print(f"Nothing was changed.\n{error}", file=sys.stderr)
        return 1
    print(f"wrote {os.path.relpath(lesson)}; now run:  make notebooks")
    return 0


if __name__ == "__main__":
    sys.exit(main())
