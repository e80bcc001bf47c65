"""How a solution becomes its release: nbgrader's steps (stubs, hidden tests, locks), then the hash of what came out."""

from __future__ import annotations

from nbformat import NotebookNode
from nbgrader.converters import GenerateAssignment
from nbgrader.preprocessors import NbGraderPreprocessor, SaveCells

from hw_grader.notebook.content_hash import stamp


class StampRelease(NbGraderPreprocessor):
    """Writes the released notebook's hash into it: the builder never overwrites one that was worked on."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        stamp(nb, with_outputs=True)
        return nb, resources


def release_steps(*, save: bool = True) -> list[type]:
    """What turns a solution into its release: nbgrader's steps, then the stamp; no gradebook if not `save`."""
    steps = [*GenerateAssignment.preprocessors.default(), StampRelease]
    return [step for step in steps if save or step is not SaveCells]
