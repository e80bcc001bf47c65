"""An equal share of the processors for each sandbox, however many processes run in it.

By a control group of its own where this user may make one (as root, or where a service manager handed one over).
Elsewhere by the kernel's automatic groups: a sandbox is one session, and cannot begin another (see lockdown.py).
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
LOWEST = 19
_NAME = "hw_grader-"
_GONE_S = 2.0


class Share:
    """A control group with the usual weight; `path` is None where there can be none."""

    def __init__(self, root: Path = ROOT, told: str | None = None) -> None:
        """told: what /proc/self/cgroup says, where it is not this process's own."""
        self.path: Path | None = None
        told = Path("/proc/self/cgroup").read_text() if told is None else told
        for parent in _parents(root, told):
            _remove_old(parent)
            path = parent / f"{_NAME}{os.getpid()}-{time.monotonic_ns()}"
            with contextlib.suppress(OSError):  # not ours to make: the next one
                path.mkdir()
                self.path = path
                return

    @property
    def nice(self) -> int:
        """What a student's processes add to their nice value, so that the warm parent, in the same group, can end them.

        Nothing without a group: they would give way to everything on the machine.
        """
        return 0 if self.path is None else LOWEST

    def command(self, command: list[str]) -> list[str]:
        """The command, so that it and all that it starts are in the group from the beginning."""
        if self.path is None:
            return command
        return ["/bin/sh", "-c", 'echo 0 > "$0/cgroup.procs"; exec "$@"', str(self.path), *command]

    def close(self) -> None:
        """Removes the group once its processes are gone."""
        deadline = time.monotonic() + _GONE_S
        while self.path is not None:
            try:
                self.path.rmdir()
            except FileNotFoundError:
                pass
            except OSError:  # a process is still going
                if time.monotonic() < deadline:
                    time.sleep(0.01)
                    continue
            self.path = None  # if it stayed, the next grader removes it


def _parents(root: Path, told: str) -> list[Path]:
    """Groups below which one with a share of the processors can be made: this process's own, then the one above."""
    found = []
    for line in told.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers:
            own = root / controllers / path.lstrip("/")
            found += [own] if "cpu" in controllers.split(",") and own.is_dir() else []
        elif (root / "cgroup.controllers").exists():
            own = root / path.lstrip("/")
            for group in dict.fromkeys((own, own if own == root else own.parent)):
                given = group / "cgroup.subtree_control"
                found += [group] if given.exists() and "cpu" in given.read_text().split() else []
    return found


def _remove_old(parent: Path) -> None:
    """Groups of graders that were killed."""
    for path in parent.glob(f"{_NAME}*"):
        with contextlib.suppress(OSError, ValueError):
            if not Path(f"/proc/{int(path.name.removeprefix(_NAME).partition('-')[0])}").exists():
                path.rmdir()
