"""torch builds the ledger's group wherever it would build gloo's, a rank's default group first."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from datetime import timedelta
from itertools import count
from typing import Any

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from hw_utils.core.calls import fingerprint
from hw_utils.core.calls.c10d_operations import Kernels
from hw_utils.core.calls.patched import patched
from hw_utils.gloo.group import BY_HAND, LedgerGroup
from hw_utils.gloo.ledger_buffer import Keeper
from hw_utils.gloo.shared_state import MAX_GROUPS, RUNNING, WAIT, Board, Publisher
from hw_utils.gloo.work import LedgerWork
from hw_utils.scripts import process_group_setup, spawned_ranks

MOST_BITS = 62  # of a whole number on the board
_LATE = ("Timeout waiting for key", "Wait timeout")  # what a store says of a key that nobody has set
_Gloo = c10d.ProcessGroupGloo


class _EitherGloo(type(LedgerGroup)):
    def __instancecheck__(cls, group) -> bool:
        return super().__instancecheck__(group) or isinstance(group, _Gloo)

    def __getattr__(cls, name: str) -> Any:
        """What gloo's own class has: options, devices."""
        return getattr(_Gloo, name)


class _Built(LedgerGroup, metaclass=_EitherGloo):
    """What torch builds and asks for by the name of gloo's: torch.distributed.rpc makes gloo's own, and is told so."""


class _ByHand(LedgerGroup, metaclass=_EitherGloo):
    """What a program builds by that name: who is in it, the members tell each other in its store."""

    def __init__(self, store, rank: int, size: int, *more, **named) -> None:
        super().__init__(store, rank, size, *more, **named)
        meeting = dist.PrefixStore("members", store)
        nth = meeting.add(f"of rank {rank}", 1)
        number = self.keeper.count_by_hand() if rank == 0 else 0
        meeting.set(f"group {nth}, rank {rank}", f"{self.keeper.rank} {number}")
        found = [meeting.get(f"group {nth}, rank {r}").split() for r in range(size)]
        self.ranks_by_hand = tuple(int(global_rank) for global_rank, _ in found)
        number = int(found[0][1])
        self._name, self.slot_by_hand = f"by hand {number}", MAX_GROUPS - number if number <= BY_HAND else MAX_GROUPS

    def __getattr__(self, name: str) -> Any:
        """What gloo's own has."""
        return getattr(self._inner, name)


def install(keeper: Keeper) -> None:
    """From now on torch builds a LedgerGroup where it would build gloo's, and so does the program."""
    LedgerGroup.keeper = keeper
    Kernels(LedgerGroup).install()
    c10d.ProcessGroupGloo, dist.ProcessGroupGloo = _Built, _ByHand
    c10d._ProcessGroupWrapper = fingerprint.around(LedgerGroup)
    dist.new_group = c10d.new_group = _announced(c10d.new_group)
    dist.destroy_process_group = c10d.destroy_process_group = _noting_count(c10d.destroy_process_group, keeper)


def _noting_count(destroy: Callable[..., None], keeper: Keeper) -> Callable[..., None]:
    """Torch numbers groups from 0 again once all were destroyed; on the board each has a place of its own."""

    @functools.wraps(destroy)
    def destroyed(group=None):
        counted, was_by_hand = c10d._world.group_count, bool(getattr(c10d._world.default_pg, "ranks_by_hand", ()))
        destroy(group)
        if c10d._world.group_count < counted and not was_by_hand:
            keeper.n_destroyed += counted
            keeper.n_worlds += 1

    return destroyed


def _as_bits(ranks: Iterable[int]) -> int:
    """A set of ranks; those of large worlds share bits."""
    bits = 0
    for rank in ranks:
        bits |= 1 << rank % MOST_BITS
    return bits


def _announced(new_group: Callable[..., Any]) -> Callable[..., Any]:
    """`new_group` is a collective call of all ranks too: published as one, though not written down."""

    @functools.wraps(new_group)
    def announced(ranks=None, *arguments, **named):
        world = c10d._get_default_group()
        if named.get("use_local_synchronization") or not isinstance(world, LedgerGroup):
            return new_group(ranks, *arguments, **named)
        mine = _as_bits(range(world.size()) if ranks is None else ranks)
        me = 1 << world.rank() % MOST_BITS

        def fit(rank: int, theirs: int) -> bool:  # two groups that neither shares with the other may differ
            return not (mine & 1 << rank % MOST_BITS or theirs & me)

        world.announce("new_group", mine, sys._getframe(1), fit)
        try:
            return new_group(ranks, *arguments, **named)
        finally:
            world.keeper.q[world.keeper.header + WAIT] = RUNNING

    return announced


def _take_rows_as_works(keeper: Keeper) -> None:
    """DistributedDataParallel's join() hands a work that Python has got on to C++, which takes real ones only."""
    hand_over = dist.Reducer._set_forward_pass_work_handle

    def taking(reducer, work, *more):
        return hand_over(reducer, keeper.cpp_works.hand(reducer, work) if isinstance(work, LedgerWork) else work, *more)

    dist.Reducer._set_forward_pass_work_handle = taking


def _say_late_as_torchrun() -> None:
    """A key that does not come is a DistStoreError, as of torchrun's own store; of a file's it is any RuntimeError."""
    for kind in (dist.FileStore, dist.PrefixStore):
        for name in ("get", "multi_get", "wait"):
            setattr(kind, name, _with_own_error(getattr(kind, name)))


def _with_own_error(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*arguments, **named):
        try:
            return method(*arguments, **named)
        except dist.DistStoreError:
            raise
        except RuntimeError as error:
            if not str(error).startswith(_LATE):
                raise
            raise dist.DistStoreError(str(error)) from None

    return call


def connect(rank: int, spec: dict) -> Keeper:
    """Initialises the default process group of a rank over a file in the launch's private directory."""
    world_size = spec["world_size"]
    board = Board(f"{spec['directory']}/board", world_size)
    keeper = Keeper(rank, world_size, Publisher(board, rank))
    keeper.count_by_hand = lambda: dist.FileStore(f"{spec['directory']}/by-hand").add("groups", 1)
    install(keeper)
    _say_late_as_torchrun()
    _take_rows_as_works(keeper)
    numbers = count()

    def make(timeout: timedelta | None = None, store: dist.Store | None = None) -> None:
        store = store or dist.FileStore(f"{spec['directory']}/store-{next(numbers)}", world_size)
        init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)
        c10d._get_default_group().settle()

    def make_of_some(store: dist.Store, place: int, size: int, timeout: timedelta) -> None:
        with patched(c10d, "ProcessGroupGloo", _ByHand):
            init_process_group("gloo", store=store, rank=place, world_size=size, timeout=timeout)

    init_process_group = dist.init_process_group
    make()
    lent = process_group_setup.Lent(rank, world_size, make, make_of_some)
    process_group_setup.install(lambda: lent)
    spawned_ranks.install(lambda: lent if os.getpid() == lent.pid and spawned_ranks.has_no_group(lent) else None)
    return keeper
