"""Which line of the program asked for memory, and whether it was the program at all."""

from __future__ import annotations

import os
from pathlib import Path
from types import FrameType

from hw_utils.core.source.students_files import is_students

_ROOT = str(Path(__file__).absolute().parents[2])
# What moves messages: the tensors that it makes meanwhile are no rank's.
NETWORK_FILES = tuple(
    os.path.join(_ROOT, *parts)
    for parts in (
        ("gloo", ""), ("virtual", "traffic", ""), ("virtual", "groups", ""), ("virtual", "stores", ""),
        ("virtual", "engine.py"), ("virtual", "multiprocess", "packed_tensors.py"),
        ("virtual", "multiprocess", "remote_work.py"),
    )
)  # fmt: skip
_IMPORTING = "<frozen importlib"  # whose frames lie between the program and a module that it imports
STUDENTS, NOBODYS, BETWEEN = range(3)
NOBODY = -1


class Sites:
    """Lines as small numbers; 0 is none."""

    def __init__(self) -> None:
        self.sites: list[tuple[str, int]] = [("", 0)]
        self._numbers: dict[tuple[str, int], int] = {self.sites[0]: 0}
        self._kinds: dict[str, int] = {}  # file -> whose it is

    def of(self, frame: FrameType | None) -> int:
        """The number of the innermost line of the program at or above `frame`.

        NOBODY if the network comes first, or a package that is being imported: only the first rank of a process imports
        it, and none if the process has had it before.
        """
        while frame is not None:
            file = frame.f_code.co_filename
            kind = self._kinds.get(file)
            if kind is None:
                kind = self._kinds[file] = _kind(file)
            if kind == STUDENTS:
                return self._number((file, frame.f_lineno))
            if kind == NOBODYS:
                return NOBODY
            frame = frame.f_back
        return 0

    def _number(self, site: tuple[str, int]) -> int:
        number = self._numbers.get(site)
        if number is None:
            number = self._numbers[site] = len(self.sites)
            self.sites.append(site)
        return number


def _kind(file: str) -> int:
    if file.startswith((*NETWORK_FILES, _IMPORTING)):
        return NOBODYS
    return STUDENTS if is_students(file) else BETWEEN
