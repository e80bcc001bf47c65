"""Where in the student's code something happened: which cell, which line, which text."""

from __future__ import annotations

import linecache
import os
import re
import sys
import sysconfig
from dataclasses import dataclass
from types import FrameType


@dataclass(frozen=True)
class Where:
    """A line of the student's code. Reads as `Cell In[5], line 3` or `script.py, line 3`."""

    file: str
    line: int
    cell: str = ""  # "Cell In[5]" if the file is a notebook cell
    source: str = ""  # the line's text, stripped

    def __str__(self) -> str:
        return f"{self.cell or os.path.basename(self.file)}, line {self.line}"


def locate(file: str, line: int) -> Where:
    """The line with its cell number and its text; call it in the process that ran the cell."""
    return Where(file, line, cell_name(file), linecache.getline(file, line).strip())


def place_mark(file: str, line: int) -> str:
    """A place in a text written where the cells' numbers are not known; `with_places` replaces it."""
    return f"\0{file}\0{line}\0"


def with_places(text: str) -> str:
    """The text with its marks replaced by `Cell In[5], line 3`; call it in the process that ran the cells."""
    return re.sub("\0([^\0]*)\0([0-9]+)\0", lambda found: str(locate(found[1], int(found[2]))), text)


def cell_name(file: str) -> str:
    """`Cell In[5]` for the compiled file of a notebook cell, else nothing."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    count = getattr(getattr(shell, "compile", None), "_filename_map", {}).get(file)
    if count is not None:
        return f"Cell In[{count}]"
    if file in _kernels_cells:
        return _kernels_cells[file]
    if "ipykernel_" in file or file.startswith("<ipython-input"):
        return "a cell"
    return ""


_kernels_cells: dict[str, str] = {}  # in another process than the kernel


def cells() -> dict[str, tuple[str, list[str]]]:
    """This kernel's cells, file -> (name, lines), for `know_cells` in another process."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    files = getattr(getattr(shell, "compile", None), "_filename_map", {})
    return {file: (f"Cell In[{count}]", linecache.getlines(file)) for file, count in files.items()}


def know_cells(found: dict[str, tuple[str, list[str]]]) -> None:
    """From now on `locate` names the cells of the kernel that sent `cells()`."""
    for file, (name, lines) in found.items():
        _kernels_cells[file] = name
        linecache.cache[file] = (sum(map(len, lines)), None, lines, file)


_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARIES = tuple(
    {
        os.path.realpath(path) + os.sep
        for path in (
            _PACKAGE,
            sysconfig.get_paths()["stdlib"],
            sysconfig.get_paths()["purelib"],
            sysconfig.get_paths()["platlib"],
        )
    }
)
# The programs that students read and predict count as theirs.
_is_library: dict[str, bool] = {os.path.join(_PACKAGE, "material", "programs.py"): False}


def is_students(file: str) -> bool:
    """Whether the file is the student's: not this package, the standard library or an installed one."""
    known = _is_library.get(file)
    if known is None:
        # "<frozen ...>" and "<string>" are the interpreter's; "<ipython-input-...>" is a cell.
        internal = file.startswith("<") and not file.startswith("<ipython-input")
        known = _is_library[file] = internal or os.path.realpath(file).startswith(_LIBRARIES)
    return not known


def students_line(frame: FrameType | None) -> tuple[str, int]:
    """(file, line) of the innermost frame of the student's code at or below `frame`, or ("", 0)."""
    while frame is not None:
        file = frame.f_code.co_filename
        if is_students(file):
            return file, frame.f_lineno
        frame = frame.f_back
    return "", 0
