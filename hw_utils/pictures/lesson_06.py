"""Lesson 06's pictures: who got whose tensor, which rank keeps which part, curves on top of each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hw_utils.pictures.figure import SERIES, alt, axes, outside_legend

_RIGHT, _WRONG, _NONE = "#CFE8F5", "#F6C9A8", "#EEEEEE"


def plot_slots(gathered: Sequence[Sequence[float]], ax=None):
    """A row a rank, a column a slot of the list it got; the cell says whose tensor lies there (a rank's number)."""
    n_ranks = len(gathered)
    ax = axes(ax, width=5.0, height=0.9 + 0.45 * n_ranks)
    n_slots = max([n_ranks, *map(len, gathered)])
    wrong = 0
    for rank, row in enumerate(gathered):
        for slot in range(n_slots):
            value = row[slot] if slot < len(row) else None
            color = _NONE if value is None else _RIGHT if value == slot else _WRONG
            wrong += color != _RIGHT
            ax.add_patch(_cell(slot, rank, color))
            ax.text(slot, rank, "-" if value is None else f"{value:g}", ha="center", va="center")
    ax.set_xlim(-0.5, n_slots - 0.5)
    ax.set_ylim(n_ranks - 0.5, -0.5)
    ax.set_xticks(range(n_slots))
    ax.set_yticks(range(n_ranks))
    ax.set_xlabel("place in the list")
    ax.set_ylabel("on rank")
    ax.set_title("whose tensor lies where (orange: not in rank order)", loc="left", fontsize="medium")
    return alt(ax, f"Grid of {n_ranks} ranks by {n_slots} places in their lists; {wrong} places are wrong.")


def _cell(x: float, y: float, color: str):
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, facecolor=color, edgecolor="white")


def plot_curves(curves: Mapping[str, Sequence[float]], ax=None, *, y_label: str = "loss", title: str = ""):
    """Curves over steps, later ones thinner: on top of each other, all of them can be seen."""
    ax = axes(ax, height=3.4)
    widths = np.linspace(2.0 + 1.6 * len(curves), 1.2, len(curves)) if len(curves) > 1 else [2.0]
    for i, (name, values) in enumerate(curves.items()):
        ax.plot(range(1, len(values) + 1), values, color=SERIES[i % len(SERIES)], linewidth=widths[i], label=name)
    ax.set_xlabel("step")
    ax.set_ylabel(y_label)
    ax.set_title(title, loc="left", fontsize="medium")
    outside_legend(ax)
    return alt(ax, f"{y_label} over steps for {', '.join(curves)}; they end at " + _ends(curves) + ".")


def _ends(curves: Mapping[str, Sequence[float]]) -> str:
    return ", ".join(f"{values[-1]:.4g}" for values in curves.values() if len(values))


def plot_gaps(gaps: Mapping[str, Sequence[float]], ax=None, *, floor: float = 1e-16):
    """How far each run is from the plain one, over steps, logarithmic; a difference of nothing lies on the floor."""
    ax = axes(ax, height=3.4)
    for i, (name, values) in enumerate(gaps.items()):
        shown = np.maximum(np.abs(np.asarray(values, float)), floor)
        ax.plot(range(1, len(shown) + 1), shown, color=SERIES[i % len(SERIES)], marker="os^Dv"[i % 5], ms=3, label=name)
    ax.axhline(1e-6, color="#555555", linestyle=":", linewidth=1)
    ax.annotate("1e-6", (0.995, 1.3e-6), xycoords=("axes fraction", "data"), ha="right", fontsize="small")
    ax.set_yscale("log")
    ax.set_xlabel("step")
    ax.set_ylabel("loss minus plain loss")
    ax.set_title("distance from one process with the whole batch", loc="left", fontsize="medium")
    outside_legend(ax)
    largest = ", ".join(f"{name} {max(np.abs(values), default=0):.2g}" for name, values in gaps.items())
    return alt(ax, f"Largest distance from the plain loss: {largest}.")


def plot_pieces(whole: Any, pieces: Sequence[Any], ax=None, *, title: str = ""):
    """A matrix, and below it what each rank has of it, in the same colours: a wrong slice looks out of place."""
    ax = axes(ax, width=8.0, height=2.6)
    whole, pieces = _matrix(whole), [_matrix(piece) for piece in pieces]
    limit = float(np.abs(whole).max()) or 1.0
    left = 0.0
    for name, matrix in [("whole", whole), *((f"rank {r}", piece) for r, piece in enumerate(pieces))]:
        rows, columns = matrix.shape
        box = (left - 0.5, left + columns - 0.5, rows - 0.5, -0.5)
        ax.imshow(matrix, cmap="PuOr", vmin=-limit, vmax=limit, extent=box, aspect="equal")
        ax.text(left + columns / 2 - 0.5, -0.9, name, ha="center", va="bottom", fontsize="small")
        left += columns + 1.5
    ax.set_xlim(-1, left - 1)
    ax.set_ylim(max(m.shape[0] for m in [whole, *pieces]), -2.5)
    ax.set_axis_off()
    ax.set_title(title, loc="left", fontsize="medium")
    shapes = ", ".join(str(tuple(piece.shape)) for piece in pieces)
    return alt(ax, f"{title}: a matrix of shape {tuple(whole.shape)} and the ranks' pieces of shapes {shapes}.")


def _matrix(tensor: Any) -> np.ndarray:
    array = np.asarray(tensor.detach() if hasattr(tensor, "detach") else tensor, float)
    return array.reshape(array.shape[0], -1) if array.ndim else array.reshape(1, 1)


def plot_costs(costs: Mapping[str, Mapping[str, float]], ax=None, *, title: str = ""):
    """Groups of bars: for each quantity, the value a rank has under each plan, as a part of the largest."""
    ax = axes(ax, height=3.2)
    plans = list(next(iter(costs.values())))
    width = 0.8 / len(plans)
    for i, plan in enumerate(plans):
        for j, values in enumerate(costs.values()):
            largest = max(values.values()) or 1.0
            x = j + (i - (len(plans) - 1) / 2) * width
            ax.bar(x, values[plan] / largest, width * 0.92, color=SERIES[i], label=plan if j == 0 else None)
            ax.text(x, values[plan] / largest, f"{values[plan]:,.0f}", ha="center", va="bottom", fontsize="small")
    ax.set_xticks(range(len(costs)), list(costs))
    ax.set_ylabel("part of the largest")
    ax.set_ylim(0, 1.15)
    ax.set_title(title, loc="left", fontsize="medium")
    outside_legend(ax)
    said = "; ".join(
        f"{name}: " + ", ".join(f"{p} {v:,.0f}" for p, v in values.items()) for name, values in costs.items()
    )
    return alt(ax, f"Bars of {said}.")
