"""Pictures of a run: each `plot_*` takes records and `ax=None`, draws, and returns the Axes.

Figures have an opaque light ground, so that they read in a dark notebook too, and carry their alt text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from hw_utils.core.hardware import Network
from hw_utils.core.run_result import Run
from hw_utils.core.trace import SENDS, Trace
from hw_utils.pictures.chunks import plot_chunk_frame, plot_chunks
from hw_utils.pictures.figure import (
    COLORS,
    FEW_RANKS,
    MARKERS,
    SERIES,
    alt,
    axes,
    bytes_text,
    outside_legend,
    seconds_unit,
)
from hw_utils.pictures.figure.busy_spans import lane, merged, rows_of
from hw_utils.pictures.memory import MOST_LANES, plot_memory, plot_memory_bars

__all__ = [
    "COLORS", "alt", "axes", "bytes_text", "describe", "merged", "outside_legend", "plot_bytes", "plot_chunk_frame",
    "plot_chunks", "plot_lines", "plot_link", "plot_memory", "plot_memory_bars", "plot_space_time", "plot_timeline",
    "plot_timeline_and_memory", "seconds_unit",
]  # fmt: skip


_TINTS = (COLORS["collective"], "#7A3B61", "#EBC4D8", "#A65A86")  # collectives: one hue, a tint an operation


def describe(trace: Trace) -> str:
    """One sentence on what happened in a run, for those who do not see its picture."""
    calls = ", ".join(f"{n:,} {op}" for op, n in sorted(trace.calls.items())) or "no communication"
    sent = [trace.bytes_sent(r) for r in range(trace.world_size)]
    low, high = (min(sent), max(sent)) if sent else (0, 0)
    spread = bytes_text(low) if low == high else f"{bytes_text(low)} to {bytes_text(high)}"
    factor, unit = seconds_unit(_end_s(trace))
    ranks = "1 rank" if trace.world_size == 1 else f"{trace.world_size:,} ranks"
    return f"{ranks} over {_end_s(trace) * factor:.3g} {unit}: {calls}; a rank sends {spread}."


def _end_s(trace: Trace) -> float:
    return float(max(trace.records["end_s"].max(), trace.records["wait_end_s"].max())) if len(trace) else 0.0


def _ranks_down(ax, world_size: int) -> None:
    ax.set_ylim(world_size - 0.5, -0.5)
    ax.set_ylabel("rank")
    if world_size <= FEW_RANKS:
        ax.set_yticks(range(world_size))
    else:
        ax.yaxis.set_major_locator(MaxNLocator(integer=True))


def _time_across(ax, end_s: float) -> float:
    factor, unit = seconds_unit(end_s)
    ax.set_xlabel(f"time [{unit}]")
    ax.set_xlim(0, end_s * factor * 1.02 or 1.0)
    return factor


def _rank_height(trace: Trace) -> float:
    return min(1.2 + 0.45 * max(trace.world_size, 2), 7.5)


def plot_space_time(trace: Trace, ax=None):
    """Ranks down, time across; an arrow from each message's send to its arrival, a bar a collective and rank."""
    ax = axes(ax, height=_rank_height(trace))
    _ranks_down(ax, max(trace.world_size, 1))
    factor = _time_across(ax, _end_s(trace))
    ax.hlines(range(trace.world_size), 0, _end_s(trace) * factor, color="#E5E5E5", linewidth=1, zorder=0)
    records = trace.records
    waits = records[(records["wait_end_s"] > records["wait_start_s"]) & (records["peer"] >= 0)]
    _bars(ax, waits, "wait_start_s", "wait_end_s", factor, COLORS["waiting"], width=5, zorder=1)
    _draw_messages(ax, trace, factor)
    _draw_collectives(ax, trace, factor)
    ax.set_title("who sends to whom, when", loc="left", fontsize="medium")
    outside_legend(ax, _space_time_legend(trace))
    return alt(ax, "Space-time diagram, ranks down, time across. " + describe(trace))


def _bars(ax, records, start: str, end: str, factor: float, color: str, width: float, zorder: float) -> None:
    y = records["rank"].astype(float)
    ends = [np.column_stack([records[name] * factor, y]) for name in (start, end)]
    ax.add_collection(
        LineCollection(np.stack(ends, axis=1), colors=color, linewidths=width, capstyle="butt", zorder=zorder)
    )


def _pairs(trace: Trace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(sends, their receives, what nobody matched) among the point-to-point records."""
    records = trace.records[trace.records["peer"] >= 0]
    sends = np.isin(records["op"], [i for i, name in enumerate(trace.names) if name in SENDS])
    matched = records["message"] >= 0
    out, back = records[sends & matched], records[~sends & matched]
    _, left, right = np.intersect1d(out["message"], back["message"], return_indices=True)
    return out[left], back[right], records[~matched]


def _draw_messages(ax, trace: Trace, factor: float) -> None:
    out, back, lost = _pairs(trace)
    if len(out):
        x, y = out["start_s"] * factor, out["rank"].astype(float)
        dx, dy = back["end_s"] * factor - x, back["rank"] - y
        width, opacity = (0.014, 1.0) if len(x) < 500 else (0.006, 0.5)
        ax.quiver(
            x, y, dx, dy, angles="xy", scale_units="xy", scale=1, units="inches", width=width, headwidth=7,
            headlength=8, headaxislength=7, minlength=0, color=COLORS["message"], alpha=opacity, zorder=3,
        )  # fmt: skip
    if len(lost):
        ax.plot(lost["start_s"] * factor, lost["rank"], "x", color=COLORS["lost"], markersize=8, zorder=4)


def _collectives(trace: Trace) -> dict[str, tuple[np.ndarray, str]]:
    """Operation -> (its records, its tint)."""
    records = trace.records[trace.records["peer"] < 0]
    names = sorted({trace.names[i] for i in np.unique(records["op"])})
    codes = {name: [i for i, other in enumerate(trace.names) if other == name] for name in names}
    return {
        name: (records[np.isin(records["op"], codes[name])], _TINTS[i % len(_TINTS)]) for i, name in enumerate(names)
    }


def _draw_collectives(ax, trace: Trace, factor: float) -> None:
    for records, tint in _collectives(trace).values():
        _bars(ax, records, "start_s", "end_s", factor, tint, width=7, zorder=2)
        x, rank = records["start_s"] * factor, records["rank"]
        ticks = np.stack([np.column_stack([x, rank - 0.12]), np.column_stack([x, rank + 0.12])], axis=1)
        ax.add_collection(LineCollection(ticks, colors="white", linewidths=0.8, zorder=2.1))  # one bar from the next
        _join_members(ax, records, factor, tint)


def _join_members(ax, records: np.ndarray, factor: float, tint: str) -> None:
    """A line through a collective's bars at the moment when its last member called: from then on it can go through."""
    order = np.argsort(records["message"], kind="stable")
    _, first = np.unique(records["message"][order], return_index=True)
    rank = records["rank"][order]
    x = np.maximum.reduceat(records["start_s"][order], first) * factor
    top, bottom = np.minimum.reduceat(rank, first), np.maximum.reduceat(rank, first)
    lines = np.stack([np.column_stack([x, top]), np.column_stack([x, bottom])], axis=1).astype(float)
    ax.add_collection(LineCollection(lines, colors=tint, linewidths=1.2, linestyles=":", zorder=1.9))


def _space_time_legend(trace: Trace) -> list[Any]:
    records, handles = trace.records, []
    if (records["peer"] >= 0).any():
        handles.append(Line2D([], [], color=COLORS["message"], marker=">", label="message"))
    if ((records["wait_end_s"] > records["wait_start_s"]) & (records["peer"] >= 0)).any():
        handles.append(Line2D([], [], color=COLORS["waiting"], linewidth=5, label="rank stands still"))
    for name, (_, tint) in _collectives(trace).items():
        handles.append(Line2D([], [], color=tint, linewidth=7, label=name))
    if (records["peer"] < 0).any():
        handles.append(Line2D([], [], color=_TINTS[0], linestyle=":", label="the last one has called"))
    if ((records["peer"] >= 0) & (records["message"] < 0)).any():
        handles.append(Line2D([], [], color=COLORS["lost"], marker="x", linestyle="", label="nobody matched it"))
    return handles


def plot_timeline(trace: Trace, ax=None, *, end_s: float | None = None):
    """Per rank, above: computing or standing still; below: its communication under way. Side by side is overlap.

    Of ranks with a device each (`compute="device"`): a row a stream, and one for each group that they communicate in.
    end_s: when the run ended, if later than its last communication.
    """
    if len(trace.streams):
        return _plot_streams(trace, ax, end_s or 0.0)
    ax = axes(ax, height=_rank_height(trace) + 0.3)
    _ranks_down(ax, max(trace.world_size, 1))
    end_s = max(end_s or 0.0, _end_s(trace))
    factor = _time_across(ax, end_s)
    for rank in range(trace.world_size):
        mine = trace.records[trace.records["rank"] == rank]
        waits = merged(mine["wait_start_s"], mine["wait_end_s"])
        under_way = merged(mine["start_s"], mine["end_s"])
        lane(ax, np.array([[0.0, end_s]]), factor, rank - 0.38, 0.42, COLORS["compute"])
        lane(ax, waits, factor, rank - 0.38, 0.42, COLORS["waiting"])
        lane(ax, under_way, factor, rank + 0.06, 0.26, COLORS["communication"])
    ax.set_title("what each rank does, and when", loc="left", fontsize="medium")
    kinds = {"compute": "compute", "waiting": "standing still", "communication": "communication\nunder way"}
    outside_legend(ax, [Patch(color=COLORS[kind], label=label) for kind, label in kinds.items()])
    return alt(ax, "Timeline, a pair of bars a rank: compute and standing still; communication. " + describe(trace))


def _plot_streams(trace: Trace, ax, end_s: float):
    rows = [rows_of(trace, rank) for rank in range(trace.world_size)]
    most = max(map(len, rows))
    ax = axes(ax, height=min(1.2 + 0.22 * trace.world_size * most, 7.5) + 0.3)
    _ranks_down(ax, trace.world_size)
    factor = _time_across(ax, max(end_s, _end_s(trace), float(trace.streams["end_s"].max())))
    for rank, of_rank in enumerate(rows):
        height = 0.84 / max(len(of_rank), 1)
        for i, (kind, _, spans) in enumerate(of_rank):
            lane(ax, spans, factor, rank - 0.42 + i * height, 0.84 * height, COLORS[kind])
    ax.set_title("what each rank's streams do, and when", loc="left", fontsize="medium")
    kinds = {"compute": "operations,\na row a stream", "communication": "communication,\na row a group"}
    outside_legend(ax, [Patch(color=COLORS[kind], label=label) for kind, label in kinds.items()])
    names = "; ".join(f"rank {rank}: " + ", ".join(name for _, name, _ in r) for rank, r in enumerate(rows[:FEW_RANKS]))
    return alt(ax, f"Timeline of streams and groups, rows from above: {names}. " + describe(trace))


def plot_timeline_and_memory(run: Run):
    """The timeline of a run above, the memory of its ranks below, on one time axis; (upper Axes, lower Axes).

    Raises:
        ValueError: the run kept no memory.
    """
    memory, n_ranks = run.memory, max(len(run), 2)
    heights = min(1.2 + 0.45 * n_ranks, 6.0), min(1.2 + 0.75 * min(n_ranks, MOST_LANES), 8.0)
    figure, (upper, lower) = plt.subplots(
        2, 1, sharex=True, figsize=(8.0, sum(heights)), height_ratios=heights, layout="constrained"
    )
    figure.set_facecolor("white")
    plot_timeline(run.trace, upper, end_s=run.seconds)
    upper.set_xlabel("")
    plot_memory(memory, lower, end_s=max(run.seconds, float(run.trace.records["end_s"].max(initial=0.0))))
    return upper, lower


def plot_bytes(trace: Trace, ax=None):
    """A bar a rank: the bytes that it put on the wire."""
    ax = axes(ax)
    sent = [trace.bytes_sent(r) for r in range(trace.world_size)]
    bars = ax.bar(range(len(sent)), sent, color=COLORS["communication"], width=0.7)
    if len(sent) <= FEW_RANKS:
        ax.bar_label(bars, [bytes_text(n) for n in sent], padding=2)
        ax.set_xticks(range(len(sent)))
    ax.set_xlabel("rank")
    ax.set_ylabel("bytes sent")
    ax.margins(y=0.12)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda n, _: bytes_text(n)))
    ax.set_title("what each rank sends", loc="left", fontsize="medium")
    amounts = ", ".join(f"rank {r} {bytes_text(n)}" for r, n in enumerate(sent[:FEW_RANKS]))
    return alt(ax, f"Bars of the bytes sent by each rank: {amounts}.")


def plot_link(sizes_bytes: Sequence[float], seconds: Sequence[float], fit: Network | None = None, ax=None):
    """The time of a message against its size, log-log: measured points, and the fitted line if there is one."""
    sizes = np.asarray(sizes_bytes, float)
    predicted = None if fit is None else {"link": _line(fit, sizes)}
    ax = plot_lines(
        {"link": (sizes, seconds)},
        predicted,
        x_label="message [bytes]",
        y_label="time [s]",
        title="what a message costs",
        ax=ax,
    )
    text = "Time of a message against its size, measured."
    handles = [Line2D([], [], color=SERIES[0], marker="o", linestyle="", label="measured")]
    if fit is not None:
        factor, unit = seconds_unit(fit.latency_s)
        label = f"{fit.latency_s * factor:.3g} {unit} + bytes / ({bytes_text(fit.bandwidth_Bps)}/s)"
        handles.append(Line2D([], [], color=SERIES[0], label=f"fit: {label.replace(' + ', chr(10) + '+ ')}"))
        text = f"Time of a message against its size, measured, and the fitted line {label}."
    outside_legend(ax, handles)
    return alt(ax, text)


def _line(link: Network, sizes: np.ndarray) -> tuple[np.ndarray, list[float]]:
    n_bytes = np.geomspace(max(sizes.min(), 1.0), sizes.max(), 200)
    return n_bytes, [link.message_s(n) for n in n_bytes]


def plot_lines(
    measured: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    predicted: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
    ideal: tuple[Sequence[float], Sequence[float]] | None = None,
    *,
    x_label: str,
    y_label: str,
    title: str = "",
    log: str = "xy",
    mark: Mapping[str, float] | None = None,
    ax=None,
):
    """Measured points and predicted lines, name -> (x, y); the same name has one colour and one marker in both.

    ideal: one dashed line. mark: name -> x of a vertical line, such as a crossover. log: the axes that are logarithmic.
    """
    ax = axes(ax, height=4.2)
    predicted = predicted or {}
    for i, name in enumerate(dict.fromkeys([*measured, *predicted])):
        color, marker = SERIES[i % len(SERIES)], MARKERS[i % len(MARKERS)]
        if name in predicted:
            label = None if name in measured else f"{name}, predicted"
            ax.plot(*predicted[name], color=color, linewidth=1.5, linestyle=("-", "--", "-.", ":")[i % 4], label=label)
        if name in measured:
            line = "" if name in predicted else "-"
            ax.plot(*measured[name], color=color, marker=marker, linestyle=line, linewidth=1, label=name)
    if ideal is not None:
        ax.plot(*ideal, color=COLORS["ideal"], linestyle=(0, (6, 4)), linewidth=1, label="ideal")
    for name, x in (mark or {}).items():
        ax.axvline(x, color="#555555", linestyle=":", linewidth=1.2)
        ax.annotate(name, (x, 1.0), xycoords=("data", "axes fraction"), ha="center", va="bottom", fontsize="small")
    for axis in log:
        getattr(ax, f"set_{axis}scale")("log")
        _short_decade(getattr(ax, f"{axis}axis"))
    ax.set_xlabel(x_label)
    ax.set_ylabel(y_label)
    ax.set_title(title, loc="left", fontsize="medium", pad=18 if mark else None)
    ax.grid(color="#E5E5E5", linewidth=0.6)
    if measured and set(measured) & set(predicted):
        ax.plot([], [], color="#555555", label="lines: predicted")
    outside_legend(ax)
    return alt(ax, f"{title or y_label}: {', '.join(dict.fromkeys([*measured, *predicted]))} against {x_label}.")


def _short_decade(axis) -> None:
    """Plain numbers on a logarithmic axis of less than a decade: 0.12, where matplotlib writes 1.2 x 10^-1."""
    low, high = axis.get_data_interval()
    if low > 0 and high < 10 * low:
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("{x:g}")
