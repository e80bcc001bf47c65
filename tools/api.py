"""docs/api.md: one page of reference, from the docstrings of what students import. `--check` says if it is stale."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "docs" / "api.md"
MODULES = {  # module -> the names that are meant for students; None: every public function and class of its own
    "hw_utils": ("launch", "simulate", "Network", "Run", "Trace", "Event", "CheckFailed", "WorkerFailed", "Deadlock",
                 "TimedOut"),
    "hw_utils.core.collective_algorithms": (),
    "hw_utils.core.memory": ("Memory", "Peak", "OutOfMemory", "own"),
    "hw_utils.material.data": None,
    "hw_utils.material.models": None,
    "hw_utils.pictures.plots": None,
    "hw_utils.pictures.memory": ("plot_memory", "plot_memory_bars"),
    "hw_utils.pictures.player": ("play", "Player"),
    "hw_utils.pictures.perfetto": None,
    "hw_utils.hosts.measured_link": None,
    "hw_utils.threads.run_threads": None,
}  # fmt: skip
HEAD = """# Reference

What a notebook may import, from the docstrings. Written by `python -m tools.api`; edit the docstrings instead.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(_module(name, names) for name, names in MODULES.items())])


def _module(name: str, names: tuple[str, ...] | None) -> str:
    module = importlib.import_module(name)
    if names is None:
        names = tuple(n for n, value in vars(module).items() if _is_own(module, n, value))
    text = f"## {name}\n\n{_block(inspect.getdoc(module))}\n\n"
    return text + "".join(_entry(n, getattr(module, n)) for n in names)


def _is_own(module: Any, name: str, value: Any) -> bool:
    kind = inspect.isfunction(value) or inspect.isclass(value)
    return kind and not name.startswith("_") and value.__module__ == module.__name__ and bool(inspect.getdoc(value))


def _entry(name: str, value: Any) -> str:
    signature = "" if inspect.isclass(value) and issubclass(value, BaseException) else _signature(value)
    text = f"### {name}\n\n{_block(name + signature)}\n\n{_block(inspect.getdoc(value))}\n"
    if inspect.isclass(value):
        text += "".join(_member(n, m) for n, m in vars(value).items() if not n.startswith("_"))
    return text + "\n"


class _Text(str):
    """An annotation as it stands in the source, without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _signature(value: Any) -> str:
    try:
        signature = inspect.signature(value)
    except ValueError:
        return "(...)"
    bare = [
        p.replace(annotation=_Text(p.annotation) if isinstance(p.annotation, str) else p.annotation)
        for p in signature.parameters.values()
    ]
    returns = signature.return_annotation
    returns = signature.empty if inspect.isclass(value) or not isinstance(returns, str) else _Text(returns)
    return str(signature.replace(parameters=bare, return_annotation=returns))


def _member(name: str, member: Any) -> str:
    doc = inspect.getdoc(member.__func__ if isinstance(member, classmethod) else member)
    documented = isinstance(member, property | classmethod) or inspect.isfunction(member) or hasattr(member, "func")
    return f"- `{name}`: {doc.splitlines()[0]}\n" if doc and documented else ""


def _block(text: str | None) -> str:
    return f"```\n{text or ''}\n```"


def main() -> int:
    """Writes the page, or with `--check` compares it."""
    if "--check" in sys.argv[1:]:
        stale = not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page()
        print("docs/api.md is stale: run `python -m tools.api`" if stale else "docs/api.md is current")
        return int(stale)
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
