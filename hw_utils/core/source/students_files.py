"""Whose file a frame is in: the student's program, or a package."""

from __future__ import annotations

import glob
import json
import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from types import FrameType

from hw_utils.core.source.kernel_cells import is_cell

_PACKAGE = os.path.abspath(os.path.join(__file__, "../../.."))


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


def packages() -> tuple[str, ...]:
    """The folders in which packages lie, as far as they are known by now."""
    return tuple(_packages)


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
        known = not is_cell(file) and (file.startswith("<") or _is_in_a_package(os.path.realpath(file)))
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
