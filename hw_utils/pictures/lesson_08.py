"""Pictures of lesson 08: who works on which micro-batch when, how much of it is idle, and how many are held meanwhile.

A pass is (rank, kind, micro-batch, chunk, start_s, end_s), kinds F, B and W as in hw_utils.material.by_hand.stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.patches import Patch

from hw_utils.pictures.figure import COLORS, alt, axes, outside_legend, seconds_unit

Pass = tuple[int, str, int, int, float, float]
KINDS = {"F": ("forward", "#A8D1EC", "#000000"), "B": ("backward", COLORS["compute"], "#FFFFFF"),
         "W": ("weight gradient", "#003552", "#FFFFFF")}  # fmt: skip
CHUNK_MARKS = ("", "'", "''", "'''")
_WIDTH = 9.0  # inches
_LANE_POINTS, _POINTS = 7.0 * 72, 9.2  # of a lane's length; of a number, which is left out where it would not fit


def plot_pipeline(passes: Sequence[Pass], ax=None, *, title: str = "", end_s: float | None = None):
    """A lane a rank, a cell a pass with its micro-batch's number, a prime for each chunk; idle time is hatched.

    The title has the idle share of all ranks' time until the last pass ends. end_s: where the time axis ends.
    """
    n_ranks = 1 + max((one[0] for one in passes), default=0)
    ax = axes(ax, width=_WIDTH, height=1.0 + 0.42 * n_ranks)
    whole_s = max((one[5] for one in passes), default=0.0)
    end_s = max(end_s or 0.0, whole_s) or 1.0
    factor, unit = seconds_unit(end_s)
    for rank in range(n_ranks):
        ax.barh(rank, whole_s * factor, 0.8, color="none", hatch="////", edgecolor=COLORS["waiting"], linewidth=0)
    for rank, kind, k, chunk, start_s, stop_s in passes:
        _, color, ink = KINDS[kind]
        width = (stop_s - start_s) * factor
        ax.barh(rank, width, 0.8, left=start_s * factor, color=color, edgecolor="white", linewidth=0.8)
        prime = CHUNK_MARKS[chunk % len(CHUNK_MARKS)]
        if _POINTS * (0.6 * len(str(k)) + 0.25 * len(prime)) < _LANE_POINTS * (stop_s - start_s) / end_s:
            ax.text((start_s + stop_s) / 2 * factor, rank, f"{k}{prime}", ha="center", va="center", color=ink,
                    fontsize=_POINTS)  # fmt: skip
    ax.set_ylim(n_ranks - 0.5, -0.5)
    ax.set_yticks(range(n_ranks))
    ax.set_ylabel("rank")
    ax.set_xlim(0, end_s * factor)
    ax.set_xlabel(f"time [{unit}]")
    busy_s = sum(one[5] - one[4] for one in passes)
    share = 1 - busy_s / (n_ranks * whole_s) if whole_s else 0.0
    said = f"{whole_s * factor:.4g} {unit}, idle {100 * share:.1f} % of the total time"
    ax.set_title(f"{title}: {said}" if title else said, loc="left", fontsize="medium")
    shown = [kind for kind in KINDS if any(one[1] == kind for one in passes)]
    handles = [Patch(color=KINDS[kind][1], label=KINDS[kind][0]) for kind in shown]
    idle = Patch(facecolor="none", edgecolor=COLORS["waiting"], hatch="////", linewidth=0, label="idle")
    outside_legend(ax, [*handles, idle])
    return alt(ax, f"Pipeline of {n_ranks} ranks, {title or 'a run'}: {said}. {_counts(passes, n_ranks)}")


def _counts(passes: Sequence[Pass], n_ranks: int) -> str:
    """Each rank's first passes in words."""
    lines = []
    for rank in range(n_ranks):
        mine = sorted((one for one in passes if one[0] == rank), key=lambda one: one[4])
        first = " ".join(f"{one[1]}{one[2]}{CHUNK_MARKS[one[3] % len(CHUNK_MARKS)]}" for one in mine[:8])
        lines.append(f"Rank {rank}: {first}{' ...' if len(mine) > 8 else ''}")
    return "; ".join(lines) + "."


def plot_in_flight(
    held: Mapping[int, Sequence[tuple[float, int]]], ax=None, *, end_s: float | None = None,
    behind: Mapping[int, Sequence[tuple[float, int]]] | None = None, behind_label: str = "",
):  # fmt: skip
    """A lane a rank: how many micro-batches (or chunks) it holds, (seconds, how many from then on), and the most.

    behind: those of another schedule, as a thin line.
    """
    n_ranks = 1 + max([*held, *(behind or {})], default=0)
    ax = axes(ax, width=_WIDTH, height=0.9 + 0.42 * n_ranks)
    every = [*held.values(), *(behind or {}).values()]
    end_s = max([end_s or 0.0, *(at_s for marks in every for at_s, _ in marks)]) or 1.0
    top = max([1, *(n for marks in every for _, n in marks)])
    factor, unit = seconds_unit(end_s)
    most = {}
    for rank in range(n_ranks):
        x, y = _steps(held.get(rank, ()), end_s, factor, top, rank)
        ax.fill_between(x, y, rank + 0.42, step="post", color=COLORS["compute"], alpha=0.35, linewidth=0)
        ax.step(x, y, where="post", color=COLORS["compute"], linewidth=1.2)
        if behind is not None:
            x, y = _steps(behind.get(rank, ()), end_s, factor, top, rank)
            ax.step(x, y, where="post", color=COLORS["predicted"], linewidth=1.0, linestyle=(0, (4, 2)))
        most[rank] = max((n for _, n in held.get(rank, ())), default=0)
    ax.set_ylim(n_ranks - 0.5, -0.5)
    ax.set_yticks(range(n_ranks), [f"{rank}: {n}" for rank, n in most.items()])
    ax.set_ylabel("rank: the most")
    ax.set_xlim(0, end_s * factor)
    ax.set_xlabel(f"time [{unit}]")
    ax.set_title("in flight: forward begun, backward not over", loc="left", fontsize="medium")
    handles = [Patch(color=COLORS["compute"], alpha=0.35, label="held")]
    if behind is not None:
        handles += ax.plot([], [], color=COLORS["predicted"], linestyle=(0, (4, 2)), linewidth=1.0, label=behind_label)
    outside_legend(ax, handles)
    peaks = ", ".join(f"rank {rank} {n}" for rank, n in most.items())
    return alt(ax, f"What each rank holds against time; the most are {peaks}.")


def _steps(marks: Sequence[tuple[float, int]], end_s: float, factor: float, top: int, rank: int):
    times = [0.0, *(at_s * factor for at_s, _ in marks), end_s * factor]
    counts = [0, *(n for _, n in marks), marks[-1][1] if marks else 0]
    return times, [rank + 0.42 - 0.8 * n / top for n in counts]


def plot_schedule(
    passes: Sequence[Pass], held: Mapping[int, Sequence[tuple[float, int]]], *, title: str = "",
    behind: Mapping[int, Sequence[tuple[float, int]]] | None = None, behind_label: str = "",
):  # fmt: skip
    """The pipeline above and what is in flight below, on one time axis; (upper Axes, lower Axes)."""
    n_ranks = 1 + max((one[0] for one in passes), default=0)
    heights = 1.0 + 0.42 * n_ranks, 0.9 + 0.42 * n_ranks
    figure, (upper, lower) = plt.subplots(
        2, 1, sharex=True, figsize=(_WIDTH, sum(heights)), height_ratios=heights, layout="constrained"
    )
    figure.set_facecolor("white")
    end_s = max([*(one[5] for one in passes), *(at_s for marks in (behind or {}).values() for at_s, _ in marks)] or [1])
    plot_pipeline(passes, upper, title=title, end_s=end_s)
    upper.set_xlabel("")
    plot_in_flight(held, lower, end_s=end_s, behind=behind, behind_label=behind_label)
    return upper, lower


def plot_gradients(whole: Sequence[float], cut: Sequence[float], ax=None):
    """How large each part's gradient is: in one process, and in parts. A part that got none shows at once."""
    ax = axes(ax, height=2.8)
    for shift, sizes, color, label in (
        (-0.2, whole, COLORS["waiting"], "one process"), (0.2, cut, COLORS["compute"], "in parts")
    ):  # fmt: skip
        ax.bar([k + shift for k in range(len(sizes))], sizes, 0.4, color=color, label=label)
    ax.set_xticks(range(len(whole)), [f"part {k}" for k in range(len(whole))])
    ax.set_ylabel("norm of the gradient")
    ax.set_title("what arrives in each part", loc="left", fontsize="medium")
    outside_legend(ax)
    said = "; ".join(f"part {k}: {a:.3g} and {b:.3g}" for k, (a, b) in enumerate(zip(whole, cut)))
    return alt(ax, f"Norms of the gradients in one process and in parts. {said}.")


def plot_stages(layer_s: Sequence[float], cuts: Mapping[str, Sequence[int]], ax=None):
    """For each way to cut a bar a stage, its layers on top of each other; the dashed line is the mean stage."""
    ax = axes(ax)
    n_stages, tones = max(map(len, cuts.values())), (KINDS["F"][1], KINDS["B"][1])
    place, said = 0.0, []
    for name, counts in cuts.items():
        start, slowest = 0, 0.0
        for stage, count in enumerate(counts):
            bottom = 0.0
            for k in range(start, min(start + count, len(layer_s))):
                ax.bar(place + stage, layer_s[k], 0.8, bottom=bottom, color=tones[k % 2], edgecolor="white")
                bottom += layer_s[k]
            start, slowest = start + count, max(slowest, bottom)
            over_the_mean = {"facecolor": ax.get_facecolor(), "edgecolor": "none", "pad": 0.8}
            ax.text(place + stage, bottom, f"{bottom:g}", ha="center", va="bottom", fontsize=9, bbox=over_the_mean)
        ax.text(place + (n_stages - 1) / 2, -0.16, f"{name}: slowest {slowest:g} s", ha="center", va="top",
                transform=ax.get_xaxis_transform())  # fmt: skip
        said.append(f"{name}: {', '.join(map(str, counts))} layers, the slowest stage takes {slowest:g} s")
        place += n_stages + 0.8
    mean = sum(layer_s) / n_stages
    ax.axhline(mean, color=COLORS["ideal"], linestyle="--", linewidth=1, label=f"mean: {mean:g} s")
    step = n_stages + 0.8
    ax.set_xticks([k * step + s for k in range(len(cuts)) for s in range(n_stages)], [*range(n_stages)] * len(cuts))
    ax.set_ylabel("time of a stage [s]")
    ax.set_title("layers for stages", loc="left", fontsize="medium")
    outside_legend(ax)
    return alt(ax, f"Stages as stacked bars of their layers. {'; '.join(said)}; the mean is {mean:g} s.")
