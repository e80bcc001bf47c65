"""lessons/ -> solutions/ -> notebooks/: `python -m tools.build [--check] [--replace] [--unchecked] [LESSON...]`.

Everything is built in a folder of its own first and swapped in at the end, file by file,
so a build that fails leaves the committed copies as they were. Only the notebooks are replaced.
A solution whose code is new has to pass its own checks first, hidden cases too.
One that somebody has worked on is kept: see `swap`.
"""

from __future__ import annotations

import argparse
import difflib
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from nbgrader.converters import GenerateAssignment
from nbgrader.converters.base import NbGraderException
from nbgrader.coursedir import CourseDirectory
from traitlets.config import Config

from hw_grader.notebook.content_hash import digest, is_edited
from hw_grader.notebook.release_steps import release_steps
from tools.lesson import ROOT, Lesson, LessonError, lesson_files, read_lesson
from tools.notebook import to_notebook, to_text
from tools.solution import changed_points, failing_checks, is_new, unknown_checks

SOLUTIONS, RELEASE = "solutions", "notebooks"


class BuildFailed(RuntimeError):
    """The build stopped before it changed anything; the message says where and why."""


@dataclass
class Report:
    """What a build did, as paths relative to the root."""

    written: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)  # one text each: what was kept, and what to do
    points: list[str] = field(default_factory=list)  # one text a lesson that is worth something else now


def build(root: Path = ROOT, names: Iterable[str] = (), *, replace: bool = False, unchecked: bool = False) -> Report:
    """Builds the lessons (all, or those named) and swaps the results in.

    replace: notebooks that somebody worked on are overwritten.
    unchecked: a solution whose code is new need not pass its checks yet.

    Raises:
        BuildFailed: a lesson breaks a rule, nbgrader refuses it, its solution fails its own checks,
            or solutions/ has edits that were not imported.
    """
    lessons = read_lessons(root, names)
    (root / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root / "build", prefix="release-") as folder:
        made = Path(folder)
        make(lessons, made)
        if not replace:
            require_imported(root, lessons, made)
        if not unchecked:
            require_passing(root, lessons, made)
        points = [_worth(root, lesson, made) for lesson in lessons]
        report = swap(root, lessons, made, replace=replace, all_of_them=not list(names))
    report.points = [text for text in points if text]
    return report


def read_lessons(root: Path, names: Iterable[str] = ()) -> list[Lesson]:
    """The lessons, checked; the problems of all of them in one message."""
    wanted = {name.rpartition("/")[2].removesuffix(".py") for name in names}
    files = [file for file in lesson_files(root / "lessons") if not wanted or file.stem in wanted]
    if missing := wanted - {file.stem for file in files}:
        raise BuildFailed(f"no such lesson in lessons/: {', '.join(sorted(missing))}")
    lessons, problems = [], []
    for file in files:
        try:
            lessons.append(read_lesson(file))
            problems += unknown_checks(lessons[-1])
        except LessonError as error:
            problems.append(str(error))
    if problems:
        raise BuildFailed("\n".join(problems))
    return lessons


def make(lessons: list[Lesson], folder: Path, address: str | None = None) -> None:
    """Writes solutions/ and notebooks/ of the lessons into an empty folder; `address` is for their set-up cells."""
    for lesson in lessons:
        target = folder / SOLUTIONS / lesson.product
        target.parent.mkdir(parents=True)
        target.write_text(to_text(to_notebook(lesson, address)), encoding="utf-8", newline="\n")
    for lesson in lessons:
        generate_release(folder, lesson.name)
        if not (folder / RELEASE / lesson.product).exists():
            raise BuildFailed(f"nbgrader wrote no release of {lesson.name}")


def generate_release(folder: Path, name: str) -> None:
    """nbgrader's generate_assignment, in this process and without a gradebook."""
    config = Config()
    config.CourseDirectory.root = str(folder.resolve())
    config.CourseDirectory.assignment_id = name
    config.CourseDirectory.source_directory, config.CourseDirectory.release_directory = SOLUTIONS, RELEASE
    config.GenerateAssignment.no_database = True
    config.GenerateAssignment.preprocessors = release_steps(save=False)
    converter = GenerateAssignment(coursedir=CourseDirectory(config=config), config=config)
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())
    log = converter.log = logging.Logger(f"release of {name}")  # one of its own: nothing reaches the terminal
    log.addHandler(handler)
    try:
        converter.start()
    except (NbGraderException, SystemExit) as error:
        raise BuildFailed("\n".join([f"nbgrader could not make the release of {name}: {error}", *messages])) from error


def require_imported(root: Path, lessons: list[Lesson], made: Path) -> None:
    """Refuses to build over an instructor's edit in solutions/ that lessons/ does not have."""
    products = [f"{SOLUTIONS}/{lesson.product}" for lesson in lessons]
    edited = [
        name
        for name in products
        if is_worked_on(root / name, with_outputs=False) and not _same_content(root / name, made / name)
    ]
    if edited:
        raise BuildFailed(
            "\n".join(
                f"{path} was edited and a build would lose that.\n"
                f"  To keep the edit:  make import NOTEBOOK={path}\n"
                f"  To drop it:        make notebooks REPLACE=1"
                for path in edited
            )
        )


def require_passing(root: Path, lessons: list[Lesson], made: Path) -> None:
    """Refuses a solution with new code that fails a check of its own lesson."""
    new = [made / SOLUTIONS / x.product for x in lessons]
    new = [path for path in new if is_new(root / path.relative_to(made), path)]
    if failing := [text for path in new for text in failing_checks(path)]:
        raise BuildFailed("\n".join([*failing, "To build it as it is:  make notebooks UNCHECKED=1"]))


def _worth(root: Path, lesson: Lesson, made: Path) -> str:
    product = f"{SOLUTIONS}/{lesson.product}"
    text = changed_points(root / product, made / product)
    if not text:
        return ""
    return (
        f"{lesson.name} is worth {text}.\n"
        f"  Marks that were given stay until:  make grade ASSIGNMENT={lesson.name}\n"
        "  A column that an LMS already has needs its new maximum; so does what README.md says of the lesson."
    )


def _same_content(a: Path, b: Path) -> bool:
    try:
        notebooks = [nbformat.read(path, as_version=4) for path in (a, b)]
    except Exception:  # one that cannot be read has other content
        return False
    return digest(notebooks[0], with_outputs=False) == digest(notebooks[1], with_outputs=False)


def is_worked_on(path: Path, *, with_outputs: bool) -> bool:
    """Whether a notebook that the builder wrote has changed since; one that cannot be read counts as changed."""
    if not path.exists():
        return False
    try:
        return is_edited(nbformat.read(path, as_version=4), with_outputs=with_outputs)
    except Exception:  # nbformat raises many kinds for a damaged file
        return True


def swap(root: Path, lessons: list[Lesson], made: Path, *, replace: bool, all_of_them: bool) -> Report:
    """Puts the built notebooks in their places, each in one step.

    A released notebook that a student worked on stays; if its lesson changed since, the new release
    is written beside it as `name.new.ipynb`.
    """
    report = Report()
    for lesson in lessons:
        for tree in (SOLUTIONS, RELEASE):
            target, source = root / tree / lesson.product, made / tree / lesson.product
            if tree == RELEASE and not replace and is_worked_on(target, with_outputs=True):
                _keep(root, target, source, report)
            else:
                _put(root, source, target, report)
    if all_of_them:
        _remove_stale(root, lessons, report)
    return report


def _put(root: Path, source: Path, target: Path, report: Report) -> None:
    name = target.relative_to(root).as_posix()
    if target.exists() and target.read_bytes() == source.read_bytes():
        report.unchanged.append(name)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name}.part")
    shutil.copyfile(source, beside)
    os.replace(beside, target)
    report.written.append(name)


def _keep(root: Path, target: Path, source: Path, report: Report) -> None:
    name = target.relative_to(root).as_posix()
    if _stamp_of(target) == _stamp_of(source):
        report.kept.append(f"{name} has somebody's work in it: kept as it is.")
        return
    beside = target.with_name(f"{target.stem}.new.ipynb")
    _put(root, source, beside, report)
    report.kept.append(f"{name} has somebody's work in it: kept as it is. The new release is {beside.name} beside it.")


def _stamp_of(path: Path) -> str | None:
    try:
        return nbformat.read(path, as_version=4).metadata.get("hw", {}).get("built")
    except Exception:
        return None


def _remove_stale(root: Path, lessons: list[Lesson], report: Report) -> None:
    """Removes built notebooks whose lesson is gone, unless somebody worked on them."""
    current = {lesson.product for lesson in lessons}
    for tree in (SOLUTIONS, RELEASE):
        for path in sorted((root / tree).glob("*/*.ipynb")):
            product = path.relative_to(root / tree).as_posix()
            ours = _stamp_of(path) is not None and not path.stem.endswith(".new")
            if ours and product not in current and not is_worked_on(path, with_outputs=tree == RELEASE):
                path.unlink()
                report.removed.append(f"{tree}/{product}")
                if not any(path.parent.iterdir()):
                    path.parent.rmdir()


def find_drift(root: Path = ROOT) -> list[str]:
    """What a rebuild would change in the committed copies: one text a file, with the first differing lines."""
    lessons = read_lessons(root)
    (root / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root / "build", prefix="check-") as folder:
        made = Path(folder)
        make(lessons, made)
        drift = [_difference(root, made, f"{tree}/{x.product}") for x in lessons for tree in (SOLUTIONS, RELEASE)]
    current = {x.product for x in lessons}
    stale = [
        f"{path.relative_to(root).as_posix()} has no lesson"
        for tree in (SOLUTIONS, RELEASE)
        for path in sorted((root / tree).glob("*/*.ipynb"))
        if path.relative_to(root / tree).as_posix() not in current
    ]
    return [text for text in drift if text] + stale


def _difference(root: Path, made: Path, name: str) -> str:
    if not (root / name).exists():
        return f"{name} is missing"
    old, new = (root / name).read_bytes(), (made / name).read_bytes()
    if old == new:
        return ""
    lines = difflib.unified_diff(
        old.decode("utf-8", "replace").splitlines(), new.decode().splitlines(), "committed", "rebuilt", n=0, lineterm=""
    )
    changed = [line[:110] for line in lines if not line.startswith(("@@", "---", "+++")) and '"id": ' not in line]
    more = f"\n    ... {len(changed) - 8} more lines" if len(changed) > 8 else ""
    return f"{name} differs:\n" + "\n".join(f"    {line}" for line in changed[:8]) + more


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.build", description="Builds solutions/ and notebooks/.")
    parser.add_argument("lessons", nargs="*", metavar="LESSON", help="such as 01_hello_ranks; all of them by default")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a rebuild would")
    parser.add_argument("--replace", action="store_true", help="overwrite notebooks that somebody worked on, too")
    parser.add_argument("--unchecked", action="store_true", help="build a solution that may not pass its checks yet")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    root = chosen.root.resolve()
    try:
        if chosen.check:
            return _print_drift(find_drift(root))
        report = build(root, chosen.lessons, replace=chosen.replace, unchecked=chosen.unchecked)
    except BuildFailed as error:
        print(f"Nothing was changed.\n{error}", file=sys.stderr)
        return 1
    for text in (
        [f"wrote {x}" for x in report.written] + [f"removed {x}" for x in report.removed] + report.kept + report.points
    ):
        print(text)
    print(f"{len(report.written)} written, {len(report.unchanged)} unchanged, {len(report.kept)} kept")
    return 0


def _print_drift(drift: list[str]) -> int:
    if drift:
        print("\n".join(["The committed notebooks are not what lessons/ gives:", *drift, "Run:  make notebooks"]))
        return 1
    print("solutions/ and notebooks/ are what lessons/ gives")
    return 0


if __name__ == "__main__":
    sys.exit(main())
