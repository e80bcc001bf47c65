"""Pictures of lesson 07: who holds how many bytes, what is held when, and which old shard a new one is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.ticker import MaxNLocator

from hw_utils.pictures.figure import COLORS, FILLS, SERIES, alt, axes, bytes_text, ink_on, outside_legend, seconds_unit

HATCHES = ("", "//", "..", "\\\\", "xx")
HELD = {"weights": SERIES[0], "gradients": SERIES[4], "optimizer": SERIES[2], "activations": SERIES[3]}
OTHERS = (SERIES[5], SERIES[1], SERIES[3])


def plot_held(bars: Mapping[str, Mapping[str, float]], ax=None, *, title: str = "what one rank holds", cap_bytes=None):
    """A stacked bar each: name -> kind ("weights", "gradients", ...) -> bytes. cap_bytes: a dashed line."""
    ax = axes(ax)
    kinds = list(dict.fromkeys(kind for parts in bars.values() for kind in parts))
    bottoms = [0.0] * len(bars)
    for k, kind in enumerate(kinds):
        heights = [float(parts.get(kind, 0.0)) for parts in bars.values()]
        color, hatch = HELD.get(kind, OTHERS[k % len(OTHERS)]), HATCHES[k % len(HATCHES)]
        ax.bar(range(len(bars)), heights, bottom=bottoms, color=color, hatch=hatch, edgecolor="white", label=kind)
        bottoms = [a + b for a, b in zip(bottoms, heights)]
    for k, total in enumerate(bottoms):
        ax.annotate(bytes_text(total), (k, total), ha="center", xytext=(0, 3), textcoords="offset points")
    if cap_bytes is not None:
        ax.axhline(cap_bytes, color=COLORS["ideal"], linestyle="--", label=f"cap: {bytes_text(cap_bytes)}")
    ax.set_xticks(range(len(bars)), list(bars))
    ax.set_ylim(0, 1.15 * max([*bottoms, cap_bytes or 0.0]) or 1.0)
    ax.yaxis.set_major_formatter(lambda value, _: bytes_text(value))
    ax.set_ylabel("held [bytes]")
    ax.set_title(title, loc="left", fontsize="medium")
    outside_legend(ax)
    said = "; ".join(
        f"{name}: {bytes_text(total)} ({', '.join(f'{kind} {bytes_text(n)}' for kind, n in parts.items())})"
        for (name, parts), total in zip(bars.items(), bottoms)
    )
    return alt(ax, f"Stacked bars of the bytes that one rank holds. {said}.")


def plot_count(
    marks: Sequence[tuple[float, int]], ax=None, *, label: str, end_s: float | None = None, allowed: int | None = None
):
    """How many of something are held, against time: (seconds, how many from then on), in order."""
    ax = axes(ax, height=1.8)
    end = max([end_s or 0.0, *(t for t, _ in marks)])
    factor, unit = seconds_unit(end)
    times, counts = [factor * t for t, _ in marks] or [0.0], [n for _, n in marks] or [0]
    end *= factor
    ax.fill_between([*times, end], [*counts, counts[-1]], step="post", color=SERIES[0], alpha=0.3)
    ax.step([*times, end], [*counts, counts[-1]], where="post", color=SERIES[0])
    if allowed is not None:
        ax.axhline(allowed, color=COLORS["ideal"], linestyle="--", linewidth=1)
    ax.set_ylim(0, max([*counts, allowed or 0, 1]) + 0.6)
    ax.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    ax.set_xlabel(f"time [{unit}]")
    ax.set_ylabel(label)
    limit = "" if allowed is None else f", {allowed} allowed"
    return alt(ax, f"{label} against time: at most {max(counts)}{limit}, {counts[-1]} at the end.")


def plot_loss(losses: Sequence[float], nats: float, ax=None):
    """A training's loss after each step, and below it the entropy of the source of its text, both in nats."""
    ax = axes(ax)
    ax.plot(range(1, len(losses) + 1), losses, color=COLORS["measured"], label="loss")
    ax.axhline(nats, color=COLORS["ideal"], linestyle="--", label="entropy of the source")
    ax.set_ylim(0, 1.05 * max([*losses, nats]))
    ax.set_xlabel("step")
    ax.set_ylabel("nats a character")
    ax.set_title("how well the next character is foretold", loc="left", fontsize="medium")
    outside_legend(ax)
    last = f"from {losses[0]:.2f} to {losses[-1]:.2f} nats" if losses else "no steps"
    return alt(ax, f"Loss against steps, {last}; the source's entropy is {nats:.2f}.")


def plot_sources(n_elements: int, old: int, reads: Sequence[Sequence[tuple[int, int, int]]], ax=None):
    """Old shards above, and below them each new rank's reads: (old rank, start in the flat vector, stop)."""
    ax = axes(ax, height=1.2 + 0.35 * len(reads))
    size = -(-n_elements // old)
    for rank in range(old):
        width = max(0, min(size, n_elements - rank * size))
        ax.barh(0, width, 0.7, left=rank * size, color=FILLS[rank % len(FILLS)], edgecolor="white")
        if width:
            ink = ink_on(FILLS[rank % len(FILLS)])
            ax.text(rank * size + width / 2, 0, str(rank), ha="center", va="center", color=ink, fontsize="small")
    for k, parts in enumerate(reads, start=1):
        for source, start, stop in parts:
            color = FILLS[source % len(FILLS)]
            ax.barh(k, stop - start, 0.7, left=start, color=color, alpha=0.7, edgecolor="white")
    ax.set_yticks(range(len(reads) + 1), [f"saved by {old}", *(f"rank {k}" for k in range(len(reads)))])
    ax.invert_yaxis()
    ax.set_xlim(0, n_elements)
    ax.set_xlabel("element [number]")
    ax.set_title(f"{n_elements} elements, from {old} ranks to {len(reads)}", loc="left", fontsize="medium")
    said = "; ".join(
        f"rank {k} reads {', '.join(f'{stop - start} of rank {source}' for source, start, stop in parts) or 'nothing'}"
        for k, parts in enumerate(reads)
    )
    return alt(ax, f"Which old shard each new rank reads: {said}.")
