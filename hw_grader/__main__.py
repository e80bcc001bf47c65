"""The instructor's command line.

python -m hw_grader selftest                      13 probes of the sandbox
python -m hw_grader grade [ASSIGNMENT]            see hw_grader.grade
python -m hw_grader collect ZIP ...               downloads of an LMS into submitted/: who, which lesson, who is missing
python -m hw_grader export KIND [ASSIGNMENT]      marks for csv, canvas, moodle, brightspace: on stdout, or of every
                                                  lesson in build/export/
python -m hw_grader feedback [ASSIGNMENT]         a page a student in feedback/, zips for the LMS in build/feedback/
python -m hw_grader merge GRADEBOOK ...           what assistants gave by hand in their copies, into this gradebook.db
python -m hw_grader export gradescope ASSIGNMENT  results.json of every student, below build/gradescope/
python -m hw_grader autograder ASSIGNMENT         Gradescope's autograder zip, in build/
python -m hw_grader similarity ASSIGNMENT         pairs whose own code is alike
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import nbformat

from hw_grader import grade
from hw_grader.course import gradescope, grading_records
from hw_grader.sandbox import selftest


def main(arguments: list[str] | None = None) -> int:
    """The exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["selftest"]:
        return selftest.main()
    if arguments[:1] == ["grade"]:
        return grade.main(arguments[1:])
    parser = argparse.ArgumentParser(
        prog="hw_grader", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--course", type=Path, default=Path("."))
    commands = parser.add_subparsers(dest="command", required=True)
    export = commands.add_parser("export")
    export.add_argument("kind", choices=("csv", "canvas", "moodle", "brightspace", "gradescope"))
    export.add_argument("assignment", nargs="?", default="", help="as 01_hello_ranks; every graded one without")
    collected = commands.add_parser("collect")
    collected.add_argument("zips", nargs="*", help="zips or folders, as the LMS gave them")
    collected.add_argument("--class-list", type=Path, help="CSV of the students; class.csv of the course by default")
    collected.add_argument("--assignment", default="", help="as 01_hello_ranks: all in the zips is for this lesson")
    feedback = commands.add_parser("feedback")
    feedback.add_argument("assignment", nargs="?", default="", help="as 01_hello_ranks; every graded one without")
    commands.add_parser("merge").add_argument("gradebooks", nargs="+", type=Path, help="gradebook.db of other copies")
    for name in ("autograder", "similarity"):
        commands.add_parser(name).add_argument("assignment")
    options = parser.parse_args(arguments)
    run = {"collect": _collect, "export": _export, "feedback": _feedback, "merge": _merge, "autograder": _autograder,
           "similarity": _similarity}  # fmt: skip
    return run[options.command](options)


def _collect(options: argparse.Namespace) -> int:
    from hw_grader.notebook.submission import one_line
    from hw_grader.term.class_list import ClassListError, read_class
    from hw_grader.term.collect import collect
    from hw_grader.term.downloads import as_paths

    if not options.zips:
        print('which downloads of the LMS? make collect ZIPS="one.zip two.zip"', file=sys.stderr)
        return 2
    root = options.course.resolve()
    path = options.class_list or root / "class.csv"
    if options.class_list and not path.exists():
        print(f"there is no class list {path}", file=sys.stderr)
        return 2
    try:
        known = read_class(path)
        found = collect(root, as_paths(options.zips), known, options.assignment)
    except (ClassListError, FileNotFoundError) as error:
        print(one_line(str(error), 10_000), file=sys.stderr)
        return 2
    print(found)
    if not known.students:
        print("there is no class.csv: names were believed, and nobody can be missing (docs/lms.md)")
    return 0 if found.is_clean else 1


def _export(options: argparse.Namespace) -> int:
    from hw_grader.term.class_list import ClassListError, bring_names
    from hw_grader.term.late import LateError, apply_rules
    from hw_grader.term.lms_csv import as_lms, said_of_waiting, without_points

    root = options.course.resolve()
    wanted = _graded(root, options.assignment)
    if not wanted:
        return 2
    try:
        known = bring_names(root)
        apply_rules(root)
    except (ClassListError, LateError) as error:
        print(error, file=sys.stderr)
        return 2
    for assignment in wanted:
        if options.kind == "gradescope":
            print(_gradescope(root, assignment))
            continue
        text = as_lms(options.kind, root, assignment, known)
        if options.assignment:
            sys.stdout.write(text)
        else:
            path = root / "build" / "export" / f"{options.kind}_{assignment}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(path)
        if waiting := without_points(root, assignment):
            what = "and the marks here are without them"
            print(said_of_waiting(assignment, waiting, what, "make export"), file=sys.stderr)
    return 0


def _feedback(options: argparse.Namespace) -> int:
    from hw_grader.term.class_list import ClassListError
    from hw_grader.term.feedback_zips import give_back
    from hw_grader.term.late import LateError

    root = options.course.resolve()
    wanted, failed = _graded(root, options.assignment), False
    try:
        for lesson in wanted:
            done = give_back(root, lesson)
            print(done)
            failed = failed or bool(done.failed)
    except (ClassListError, LateError, FileNotFoundError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0 if wanted and not failed else 2 if not wanted else 1


def _merge(options: argparse.Namespace) -> int:
    from hw_grader.term.merge_marks import MergeError, merge

    try:
        done = merge(options.course.resolve(), options.gradebooks)
    except MergeError as error:
        print(error, file=sys.stderr)
        return 2
    print(done)
    return 1 if done.differ or done.refused or done.unknown else 0


def _graded(root: Path, lesson: str) -> list[str]:
    """The lessons that there are marks of, or only the one named; if there are none a word about it, and none."""
    graded = sorted(path.name for path in (root / "records").glob("[!.]*") if any(path.glob("*.json")))
    if not graded or (lesson and lesson not in graded):
        print(f"there are no marks of {lesson or 'any lesson'}: run make grade first", file=sys.stderr)
        return []
    return [lesson] if lesson else graded


def _gradescope(root: Path, assignment: str) -> Path:
    folder = root / "build" / "gradescope" / assignment
    for record in grading_records.all_of(root, assignment):
        (folder / record.student).mkdir(parents=True, exist_ok=True)
        (folder / record.student / "results.json").write_text(json.dumps(gradescope.as_gradescope(record), indent=1))
    return folder


def _autograder(options: argparse.Namespace) -> int:
    root = options.course.resolve()
    trusted, solution = _release(root, options.assignment)
    path = root / "build" / f"autograder_{options.assignment}.zip"
    path.parent.mkdir(exist_ok=True)
    gradescope.autograder_zip(path, trusted, solution, root)
    print(path)
    return 0


def _similarity(options: argparse.Namespace) -> int:
    from hw_grader.course.similarity import alike, own_code, report, runs_text

    root = options.course.resolve()
    trusted, _ = _release(root, options.assignment)
    notebooks = {s.student: nbformat.from_dict(json.loads(s.restored)) for s in grade.submissions(root, trusted)}
    code = {s: own_code(n, trusted) for s, n in notebooks.items()}
    print(report(alike(code), {s: runs_text(n, trusted) for s, n in notebooks.items()}, code))
    return 0


def _release(root: Path, assignment: str):
    from hw_grader.notebook.trusted_notebook import read_trusted

    (solution,) = sorted((root / "solutions" / assignment).glob("*.ipynb"))
    return read_trusted(solution), solution


if __name__ == "__main__":
    sys.exit(main())
