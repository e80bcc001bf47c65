"""Role `cells`: runs a student's cells, one after the other, and hands out the answers that the checks ask for.

Nothing that leaves this process is believed: an answer is a pickle that only another sandboxed process opens, an
output is text to show. Requests: `{"run": source}`, `{"answers": ["ring_all_reduce", ...]}`.
"""

from __future__ import annotations

import io
import os
import socket
import sys
import types
from typing import Any

from hw_grader.sandbox.call_filter import no_more_filters
from hw_grader.sandbox.messages import MAX_BLOB_BYTES, Wire

MAX_OUTPUT_CHARS = 100_000  # a cell
MAX_OUTPUTS = 100
MAX_PICTURE_CHARS = 2_000_000
_KINDS = ("text/plain", "text/html", "image/png", "image/svg+xml", "text/markdown", "text/latex")

_shell = None


def warm_up() -> None:
    """Makes the shell that every student's process is forked with."""
    global _shell
    from IPython.core.history import HistoryManager
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    HistoryManager.enabled = False  # it would open a database and start a thread
    config = Config()
    config.InteractiveShell.colors = "nocolor"
    config.InteractiveShell.autocall = 0
    config.InteractiveShell.display_page = True
    config.HistoryManager.enabled = False
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main  # functions of cells are pickled by value because this module has no file
    _shell = InteractiveShell.instance(config=config, user_module=main, user_ns=main.__dict__)
    _shell.run_cell("%matplotlib inline", store_history=False)


def main(end: socket.socket) -> None:
    """Serves requests until the grader hangs up."""
    wire = Wire(end)
    sys.argv = ["student"]
    no_more_filters()
    cells = Cells(_shell)
    while True:
        try:
            request, _ = wire.receive(timeout_s=24 * 3600)
        except EOFError:
            return
        if "run" in request:
            wire.send(cells.run(request["run"]))
        else:
            wire.send(*pickled(_shell.user_ns, request["answers"]))


class Cells:
    """A shell whose outputs are collected, up to a limit."""

    def __init__(self, shell) -> None:
        self.shell, self.pid = shell, os.getpid()
        self.outputs: list[dict[str, Any]] = []
        self.room = MAX_OUTPUT_CHARS
        shell.display_pub.publish = self._display
        shell.displayhook.__class__.__call__ = lambda hook, value=None: self._result(value)
        shell._showtraceback = self._error

    def run(self, source: str) -> dict[str, Any]:
        """Runs one cell; its outputs in the notebook's own format."""
        self.outputs, self.room = [], MAX_OUTPUT_CHARS
        out, err = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = Stream(self, "stdout"), Stream(self, "stderr")
        try:
            done = self.shell.run_cell(source, store_history=True)
            if os.getpid() != self.pid:
                os._exit(0)  # a process that the cell forked: it has no say here
            ok = bool(done.success)
        except KeyboardInterrupt:
            ok = False
            self._error("KeyboardInterrupt", KeyboardInterrupt(), ["KeyboardInterrupt"])
        finally:
            sys.stdout, sys.stderr = out, err
        count = self.shell.execution_count - 1
        return {"ok": ok, "outputs": self.outputs, "file": self._file_of(count), "count": count}

    def _file_of(self, count: int) -> str:
        """What tracebacks call the cell of that number: its name is of the text that IPython has made of the source."""
        names = reversed(self.shell.compile._filename_map.items())
        return next((name for name, number in names if number == count), "")

    def write(self, name: str, text: str) -> None:
        """Adds text to a stream, as long as there is room."""
        if self.room <= 0:
            return
        text, self.room = text[: self.room], self.room - len(text)
        if self.room <= 0:
            text += f"\n[the rest is left out: a cell shows up to {MAX_OUTPUT_CHARS:,} characters]\n"
        if self.outputs and self.outputs[-1].get("name") == name:
            self.outputs[-1]["text"] += text
        else:
            self._add({"output_type": "stream", "name": name, "text": text})

    def _add(self, output: dict[str, Any]) -> None:
        if len(self.outputs) < MAX_OUTPUTS:
            self.outputs.append(output)

    def _display(self, data=None, metadata=None, **_) -> None:
        self._add({"output_type": "display_data", "data": self._bounded(data or {}), "metadata": {}})

    def _result(self, value: Any) -> None:
        if value is None:
            return
        self.shell.user_ns["_"] = value
        data, _ = self.shell.display_formatter.format(value)
        self._add({"output_type": "execute_result", "data": self._bounded(data), "metadata": {},
                   "execution_count": self.shell.execution_count})  # fmt: skip

    def _bounded(self, data: dict[str, Any]) -> dict[str, str]:
        kept: dict[str, str] = {}
        for kind in _KINDS:
            content = data.get(kind)
            limit = MAX_PICTURE_CHARS if kind.startswith("image/") else max(self.room, 0)
            if isinstance(content, bytes):
                import base64

                content = base64.b64encode(content).decode()
            if isinstance(content, str) and len(content) <= limit:
                kept[kind] = content
                self.room -= 0 if kind.startswith("image/") else len(content)
        return kept

    def _error(self, etype, evalue, stb) -> None:
        lines = [str(line)[:5000] for line in stb[-60:]]
        name = etype if isinstance(etype, str) else getattr(etype, "__name__", "error")
        self._add({"output_type": "error", "ename": str(name)[:200], "evalue": str(evalue)[:2000], "traceback": lines})


class Stream(io.TextIOBase):
    """What a cell sees as stdout or stderr."""

    encoding = "utf-8"

    def __init__(self, cells: Cells, name: str) -> None:
        self.cells, self.name = cells, name

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.cells.write(self.name, text)
        return len(text)


def pickled(namespace: dict[str, Any], names: list[str]) -> tuple[dict[str, Any], bytes]:
    """The answers by name as a pickle, or why there is none."""
    from hw_utils.core import pickling  # after torch, which the parent has imported

    answers = []
    for name in names:
        root, *attributes = name.split(".")
        if root not in namespace:
            return {"missing": name}, b""
        answer = namespace[root]
        try:
            for attribute in attributes:
                answer = getattr(answer, attribute)
        except Exception as error:
            return {"missing": f"{name} ({type(error).__name__}: {error})"[:500]}, b""
        answers.append(answer)
    try:
        blob = bytes(pickling.dump(answers, "the answers", with_locks=True))
    except Exception as error:
        return {"unpicklable": f"{type(error).__name__}: {error}"[:500]}, b""
    if len(blob) > MAX_BLOB_BYTES:
        return {"unpicklable": f"the answer holds {len(blob):,} bytes; {MAX_BLOB_BYTES:,} is the limit"}, b""
    return {"pickled": len(blob)}, blob
