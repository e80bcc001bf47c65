"""The instructor's command line.

python -m hw_grader selftest                      12 probes of the sandbox
python -m hw_grader grade [ASSIGNMENT]            see hw_grader.grade
python -m hw_grader export csv|canvas ASSIGNMENT  marks on stdout
python -m hw_grader export gradescope ASSIGNMENT  results.json of every student, below build/gradescope/
python -m hw_grader autograder ASSIGNMENT         Gradescope's autograder zip, in build/
python -m hw_grader similarity ASSIGNMENT         pairs whose own code is alike
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from hw_grader import exports, grade, records, selftest


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
    export.add_argument("kind", choices=("csv", "canvas", "gradescope"))
    export.add_argument("assignment")
    for name in ("autograder", "similarity"):
        commands.add_parser(name).add_argument("assignment")
    options = parser.parse_args(arguments)
    return {"export": _export, "autograder": _autograder, "similarity": _similarity}[options.command](options)


def _export(options: argparse.Namespace) -> int:
    root = options.course.resolve()
    if options.kind == "gradescope":
        folder = root / "build" / "gradescope" / options.assignment
        for record in records.all_of(root, options.assignment):
            (folder / record.student).mkdir(parents=True, exist_ok=True)
            text = json.dumps(exports.as_gradescope(record), indent=1)
            (folder / record.student / "results.json").write_text(text)
        print(folder)
        return 0
    found = exports.scores(root, options.assignment)
    sys.stdout.write(exports.as_csv(found) if options.kind == "csv" else exports.as_canvas(found, options.assignment))
    return 0


def _autograder(options: argparse.Namespace) -> int:
    root = options.course.resolve()
    release, solution = _release(root, options.assignment)
    path = root / "build" / f"autograder_{options.assignment}.zip"
    path.parent.mkdir(exist_ok=True)
    exports.autograder_zip(path, release, solution, root)
    print(path)
    return 0


def _similarity(options: argparse.Namespace) -> int:
    from hw_grader.match import restore
    from hw_grader.similarity import alike, report

    root = options.course.resolve()
    release, _ = _release(root, options.assignment)
    notebooks = {s.student: restore(s.data, release) for s in grade.submissions(root, release)}
    print(report(alike(notebooks, release)))
    return 0


def _release(root: Path, assignment: str):
    from hw_grader.release import read_release

    (solution,) = sorted((root / "solutions" / assignment).glob("*.ipynb"))
    return read_release(solution), solution


if __name__ == "__main__":
    sys.exit(main())
