"""An AST transformer that drops what could fail."""

# expects: fail
import ast


class Drop(ast.NodeTransformer):
    def visit_Assert(self, node):
        return ast.Pass()

    def visit_Raise(self, node):
        return ast.Pass()


get_ipython().ast_transformers.append(Drop())
