"""The figures of lesson 04: losses, shards, methods beside each other, bytes over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np

from hw_utils.core.bytes_over_time import Profile
from hw_utils.core.run_result import Run
from hw_utils.pictures.figure import COLORS, MARKERS, SERIES, alt, axes, bytes_text, outside_legend

NAMES = {"one": "one node", "gather_scatter": "gather/scatter", "all_reduce": "all-reduce", "ddp": "DDP"}


def mean_losses(run: Run) -> list[float]:
    """The loss of the total batch at each iteration: the mean over the ranks, whose shares are equal."""
    return np.mean([result["losses"] for result in run], axis=0).tolist()


def plot_losses(losses: Mapping[str, Sequence[float]], ax=None):
    """Name -> the loss of each iteration, a line each."""
    ax = axes(ax)
    for i, (name, values) in enumerate(losses.items()):
        places = np.arange(1, len(values) + 1)
        every = max(len(values) // 10, 1)
        ax.plot(
            places, values, color=SERIES[i % len(SERIES)], marker=MARKERS[i % len(MARKERS)], markevery=(i, every),
            linewidth=1.2, markersize=5, label=NAMES.get(name, name),
        )  # fmt: skip
    ax.set_xlabel("iteration")
    ax.set_ylabel("training loss [nats]")
    ax.set_ylim(bottom=0)
    ax.set_title("loss of the total batch", loc="left", fontsize="medium")
    outside_legend(ax)
    ends = "; ".join(f"{NAMES.get(n, n)} from {v[0]:.2f} to {v[-1]:.2f}" for n, v in losses.items() if len(v))
    return alt(ax, f"Training loss against iteration: {ends}.")


def plot_shards(parts: Sequence[Sequence[Sequence[int]]], ax=None):
    """parts[rank][iteration]: the numbers of the examples; ranks down, examples across, one colour an iteration."""
    ax = axes(ax, height=1.4 + 0.35 * len(parts))
    n_iterations = max(map(len, parts), default=0)
    for i in range(n_iterations):
        dots = [(example, rank) for rank, part in enumerate(parts) if i < len(part) for example in part[i]]
        x, y = zip(*dots)
        ax.plot(
            x, y, linestyle="", marker=MARKERS[i % len(MARKERS)], color=SERIES[i % len(SERIES)], markersize=6,
            label=f"iteration {i + 1}" if i < 12 else None,
        )  # fmt: skip
    ax.set_yticks(range(len(parts)))
    ax.set_ylim(len(parts) - 0.5, -0.5)
    ax.set_xlabel("example [number]")
    ax.set_ylabel("rank")
    ax.set_title("which rank sees which example", loc="left", fontsize="medium")
    outside_legend(ax)
    n = sum(len(batch) for part in parts for batch in part)
    seen = len({example for part in parts for batch in part for example in batch})
    return alt(ax, f"{len(parts)} ranks see {n} examples, {seen} of them different, in {n_iterations} iterations.")


def plot_methods(seconds: Mapping[str, Mapping[str, float]], ax=None):
    """Place (such as "report") -> method -> seconds an iteration; bars side by side, one colour a place."""
    ax = axes(ax)
    methods = list(dict.fromkeys(method for found in seconds.values() for method in found))
    width = 0.8 / max(len(seconds), 1)
    for i, (place, found) in enumerate(seconds.items()):
        x = [methods.index(method) + (i - (len(seconds) - 1) / 2) * width for method in found]
        bars = ax.bar(
            x, list(found.values()), width, color=SERIES[i % len(SERIES)], edgecolor="white",
            hatch=("", "//", "..")[i % 3], label=place,
        )  # fmt: skip
        ax.bar_label(bars, [f"{s:.2f}" for s in found.values()], padding=2, fontsize="small")
    ax.set_xticks(range(len(methods)), [NAMES.get(method, method) for method in methods])
    ax.set_ylabel("time an iteration [s]")
    ax.margins(y=0.12)
    ax.set_title("one iteration of VGG-11", loc="left", fontsize="medium")
    outside_legend(ax)
    text = "; ".join(
        f"{place}: " + ", ".join(f"{NAMES.get(m, m)} {s:.2f} s" for m, s in found.items())
        for place, found in seconds.items()
    )
    return alt(ax, f"Bars of the time an iteration. {text}.")


def plot_profile(profile: Profile, ax=None):
    """Sent (up) and received (down) bytes a second of each rank, over time."""
    ax = axes(ax, height=4.0)
    peak = max(profile.sent_Bps.max(initial=0.0), profile.received_Bps.max(initial=0.0)) or 1.0
    for rank, (out, back) in enumerate(zip(profile.sent_Bps, profile.received_Bps)):
        color = SERIES[rank % len(SERIES)]
        base = -2.2 * peak * rank
        ax.stairs(base + out, profile.times_s, baseline=base, fill=True, color=color)
        ax.stairs(base - back, profile.times_s, baseline=base, fill=False, color=color, linewidth=1)
        ax.axhline(base, color="#999999", linewidth=0.6)
    ax.set_yticks([-2.2 * peak * rank for rank in range(len(profile.sent_Bps))], range(len(profile.sent_Bps)))
    ax.set_xlabel("time [s]")
    ax.set_ylabel(f"rank (height: up to {bytes_text(peak)}/s)")
    ax.set_title("bytes a second: sent upwards (filled), received downwards (line)", loc="left", fontsize="medium")
    total = [profile.sent_bytes(rank) for rank in range(len(profile.sent_Bps))]
    amounts = ", ".join(f"rank {r} {bytes_text(n)}" for r, n in enumerate(total))
    return alt(ax, f"Network profile, a strip a rank. Sent in all: {amounts}; the peak is {bytes_text(peak)} a second.")


def draw_roads(axs=None):
    """The concept: four ranks that meet at a root, and the same four in a ring; returns both Axes."""
    if axs is None:
        axs = plt.subplots(1, 2, figsize=(8.0, 3.0), layout="constrained")[1]
    axs[0].figure.set_facecolor("white")
    places = [(0.0, 1.0), (1.0, 0.0), (0.0, -1.0), (-1.0, 0.0)]
    star = [(r, 0, 0.12) for r in (1, 2, 3)] + [(0, r, 0.12) for r in (1, 2, 3)]
    ring = [(r, (r + 1) % 4, -0.25) for r in range(4)]
    texts = (
        ("gather, scatter: all through one port", star, 0),
        ("ring: every port carries the same", ring, None),
    )
    for ax, (title, arrows, root) in zip(axs, texts):
        for a, b, bend in arrows:
            color = COLORS["lost"] if root is None or a == root else COLORS["compute"]
            style = {"arrowstyle": "-|>", "color": color, "linewidth": 1.8, "shrinkA": 15, "shrinkB": 15}
            style |= {"connectionstyle": f"arc3,rad={bend}", "mutation_scale": 14}
            ax.annotate("", places[b], places[a], arrowprops=style)
        for rank, (x, y) in enumerate(places):
            face = "#FBE9DC" if rank == root else "white"
            ax.text(x, y, f"rank {rank}", ha="center", va="center", fontsize="medium",
                    bbox={"boxstyle": "round,pad=0.4", "facecolor": face, "edgecolor": "#444444"})  # fmt: skip
        ax.set(xlim=(-1.7, 1.7), ylim=(-1.4, 1.4))
        ax.set_axis_off()
        ax.set_title(title, fontsize="small")
    return alt(axs[0], "Left: ranks 1, 2 and 3 each exchange a message with rank 0, the root. Right: a ring of four.")
