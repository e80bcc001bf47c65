"""A rubric: what each point of an answer graded by hand is given for.

It stands in the model answer, below its last paragraph:

    **Rubric**

    - 1 point: names the running mean and variance
    - 2 points: says why no gradient corrects them

In the formgrader it is a list to tick: the points stand in the answer's field at once, and what is missing can be put
into the comment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from pathlib import Path

import nbformat
from nbconvert.preprocessors import Preprocessor
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell
from nbgrader.coursedir import CourseDirectory

from hw_grader.notebook.sanitize import OwnHtml

_SOLUTION = re.compile(r"### BEGIN SOLUTION\n(.*?)\n *### END SOLUTION", re.DOTALL)
_HEAD = re.compile(r"^\*\*Rubric\*\*\s*$", re.MULTILINE)
_ITEM = re.compile(r"^- (\d+(?:\.\d+)?) points?: (.+(?:\n {2}.+)*)$", re.MULTILINE)


@dataclass(frozen=True)
class Item:
    """What some of the points are given for."""

    points: float
    observed: str


def items_of(model_answer: str) -> list[Item]:
    """The rubric's items, in order; empty if `model_answer` has no rubric."""
    head = _HEAD.search(model_answer)
    if head is None:
        return []
    return [Item(float(points), " ".join(text.split())) for points, text in _ITEM.findall(model_answer[head.end() :])]


def without_rubric(model_answer: str) -> str:
    head = _HEAD.search(model_answer)
    return model_answer[: head.start()].rstrip() if head else model_answer


def as_list_to_tick(items: list[Item], grade_id: str) -> str:
    """HTML: a box a point, which fills the field of the answer `grade_id` on nbgrader's page."""
    rows = "".join(
        f'<label class="hw-item"><input type="checkbox" data-points="{item.points:g}"> <b>{_points(item.points)}</b> '
        f"<span>{escape(item.observed)}</span></label>"
        for item in items
    )
    return (
        f'<fieldset class="hw-rubric" data-answer="{escape(grade_id, quote=True)}"><legend>Rubric</legend>{rows}'
        '<button type="button" class="btn btn-default btn-sm">Put what is missing into the comment</button></fieldset>'
        f"<style>{_STYLE}</style><script>{_SCRIPT}</script>"
    )


class RubricUnderAnswer(Preprocessor):
    """In the formgrader's pages: the model answer and its rubric, under what the student wrote."""

    enabled = True

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        if "submission_id" not in resources:  # a feedback page, which is the student's
            return nb, resources
        course = CourseDirectory(config=self.config)
        folder = Path(course.format_path(course.source_directory, ".", resources["assignment_id"]))
        solution = nbformat.read(folder / f"{resources['notebook_id']}.ipynb", as_version=4)
        answers = {c.metadata.nbgrader.grade_id: c.source for c in solution.cells if _is_by_hand(c)}
        shown = []
        for cell in nb.cells:
            shown.append(cell)
            text = _SOLUTION.search(answers.get(cell.metadata.get("nbgrader", {}).get("grade_id"), ""))
            if text and _is_by_hand(cell):
                shown += _model_answer(text[1], cell.metadata.nbgrader.grade_id)
        return NotebookNode({**nb, "cells": shown}), resources


def _model_answer(text: str, grade_id: str) -> list[NotebookNode]:
    shown = [new_markdown_cell(f"*Model answer and rubric; no student sees this.*\n\n{without_rubric(text)}")]
    items = items_of(text)
    if items:
        shown.append(new_markdown_cell())
        shown[-1].source = OwnHtml(as_list_to_tick(items, grade_id))
    return shown


def _is_by_hand(cell: NotebookNode) -> bool:
    marks = cell.metadata.get("nbgrader", {})
    return bool(marks.get("grade") and marks.get("solution"))


def _points(points: float) -> str:
    return f"{points:g} point{'' if points == 1 else 's'}"


_STYLE = """
.hw-rubric { border: 1px solid #bbb; border-radius: 4px; padding: 4px 12px 10px; margin: 8px 0 16px }
.hw-rubric legend { border: 0; font-size: inherit; font-weight: bold; margin: 0; padding: 0 4px; width: auto }
.hw-item { display: block; font-weight: normal; padding: 3px 0 }
"""
# nbgrader's page saves a field when it says that it has changed.
_SCRIPT = """
{
  const rubric = document.currentScript.parentElement.querySelector(".hw-rubric:not([data-ready])");
  const boxes = [...rubric.querySelectorAll("input")];
  const put = (id, value) => {
    const field = document.getElementById(id);
    field.value = value;
    field.dispatchEvent(new Event("change", { bubbles: true }));
  };
  rubric.dataset.ready = "";
  rubric.addEventListener("change", () => {
    const given = boxes.filter((box) => box.checked).reduce((sum, box) => sum + Number(box.dataset.points), 0);
    put(rubric.dataset.answer, given);
  });
  rubric.querySelector("button").addEventListener("click", () => {
    const missing = boxes.filter((box) => !box.checked).map((box) => "- " + box.parentElement.innerText.trim());
    put(rubric.dataset.answer + "-comment", missing.length ? "Missing:\\n" + missing.join("\\n") : "");
  });
}
"""
