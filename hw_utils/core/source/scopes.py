"""The symbol table of a text, with the variables of comprehensions in scopes of their own on every Python."""

from __future__ import annotations

import ast
import symtable


class _AsGenerators(ast.NodeTransformer):
    """Since Python 3.12 the table says that `[i for i in x]` binds i around it; of a generator it never says so."""

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp) -> ast.GeneratorExp:
        self.generic_visit(node)
        return ast.GeneratorExp(node.elt, node.generators)

    visit_SetComp = visit_ListComp

    def visit_DictComp(self, node: ast.DictComp) -> ast.GeneratorExp:
        self.generic_visit(node)
        return ast.GeneratorExp(ast.Tuple([node.key, node.value], ast.Load()), node.generators)


def scopes(tree: ast.Module) -> symtable.SymbolTable:
    """What `symtable.symtable` tells of a cell's text; names alone, since it is written anew; the tree is changed."""
    return symtable.symtable(ast.unparse(_AsGenerators().visit(tree)), "<cell>", "exec")
