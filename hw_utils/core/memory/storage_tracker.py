"""Follows the storages that ranks allocate, from the operation that returns one to the moment when torch frees it.

As torch.distributed's own memory tracker does: a dispatch mode sees every operation's outputs, a weak reference to each
storage tells when it is gone, `UntypedStorage.resize_` is watched. Whose a storage is, attribution.py tells later: its
record keeps the storage's account, and the account's owner counts from its first byte.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from hw_utils.core.calls.dispatch import PLAIN, beneath_transforms
from hw_utils.core.memory.allocation_sites import NOBODY, Sites
from hw_utils.core.memory.device_out_of_memory import OutOfMemory
from hw_utils.core.memory.memory_timeline import RECORD
from hw_utils.core.memory.owners import ACTIVATIONS, GRADIENTS, OPTIMIZER, OTHER, OWNERS, PARAMETERS

_STRENGTH = (3, 3, 3, 2, 3, 1, 0)  # of an owner's claim: a stronger one counts, of equal ones the first
_graph_task = torch._C._current_graph_task_id
IN_NO_BACKWARD = -1
_STRIDED = torch.strided

_current: list[Watch] = []


def current() -> Watch | None:
    """The watch of the run that goes on in this process."""
    return _current[-1] if _current else None


class Account:
    """A storage's place in the books."""

    __slots__ = ("key", "n_bytes", "owner", "rank", "ref", "site")


class _Ref(weakref.ref):
    __slots__ = ("account",)


class Books:
    """What one rank has allocated and freed so far."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.changes: list[int] = []
        self.accounts: list[Account] = []
        self.n_bytes = 0
        self.candidates: dict[int, Account] = {}  # activations, if a backward pass finds them alive
        self.parameters: dict[int, weakref.ref] = {}
        self.optimizer: Any = None  # whose step is under way
        self.is_over = False

    def records(self) -> np.ndarray:
        found = np.zeros(len(self.times), RECORD)
        found["time_s"], found["n_bytes"] = self.times, self.changes
        found["owner"] = [account.owner for account in self.accounts]
        found["site"] = [account.site for account in self.accounts]
        return found


class Watch:
    """The books of the ranks of this process.

    running: the rank that runs now. time_s: a rank's clock. capacity_bytes: what a rank may hold. forgive: is told the
    CPU seconds that the books themselves took, for a clock that would count them as the program's.
    """

    def __init__(
        self,
        ranks: Iterable[int],
        running: Callable[[], int],
        time_s: Callable[[int], float],
        *,
        capacity_bytes: int | None = None,
        forgive: Callable[[float], None] | None = None,
    ) -> None:
        self.books = {rank: Books() for rank in ranks}
        self.running, self.time_s, self.forgive = running, time_s, forgive
        self.capacity_bytes = capacity_bytes
        self.known: dict[int, Account] = {}
        self.sites = Sites()

    # what happens to storages

    def saw(self, func, args: tuple, kwargs: dict, out: Any) -> None:
        """An operation of the running rank has returned."""
        books = self.books.get(self.running())
        if books is None or books.is_over:
            return
        is_new = False
        for tensor in (out,) if _is_plain(out) else tensors_in(out):
            storage = tensor.untyped_storage()
            account = self.known.get(storage._cdata)
            if account is None:
                is_new |= self.begin(books, storage, sys._getframe(3))
            elif storage.nbytes() != account.n_bytes:
                self.change(books, account, storage.nbytes())
        if is_new and torch.is_grad_enabled():
            self._note_candidates(books, args, out)

    def begin(self, books: Books, storage, frame) -> bool:
        """A storage that nobody knew; whether it is the program's."""
        n_bytes = storage.nbytes()
        site = self.sites.of(frame) if n_bytes else NOBODY
        if site == NOBODY:
            return False
        account = Account()
        account.rank, account.site, account.owner, account.n_bytes = self.running(), site, OTHER, 0
        account.key = storage._cdata
        account.ref = _Ref(storage, self._end)
        account.ref.account = account
        self.known[account.key] = account
        self.change(books, account, n_bytes)
        return True

    def change(self, books: Books, account: Account, n_bytes: int) -> None:
        """A storage has grown or shrunk to `n_bytes`.

        Raises:
            OutOfMemory: the rank holds more than it may.
        """
        grown = n_bytes - account.n_bytes
        account.n_bytes = n_bytes
        books.n_bytes += grown
        now_s = self.time_s(account.rank)
        books.times.append(max(now_s, books.times[-1]) if books.times else now_s)
        books.changes.append(grown)
        books.accounts.append(account)
        if self.capacity_bytes is not None and grown > 0 and books.n_bytes > self.capacity_bytes:
            raise self._out_of_memory(account.rank, grown)

    def _end(self, ref: _Ref) -> None:
        """torch has freed a storage."""
        account = ref.account
        if self.known.get(account.key) is account:
            del self.known[account.key]
        books = self.books[account.rank]
        books.candidates.pop(account.key, None)
        if not books.is_over and account.n_bytes:
            self.change(books, account, 0)

    def resized(self, storage) -> None:
        """`storage.resize_` has been called, as FSDP2 frees and allocates."""
        books = self.books.get(self.running())
        account = self.known.get(storage._cdata)
        if books is None or books.is_over:
            return
        if account is None:
            self.begin(books, storage, sys._getframe(2))
        elif account.n_bytes != storage.nbytes():
            self.change(self.books[account.rank], account, storage.nbytes())

    def _out_of_memory(self, rank: int, asked_bytes: int) -> OutOfMemory:
        self.look_at_gradients(rank)
        if self.books[rank].optimizer is not None:
            self.claim(list(self.books[rank].optimizer.state.values()), OPTIMIZER)
        held: dict[str, int] = {}
        for account in list(self.known.values()):
            if account.rank == rank:
                is_candidate = account.key in self.books[rank].candidates
                owner = OWNERS[ACTIVATIONS if is_candidate and account.owner == OTHER else account.owner]
                held[owner] = held.get(owner, 0) + account.n_bytes
        return OutOfMemory(rank, asked_bytes, self.capacity_bytes, {k: n for k, n in held.items() if n})

    # whose they are

    def account_of(self, tensor: torch.Tensor) -> Account | None:
        return self.known.get(tensor.untyped_storage()._cdata)

    def claim(self, tensor: Any, owner: int) -> None:
        """`tensor`, or all in it, is held by `owner`."""
        for plain in tensors_in(tensor):
            account = self.account_of(plain)
            if account is not None and _STRENGTH[owner] > _STRENGTH[account.owner]:
                account.owner = owner

    def own(self, owner: str, tensors: Any) -> None:
        """The same in words, and stronger than what was found so far."""
        for plain in tensors_in(tensors):
            account = self.account_of(plain)
            if account is not None:
                account.owner = OWNERS.index(owner)

    def note_parameter(self, parameter: torch.nn.Parameter) -> None:
        """A module or an optimizer holds it."""
        books = self.books.get(self.running())
        if books is None or id(parameter) in books.parameters or is_lazy(parameter):
            return
        key, parameters = id(parameter), books.parameters
        parameters[key] = weakref.ref(parameter, lambda _: parameters.pop(key, None))
        self.claim(parameter, PARAMETERS)

    @contextmanager
    def let_go(self, *tensors: torch.Tensor) -> Iterator[None]:
        """Within, the books hold no reference to these, which torch swaps with others only if nobody does."""
        books = self.books.get(self.running())
        held = [t for t in tensors if books is not None and books.parameters.pop(id(t), None) is not None]
        try:
            yield
        finally:
            for tensor in held:
                self.note_parameter(tensor)

    def note_candidate(self, tensor: Any) -> None:
        """It is part of a graph: if a backward pass finds it alive, or is under way, it is an activation."""
        for plain in tensors_in(tensor):
            account = self.account_of(plain)
            if account is None or account.owner != OTHER:
                continue
            if _graph_task() != IN_NO_BACKWARD:
                account.owner = ACTIVATIONS
            else:
                self.books[account.rank].candidates[account.key] = account

    def _note_candidates(self, books: Books, args: tuple, out: Any) -> None:
        is_in_graph = False
        for tensor in tensors_in(args):
            if not tensor.requires_grad:
                continue
            is_in_graph = True
            whole = tensor if tensor._base is None else tensor._base
            if type(whole) is torch.nn.Parameter:
                self.note_parameter(whole)
            else:
                self.note_candidate(tensor)
        if is_in_graph:
            self.note_candidate(out)

    def backward_begins(self) -> None:
        books = self.books.get(self.running())
        if books is not None:
            self._name_activations(books)

    def _name_activations(self, books: Books) -> None:
        for account in list(books.candidates.values()):
            if _STRENGTH[ACTIVATIONS] > _STRENGTH[account.owner]:
                account.owner = ACTIVATIONS

    def forget_candidates(self) -> None:
        books = self.books.get(self.running())
        if books is not None:
            books.candidates.clear()

    def step_begins(self, optimizer: torch.optim.Optimizer) -> None:
        books = self.books.get(self.running())
        if books is not None:
            books.optimizer = optimizer

    def step_ends(self, optimizer: torch.optim.Optimizer) -> None:
        books = self.books.get(self.running())
        if books is not None:
            books.optimizer = None
            self.claim(list(optimizer.state.values()), OPTIMIZER)

    def look_at_gradients(self, rank: int | None = None) -> None:
        """What the rank's parameters hold as `.grad` now."""
        books = self.books.get(self.running() if rank is None else rank)
        for ref in list(books.parameters.values()) if books is not None else ():
            parameter = ref()
            if parameter is not None and parameter.grad is not None:
                self.claim(parameter.grad, GRADIENTS)

    # a run

    def end(self, rank: int, *, is_early: bool = False) -> None:
        """The rank's worker is over: what is freed from now on, as its frames go, is no part of the run.

        is_early: it did not return; what waited for a backward pass is an activation.
        """
        books = self.books[rank]
        if books.is_over:
            return
        self.look_at_gradients(rank)
        if is_early:
            self._name_activations(books)
        books.is_over = True

    def parts(self) -> list[dict[str, Any]]:
        """What `Memory.of` takes."""
        sites = self.sites.sites
        return [{"rank": r, "records": books.records(), "sites": sites} for r, books in self.books.items()]


def _is_plain(value: Any) -> bool:
    """Whether it is a tensor with memory, and nothing else: the usual case."""
    return type(value) in PLAIN and value.layout is _STRIDED and not value.is_meta


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors with memory in a tensor or in lists, tuples and dicts of them; those inside a wrapper for itself."""
    if _is_plain(value):
        yield beneath_transforms(value)
    elif isinstance(value, torch.Tensor):
        if type(value) not in PLAIN and is_traceable_wrapper_subclass(value):
            for name in value.__tensor_flatten__()[0]:
                yield from tensors_in(getattr(value, name))
        elif type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            return  # a FakeTensor or another one that stands for what is elsewhere, or nowhere
        elif is_lazy(value):
            return
        elif value.layout is torch.strided and value.device.type != "meta":
            yield value
        elif value.layout is torch.sparse_coo:
            yield from tensors_in((value._indices(), value._values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
