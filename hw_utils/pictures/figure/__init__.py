"""The ground that every picture stands on: axes, colours, legend, units, alt text.

One colour a kind of work in all lessons (Okabe and Ito's palette, which colour-blind readers can tell apart).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.colors import to_rgb

from hw_utils.pictures.figure import figures_in_html

COLORS = {
    "compute": "#0072B2",
    "communication": "#E69F00",
    "waiting": "#BDBDBD",
    "message": "#B35A00",
    "collective": "#CC79A7",
    "measured": "#0072B2",
    "predicted": "#D55E00",
    "ideal": "#000000",
    "lost": "#D55E00",
}
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
FILLS = SERIES[:-1]  # of what has words on it: black is white on a dark page
MARKERS = "os^Dv*P"
FEW_RANKS = 16


def axes(ax=None, *, width: float = 8.0, height: float = 3.6):
    """The given Axes, or those of a new figure on a white ground, which a notebook leaves out."""
    if ax is None:
        figure, ax = plt.subplots(figsize=(width, height), layout="constrained")
        figure.set_facecolor("white")
    ax.set_facecolor("white")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def alt(ax, text: str):
    """Gives the figure of `ax` its alt text, the other Axes' texts kept; returns `ax`.

    A notebook shows the figure as SVG in the page's colours, see figures_in_html.py, and the returned Axes as nothing.
    """
    if not ax.xaxis.get_tick_params().get("labelbottom", True):  # an axis shared with the one below, which says it
        ax.set_xlabel("")
    figure = ax.figure
    figure.alt_texts = [*getattr(figure, "alt_texts", []), text]
    figures_in_html.show_as_svg(figure)
    return ax


def ink_on(color: str) -> str:
    """Black or white, whichever reads better on the colour (WCAG's relative luminance)."""
    shares = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    return "black" if 0.2126 * shares[0] + 0.7152 * shares[1] + 0.0722 * shares[2] > 0.179 else "white"


def outside_legend(ax, handles: Sequence[Any] | None = None) -> None:
    """A legend to the right of the data, never over it."""
    more = {} if handles is None else {"handles": list(handles)}
    ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0, frameon=False, **more)


def seconds_unit(seconds: float) -> tuple[float, str]:
    """(factor, unit) in which that many seconds read well: 1e3 and "ms" for 0.02."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return factor, unit
    return 1e6, "µs"


def bytes_text(n_bytes: float) -> str:
    """`4 B`, `1.5 kB`, `64 MB` (kB = 1000 B)."""
    for power, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(n_bytes) >= power:
            return f"{n_bytes / power:.3g} {unit}"
    return f"{n_bytes:.3g} B"
