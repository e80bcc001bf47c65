"""A student's answers in a new release's notebook: nothing that somebody wrote is lost, whatever became of its cell.

What was released can be told from what was written without the old release: a marked cell carries nbgrader's checksum
of its first text, and an unmarked one has a hash of it as its id.
"""

from __future__ import annotations

import hashlib
import re
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

Cell = dict[str, Any]
HEADING = "## From your earlier version\n\nThis was in your notebook and has no place in the new one."


@dataclass
class Merged:
    """The new notebook, and what happened to the student's cells."""

    notebook: dict[str, Any]
    answers: list[str] = field(default_factory=list)  # exercises whose text is the student's
    own: int = 0  # cells of the student's own, or of the lesson and changed, kept where they were
    homeless: list[str] = field(default_factory=list)  # answers to exercises that are gone, now at the end


def merge(mine: dict[str, Any], new: dict[str, Any]) -> Merged:
    """The new release with every text that the student wrote.

    An answer goes into the new release's cell of the same exercise. A cell of the student's own, or one of the
    lesson's that was changed, stays after the cell that it followed. An answer whose exercise is gone goes to the end.
    """
    done = Merged(deepcopy(new))
    cells = done.notebook["cells"]
    answered: set[str] = set()
    anchor = -1  # the new cell after which the next of the student's own cells belongs
    for cell in mine["cells"]:
        name, place = _name(cell), _place(cell, cells)
        if place is not None and not (name in answered and is_written(cell)):
            anchor = place
            if is_written(cell) and text_of(cell) != text_of(cells[place]) and _may_write(cells[place]):
                cells[place]["source"] = text_of(cell)
                if name:
                    answered.add(name)
                    done.answers.append(name)
                else:
                    done.own += 1
        elif is_written(cell) and text_of(cell).strip() and not any(text_of(cell) == text_of(c) for c in cells):
            if _is_answer(cell) and name not in answered:
                done.homeless.append(name)
                cells += [*([] if len(done.homeless) > 1 else [_own("markdown", HEADING)]), _unmarked(cell)]
            else:
                done.own += 1
                anchor += 1
                cells.insert(anchor, _unmarked(cell))
    return done


def is_written(cell: Cell) -> bool:
    """Whether somebody changed the cell since it was released, or made it."""
    marks = _marks(cell)
    if "checksum" in marks:
        return marks["checksum"] not in (_checksum(cell, text_of(cell)), _checksum(cell, text_of(cell) + "\n"))
    if marks.get("grade_id"):
        return True
    return re.sub(r"-\d+$", "", cell.get("id", "")) != _content_hash(cell)


def text_of(cell: Cell) -> str:
    source = cell.get("source", "")
    return source if isinstance(source, str) else "".join(source)


def _place(cell: Cell, cells: list[Cell]) -> int | None:
    """Where the new release has this cell: by its exercise's name, its id, or its very text."""
    name = _name(cell)
    for same in (
        lambda c: bool(name) and _name(c) == name and c["cell_type"] == cell["cell_type"],
        lambda c: not name and not _name(c) and bool(cell.get("id")) and c.get("id") == cell.get("id"),
        lambda c: not name and not _name(c) and c["cell_type"] == cell["cell_type"] and text_of(c) == text_of(cell),
    ):
        for n, candidate in enumerate(cells):
            if same(candidate):
                return n
    return None


def _may_write(cell: Cell) -> bool:
    """The lesson's locked cells, set-up and checks, are always the new release's."""
    return bool(_marks(cell).get("solution")) or not _locked(_marks(cell))


def _locked(marks: dict[str, Any]) -> bool:
    """As nbgrader.utils.is_locked has it."""
    return not marks.get("solution") and bool(marks.get("grade") or marks.get("locked"))


def _is_answer(cell: Cell) -> bool:
    return bool(_marks(cell).get("solution"))


def _marks(cell: Cell) -> dict[str, Any]:
    return cell.get("metadata", {}).get("nbgrader", {})


def _name(cell: Cell) -> str:
    return _marks(cell).get("grade_id", "")


def _unmarked(cell: Cell) -> Cell:
    """The cell as one of the student's own: no check or exercise is in a notebook twice."""
    return _own(cell["cell_type"], text_of(cell), cell.get("attachments"))


def _own(kind: str, source: str, attachments: dict | None = None) -> Cell:
    made: Cell = {"cell_type": kind, "id": "", "metadata": {}, "source": source}
    made["id"] = "own-" + hashlib.sha256(f"{kind}\n{source}".encode()).hexdigest()[:12]
    if attachments:
        made["attachments"] = attachments
    return made | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def _checksum(cell: Cell, source: str) -> str:
    """nbgrader's checksum of a marked cell (nbgrader.utils.compute_checksum)."""
    marks = _marks(cell)
    parts = [source, cell["cell_type"], str(bool(marks.get("grade"))), str(bool(marks.get("solution")))]
    parts += [str(_locked(marks)), marks["grade_id"]]
    if marks.get("grade"):
        parts.append(str(float(marks["points"])))
    return hashlib.md5("".join(parts).encode(), usedforsecurity=False).hexdigest()


def _content_hash(cell: Cell) -> str:
    """What the builder gives an unmarked cell as its id."""
    return hashlib.sha256(f"{cell['cell_type']}\n{text_of(cell)}".encode()).hexdigest()[:12]
