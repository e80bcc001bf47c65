"""The course's secret: with it and what was handed in, numbers are drawn that no student can know or choose.

A file of the course folder, made when it is first needed and never published. Who keeps it gets the same marks when a
class is graded again.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

FILE = ".grading_secret"


def secret_of(root: Path) -> bytes:
    """What the file in the course folder holds; it is made if there is none."""
    path = root / FILE
    if not path.exists():
        part = root / f"{FILE}.{secrets.token_hex(4)}"
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        with contextlib.suppress(FileExistsError):  # another process was faster: its secret counts
            os.link(part, path)
        part.unlink()
    return path.read_bytes()
