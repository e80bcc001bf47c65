"""The rooms of the house: which stands on which. Imports point down this table, and no folder becomes a corridor."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from hw_grader.sandbox.bubblewrap import INSIDE
from tools import quick

ROOT = Path(__file__).resolve().parents[2]
# Room -> the rooms it may import from, when it is imported itself. A room is a folder, or a call at the top.
ROOMS = {
    "hw_utils.core": "",
    "hw_utils.material": "",
    "hw_utils.scripts": "core",
    "hw_utils.gloo": "core scripts",
    "hw_utils.virtual": "core scripts",
    "hw_utils.threads": "core",
    "hw_utils.processes": "core gloo scripts virtual",
    "hw_utils.launch": "core gloo processes scripts",
    "hw_utils.simulate": "core processes scripts virtual",
    "hw_utils.pictures": "core simulate",
    "hw_utils.hosts": "core launch pictures",
    "hw_utils.commands": "core hosts launch material pictures processes simulate",
    "hw_utils.checks": "core launch simulate material threads virtual",
    "hw_grader.sandbox": "hw_utils.processes",
    "hw_grader.driving": "sandbox hw_utils.core hw_utils.material hw_utils.processes hw_utils.threads hw_utils.virtual",
    "hw_grader.notebook": "sandbox driving",
    "hw_grader.course": "sandbox driving notebook",
    "hw_grader.term": "course notebook",
    "hw_grader.grade": "sandbox notebook course",
    "hw_grader.report": "course term",
}
# What a method imports of a room above when it is called: a run shows itself, and a network can be measured.
FROM_ABOVE = {("hw_utils.core.run_result", "hw_utils.pictures"), ("hw_utils.core.hardware.link", "hw_utils.hosts")}
MOST_ENTRIES = 14  # of one folder: what one still sees at a glance


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


@cache
def sources() -> dict[str, ast.Module]:
    """Module -> its syntax tree, for both packages."""
    files = [*(ROOT / "hw_utils").rglob("*.py"), *(ROOT / "hw_grader").rglob("*.py")]
    return {module_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in files}


def room_of(module: str) -> str:
    """`hw_utils.virtual.traffic.ledger_rows` -> `hw_utils.virtual`; "" for a package's own door and command line."""
    room = ".".join(module.split(".")[:2])
    return room if room in ROOMS else ""


def allowed(room: str) -> set[str]:
    package = room.split(".")[0]
    names = ROOMS[room].split()
    return {room} | {name if "." in name else f"{package}.{name}" for name in names}


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements that run when the module is imported."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from statements(child)


def imported(nodes: Iterator[ast.AST], modules: set[str]) -> set[str]:
    """The modules of ours that these statements import."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in (f"{node.module}.{alias.name}" for alias in node.names):
                found.add(name if name in modules else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & modules
    return {name for name in found & modules if room_of(name)}


def outside(tree: ast.Module) -> set[str]:
    """The packages that are imported anywhere in the module."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_every_module_is_in_a_room():
    doors = {"hw_utils", "hw_utils.__main__", "hw_grader", "hw_grader.__main__"}
    assert [name for name in sources() if not room_of(name) and name not in doors] == []
    assert {room_of(name) for name in sources()} - {""} == set(ROOMS)


def test_imports_between_rooms_are_those_of_the_table():
    trees = sources()
    wrong = [
        f"{name} imports {other}"
        for name, tree in trees.items()
        if room_of(name)
        for other in imported(statements(tree), set(trees))
        if room_of(other) not in allowed(room_of(name))
    ]
    assert wrong == []


def test_what_functions_import_when_they_are_called_is_from_these_rooms_too():
    trees = sources()
    above = {
        (name, room_of(other))
        for name, tree in trees.items()
        if room_of(name)
        for other in imported(ast.walk(tree), set(trees))
        if room_of(other) not in allowed(room_of(name))
    }
    assert above == FROM_ABOVE


def test_every_arrow_of_the_table_is_used():
    trees = sources()
    used = {(room_of(n), room_of(o)) for n, tree in trees.items() for o in imported(ast.walk(tree), set(trees))}
    unused = {(room, other) for room in ROOMS for other in allowed(room) - {room}} - used
    assert unused == set()


def test_make_quick_knows_the_tests_of_every_room():
    places = [room.replace(".", "/") for room in ROOMS]
    files = [f"{place}/module.py" if (ROOT / place).is_dir() else f"{place}.py" for place in places]
    assert [file for file in files if not quick.tests_of(file)] == []


def test_rooms_stand_on_each_other_without_a_circle():
    standing, left = set(), dict(ROOMS)
    while left:
        free = [room for room in left if allowed(room) - {room} <= standing]
        assert free, f"a circle among {sorted(left)}"
        standing |= set(free)
        left = {room: on for room, on in left.items() if room not in free}


def test_no_two_modules_import_each_other():
    trees = sources()
    below = {name: imported(statements(tree), set(trees)) - {name} for name, tree in trees.items()}
    while free := [name for name, others in below.items() if not others & set(below)]:
        below = {name: others for name, others in below.items() if name not in free}
    assert sorted(below) == []


def test_what_runs_in_the_sandbox_is_given_all_that_it_imports():
    trees = sources()
    names = {f"hw_grader.{place.replace('/', '.')}".removesuffix(".__init__") for place in INSIDE}
    needed = {o for n in names for o in imported(ast.walk(trees[n]), set(trees)) if o.startswith("hw_grader")}
    assert needed - names == set()


@pytest.mark.parametrize("top", ["hw_utils", "hw_grader", "tests", "tools", "docs"])
def test_a_folder_is_seen_at_a_glance(top):
    corridors = {}
    for folder in [ROOT / top, *(p for p in (ROOT / top).rglob("*") if p.is_dir())]:
        if "__pycache__" in folder.parts:
            continue
        entries = [p.name for p in folder.iterdir() if p.name not in ("__pycache__", "__init__.py", "conftest.py")]
        if len(entries) > MOST_ENTRIES:
            corridors[str(folder.relative_to(ROOT))] = len(entries)
    assert corridors == {}


def docstring(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "") if path.exists() else ""


@pytest.mark.parametrize("package", ["hw_utils", "hw_grader", "tests"])
def test_every_room_has_a_door(package):
    folders = {path.parent for path in (ROOT / package).rglob("*.py")}
    silent = [
        str(folder.relative_to(ROOT))
        for folder in folders
        if not {"hostile", "lessons"} & set(folder.parts)  # what is handed in, and a lesson: no packages
        and not (
            (folder / "__init__.py").exists() and ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
        )
    ]
    assert silent == []


def said_of(door: Path) -> set[str]:
    """The rooms that a door's docstring says it stands on: `Stands on core and, for ..., on virtual.`"""
    (sentence,) = re.findall(r"Stands\s+on\s+(.*?)[.;](?=\s|$)", docstring(door), re.S)
    return set(re.findall(r"[\w.]+", sentence)) & {name for rooms in ROOMS.values() for name in rooms.split()}


def test_a_door_says_what_its_room_stands_on():
    doors = {room: ROOT / room.replace(".", "/") / "__init__.py" for room in ROOMS}
    folders = {room: door for room, door in doors.items() if door.exists()}
    wrong = {room: said_of(door) ^ set(ROOMS[room].split()) for room, door in folders.items()}
    assert {room: names for room, names in wrong.items() if names} == {}


def stands_on(room: str) -> set[str]:
    """What a folder inside a room imports from beside it and from other rooms, by the name where their paths part."""
    trees, found = sources(), set()
    for name in trees:
        if not f"{name}.".startswith(f"{room}."):
            continue
        for other in imported(statements(trees[name]), set(trees)):
            theirs, ours = other.split("."), room.split(".")
            n_same = next(k for k, (a, b) in enumerate(zip([*theirs, ""], [*ours, ""])) if a != b)
            found |= {theirs[n_same]} if n_same < len(ours) else set()
    return found


def test_a_door_inside_a_room_says_what_it_stands_on():
    inner = {name for name in sources() if name.count(".") > 1 and (ROOT / name.replace(".", "/")).is_dir()}
    wrong = {}
    for room in inner:
        words = re.search(
            r"Stands\s+on\s+(.*?)[.;:](?=\s|$)", docstring(ROOT / room.replace(".", "/") / "__init__.py"), re.S
        )
        if words is not None:
            said, true = set(re.findall(r"\w+", words[1])), stands_on(room)
            beside = {path.stem for path in (ROOT / room.replace(".", "/")).parent.iterdir()} | {"core", "scripts"}
            if (said & beside) ^ true:
                wrong[room] = (said & beside) ^ true
    assert wrong == {}


def test_folders_inside_a_room_stand_on_each_other_without_a_circle():
    trees = sources()
    inner = sorted((n for n in trees if n.count(".") > 1 and (ROOT / n.replace(".", "/")).is_dir()), key=len)

    def folder_of(module: str) -> str:
        """The largest folder of a room that the module is in, below the room itself."""
        return next((f for f in inner if f"{module}.".startswith(f"{f}.")), "")

    below: dict[str, set[str]] = {folder_of(name): set() for name in trees}
    for name, tree in trees.items():
        others = {folder_of(other) for other in imported(statements(tree), set(trees))}
        below[folder_of(name)] |= others - {folder_of(name), ""}
    below.pop("")
    while free := [name for name, others in below.items() if not others & set(below)]:
        below = {name: others for name, others in below.items() if name not in free}
    assert below == {}


def test_only_pictures_know_matplotlib():
    drawing = {
        name for name, tree in sources().items() if "matplotlib" in outside(tree) and name.startswith("hw_utils")
    }
    assert {room_of(name) for name in drawing} <= {"hw_utils.pictures", "hw_utils.hosts"}
    assert {name for name in drawing if room_of(name) == "hw_utils.hosts"} <= {"hw_utils.hosts.training_report"}


def test_students_code_never_needs_the_graders_package():
    forbidden = {"hw_grader", "nbgrader", "nbformat", "nbclient", "nbconvert", "jupytext", "tools", "tests"}
    used = {name: outside(tree) & forbidden for name, tree in sources().items() if name.startswith("hw_utils")}
    assert {name: packages for name, packages in used.items() if packages} == {}


def drawn() -> set[tuple[str, str]]:
    """The arrows of docs/architecture.md's pictures, with the packages' names in front."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    arrows = set()
    for package, picture in zip(
        ("hw_utils", "hw_grader"), re.findall(r"```mermaid\n(.*?)```", page, re.S), strict=True
    ):
        for room, below in re.findall(r"^ *(\w+)\[.*?\](?: --> (.*))?$", picture, re.M):
            arrows |= {(f"{package}.{room}", f"{package}.{other}") for other in below.split(" & ") if other}
            arrows.add((f"{package}.{room}", ""))
    return arrows


def test_the_picture_of_the_house_shows_every_room_and_every_arrow():
    table = {(room, other) for room in ROOMS for other in allowed(room) - {room} if other.split(".")[0] in room}
    assert drawn() == table | {(room, "") for room in ROOMS}


def test_the_walks_name_files_that_exist():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    files = re.findall(r"`(hw_\w+/[\w/]+(?:\.py)?)`", page)
    assert len(files) > 30
    assert [file for file in files if not (ROOT / file).exists() and "lesson_NN" not in file] == []


_EACH_FIRST = """
import importlib, os, sys
import torch, hw_utils
children = []
for name in sys.argv[1:]:
    children.append(os.fork())
    if children[-1] == 0:
        try:
            importlib.import_module(name)
        except ImportError as error:
            print(name, error, flush=True)
        os._exit(0)
for child in children:
    os.waitpid(child, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this machine does not fork")
def test_any_module_of_the_checks_may_be_imported_first():
    """A warm parent imports them in an order of its own; a circle shows for some orders only."""
    names = sorted(name for name in sources() if name.startswith("hw_utils.checks."))
    done = subprocess.run([sys.executable, "-c", _EACH_FIRST, *names], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "")
    assert len(names) > 100
