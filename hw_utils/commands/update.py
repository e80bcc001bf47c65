"""A new version of the course in a student's folder: new kit, new lessons, and everything that the student wrote.

The new version is a folder, a zip or a git address. Files that nobody changed are replaced. In a notebook that somebody
worked in, the answers go into the new release's cells. Whatever is replaced though it was changed here lies afterwards
in before-update/, in a folder with the date. Nothing is changed before all of it is prepared.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from tqdm import tqdm

from hw_utils.commands.merge_answers import merge

MANIFEST = ".published.json"
BACKUPS = "before-update"


class UpdateFailed(ValueError):
    """Nothing was changed; the message says why and what to do."""


@dataclass
class Plan:
    """What an update does, as names below the course's folder."""

    write: dict[str, bytes] = field(default_factory=dict)
    back_up: list[str] = field(default_factory=list)  # changed here, and replaced or removed
    remove: list[str] = field(default_factory=list)  # gone from the course
    said: list[str] = field(default_factory=list)  # a line each, for the student
    manifest: bytes = b""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("source", help="the new version: a folder, a .zip, or the course's git address")
    parser.add_argument("--course", type=Path, default=Path(), help="your course folder (default: this one)")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and change nothing")


def main(arguments: Namespace) -> int:
    """Prints what it did; 2 if it could not, and then nothing is changed."""
    try:
        with new_version(arguments.source) as source:
            plan = prepare(arguments.course, source)
            backup = None if arguments.dry_run else carry_out(arguments.course, plan)
    except UpdateFailed as error:
        print(f"Nothing was changed: {error}", file=sys.stderr)
        return 2
    print(summary(plan, backup))
    return 0


@contextmanager
def new_version(source: str) -> Iterator[Path]:
    """The folder of the new version, for as long as it is needed.

    Raises:
        UpdateFailed: the source cannot be had, or is no published course.
    """
    path = Path(source).expanduser()
    with tempfile.TemporaryDirectory(prefix="hw-update-") as scratch:
        if path.is_dir():
            yield _course_in(path, source)
        elif path.is_file():
            yield _course_in(_unpacked(path, Path(scratch)), source)
        elif "://" in source or source.startswith("git@"):
            yield _course_in(_cloned(source.removeprefix("git+"), Path(scratch) / "course"), source)
        else:
            raise UpdateFailed(f"the new version is a folder, a .zip or a git address; there is nothing at {source}")


def _unpacked(path: Path, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(path) as packed:
            packed.extractall(folder)  # never outside the folder: zipfile drops .. and leading slashes
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError) as error:
        raise UpdateFailed(f"{path} cannot be unpacked ({error}); download it again") from None
    return folder


def _cloned(address: str, folder: Path) -> Path:
    command = ["git", "clone", "--quiet", "--depth", "1", "--", address, str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise UpdateFailed("git is not installed; download the new version as a zip and give its path") from None
    if done.returncode:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise UpdateFailed(f"git could not get {address}: {last}")
    return folder


def _course_in(folder: Path, source: str) -> Path:
    """The published course in a folder: itself, or the one folder in it, as zips of repositories have it."""
    for place in [folder, *sorted(p for p in folder.iterdir() if p.is_dir())]:
        if (place / MANIFEST).is_file() and (place / "hw_utils" / "__init__.py").is_file():
            return place
    raise UpdateFailed(f"{source} is no published course: {MANIFEST} and hw_utils/ are not in it. Is it the right one?")


def prepare(course: Path, source: Path) -> Plan:
    """What has to be done; nothing is changed yet.

    Raises:
        UpdateFailed: this is no course folder, or the new version is damaged.
    """
    if not (course / MANIFEST).is_file():
        raise UpdateFailed(
            f"{course.resolve()} is no published course ({MANIFEST} is not in it); "
            "run this in your course folder, or name it with --course"
        )
    if course.resolve() == source.resolve():
        raise UpdateFailed(f"{source} is this folder itself; give the place of the new version")
    old, new = _manifest(course), _manifest(source)
    plan = Plan(manifest=(source / MANIFEST).read_bytes())
    for name in tqdm(sorted(new), desc="comparing", unit="file", file=sys.stdout, leave=False, disable=None):
        _plan_file(plan, name, course / name, source / name, old.get(name), new[name])
    for name in sorted(old.keys() - new.keys()):
        if (course / name).is_file():
            if _digest((course / name).read_bytes()) != old[name]:
                plan.back_up.append(name)
                plan.said.append(f"{name}: no longer in the course; you had changed it")
            plan.remove.append(name)
    return plan


def _plan_file(plan: Plan, name: str, here: Path, there: Path, was: str | None, now: str) -> None:
    try:
        fresh = there.read_bytes()
    except OSError:
        raise UpdateFailed(f"the new version is damaged: {name} is missing in it; get it again") from None
    if not here.exists():
        plan.write[name] = fresh
        if was is not None:
            plan.said.append(f"{name}: you had removed it; it is back")
        return
    mine = here.read_bytes()
    if _digest(mine) == now:
        return
    if _digest(mine) == was:
        plan.write[name] = fresh
        return
    plan.back_up.append(name)
    plan.write[name] = fresh
    if not name.endswith(".ipynb"):
        plan.said.append(f"{name}: you had changed it; it is the new version's now")
        return
    try:
        merged = merge(json.loads(mine), json.loads(fresh))
    except (ValueError, KeyError, TypeError, AttributeError):
        plan.said.append(f"{name}: yours cannot be read as a notebook; it is the new version's now")
        return
    plan.write[name] = (json.dumps(merged.notebook, indent=1, ensure_ascii=False) + "\n").encode()
    parts = [f"{len(merged.answers)} answers kept"] if merged.answers else ["no answers in it yet"]
    parts += [f"{merged.own} cells of your own kept"] if merged.own else []
    parts += [f"without a place now, at its end: {', '.join(merged.homeless)}"] if merged.homeless else []
    plan.said.append(f"{name}: {'; '.join(parts)}")


def carry_out(course: Path, plan: Plan) -> Path | None:
    """Backs up, then writes; the backup's folder, or None if none was needed."""
    backup = _back_up(course, plan.back_up) if plan.back_up else None
    for name, data in plan.write.items():
        target = course / name
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.new")
        part.write_bytes(data)
        part.replace(target)
    for name in plan.remove:
        (course / name).unlink(missing_ok=True)
    (course / MANIFEST).write_bytes(plan.manifest)  # last: an update that was cut short is simply run again
    return backup


def _back_up(course: Path, names: list[str]) -> Path:
    day = f"{datetime.now():%Y-%m-%d}"
    folder = course / BACKUPS / day
    n = 1
    while folder.exists():
        n += 1
        folder = course / BACKUPS / f"{day}-{n}"
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(course / name, folder / name)
    return folder


def summary(plan: Plan, backup: Path | None) -> str:
    """What was done, in words."""
    if not (plan.write or plan.remove):
        return "Already up to date."
    lines = [f"{len(plan.write)} files new or renewed, {len(plan.remove)} removed.", *plan.said]
    if backup:
        lines.append(f"What you had changed lies as it was in {backup}.")
    if {"requirements.txt", "pyproject.toml"} & plan.write.keys():
        lines.append("The versions of packages changed: run the install line of README.md again.")
    return "\n".join([*lines, "Restart your kernels, then run all cells of the notebook you are in."])


def _manifest(folder: Path) -> dict[str, str]:
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        names = {str(name): str(digest) for name, digest in found.items()}
    except (OSError, ValueError, AttributeError):
        raise UpdateFailed(f"{folder / MANIFEST} cannot be read; get that version of the course again") from None
    outside = [n for n in names if Path(n).is_absolute() or ".." in Path(n).parts or ":" in n or "\\" in n]
    if outside:
        raise UpdateFailed(f"{folder / MANIFEST} names files outside the course: {', '.join(outside[:3])}")
    return names


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
