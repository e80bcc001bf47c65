"""What students get, in a folder of its own: `make publish DIR=...`, scanned for leaks before anything is written.

notebooks/ fresh from lessons/, hw_utils/, environment-cpu.yml, a pyproject.toml for hw_utils alone, and their README.
A folder that was published before is brought up to date; what others put or changed there is kept.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

from tools.build import RELEASE, SOLUTIONS, BuildFailed, make, read_lessons
from tools.leaks import find_leaks
from tools.lesson import ROOT, Lesson

MANIFEST = ".published.json"
COPIED = ("LICENSE", "environment-cpu.yml", "docs/api.md", "docs/first_hour.md")


class PublishFailed(RuntimeError):
    """Nothing was written; the message says why."""


def publish(target: Path, root: Path = ROOT) -> list[str]:
    """Writes the students' course; the names of the files that changed.

    Raises:
        PublishFailed: something leaked, or the target has files that are not ours.
    """
    lessons = read_lessons(root)
    before = manifest_of(target)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder)
        assemble(made, lessons, root)
        if leaks := find_leaks(made, lessons):
            raise PublishFailed("\n".join(["this must not reach students:", *leaks]))
        files = {p.relative_to(made).as_posix(): _digest(p) for p in sorted(made.rglob("*")) if p.is_file()}
        _require_untouched(target, before, files)
        changed = [name for name in files if not (target / name).exists() or _digest(target / name) != files[name]]
        for name in changed:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(made / name, target / name)
    for name in before.keys() - files.keys():
        (target / name).unlink(missing_ok=True)
    (target / MANIFEST).write_text(json.dumps(files, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return changed


def assemble(made: Path, lessons: list[Lesson], root: Path) -> None:
    """Writes everything that students get into an empty folder."""
    make(lessons, made)
    shutil.rmtree(made / SOLUTIONS)
    shutil.copytree(root / "hw_utils", made / "hw_utils", ignore=shutil.ignore_patterns("__pycache__", ".*", "*.pyc"))
    (made / "docs").mkdir()
    for name in COPIED:
        shutil.copyfile(root / name, made / name)
    about = (root / "pyproject.toml").read_text(encoding="utf-8")
    (made / "pyproject.toml").write_text(students_project(about), encoding="utf-8")
    readme = Path(__file__).with_name("students_readme.md").read_text(encoding="utf-8")
    table = "\n".join(f"| [{x.notebook}]({RELEASE}/{x.product}) | {_title(x)} | {x.points:g} |" for x in lessons)
    (made / "README.md").write_text(readme.replace("LESSONS", table), encoding="utf-8")


def students_project(about: str) -> str:
    """The course's pyproject.toml without the instructor's side: hw_utils, what it needs, JupyterLab."""
    lab = re.search(r"^course = \[\n(.*?)^\]", about, re.S | re.M)[1]
    kept = [line for line in lab.splitlines() if re.search(r'"(ipykernel|jupyterlab|notebook)\W', line)]
    about = re.sub(
        r"^\[project\.optional-dependencies\]\n.*?(?=^\[)",
        "[project.optional-dependencies]\nlab = [\n" + "\n".join(kept) + "\n]\n\n",
        about,
        flags=re.S | re.M,
    )
    about = re.sub(r"^packages = .*$", 'packages = ["hw_utils", "hw_utils.checks"]', about, flags=re.M)
    return about[: about.index("[tool.setuptools.package-data]")].rstrip() + "\n"


def _title(lesson: Lesson) -> str:
    heading = lesson.cells[0].source.splitlines()[0]
    return re.sub(r"^#\s*(\d+\.\s*)?", "", heading)


def manifest_of(target: Path) -> dict[str, str]:
    """What was published into the folder before: name -> hash."""
    path = target / MANIFEST
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _require_untouched(target: Path, before: dict[str, str], files: dict[str, str]) -> None:
    changed = [
        name
        for name in sorted(before.keys() | files.keys())
        if (target / name).exists() and _digest(target / name) not in (before.get(name), files.get(name))
    ]
    if changed:
        raise PublishFailed(
            f"{target} has files that were not published from here, or changed since: {', '.join(changed[:8])}.\n"
            "Choose an empty folder, or move them away."
        )


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make publish DIR=...", description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path, help="an empty folder, or one that was published before")
    target = parser.parse_args(arguments).target.resolve()
    if target == ROOT or ROOT.is_relative_to(target):
        print(f"{target} holds this course itself; choose another folder", file=sys.stderr)
        return 1
    try:
        changed = publish(target)
    except (PublishFailed, BuildFailed) as error:
        print(f"Nothing was published: {error}", file=sys.stderr)
        return 1
    print(f"{len(changed)} files written to {target}; no solution, hidden case or planted mistake is in it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
