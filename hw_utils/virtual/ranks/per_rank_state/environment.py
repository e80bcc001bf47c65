"""`os.environ` of virtual ranks: each has its own, with what torchrun would tell it (RANK, WORLD_SIZE, ...).

A program that a rank starts inherits the C library's variables, which are the process's. So they are made the running
rank's right before: `subprocess`, multiprocessing's "spawn" and `os.system` hand them on.
"""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
from collections.abc import Iterator, MutableMapping
from contextlib import ExitStack, contextmanager

from hw_utils.core.calls.patched import patched
from hw_utils.scripts.torchrun_script import environment

MASTER_PORT = 29500  # torchrun's own; nothing listens there: ranks meet without one
_STARTS = [
    (os, "system"),
    (subprocess, "_fork_exec"),  # a name of its own from Python 3.11 on
    *([(importlib.import_module("_posixsubprocess"), "fork_exec")] if os.name == "posix" else []),
]


class _OfRank(MutableMapping):
    """What lies behind `os.environ`: every access goes to the running rank's dictionary, made when it first looks."""

    def __init__(self, engine, data: dict[bytes, bytes], encode, ranks_per_host: int | None) -> None:
        self.engine, self.data, self.encode, self.ranks_per_host = engine, data, encode, ranks_per_host
        self.ranks: dict[int, dict[bytes, bytes]] = {}
        self.changed: set[bytes] = set()  # variables of which the C library has one for all

    def _own(self) -> dict[bytes, bytes]:
        if not self.engine.threads.carries():
            return self.data
        rank, size = self.engine.rank, self.engine.world_size
        if rank not in self.ranks:
            told = environment(rank, size, MASTER_PORT, self.ranks_per_host) if rank < size else {}
            self.ranks[rank] = {**self.data, **{self.encode(k): self.encode(v) for k, v in told.items()}}
        return self.ranks[rank]

    def __getitem__(self, key: bytes) -> bytes:
        return self._own()[key]

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self.changed.add(key)
        self._own()[key] = value

    def __delitem__(self, key: bytes) -> None:
        self.changed.add(key)
        del self._own()[key]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._own())

    def __len__(self) -> int:
        return len(self._own())

    def hand_on(self) -> None:
        """Makes the C library's variables those of the running rank."""
        own = self._own()
        self.changed |= {key for key, value in own.items() if self.data.get(key) != value}
        for key in self.changed:
            _tell_c_library(key, own)

    def handing_on(self, start):
        @functools.wraps(start)
        def starting(*args, **options):
            self.hand_on()
            return start(*args, **options)

        return starting


def _tell_c_library(key: bytes, variables: MutableMapping) -> None:
    if key in variables:
        os.putenv(key, variables[key])
    else:
        os.unsetenv(key)


@contextmanager
def own_environment(engine, ranks_per_host: int | None) -> Iterator[None]:
    """While a simulation runs, what a rank writes into `os.environ` is read by it and the programs it starts alone."""
    data = os.environ._data
    of_rank = os.environ._data = _OfRank(engine, data, os.environ.encodekey, ranks_per_host)
    try:
        with ExitStack() as starts:
            for module, name in _STARTS:
                if hasattr(module, name):
                    starts.enter_context(patched(module, name, of_rank.handing_on(getattr(module, name))))
            yield
    finally:
        os.environ._data = data
        for key in of_rank.changed:
            _tell_c_library(key, data)
