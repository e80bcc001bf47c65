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

_HEAD = re.compile(r"^\*\*Rubric\*\*\s*$", re.MULTILINE)
_ITEM = re.compile(r"^- (\d+(?:\.\d+)?) points?: (.+(?:\n {2}.+)*)$", re.MULTILINE)


@dataclass(frozen=True)
class Item:
    """What some of the points are given for."""

    points: float
    observed: str


class OwnHtml(str):
    """HTML that this kit wrote, which pages show as it is; what a student wrote is never one."""


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
