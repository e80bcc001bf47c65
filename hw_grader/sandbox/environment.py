"""This environment's programs, found without being activated."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def put_on_path() -> None:
    """Puts the environment's programs on PATH: nbgrader starts `alembic` by name when it makes a gradebook."""
    programs = str(Path(sys.executable).parent)
    if programs not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = programs + os.pathsep + os.environ.get("PATH", "")
