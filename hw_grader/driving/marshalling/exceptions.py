"""An answer's exception on its way to the driver: told as names, texts and lines, raised again at the same lines."""

from __future__ import annotations

import builtins
import contextlib
import linecache
import traceback
from collections.abc import Callable
from typing import Any

from hw_utils.core.pickling import chain_of
from hw_utils.core.source.students_files import is_students

_MOST_CAUSES = 5


def told(error: BaseException) -> dict[str, Any]:
    """The exception as plain data, and what it comes of as far as that was met in the student's own lines."""
    causes = [_one(cause) for cause, _ in chain_of(error)]
    return {**_one(error), "because": [cause for cause in causes if "file" in cause][:_MOST_CAUSES]}


def _one(error: BaseException) -> dict[str, Any]:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_students(f.filename)]
    at = {"file": frames[-1].filename, "line": frames[-1].lineno} if frames else {}
    return {"raised": type(error).__name__, "text": _said(error), **at}


def _said(error: BaseException) -> str:
    try:
        return str(error)[:2000]
    except Exception as of_its_own:  # a class of the student's: the answer still raised, its process did not end
        return f"its __str__ raises {type(of_its_own).__name__}"


def raise_again(message: dict) -> None:
    """The exception, as the built-in one of its name, and its causes; what says so may come of a student's code."""
    because, cause = message.get("because"), None
    for part in reversed(because[:_MOST_CAUSES] if isinstance(because, list) else []):
        if isinstance(part, dict) and "raised" in part:
            try:
                _raise(part, cause)
            except Exception as error:
                cause = error
    _raise(message, cause)


def _raise(message: dict, cause: Exception | None) -> None:
    name, text = str(message["raised"])[:100], str(message.get("text", ""))[:2000]
    kind = getattr(builtins, name, None)
    error: Exception = RuntimeError(f"{name}: {text}" if text else name)
    if isinstance(kind, type) and issubclass(kind, Exception):
        with contextlib.suppress(TypeError):  # one that is made of more than a text: UnicodeDecodeError, ExceptionGroup
            error = kind(_key(text) if kind is KeyError else text)

    def go():
        raise error from cause

    at_line(go, message)


def _key(text: str) -> str | int:
    """The key that a KeyError shows so: it shows the text that it is given as a literal once more."""
    is_plain = text[1:-1].isprintable() and not {"'", "\\"}.intersection(text[1:-1])
    if len(text) > 1 and text[0] == text[-1] == "'" and is_plain:
        return text[1:-1]
    return int(text) if text.isascii() and text.isdecimal() else text


def at_line(call: Callable[[], Any], message: dict) -> Any:
    """Makes the call from the student's own file and line, so that errors and the ledger name them."""
    file, line = message.get("file"), message.get("line")
    if not (isinstance(file, str) and file in linecache.cache and type(line) is int and 0 < line < 100_000):
        return call()
    found: dict[str, Any] = {"call": call}
    exec(compile("\n" * (line - 1) + "result = call()", file, "exec"), found)
    return found["result"]
