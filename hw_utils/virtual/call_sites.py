"""The student's lines as small numbers: which line of which cell called, looked up once a call site."""

from __future__ import annotations

from types import FrameType

from hw_utils.core.errors import Frame
from hw_utils.core.source.lines import Where, locate
from hw_utils.core.source.students_files import is_students


class Places:
    """Call sites, each with a number; `here` finds the number of the line that is running."""

    def __init__(self) -> None:
        self.sites: list[tuple[str, int, str]] = [("", 0, "")]  # file, line, function
        self._number: dict[tuple[str, int, str], int] = {self.sites[0]: 0}
        self._direct: dict[int, dict[int, int]] = {}  # id of a code object -> instruction -> number
        self._codes: list = []  # keeps the code objects alive, so that an id stays theirs
        self._library: set[int] = set()

    def of(self, frame: FrameType | None) -> int:
        """The number of the innermost student's line at or above `frame`; 0 if there is none."""
        if frame is None:
            return 0
        code = frame.f_code
        known = self._direct.get(id(code))
        if known is not None:
            number = known.get(frame.f_lasti)
            if number is not None:
                return number
        while frame is not None and not self._is_students(frame.f_code):
            frame = frame.f_back
        return 0 if frame is None else self._add(frame)

    def learn(self, frame: FrameType, sites: dict) -> int:
        """The same; `sites` gets instruction -> (code, number) if it is the student's own frame that calls."""
        number = self.of(frame)
        if id(frame.f_code) in self._direct:
            sites[frame.f_lasti] = frame.f_code, number
        return number

    def _is_students(self, code) -> bool:
        if id(code) in self._library:
            return False
        if id(code) in self._direct:
            return True
        self._codes.append(code)
        if is_students(code.co_filename):
            self._direct[id(code)] = {}
            return True
        self._library.add(id(code))
        return False

    def _add(self, frame: FrameType) -> int:
        site = (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        number = self._number.get(site)
        if number is None:
            number = self._number[site] = len(self.sites)
            self.sites.append(site)
        self._direct[id(frame.f_code)][frame.f_lasti] = number
        return number

    def number_of(self, site: tuple[str, int, str]) -> int:
        """The number of a (file, line, function) that another process has found."""
        if site not in self._number:
            self._number[site] = len(self.sites)
            self.sites.append(site)
        return self._number[site]

    def where(self, number: int) -> Where | None:
        file, line, _ = self.sites[number]
        return locate(file, line) if file else None

    def frames(self, number: int) -> tuple[Frame, ...]:
        where = self.where(number)
        return (Frame(where, self.sites[number][2]),) if where else ()
