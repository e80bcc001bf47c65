"""Which versions the kit was tried with, and what is installed here: for errors that are not the student's."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import sys

TORCH_OLDEST, TORCH_NEWEST = (2, 10), (2, 15)  # `make newest` runs both
DOCTOR = "python -m hw_utils doctor"
_said: list[str] = []


@functools.cache
def torch_version(text: str = "") -> tuple[int, int]:
    """(major, minor) of a version as torch writes it, "2.15.0+cu132" or "2.16.0a0+git1"; of the installed one."""
    major, minor = (text or importlib.metadata.version("torch")).split("+")[0].split(".")[:2]
    return int(major), int(minor)


def untried(text: str = "") -> str:
    """One line that says which versions of torch were tried, if this one is not among them; else ""."""
    text = text or importlib.metadata.version("torch")
    if torch_version(text) < TORCH_OLDEST:
        oldest = ".".join(map(str, TORCH_OLDEST))
        return f"torch {text} is older than those this course works with ({tried()}): pip install 'torch>={oldest}'"
    if torch_version(text) <= TORCH_NEWEST:
        return ""
    return f"torch {text} is newer than those this course was tried with ({tried()}); it may well work"


def tried() -> str:
    """The versions of torch that were tried."""
    return " to ".join(".".join(map(str, version)) for version in (TORCH_OLDEST, TORCH_NEWEST))


def say_untried_once() -> None:
    """Prints it at the first run of a kernel."""
    if not _said:
        _said.append(untried())
        if _said[0]:
            print(_said[0])


def installed() -> str:
    """What to tell with an error that is not the student's."""
    start = os.environ.get("HW_UTILS_START")
    return (
        f"hw_utils {sys.modules['hw_utils'].__version__}, torch {importlib.metadata.version('torch')}, "
        f"Python {platform.python_version()}, {platform.system()}{f', HW_UTILS_START={start}' if start else ''}"
    )


def what_to_do() -> str:
    """The next step after a failure of the kit itself."""
    newer = untried()
    return (
        f"your code is not the cause: run  {DOCTOR}  in a terminal"
        + (f"; {newer}" if newer else "")
        + f". If it finds nothing, show this to your instructor: {installed()}. "
        + ("On Windows, launch is for WSL2. " if platform.system() == "Windows" else "")
        + "Until then write simulate in the place of launch: it runs the same function in this one process"
    )
