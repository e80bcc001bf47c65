"""Lesson 02's figures: steps of a tree, who sends to whom, which chunk leaves when, seconds against bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.patches import Rectangle

from hw_utils.pictures.figure import COLORS, SERIES, alt, axes, bytes_text
from hw_utils.pictures.plots import plot_lines

_PALE = ("#A8CDE6", "#F2BFA0", "#A6DCC8", "#E8C9DA", "#F6DDA6", "#C6E5F7", "#D0D0D0", "#E4D3B5")


def plot_steps(steps: Mapping[int, int], ax=None):
    """Steps of a tree against the number of ranks, beside a root that talks to one rank after the other."""
    sizes = list(steps)
    ax = plot_lines(
        {"your tree": (sizes, list(steps.values()))},
        {"one after the other": (sizes, [2 * (n - 1) for n in sizes])},
        x_label="ranks",
        y_label="steps",
        title="steps until everybody has the sum",
        log="",
        ax=ax,
    )
    return alt(ax, "Steps against ranks: " + ", ".join(f"{n} ranks {s}" for n, s in list(steps.items())[:16]) + ".")


def plot_partners(partners: Sequence[Sequence[int | None]], ax=None):
    """Ranks across, steps down; an arrow from each rank that sends to its partner.

    partners[step - 1][rank]: to whom `rank` sends at that step, or None.
    """
    world_size = len(partners[0])
    ax = axes(ax, width=min(2 + 0.7 * world_size, 10), height=1.2 + 0.8 * len(partners))
    arrow = {"arrowstyle": "-|>", "color": COLORS["message"], "linewidth": 1.6, "mutation_scale": 14}
    for row, partner_of in enumerate(partners):
        ax.plot(range(world_size), [row] * world_size, "o", color="#BDBDBD", markersize=5, zorder=1)
        for rank, partner in enumerate(partner_of):
            if partner is not None:
                bend = {**arrow, "connectionstyle": f"arc3,rad={0.25 if partner < rank else -0.25}"}
                ax.annotate("", (partner, row), (rank, row), arrowprops=bend)
    ax.set_xlim(-0.6, world_size - 0.4)
    ax.set_ylim(len(partners) - 0.4, -0.8)
    ax.set_xticks(range(world_size))
    ax.set_yticks(range(len(partners)), [f"step {i}" for i in range(1, len(partners) + 1)])
    ax.set_xlabel("rank")
    ax.set_title("phase I: who hands its sum over to whom", loc="left", fontsize="medium")
    told = [
        f"step {i}: " + ", ".join(f"{rank} to {to}" for rank, to in enumerate(row) if to is not None)
        for i, row in enumerate(partners, 1)
    ]
    return alt(ax, "Arrows between ranks. " + "; ".join(told) + ".")


def plot_chunk_numbers(sent: Sequence[Sequence[int]], owned: Sequence[int], ax=None):
    """Ranks down, steps across: the chunk that leaves a rank at each step, and the one it owns after the last.

    sent[rank][step - 1]; owned[rank].
    """
    world_size, n_steps = len(sent), len(sent[0])
    ax = axes(ax, width=2.5 + 0.8 * (n_steps + 1), height=1.2 + 0.5 * world_size)
    for rank, (row, last) in enumerate(zip(sent, owned)):
        for step, chunk in enumerate([*row, last]):
            left = step + 0.4 * (step == n_steps)
            edge, width = (SERIES[-1], 2.0) if step == n_steps else ("white", 1.0)
            color = _PALE[chunk % len(_PALE)]
            ax.add_patch(Rectangle((left, rank), 0.94, 0.92, facecolor=color, edgecolor=edge, linewidth=width))
            ax.text(left + 0.47, rank + 0.46, str(chunk), ha="center", va="center", fontsize="small")
    ax.set_xlim(-0.1, n_steps + 1.6)
    ax.set_ylim(world_size + 0.1, -0.2)
    columns = [step + 0.47 for step in range(n_steps)] + [n_steps + 0.87]
    ax.set_xticks(columns, [*(f"step {i}" for i in range(1, n_steps + 1)), "owns"])
    ax.set_yticks([rank + 0.46 for rank in range(world_size)], [f"rank {rank}" for rank in range(world_size)])
    ax.tick_params(length=0)
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.set_title("which chunk leaves which rank, when", loc="left", fontsize="medium")
    told = [f"rank {r} sends {', '.join(map(str, row))} and owns {o}" for r, (row, o) in enumerate(zip(sent, owned))]
    return alt(ax, "Chunk numbers, ranks down and steps across: " + "; ".join(told) + ".")


def plot_cost(
    sizes: Sequence[float],
    measured_s: Mapping[str, Sequence[float]],
    predicted: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    title: str,
    crossover_bytes: float = 0.0,
    ax=None,
):
    """Seconds against the size of the tensor, both logarithmic: measured points, predicted lines, the crossover.

    sizes: bytes; measured_s: name -> one value a size. predicted: name -> (bytes, seconds).
    """
    mark = {f"crossover {bytes_text(crossover_bytes)}": crossover_bytes} if crossover_bytes > 0 else None
    ax = plot_lines(
        {name: (sizes, values) for name, values in measured_s.items()},
        predicted,
        x_label="tensor [bytes]",
        y_label="time [s]",
        title=title,
        mark=mark,
        ax=ax,
    )
    return alt(ax, f"{title}. {_ends(sizes, measured_s, predicted)}{_marked(crossover_bytes)}")


def _ends(sizes, measured_s, predicted) -> str:
    """The two ends of each curve, in words."""
    curves = {name: (sizes, values) for name, values in measured_s.items()} or predicted
    ends = [
        f"{name}: {seconds[0]:.3g} s for {bytes_text(on[0])}, {seconds[-1]:.3g} s for {bytes_text(on[-1])}"
        for name, (on, seconds) in curves.items()
    ]
    return "; ".join(ends) + "."


def _marked(crossover_bytes: float) -> str:
    return f" Tree and ring meet at {bytes_text(crossover_bytes)}." if crossover_bytes > 0 else ""


def plot_growing(
    world_sizes: Sequence[int],
    measured_s: Mapping[str, Sequence[float]],
    predicted_s: Mapping[str, Sequence[float]],
    *,
    title: str,
    ax=None,
):
    """Seconds against the number of ranks, both logarithmic: measured points and predicted lines."""
    ax = plot_lines(
        {name: (world_sizes, values) for name, values in measured_s.items()},
        {name: (world_sizes, values) for name, values in predicted_s.items()},
        x_label="ranks",
        y_label="time [s]",
        title=title,
        ax=ax,
    )
    ends = [f"{name}: {v[0]:.3g} s for {world_sizes[0]}, {v[-1]:.3g} s for {world_sizes[-1]} ranks" for name, v in
            measured_s.items()]  # fmt: skip
    return alt(ax, f"{title}. {'; '.join(ends)}.")
