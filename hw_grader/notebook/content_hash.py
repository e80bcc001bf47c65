"""A notebook's own hash, written into it when it is built or released, so that a later edit shows."""

from __future__ import annotations

import hashlib
import json

from nbformat import NotebookNode


def digest(notebook: NotebookNode, *, with_outputs: bool) -> str:
    """A hash of what somebody may have worked on: sources, kinds, marks, attachments, and outputs if asked."""
    parts = [
        [
            cell.cell_type,
            cell.source.rstrip("\n"),
            marks(cell),
            cell.get("outputs", []) if with_outputs else [],
            cell.get("attachments", {}),
        ]
        for cell in notebook.cells
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def marks(cell: NotebookNode) -> dict:
    """The cell's nbgrader metadata without the checksum; points as a float, so that 3 and 3.0 are the same."""
    found = {k: v for k, v in cell.metadata.get("nbgrader", {}).items() if k != "checksum"}
    return {**found, "points": float(found["points"])} if "points" in found else found


def stamp(notebook: NotebookNode, *, with_outputs: bool) -> None:
    """Writes the notebook's hash into its metadata."""
    notebook.metadata["hw"] = {"built": digest(notebook, with_outputs=with_outputs)}


def is_edited(notebook: NotebookNode, *, with_outputs: bool) -> bool:
    """Whether the notebook is no longer as it was stamped, or never was."""
    return notebook.metadata.get("hw", {}).get("built") != digest(notebook, with_outputs=with_outputs)
