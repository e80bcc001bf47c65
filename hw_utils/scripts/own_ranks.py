"""A script that starts its ranks itself, by `mp.spawn` or a process each: rank k of the run plays its k-th process.

`python -m hw_utils run` and `launch` start the ranks, and so the script as often as there are ranks. Each of these
calls the function that one of the script's own processes would have called, with its arguments, in its own place; the
other processes are played by the other ranks.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

import torch.multiprocessing
import torch.multiprocessing.spawn
from torch.distributed import distributed_c10d as c10d

from hw_utils.core.source import is_students
from hw_utils.scripts.joining import Lent

_SPAWN = sys.modules["torch.multiprocessing.spawn"]  # the package's name for it is a function's
_HOLDERS = (torch.multiprocessing, _SPAWN)
_start_processes, _start = _SPAWN.start_processes, BaseProcess.start


class Over:
    """What is left of processes that ranks have played: they have ended well."""

    pid, returncode, sentinel = 0, 0, None

    def __init__(self, n_processes: int = 1) -> None:
        self.processes: list[BaseProcess] = []
        self.n_processes = n_processes

    def wait(self, timeout: float | None = None) -> int:
        return 0

    poll = wait

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        return True

    def pids(self) -> list[int]:
        return [os.getpid()] * self.n_processes

    def terminate(self) -> None:
        """Has ended."""

    kill = close = terminate


def install(find: Callable[[], Lent | None]) -> None:
    """From now on processes that scripts start are ranks, where `find()` gives a rank's that has no group yet."""

    def start_processes(fn, args=(), nprocs=1, join=True, *options, **named) -> Any:
        lent = find()
        if lent is None:
            return _start_processes(fn, args, nprocs, join, *options, **named)
        place = _place(lent, nprocs, getattr(fn, "__name__", "a function"))
        with _exit_is_an_end():
            fn(place, *args)
        return None if join else Over(nprocs)

    def start(self: BaseProcess) -> None:
        lent = find()
        if lent is None or not _is_a_rank(self, lent.n_started):
            _start(self)
            return
        place, lent.n_started = lent.n_started, (lent.n_started + 1) % lent.world_size
        self._popen = Over()
        if place == lent.rank:
            with _exit_is_an_end():
                self.run()

    for module in _HOLDERS:
        module.start_processes = start_processes
    BaseProcess.start = start


@contextmanager
def installed(find: Callable[[], Lent | None]) -> Iterator[None]:
    """`install`, for a while."""
    before = _SPAWN.start_processes, BaseProcess.start
    install(find)
    try:
        yield
    finally:
        for module in _HOLDERS:
            module.start_processes = before[0]
        BaseProcess.start = before[1]


def _place(lent: Lent, n_processes: int, name: str) -> int:
    """Which of these processes the rank plays: of all ranks' or, where the script runs once a host, of its host's."""
    if n_processes == lent.world_size:
        return lent.rank
    if str(n_processes) == os.environ.get("LOCAL_WORLD_SIZE"):
        return int(os.environ["LOCAL_RANK"])
    raise ValueError(
        f"the script starts {n_processes} processes for {name}, and this run has {lent.world_size} ranks, each of "
        "which plays one process that the script starts before init_process_group. Next step: "
        f"--ranks {n_processes}, or let the script start {lent.world_size}"
    )


def _is_a_rank(process: BaseProcess, place: int) -> bool:
    """A function of the program's own that is told its number: no worker of a DataLoader or of a pool."""
    code = getattr(process._target, "__code__", None)
    given = (*process._args, *process._kwargs.values())
    return code is not None and is_students(code.co_filename) and any(type(n) is int and n == place for n in given)


@contextmanager
def _exit_is_an_end() -> Iterator[None]:
    """`sys.exit(0)` ends a process, and here the function that was called in its place."""
    with contextlib.suppress(_GoodEnd):
        try:
            yield
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
            raise _GoodEnd from None


class _GoodEnd(Exception):
    pass


def has_no_group(lent: Lent) -> bool:
    """Whether the rank runs a script that has made no process group, or has destroyed it."""
    return lent.is_scripts and c10d.GroupMember.WORLD is None
