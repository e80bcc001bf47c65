"""The timeline of ranks that have devices: when each stream was busy."""

from __future__ import annotations

import numpy as np

from hw_utils.core.trace import Trace
from hw_utils.pictures.figure.busy_spans import merged, rows_of
from hw_utils.pictures.player.views import MOST_LANES, WIDTH, Scale, bar, sheet


def timeline(trace: Trace, end_s: float, label: str) -> str:
    """Under each rank's name a row a stream of its device, when it was busy, and a row a group."""
    rows: list[tuple[str, str, np.ndarray]] = []
    for rank in range(trace.world_size):
        of_rank = [("", f"rank {rank}", np.zeros((0, 2))), *rows_of(trace, rank)]
        if rows and len(rows) + len(of_rank) > MOST_LANES:
            break
        rows += of_rank
    shown = Scale(end_s, len(rows))
    kinds = {"compute": "compute", "communication": "traffic"}
    parts = [
        bar(kinds[kind], a, b, row - 0.36, 0.72, shown)
        for row, (kind, _, spans) in enumerate(rows)
        for a, b in _coarse(spans, shown)
    ]
    return sheet(shown, label, parts, [name for _, name, _ in rows])


def _coarse(spans: np.ndarray, scale: Scale) -> np.ndarray:
    """The spans, those that lie closer than half a unit as one where there are more than a page can show apart."""
    if len(spans) <= 2 * WIDTH:
        return spans
    half = scale.end_s / WIDTH / 2
    return merged(np.floor(spans[:, 0] / half) * half, np.ceil(spans[:, 1] / half) * half)
