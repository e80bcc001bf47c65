"""IPython's own doors: transformers of text and of trees, events, formatters, an extension, another namespace."""

# expects: fail
import ast
import builtins
import sys
import types

shell = get_ipython()
shell.input_transformers_post.append(lambda lines: ["pass\n"])


class Passes(ast.NodeTransformer):
    def visit_Module(self, node):
        return ast.Module([ast.Pass()], [])


shell.ast_transformers.append(Passes())
for event in ("pre_execute", "pre_run_cell", "post_execute", "post_run_cell"):
    shell.events.register(event, lambda *a: builtins.__dict__.update(AssertionError=SystemExit))
extension = types.ModuleType("trap")
extension.load_ipython_extension = lambda shell: shell.user_ns.update(checks=None)
sys.modules["trap"] = extension
shell.run_line_magic("load_ext", "trap")


class Namespace(dict):
    def __missing__(self, key):
        return lambda *a, **k: None


shell.user_ns.__class__ = getattr(shell.user_ns, "__class__", Namespace)
shell.display_formatter.formatters["text/plain"].for_type(int, lambda *a: "15")
