"""lessons.csv: which lessons a course has, and from when on students get each.

    lesson,opens
    01_hello_ranks,
    02_all_reduce,2026-03-01
    05_scaling,2026-03-15 08:00 Europe/Berlin

Without the file all lessons are published. Dates are as in hw_grader/term/course_time.py.
"""

from __future__ import annotations

import csv
from datetime import datetime, timezone
from pathlib import Path

from hw_grader.term.course_time import EXAMPLE, read_date, shown
from tools.lesson import Lesson

FILE = "lessons.csv"


class ChoiceError(ValueError):
    """lessons.csv cannot be used; says the line and the rule."""


def chosen_lessons(root: Path, lessons: list[Lesson], now: datetime | None = None) -> tuple[list[Lesson], list[str]]:
    """The lessons that are open now, and a line about each that opens later.

    now: with its zone; the present moment without.

    Raises:
        ChoiceError: other columns, no such lesson, one named twice, no date, or nothing is open.
    """
    path = root / FILE
    if not path.exists():
        return lessons, []
    now = now or datetime.now(timezone.utc)
    by_name = {lesson.name: lesson for lesson in lessons}
    opens = _read(path, by_name)
    later = {name: when for name, when in opens.items() if when is not None and when > now}
    found = [by_name[name] for name in sorted(opens.keys() - later.keys())]
    if not found:
        raise ChoiceError(
            f"{FILE}: no lesson is open yet; the first one is {min(later, key=later.get, default='none')}"
        )
    return found, [f"{name} opens {shown(when)}: publish again then" for name, when in later.items()]


def _read(path: Path, known: dict[str, Lesson]) -> dict[str, datetime | None]:
    opens: dict[str, datetime | None] = {}
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        if set(reader.fieldnames or ()) != {"lesson", "opens"}:
            raise ChoiceError(f"{FILE} has the columns lesson, opens; got {reader.fieldnames}")
        for row in reader:
            name, when = (row["lesson"] or "").strip(), (row["opens"] or "").strip()
            if name not in known or name in opens:
                raise ChoiceError(
                    f"{FILE}, line {reader.line_num}: a row names one lesson of lessons/ ({', '.join(known)}), "
                    f"each once; got {name!r}"
                )
            try:
                opens[name] = read_date(when) if when else None
            except ValueError as error:
                raise ChoiceError(
                    f"{FILE}, line {reader.line_num}: opens is a date as {EXAMPLE}, got {when!r}"
                ) from error
    return opens
