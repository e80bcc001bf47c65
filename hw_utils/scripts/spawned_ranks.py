"""A script that starts its ranks itself, by `mp.spawn` or a process each: rank k of the run plays its k-th process.

`python -m hw_utils run` and `launch` start the ranks, and so the script as often as there are ranks. Each of these
calls the function that one of the script's own processes would have called, with its arguments, in its own place; the
other processes are played by the other ranks. What the script would share with these processes it has once a rank, and
so gives them in vain: that is refused.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from multiprocessing.managers import BaseManager, BaseProxy
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue, SimpleQueue
from multiprocessing.sharedctypes import SynchronizedBase
from typing import Any

import torch
import torch.multiprocessing
import torch.multiprocessing.spawn
from torch.distributed import distributed_c10d as c10d

from hw_utils.core.calls.patched import patched
from hw_utils.core.source.students_files import is_students
from hw_utils.scripts.process_group_setup import Lent
from hw_utils.scripts.torchrun_script import exit_is_an_end

_SPAWN = sys.modules["torch.multiprocessing.spawn"]  # the package's name for it is a function's
_HOLDERS = (torch.multiprocessing, _SPAWN)
_start_processes, _start = _SPAWN.start_processes, BaseProcess.start


class Played:
    """In place of a process, or of several, that ranks have played: it has ended well."""

    returncode, sentinel = 0, None

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.processes: list[BaseProcess] = []

    def wait(self, timeout: float | None = None) -> int:
        return 0

    poll = wait

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        return True

    def pids(self) -> list[int]:
        return []

    def terminate(self) -> None:
        """Has ended."""

    kill = close = terminate


def _replacements(find: Callable[[], Lent | None]) -> list[tuple[Any, str, Callable]]:
    def start_processes(fn, args=(), nprocs=1, join=True, *options, **named) -> Any:
        lent = find()
        if lent is None:
            return _start_processes(fn, args, nprocs, join, *options, **named)
        _refuse_shared(lent, args)
        place = _place(lent, nprocs, getattr(fn, "__name__", "a function"))
        _play(fn, place, *args)
        return None if join else Played()

    def start(self: BaseProcess) -> None:
        lent = find()
        if lent is None or not _is_a_rank(self, lent.n_started):
            _start(self)
            return
        _refuse_shared(lent, (self._args, self._kwargs))
        place, lent.n_started = lent.n_started, (lent.n_started + 1) % lent.world_size
        self._popen = Played()
        if place == lent.rank:
            _play(self.run)

    return [*((module, "start_processes", start_processes) for module in _HOLDERS), (BaseProcess, "start", start)]


def install(find: Callable[[], Lent | None]) -> None:
    """From now on processes that scripts start are ranks, where `find()` gives a rank's that has no group yet."""
    for place, name, function in _replacements(find):
        setattr(place, name, function)


@contextmanager
def installed(find: Callable[[], Lent | None]) -> Iterator[None]:
    """`install`, for a while."""
    with ExitStack() as stack:
        for place, name, function in _replacements(find):
            stack.enter_context(patched(place, name, function))
        yield


def _play(function: Callable, *args: Any) -> None:
    """The life of a process: its group ends with it, however it ends."""
    try:
        with exit_is_an_end():
            function(*args)
    finally:
        if c10d.GroupMember.WORLD is not None:
            c10d.destroy_process_group()


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


_SHARED = (
    ((Queue, SimpleQueue), "a Queue"), ((Connection,), "the end of a Pipe"), ((SynchronizedBase,), "a Value or Array"),
    ((BaseManager, BaseProxy), "a Manager or what it keeps"),
)  # fmt: skip
_MOST_LEVELS = 4


def _refuse_shared(lent: Lent, arguments: Any) -> None:
    """Raises ValueError if there is something in the arguments that a script and its processes would share."""
    if lent.world_size > 1 and (name := _shared_in(arguments)):
        raise ValueError(
            f"the script gives {name} to the processes that it starts, and shares it with none of them: in this run "
            f"each of {lent.world_size} ranks runs the script from its first line, with one of its own. Next step: "
            "bring results together inside the ranks (dist.gather_object, dist.all_reduce), or let each write a file"
        )


def _shared_in(value: Any, level: int = 0) -> str:
    """What it is, or holds in lists and dictionaries; empty if it is nothing that processes share."""
    for kinds, name in _SHARED:
        if isinstance(value, kinds):
            return name
    if isinstance(value, torch.nn.Module):
        shared = any(_shared_in(tensor) for tensor in (*value.parameters(), *value.buffers()))
        return "a module in shared memory" if shared else ""
    if isinstance(value, torch.Tensor):
        is_plain = value.layout is torch.strided and value.device.type == "cpu"
        return "a tensor in shared memory" if is_plain and value.is_shared() else ""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return next(filter(None, (_shared_in(part, level + 1) for part in parts)), "") if level < _MOST_LEVELS else ""


def _is_a_rank(process: BaseProcess, place: int) -> bool:
    """A function of the program's own that is told its number: no worker of a DataLoader or of a pool."""
    code = getattr(process._target, "__code__", None)
    given = (*process._args, *process._kwargs.values())
    return code is not None and is_students(code.co_filename) and any(type(n) is int and n == place for n in given)


def has_no_group(lent: Lent) -> bool:
    """Whether the rank runs a script that has made no process group, or has destroyed it."""
    return lent.is_scripts and c10d.GroupMember.WORLD is None
