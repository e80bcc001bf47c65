"""What tests of the sandbox share: the mark that they carry, and which processes are in it."""

from __future__ import annotations

import os

import psutil
import pytest

from hw_grader.sandbox.sandbox import Sandbox, why_not

needs_sandbox = pytest.mark.skipif(
    bool(why_not()) and os.environ.get("CI") != "true", reason=f"no sandbox: {why_not()}"
)


def inside(sandbox: Sandbox) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """bubblewrap's first process and the two warm parents, the one that tasks come from last; then all the others.

    By age: process numbers start again at the smallest when the largest one was given out.
    """
    found = sorted(psutil.Process(sandbox.bwrap.pid).children(recursive=True), key=lambda p: p.create_time())
    return found[:3], found[3:]
