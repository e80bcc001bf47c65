"""A lesson, a guide, a badge as the site has them."""

from __future__ import annotations

import base64
import posixpath
import re
from pathlib import Path
from urllib.parse import quote, urlsplit

import nbformat
from nbformat import NotebookNode

WIDGET = "application/vnd.jupyter.widget-view+json"
SHOWN = ("text/html", "text/markdown", "image/svg+xml", "text/plain")


def lesson_page(released: NotebookNode, solution: NotebookNode, pictures: Path, top: str) -> NotebookNode:
    """The students' notebook with the outputs of the solution's experiments and pictures; PNGs go to `pictures`.

    Cells that hold an answer, and checks, whose hidden cases would show, get no output.
    """
    outputs = {c.id: c.outputs for c in solution.cells if c.cell_type == "code" and _is_open(c)}
    widgets = solution.metadata.get("widgets", {}).get("application/vnd.jupyter.widget-state+json", {}).get("state", {})
    page = nbformat.v4.new_notebook(metadata=dict(released.metadata))
    for cell in released.cells:
        cell = nbformat.from_dict(dict(cell))
        cell.metadata = {"tags": ["hide-cell"]} if cell.id == "setup" else {}
        if cell.cell_type == "code":
            cell.execution_count = None
            found = outputs.get(cell.id, [])
            cell.outputs = [x for n, o in enumerate(found) for x in _shown(o, f"{cell.id}-{n}", pictures, widgets)]
        page.cells.append(cell)
    first, _, rest = page.cells[0].source.partition("\n")
    page.cells[0].source = f"{first}\n\n{top}\n{rest}"
    return page


def _is_open(cell: NotebookNode) -> bool:
    marks = cell.metadata.get("nbgrader", {})
    return not (marks.get("solution") or marks.get("grade")) and cell.id != "setup"


def _shown(output: NotebookNode, name: str, pictures: Path, widgets: dict) -> list[NotebookNode]:
    """The output as a page can show it: pictures as files with their texts, a widget as its first picture."""
    if output.output_type == "stream":
        return [output] if output.name == "stdout" else []
    if output.output_type not in ("display_data", "execute_result"):
        return []
    data = output.data
    if "image/png" in data:
        alt = output.metadata.get("image/png", {}).get("alt") or output.metadata.get("alt") or "the cell's picture"
        return [_picture(base64.b64decode(data["image/png"]), alt, name, pictures)]
    if WIDGET in data:
        frame = _first_picture(data[WIDGET]["model_id"], widgets)
        alt = "the first frame of a picture that one steps through in the notebook"
        return [_picture(frame, alt, name, pictures)] if frame else []
    kept = {kind: data[kind] for kind in SHOWN if kind in data}
    kept = {kind: kept[kind] for kind in list(kept)[:1]}
    if re.fullmatch(r"<Axes: .*>", kept.get("text/plain", "")):
        return []
    return [nbformat.v4.new_output("display_data", data=kept)] if kept else []


def _picture(png: bytes, alt: str, name: str, pictures: Path) -> NotebookNode:
    pictures.mkdir(exist_ok=True)
    (pictures / f"{name}.png").write_bytes(png)
    text = re.sub(r"[\[\]\n]+", " ", alt)
    return nbformat.v4.new_output("display_data", data={"text/markdown": f"![{text}]({pictures.name}/{name}.png)"})


def _first_picture(model: str, widgets: dict) -> bytes | None:
    """The first picture in a widget or in those that it holds."""
    known = widgets.get(model, {})
    if known.get("model_name") == "ImageModel":
        return next((base64.b64decode(b["data"]) for b in known.get("buffers", []) if b["path"] == ["value"]), None)
    for child in known.get("state", {}).get("children", []):
        if found := _first_picture(str(child).removeprefix("IPY_MODEL_"), widgets):
            return found
    return None


def badges(address: str, product: str) -> str:
    """Links that open a lesson in Colab and on Binder, as far as they can from where the course lies."""
    if not address:
        return ""
    where = urlsplit(address)
    project = where.path.strip("/").removesuffix(".git")
    path = f"notebooks/{product}"
    binder = {"github.com": f"gh/{project}", "gitlab.com": f"gl/{quote(project, safe='')}"}
    place = binder.get(where.netloc, f"git/{quote(address, safe='')}")
    links = [f"[Open on Binder](https://mybinder.org/v2/{place}/HEAD?urlpath={quote(f'lab/tree/{path}', safe='')})"]
    if where.netloc == "github.com":
        links.insert(0, f"[Open in Colab](https://colab.research.google.com/github/{project}/blob/HEAD/{path})")
    return " ".join(f"{link}{{.badge}}" for link in links)


def guide(text: str, name: str, known: dict[str, str]) -> str:
    """A page of the repository for the site: links lead to the site's pages, or are words if it has no such page."""
    here = posixpath.dirname(name)

    def lead(match: re.Match) -> str:
        label, target = match[2], match[3]
        path, _, part = target.partition("#")
        if re.match(r"[a-z]+:", target) or not path:
            return match[0]
        there = known.get(posixpath.normpath(posixpath.join(here, path)))
        if there is None:
            return label
        target = posixpath.relpath(there, here or ".") + (f"#{part}" if part else "")
        return f"{match[1]}[{label}]({target})"

    text = text.replace("```mermaid", "```text")  # drawing it would take a script from elsewhere
    blocks = re.split(r"(^```.*?^```$)", text, flags=re.S | re.M)
    return "".join(b if b.startswith("```") else re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", lead, b) for b in blocks)
