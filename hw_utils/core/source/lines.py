"""A line of the student's code: in which cell or script it is, and its text."""

from __future__ import annotations

import ast
import linecache
import os
import re
from dataclasses import dataclass

from hw_utils.core.source.kernel_cells import cell_name


@dataclass(frozen=True)
class Where:
    """A line of the student's code. Reads as `Cell In[5], line 3` or `train.py, line 3`."""

    file: str
    line: int
    cell: str = ""  # "Cell In[5]" if the file is a notebook cell
    source: str = ""  # the line's text, stripped

    def __str__(self) -> str:
        return f"{self.cell or os.path.basename(self.file)}, line {self.line}"


@dataclass(frozen=True)
class Frame:
    """One line of a student's traceback."""

    where: Where
    function: str = ""


def locate(file: str, line: int) -> Where:
    """The line with its cell number and its text; call it in the process that ran the cell."""
    return Where(file, line, cell_name(file), linecache.getline(file, line).strip())


def function_at(file: str, line: int) -> str:
    """Which function stands at this line, with its class: `train`, `FullySharded.backward`; "" if none does.

    By the text, as `linecache` has it: a process that never ran the code can tell, too.
    """
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ""
    around = [node for node in ast.walk(tree) if isinstance(node, _NAMED) and node.lineno <= line <= node.end_lineno]
    names: list[str] = []
    for inside, node in zip([None, *around], around):  # outermost first
        names = [*(names if isinstance(inside, ast.ClassDef) else ()), node.name]
    return ".".join(names) if around and not isinstance(around[-1], ast.ClassDef) else ""


_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def place_mark(file: str, line: int) -> str:
    """A place in a text written where the cells' numbers are not known; `with_places` replaces it."""
    return f"\0{file}\0{line}\0"


def with_places(text: str) -> str:
    """The text with its marks replaced by `Cell In[5], line 3`; call it in the process that ran the cells."""
    return re.sub("\0([^\0]*)\0([0-9]+)\0", lambda found: str(locate(found[1], int(found[2]))), text)
