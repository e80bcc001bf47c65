"""Pictures of lesson 05: speedup and what is lost, metrics side by side, the waterfall of a step."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from hw_utils.pictures.figure import COLORS, SERIES, alt, axes, outside_legend


def plot_speedup(speedups: Mapping[int, float], ax=None):
    """Actual against ideal speedup; what is lost is shaded, the numbers stand in a small table.

    speedups: world size -> how many times the work of one rank.
    """
    ax = axes(ax, height=4.2)
    sizes = sorted(speedups)
    actual = [speedups[n] for n in sizes]
    ax.plot(sizes, sizes, color=COLORS["ideal"], linestyle="--", label="ideal: N times")
    ax.plot(sizes, actual, color=COLORS["measured"], marker="o", label="actual")
    ax.fill_between(sizes, actual, sizes, color=COLORS["lost"], alpha=0.25, hatch="//", label="lost")
    ax.set_xticks(sizes)
    ax.set_xlabel("ranks N")
    ax.set_ylabel("speedup")
    ax.set_title("how many times faster", loc="left", fontsize="medium")
    rows = [[f"{speedups[n]:.2f}", f"{speedups[n] / n:.0%}"] for n in sizes]
    height = 0.1 * (len(sizes) + 1)
    names = [f"N = {n}" for n in sizes]
    ax.table(rows, rowLabels=names, colLabels=["speedup", "efficiency"], bbox=[1.16, 1 - height, 0.36, height])
    ax.legend(loc="upper left", frameon=False)
    numbers = ", ".join(f"{n} ranks {speedups[n]:.2f}" for n in sizes)
    return alt(ax, f"Speedup against the number of ranks, below the ideal line: {numbers}.")


def plot_step_bars(profiles: Mapping[int, Mapping[str, float]], ax=None):
    """A bar a world size: compute and communication seconds of one iteration, stacked.

    profiles: world size -> a mapping with `comp_s` and `comm_s`.
    """
    ax = axes(ax)
    sizes = sorted(profiles)
    places = range(len(sizes))
    compute = [profiles[n]["comp_s"] for n in sizes]
    communication = [profiles[n]["comm_s"] for n in sizes]
    ax.bar(places, compute, color=COLORS["compute"], label="compute")
    ax.bar(places, communication, bottom=compute, color=COLORS["communication"], hatch="//", label="communication")
    ax.set_xticks(list(places), [str(n) for n in sizes])
    ax.set_xlabel("ranks N")
    ax.set_ylabel("one iteration [s]")
    ax.set_title("where an iteration goes", loc="left", fontsize="medium")
    outside_legend(ax)
    parts = ", ".join(f"{n} ranks {a:.3g} s and {b:.3g} s" for n, a, b in zip(sizes, compute, communication))
    return alt(ax, f"Stacked bars of compute and communication in one iteration: {parts}.")


def plot_metrics(metrics: Mapping[int, Mapping[str, float]], names: Sequence[str] = ("speedup", "efficiency"), ax=None):
    """Bars in groups, a group a world size and a bar a metric."""
    ax = axes(ax)
    sizes, width = sorted(metrics), 0.8 / len(names)
    for k, name in enumerate(names):
        places = [i + (k - (len(names) - 1) / 2) * width for i in range(len(sizes))]
        bars = ax.bar(places, [metrics[n][name] for n in sizes], width, color=SERIES[k], hatch=("", "//", "..")[k % 3])
        bars.set_label(name)
        ax.bar_label(bars, fmt="%.2g", padding=2, fontsize="small")
    ax.set_xticks(range(len(sizes)), [str(n) for n in sizes])
    ax.set_xlabel("ranks N")
    ax.set_ylabel("times (efficiency: 1 is all)")
    ax.set_title("metrics side by side", loc="left", fontsize="medium")
    outside_legend(ax)
    return alt(ax, f"Grouped bars of {', '.join(names)} for {', '.join(map(str, sizes))} ranks.")


def plot_waterfall(parts: Mapping[str, float], ax=None):
    """From the ideal step to the actual one: a bar a cause, each starting where the last one ended.

    parts: name -> seconds; the first is the ideal step, the others what each cause adds.
    """
    ax = axes(ax)
    top, places = 0.0, list(parts)
    for k, seconds in enumerate(parts.values()):
        color = COLORS["ideal"] if k == 0 else COLORS["lost"] if seconds >= 0 else SERIES[2]
        bars = ax.bar(k, seconds, bottom=top, color=color, hatch="" if k == 0 else "//")
        ax.bar_label(bars, [f"{seconds:+.3g} s" if k else f"{seconds:.3g} s"], padding=2)
        top += seconds
        ax.plot([k - 0.4, k + 1.4], [top, top], color="#555555", linewidth=0.8)
    ax.bar(len(places), top, color=COLORS["measured"])
    ax.annotate(f"{top:.3g} s", (len(places), top), ha="center", va="bottom", xytext=(0, 2), textcoords="offset points")
    ax.set_xticks(range(len(places) + 1), [*places, "actual"])
    ax.set_ylabel("one step [s]")
    ax.set_ylim(0, 1.12 * max(itertools.accumulate(parts.values())))
    ax.set_title("from the ideal step to the actual one", loc="left", fontsize="medium")
    named = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in parts.items())
    return alt(ax, f"Waterfall of one step: {named}; actual {top:.3g} s.")


def draw_buckets(sizes: Sequence[int], bucket_elements: int, ax=None):
    """The concept: gradients of `sizes` elements end to end, and below them the same elements as buckets."""
    ax = axes(ax, height=2.0)
    n = sum(sizes)
    borders = [*range(0, n, bucket_elements), n]
    buckets = [b - a for a, b in itertools.pairwise(borders)]
    box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
    for y, parts, name in ((1, sizes, "gradient"), (0, buckets, "bucket")):
        start = 0
        for k, size in enumerate(parts):
            color = SERIES[k % len(SERIES)] if y else COLORS["communication"]
            ax.barh(y, size, 0.6, left=start, color=color, edgecolor="white", linewidth=2, alpha=0.85)
            words = f"{name} {k}: {size}" if size > n / 8 else str(size)
            ax.text(start + size / 2, y, words, ha="center", va="center", fontsize="small", bbox=box)
            start += size
    ax.set_yticks([1, 0], ["flat vector", f"{len(buckets)} calls"])
    ax.set_xlim(0, n)
    ax.set_xticks(sorted({*borders, *itertools.accumulate(sizes)}))
    ax.set_xlabel("element [number]")
    ax.set_title(f"{len(sizes)} gradients, {n} elements, buckets of {bucket_elements}", loc="left", fontsize="medium")
    return alt(ax, f"Gradients of {list(sizes)} elements in a row, and the same elements in buckets of {buckets}.")
