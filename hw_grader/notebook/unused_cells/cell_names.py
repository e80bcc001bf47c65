"""What a code cell reads, binds and may do, from its text alone; nothing is run."""

from __future__ import annotations

import ast
import symtable
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

MAX_CHARS = 20_000  # a longer cell is not looked into
_TO_OTHER_NAMES = """
    __import__ __builtins__ __main__ __globals__ __dict__ __code__ __closure__ __subclasses__ __getattribute__
    __setattr__ _getframe currentframe f_globals f_locals f_back f_builtins user_ns user_global_ns get_objects
    get_referrers run_cell settrace setprofile get_ipython sys.modules inspect.stack inspect.getouterframes
"""
_WAYS_AROUND = frozenset(_TO_OTHER_NAMES.split())  # as a name, an attribute, a module, a text
_BUILT_IN_WAYS = {"exec", "eval", "compile", "globals", "locals", "vars", "dir", "In", "Out"}
_SETS = {"setattr", "delattr"}
_MODULES_WAYS = {"importlib", "builtins", "ctypes", "gc", "pickle", "cloudpickle", "dill", "marshal", "atexit"}
_DATACLASS = {"dataclass", "dataclasses.dataclass"}  # may be called with literals
_DATACLASS_FIELD = {"field", "dataclasses.field"}
_DECORATORS = {
    "contextmanager", "contextlib.contextmanager", "staticmethod", "classmethod", "property", "torch.no_grad",
    "torch.enable_grad", "torch.inference_mode", "cache", "functools.cache", "lru_cache", "functools.lru_cache",
    "functools.cached_property", "cached_property", "total_ordering", "functools.total_ordering",
}  # fmt: skip
_CALLED = {"lru_cache", "functools.lru_cache"}  # with literals
_WRAPS = {"wraps", "functools.wraps"}  # of another function
_LOCKS = {"Lock", "RLock", "Condition", "Event", "Semaphore", "BoundedSemaphore", "Barrier"}
_METHODS = {
    "__init__", "__post_init__", "__call__", "__enter__", "__exit__", "__len__", "__iter__", "__next__", "__repr__",
    "__str__", "__getitem__", "__contains__", "__bool__", "__eq__", "__lt__", "__hash__",
}  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """About one cell."""

    reads: frozenset[str]  # names of the notebook and built-in ones, in functions too
    binds: frozenset[str]
    functions: frozenset[str]  # of these, those that only `def`, `class`, a lambda, a literal or a lock is bound to
    imports: dict[str, str]  # of these, those that only an import binds: where from
    uses: frozenset[str]  # what it imports, in functions too, and what it uses of that: "torch.nn.Linear"
    chains: frozenset[tuple[str, tuple[str, ...]]]  # what is used of names that it reads: `a.b.c` is ("a", ("b", "c"))
    patches: frozenset[str]  # names whose attributes or items it sets, but for values of its own
    is_dynamic: bool  # it may reach names in ways that do not show
    is_tame: bool  # it keeps and changes nothing but what it makes itself and `patches`, as far as its own text goes
    is_quiet: bool  # it runs nothing: it imports, defines functions and classes, and names literals


@lru_cache(maxsize=100)
def facts_of(source: str) -> Facts | None:
    """None if the text is no plain Python, or too long."""
    if len(source) > MAX_CHARS:
        return None
    try:
        return _facts(ast.parse(source), _scopes(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


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


def _facts(tree: ast.Module, table: symtable.SymbolTable) -> Facts:
    nodes = list(ast.walk(tree))
    reads, binds = _globals(table)
    caught = _caught(nodes)
    reads, binds = reads - caught, binds - caught
    reads |= {n.id for node in nodes if isinstance(node, ast.AugAssign | ast.Delete) for n in _targets(node)} & binds
    origins, is_plain = _imports(nodes)
    made = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    fixed = {node.targets[0] for node in tree.body if _is_fixed(node)}
    made |= {name.id for name in fixed}
    assigned = {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load) and n not in fixed}
    assigned |= {name for name, times in Counter(name.id for name in fixed).items() if times > 1}
    used = set(_chains(nodes))
    chains = {chain for chain in used if chain[0] in reads}
    patches = {_root(node) for node in nodes if _is_store(node)} & reads - (binds - made - set(origins))
    is_dynamic = not is_plain or _goes_around(nodes, reads, binds, origins, chains)
    return Facts(
        reads=frozenset(reads),
        binds=frozenset(binds),
        functions=frozenset(made - set(origins) - assigned),
        imports={name: origin for name, origin in origins.items() if name not in made | assigned},
        uses=frozenset({*origins.values(), *(".".join([origins[a], *b]) for a, b in used if a in origins and b)}),
        chains=frozenset(chains),
        patches=frozenset(patches),
        is_dynamic=is_dynamic,
        is_tame=not (is_dynamic or any(map(_is_wild, nodes))),
        is_quiet=not is_dynamic and all(map(_runs_nothing, tree.body)),
    )


def _is_fixed(statement: ast.stmt) -> bool:
    """Whether it gives a name something that keeps nothing: `f = lambda x: x`, `N = 3`, `GUARD = threading.Lock()`."""
    is_named = isinstance(statement, ast.Assign) and len(statement.targets) == 1
    is_named = is_named and isinstance(statement.targets[0], ast.Name)
    return is_named and (isinstance(statement.value, ast.Lambda) or _is_constant(statement.value))


def _is_constant(value: ast.expr) -> bool:
    """Literals that nobody can change, and locks."""
    if isinstance(value, ast.Tuple):
        return all(map(_is_constant, value.elts))
    if isinstance(value, ast.Call):
        name = ast.unparse(value.func).removeprefix("threading.")
        return name in _LOCKS and all(map(_is_constant, value.args)) and not value.keywords
    return isinstance(value, ast.Constant) or (isinstance(value, ast.UnaryOp) and _is_constant(value.operand))


def _globals(table: symtable.SymbolTable) -> tuple[set[str], set[str]]:
    """The notebook's names that are read, and bound, anywhere in the cell."""
    reads, binds = set(), set()
    kind = str(table.get_type())
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (kind in ("module", "class") or symbol.is_global()):
            reads.add(symbol.get_name())
        if (symbol.is_assigned() or symbol.is_imported()) and (kind == "module" or symbol.is_declared_global()):
            binds.add(symbol.get_name())
    for child in table.get_children():
        for mine, theirs in zip((reads, binds), _globals(child)):
            mine |= theirs
    return reads, binds


def _imports(nodes: list[ast.AST]) -> tuple[dict[str, str], bool]:
    """Where each imported name comes from; False if an import does not say it, or two say different things."""
    found: list[tuple[str, str]] = []
    is_plain = True
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [(a.asname, a.name) if a.asname else (a.name.split(".")[0],) * 2 for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            is_plain = is_plain and not node.level and all(a.name != "*" for a in node.names)
            found += [(a.asname or a.name, f"{node.module}.{a.name}") for a in node.names]
    return dict(found), is_plain and len(dict(found)) == len(set(found))


def _chains(nodes: list[ast.AST]) -> Iterator[tuple[str, tuple[str, ...]]]:
    inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        if id(node) in inner or not isinstance(node, ast.Attribute | ast.Name):
            continue
        attributes: list[str] = []
        while isinstance(node, ast.Attribute):
            attributes.insert(0, node.attr)
            node = node.value
        if isinstance(node, ast.Name):
            yield node.id, tuple(attributes)


def _goes_around(nodes: list[ast.AST], reads: set[str], binds: set[str], origins: dict[str, str], chains: set) -> bool:
    words = {node.attr for node in nodes if isinstance(node, ast.Attribute)} | reads
    words |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    words |= {f"{origins.get(name, name)}.{attributes[0]}" for name, attributes in chains if attributes}
    words |= set(origins.values()) | {part for origin in origins.values() for part in origin.split(".")}
    modules = {origin.split(".")[0] for origin in origins.values()}
    called = {id(node.func) for node in nodes if _is_store(node) and isinstance(node, ast.Call)}
    return bool(
        words & _WAYS_AROUND
        or reads & _BUILT_IN_WAYS
        or any(isinstance(n, ast.Name) and n.id in _SETS and id(n) not in called for n in nodes)
        or modules & _MODULES_WAYS
        or any(map(_is_history, reads - binds))
    )


def _is_history(name: str) -> bool:
    """IPython's own names for what came before: `_`, `__`, `_12`, `_i`, `_i12`, `_ih`, `_oh`."""
    rest = name.lstrip("_")
    return name.startswith("_") and (rest.lstrip("i") in ("", "h", "oh", "dh") or rest.lstrip("i").isdigit())


def _targets(node: ast.AugAssign | ast.Delete) -> Iterator[ast.Name]:
    for target in node.targets if isinstance(node, ast.Delete) else [node.target]:
        yield from (n for n in ast.walk(target) if isinstance(n, ast.Name))


def _caught(nodes: list[ast.AST]) -> set[str]:
    """Names that stand for a caught exception, within its handler, and for nothing else."""
    handlers = [node for node in nodes if isinstance(node, ast.ExceptHandler) and node.name]
    inside = {id(n) for h in handlers for n in ast.walk(h) if isinstance(n, ast.Name) and n.id == h.name}
    others = {n.id for n in nodes if isinstance(n, ast.Name) and id(n) not in inside}
    others |= {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    return {handler.name for handler in handlers} - others


def _runs_nothing(statement: ast.stmt) -> bool:
    """Whether a statement of a cell only names things: an import, a definition, a literal, or ends a stub."""
    if isinstance(statement, ast.Import | ast.ImportFrom | ast.Pass):
        return True
    if isinstance(statement, ast.FunctionDef):
        given = statement.args
        said = [a.annotation for a in ast.walk(given) if isinstance(a, ast.arg)] + [statement.returns]
        decorators = [d for d in statement.decorator_list if not _is_known(d)]
        return all(map(_is_plain, [*said, *given.defaults, *given.kw_defaults])) and not decorators
    if isinstance(statement, ast.ClassDef):
        bare = not statement.keywords and all(map(_is_known, statement.decorator_list))
        return bare and all(map(_is_plain, statement.bases)) and all(map(_runs_nothing, statement.body))
    if isinstance(statement, ast.Assign):
        return all(isinstance(target, ast.Name) for target in statement.targets) and _is_only_named(statement.value)
    if isinstance(statement, ast.AnnAssign):
        return isinstance(statement.target, ast.Name) and _is_plain(statement.annotation) and _is_plain(statement.value)
    if isinstance(statement, ast.Raise):
        return ast.unparse(statement) in ("raise NotImplementedError", "raise NotImplementedError()")
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_only_named(value: ast.expr) -> bool:
    """Whether working it out runs nothing: a literal, a lock, or a lambda, which runs when it is called."""
    if isinstance(value, ast.Lambda):
        return all(map(_is_plain, [*value.args.defaults, *value.args.kw_defaults]))
    return _is_plain(value) or _is_constant(value)


def _is_known(decorator: ast.expr) -> bool:
    """Whether it keeps nothing and looks at nothing: `@property`, `@torch.no_grad()`."""
    is_called = isinstance(decorator, ast.Call)
    name = ast.unparse(decorator.func if is_called else decorator)
    values = [*decorator.args, *(k.value for k in decorator.keywords)] if is_called else []
    if name in _DATACLASS | _CALLED:
        return all(isinstance(value, ast.Constant) for value in values)
    return (name in _DECORATORS and not values) or (name in _WRAPS and all(map(_is_plain, values)))


def _is_plain(value: ast.expr | None) -> bool:
    """Names, what they hold, literals and types: working it out calls nothing of the notebook's."""
    kinds = (ast.Name, ast.Attribute, ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.Subscript, ast.BinOp,
             ast.UnaryOp, ast.expr_context, ast.operator, ast.unaryop)  # fmt: skip
    return value is None or all(isinstance(node, kinds) for node in ast.walk(value))


def _is_field(statement: ast.AnnAssign) -> bool:
    """Whether what it gives is each object's own."""
    value = statement.value
    if isinstance(value, ast.Call) and ast.unparse(value.func) in _DATACLASS_FIELD:
        return all(isinstance(k.value, ast.Constant | ast.Name) for k in value.keywords) and not value.args
    return value is None or _is_constant(value)


def _is_store(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _SETS and node.args:
        return True
    return isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load)


def _root(node: ast.AST) -> str:
    """`a` of `a.b[c].d`, `a.view(-1)[c]` and `setattr(a, ...)`; empty if it does not start with a name."""
    node = node.args[0] if isinstance(node, ast.Call) else node
    while isinstance(node, ast.Attribute | ast.Subscript) or _is_method_call(node):
        node = node.func.value if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _is_method_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)


def _is_wild(node: ast.AST) -> bool:
    """Whether a node keeps or changes something that outlives a call, or looks like it."""
    if isinstance(node, ast.Attribute) and node.attr.startswith("__"):
        return node.attr not in {"__name__", "__doc__", *_METHODS}
    if _is_store(node):
        return not _root(node)
    if isinstance(node, ast.arguments):
        defaults = [*node.defaults, *(d for d in node.kw_defaults if d is not None)]
        return not all(isinstance(d, ast.Constant | ast.UnaryOp | ast.Name | ast.Attribute) for d in defaults)
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        known = all(map(_is_known, node.decorator_list))
        if isinstance(node, ast.ClassDef):
            return not known or not _is_plain_class(node)
        return False  # a decorator of the notebook's is one more name that is read
    return isinstance(node, ast.Global | ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith)


def _is_plain_class(node: ast.ClassDef) -> bool:
    """Methods and a docstring, on classes that have a name: nothing of its own that its objects could change."""
    methods = [s.name for s in node.body if isinstance(s, ast.FunctionDef)]
    known = all(not name.startswith("__") or name in _METHODS for name in methods)
    fields = [s for s in node.body if isinstance(s, ast.AnnAssign)]  # of a dataclass
    named = [s for s in node.body if isinstance(s, ast.Assign)]
    kinds = (ast.FunctionDef, ast.ClassDef, ast.Pass, ast.Expr, ast.AnnAssign, ast.Assign)  # classes are looked at, too
    plain = all(isinstance(s, kinds) for s in node.body) and all(map(_is_field, fields))
    plain = plain and all(_is_constant(s.value) or [ast.unparse(t) for t in s.targets] == ["__slots__"] for s in named)
    return known and plain and all(map(_is_plain, node.bases)) and not node.keywords
