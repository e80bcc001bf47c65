"""What a solution turns into by one change: the wrong answers that nobody has thought of.

>>> [text for what, text in mutants("def half(n):\\n    return n // 2\\n") if "Div" in what]
['def half(n):\\n    return n / 2']
"""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

Change = tuple[str, ast.AST]  # in words, and what stands there then

_SWAPS: dict[type, tuple[type, ...]] = {
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Add, ast.Div), ast.Div: (ast.Mult, ast.FloorDiv),
    ast.FloorDiv: (ast.Div,), ast.Mod: (ast.FloorDiv,), ast.Pow: (ast.Mult,), ast.MatMult: (ast.Mult,),
    ast.BitXor: (ast.Add,),
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq, ast.GtE, ast.LtE), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,), ast.And: (ast.Or,), ast.Or: (ast.And,),
}  # fmt: skip
_PAIRS = (
    "rank world_size, left right, low high, first last, min max, sum max, send isend, recv irecv, send recv, "
    "ceil floor, float64 float32, int64 int32, clone detach, contiguous clone, empty_like ones_like, all any, "
    "zeros_like ones_like, zeros ones, parameters buffers, append extend, forward backward, tensor_split chunk, "
    "mean sum, src dst, stack cat, x y, reversed list, sorted list, eval train, copy_ set_, add_ add, SUM MAX"
)
_OTHER_NAMES: dict[str, list[str]] = {}
for _one, _other in (pair.split() for pair in _PAIRS.split(",")):
    _OTHER_NAMES.setdefault(_one, []).append(_other)
    _OTHER_NAMES.setdefault(_other, []).append(_one)

_REDUCES = {"all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor"}
_WAITS = _REDUCES | {"all_gather", "broadcast", "gather", "scatter"}


def mutants(source: str) -> Iterator[tuple[str, str]]:
    """(what was changed, the changed source), one change at a time, in the lines of the solution if they are marked."""
    tree, lines = ast.parse(source), _lines_of_solution(source)
    seen = {ast.unparse(tree)}
    for parent, name, place, node in list(_places(tree)):
        line = getattr(node, "lineno", getattr(parent, "lineno", 0))
        starts = {part.lineno for part in node.body} if isinstance(node, ast.FunctionDef) else {line}
        found = [change(node) for kinds, change in _KINDS if isinstance(node, kinds) and starts & lines]
        for what, other in itertools.chain(*found):
            shown = ast.unparse(node).split("\n")[0][:60]
            _put(parent, name, place, other)
            text = ast.unparse(ast.fix_missing_locations(tree))
            _put(parent, name, place, node)
            if text not in seen:
                seen.add(text)
                yield f"line {line}: `{shown}` {what}", text


def _lines_of_solution(source: str) -> set[int]:
    inside, found = False, set()
    for number, line in enumerate(source.splitlines(), 1):
        inside = (inside or "### BEGIN SOLUTION" in line) and "### END SOLUTION" not in line
        found |= {number} if inside else set()
    return found or set(range(len(source.splitlines()) + 1))


def _places(tree: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            for place, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if isinstance(node, ast.AST):
                    yield parent, name, place, node


def _put(parent: ast.AST, name: str, place: int | None, node: ast.AST) -> None:
    if place is None:
        setattr(parent, name, node)
    else:
        getattr(parent, name)[place] = node


_KINDS: list[tuple[tuple[type, ...], Callable[[Any], Iterator[Change]]]] = []


def _of(*kinds: type) -> Callable:
    return lambda change: _KINDS.append((kinds, change))


def _with(node: ast.AST, **fields: Any) -> ast.AST:
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


@_of(ast.Constant)
def _constants(node: ast.Constant) -> Iterator[Change]:
    if type(node.value) is bool:
        yield "is the other one", ast.Constant(not node.value)
    elif type(node.value) in (int, float):
        yield "is one more", ast.Constant(node.value + 1)
        yield "is one less", ast.Constant(node.value - 1)
    elif node.value in ("sum", "mean"):
        yield "is the other one", ast.Constant("mean" if node.value == "sum" else "sum")


@_of(ast.BinOp)
def _arithmetic(node: ast.BinOp) -> Iterator[Change]:
    for op in _SWAPS.get(type(node.op), ()):
        yield f"has {op.__name__}", _with(node, op=op())
    yield "is its left side only", node.left
    yield "is its right side only", node.right
    if not isinstance(node.op, ast.Add | ast.Mult):
        yield "has its sides swapped", _with(node, left=node.right, right=node.left)


@_of(ast.Compare, ast.BoolOp)
def _conditions(node: ast.Compare | ast.BoolOp) -> Iterator[Change]:
    if isinstance(node, ast.Compare):
        for op in _SWAPS.get(type(node.ops[0]), ()):
            yield f"has {op.__name__}", _with(node, ops=[op(), *node.ops[1:]])
        return
    yield "has the other word", _with(node, op=_SWAPS[type(node.op)][0]())
    for k in range(len(node.values)):
        yield f"lacks part {k}", _with(node, values=node.values[:k] + node.values[k + 1 :])


@_of(ast.If, ast.IfExp)
def _branches(node: ast.If | ast.IfExp) -> Iterator[Change]:
    yield "always", _with(node, test=ast.Constant(True))
    yield "never", _with(node, test=ast.Constant(False))
    yield "the other way round", _with(node, test=ast.UnaryOp(ast.Not(), node.test))


@_of(ast.For, ast.comprehension)
def _loops(node: ast.For | ast.comprehension) -> Iterator[Change]:
    every = ast.unparse(node.iter)
    yield "goes backwards", _with(node, iter=_expression(f"reversed(list({every}))"))
    yield "leaves out the first", _with(node, iter=_expression(f"list({every})[1:]"))
    yield "leaves out the last", _with(node, iter=_expression(f"list({every})[:-1]"))
    yield "goes twice", _with(node, iter=_expression(f"2 * list({every})"))
    if getattr(node, "ifs", None):
        yield "takes all", _with(node, ifs=[])


@_of(ast.Expr, ast.Assign, ast.AugAssign, ast.Return, ast.Raise, ast.Assert, ast.Delete, ast.Continue, ast.Break)
def _statements(node: ast.stmt) -> Iterator[Change]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    yield "is left out", ast.Pass()
    if isinstance(node, ast.AugAssign | ast.Expr):
        yield "comes twice", ast.If(ast.Constant(True), [node, node], [])
    if isinstance(node, ast.AugAssign):
        yield "replaces", ast.Assign([node.target], node.value)
        yield "is not in place", ast.Assign([node.target], ast.BinOp(node.target, node.op, node.value))
    if isinstance(node, ast.Return) and node.value is not None:
        yield "is rounded", _with(node, value=_expression(f"_rounded({ast.unparse(node.value)})"))


@_of(ast.FunctionDef, ast.For, ast.While, ast.If, ast.With)
def _orders(node: Any) -> Iterator[Change]:
    for k, (one, following) in enumerate(itertools.pairwise(node.body)):
        if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)):
            other = _with(node, body=[*node.body[:k], following, one, *node.body[k + 2 :]])
            yield f"has `{ast.unparse(following)[:40]}` before `{ast.unparse(one)[:40]}`", other


@_of(ast.Call)
def _calls(node: ast.Call) -> Iterator[Change]:
    if len(node.args) > 1:
        yield "has its first arguments swapped", _with(node, args=[node.args[1], node.args[0], *node.args[2:]])
        yield "lacks its last argument", _with(node, args=node.args[:-1])
    for k, keyword in enumerate(node.keywords):
        yield f"lacks {keyword.arg}", _with(node, keywords=node.keywords[:k] + node.keywords[k + 1 :])
    if len(node.args) == 1:
        yield "is its argument", node.args[0]
    if isinstance(node.func, ast.Attribute):
        yield "is not called", node.func.value
    name = ast.unparse(node.func).removeprefix("dist.")
    added = [("op", "dist.ReduceOp.MAX")] * (name in _REDUCES) + [("async_op", "True")] * (name in _WAITS)
    for key, value in added:
        if key not in [keyword.arg for keyword in node.keywords]:
            yield f"has {key}={value}", _with(node, keywords=[*node.keywords, ast.keyword(key, _expression(value))])


@_of(ast.Name, ast.Attribute)
def _names(node: ast.Name | ast.Attribute) -> Iterator[Change]:
    field = "id" if isinstance(node, ast.Name) else "attr"
    for other in _OTHER_NAMES.get(getattr(node, field), ()) if isinstance(node.ctx, ast.Load) else ():
        yield f"is {other}", _with(node, **{field: other})


@_of(ast.UnaryOp, ast.While, ast.With, ast.Slice, ast.Tuple)
def _others(node: Any) -> Iterator[Change]:
    if isinstance(node, ast.UnaryOp):
        yield "without its sign", node.operand
    elif isinstance(node, ast.While):
        yield "goes once", ast.If(node.test, node.body, [])
    elif isinstance(node, ast.With):
        yield "is no context", ast.If(ast.Constant(True), node.body, [])
    elif isinstance(node, ast.Slice):
        for bound in ("lower", "upper", "step"):
            yield f"has no {bound}", _with(node, **{bound: None})
    elif len(node.elts) == 2 and isinstance(node.ctx, ast.Load):
        yield "is swapped", _with(node, elts=node.elts[::-1])
