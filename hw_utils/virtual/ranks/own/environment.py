"""`os.environ` of virtual ranks: each has its own, with what torchrun would tell it (RANK, WORLD_SIZE, ...)."""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

from hw_utils.scripts.script import environment

MASTER_PORT = 29500  # torchrun's own; nothing listens there: ranks meet without one


class _OfRank(MutableMapping):
    """What lies behind `os.environ`: every access goes to the running rank's dictionary, made when it first looks."""

    def __init__(self, engine, data: dict[bytes, bytes], encode, ranks_per_host: int | None) -> None:
        self.engine, self.data, self.encode, self.ranks_per_host = engine, data, encode, ranks_per_host
        self.ranks: dict[int, dict[bytes, bytes]] = {}
        self.changed: set[bytes] = set()  # variables of which the C library has one for all

    def _own(self) -> dict[bytes, bytes]:
        if not self.engine.carries():
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


@contextmanager
def own_environment(engine, ranks_per_host: int | None) -> Iterator[None]:
    """While a simulation runs, what a rank writes into `os.environ` is read by that rank alone."""
    data = os.environ._data
    of_rank = os.environ._data = _OfRank(engine, data, os.environ.encodekey, ranks_per_host)
    try:
        yield
    finally:
        os.environ._data = data
        for key in of_rank.changed:  # the C library's copy
            if key in data:
                os.putenv(key, data[key])
            else:
                os.unsetenv(key)
