"""Pictures of a run's memory: whose bytes over time, a lane a rank, and whose at each rank's peak.

`plots.plot_timeline_and_memory(run)` puts the lanes under the timeline, on one time axis.
"""

from __future__ import annotations

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from hw_utils.core.memory.memory_timeline import Memory
from hw_utils.core.memory.owners import OWNERS
from hw_utils.pictures.figure import FEW_RANKS, alt, axes, bytes_text, outside_legend, seconds_unit

OWNER_COLORS = dict(
    zip(OWNERS, ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#BDBDBD"), strict=True)
)
MOST_LANES = 16
MOST_POINTS = 2_000  # of a lane: of more, each stretch of time is drawn with what it held at its most
MOST_CORNERS = 4_000  # of all areas together: more are an image in the picture, else its page would be too large
_GAP = 0.12  # of a lane, above it


def plot_memory(memory: Memory, ax=None, *, end_s: float | None = None):
    """A lane a rank, time across: the bytes that it holds, stacked by owner; all lanes have one scale.

    end_s: when the run ended, if later than its last allocation. A dashed line is the capacity, if the run had one. A
    mark says where the peak is: it may last no time at all, and then its stack cannot be seen.
    Of more than 16 ranks, those of the highest peaks are drawn.

    Raises:
        ValueError: there is no memory to draw.
    """
    ranks = _shown(memory)
    ax = axes(ax, height=min(1.4 + 0.75 * max(len(ranks), 2), 9.0))
    top = lane_bytes(memory)
    end_s = max(end_s or 0.0, float(memory.records["time_s"].max(initial=0.0)))
    factor, unit = seconds_unit(end_s)
    is_dense = len(memory.owners) * sum(min(len(memory.of_rank(r)), MOST_POINTS) for r in ranks) > MOST_CORNERS
    for lane, rank in enumerate(ranks):
        _lane(ax, memory, rank, lane, top / (1 - _GAP), end_s, factor, is_dense)
    ax.set_xlim(0, end_s * factor * 1.02 or 1.0)
    ax.set_xlabel(f"time [{unit}]")
    ax.set_ylim(len(ranks), 0)
    ax.set_yticks([lane + 1 for lane in range(len(ranks))], [str(rank) for rank in ranks])
    ax.set_ylabel("rank")
    ax.set_title(f"bytes that each rank holds; a lane is {bytes_text(top)} high", loc="left", fontsize="medium")
    outside_legend(ax, _legend(memory, with_peak=True))
    return alt(ax, describe_memory(memory))


def plot_memory_bars(memory: Memory, ax=None):
    """A bar a rank: what it held at its peak, stacked by owner; a dashed line is the capacity, if the run had one.

    Of more than 16 ranks, those of the highest peaks are drawn.
    """
    ranks = _shown(memory)
    ax = axes(ax, width=min(3.4 + 0.5 * max(len(ranks), 4), 9.0))
    peaks = [memory.peak(rank) for rank in ranks]
    below = np.zeros(len(ranks))
    for owner in memory.owners:
        held = np.array([peak.by_owner.get(owner, 0) for peak in peaks], float)
        ax.bar(range(len(ranks)), held, bottom=below, color=OWNER_COLORS[owner], width=0.7)
        below += held
    if memory.capacity_bytes is not None:
        ax.axhline(memory.capacity_bytes, color="#000000", linestyle=(0, (6, 4)), linewidth=1)
    if len(ranks) <= FEW_RANKS // 2:
        for place, peak in enumerate(peaks):
            ax.annotate(
                bytes_text(peak.n_bytes), (place, peak.n_bytes), ha="center", va="bottom", xytext=(0, 2),
                textcoords="offset points", fontsize="small",
            )  # fmt: skip
    ax.set_xticks(range(len(ranks)), [str(rank) for rank in ranks])
    ax.set_xlabel("rank")
    ax.set_ylabel("bytes at its peak")
    ax.margins(y=0.12)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda n, _: bytes_text(n)))
    ax.set_title("what each rank holds at its peak", loc="left", fontsize="medium")
    outside_legend(ax, _legend(memory, with_peak=False))
    return alt(ax, f"Stacked bars of the memory that each rank holds at its peak, by owner. {_peaks(memory, ranks)}")


def lane_bytes(memory: Memory) -> int:
    """What a lane is high: the highest peak of any rank, or the capacity."""
    peaks = (memory.peak_bytes(rank) for rank in range(memory.world_size))
    return max(*peaks, memory.capacity_bytes or 0, 1)


def _shown(memory: Memory) -> list[int]:
    """All ranks, or those with the highest peaks, in order."""
    if not len(memory.records):
        raise ValueError("no rank held any memory: there is nothing to draw")
    peaks = [memory.peak_bytes(rank) for rank in range(memory.world_size)]
    highest = sorted(range(memory.world_size), key=lambda rank: (-peaks[rank], rank))[:MOST_LANES]
    return sorted(highest)


def _lane(ax, memory: Memory, rank: int, lane: int, top: float, end_s: float, factor: float, is_dense: bool) -> None:
    """The rank's stack, from the lane's floor, which is at lane + 1, upwards; as an image if it is dense."""
    times_s, held = thinned(*memory.series(rank), end_s)
    x = np.concatenate([[0.0], times_s, [end_s]]) * factor
    levels = np.vstack([np.zeros((1, len(OWNERS))), held, held[-1:] if len(held) else np.zeros((1, len(OWNERS)))])
    edges = lane + 1 - np.cumsum(levels, axis=1) / top
    owners = [column for column in range(len(OWNERS)) if levels[:, column].any()]
    for column in reversed(owners):  # each down to the floor, and the ones below it over that
        edge, color = edges[:, column], OWNER_COLORS[OWNERS[column]]
        area = ax.fill_between(x, edge, lane + 1, step="post", color=color, linewidth=0)
        area.set_rasterized(is_dense)
    peak = memory.peak(rank)
    ax.plot(peak.time_s * factor, lane + 1 - peak.n_bytes / top, "v", color="#000000", markersize=4, clip_on=False)
    ax.plot([0, end_s * factor], [lane + 1, lane + 1], color="#E5E5E5", linewidth=1, zorder=0)
    if memory.capacity_bytes is not None:
        ax.plot(
            [0, end_s * factor], [lane + 1 - memory.capacity_bytes / top] * 2, color="#000000", linewidth=1,
            linestyle=(0, (6, 4)),
        )  # fmt: skip


def thinned(
    times_s: np.ndarray, held: np.ndarray, end_s: float, most: int = MOST_POINTS
) -> tuple[np.ndarray, np.ndarray]:
    """At most `most` points of a series (k,), (k, owners): of each stretch of time the moment of its highest total.

    What is left at one time shows as the last of it; so of several records at one time the highest is kept before it.
    """
    if len(times_s) <= most:
        return times_s, held
    stretch = np.minimum((times_s / (end_s or 1.0) * (most // 2)).astype(int), most // 2 - 1)
    totals, kept = held.sum(axis=1), []
    first = np.flatnonzero(np.concatenate([[True], stretch[1:] != stretch[:-1]]))
    for start, stop in zip(first, [*first[1:], len(stretch)]):
        kept += sorted({start + int(np.argmax(totals[start:stop])), stop - 1})
    return times_s[kept], held[kept]


def _legend(memory: Memory, *, with_peak: bool) -> list:
    handles = [Patch(color=OWNER_COLORS[owner], label=owner) for owner in reversed(memory.owners)]
    if with_peak:
        handles.append(Line2D([], [], color="#000000", marker="v", markersize=4, linestyle="", label="peak"))
    if memory.capacity_bytes is not None:
        label = f"capacity\n{bytes_text(memory.capacity_bytes)}"
        handles.append(Line2D([], [], color="#000000", linestyle=(0, (6, 4)), linewidth=1, label=label))
    return handles


def describe_memory(memory: Memory) -> str:
    """What each rank held at its peak, in words, for those who do not see a picture of it."""
    return f"Memory over time, a lane a rank, stacked by owner. {_peaks(memory, _shown(memory))}"


def _peaks(memory: Memory, ranks: list[int]) -> str:
    words = []
    for rank in ranks:
        peak = memory.peak(rank)
        most = max(peak.by_owner, key=peak.by_owner.get, default="nobody")
        words.append(f"rank {rank} {bytes_text(peak.n_bytes)}, most of it {most}")
    left = memory.world_size - len(ranks)
    return f"Peaks: {'; '.join(words)}{f'; {left} more ranks are lower' if left else ''}."
