"""Bars along a time axis: when something went on, and what of a rank has a row of its own."""

from __future__ import annotations

import numpy as np

from hw_utils.core.trace import Trace


def merged(start_s: np.ndarray, end_s: np.ndarray) -> np.ndarray:
    """The union of intervals as rows (start, end), in order; empty ones are dropped.

    >>> merged(np.array([0.0, 1.0, 4.0]), np.array([2.0, 3.0, 5.0])).tolist()
    [[0.0, 3.0], [4.0, 5.0]]
    """
    keep = end_s > start_s
    start_s, end_s = start_s[keep], end_s[keep]
    if not len(start_s):
        return np.zeros((0, 2))
    order = np.argsort(start_s, kind="stable")
    start_s, latest = start_s[order], np.maximum.accumulate(end_s[order])
    first = np.flatnonzero(np.concatenate([[True], start_s[1:] > latest[:-1]]))
    return np.column_stack([start_s[first], latest[np.concatenate([first[1:] - 1, [len(latest) - 1]])]])


def rows_of(trace: Trace, rank: int) -> list[tuple[str, str, np.ndarray]]:
    """(kind, name, its spans) of each stream of a rank's device and of each group that it communicates in."""
    streams, records = trace.streams[trace.streams["rank"] == rank], trace.records[trace.records["rank"] == rank]
    rows = []
    for number in np.unique(streams["stream"]).tolist():
        mine = streams[streams["stream"] == number]
        rows.append(("compute", f"stream {number}", merged(mine["start_s"], mine["end_s"])))
    for number in np.unique(records["group"]).tolist():
        mine = records[records["group"] == number]
        rows.append(("communication", f"group {number}", merged(mine["start_s"], mine["end_s"])))
    return rows


def lane(ax, spans: np.ndarray, factor: float, top: float, height: float, color: str) -> None:
    """Bars at `top` where the spans are."""
    ax.broken_barh([(a * factor, (b - a) * factor) for a, b in spans], (top, height), color=color, linewidth=0)
