"""An exception of a rank as what a run ends in."""

from __future__ import annotations

import os
import traceback

from hw_utils.core import pickling
from hw_utils.core.errors import Failure, Frame
from hw_utils.core.failure_kind import kind_and_reason
from hw_utils.core.source import is_students, locate

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def failure_of(rank: int, error: BaseException) -> Failure:
    kind, reason = kind_and_reason(error)
    frames = tuple(
        Frame(locate(f.filename, f.lineno or 0), f.name)
        for f in traceback.extract_tb(error.__traceback__)
        if is_students(f.filename)
    )
    return Failure(rank, kind, reason, frames, error)


def is_from_a_package(error: BaseException) -> bool:
    """Whether code of an installed package has raised it: neither the program's own, nor this package's."""
    found = traceback.extract_tb(error.__traceback__)
    return bool(found) and not is_students(found[-1].filename) and not found[-1].filename.startswith(_PACKAGE)


def sendable(error: BaseException | None) -> bytes | None:
    """The exception as bytes that can be rebuilt, if it has such."""
    if error is None:
        return None
    try:
        data = bytes(pickling.dump(error.with_traceback(None), ""))
        pickling.load(data)
    except Exception:
        return None
    return data
