"""Key-value stores of virtual ranks: the default one, TCPStore, FileStore. A get lets others run until it is set."""

from __future__ import annotations

import socket
import sys
import weakref
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

DEFAULT = "default"  # the name of the default group's store
_PrefixStore = dist.PrefixStore
_FIRST_PORT = 1 << 15
_CONNECT_S = 300.0  # that a client waits for its server, as torch's
_UNUSED_REFERENCES = 4  # to a store that only `_kept` has, while a comprehension looks at it
_TORCHS_TIMEOUT = dist.HashStore().timeout  # of a store that nobody has given one


class VirtualStore(dist.Store):
    """One rank's handle of a store; `prefix` stands before every key that goes through it."""

    n_hidden = 0  # keys of the real one's own, which it counts
    is_kept = True  # until the run is over
    waits = "wait"  # the word for it in what it says of a key that does not come

    def __init__(self, engine, name: str, timeout_s: float | None = None, prefix: str = "") -> None:
        super().__init__()
        self.engine, self.name, self.prefix = engine, name, prefix
        if timeout_s is not None:
            self.set_timeout(timedelta(seconds=timeout_s))
        if self.is_kept:
            _kept.append(self)

    @property
    def timeout_s(self) -> float | None:
        """Seconds that a key may take; C++ code sets them without a word to Python. None for ever: torch's default."""
        timeout = self.timeout
        return None if timeout == _TORCHS_TIMEOUT else timeout.total_seconds()

    def _ask(self, method: str, *arguments) -> Any:
        if arguments and self.prefix:
            first, *more = arguments
            key = self.prefix + first if isinstance(first, str) else [self.prefix + key for key in first]
            arguments = key, *more
        frame = sys._getframe(2)
        try:
            return self.engine.stores.ask(self.name, method, arguments, self.engine.places.of(frame))
        except dist.DistStoreError as error:
            raise type(error)(str(error).replace("wait", self.waits, 1)) from None

    def set(self, key: str, value) -> None:
        self._ask("set", key, _bytes(value))

    def get(self, key: str) -> bytes:
        return self._ask("get", key, self.timeout_s)

    def add(self, key: str, amount: int) -> int:
        return self._ask("add", key, amount)

    def append(self, key: str, value) -> None:
        self._ask("append", key, _bytes(value))

    def compare_set(self, key: str, expected, desired) -> bytes:
        return self._ask("compare_set", key, _bytes(expected), _bytes(desired))

    def wait(self, keys, timeout: timedelta | None = None) -> None:
        self._ask("wait", list(keys), self.timeout_s if timeout is None else timeout.total_seconds())

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        """Waits until so many have come to it."""
        self._arrive(key, world_size)
        self.wait([f"{key}/open"], timeout)

    def _arrive(self, key: str, world_size: int) -> None:
        folding = self.engine.folding
        n_come = self.add(f"{key}/come", 1 if folding is None else folding.fold.size)
        if n_come == world_size:
            self.set(f"{key}/open", b"1")

    def check(self, keys) -> bool:
        return self._ask("check", list(keys))

    def delete_key(self, key: str) -> bool:
        return self._ask("delete_key", key)

    def num_keys(self) -> int:
        return self._ask("num_keys") + self.n_hidden

    def list_keys(self) -> list[str]:
        return [key.removeprefix(self.prefix) for key in self._ask("list_keys") if key.startswith(self.prefix)]

    def multi_get(self, keys) -> list[bytes]:
        return [self._ask("get", key, self.timeout_s) for key in keys]

    def multi_set(self, keys, values) -> None:
        for key, value in zip(keys, values):
            self._ask("set", key, _bytes(value))

    def queue_push(self, key: str, value) -> None:
        self._ask("queue_push", key, _bytes(value))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        return self._ask("queue_pop", key, block, self.timeout_s)

    def queue_len(self, key: str) -> int:
        return self._ask("queue_len", key)

    def has_extended_api(self) -> bool:
        return True

    def clone(self) -> VirtualStore:
        return VirtualStore(self.engine, self.name, self.timeout_s, self.prefix)


def _bytes(value) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _seconds(timeout) -> float | None:
    return timeout.total_seconds() if isinstance(timeout, timedelta) else None


class _Kind(type(dist.Store)):
    """Torch's own, which modules made before the run may still make, are of the kind that `dist.TCPStore` names."""

    def __instancecheck__(cls, store) -> bool:
        return super().__instancecheck__(store) or isinstance(store, cls.torchs)


class _VirtualTCPStore(VirtualStore, metaclass=_Kind):
    """torch.distributed.TCPStore: one store a host name and port, and no socket."""

    torchs = dist.TCPStore

    def __init__(
        self, host_name, port, world_size=None, is_master=False, timeout=None, wait_for_workers=True,
        multi_tenant=False, master_listen_fd=None, use_libuv=True,
    ) -> None:  # fmt: skip
        if world_size == 0:
            raise ValueError("TCPStore world size cannot be 0")
        if use_libuv and master_listen_fd is not None:
            raise NotImplementedError("The libuv TCPStore backend does not support initialization with an listen fd")
        if port == 0 and is_master:  # whichever is free
            port = _FIRST_PORT + VirtualStore(_current(), "ports").add("taken", 1)
        host = "localhost" if host_name in ("127.0.0.1", "::1", "0.0.0.0", socket.gethostname()) else host_name
        super().__init__(_current(), f"tcp://{host}:{port}", _seconds(timeout))
        self.host, self.port, self.libuvBackend = host_name, port, use_libuv
        self.serves, self.is_shared = is_master, multi_tenant
        doors = VirtualStore(self.engine, f"{self.name} doors", self.timeout_s)
        if is_master:
            self._listen(doors)
        else:
            self._connect(doors)
        if world_size and world_size > 0 and wait_for_workers:
            self.n_hidden = 1  # how many have come
            doors._arrive("made", world_size)
            if is_master:
                self._await_all(doors, world_size)

    def _listen(self, doors: VirtualStore) -> None:
        others = [s for s in _kept if getattr(s, "serves", False) and s.name == self.name and s is not self]
        in_use = [s for s in others if sys.getrefcount(s) > _UNUSED_REFERENCES and not (s.is_shared and self.is_shared)]
        if in_use:
            raise dist.DistNetworkError(
                "The server socket has failed to listen on any local network address. "
                f"port: {self.port}, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
            )
        doors.set("served", b"1")

    def _connect(self, doors: VirtualStore) -> None:
        """Waits until there is a server."""
        limit_s = _CONNECT_S if self.timeout_s is None else self.timeout_s
        try:
            doors.wait(["served"], timedelta(seconds=limit_s))
        except dist.DistStoreError:
            raise dist.DistNetworkError(
                f"The client socket has timed out after {limit_s * 1000:g}ms while trying to connect to "
                f"({self.host}, {self.port})."
            ) from None

    def _await_all(self, doors: VirtualStore, world_size: int) -> None:
        """The server's waits until all have made theirs."""
        try:
            doors.wait(["made/open"])
        except dist.DistStoreError:
            n_come = doors.get("made/come").decode()
            raise dist.DistStoreError(
                f"Timed out after {self.timeout_s:g} seconds waiting for clients. {n_come}/{world_size} clients joined."
            ) from None


class _VirtualFileStore(VirtualStore, metaclass=_Kind):
    """torch.distributed.FileStore: one store a path."""

    torchs = dist.FileStore
    n_hidden = 1  # how many have it open
    waits = "Wait"

    is_kept = False

    def __init__(self, file_name, world_size=-1) -> None:
        super().__init__(_current(), f"file://{file_name}")
        self.path = file_name
        stores = self.engine.stores
        openings = stores.openings.setdefault(self.name, _Openings())
        openings.n_open += 1
        weakref.finalize(self, openings.close, stores, self.name, world_size).atexit = False


class _Openings:
    """How many handles of a file's store there are, and were: the last one of all ends it.

    A program that has made the file has a process a rank, which knows the handles of its own only.
    """

    n_open = n_closed = 0

    def close(self, stores, name: str, world_size: int) -> None:
        self.n_open, self.n_closed = self.n_open - 1, self.n_closed + 1
        if self.n_open == 0 and 0 <= world_size <= self.n_closed:
            self.n_closed = 0
            stores.forget(name)


class _VirtualPrefixStore(VirtualStore, metaclass=_Kind):
    """torch.distributed.PrefixStore of a virtual store: C++ must not stand between a rank that waits and the engine."""

    torchs = dist.PrefixStore

    def __new__(cls, prefix, store):
        if store is None:
            raise ValueError("a PrefixStore needs a store")
        return super().__new__(cls) if isinstance(store, VirtualStore) else _PrefixStore(prefix, store)

    def __init__(self, prefix, store) -> None:
        super().__init__(store.engine, store.name, store.timeout_s, f"{store.prefix}{prefix}/")
        self.underlying_store, self.n_hidden, self.waits = store, store.n_hidden, store.waits

    @property
    def _underlying_non_prefix_store(self) -> VirtualStore:
        return getattr(self.underlying_store, "_underlying_non_prefix_store", self.underlying_store)


class _VirtualHashStore(VirtualStore, metaclass=_Kind):
    """torch.distributed.HashStore: of one rank only, as in a process of its own."""

    torchs = dist.HashStore
    waits = "Wait"

    def __init__(self) -> None:
        engine = _current()
        super().__init__(engine, f"hash {engine.rank} {engine.stores.next_hash_store()}")


for _kind in (_VirtualTCPStore, _VirtualFileStore, _VirtualPrefixStore, _VirtualHashStore):
    _kind.__name__ = _kind.torchs.__name__  # as programs log it


def _store_collectives(original: type) -> type:
    """torch's collectives over a store, whose C++ code calls the store back: a greenlet could not leave it."""

    class StoreCollectives(original):
        def __init__(self, store, *arguments, **named) -> None:
            if isinstance(store, VirtualStore) and store.engine.carrier.is_shared:
                store.engine.ending.need("threads", "C++ code waits in a store")
            super().__init__(store, *arguments, **named)

    return StoreCollectives


_engines: list = []
_kept: list[VirtualStore] = []  # C++ code may hold one, whose methods end with the Python object


def _current():
    return _engines[-1]


@contextmanager
def virtual_stores(engine):
    """While a simulation runs, the stores that a program makes are virtual ones."""
    kinds = {
        "TCPStore": _VirtualTCPStore, "FileStore": _VirtualFileStore, "HashStore": _VirtualHashStore,
        "PrefixStore": _VirtualPrefixStore,
    }  # fmt: skip
    if hasattr(dist, "_StoreCollectives"):  # torch 2.15 has none
        kinds["_StoreCollectives"] = _store_collectives(dist._StoreCollectives)
    meeting = sys.modules["torch.distributed.rendezvous"]  # rendezvous("env://") makes its store from a name of its own
    modules = (dist, c10d, meeting, torch._C._distributed_c10d)  # a cell's `from torch.distributed import TCPStore`
    before = [(module, name, getattr(module, name)) for module in modules for name in kinds if hasattr(module, name)]
    _engines.append(engine)
    try:
        for module, name, _ in before:
            setattr(module, name, kinds[name])
        yield
    finally:
        _engines.pop()
        if not _engines:
            _kept.clear()
        for module, name, original in before:
            setattr(module, name, original)
