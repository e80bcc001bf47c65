"""An equal share of the processors for each sandbox, however many processes run in it, and a bound on its memory.

By a control group of its own where this user may make one (as root, or where a service manager handed one over).
Elsewhere by the kernel's automatic groups: a sandbox is one session, and cannot begin another (see call_filter.py);
and by counting (see memory_in_use.py).
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
    """Control groups with the usual weight and a bound on memory; `path` and `memory` are None where there can be none.

    With version 2 they are one group.
    """

    def __init__(self, root: Path = ROOT, told: str | None = None, memory_bytes: int = 0) -> None:
        """told: what /proc/self/cgroup says, where it is not this process's own. memory_bytes: 0 is no bound."""
        told = Path("/proc/self/cgroup").read_text() if told is None else told
        self.name = f"{_NAME}{os.getpid()}-{time.monotonic_ns()}"
        self.path = self._made(_parents(root, told, "cpu"))
        self.memory = self._made(_parents(root, told, "memory")) if memory_bytes else None
        if self.memory is not None and not _bound(self.memory, memory_bytes):
            self.memory = None

    def _made(self, parents: list[Path]) -> Path | None:
        for parent in parents:
            _remove_old(parent)
            with contextlib.suppress(OSError):  # not ours to make: the next one
                (parent / self.name).mkdir(exist_ok=True)
                return parent / self.name
        return None

    @property
    def _paths(self) -> list[Path]:
        return list(dict.fromkeys(path for path in (self.path, self.memory) if path is not None))

    @property
    def nice(self) -> int:
        """What a student's processes add to their nice value, so that the warm parent, in the same group, can end them.

        Nothing without a group: they would give way to everything on the machine.
        """
        return 0 if self.path is None else LOWEST

    @property
    def n_out_of_memory(self) -> int:
        """How many processes of the group the kernel has ended for want of memory."""
        for name in ("memory.events", "memory.oom_control") if self.memory else ():
            with contextlib.suppress(OSError):
                counts = dict(line.split() for line in (self.memory / name).read_text().splitlines())
                return int(counts.get("oom_kill", 0))
        return 0

    def command(self, command: list[str]) -> list[str]:
        """The command, so that it and all that it starts are in the groups from the beginning."""
        for path in self._paths:
            command = ["/bin/sh", "-c", 'echo 0 > "$0/cgroup.procs"; exec "$@"', str(path), *command]
        return command

    def close(self) -> None:
        """Removes the groups once their processes are gone."""
        deadline = time.monotonic() + _GONE_S
        for path in self._paths:
            while _stays(path) and time.monotonic() < deadline:
                time.sleep(0.01)
        self.path = self.memory = None  # if one stayed, the next grader removes it


def _stays(path: Path) -> bool:
    try:
        path.rmdir()
    except FileNotFoundError:
        return False
    except OSError:  # a process is still going
        return True
    return False


def _bound(group: Path, n_bytes: int) -> bool:
    """Sets the most memory of a group, swapped out or not; whether it could be set."""
    for most, swap, no_swap in (("memory.max", "memory.swap.max", 0),
                                ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", n_bytes)):  # fmt: skip
        if (group / most).exists():
            with contextlib.suppress(OSError):
                (group / most).write_text(str(n_bytes))
                with contextlib.suppress(OSError):  # a kernel that does not count it
                    (group / swap).write_text(str(no_swap))
                return True
    return False


def _parents(root: Path, told: str, what: str) -> list[Path]:
    """Groups below which one with a share of "cpu" or "memory" can be made: this process's own, then the one above."""
    found = []
    for line in told.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers:
            own = root / controllers / path.lstrip("/")
            found += [own] if what in controllers.split(",") and own.is_dir() else []
        elif (root / "cgroup.controllers").exists():
            own = root / path.lstrip("/")
            for group in dict.fromkeys((own, own if own == root else own.parent)):
                given = group / "cgroup.subtree_control"
                found += [group] if given.exists() and what in given.read_text().split() else []
    return found


def _remove_old(parent: Path) -> None:
    """Groups of graders that were killed."""
    for path in parent.glob(f"{_NAME}*"):
        with contextlib.suppress(OSError, ValueError):
            if not Path(f"/proc/{int(path.name.removeprefix(_NAME).partition('-')[0])}").exists():
                path.rmdir()
