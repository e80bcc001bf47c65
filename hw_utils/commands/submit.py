"""Packs a notebook as the instructor collects it: a zip with STUDENT/ASSIGNMENT/name.ipynb, nbgrader's layout."""

from __future__ import annotations

import re
import sys
import zipfile
from argparse import ArgumentParser, Namespace
from datetime import datetime, timezone
from pathlib import Path

from hw_utils.commands.check import check_notebook, table

_STUB = "raise NotImplementedError()"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("notebook", type=Path, help="your notebook, as notebooks/01_hello_ranks/hello_ranks.ipynb")
    parser.add_argument("--student", required=True, help="your user name, as your instructor knows it")
    parser.add_argument("-o", "--output", type=Path, help="the zip to write (default: STUDENT-ASSIGNMENT.zip)")
    parser.add_argument("--unchecked", action="store_true", help="do not run the checks first")


def main(arguments: Namespace) -> int:
    """Writes the zip, whatever the checks say; 2 if there is nothing to pack."""
    try:
        path, said = pack(arguments.notebook, arguments.student, arguments.output, checked=not arguments.unchecked)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(said)
    print(f"wrote {path}; hand in that file")
    return 0


def pack(notebook: Path, student: str, output: Path | None = None, *, checked: bool = True) -> tuple[Path, str]:
    """(the zip's path, what is unfinished in words).

    Raises:
        ValueError: no notebook of the course, or a user name that is no plain file name.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", student):
        raise ValueError(f"a user name has letters, digits and . _ @ - only, got {student!r}")
    said = table(check_notebook(notebook, show=True)) if checked else "the checks were not run"
    text = notebook.read_text(encoding="utf-8-sig")
    left = text.count(_STUB)
    if left:
        said += f"\nunfinished: {left} cells still say `{_STUB}`"
    assignment = notebook.resolve().parent.name
    output = output or Path(f"{student}-{assignment}.zip")
    stamp = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(f"{student}/{assignment}/{notebook.name}", text)
        packed.writestr(f"{student}/{assignment}/timestamp.txt", stamp + "\n")
    return output, said
