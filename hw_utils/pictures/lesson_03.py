"""Lesson 03's pictures: who takes which example, models side by side, learning curves, speedup, time to the target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from hw_utils.pictures.figure import COLORS, MARKERS, SERIES, alt, axes, bytes_text, outside_legend, seconds_unit


def plot_examples(images, n: int, ax=None):
    """The first `n` pictures of a data set in a row, their labels above."""
    ax = axes(ax, height=1.2)
    x, labels = images[:n]
    side = x.shape[-1]
    ax.imshow(np.concatenate([picture[0].numpy() for picture in x], axis=1), cmap="gray_r", aspect="equal")
    ax.set_xticks([side * (i + 0.5) for i in range(n)], [str(int(label)) for label in labels])
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
    return alt(ax, f"The first {n} examples, handwritten: {', '.join(str(int(label)) for label in labels)}.")


def plot_batches(batches: Sequence[Sequence[tuple[Sequence[int], int]]], n_examples: int, ax=None):
    """Ranks down, the order's places across; a cell is coloured, and numbered, by the iteration that takes it.

    batches: a list of (places, whole number) a rank.
    """
    ax = axes(ax, height=1.2 + 0.35 * len(batches))
    taken = np.full((len(batches), n_examples), np.nan)
    for rank, mine in enumerate(batches):
        for k, (places, _) in enumerate(mine):
            for place in places:
                taken[rank, int(place)] = k
                ax.text(int(place), rank, str(k), ha="center", va="center", fontsize="small")
    n_iterations = max((len(mine) for mine in batches), default=0)
    light = [_lighter(SERIES[k % len(SERIES)]) for k in range(max(n_iterations, 1))]
    ax.imshow(taken, aspect="auto", cmap=ListedColormap(light), vmin=-0.5, vmax=max(n_iterations, 1) - 0.5)
    ax.set_xlabel("place in the order of the epoch")
    ax.set_ylabel("rank")
    ax.set_yticks(range(len(batches)))
    ax.set_title("which iteration takes which example on which rank", loc="left", fontsize="medium")
    covered = int((~np.isnan(taken)).any(0).sum())
    return alt(
        ax,
        f"{len(batches)} ranks take {covered} of {n_examples} examples in {n_iterations} iterations; "
        f"batches a rank: {', '.join(str(len(mine)) for mine in batches)}.",
    )


def _lighter(color: str) -> tuple[float, ...]:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return tuple(0.45 + 0.55 * c for c in channels)


def plot_weights(weights: Sequence[Sequence[Sequence[float]]], titles: Sequence[str], ax=None):
    """A row a rank, a column a number, one panel a moment: equal rows are equal models.

    weights: for each rank its numbers at each moment.
    """
    ax = axes(ax, height=1.2 + 0.5 * len(weights))
    moments = [np.array([rank[m] for rank in weights], float) for m in range(len(titles))]
    gap = np.full((len(weights), 1), np.nan)
    table = np.concatenate([part for m in moments for part in (m, gap)][:-1], axis=1)
    limit = float(np.nanmax(np.abs(table))) or 1.0
    image = ax.imshow(table, cmap="PuOr", vmin=-limit, vmax=limit, aspect="auto")
    ax.figure.colorbar(image, ax=ax, label="value")
    width = moments[0].shape[1]
    ax.set_xticks([i * (width + 1) + (width - 1) / 2 for i in range(len(titles))], titles)
    ax.tick_params(axis="x", length=0)
    ax.set_yticks(range(len(weights)))
    ax.set_ylabel("rank")
    ax.set_title("ten numbers of each rank's model", loc="left", fontsize="medium")
    equal = [bool((m == m[0]).all()) for m in moments]
    said = ", ".join(f"{t}: {'equal' if e else 'different'}" for t, e in zip(titles, equal))
    return alt(ax, f"Ten weights of {len(weights)} ranks. {said} on all ranks.")


def plot_paths(ranks: Sequence[Sequence], one: Sequence, ax=None):
    """The largest difference after each step, logarithmic: between the ranks, and to one worker with the big batch."""
    ax = axes(ax)
    paths = np.stack([np.stack([np.asarray(state) for state in rank]) for rank in ranks])
    single = np.stack([np.asarray(state) for state in one])
    steps = np.arange(1, len(single) + 1)
    between = np.abs(paths - paths[0]).max((0, 2))
    apart = np.abs(paths - single).max((0, 2))
    moved = np.abs(single - single[0]).max(1)
    lines = (("moved since step 1", moved), ("from one big batch", apart), ("between the ranks", between))
    for (name, values), color, marker in zip(lines, SERIES, MARKERS):
        shown = np.where(values > 0, values, np.nan)
        label = name if (values > 0).any() else f"{name}:\nexactly 0"
        ax.plot(steps, shown, color=color, marker=marker, label=label)
    ax.set_yscale("log")
    ax.set_xlabel("step")
    ax.set_ylabel("largest difference of a weight")
    ax.set_title("how far apart the models are", loc="left", fontsize="medium")
    outside_legend(ax)
    return alt(
        ax,
        f"Largest difference between {len(ranks)} ranks over {len(steps)} steps: {between.max():.2g}; "
        f"to one worker with the whole batch: {apart.max():.2g}; the weights moved by {moved.max():.2g}.",
    )


def plot_curves(curves: Mapping[int, Sequence[tuple[int, float]]], target: float, ax=None):
    """Test accuracy against iterations, one line a number of workers; the target is dashed."""
    ax = axes(ax)
    for i, (n, curve) in enumerate(curves.items()):
        k, accuracy = zip(*curve)
        ax.plot(k, accuracy, color=SERIES[i % len(SERIES)], label=f"N = {n}", linewidth=1.3)
        ax.plot(k[-1], accuracy[-1], color=SERIES[i % len(SERIES)], marker=MARKERS[i % len(MARKERS)])
    ax.axhline(target, color=COLORS["ideal"], linestyle=(0, (6, 4)), linewidth=1, label=f"target {target:.0%}")
    ax.set_xlabel("iteration")
    ax.set_ylabel("test accuracy")
    ax.set_ylim(top=1.0)
    ax.set_title("when the target is reached", loc="left", fontsize="medium")
    outside_legend(ax)
    ends = ", ".join(f"N = {n} ends at iteration {c[-1][0]} with {c[-1][1]:.3f}" for n, c in curves.items())
    return alt(ax, f"Learning curves: {ends}.")


def plot_speedup(speedups: Mapping[int, tuple[float, float, float]], ax=None):
    """Median speedup with its range over seeds, and the linear ideal; both axes are logarithmic.

    speedups: N -> (lowest, median, highest). A median of 0 (most runs never arrived) is a cross at the bottom.
    """
    ax = axes(ax, height=4.2)
    ns = list(speedups)
    low, middle, high = (np.array([speedups[n][i] for n in ns], float) for i in range(3))
    there = np.isfinite(middle) & (middle > 0)
    x = np.array(ns, float)
    floor = max(min([*low[low > 0], 1.0]) / 1.3, 0.05)
    below, above = middle - np.maximum(low, floor), high - middle
    ax.errorbar(
        x[there], middle[there], yerr=np.stack([below, above])[:, there], color=COLORS["measured"], marker="o",
        capsize=4, label="measured:\nmedian and range",
    )  # fmt: skip
    if not there.all():
        y = np.full((~there).sum(), floor)
        ax.plot(x[~there], y, "x", color=COLORS["lost"], markersize=9, label="never arrived")
    ax.plot(x, x, color=COLORS["ideal"], linestyle=(0, (6, 4)), linewidth=1, label="ideal: N")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    ax.set_xlabel("workers N")
    ax.set_ylabel("speedup k*(1) / k*(N)")
    ax.set_title("iterations saved by N workers", loc="left", fontsize="medium")
    ax.grid(color="#E5E5E5", linewidth=0.6)
    outside_legend(ax)
    points = ", ".join(f"N = {n}: {speedups[n][1]:.2f} ({speedups[n][0]:.2f} to {speedups[n][2]:.2f})" for n in ns)
    return alt(ax, f"Speedup against the number of workers. {points}.")


def plot_time_to_target(
    k_of: Mapping[int, float], compute_s: float, communicate_s: Mapping[int, float], *, title: str = "", ax=None
):
    """Stacked bars, one a number of workers: seconds of computation and of communication until the target.

    k_of: N -> iterations. compute_s: of one iteration. communicate_s: N -> seconds of one iteration.
    """
    ax = axes(ax, height=3.8)
    there = [n for n in k_of if math.isfinite(k_of[n])]
    compute = np.array([k_of[n] * compute_s for n in there])
    talk = np.array([k_of[n] * communicate_s[n] for n in there])
    total = compute + talk
    factor, unit = seconds_unit(float(total.max()))
    places = [list(k_of).index(n) for n in there]
    ax.bar(places, compute * factor, color=COLORS["compute"])
    ax.bar(places, talk * factor, bottom=compute * factor, color=COLORS["communication"])
    best = int(total.argmin())
    ax.annotate("fastest", (places[best], total[best] * factor), xytext=(0, 3), textcoords="offset points", ha="center")
    for place in set(range(len(k_of))) - set(places):
        ax.plot(place, 0, "x", color=COLORS["lost"], clip_on=False)
    ax.set_xticks(range(len(k_of)), [str(n) for n in k_of])
    ax.set_xlabel("workers N")
    ax.set_ylabel(f"time to the target [{unit}]")
    ax.set_title(title, loc="left", fontsize="medium")
    ax.set_ylim(0, float(total.max()) * factor * 1.12)
    kinds = {"compute": "compute", "communication": "communication"}
    outside_legend(ax, [Patch(color=COLORS[kind], label=label) for kind, label in kinds.items()])
    points = ", ".join(f"N = {n}: {t * factor:.3g} {unit}" for n, t in zip(there, total))
    return alt(ax, f"Time to the target, {title}: {points}. Fastest with N = {there[best]}.")


def plot_local_sgd(points: Mapping[int, tuple[int, float]], ax=None):
    """Accuracy against the bytes that a rank sent; a point is labelled with H, the steps between two averages."""
    ax = axes(ax)
    n_bytes, accuracy = (np.array([point[i] for point in points.values()], float) for i in range(2))
    ax.plot(n_bytes, accuracy, color=COLORS["measured"], marker="o", linewidth=1)
    for h, (x, y) in points.items():
        ax.annotate(f"H = {h}", (x, y), xytext=(4, 5), textcoords="offset points", fontsize="small")
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: bytes_text(v)))
    ax.set_xlabel("bytes sent by a rank")
    ax.set_ylabel("test accuracy")
    ax.margins(x=0.1, y=0.12)
    ax.set_title("what averaging less often saves and costs", loc="left", fontsize="medium")
    handle = Line2D([], [], color=COLORS["measured"], marker="o", label="average every\nH steps")
    outside_legend(ax, [handle])
    said = ", ".join(f"H = {h}: {bytes_text(x)}, {y:.3f}" for h, (x, y) in points.items())
    return alt(ax, f"Bytes against accuracy: {said}.")
