"""The import table of hw_utils: who stands on whom. At its top level a module imports from lines above its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "hw_utils"
# From the ground up. A new module goes on the lowest line that is above all it imports.
LEVELS = [
    text.split()
    for text in (
        """
        __main__ board carriers checks checks.softmax doctor drawn export figure forking handmade layers_05 memory
        models network on_paper output payload plain preflight programs random_states reductions relay schedules
        sweep trace virtual_clock vision where wire
        """,
        """
        copies data_files errors forkserver ledger netprofile ops perfetto plots_03 plots_05 plots_06 plots_chunks
        records replay run spawned stands streams submit turns work
        """,
        """
        checks.check checks.costs checks.lesson_05_weights cpp_work data managed places plots plots_04 point_to_point
        preflight_run rank rank_thread rendezvous requests stepper unlike waitfor
        """,
        """
        blocked checks.lesson_04_judges checks.shards checks.sums interleave job keeper matching plots_02 recipe
        recording report standstill threads virtual_work watched
        """,
        """
        checks.data_parallel checks.lesson_04_sync checks.lesson_04_training checks.races checks.routes
        checks.tensor_models checks.tensor_parallel collectives engine gang group
        """,
        """
        checks.lesson_06 launch virtual_group
        """,
        """
        calibrate simulate subgroups
        """,
        """
        cluster
        """,
        """
        hw_utils checks.lesson_02_costs checks.lesson_02_reduce checks.lesson_02_steps checks.lesson_04_loop
        checks.lesson_05_costs checks.messages checks.overlap checks.problem watch
        """,
        """
        checks.lesson_01_hangs checks.lesson_01_hello checks.lesson_01_link checks.lesson_01_relay checks.lesson_02
        checks.lesson_03_causes checks.lesson_04_costs checks.lesson_04_gradients checks.lesson_04_worker
        checks.lesson_05_buckets checks.lesson_05_causes checks.lesson_05_profile hosts
        """,
        """
        checks.lesson_01 checks.lesson_03_equal checks.lesson_03_speedup checks.lesson_03_step checks.lesson_04
        checks.lesson_05
        """,
        """
        checks.lesson_03
        """,
    )
]
DRAWS = {
    "figure",
    "plots",
    "plots_02",
    "plots_03",
    "plots_04",
    "plots_05",
    "plots_06",
    "plots_chunks",
    "stepper",
    "report",
}


def modules() -> dict[str, ast.Module]:
    """Short name -> syntax tree; `hw_utils` itself is "hw_utils"."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(p for p in parts if p != "__init__") or "hw_utils"
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements that run when the module is imported."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from statements(child)


def imported(tree: ast.Module, names: set[str]) -> set[str]:
    """The modules of hw_utils that are imported at the top level."""
    found = set()
    for node in statements(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "hw_utils":
            base = node.module.removeprefix("hw_utils").removeprefix(".")
            for alias in node.names:
                full = f"{base}.{alias.name}".removeprefix(".")
                found.add(full if full in names else base or "hw_utils")
    return found


def outside(tree: ast.Module) -> set[str]:
    """The packages that are imported anywhere in the module."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_every_module_stands_in_the_table_once():
    table = [name for level in LEVELS for name in level]
    assert sorted(table) == sorted(modules())


def test_imports_point_down():
    height = {name: k for k, level in enumerate(LEVELS) for name in level}
    trees = modules()
    upward = [
        f"{name} imports {other}"
        for name, tree in trees.items()
        for other in imported(tree, set(trees))
        if other != name and height[other] >= height[name]
    ]
    assert upward == []


def test_only_pictures_know_matplotlib():
    assert {name for name, tree in modules().items() if "matplotlib" in outside(tree)} <= DRAWS


def test_students_code_never_needs_the_graders_package():
    forbidden = {"hw_grader", "nbgrader", "nbformat", "nbclient", "nbconvert", "jupytext", "tools", "tests"}
    used = {name: outside(tree) & forbidden for name, tree in modules().items()}
    assert {name: packages for name, packages in used.items() if packages} == {}
