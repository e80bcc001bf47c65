"""Figures on a page: SVG that takes the page's text colour, its width, and has its alt text where readers look.

A PNG stays white in a dark theme, blurs when zoomed, and its alt text is dropped by JupyterLab.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import re
import sys
from functools import partial
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.collections import Collection, LineCollection, PathCollection
from matplotlib.figure import Figure

INK, FIXED = "#000000", "#000001"  # what becomes the page's colour, and the black that stays black
GREYS = {"#e5e5e5": 0.13, "#555555": 0.75}  # of grids and small words -> how much of the page's colour they are
LEAST_TEXT_PX = 9.0
MOST_SHAPES = 1_500  # of one collection: more are a picture in the picture
MOST_BYTES = 250_000
_UNIT_PX = 96 / 72  # a matplotlib SVG counts in points


def show_as_svg(figure: Figure) -> None:
    """From now on a notebook shows the figure as `html_of` gives it; and Axes, a cell's last value, as nothing."""
    figure._repr_mimebundle_ = partial(_bundle, figure)
    figure._ipython_display_ = partial(_display, figure)
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None:
        shell.display_formatter.ipython_display_formatter.for_type(Axes, lambda _: None)


def _bundle(figure: Figure, include: Any = None, exclude: Any = None) -> dict[str, str]:
    return {"text/html": without_trust(html_of(figure)), "text/plain": alt_text(figure)}


def _display(figure: Figure) -> None:
    from IPython.display import display

    display(_bundle(figure), raw=True)


def alt_text(figure: Figure) -> str:
    """What the picture says, in words."""
    return " ".join(getattr(figure, "alt_texts", []))


def html_of(figure: Figure) -> str:
    """The figure as a fragment of a page: as wide as there is room, no text below 9 pixels, then it scrolls.

    Black is the page's text colour, but for words on coloured ground; a very large drawing becomes a sharp PNG.
    """
    svg, width, least = _svg(figure)
    style = f"width: 100%; max-width: {width:.0f}px; min-width: {min(least, width):.0f}px; height: auto"
    label = html.escape(alt_text(figure), quote=True)
    if len(svg) > MOST_BYTES:
        picture = f'<img alt="{label}" style="{style}; background: #fff" src="data:image/png;base64,{_png(figure)}">'
    else:
        style += "; fill: currentColor; stroke-linejoin: round"
        picture = f'<svg role="img" aria-label="{label}" style="{style}"{svg}'
    return f'<div class="hw-figure" tabindex="0" style="overflow-x: auto">{picture}</div>'


def without_trust(html_text: str) -> str:
    """`html_of` for an output that JupyterLab may not trust: then it takes drawings and scripts out, but no pictures.

    The drawing is a picture on white ground. Where scripts run, it is put into the page itself, as `html_of` has it.
    """
    found = re.search(r'<svg role="img" aria-label="([^"]*)" style="([^"]*)"(.*</svg>)', html_text, re.S)
    if found is None:
        return html_text
    label, style, drawing = found.groups()
    drawing = f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" style="{style}"{drawing}'
    size = style.partition("; fill")[0]
    picture = f'<img alt="{label}" style="{size}; background: #fff" src=\'{address_of(drawing)}\'>'
    return f"{html_text[: found.start()]}{picture}{html_text[found.end() :]}<script>{_INTO_THE_PAGE}</script>"


def address_of(drawing: str) -> str:
    """An SVG document as an address that holds it, for an attribute in single quotation marks."""
    for sign in "%<>&#'":
        drawing = drawing.replace(sign, f"%{ord(sign):02X}")
    return "data:image/svg+xml," + drawing.replace("\n", " ")


_INTO_THE_PAGE = """
for (const picture of document.querySelectorAll(".hw-figure > img[src^='data:image/svg']")) {
  const page = document.createElement("template");
  page.innerHTML = decodeURIComponent(picture.src.slice(picture.src.indexOf(",") + 1));
  const drawing = page.content.firstChild;
  drawing.setAttribute("role", "img");
  drawing.setAttribute("aria-label", picture.alt);
  picture.replaceWith(drawing);
}
"""


def _svg(figure: Figure) -> tuple[str, float, float]:
    """From the SVG's viewBox on; its natural width in pixels, and the least with which all text can be read."""
    undo = [*_fix_colours(figure), *_join_shapes(figure)]
    file = io.StringIO()
    try:
        with mpl.rc_context({"svg.fonttype": "none", "savefig.dpi": 160}):
            metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
            figure.savefig(file, format="svg", transparent=True, bbox_inches="tight", metadata=metadata)
    finally:
        for set_back, value in undo:
            set_back(value)
    text = re.sub(r"\s*<metadata>.*?</metadata>|<!--.*?-->|\s*<style.*?</style>", "", file.getvalue(), flags=re.S)
    width = float(re.search(r'viewBox="0 0 ([\d.]+)', text)[1])
    words = "".join(re.findall(r"<text.*?</text>", text, re.S))
    sizes = [float(size) for size in re.findall(r"font(?:-size)?:[^;\"]*?([\d.]+)px", words)]  # of exponents, too
    text = text[text.index(" viewBox=") :].replace(' version="1.1"', "", 1)
    text = re.sub(r' id="[A-Za-z][A-Za-z0-9]*_\d+"', "", text)  # groups, of which a page with two figures has two
    text = re.sub(r"\n\s*", "\n", text).replace(INK, "currentColor").rstrip()
    names = dict.fromkeys(re.findall(r'id="([A-Za-z][0-9a-f]{10})"', text))  # of shapes, which drawings refer to
    prefix = hashlib.sha1(alt_text(figure).encode()).hexdigest()[:8]
    for k, name in enumerate(names):
        text = text.replace(name, f"f{prefix}-{k}")
    for grey, share in GREYS.items():
        text = re.sub(rf"(stroke|fill): {grey}", rf"\1: currentColor; \1-opacity: {share}", text)
    return text, width * _UNIT_PX, width * LEAST_TEXT_PX / min(sizes, default=10.0)


def _png(figure: Figure) -> str:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=200, facecolor="white", bbox_inches="tight", metadata={"Software": None})
    return base64.b64encode(file.getvalue()).decode()


def _fix_colours(figure: Figure) -> list[tuple[Any, Any]]:
    """Keeps black what is written on coloured ground; (setter, value) to undo it."""
    figure.canvas.draw()
    undo = []
    for ax in figure.axes:
        grounds = [p.get_window_extent() for p in ax.patches if p.get_visible() and _is_coloured(p.get_facecolor())]
        grounds += [p.get_window_extent() for p in (*ax.images, *ax.collections) if _fills(p)]
        for text in ax.texts:
            box = text.get_window_extent()
            x, y = (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2
            own = text.get_bbox_patch()
            on_ground = any(g.contains(x, y) for g in grounds)
            on_ground = on_ground or (own is not None and _is_coloured(own.get_facecolor()))
            if on_ground and mpl.colors.to_hex(text.get_color()) == INK:
                undo.append((text.set_color, text.get_color()))
                text.set_color(FIXED)
    return undo


def _fills(part: Any) -> bool:
    """Whether an image or a collection covers a ground, and is neither points nor lines."""
    return not isinstance(part, PathCollection | LineCollection)


def _is_coloured(rgba: Any) -> bool:
    return len(rgba) == 4 and rgba[3] > 0.3 and mpl.colors.to_hex(rgba[:3]) != INK


def _join_shapes(figure: Figure) -> list[tuple[Any, Any]]:
    undo = []
    for ax in figure.axes:
        for part in ax.collections:
            n = part.get_array().size if part.get_array() is not None else len(part.get_offsets())
            if isinstance(part, Collection) and max(n, len(part.get_paths())) > MOST_SHAPES:
                undo.append((part.set_rasterized, part.get_rasterized()))
                part.set_rasterized(True)
    return undo
