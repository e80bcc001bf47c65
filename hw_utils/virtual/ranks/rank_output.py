"""What virtual ranks print: kept a rank, shown in whole lines with the rank in front."""

from __future__ import annotations

import io
import re
import sys
from collections import Counter

from hw_utils.core.printed_lines import Echo


class Streams:
    """Standard output and error of all ranks; `out` and `err` stand for sys.stdout and sys.stderr.

    shown: the lines of each rank that an attempt before this one has shown.
    """

    def __init__(self, engine, echo, shown: list[list[str]]) -> None:
        self.engine, self.echo = engine, None if echo is None else Echo(stream=echo)
        size = engine.world_size + 1
        self.parts: list[list[str]] = [[] for _ in range(size)]
        # Not printed again yet.
        self.before = [Counter(map(_form, lines)) for lines in shown] or [Counter() for _ in range(size)]
        self.here: list[list[str]] = [[] for _ in range(size)]
        self.out, self.err = _Stream(self, True, sys.stdout), _Stream(self, False, sys.stderr)

    def show(self, rank: int, lines: list[str]) -> None:
        """Prints whole lines, those of an earlier attempt left out: a warning between them may come only once."""
        before, new = self.before[rank], []
        self.here[rank] += lines
        for line in lines:
            if before[_form(line)]:
                before[_form(line)] -= 1
            else:
                new.append(line)
        self.echo.show(rank, new)

    @property
    def shown(self) -> list[list[str]]:
        """The lines of each rank that whoever looks on has seen."""
        return [[*lines, *before.elements()] for lines, before in zip(self.here, self.before)]

    def texts(self) -> list[str]:
        """What each rank printed; unfinished lines are shown now."""
        for stream in (self.out, self.err):
            stream.finish()
        return ["".join(parts) for parts in self.parts[:-1]]


def _form(line: str) -> str:
    """The line without its numbers: a time that is measured is another one in each attempt."""
    return re.sub(r"\d[\d.e+-]*", "#", line)


class _Stream(io.TextIOBase):
    """`below` is where threads of this process write that carry no rank."""

    def __init__(self, streams: Streams, is_kept: bool, below) -> None:
        self.streams, self.is_kept, self.below = streams, is_kept, below
        self.lines: dict[int, str] = {}  # rank -> its unfinished line

    encoding = "utf-8"

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        """Where programs that a rank starts, and the fault handler, write past it."""
        return self.below.fileno()

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        streams = self.streams
        if not streams.engine.threads.carries():
            return self.below.write(text)
        if streams.engine.ending.given_up is not None:
            return len(text)  # of a rank that has caught the attempt's end, as a bare `except` does
        rank = streams.engine.rank
        streams.engine.turns.random.require_own_seed(rank)  # before anybody sees what it has drawn
        if self.is_kept:
            streams.parts[rank].append(text)
        if streams.echo is not None:
            *lines, self.lines[rank] = (self.lines.get(rank, "") + text).split("\n")
            if lines:
                streams.show(rank, lines)
        return len(text)

    def finish(self) -> None:
        for rank, line in self.lines.items():
            if line:
                self.streams.show(rank, [line])
        self.lines.clear()
