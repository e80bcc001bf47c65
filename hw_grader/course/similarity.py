"""Who wrote the same: compares the students' own code, exercise by exercise, and lists the closest pairs.

A hint for a person to look at, never a verdict. What the release gave everybody, comments, and short answers, of
which there are only so many, do not count.
"""

from __future__ import annotations

import io
import keyword
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from nbformat import NotebookNode
from rapidfuzz import fuzz, process

from hw_grader.notebook.release import Release

MIN_TOKENS = 30
LIKE = 90.0


@dataclass(frozen=True)
class Pair:
    """Two students whose code for one exercise is alike; 100 is the same but for names and layout."""

    exercise: str
    first: str
    second: str
    likeness: float
    n_tokens: int


def tokens(source: str) -> list[str]:
    """The code's tokens without comments and layout; names that are not keywords become `n`."""
    try:
        found = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, SyntaxError, IndentationError):
        return source.split()
    left_out = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    kept = [t for t in found if t.type not in left_out]
    return ["n" if t.type == tokenize.NAME and not keyword.iskeyword(t.string) else t.string for t in kept]


def own_code(notebook: NotebookNode, release: Release) -> dict[str, list[str]]:
    """Exercise -> tokens of a restored submission, for those that the student has changed."""
    marked = release.marked
    found = {}
    for cell in notebook.cells:
        grade_id = cell.metadata.get("nbgrader", {}).get("grade_id", "")
        given = marked.get(grade_id)
        if given is not None and given.is_students and cell.cell_type == "code":
            mine = tokens(cell.source)
            if mine != tokens(given.source):
                found[grade_id] = mine
    return found


def alike(submissions: Mapping[str, NotebookNode], release: Release, like: float = LIKE) -> list[Pair]:
    """The pairs that are at least `like` alike, closest first."""
    code = {student: own_code(notebook, release) for student, notebook in submissions.items()}
    pairs: list[Pair] = []
    for exercise in sorted({e for mine in code.values() for e in mine}):
        students = [s for s in sorted(code) if len(code[s].get(exercise, ())) >= MIN_TOKENS]
        texts = [code[s][exercise] for s in students]
        scores = process.cdist(texts, texts, scorer=fuzz.ratio, score_cutoff=like)
        for i, j in zip(*np.nonzero(np.triu(scores, 1))):
            pairs.append(Pair(exercise, students[i], students[j], round(float(scores[i, j]), 1), len(texts[i])))
    return sorted(pairs, key=lambda p: (-p.likeness, -p.n_tokens, p.exercise, p.first, p.second))


def report(pairs: list[Pair]) -> str:
    """The pairs as a table in text."""
    if not pairs:
        return "no two submissions are alike"
    rows = [("exercise", "students", "alike", "tokens")]
    rows += [(p.exercise, f"{p.first}, {p.second}", f"{p.likeness:g} %", str(p.n_tokens)) for p in pairs]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip() for row in rows)
