"""How far a student is: each lesson's points by its visible checks, and the next exercise.

A lesson is run as `check` runs it, but only if something in it was written since the last time: what came of each
notebook is kept in .progress.json beside the notebooks' folder, under a hash of its code.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict, dataclass
from pathlib import Path

from tqdm import tqdm

from hw_utils.commands.check import Verdict, check_notebook, read_cells

KEPT_IN = ".progress.json"
_STUB = "raise NotImplementedError()"


@dataclass(frozen=True)
class Lesson:
    """What is known of one notebook."""

    path: Path
    verdicts: list[Verdict]

    @property
    def points(self) -> float:
        return sum(v.points or 0 for v in self.verdicts if v.passed)

    @property
    def of(self) -> float:
        return sum(v.points or 0 for v in self.verdicts)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=Path, nargs="?", default=Path("notebooks"), help="the notebooks' folder (default: notebooks)"
    )
    parser.add_argument("--fresh", action="store_true", help="run every lesson, also those that did not change")
    parser.add_argument("--timeout", type=float, default=600, metavar="S", help="seconds a lesson (default 600)")


def main(arguments: Namespace) -> int:
    """Prints the table; 2 if there are no notebooks of the course, 130 if it was interrupted."""
    try:
        lessons = progress(arguments.folder, fresh=arguments.fresh, timeout_s=arguments.timeout, show=True)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the lessons that were done by then are remembered", file=sys.stderr)
        return 130
    print(table(lessons))
    return 0


def progress(folder: Path, *, fresh: bool = False, timeout_s: float = 600, show: bool = False) -> list[Lesson]:
    """Every lesson of the folder, in order; runs those whose code changed since the last time.

    Raises:
        ValueError: the folder holds no notebook of the course, or one that cannot be read.
    """
    notebooks = find_notebooks(folder)
    store = folder.resolve().parent / KEPT_IN
    kept = {} if fresh else _kept(store)
    lessons, new = [], {}
    with tqdm(notebooks, unit="lesson", disable=not show, file=sys.stdout, leave=False) as bar:
        for path in bar:
            bar.set_description(path.stem)
            name, cells = path.relative_to(folder).as_posix(), read_cells(path)
            digest = _digest(cells)
            if kept.get(name, {}).get("digest") == digest:
                verdicts = [Verdict(**v) for v in kept[name]["verdicts"]]
            elif not is_begun(cells):
                verdicts = [Verdict(c["name"], c["points"], False, "not begun") for c in cells if c["role"] == "check"]
            else:
                verdicts = check_notebook(path, timeout_s=timeout_s)
            new[name] = {"digest": digest, "verdicts": [asdict(v) for v in verdicts]}
            _keep(store, {**kept, **new})
            lessons.append(Lesson(path, verdicts))
    return lessons


def find_notebooks(folder: Path) -> list[Path]:
    """The lessons' notebooks: FOLDER/NN_name/name.ipynb; copies beside them do not count.

    Raises:
        ValueError: there is none.
    """
    found = []
    for lesson in sorted(p for p in folder.glob("[0-9]*_*") if p.is_dir()):
        own = lesson / f"{lesson.name.partition('_')[2]}.ipynb"
        others = sorted(lesson.glob("*.ipynb"))
        found += [own] if own.exists() else others[:1]
    if not found:
        raise ValueError(
            f"{folder} has no lessons (folders such as 01_hello_ranks); run this in the course's folder, or name theirs"
        )
    return found


def is_begun(cells: list[dict]) -> bool:
    """Whether any exercise is more than the stub it came with."""
    answers = [c for c in cells if c["role"] == "exercise" and c["name"] != "setup"]
    return not answers or any(_STUB not in c["source"] for c in answers)


def _digest(cells: list[dict]) -> str:
    """A hash of a notebook's code and of the kit that checks it."""
    from hw_utils import __version__

    text = json.dumps([__version__, [(c["role"], c["name"], c["points"], c["source"]) for c in cells]])
    return hashlib.sha256(text.encode()).hexdigest()


def _kept(store: Path) -> dict:
    """What an earlier call wrote; nothing if the file is missing or was damaged."""
    try:
        found = json.loads(store.read_text(encoding="utf-8"))
        for entry in found.values():
            [Verdict(**v) for v in entry["verdicts"]]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
    return found


def _keep(store: Path, entries: dict) -> None:
    part = store.with_name(f"{store.name}.{os.getpid()}")
    try:
        part.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
        part.replace(store)
    except OSError as error:
        print(f"{store} cannot be written ({error.strerror}); the lessons run again next time", file=sys.stderr)


def table(lessons: list[Lesson]) -> str:
    """A line a lesson, the sum, and what comes next."""
    width = max(len(x.path.parent.name) for x in lessons)
    lines = [f"{'lesson':<{width}}  checks   points"]
    for x in lessons:
        n_passed = sum(v.passed for v in x.verdicts)
        lines.append(f"{x.path.parent.name:<{width}}  {n_passed:>2} of {len(x.verdicts):<2} {x.points:>4g} of {x.of:g}")
    got, of = sum(x.points for x in lessons), sum(x.of for x in lessons)
    lines.append(f"{'':<{width}}           {got:>4g} of {of:g} that visible checks give")
    for x in lessons:
        for v in x.verdicts:
            if not v.passed:
                first = v.message.splitlines()[0] if v.message else "does not pass yet"
                return "\n".join([*lines, "", f"Next: {heading_of(x.path, v.name)}, in {x.path}", f"      {first}"])
    return "\n".join([*lines, "", "Every visible check passes."])


def heading_of(path: Path, check: str) -> str:
    """The heading under which a check stands, as "1.1 Hello"; the check's name if there is none."""
    heading = check
    for cell in json.loads(path.read_text(encoding="utf-8-sig"))["cells"]:
        source = cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])
        if cell["cell_type"] == "markdown" and (found := re.findall(r"^##+ +(.+)$", source, re.M)):
            heading = found[-1].strip()
        marks = cell.get("metadata", {}).get("nbgrader", {})
        if marks.get("grade_id") == check or f"checks.{check}(" in source:
            break
    return heading
