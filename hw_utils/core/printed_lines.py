"""What ranks print: kept a rank, shown in whole lines with the rank in front."""

from __future__ import annotations

import codecs
import re
from typing import TextIO

MAX_KEPT_CHARS = 32_000_000  # a rank
MAX_SHOWN_CHARS = 1_000_000  # a run; a notebook with more is slow to open

# Log lines of torch's C++ parts, which say nothing to a student.
_NOISE = re.compile(
    r"^\[[WIE]\d{3,4}[ \d:.]*\s.*\]|^\[rank\d+\]:\[[WIE]\d+|^\[W\d+"
    r"|\[Gloo\] Rank \d+ is connected to|^[WIE]\d{4} [\d:.]+ "
)


class Stream:
    """One stream of one rank: bytes go in, the text is kept, whole lines come out."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._parts: list[str] = []
        self._kept = 0
        self._dropped = 0
        self._line = ""

    def feed(self, data: bytes, final: bool = False) -> list[str]:
        """The lines that are complete now, without their ends."""
        text = self._decoder.decode(data, final)
        self._keep(text)
        *lines, self._line = (self._line + text).split("\n")
        if final and self._line:
            lines, self._line = [*lines, self._line], ""
        return lines

    def _keep(self, text: str) -> None:
        room = MAX_KEPT_CHARS - self._kept
        if room > 0 and text:
            self._parts.append(text[:room])
        self._kept += len(text[:room]) if room > 0 else 0
        self._dropped += max(len(text) - max(room, 0), 0)

    @property
    def text(self) -> str:
        text = "".join(self._parts)
        return text + f"\n... ({self._dropped:,} more characters were dropped)\n" if self._dropped else text


def is_noise(line: str) -> bool:
    """Whether a line of stderr is torch's own log."""
    return bool(_NOISE.search(line))


def lines_shown(text: str, world_size: int) -> list[list[str]]:
    """The lines of each rank, and of nobody as the last, in what `Echo` has shown.

    >>> lines_shown("[rank 1] one\\n[rank 1] two\\n", 2)
    [[], ['one', 'two'], []]
    """
    lines: list[list[str]] = [[] for _ in range(world_size + 1)]
    for rank, line in re.findall(r"^\[rank (\d+)\] (.*)$", text, re.MULTILINE):
        if int(rank) < world_size:
            lines[int(rank)].append(line)
    return lines


class Echo:
    """Prints ranks' lines with `[rank 2] ` in front; stops after a million characters.

    stream: where to; None is what `sys.stdout` is when a line comes.
    """

    def __init__(self, enabled: bool = True, stream: TextIO | None = None) -> None:
        self.enabled, self.stream = enabled, stream
        self._shown = 0

    def show(self, rank: int, lines: list[str]) -> None:
        if not lines or not self.enabled:
            return
        text = "".join(f"[rank {rank}] {line}\n" for line in lines)
        self._shown += len(text)
        if self._shown > MAX_SHOWN_CHARS:
            self.enabled = False
            text = f"... the ranks print more than is shown here: see .output[{rank}] of the run\n"
        print(text, end="", file=self.stream, flush=True)
