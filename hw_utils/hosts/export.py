"""A notebook's function as a script: that function, what it uses, and nothing else.

    python -m hw_utils export data_parallel.ipynb worker --args job -o train.py

Definitions are found by name: a function brings the functions, classes, imports and values that it mentions. Of
functions that were defined twice the last one counts. The script runs under torchrun; see `hw_utils.hosts.torchrun`.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import json
import os
import symtable
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HOW = """torchrun --nnodes N --nproc_per_node 1 --rdzv_backend c10d --rdzv_endpoint FIRST_HOST:29400 {script}"""
_RUNS_RANKS = frozenset({"launch", "simulate"})
_MAIN = """

if __name__ == "__main__":
    from hw_utils.hosts import torchrun

    torchrun.main({function}, args=({args}))
"""


class NotExported(ValueError):
    """The function cannot leave the notebook: says which name is missing, and where it is used."""


@dataclass(frozen=True)
class Statement:
    """A top-level statement of a notebook, or one import of one name."""

    text: str
    binds: frozenset[str]
    uses: frozenset[str]
    cell: int  # of the code cells, from 1
    is_definition: bool  # a later one replaces it
    is_import: bool = False


def export(notebook: str | os.PathLike, function: str, path: str | os.PathLike, *, args: str = "") -> Path:
    """Writes `function` of the notebook to `path`, and returns it.

    args: Python expressions in the notebook's names, separated by commas: what the function gets after rank and
    world_size.

    Raises:
        NotExported: there is no such function, or it uses a name that no cell defines.
    """
    text = script(cells_of(notebook), function, args=args, source=Path(notebook).name)
    path = Path(path)
    path.write_text(text, encoding="utf-8")
    return path


def cells_of(notebook: str | os.PathLike) -> list[str]:
    """The sources of a notebook's code cells."""
    try:
        cells = json.loads(Path(notebook).read_text(encoding="utf-8"))["cells"]
        return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (json.JSONDecodeError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise NotExported(f"{notebook} is not a notebook: {error}") from None


def script(cells: Sequence[str], function: str, *, args: str = "", source: str = "a notebook") -> str:
    """The script's text."""
    statements = [s for number, cell in enumerate(cells, 1) for s in statements_of(cell, number)]
    wanted = global_names(args)
    kept = _closure(statements, {function: "", **dict.fromkeys(wanted, "--args")})
    imports = [s.text for s in kept if s.is_import]
    others = [s.text for s in kept if not s.is_import]
    body = "\n".join(dict.fromkeys(imports)) + "\n\n\n" + "\n\n\n".join(others)
    head = f'"""{function} of {source}, for torchrun; made by `python -m hw_utils export`."""\n\n'
    return head + body + "\n" + _MAIN.format(function=function, args=f"{args}," if args.strip() else "")


def statements_of(cell: str, number: int = 1) -> Iterator[Statement]:
    """The cell's top-level statements; imports inside `if` and `try` count as such, magics are left out.

    A cell that is not Python has none: a student's unfinished cell stops nobody, unless its names are needed.
    """
    lines = ["" if line.startswith(("%", "!")) else line for line in cell.splitlines()]
    try:
        body = ast.parse("\n".join(lines)).body
    except SyntaxError:
        return
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _imports(node, number)
        elif isinstance(node, ast.If | ast.Try):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Import | ast.ImportFrom):
                    yield from _imports(inner, number)
        else:
            yield _statement(node, lines, number)


def _imports(node: ast.Import | ast.ImportFrom, number: int) -> Iterator[Statement]:
    for alias in node.names:
        if isinstance(node, ast.Import):
            one: ast.stmt = ast.Import([alias])
        else:
            one = ast.ImportFrom(node.module, [alias], node.level)
        bound = (alias.asname or alias.name).partition(".")[0]
        yield Statement(ast.unparse(one), frozenset({bound}), frozenset(), number, True, True)


def _statement(node: ast.stmt, lines: list[str], number: int) -> Statement:
    begin = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    text = "\n".join(lines[begin - 1 : node.end_lineno])
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return Statement(text, frozenset({node.name}), global_names(text), number, True)
    return Statement(text, frozenset(_bound(node)), global_names(text), number, False)


def _bound(node: ast.stmt) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            yield inner.id
        elif isinstance(inner, ast.Subscript | ast.Attribute) and isinstance(inner.ctx, ast.Store):
            while isinstance(inner, ast.Subscript | ast.Attribute):  # table["x"] = 1 belongs to table
                inner = inner.value
            if isinstance(inner, ast.Name):
                yield inner.id


class _AsGenerators(ast.NodeTransformer):
    """Since Python 3.12 the table says that `[i for i in x]` binds i around it; of a generator it never says so."""

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp) -> ast.GeneratorExp:
        self.generic_visit(node)
        return ast.GeneratorExp(node.elt, node.generators)

    visit_SetComp = visit_ListComp

    def visit_DictComp(self, node: ast.DictComp) -> ast.GeneratorExp:
        self.generic_visit(node)
        return ast.GeneratorExp(ast.Tuple([node.key, node.value], ast.Load()), node.generators)


def _scopes(tree: ast.Module) -> symtable.SymbolTable:
    """What `symtable.symtable` tells of a cell's text; names alone, since it is written anew; the tree is changed."""
    return symtable.symtable(ast.unparse(_AsGenerators().visit(tree)), "<cell>", "exec")


def global_names(text: str) -> frozenset[str]:
    """The names that the code looks up globally: not its functions' own variables."""
    found: set[str] = set()

    def look(table: symtable.SymbolTable) -> None:
        top = table.get_type() == "module"
        found.update(s.get_name() for s in table.get_symbols() if s.is_referenced() and (top or s.is_global()))
        for child in table.get_children():
            look(child)

    look(_scopes(ast.parse(text)))
    return frozenset(found - {"__name__", "__file__", "__class__"})


def _closure(statements: Sequence[Statement], wanted: dict[str, str]) -> list[Statement]:
    """The statements that define the wanted names, and all that those use; in the notebook's order."""
    kept: set[int] = set()
    reasons, done = dict(wanted), set()
    defined = {name for s in statements for name in s.binds}
    while todo := [name for name in reasons if name not in done]:
        for name in todo:
            done.add(name)
            for i in _defining(statements, name):
                kept.add(i)
                _refuse_runs(statements[i], name)
                for used in statements[i].uses & defined:
                    reasons.setdefault(used, name)
            if name not in defined and (name in wanted or not hasattr(builtins, name)):
                what = "no such function" if not reasons[name] else f"{reasons[name]} uses it"
                raise NotExported(f"no cell of the notebook defines {name}: {what}")
    _refuse_unknown([statements[i] for i in sorted(kept)], defined)
    return [statements[i] for i in sorted(kept)]


def _defining(statements: Sequence[Statement], name: str) -> list[int]:
    """The last definition of a name, and the assignments to it after that."""
    places = [i for i, s in enumerate(statements) if name in s.binds]
    last = max((i for i in places if statements[i].is_definition), default=-1)
    return [i for i in places if i >= last]


def _refuse_runs(statement: Statement, name: str) -> None:
    runs = statement.uses & _RUNS_RANKS
    if runs and not statement.is_definition:
        raise NotExported(
            f"{name} is made in cell {statement.cell} with {', '.join(sorted(runs))}, which starts ranks of its own;"
            " a script that torchrun starts must not. Leave it out of the function."
        )


def _refuse_unknown(kept: Iterable[Statement], defined: set[str]) -> None:
    """A name that nothing defines: only those that Python itself would look up globally."""
    for statement in kept:
        if statement.is_import:
            continue
        unknown = sorted(statement.uses - defined - set(dir(builtins)))
        if unknown:
            name = next(iter(statement.binds), "a statement")
            raise NotExported(f"{name} (cell {statement.cell}) uses {', '.join(unknown)}, which no cell defines")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("notebook", help="the notebook, an .ipynb file")
    parser.add_argument("function", help="the function's name; it is called with rank, world_size and --args")
    parser.add_argument("--args", default="", help="Python expressions in the notebook's names, such as `job`")
    parser.add_argument("-o", "--output", default="train.py", help="the script to write (default: train.py)")


def main(arguments: argparse.Namespace) -> int:
    try:
        path = export(arguments.notebook, arguments.function, arguments.output, args=arguments.args)
    except (NotExported, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{path}: copy it to every host, and start it there:\n{HOW.format(script=path.name)}")
    return 0
