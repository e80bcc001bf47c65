"""In the answers' process torch.distributed, the clocks and what is printed belong to the driver, which is asked."""

from __future__ import annotations

import _threading_local
import functools
import inspect
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from hw_grader.driving.answer_call import CALLS, CLOCKS
from hw_grader.driving.marshalling.packed_values import tensor_bytes
from hw_grader.driving.marshalling.passes_elsewhere import tensors_in
from hw_grader.driving.remote_process_group import FarGroup, Worlds
from hw_utils.virtual.ranks.clock import clock_of
from hw_utils.virtual.traffic.work import WithFuture, virtual_futures

MUTE = {  # whose works have no future, as gloo's
    "isend", "irecv", "batch_isend_irecv", "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single",
}  # fmt: skip
SERVES = "serves"  # the name of threads that are no student's
_here = threading.local()  # .call: the call that this thread serves; .helps: the driver's thread that it belongs to
_served: dict[str, Any] = {}  # the innermost call under way of each thread of the driver's, or None
_for_good = ExitStack()


@contextmanager
def serving(call: Any) -> Iterator[None]:
    """Within it this thread serves that call, and so do those that an answer starts for it."""
    whose = call.message["thread"]
    around = _served.get(whose)  # one that has asked the driver for something, which called an answer for it
    _here.call = _served[whose] = call
    try:
        yield
    finally:
        _served[whose] = around


def calling() -> Any:
    """The call that this thread serves, None if it serves none."""
    return getattr(_here, "call", None) or _served.get(getattr(_here, "helps", ""))


def _start(thread: threading.Thread) -> None:
    """Starts a thread; it communicates, sleeps and prints as the rank that starts it."""
    call = calling()
    if call is not None and call.rank is not None:
        thread.run = partial(_help, call.message["thread"], thread.run)
    _start_thread(thread)


_start_thread = threading.Thread.start


def _help(whom: str, run: Callable[[], None]) -> None:
    _here.helps = whom
    run()


class Work(WithFuture, dist.Work):
    """What isend, irecv and async_op=True give: the work itself is on the driver's side."""

    def __init__(self, number: int, tensors: list[torch.Tensor], outputs: list[torch.Tensor], *, is_mute: bool) -> None:
        super().__init__()
        self.number, self.tensors, self.outputs, self.is_mute = number, tensors, outputs, is_mute
        self.is_over = False
        self.before = [tensor_bytes(t) for t in tensors]
        calling().served.under_way.add(self)

    def wait(self, timeout: Any = None) -> bool:
        """Waits; the tensors then hold what came."""
        if not self.is_over:
            self.is_over = True
            changed = [tensor_bytes(t) != old for t, old in zip(self.tensors, self.before)]
            calling().ask({"wait": self.number, "changed": changed}, list(self.tensors))
            self.settle_future()
        return True

    synchronize = wait

    def is_completed(self) -> bool:
        """Who asks until it is over has waited: the tensors hold what came then."""
        return self.is_over or (calling().ask({"is_completed": self.number}, [])[0] and self.wait())

    is_success = is_completed

    def exception(self) -> None:
        return None


@contextmanager
def received(tensors: list[torch.Tensor], under_way: Iterable[Work]) -> Iterator[None]:
    """Within it something comes in these tensors: to works under way in the same memory that is no write of the
    answer's."""
    memory = {t.untyped_storage().data_ptr() for t in tensors}
    as_before = [
        (work, place)
        for work in list(under_way)
        if not work.is_over
        for place, (tensor, was) in enumerate(zip(work.tensors, work.before))
        if tensor.untyped_storage().data_ptr() in memory and tensor_bytes(tensor) == was
    ]
    yield
    for work, place in as_before:
        work.before[place] = tensor_bytes(work.tensors[place])


def _shared(tensors: list[torch.Tensor]) -> list[list | None]:
    """Of each tensor what lies in the same place: [work, place of its tensor, whether that was written to since], of
    one that is under way, or [None, place among these, False]."""
    found: list[list | None] = [None] * len(tensors)
    for k, tensor in enumerate(tensors):
        for work in sorted(calling().served.under_way, key=lambda work: work.number):
            for place, (other, was) in enumerate(zip(work.tensors, work.before)):
                if not work.is_over and _are_one(tensor, other):
                    found[k] = [work.number, place, tensor_bytes(other) != was]
        same = [j for j in range(k) if _are_one(tensor, tensors[j])]
        if same and found[k] is None:
            found[k] = [None, same[0], False]
    return found


def _are_one(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() and (one.shape, one.stride(), one.dtype) == (
        other.shape, other.stride(), other.dtype,
    )  # fmt: skip


class P2POp:
    """As torch.distributed.P2POp."""

    def __init__(self, op: Any, tensor: torch.Tensor, peer: int | None = None, group: Any = None, tag: int = 0,
                 group_peer: int | None = None) -> None:  # fmt: skip
        self.op, self.tensor, self.peer, self.tag = op, tensor, peer, tag
        self.group, self.group_peer = group, group_peer


class Subgroup:
    """What new_group gives to its members: the group itself is on the driver's side."""

    def __init__(self, number: int) -> None:
        self.number = number

    def size(self) -> int:
        return dist.get_world_size(self)

    def rank(self) -> int:
        return dist.get_rank(self)


def forward_calls() -> None:
    """Puts questions to the driver in place of torch.distributed's functions, the clock's and the output's."""
    for name, function in asking_functions().items():
        setattr(dist, name, function)
        setattr(distributed_c10d, name, function)
    dist.P2POp = distributed_c10d.P2POp = P2POp
    distributed_c10d._get_object_coll_device = lambda group=None: "cpu"  # what its groups are, objects need not ask
    dist.is_initialized = distributed_c10d.is_initialized = lambda: rank_of_call() is not None
    distributed_c10d._world = Worlds(distributed_c10d._world, _rank_and_copy)
    _threading_local.current_thread, threading.local = _callers_thread, _threading_local.local
    threading.Thread.start = _start
    _for_good.enter_context(virtual_futures())
    _for_good.enter_context(clock_of(_ThreadsOfCalls(), {name: _clock(name, getattr(time, name)) for name in CLOCKS}))
    sys.stdout = _Printed()
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (for good): as in `launch`, what a rank printed is its stdout


@functools.cache
def asking_functions() -> dict[str, Any]:
    """What stands in place of torch.distributed's functions, of those that this torch has."""
    return {name: _asking(name, getattr(dist, name)) for name in CALLS if hasattr(dist, name)}


class _CallersThread:
    """Stands for a thread of the driver's, each of whose calls is served by a thread of its own here."""


_callers: dict[str, _CallersThread] = {}


def _callers_thread() -> Any:
    """Whose a `threading.local`'s values are: the driver's thread's, as where the answer is called without a driver."""
    call = getattr(_here, "call", None)
    if call is None:  # one that an answer has started has its own
        return threading.current_thread()
    return _callers.setdefault(call.message["thread"], _CallersThread())


def _rank_and_copy() -> tuple[str, list] | None:
    rank = rank_of_call()
    return None if rank is None else (calling().message["copy"], rank)


def rank_of_call() -> list | None:
    call = calling()
    return call.rank if call is not None else None


def _asking(name: str, real: Any) -> Any:
    @functools.wraps(real)
    def ask(*args: Any, **options: Any) -> Any:
        rank = rank_of_call()
        if rank is None:
            return real(*args, **options)
        given = [[_plain(a) for a in args], {k: _plain(v) for k, v in options.items()}]
        if name in ("get_rank", "get_world_size") and not any([*given[0], *given[1].values()]):
            return rank[0 if name == "get_rank" else 1]
        result, tensors = calling().ask({"dist": name, "shared": _shared(tensors_in(given))}, given)
        result = _handles(result, tensors, partial(_outputs, name, real, args, options), is_mute=name in MUTE)
        if isinstance(result, Subgroup):
            _enter(result, rank[1], *args, **options)
        return result

    return ask


def _enter(group: Subgroup, world_size: int, ranks: list[int] | None = None, *_: Any, **options: Any) -> None:
    """Notes a new group's ranks where torch looks for them."""
    ranks = list(range(world_size) if ranks is None else ranks)
    if options.get("sort_ranks", True):
        ranks.sort()
    distributed_c10d._world.pg_group_ranks[group] = {rank: place for place, rank in enumerate(ranks)}


def _plain(value: Any) -> Any:
    if isinstance(value, FarGroup):
        return None  # all ranks, as where no group is named
    if isinstance(value, dist.ReduceOp.RedOpType):
        return ("reduction", value.name)
    if isinstance(value, dist.ReduceOp):
        return ("reduction", dist.ReduceOp.RedOpType(value.op).name if hasattr(value, "op") else "SUM")
    if isinstance(value, list) and value and isinstance(value[0], P2POp):
        return [
            ("p2p", op.op.__name__, _plain(op.tensor), op.peer, _plain(op.group), op.tag, op.group_peer) for op in value
        ]
    if isinstance(value, Subgroup):
        return ("group", value.number)
    if isinstance(value, timedelta):
        return ("seconds", value.total_seconds())
    if isinstance(value, torch.Tensor) and type(value) not in (torch.Tensor, torch.nn.Parameter):
        return value.as_subclass(torch.Tensor)  # a class of the student's: the same memory, without it
    return [_plain(one) for one in value] if type(value) is list else value


def _handles(result: Any, tensors: list[torch.Tensor], outputs: Callable[[], list], *, is_mute: bool) -> Any:
    if type(result) is list:
        return [_handles(one, tensors, outputs, is_mute=is_mute) for one in result]
    if type(result) is tuple and result[:1] == ("work",):
        return Work(result[1], tensors, outputs(), is_mute=is_mute)
    return Subgroup(result[1]) if type(result) is tuple and result[:1] == ("group",) else result


def _outputs(name: str, function: Any, args: tuple, options: dict[str, Any]) -> list[torch.Tensor]:
    """Which tensors a call's result is written to: those of its first argument, a gather's of its second."""
    given = [*inspect.signature(function).bind(*args, **options).arguments.values()]
    return tensors_in(given[1:2] if name == "gather" else given[:1])


def _clock(name: str, real: Any) -> Any:
    def ask(*args: Any) -> Any:
        return calling().ask({"clock": name}, list(args))[0] if rank_of_call() is not None else real(*args)

    return ask


class _ThreadsOfCalls:
    """Which threads are ranks': those that serve a call of one."""

    have_clocks = False

    def carries(self) -> bool:
        return rank_of_call() is not None

    def has_others(self) -> bool:
        """Whether an answer has started threads: those that serve calls and wait for them have that name."""
        return any(t.name != SERVES and t is not threading.main_thread() for t in threading.enumerate())


class _Printed(io.TextIOBase):
    """What a call prints goes back with its next message."""

    def write(self, text: str) -> int:
        call = calling()
        if call is not None and call.printed.tell() < 1_000_000:
            call.printed.write(text)
        return len(text)

    def writable(self) -> bool:
        return True
