"""Which hint a failure names, and whether it is the right one: it exists, stands before the check, and is about it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tools.lesson import Lesson, lesson_files, read_lesson

_HEADING = re.compile(r"^(?:#{2,3} (?:(\d+\.\d+[a-z]?) |Bonus)|\*\*Task (\d+\.\d+[a-z]?)\*\*)", re.M)
_HINT = re.compile(r"<summary>Hint(?: (\d+))?:? *(.*?)</summary>")
_NAMED = re.compile(r"^\s*see: (?:hint (\d+)|the hints) of (?:exercise ([\w.]+?)|the bonus exercise)\.?$", re.M)


@dataclass(frozen=True)
class Hint:
    """A hint as it stands in a lesson: the number of its cell, its own number, its title."""

    cell: int
    number: int
    title: str

    @property
    def quoted(self) -> list[str]:
        """What it quotes of the failures that it explains."""
        return re.findall(r'"([^"]+)"', self.title)


@lru_cache
def lesson(number: str) -> Lesson:
    """The lesson of that number: `lesson("01")`."""
    return read_lesson(next(path for path in lesson_files() if Path(path).name.startswith(f"{number}_")))


@lru_cache
def hints_of(number: str) -> dict[str, list[Hint]]:
    """The hints of a lesson under each heading: `hints_of("01")["1.2a"]`; "" for the bonus."""
    found: dict[str, list[Hint]] = {}
    place = None
    for k, cell in enumerate(lesson(number).cells):
        if cell.kind != "markdown":
            continue
        marks = [(m.start(), m, None) for m in _HEADING.finditer(cell.source)]
        marks += [(m.start(), None, m) for m in _HINT.finditer(cell.source)]
        for _, heading, hint in sorted(marks, key=lambda mark: mark[0]):
            if heading:
                place = heading[1] or heading[2] or ""
                found.setdefault(place, [])
            elif place is not None:
                found[place].append(Hint(k, int(hint[1] or 0), hint[2]))
    return found


def require_its_hint(check: str, text: str, expected: int | None) -> None:
    """Fails unless the hint that a failure of `check` names is there, in time, and the one that is about it.

    expected: its number, 0 for none; None if nobody has said: then what a title quotes decides.
    """
    number = check[len("lesson_") :][:2]
    named = _NAMED.search(text)
    assert named or "see:" not in text, f"no such place: {text}"
    if expected is not None:
        assert int((named and named[1]) or 0) == expected, text
    if named is None:
        return
    exercise = named[2] or ""
    hints = hints_of(number).get(exercise)
    assert hints is not None, f"there is no exercise {exercise} in lesson {number}: {text}"
    if named[1] is None:
        return
    by_number = {hint.number: hint for hint in hints}
    assert int(named[1]) in by_number, text
    checked = [
        k
        for k, cell in enumerate(lesson(number).cells)
        if cell.role == "check" and any(c.check == check for c in cell.calls)
    ]
    assert by_number[int(named[1])].cell < checked[0], f"the hint stands after the check: {text}"
    said = text[: named.start()]
    quoting = [hint.number for hint in hints if any(words in said for words in hint.quoted)]
    assert not quoting or int(named[1]) in quoting, f"hint {quoting} quotes these words: {text}"
