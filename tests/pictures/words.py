"""A picture in words, as a screen reader gets it."""

from __future__ import annotations

from matplotlib.axes import Axes


def said(ax: Axes) -> str:
    """The texts of a picture that stand for what can be seen."""
    ax.figure.canvas.draw()
    return " ".join(ax.figure.alt_texts)
