"""What a run gives back, whether on real processes or on a virtual cluster."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hw_utils.core.trace import Trace

_SHOWN_RANKS = 16
_SHOWN_CHARS = 2_000
_PRE = "margin:0;background:transparent;word-break:normal;overflow-wrap:break-word"  # the row's colour, whole numbers


@dataclass(frozen=True)
class Run:
    """The results of `launch` or `simulate`, in rank order; shows itself in a notebook.

    `run[r]`, `len(run)` and iteration are those of `results`.
    """

    results: list[Any]
    seconds: float  # wall seconds for launch, virtual seconds for simulate
    output: list[str]  # what each rank printed
    trace: Trace
    clock: str = "wall"  # or "virtual"
    kept_memory: Any = field(default=None, repr=False, compare=False)  # a Memory, if the run was asked to keep it

    def __getitem__(self, rank: int) -> Any:
        return self.results[rank]

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.results)

    @property
    def memory(self) -> Any:
        """The bytes that each rank held, by owner, over time: a `hw_utils.core.memory.Memory`.

        Raises:
            ValueError: the run was not asked to keep it.
        """
        if self.kept_memory is None:
            raise ValueError("this run kept no memory: ask for it, simulate(worker, 4, memory=True), or launch alike")
        return self.kept_memory

    def save(self, path: str | Path, *, title: str = "") -> Path:
        """Writes the run as one HTML page that plays (`pictures.player`): no server, kernel or network is needed.

        Raises:
            ValueError: the name does not end in .html.
        """
        from hw_utils.pictures.player import play

        return play(self, title=title).save(path)

    def summary(self) -> str:
        """One line: ranks, seconds, messages, bytes."""
        kind = "real" if self.clock == "wall" else "virtual"
        ranks = "1 rank" if len(self) == 1 else f"{len(self)} ranks"
        messages = sum(self.trace.messages_sent(r) for r in range(len(self)))
        n_bytes = sum(self.trace.bytes_sent(r) for r in range(len(self)))
        return f"{ranks}, {self.seconds:.4g} {kind} seconds, {messages:,} messages, {n_bytes:,} bytes"

    def _rows(self) -> list[tuple[str, str, str, str, str]]:
        return [
            (
                str(r),
                _short(repr(result)),
                f"{self.trace.messages_sent(r):,}",
                f"{self.trace.bytes_sent(r):,}",
                _short(self.output[r].rstrip("\n")),
            )
            for r, result in enumerate(self.results[:_SHOWN_RANKS])
        ]

    def __repr__(self) -> str:
        head = ("rank", "result", "messages sent", "bytes sent", "output")
        return "\n".join([self.summary(), *_columns([head, *self._rows()]), *self._more()])

    def _more(self) -> list[str]:
        left = len(self) - _SHOWN_RANKS
        return [f"... and {left} more ranks"] if left > 0 else []

    def _repr_html_(self) -> str:
        head = "".join(
            f'<th scope="col" style="text-align:left">{name}</th>'
            for name in ("rank", "result", "messages sent", "bytes sent", "output")
        )
        rows = "".join(
            f'<tr><th scope="row">{row[0]}</th>'
            + "".join(
                f'<td style="text-align:left"><pre style="{_PRE}">{html.escape(cell)}</pre></td>' for cell in row[1:]
            )
            + "</tr>"
            for row in self._rows()
        )
        more = "".join(f"<p>{line}</p>" for line in self._more())
        return (
            f"<table><caption>{html.escape(self.summary())}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{more}"
        )


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + f" ... ({len(text):,} characters)"


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    rows = [[cell.replace("\n", " ⏎ ") for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in rows]
