"""The methods that `@dataclass` and NamedTuple write for the classes of a cell, made again from the cell's text.

Their code stands in no file. Only what decides about it is taken from the text: names and order of the fields, which of
them have a default, literal options, the names of methods. Nothing of the cell's is run.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import types
import typing
from collections.abc import Iterator
from types import CodeType
from typing import Any

_SPECIAL = {"ClassVar": typing.ClassVar, "InitVar": dataclasses.InitVar, "KW_ONLY": dataclasses.KW_ONLY}


def codes_of(tree: ast.Module) -> Iterator[CodeType]:
    """The codes of such methods, of each class that the text defines."""
    made: dict[str, type] = {}
    for node in ast.walk(tree):
        try:
            if isinstance(node, ast.ClassDef):
                made[node.name] = _class(node, made)
            elif isinstance(node, ast.Call) and _name(node.func) == "namedtuple":
                name, fields = map(ast.literal_eval, node.args[:2])
                made[name] = collections.namedtuple(name, fields)
        except (TypeError, ValueError):  # as the cell itself was told, or nothing that is plain
            continue
    for kind in made.values():
        methods = [getattr(f, "__func__", f) for f in vars(kind).values()]  # `__new__` is a static one
        yield from (f.__code__ for f in methods if isinstance(f, types.FunctionType))


def _class(node: ast.ClassDef, made: dict[str, type]) -> type:
    for decorator in node.decorator_list:
        if _name(getattr(decorator, "func", decorator)) == "dataclass":
            return _dataclass(node, _options(decorator), made)
    if "NamedTuple" in map(_name, node.bases):
        return collections.namedtuple(node.name, [name for name, _, _ in _fields(node)])
    return object


def _dataclass(node: ast.ClassDef, options: dict[str, Any], made: dict[str, type]) -> type:
    content: dict[str, Any] = {"__annotations__": {name: kind for name, kind, _ in _fields(node)}}
    content |= {name: default for name, _, default in _fields(node) if default is not dataclasses.MISSING}
    content |= {f.name: _nothing for f in node.body if isinstance(f, ast.FunctionDef)}
    bases = tuple(made[name] for name in map(_name, node.bases) if name in made)
    return dataclasses.dataclass(**options)(types.new_class(node.name, bases, {}, lambda body: body.update(content)))


def _nothing() -> None:
    """Stands for a method of the cell's."""


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, Any, Any]]:
    """(name, annotation, default) of each, with values that stand for the cell's own."""
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            kind = getattr(statement.annotation, "value", statement.annotation)
            kind = _name(statement.annotation if isinstance(statement.annotation, ast.Attribute) else kind)
            yield statement.target.id, _SPECIAL.get(kind, object), _default(statement.value)


def _default(value: ast.expr | None) -> Any:
    if value is None:
        return dataclasses.MISSING
    if isinstance(value, ast.Call) and _name(value.func) == "field":
        options = _options(value)
        stands_for = {"default": None, "default_factory": list}
        return dataclasses.field(**{name: stands_for.get(name, given) for name, given in options.items()})
    return None


def _options(call: ast.expr) -> dict[str, Any]:
    """The keywords of a call; of those that are no literals, only that they are there."""
    keywords = call.keywords if isinstance(call, ast.Call) else ()
    return {k.arg: k.value.value if isinstance(k.value, ast.Constant) else None for k in keywords if k.arg}


def _name(node: ast.expr) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))
