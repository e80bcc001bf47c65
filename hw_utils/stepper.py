"""Frames to step through: a slider where widgets run, all frames in one picture where they do not."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets
from IPython.display import display
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hw_utils.plots_chunks import plot_chunk_frame, plot_chunks

Draw = Callable[[Any, Any], Any]  # draw(frame, ax): one frame into given Axes
_PNG = "image/png"


def show(
    frames: Sequence[Any],
    draw: Draw = plot_chunk_frame,
    *,
    draw_all: Callable[[Sequence[Any], Any], Any] | None = None,
    labels: Sequence[str] | None = None,
    size: tuple[float, float] = (5.0, 3.2),
) -> None:
    """Shows the frames in the cell's output: a slider in JupyterLab and Colab, one still picture anywhere else.

    draw(frame, ax): draws one. draw_all(frames, ax): the still picture; without it the frames stand side by side.
    Both forms are one output: a reader that cannot run the widget shows the picture.
    """
    if not frames:
        raise ValueError("a stepper needs at least one frame, got none")
    if draw_all is None and draw is plot_chunk_frame:
        draw_all = plot_chunks
    labels = labels or [f"step {i} of {len(frames) - 1}" for i in range(len(frames))]
    still, text = _still(frames, draw, draw_all, labels, size)
    bundle = {_PNG: still, "text/plain": text}
    bundle.update(stepper(frames, draw, labels, size)._repr_mimebundle_())
    bundle["text/plain"] = text
    display(bundle, raw=True, metadata={_PNG: {"alt": text}})


def stepper(
    frames: Sequence[Any], draw: Draw, labels: Sequence[str], size: tuple[float, float] = (5.0, 3.2)
) -> ipywidgets.VBox:
    """The widget: first and last are its ends, each frame is drawn once, when it is first looked at."""
    drawn: dict[int, bytes] = {}
    picture = ipywidgets.Image(format="png", layout=ipywidgets.Layout(width=f"{size[0] * 100:.0f}px"))
    narrow, wide = ipywidgets.Layout(width="3em"), ipywidgets.Layout(flex="1 1 10em", max_width="20em")
    slider = ipywidgets.IntSlider(min=0, max=len(frames) - 1, description="step", readout=False, layout=wide)
    slider.style.description_width = "initial"
    caption = ipywidgets.Label()
    back, forward = (
        ipywidgets.Button(description=d, tooltip=t, layout=narrow) for d, t in (("◀", "back"), ("▶", "forward"))
    )
    row = ipywidgets.HBox([back, slider, forward, caption], layout=ipywidgets.Layout(flex_flow="row wrap"))

    def look(i: int) -> None:
        if i not in drawn:
            drawn[i] = _png(lambda ax: draw(frames[i], ax), size)[0]
        picture.value, caption.value = drawn[i], labels[i]

    def move(by: int) -> None:
        slider.value = min(max(slider.value + by, 0), len(frames) - 1)

    slider.observe(lambda change: look(change["new"]), names="value")
    back.on_click(lambda _: move(-1))
    forward.on_click(lambda _: move(+1))
    look(0)
    return ipywidgets.VBox([row, picture])


def _still(frames, draw, draw_all, labels, size) -> tuple[bytes, str]:
    if draw_all is not None:
        return _png(lambda ax: draw_all(frames, ax), (10, 6))
    columns = min(len(frames), 3)
    rows = -(-len(frames) // columns)
    figure = Figure(figsize=(size[0] * columns * 0.7, size[1] * rows * 0.7), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    for i, frame in enumerate(frames):
        ax = figure.add_subplot(rows, columns, i + 1)
        draw(frame, ax)
        ax.set_title(labels[i], loc="left", fontsize="small")
    return _saved(figure)


def _png(draw: Callable[[Any], Any], size: tuple[float, float]) -> tuple[bytes, str]:
    """(PNG, its alt text) of what `draw` puts into fresh Axes. Not pyplot's: that would show it twice."""
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    draw(figure.add_subplot())
    return _saved(figure)


def _saved(figure: Figure) -> tuple[bytes, str]:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    texts = getattr(figure, "alt_texts", [])
    return file.getvalue(), texts[-1] if texts else "frames to step through"
