"""Where in the student's code something happened: which cell, which line, which text."""

from __future__ import annotations

import glob
import json
import linecache
import os
import re
import signal
import site
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import FrameType

# Makes a rank's process note where it is, see `noted_frames`. Programs handle SIGUSR1 themselves (schedulers send it
# before the time is up), the last of the real-time signals hardly ever. None where there are no such signals.
ASKS_WHERE: int | None = getattr(signal, "SIGRTMAX", getattr(signal, "SIGUSR1", None))


@dataclass(frozen=True)
class Where:
    """A line of the student's code. Reads as `Cell In[5], line 3` or `script.py, line 3`."""

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
    return "a cell" if _is_cell(file) else ""


def _is_cell(file: str) -> bool:
    return "ipykernel_" in file or file.startswith("<ipython-input")


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


def _as_folder(path: str) -> str:
    return os.path.join(os.path.realpath(path), "")


_PURE = sysconfig.get_paths()["purelib"]
_INSTALLED = tuple(
    {_as_folder(p) for p in (_PACKAGE, _PURE, sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["platlib"])}
)
_PACKAGES = re.compile(r"[\\/](site|dist)-packages[\\/]")  # a user's own, Debian's, those of any other environment
_LISTED = tuple(_as_folder(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path)
_packages = [*_INSTALLED]
_programs = [_as_folder(os.getcwd())]  # the folders of the student's program
# The programs that students read and predict count as theirs.
_KNOWN = {os.path.join(_PACKAGE, "material", "programs.py"): False}
_is_library: dict[str, bool] = dict(_KNOWN)


def add_program(folder: str) -> None:
    """From now on what lies in the folder, or below, is the student's; packages that are installed there are not."""
    if _as_folder(folder) not in _programs:
        _programs.append(_as_folder(folder))
        _is_library.clear()
        _is_library.update(_KNOWN)


def add_package(folder: str) -> None:
    """From now on what lies in the folder, or below, is a package's, wherever the student's program lies."""
    _packages.append(_as_folder(folder))
    _is_library.clear()
    _is_library.update(_KNOWN)


@cache
def _linked() -> tuple[str, ...]:
    """The folders that `pip install -e` has linked, but this package's own."""
    from urllib.request import url2pathname  # takes long to import, and few programs need it

    found = []
    for place in {_PURE, site.getusersitepackages()}:
        for file in glob.glob(os.path.join(glob.escape(place), "*.dist-info", "direct_url.json")):
            with open(file, encoding="utf-8") as text:
                origin = json.load(text)
            if origin.get("dir_info", {}).get("editable") and origin.get("url", "").startswith("file://"):
                found.append(_as_folder(url2pathname(origin["url"].removeprefix("file://"))))
    return tuple(folder for folder in found if not _as_folder(_PACKAGE).startswith(folder))


def students_frames() -> Iterator[FrameType]:
    """The frames of the student's code that led to this call, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_students(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def is_students(file: str) -> bool:
    """Whether the file is the student's: a cell, in the folder of the program, or nowhere where packages are.

    Packages are this one, the standard library, what is installed, and what PYTHONPATH or `pip install -e` adds.
    """
    known = _is_library.get(file)
    if known is None:
        # "<frozen ...>" and "<string>" are the interpreter's. ipykernel's cells have names in the temporary folder.
        known = not _is_cell(file) and (file.startswith("<") or _is_in_a_package(os.path.realpath(file)))
        _is_library[file] = known
    return not known


def _is_in_a_package(file: str) -> bool:
    if file.startswith(tuple(_packages)):
        return True
    if any(file.startswith(folder) and not _PACKAGES.search(file, len(folder) - 1) for folder in _programs):
        return False
    return bool(_PACKAGES.search(file)) or file.startswith((*_LISTED, *_linked()))


def students_line(frame: FrameType | None) -> tuple[str, int]:
    """(file, line) of the innermost frame of the student's code at or below `frame`, or ("", 0)."""
    while frame is not None:
        file = frame.f_code.co_filename
        if is_students(file):
            return file, frame.f_lineno
        frame = frame.f_back
    return "", 0


_WAITING = "greenlets_or_threads.py"  # where a virtual rank in a thread of its own waits for its turn


def noted_frames(path: str) -> tuple[Frame, ...]:
    """The student's frames in the last traceback that a rank has noted in its stack file, outermost first."""
    try:
        with open(path, errors="replace") as file:
            text = file.read()
    except OSError:
        return ()
    stacks = _stacks(text)
    found = _of_students(stacks[-1][1]) if stacks else []
    if len(stacks) > 1 and not found and not stacks[-2][0]:  # what a way out notes of its own thread; see rank.py
        found = _of_students(stacks[-2][1])
    if stacks and not found:
        found = next(filter(None, map(_of_students, _other_threads(stacks))), [])
    return tuple(Frame(locate(file, line), name) for file, line, name in reversed(found))


Stack = list[tuple[str, int, str]]  # (file, line, function), innermost first


def _stacks(text: str) -> list[tuple[str, Stack]]:
    """(thread, its frames) of each traceback, in the order in which they were written."""
    parts = re.split(r"(?:Current thread|Stack|Thread) ?(\w*)[^\n]*\n", text)
    frames = [re.findall(r'^  File "(.*)", line (\d+) in (.*)$', part, re.MULTILINE) for part in parts[2::2]]
    return [
        (thread, [(file, int(line), name) for file, line, name in found]) for thread, found in zip(parts[1::2], frames)
    ]


def _of_students(stack: Stack) -> Stack:
    return [frame for frame in stack if is_students(frame[0])]


def _other_threads(stacks: list[tuple[str, Stack]]) -> list[Stack]:
    """Those noted last, each time with the first one at the end, as it carries ranks; who waits for a turn is last."""
    noted = [(thread, stack) for thread, stack in stacks if thread]
    ends = [i for i, (thread, _) in enumerate(noted) if thread == noted[-1][0]]
    since = ends[-2] + 1 if len(ends) > 1 else 0
    return sorted((stack for _, stack in noted[since:-1] if stack), key=lambda stack: stack[0][0].endswith(_WAITING))
