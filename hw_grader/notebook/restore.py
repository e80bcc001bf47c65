"""Finds the release's cells in a submission, whatever happened to it on the way, and puts it in order again.

A cell is recognised by its nbgrader id or notebook cell id, then by the checksum of its text, then by its place and
what it defines. The result is a notebook with every graded cell exactly once and the release's own metadata.
"""

from __future__ import annotations

import ast
import difflib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import nbformat
from nbformat import NotebookNode

from hw_grader.notebook.sanitize import pasted_pictures
from hw_grader.notebook.trusted_notebook import Cell, TrustedNotebook, defined

MAX_BYTES = 64 * 2**20
MAX_CELLS = 2_000
MAX_SOURCE_CHARS = 1_000_000
MAX_TEXT_CHARS = 4_000_000  # of all cells
MAX_MARKDOWN_CHARS = 400_000  # of all texts: rendering takes up to 10 us a character
_MAX_CHECK_CHARS = 5_000  # a copy of a check cell is short


class Unreadable(ValueError):
    """The file is not a notebook; says why."""


@dataclass
class Submitted:
    """A cell as it was handed in."""

    kind: str
    source: str
    claimed: str  # the id that it carries, if any
    text_id: str
    pictures: dict[str, str] = field(default_factory=dict)  # name -> address of those that were pasted
    trusted: Cell | None = None


def restore(data: bytes, trusted: TrustedNotebook, refused: str = "") -> NotebookNode:
    """The submission as a clean notebook, without outputs; what was repaired is in `metadata.hw_grader.notes`.

    A file that cannot be read gives the untouched release with `metadata.hw_grader.unreadable`.
    """
    notes: list[str] = []
    try:
        if refused:
            raise Unreadable(refused)
        cells = read_cells(data, notes)
    except Unreadable as error:
        notebook = _notebook([_restored(cell, cell.source) for cell in trusted.cells])
        notebook.metadata["hw_grader"] = {"unreadable": str(error), "notes": []}
        return notebook
    match(cells, trusted, notes)
    notebook = _notebook(_in_order(cells, trusted, notes))
    notebook.metadata["hw_grader"] = {"notes": notes}
    return notebook


def read_cells(data: bytes, notes: list[str]) -> list[Submitted]:
    """The cells of an untrusted notebook file of any format version; outputs are dropped.

    Raises:
        Unreadable: empty, too large, not JSON, not a notebook.
    """
    if len(data) > MAX_BYTES:
        raise Unreadable(f"the file has {len(data):,} bytes; {MAX_BYTES:,} is the limit")
    text = _as_text(data, notes)
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError, MemoryError) as error:
        raise Unreadable(f"the file is not a notebook: {type(error).__name__}") from None
    found = list(_raw_cells(raw))
    if len(found) > MAX_CELLS:
        notes.append(f"the notebook has {len(found):,} cells; after the first {MAX_CELLS:,} none is looked at")
        del found[MAX_CELLS:]
    if not found:
        raise Unreadable("there is no cell in the notebook")
    if isinstance(raw, dict) and raw.get("nbformat") not in (4, None):
        notes.append(f"the file is in the old format {ascii(raw.get('nbformat'))[:10]}")
    cells = [_submitted(cell) for cell in found]
    n_chars = sum(len(cell.source) for cell in cells)
    if n_chars > MAX_TEXT_CHARS:
        raise Unreadable(f"the cells hold {n_chars:,} characters; {MAX_TEXT_CHARS:,} is the limit")
    return _without_long_texts(cells, notes)


def _without_long_texts(cells: list[Submitted], notes: list[str]) -> list[Submitted]:
    """Those whose texts together can be rendered in seconds, for whoever opens the page."""
    n_chars, kept = 0, []
    for cell in cells:
        n_chars += len(cell.source) if cell.kind == "markdown" else 0
        if cell.kind != "markdown" or n_chars <= MAX_MARKDOWN_CHARS:
            kept.append(cell)
    if len(kept) < len(cells):
        left_out = f"{len(cells) - len(kept):,} of its texts are left out"
        notes.append(f"the texts hold {n_chars:,} characters; {MAX_MARKDOWN_CHARS:,} is the limit, {left_out}")
    return kept


def _as_text(data: bytes, notes: list[str]) -> str:
    """The file's text; what an editor, a shell or a half-finished copy has made of it is noted."""
    encoding = json.detect_encoding(data)
    text = data.decode(encoding, errors="replace").rstrip("\0 \t\r\n")
    if not text:
        raise Unreadable("the file is empty")
    if encoding == "utf-8-sig":
        notes.append("the file began with a byte order mark")
    elif encoding != "utf-8":
        notes.append(f"the file is in {encoding}, not in utf-8")
    elif "\ufffd" in text and "\ufffd".encode() not in data:
        notes.append("the file is not in utf-8; characters that could not be read became \ufffd")
    return text


def _raw_cells(raw: Any) -> Iterable[dict]:
    """Cells of format 4, and of format 3 with its worksheets."""
    if not isinstance(raw, dict):
        raise Unreadable("the file is not a notebook: no JSON object")
    sheets = raw.get("worksheets")
    groups = [raw.get("cells")] + [s.get("cells") for s in sheets if isinstance(s, dict)] if isinstance(
        sheets, list) else [raw.get("cells")]  # fmt: skip
    for group in groups:
        for cell in group if isinstance(group, list) else ():
            if isinstance(cell, dict):
                yield cell


def _submitted(cell: dict) -> Submitted:
    source = cell.get("source", cell.get("input", ""))
    if isinstance(source, list):
        source = "".join(part for part in source if isinstance(part, str))
    source = source[:MAX_SOURCE_CHARS] if isinstance(source, str) else ""
    source = source.replace("\r\n", "\n").encode(errors="replace").decode()
    kind = cell.get("cell_type") if cell.get("cell_type") in ("code", "markdown", "raw") else "markdown"
    metadata = cell.get("metadata") if isinstance(cell.get("metadata"), dict) else {}
    marks = metadata.get("nbgrader") if isinstance(metadata.get("nbgrader"), dict) else {}
    claimed, cell_id = marks.get("grade_id"), cell.get("id")
    claimed, cell_id = (text if isinstance(text, str) else "" for text in (claimed, cell_id))
    return Submitted(kind, source, claimed, cell_id, pasted_pictures(cell) if kind == "markdown" else {})


def match(cells: list[Submitted], trusted: TrustedNotebook, notes: list[str]) -> None:
    """Sets `release` of every submitted cell that is one of the release's."""
    free = {cell.place: cell for cell in trusted.cells}
    for by in (_by_mark, _by_cell_id, _by_text, _by_place):
        by(cells, free, notes)


def _take(cell: Submitted, place: int, free: dict[int, Cell]) -> None:
    cell.trusted = free.pop(place)


def _by_mark(cells: list[Submitted], free: dict[int, Cell], notes: list[str]) -> None:
    ids = {cell.grade_id: place for place, cell in free.items() if cell.grade_id}
    claims: dict[str, list[Submitted]] = {}
    for cell in cells:
        if cell.claimed in ids:
            claims.setdefault(cell.claimed, []).append(cell)
    for grade_id, found in claims.items():
        if len(found) > 1:
            notes.append(f"{grade_id}: {len(found)} cells carry this id; the one that was worked on counts")
        _take(_worked_on(found, free[ids[grade_id]]), ids[grade_id], free)


def _worked_on(found: list[Submitted], cell: Cell) -> Submitted:
    """Of cells with one id: the last that is neither the stub nor empty, else the last."""
    changed = [s for s in found if _text(s.source) not in ("", _text(cell.source))]
    defining = [s for s in changed if cell.names and cell.names <= defined(s.source)]
    return (defining or changed or found)[-1]


def _by_cell_id(cells: list[Submitted], free: dict[int, Cell], notes: list[str]) -> None:
    ids = {cell.cell_id: place for place, cell in free.items() if cell.cell_id}
    for submitted in cells:
        place = ids.get(submitted.text_id)
        if submitted.trusted is None and place in free:
            _take(submitted, place, free)


def _by_text(cells: list[Submitted], free: dict[int, Cell], notes: list[str]) -> None:
    texts: dict[str, list[int]] = {}
    for place, cell in free.items():
        texts.setdefault(_text(cell.source), []).append(place)
    for submitted in cells:
        places = texts.get(_text(submitted.source), []) if submitted.trusted is None and submitted.source else []
        if places:
            _take(submitted, places.pop(0), free)


def _by_place(cells: list[Submitted], free: dict[int, Cell], notes: list[str]) -> None:
    """What is left: the unmatched cell that defines an exercise's names, or reads most like it in the same gap."""
    for place, cell in sorted(free.items()):
        if not cell.grade_id:
            continue
        left = [s for s in cells if s.trusted is None]
        gap = _gap(cell, cells)
        defining = [s for s in left if cell.names and cell.names <= defined(s.source)]
        candidates = defining or [s for s in left if id(s) in gap and _alike(s, cell) > 0.6]
        if candidates:
            best = max(candidates, key=lambda s: (_text(s.source) != _text(cell.source), id(s) in gap))
            notes.append(f"{cell.grade_id}: its id was lost; recognised by its place and text")
            _take(best, place, free)


def _alike(submitted: Submitted, cell: Cell) -> float:
    a, b = _text(submitted.source)[:4000], _text(cell.source)[:4000]
    return difflib.SequenceMatcher(None, a, b, autojunk=False).quick_ratio() if a and b else 0.0


def _gap(cell: Cell, cells: list[Submitted]) -> set[int]:
    """The ids of the objects that stand between the cells that surround this one's place in the release."""
    behind = [n for n, s in enumerate(cells) if s.trusted and s.trusted.place > cell.place]
    before = [n for n, s in enumerate(cells) if s.trusted and s.trusted.place < cell.place]
    first, last = max(before, default=-1), min(behind, default=len(cells))
    return {id(s) for n, s in enumerate(cells) if first < n < last}


def _text(source: str) -> str:
    return re.sub(r"\s+", " ", source).strip()


def _in_order(cells: list[Submitted], trusted: TrustedNotebook, notes: list[str]) -> list[NotebookNode]:
    """The submission's cells in its own order; graded and locked cells that are missing come back at their place."""
    nodes = [(s.trusted, _node(s, notes)) for s in cells if s.trusted or not _is_check_call(s)]
    present = {cell.place for cell, _ in nodes if cell}
    for cell in trusted.cells:
        if cell.place in present or not (cell.grade_id or _is_given(cell)):
            continue
        if cell.grade_id:
            notes.append(f"{cell.grade_id}: the cell was missing")
        nodes.insert(_place_for(cell, nodes), (cell, _restored(cell, cell.source)))
    return [node for _, node in nodes]


def _place_for(cell: Cell, nodes: list[tuple[Cell | None, NotebookNode]]) -> int:
    """Right behind the last cell that comes before it in the release."""
    behind = [i for i, (other, _) in enumerate(nodes) if other and other.place < cell.place]
    if cell.is_check or not behind:
        return behind[-1] + 1 if behind else 0
    return min((i for i, (other, _) in enumerate(nodes) if other and other.place > cell.place), default=len(nodes))


def _is_given(cell: Cell) -> bool:
    """A plain code cell that only defines or imports: what a deleted one of these gave must still be there."""
    if cell.kind != "code" or cell.marks:
        return False
    try:
        body = ast.parse(cell.source).body
    except SyntaxError:
        return False
    given = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef
    return bool(body) and all(isinstance(statement, given) for statement in body)


def _is_check_call(cell: Submitted) -> bool:
    """A copy of a check cell: it is graded elsewhere and must not run beside the student's code."""
    if cell.kind != "code" or "checks." not in cell.source or len(cell.source) > _MAX_CHECK_CHARS:
        return False
    try:
        body = ast.parse(cell.source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    calls = [s.value.func for s in body if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call)]
    return bool(body) and len(calls) == len(body) and all(ast.unparse(f).startswith("checks.") for f in calls)


def _node(submitted: Submitted, notes: list[str]) -> NotebookNode:
    cell = submitted.trusted
    if cell is None:
        return _with_pictures(_new(submitted.kind, submitted.source), submitted)
    if cell.is_check or cell.is_locked:
        if _text(submitted.source) != _text(cell.source):
            notes.append(f"{cell.grade_id}: the cell was changed; the original counts")
        return _restored(cell, cell.source)
    if submitted.kind != cell.kind and cell.grade_id:
        notes.append(f"{cell.grade_id}: the cell had become {submitted.kind}; it counts as {cell.kind}")
        return _restored(cell, submitted.source)
    node = _restored(cell, submitted.source) if cell.grade_id else _new(submitted.kind, submitted.source)
    return _with_pictures(node, submitted)


def _with_pictures(node: NotebookNode, submitted: Submitted) -> NotebookNode:
    """The cell with what was pasted into it, for who grades it by hand."""
    if submitted.pictures and node.cell_type == "markdown":
        parts = {name: address.removeprefix("data:").split(";base64,") for name, address in submitted.pictures.items()}
        node["attachments"] = {name: {kind: content} for name, (kind, content) in parts.items()}
    return node


def _restored(cell: Cell, source: str) -> NotebookNode:
    node = _new(cell.kind, source)
    if cell.marks:
        node.metadata["nbgrader"] = dict(cell.marks)
    return node


def _new(kind: str, source: str) -> NotebookNode:
    make = {"code": nbformat.v4.new_code_cell, "markdown": nbformat.v4.new_markdown_cell}
    return make.get(kind, nbformat.v4.new_raw_cell)(source)


def _notebook(nodes: list[NotebookNode]) -> NotebookNode:
    for n, node in enumerate(nodes):
        node["id"] = f"cell-{n}"  # a submitted id may be anything, twice
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    return nbformat.v4.new_notebook(cells=nodes, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})
