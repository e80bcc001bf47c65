"""nbgrader's steps as this course takes them: `sanitize_steps`, `grade_steps`, and `page_settings` of the formgrader.

A submission is read and put in order by `TolerantExporter`, run by `Run`, and scored from positive evidence alone by
`RequireEvidence`. The step that runs is the seam: another one fills in outputs too, an error where a check failed.
"""

from __future__ import annotations

import ast
from html import escape
from pathlib import Path
from typing import Any

import nbformat
from jinja2 import pass_context
from jinja2.runtime import Context
from nbconvert.exporters import NotebookExporter
from nbconvert.filters import Highlight2HTML
from nbconvert.preprocessors import Preprocessor
from nbformat import NotebookNode
from nbformat.v4 import new_output
from nbgrader.preprocessors import (
    AssignLatePenalties,
    CheckCellMetadata,
    ClearOutput,
    Execute,
    LimitOutput,
    NbGraderPreprocessor,
    OverwriteCells,
    OverwriteKernelspec,
    SaveAutoGrades,
)
from nbgrader.server_extensions.formgrader.handlers import template_path

from hw_grader.course.grading_records import STAGING
from hw_grader.course.read_submissions import restored
from hw_grader.notebook.rubric import RubricUnderAnswer
from hw_grader.notebook.sanitize import latex_of_output, markdown_of_cell, safe_html
from hw_grader.notebook.trusted_notebook import read_trusted

_TEMPLATES = Path(__file__).resolve().parents[1] / "templates"
_MOST_COLOURED = 20_000  # characters of a cell
_MOST_COLOURED_OF_A_PAGE = 200_000


def sanitize_steps() -> list[type]:
    """What a restored submission still needs, before any of it is run."""
    return [ClearOutput, OverwriteKernelspec, OverwriteCells, CheckCellMetadata]


def grade_steps(run: type | None = None) -> list[type]:
    """What runs and scores a restored submission.

    run: the step that fills in the outputs of every check, whose word is taken; without one the notebook is run
        without a sandbox, and what it prints is the only evidence.
    """
    ran = [run] if run else [Run, RequireEvidence]
    return [*ran, Quieten, LimitOutput, SaveAutoGrades, AssignLatePenalties, CheckCellMetadata]


def page_settings() -> dict[str, Any]:
    """Settings of `HTMLExporter`, with which the formgrader makes its page of one submission, for the instructor.

    Nothing on it that comes from a student runs, loads or links: cells and outputs are safe HTML, names are text, and
    the page itself (templates/formgrader_page) lets formulas make no more than formulas, so many and so long as
    `sanitize.Formulas` has it, and draws what a student wrote nowhere but in its own box.
    """
    return {
        "sanitize_html": True,
        "preprocessors": [RubricUnderAnswer, NamesAsText],
        "filters": {
            "clean_html": safe_html,
            "markdown2html": markdown_of_cell,
            "latex_of_output": latex_of_output,
            "highlight_code": code_of_cell,
        },
        "template_name": "formgrader_page",
        "extra_template_basedirs": [str(_TEMPLATES), template_path],
        "extra_template_paths": [template_path],  # where `formgrade/index.html.j2` is
    }


@pass_context
def code_of_cell(context: Context, source: str, language: str | None = None, metadata: Any = None) -> str:
    """The code of a cell in colours, as Python; so much of a page, the rest plain.

    IPython's own lexer, and those of languages that a cell's magic may name, take hours for a long dotted name.
    """
    left = context["resources"].setdefault("characters_in_colour", _MOST_COLOURED_OF_A_PAGE) - len(source)
    if len(source) > _MOST_COLOURED or left < 0:
        return f'<div class="highlight"><pre>{escape(source)}</pre></div>'
    context["resources"]["characters_in_colour"] = left
    return Highlight2HTML(pygments_lexer="python3")(source)


class NamesAsText(Preprocessor):
    """The page's head has the student's name as HTML; whoever chose it may have chosen a script."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        for name in ("student", "first_name", "last_name"):
            resources[name] = escape(resources.get(name) or "")
        return nb, resources


def ignored_but(*endings: str) -> list[str]:
    """Patterns, as nbgrader's `ignore` has them, of all names with a dot that end otherwise.

    >>> ignored_but(".txt")
    ['*.*[!t]', '*.*[!x]t', '*.*[!t]xt', '*.*[!.]txt']
    """
    ends = sorted(
        {ending[k:] for ending in endings for k in range(1, len(ending) + 1)}, key=lambda end: (len(end), end)
    )
    before = {end: sorted({e[-len(end) - 1] for e in endings if e.endswith(end) and len(e) > len(end)}) for end in ends}
    return [f"*.*[!{''.join(letters)}]{end}" for end, letters in before.items() if letters]


class TolerantExporter(NotebookExporter):
    """Reads any submitted file: copied, deleted or stripped cells are put in order, a broken file says why it is.

    See `hw_grader.notebook.restore`. What is read in the second stage is our own work of the first.
    """

    def from_filename(self, filename: str, resources: dict | None = None, **kw) -> tuple[str, dict]:
        if not self.parent._sanitizing:
            return super().from_filename(filename, resources, **kw)
        resources = self._init_resources(resources)
        path, course = Path(filename), self.parent.coursedir
        resources["metadata"] = {"name": path.stem, "path": str(path.parent)}
        if course.submitted_directory == STAGING:  # our own work (see gradebook.py)
            return self.from_notebook_node(nbformat.read(path, as_version=4), resources=resources, **kw)
        folder = course.format_path(course.source_directory, ".", resources["nbgrader"]["assignment"])
        solution = Path(folder) / path.name
        notebook = restored(path, read_trusted(solution), solution)
        return self.from_notebook_node(notebook, resources=resources, **kw)


class Run(Execute):
    """Runs a restored notebook in a kernel of its own, without a sandbox; a dead kernel says why in every check."""

    def preprocess(self, nb: NotebookNode, resources: dict, km=None) -> tuple[NotebookNode, dict]:
        checks = [cell for cell in nb.cells if is_check(cell)]
        reason = nb.metadata.get("hw_grader", {}).get("unreadable")
        if not reason:
            try:
                return super().preprocess(nb, resources, km)
            except Exception as error:  # a kernel can end in many ways; the class goes on
                reason = f"not run: the notebook's process ended before this check ({type(error).__name__})"
        self.log.warning("%s: %s", resources["nbgrader"].get("student"), reason)
        for cell in checks:
            if cell.get("execution_count") is None and not errors_of(cell):
                fail(cell, "crashed", reason)
        return nb, resources


class RequireEvidence(NbGraderPreprocessor):
    """Points only for a check whose every statement said `ok:`; numbers and silence count for nothing."""

    def preprocess_cell(self, cell: NotebookNode, resources: dict, index: int) -> tuple[NotebookNode, dict]:
        if is_check(cell):
            cell.outputs = [output for output in cell.outputs if output.output_type != "execute_result"]
            said = [line for line in _stdout(cell).splitlines() if line.startswith("ok: ")]
            if not errors_of(cell) and len(said) < len(ast.parse(cell.source).body):
                fail(cell, "fail", "this check did not say that it passed")
        return cell, resources


class Quieten(NbGraderPreprocessor):
    """Turns stderr into stdout: nbgrader takes all points from a check that a library warned in."""

    def preprocess_cell(self, cell: NotebookNode, resources: dict, index: int) -> tuple[NotebookNode, dict]:
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                output["name"] = "stdout"
        return cell, resources


def is_check(cell: NotebookNode) -> bool:
    """Whether it is an autograded check."""
    marks = cell.metadata.get("nbgrader", {})
    return bool(cell.cell_type == "code" and marks.get("grade") and not marks.get("solution"))


def errors_of(cell: NotebookNode) -> list[str]:
    """The messages of the cell's errors, each `Name: text`."""
    errors = [output for output in cell.get("outputs", []) if output.output_type == "error"]
    return [f"{e.ename}: {e.evalue}" if e.evalue else e.ename for e in errors]


def fail(cell: NotebookNode, name: str, reason: str) -> None:
    """Gives the cell an error output, which scores 0 and shows in the student's feedback."""
    cell.outputs = [
        *cell.get("outputs", []),
        new_output("error", ename=name, evalue=reason, traceback=[f"{name}: {reason}"]),
    ]


def _stdout(cell: NotebookNode) -> str:
    return "".join(o.text for o in cell.outputs if o.output_type == "stream" and o.name == "stdout")
