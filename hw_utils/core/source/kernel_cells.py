"""The cells of a notebook: their names, and their lines in another process than the kernel."""

from __future__ import annotations

import linecache
import sys


def cell_name(file: str) -> str:
    """`Cell In[5]` for the compiled file of a notebook cell, else nothing."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    count = getattr(getattr(shell, "compile", None), "_filename_map", {}).get(file)
    if count is not None:
        return f"Cell In[{count}]"
    if file in _known:
        return _known[file]
    return "a cell" if is_cell(file) else ""


def is_cell(file: str) -> bool:
    return "ipykernel_" in file or file.startswith("<ipython-input")


_known: dict[str, str] = {}  # in another process than the kernel


def kernels_cells() -> dict[str, tuple[str, list[str]]]:
    """This kernel's cells, file -> (name, lines), for `know_cells` in another process."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    files = getattr(getattr(shell, "compile", None), "_filename_map", {})
    return {file: (f"Cell In[{count}]", linecache.getlines(file)) for file, count in files.items()}


def know_cells(found: dict[str, tuple[str, list[str]]]) -> None:
    """From now on `locate` names the cells of the kernel that sent `kernels_cells()`."""
    for file, (name, lines) in found.items():
        _known[file] = name
        linecache.cache[file] = (sum(map(len, lines)), None, lines, file)
