"""Which names of torch the packages need, and which of them a torch has.

python -m tests.core.torch_names    # writes what the torch of this Python has (see tests/newest.py)
"""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hw_utils.core.versions import TORCH_NEWEST, TORCH_OLDEST, torch_version

ROOT = Path(__file__).resolve().parents[2]
FILES = {TORCH_OLDEST: Path(__file__).with_name("torch_names_oldest.txt")}
FILES[TORCH_NEWEST] = Path(__file__).with_name("torch_names_newest.txt")


@dataclass(frozen=True)
class Use:
    """A place that needs `module.name`."""

    path: str
    line: int
    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}: {self.module}.{self.name}"


@functools.cache
def uses() -> list[Use]:
    """Every name of torch that hw_utils or hw_grader cannot do without: not asked for by hasattr or getattr first."""
    files = [path for package in ("hw_utils", "hw_grader") for path in (ROOT / package).rglob("*.py")]
    return [use for path in files for use in _of_file(path)]


def _of_file(path: Path) -> Iterator[Use]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    place, modules, found = str(path.relative_to(ROOT)), {}, []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {a.asname or "torch": a.name if a.asname else "torch" for a in node.names if _is_torch(a.name)}
        elif isinstance(node, ast.ImportFrom) and _is_torch(node.module or ""):
            modules |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
            found += [Use(place, node.lineno, node.module, a.name) for a in node.names]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (names := _chain(node)) and names[0] in modules:
            module = ".".join([modules[names[0]], *names[1:-1]])
            found += [Use(place, node.lineno, module, names[-1])] if _is_torch(module) else []
    asked = {word for node in ast.walk(tree) for word in _asked(node)}
    yield from (use for use in found if use.name not in asked and not use.name.startswith("__"))


def _is_torch(module: str) -> bool:
    return module.split(".")[0] == "torch" and module != "torch.ops"  # what is in there comes when it is asked for


def _chain(node: ast.expr) -> list[str]:
    """`dist.group.WORLD` -> ["dist", "group", "WORLD"]; empty if it does not begin with a name."""
    if isinstance(node, ast.Name):
        return [node.id]
    front = _chain(node.value) if isinstance(node, ast.Attribute) else []
    return [*front, node.attr] if front else []


def _asked(node: ast.AST) -> Iterator[str]:
    """The names that a call of hasattr or getattr asks for."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("hasattr", "getattr"):
        yield from (a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str))


def names_of(module: str) -> set[str] | None:
    """What a module or a class of torch has; None if there is none of that name."""
    try:
        found = importlib.import_module(module)
    except ImportError:
        return _names_of_class(module)
    folders = getattr(found, "__path__", [])
    parts = {
        path.stem for folder in folders for path in Path(folder).iterdir() if path.suffix == ".py" or path.is_dir()
    }
    return {name for name in (*dir(found), *parts) if not name.startswith("__")}


def _names_of_class(name: str) -> set[str] | None:
    module, _, own = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), own, None)
    except ImportError:
        return None  # a class in a class
    return {*dir(found), *dir(type(found))} if isinstance(found, type) else None


def missing(have: dict[str, set[str]]) -> list[str]:
    """The uses of names that the modules and classes do not have; those of objects are not asked for."""
    return sorted(str(use) for use in uses() if use.module in have and use.name not in have[use.module])


def main() -> None:
    """Writes a line a module that is used: `torch.hub: HASH_REGEX _get_torch_home load ...`."""
    import torch

    have = {module: names_of(module) for module in sorted({use.module for use in uses()})}
    rows = [f"{module}: {' '.join(sorted(names))}" for module, names in have.items() if names is not None]
    is_oldest = torch_version(torch.__version__) == TORCH_OLDEST
    file = FILES[TORCH_OLDEST if is_oldest else TORCH_NEWEST]
    file.write_text("\n".join([torch.__version__.split("+")[0], *rows]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
