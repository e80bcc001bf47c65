"""Which chunk, holding which partial sum, is on which rank, step by step."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from matplotlib.patches import Rectangle

from hw_utils.pictures.figure import COLORS, alt, axes

Cell = Any  # a collection of ranks, or a number whose decimal digit r says how often rank r is in it
Frame = Sequence[Sequence[Cell]]  # frame[rank][chunk]
_PER_ROW = 4
_SHADES = ("#FFFFFF", "#DCEAF4", "#B3D2E8", "#80B5D9", "#2B7DB3", COLORS["compute"])


def contributors(cell: Cell) -> tuple[int, ...]:
    """The ranks whose share is in a cell, in order; one that is in it twice stands twice.

    A number is read as a sum of 10**r:

    >>> contributors({2, 0}), contributors(1101), contributors(20)
    ((0, 2), (0, 2, 3), (1, 1))
    """
    if isinstance(cell, Collection) and not isinstance(cell, str):
        return tuple(sorted(int(rank) for rank in cell))
    digits = reversed(str(abs(int(cell))))
    return tuple(rank for rank, digit in enumerate(digits) for _ in range(int(digit)))


def plot_chunks(frames: Sequence[Frame], ax=None, *, labels: Sequence[str] | None = None):
    """Every step as a small table, ranks down, chunks across: the ranks whose shares a chunk holds by then.

    frames[step][rank][chunk]: a set of ranks, or a number that is a sum of 10**rank. labels: a title a step.
    """
    ranks, chunks = len(frames[0]), max(map(len, frames[0]))
    columns = min(len(frames), _PER_ROW)
    rows = math.ceil(len(frames) / columns)
    ax = axes(ax, width=min(2.4 * columns + 0.6, 10.2), height=min(0.5 + rows * (0.75 + 0.36 * ranks), 12))
    for step, frame in enumerate(frames):
        label = labels[step] if labels else "start" if step == 0 else f"after step {step}"
        _draw(ax, frame, (step % columns) * (chunks + 1.2), (step // columns) * (ranks + 1.9), label)
    ax.set_xlim(-1.0, columns * (chunks + 1.2) - 1.0)
    ax.set_ylim(rows * (ranks + 1.9) - 1.5, -1.2)
    return _finish(ax, f"{len(frames)} tables, one a step, ranks down and chunks across. {_last(frames[-1])}")


def plot_chunk_frame(frame: Frame, ax=None, *, label: str = ""):
    """One step of `plot_chunks`."""
    ranks, chunks = len(frame), max(map(len, frame))
    ax = axes(ax, width=1.2 + 0.9 * chunks, height=1.2 + 0.5 * ranks)
    _draw(ax, frame, 0.0, 0.0, label)
    ax.set_xlim(-1.0, chunks + 0.2)
    ax.set_ylim(ranks + 0.2, -1.2)
    return _finish(ax, f"Ranks down and chunks across. {_last(frame)}")


def _draw(ax, frame: Frame, left: float, top: float, label: str) -> None:
    whole = len(frame)
    size = 9 if whole <= 4 else 8
    ax.text(left, top - 0.75, label, fontsize=9, va="center")
    for chunk in range(max(map(len, frame))):
        ax.text(left + chunk + 0.5, top - 0.25, f"c{chunk}", ha="center", va="center", fontsize=8, color="#555555")
    for rank, cells in enumerate(frame):
        ax.text(left - 0.12, top + rank + 0.5, f"r{rank}", ha="right", va="center", fontsize=8, color="#555555")
        for chunk, cell in enumerate(cells):
            held = contributors(cell)
            color, ink = _shade(held, whole)
            ax.add_patch(Rectangle((left + chunk, top + rank), 1, 1, facecolor=color, edgecolor="#777777", lw=0.7))
            ax.text(
                left + chunk + 0.5, top + rank + 0.5, _cell_text(held, whole), ha="center", va="center",
                fontsize=size, color=ink,
            )  # fmt: skip


def _shade(held: tuple[int, ...], whole: int) -> tuple[str, str]:
    if len(set(held)) < len(held):
        return COLORS["lost"], "white"  # a share counted twice is never right
    level = round(len(held) / whole * (len(_SHADES) - 1))
    return _SHADES[level], "white" if level >= 4 else "black"


def _cell_text(held: tuple[int, ...], whole: int) -> str:
    if len(held) == whole and len(set(held)) == whole:
        return "all"
    if len(held) > 4:
        return f"{len(held)} of {whole}"
    return "+".join(map(str, held)) if whole <= 5 else ",".join(map(str, held))


def _last(frame: Frame) -> str:
    done = sum(set(contributors(cell)) == set(range(len(frame))) for cells in frame for cell in cells)
    return f"In the end {done} of {sum(map(len, frame))} chunks hold every rank's share."


def _finish(ax, text: str):
    ax.set_axis_off()
    return alt(ax, f"Which chunk is where: {text}")
