"""Who wrote the same: compares the students' own code, exercise by exercise, and lists the closest pairs.

A hint for a person to look at, never a verdict. What the release gave everybody, comments, and short answers, of
which there are only so many, do not count. An answer is compared with all of another student's own functions, wherever
they stand: in a helper cell, or in a text that is run (`exec`), encoded or not.
"""

from __future__ import annotations

import ast
import base64
import binascii
import keyword
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from nbformat import NotebookNode
from rapidfuzz import fuzz, process

from hw_grader.notebook.sanitize import visible
from hw_grader.notebook.trusted_notebook import TrustedNotebook

MIN_TOKENS = 30
LIKE = 90.0
MOST_CHARS = 50_000  # of a cell or a text that is looked into
MOST_OF_ONE = 500_000  # characters of one student's code that are looked into, in cells, functions and texts together
_SHORTEST_TEXT = 60
_RUN_TEXT = frozenset({"exec", "eval", "compile", "__import__"})
_DECODERS: tuple[Callable[[bytes], bytes], ...] = (
    bytes, base64.b64decode, base64.b85decode, base64.b32decode, binascii.unhexlify,
)  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """Two students whose code for one exercise is alike; 100 is the same but for names and layout.

    where: of the second's, if it is not in the exercise's own cell.
    """

    exercise: str
    first: str
    second: str
    likeness: float
    n_tokens: int
    where: str = ""


# Each part takes what it has looked at, ended or not: Python's own tokenizer may read a line again from each quote.
_TOKEN = re.compile(
    r"""
    (?: [\s\\]+ | \#[^\n]* )                                                      # layout and comments
    | ( (?i:[bfru]|br|rb|fr|rf)?                                                   # a string
        (?: \"{3}(?:[^\\]|\\.?)*?(?:\"{3}|\Z) | '{3}(?:[^\\]|\\.?)*?(?:'{3}|\Z)
          | \"(?:[^"\\\n]|\\.?)*(?:"|(?=\n)|\Z) | '(?:[^'\\\n]|\\.?)*(?:'|(?=\n)|\Z) )
      | \.?\d(?:[eE][+-]|[\w.])* | \w+                                             # a number, a name
      | (?:\*\*|//|<<|>>|[-+*/%&|^@=!<>:])=? | .                                   # an operator, or what it may be
    )""",
    re.VERBOSE | re.DOTALL,
)


def tokens(source: str) -> list[str]:
    """The code's tokens without comments and layout; names that are not keywords become `n`."""
    found = filter(None, _TOKEN.findall(source))
    return ["n" if t.isidentifier() and not keyword.iskeyword(t) else t for t in found]


def parsed(source: str) -> ast.AST | None:
    """The code's tree; None if it is none, or too long to be looked into."""
    if len(source) > MOST_CHARS:
        return None
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.parse(source)
    return None


def texts_in(source: str, most_chars: int = MOST_OF_ONE, left_out: list[str] | None = None) -> Iterator[str]:
    """Code that stands in the code's strings, as it is or encoded (base64, hexadecimal, zlib, ...).

    most_chars: of all that is decoded; what comes after them is not looked into, and `left_out` gets a line.
    """
    tree, seen = parsed(source), set()
    for node in ast.walk(tree) if tree else ():
        text = node.value if isinstance(node, ast.Constant) else None
        if not isinstance(text, str | bytes) or not _SHORTEST_TEXT <= len(text) <= MOST_CHARS or text in seen:
            continue
        seen.add(text)
        data = text.encode(errors="replace") if isinstance(text, str) else text
        for decode in _DECODERS:
            with suppress(ValueError, zlib.error):
                found = decode(data)
                with suppress(zlib.error):
                    found = zlib.decompressobj().decompress(found, MOST_CHARS)
                hidden = found.decode()
                most_chars -= len(hidden)
                if most_chars < 0:
                    if left_out is not None:
                        left_out.append(f"packed texts: over {MOST_OF_ONE:,} characters with the rest")
                    return
                if parsed(hidden) is not None and len(tokens(hidden)) >= MIN_TOKENS:
                    yield hidden
                    break


def functions_in(source: str) -> Iterator[str]:
    """The source of each function and class, those inside others too."""
    tree = parsed(source)
    lines = [line.encode(errors="replace") for line in re.split("\r\n|\r|\n", source)]  # ast counts in bytes
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found = lines[node.lineno - 1 : node.end_lineno]
            found[-1] = found[-1][: node.end_col_offset]
            found[0] = found[0][node.col_offset :]
            yield b"\n".join(found).decode(errors="replace")


def runs_text(notebook: NotebookNode, trusted: TrustedNotebook) -> list[str]:
    """The lines of a submission's own cells that run a text as code."""
    given = {cell.source for cell in trusted.cells}
    found = []
    for cell in notebook.cells:
        tree = parsed(cell.source) if cell.cell_type == "code" and cell.source not in given else None
        calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)] if tree else []
        lines = sorted({c.lineno for c in calls if getattr(c.func, "id", getattr(c.func, "attr", "")) in _RUN_TEXT})
        source = cell.source.splitlines() if lines else []
        found += [visible(source[line - 1].strip()[:120]) for line in lines]
    return found


@dataclass(frozen=True)
class Own:
    """A student's code: for each exercise, and every function of theirs with where it stands."""

    answers: dict[str, list[str]]
    pieces: list[tuple[str, list[str]]]
    left_out: list[str] = field(default_factory=list)  # lines on what was not looked into


def own_code(notebook: NotebookNode, trusted: TrustedNotebook) -> Own:
    """Of a restored submission, what the student has changed or added."""
    given = {tuple(tokens(cell.source)) for cell in trusted.cells if cell.kind == "code"}
    given |= {tuple(tokens(f)) for c in trusted.cells if c.kind == "code" for f in functions_in(c.source)}
    answers: dict[str, list[str]] = {}
    pieces: list[tuple[str, list[str]]] = []
    left_out: list[str] = []
    n_chars = 0

    def add(place: str, source: str) -> None:
        nonlocal n_chars
        n_chars += len(source)
        if n_chars <= MOST_OF_ONE:
            pieces.append((place, tokens(source)))

    for number, cell in enumerate(notebook.cells, 1):
        n_chars += len(cell.source)
        if cell.cell_type == "code" and len(cell.source) > MOST_CHARS and n_chars <= MOST_OF_ONE:
            left_out.append(f"functions and texts in cell {number}: over {MOST_CHARS:,} characters")
        if cell.cell_type != "code" or n_chars > MOST_OF_ONE or tuple(tokens(cell.source)) in given:
            continue
        grade_id = cell.metadata.get("nbgrader", {}).get("grade_id", "")
        marked = trusted.marked.get(grade_id)
        if marked is not None and not marked.is_students:
            continue
        if marked is not None:
            answers[grade_id] = tokens(cell.source)
        place = grade_id if marked is not None else "another cell"
        for source in functions_in(cell.source):
            add(place, source)
        for hidden in texts_in(cell.source, MOST_OF_ONE - n_chars, left_out):
            for source in (hidden, *functions_in(hidden)):
                add(f"a text in {place}", source)
    if n_chars > MOST_OF_ONE:
        left_out.append(f"what comes after {MOST_OF_ONE:,} characters")
    pieces = [(place, t) for place, t in pieces if len(t) >= MIN_TOKENS and tuple(t) not in given]
    return Own(answers, pieces, left_out)


def alike(code: Mapping[str, Own], like: float = LIKE) -> list[Pair]:
    """The pairs of students that are at least `like` alike, closest first; of two one pair an exercise."""
    pieces = [(student, place, t) for student in sorted(code) for place, t in code[student].pieces]
    best: dict[tuple[str, str, str], Pair] = {}
    for exercise in sorted({e for own in code.values() for e in own.answers}):
        students = [s for s in sorted(code) if len(code[s].answers.get(exercise, ())) >= MIN_TOKENS]
        texts = [code[s].answers[exercise] for s in students]
        others = [(s, "", t) for s, t in zip(students, texts)] + pieces
        scores = process.cdist(texts, [t for _, _, t in others], scorer=fuzz.ratio, score_cutoff=like)
        for i, j in zip(*np.nonzero(scores)):
            (first, mine), (second, place, _) = (students[i], texts[i]), others[j]
            where = "" if place in ("", exercise) else place
            key = (exercise, *sorted((first, second)))
            pair = Pair(exercise, first, second, round(float(scores[i, j]), 1), len(mine), where)
            if first != second and (key not in best or _rank(pair) < _rank(best[key])):
                best[key] = pair
    return sorted(best.values(), key=_rank)


def _rank(pair: Pair) -> tuple:
    return -pair.likeness, bool(pair.where), -pair.n_tokens, pair.exercise, pair.first, pair.second


def report(
    pairs: list[Pair], running_text: Mapping[str, list[str]] | None = None, code: Mapping[str, Own] | None = None
) -> str:
    """The pairs as a table in text; then who runs texts as code, with the lines, and whose code is too long."""
    lines = ["no two submissions are alike"]
    if pairs:
        rows = [("exercise", "students", "alike", "tokens", "the second's stands in")]
        rows += [
            (p.exercise, f"{p.first}, {p.second}", f"{p.likeness:g} %", str(p.n_tokens), p.where or "its own cell")
            for p in pairs
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip() for row in rows]
    for student, found in (running_text or {}).items():
        lines += [f"{student} runs a text as code:", *(f"    {line}" for line in found)] if found else []
    for student, own in (code or {}).items():
        left_out = [f"    {line}" for line in own.left_out]
        lines += [f"{student} has code that was not looked into:", *left_out] if left_out else []
    return "\n".join(lines)
