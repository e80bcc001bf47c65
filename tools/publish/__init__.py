"""What students get, in a folder of its own: `make publish DIR=...`, scanned for leaks before anything is written.

notebooks/ fresh from lessons/, hw_utils/, pins for pip, uv and conda, a pyproject.toml for hw_utils alone, and what
lies in course/ here: their README, a start page, JupyterLab's settings.
A folder that was published before is brought up to date; what others put or changed there is kept.
lessons.csv, if there is one, says which lessons and from when on (see lesson_choice.py).
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
from tools.lesson import ROOT, Lesson
from tools.notebook import course_address
from tools.publish.leaks import find_leaks
from tools.publish.lesson_choice import ChoiceError, chosen_lessons
from tools.publish.pins import students_pins

MANIFEST = ".published.json"
COPIED = (
    "LICENSE",
    "LICENSE-TEXTS",
    "environment-cpu.yml",
    "docs/api.md",
    "docs/first_hour.md",
    "Dockerfile",
    ".dockerignore",
    ".devcontainer/install.sh",
    ".devcontainer/devcontainer.json",
    ".binder/postBuild",
    ".binder/runtime.txt",
)
WRITTEN_HERE = Path(__file__).with_name("course")  # published as it stands; "gitignore" gets its dot


class PublishFailed(RuntimeError):
    """Nothing was written; the message says why."""


def publish(target: Path, root: Path = ROOT, address: str | None = None) -> list[str]:
    """Writes the students' course; the names of the files that changed.

    `address` is from where students install, as `Repository` in pyproject.toml, which is the default.

    Raises:
        PublishFailed: something leaked, or the target has files that are not ours.
        ChoiceError: lessons.csv cannot be used.
    """
    lessons = read_lessons(root)
    chosen, _ = chosen_lessons(root, lessons)
    before = manifest_of(target)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder)
        assemble(made, chosen, root, course_address(root) if address is None else address)
        if leaks := find_leaks(made, lessons):
            raise PublishFailed("\n".join(["this must not reach students:", *leaks]))
        files = {p.relative_to(made).as_posix(): _digest(p) for p in sorted(made.rglob("*")) if p.is_file()}
        _require_untouched(target, before, files)
        changed = [name for name in files if not (target / name).exists() or _digest(target / name) != files[name]]
        for name in changed:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(made / name, target / name)  # with its mode: scripts stay programs
    for name in before.keys() - files.keys():
        (target / name).unlink(missing_ok=True)
    (target / MANIFEST).write_text(json.dumps(files, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return changed


def assemble(made: Path, lessons: list[Lesson], root: Path, address: str) -> None:
    """Writes everything that students get into an empty folder."""
    make(lessons, made, address)
    shutil.rmtree(made / SOLUTIONS)
    shutil.copytree(root / "hw_utils", made / "hw_utils", ignore=shutil.ignore_patterns("__pycache__", ".*", "*.pyc"))
    for name in COPIED:
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, made / name)
    about = (root / "pyproject.toml").read_text(encoding="utf-8")
    (made / "pyproject.toml").write_text(students_project(about, address), encoding="utf-8")
    pins = (root / "requirements-cpu.txt").read_text(encoding="utf-8")
    (made / "requirements.txt").write_text(students_pins(about, pins), encoding="utf-8")
    shutil.copytree(WRITTEN_HERE, made, dirs_exist_ok=True)
    (made / "gitignore").rename(made / ".gitignore")
    table = "\n".join(f"| [{_title(x)}]({RELEASE}/{x.product}) | {x.points:g} |" for x in lessons)
    for page in ("README.md", "START_HERE.md"):
        text = (made / page).read_text(encoding="utf-8")
        (made / page).write_text(text.replace("LESSONS", table), encoding="utf-8")


def students_project(about: str, address: str | None = None) -> str:
    """The course's pyproject.toml without the instructor's side: hw_utils, what it needs, JupyterLab."""
    lab = re.search(r"^course = \[\n(.*?)^\]", about, re.S | re.M)[1]
    kept = [line for line in lab.splitlines() if re.search(r'"(ipykernel|jupyterlab|notebook)\W', line)]
    about = re.sub(
        r"^\[project\.optional-dependencies\]\n.*?(?=^\[)",
        "[project.optional-dependencies]\nlab = [\n" + "\n".join(kept) + "\n]\n\n",
        about,
        flags=re.S | re.M,
    )
    if address:
        about = re.sub(r'^Repository = ".*"$', f'Repository = "{address}"', about, flags=re.M)
    about = re.sub(r"^packages\.find = .*$", 'packages.find = { include = ["hw_utils*"] }', about, flags=re.M)
    return about[: about.index("hw_grader = [")].rstrip() + "\n"


def _title(lesson: Lesson) -> str:
    heading = lesson.cells[0].source.splitlines()[0]
    return re.sub(r"^#\s*", "", heading)


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


def require_address(address: str) -> str:
    """The address, if students could install from it.

    Raises:
        PublishFailed: nobody has set it.
    """
    if not re.fullmatch(r"(https?|ssh|git|file)://\S+", address) or re.search(r"\bOWNER\b", address):
        raise PublishFailed(
            "the address from which students install must be that of their own git repository; "
            f"got {address or 'none'!r}: in pyproject.toml, Repository still says OWNER.\n"
            'Next: set it there, as in Repository = "https://github.com/your-school/your-course", '
            "then `make notebooks`; or give it for once:  make publish DIR=... REPOSITORY=https://github.com/your-school/your-course"
        )
    return address.removesuffix("/")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make publish DIR=...", description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path, help="an empty folder, or one that was published before")
    parser.add_argument("--repository", help="from where students install (default: Repository in pyproject.toml)")
    options = parser.parse_args(arguments)
    target = options.target.resolve()
    if target == ROOT or ROOT.is_relative_to(target):
        print(f"{target} holds this course itself; choose another folder", file=sys.stderr)
        return 1
    try:
        address = require_address(options.repository or course_address())
        changed = publish(target, address=address)
        _, later = chosen_lessons(ROOT, read_lessons(ROOT))
    except (PublishFailed, BuildFailed, ChoiceError) as error:
        print(f"Nothing was published: {error}", file=sys.stderr)
        return 1
    print(f"{len(changed)} files written to {target}; no solution, hidden case or planted mistake is in it")
    print("\n".join(later), end="\n" if later else "")
    print(f"Students install from {address}: push this folder there.")
    return 0
