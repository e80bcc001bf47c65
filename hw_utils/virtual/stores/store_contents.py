"""What is in the key-value stores of virtual ranks. A get lets others run until its key is set."""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import Any

import torch.distributed as dist


class _Reading:
    """What a rank stands in while a key is not set."""

    row = -1

    def __init__(self, rank: int, site: int, keys: list[str], everybody: int) -> None:
        self.rank, self.site, self.keys, self.everybody = rank, site, keys, everybody
        self.name = f'store.get("{keys[0]}")'

    def waits_for(self) -> tuple[int, ...]:
        return tuple(r for r in range(self.everybody) if r != self.rank)


class Stores:
    """All stores of a run, by name; what a rank asks takes no virtual time."""

    def __init__(self, engine) -> None:
        self.engine = engine
        self.data: dict[str, dict[str, bytes]] = {}
        self.queues: dict[tuple[str, str], deque[bytes]] = {}
        self.readers: dict[str, list[_Reading]] = {}
        self.openings: dict = {}  # of files, by store
        self.next_hash_store = count(1).__next__

    def ask(self, name: str, method: str, arguments: tuple, site: int) -> Any:
        """The answer to the running rank, which stands still until there is one.

        Raises:
            DistStoreError: the keys are not set `timeout_s` later, or when nobody can set them any more.
        """
        self.engine.compute.now()
        self.engine.keep_up(self.engine.rank)
        try:
            return getattr(self, method)(name, *arguments, site=site)
        finally:
            self.engine.compute.resume()

    def set(self, name: str, key: str, value: bytes, *, site: int) -> None:
        self.data.setdefault(name, {})[key] = value
        self._wake(name)

    def compare_set(self, name: str, key: str, expected: bytes, desired: bytes, *, site: int) -> bytes:
        data = self.data.setdefault(name, {})
        if key not in data and expected:
            return expected
        if data.get(key, b"") == expected:
            data[key] = desired
            self._wake(name)
        return data[key]

    def add(self, name: str, key: str, amount: int, *, site: int) -> int:
        data = self.data.setdefault(name, {})
        value = int(data.get(key, b"0")) + amount
        data[key] = str(value).encode()
        self._wake(name)
        return value

    def append(self, name: str, key: str, value: bytes, *, site: int) -> None:
        data = self.data.setdefault(name, {})
        data[key] = data.get(key, b"") + value
        self._wake(name)

    def get(self, name: str, key: str, timeout_s: float | None, *, site: int) -> bytes:
        self.wait(name, [key], timeout_s, site=site)
        return self.data[name][key]

    def wait(self, name: str, keys: list[str], timeout_s: float | None, *, site: int) -> None:
        engine = self.engine
        rank = engine.rank
        while missing := [key for key in keys if not self._has(name, key)]:
            reading = _Reading(rank, site, missing, engine.world_size)
            self.readers.setdefault(name, []).append(reading)
            if not engine.block_for(rank, reading, timeout_s):
                self.readers[name].remove(reading)
                late = ", ".join(f"/{key}" for key in missing)
                raise dist.DistStoreError(f"wait timeout after {timeout_s * 1000:g}ms, keys: {late}")

    def check(self, name: str, keys: list[str], *, site: int) -> bool:
        return all(self._has(name, key) for key in keys)

    def _has(self, name: str, key: str) -> bool:
        return key in self.data.get(name, {}) or bool(self.queues.get((name, key)))

    def queue_push(self, name: str, key: str, value: bytes, *, site: int) -> None:
        self.queues.setdefault((name, key), deque()).append(value)
        self._wake(name)

    def queue_pop(self, name: str, key: str, waits: bool, timeout_s: float | None, *, site: int) -> bytes:
        while not self.queue_len(name, key, site=site):
            if not waits:
                raise dist.QueueEmptyError("queue is empty")
            self.wait(name, [key], timeout_s, site=site)  # another rank may take it before this one goes on
        return self.queues[name, key].popleft()

    def queue_len(self, name: str, key: str, *, site: int) -> int:
        return len(self.queues.get((name, key), ()))

    def delete_key(self, name: str, key: str, *, site: int) -> bool:
        return self.data.setdefault(name, {}).pop(key, None) is not None

    def num_keys(self, name: str, *, site: int) -> int:
        return len(self.data.get(name, {}))

    def list_keys(self, name: str, *, site: int) -> list[str]:
        return list(self.data.get(name, {}))

    def forget(self, name: str) -> None:
        """The store is gone, with all that is in it."""
        self.data.pop(name, None)
        for key in [key for key in self.queues if key[0] == name]:
            del self.queues[key]

    def _wake(self, name: str) -> None:
        left = []
        for reading in self.readers.get(name, []):
            if all(self._has(name, key) for key in reading.keys):
                self.engine.agenda.wake(reading.rank, self.engine.clock[self.engine.rank])
            else:
                left.append(reading)
        self.readers[name] = left
