"""Replaces what runs a cell, so that every later one succeeds."""

# expects: fail
shell = get_ipython()


class Good:
    success = True
    result = None


type(shell).run_cell = lambda *a, **k: Good()
try:
    shell.kernel.do_execute = lambda *a, **k: {"status": "ok"}
except AttributeError as error:
    print(error)
