"""The methods of a ledger-keeping group: write a call down, publish it, compare it with the other side's, hand it on.

An operation may take 2 microseconds. Hence two long functions: each makes the method of one group, with all that it
needs at hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from time import perf_counter
from types import CodeType
from typing import Any

import torch
from torch.distributed.distributed_c10d import default_pg_timeout

from hw_utils.core.calls.fitting_tensors import check_splits
from hw_utils.core.calls.public_calls import ALIASES, DTYPE_CODES, ENTRIES, not_compiled
from hw_utils.core.calls.tensor_layout import (
    TAKE_GAPS,
    asks_its_class,
    no_memory,
    require_dense,
    require_one_order,
    sparse_parts,
)
from hw_utils.gloo import merged_trace
from hw_utils.gloo.compared_calls import after_comparing
from hw_utils.gloo.shared_state import ONE, SEND, SINCE, WAIT, Channel, K
from hw_utils.gloo.work import DONE, IS_WAITING, WAIT_END, WAIT_START, may_move, note_end, waits_alone

_PLAIN = {torch.Tensor, torch.nn.Parameter}
_n_modes = torch._C._len_torch_dispatch_stack
_CODE_AND_ITEMSIZE = {dtype: (code, dtype.itemsize) for dtype, code in DTYPE_CODES.items()}
_TIMED_BYTES = 1 << 16  # from this size on an asynchronous collective's end is asked of gloo, which costs 5 us
_COMPACT_CALLS = 1 << 14
_HAS_CLOSED = re.compile("Timed out|timeout|closed by peer")  # what gloo says once a group's connections are gone
SPARSE_KIND = merged_trace.kind_of("all_gather")  # how gloo adds sparse tensors up


def compared(place: int, size: int) -> list[int]:
    """Whose calls a member compares with its own: all others of a small group, some of a large one."""
    if size <= 8:
        return [i for i in range(size) if i != place]
    return sorted({(place + sign * 2**i) % size for i in range(10) for sign in (1, -1)} - {place})


def point_to_point(group, direction: int) -> Callable[..., Any]:
    keeper = group.keeper
    q, d, board, add = keeper.q, keeper.d, keeper.publisher.board, keeper.rows.append
    channels: dict[tuple[int, int], Channel] = {}
    untagged: dict[int, Channel] = {}
    ranks, number, getframe = group.ranks, group.number, sys._getframe
    hand_on = group._inner.send if direction == SEND else group._inner.recv
    method, Work = "send" if direction == SEND else "recv", group.MessageWork
    gives_up, alone = group.gives_up, [] if group.gives_up else waits_alone
    blocking, n_frames = ENTRIES[method]
    blocking_depth = 2 + n_frames
    # Of the student's calls: instruction -> (code, site). Another code's call at the same instruction takes longer.
    sites: dict[int, tuple[CodeType, int]] = {}
    blocking_sites: dict[int, tuple[CodeType, int]] = {}
    unknown, last_call = (None, 0), _COMPACT_CALLS - 1
    wait_at, k_at, since_at = (keeper.header + place for place in (WAIT, K, SINCE))
    plain = torch.Tensor

    def post(tensors, peer, tag=0):
        # Above are isend and then either the student's frame or send's; asking for a frame costs 50 ns.
        frame = getframe(2)
        blocks = frame.f_code is blocking
        if blocks:
            frame = getframe(blocking_depth)
            code, site = blocking_sites.get(frame.f_lasti, unknown)
        else:
            code, site = sites.get(frame.f_lasti, unknown)
        outer, part, kind = True, 0, 0
        if code is not frame.f_code:
            known = blocking_sites if blocks else sites
            site, outer, part, kind = keeper.slow_site(getframe(1), method, frame, known)
        channel = untagged.get(peer) if tag == 0 else channels.get((peer, tag))
        if channel is None:
            group.check_peer(peer)
            channel = group.open(peer, tag, direction)
            if tag == 0:
                untagged[peer] = channel
            else:
                channels[peer, tag] = channel
        tensor = tensors[0]
        if tensor.__class__ is not plain and asks_its_class(tensor):
            return group.ask_classes(method, (tensors, peer, tag), {})
        n_bytes, dtype = tensor.nbytes, tensor.dtype
        start = perf_counter()
        k = channel.n
        if n_bytes != channel.n_bytes or dtype is not channel.dtype or site != channel.site:
            if n_bytes and not tensor.data_ptr():
                raise no_memory(tensor)
            channel.begin_run(board, n_bytes, DTYPE_CODES[dtype], site)
            channel.dtype = dtype
        channel.n = k + 1
        q[channel.at] = channel.posted = posted = channel.posted + ONE
        theirs = q[channel.other_at]  # whoever comes second sees a difference
        if theirs != posted and (theirs >= posted - channel.mark or not channel.is_met):
            group.look(channel, peer, tag, direction, k)
        work = hand_on(tensors, peer, tag)
        if blocks and outer is not None:
            q[k_at] = k
            d[since_at] = start
            word = channel.wait_word
            q[wait_at] = word if alone else may_move(word, gives_up)
            try:
                if gives_up:
                    work.wait(*gives_up)
                else:
                    work.wait()
            finally:
                q[wait_at] = word - IS_WAITING
            end = perf_counter()
            add((site, ranks[peer], n_bytes, start, end, tag, number, k, start, end, direction, 1, part, kind))
            work = DONE
        else:
            row = [
                site, ranks[peer], n_bytes, start, start, tag, number, k, -1.0, -1.0, direction, 1, part, kind,
                work, channel.wait_word,
            ]  # fmt: skip
            add(row)
            work = Work((row, work)) if outer is not None else keeper.cpp_works.take(Work((row, work)))
        if k & last_call == last_call:
            keeper.compact()
        return work

    return not_compiled(post)


def collective(group, method: str, own: int | None) -> Callable[..., Any]:
    keeper = group.keeper
    q, d, board, add = keeper.q, keeper.d, keeper.publisher.board, keeper.rows.append
    number, getframe, calls, others = group.number, sys._getframe, group.calls, list(group.compared.values())
    hand_on, dispatch = handed_on(group, method), getattr(group.plain, method, None)
    entry_code, n_frames = ENTRIES.get(method, (None, 0))
    depth, calls_at, wait_word = 1 + n_frames, calls.at, calls.wait_word
    Work, last_call = group.Work, _COMPACT_CALLS - 1
    gives_up, alone = group.gives_up, [] if group.gives_up else waits_alone
    method_code, is_list, any_size, is_rooted = CODES[method], own == 0, method in _UNEVEN, method in _ROOTED
    is_monitored = method == "monitored_barrier"
    wait_at, k_at, since_at = (keeper.header + place for place in (WAIT, K, SINCE))
    sites: dict[int, tuple[CodeType, int]] = {}
    unknown, strided = (None, 0), torch.strided
    if group.helper is not None:
        hand_on, dispatch, others = (
            after_comparing(group, method, hand_on),
            after_comparing(group, method, dispatch),
            [],
        )

    def collect(*arguments, **named):
        try:
            frame = getframe(depth)
        except ValueError:  # of a thread that C++ code has begun
            frame = getframe(0)
        code, site = sites.get(frame.f_lasti, unknown)
        outer, part, kind = True, 0, 0
        if code is frame.f_code:  # called by torch's own function, which always gives options
            options = arguments[-1] if arguments else named["opts"]
            waits = not getattr(options, "asyncOp", True)
        else:
            top, waits = getframe(0).f_back, False
            guess = frame if top is not None and top.f_code is entry_code else None
            site, outer, part, kind = keeper.slow_site(top, method, guess, sites)
        if own is None:
            n_bytes, itemsize, code = 0, 1, 0
        else:
            tensor = arguments[own]
            if is_list and type(tensor) is list and len(tensor) == 1:
                tensor = tensor[0]
                if type(tensor) not in _PLAIN and asks_its_class(tensor):
                    return group.ask_classes(method, arguments, named)
                if tensor.layout is strided:
                    n_bytes, (code, itemsize) = tensor.nbytes, _CODE_AND_ITEMSIZE[tensor.dtype]
                    if not tensor.is_contiguous() and method not in TAKE_GAPS:
                        require_dense(tensor)
                else:
                    n_bytes, itemsize, code = _of_sparse(tensor)
                    kind = SPARSE_KIND
            else:
                first = tensor[0] if type(tensor) is list and tensor else tensor
                if type(first) not in _PLAIN and asks_its_class(first):
                    return group.ask_classes(method, arguments, named)
                travels = tensor[:1] if method in _COMBINED and type(tensor) is list else tensor
                if method == "allreduce" and type(tensor) is list and tensor and first.layout is not strided:
                    n_bytes, itemsize, code = _of_sparse(_within_rank(tensor))
                    kind = SPARSE_KIND
                else:
                    n_bytes, itemsize, code = _measure(travels, method not in TAKE_GAPS)
            if method == "scatter":
                _measure(arguments[1], True)  # the root's own
            elif method == "reduce_scatter":
                require_one_order(_first(arguments[0]), _first(arguments[1]))
        root = _root_of(arguments, named) if is_rooted else -1
        kept = _own_piece(arguments, group) if any_size else root
        start = perf_counter()
        is_over = is_monitored and _gives_up(arguments, named)
        if is_over:
            hand_on(*arguments, **named)  # of messages: a member may leave it out, and all go on in one order
        k = calls.n
        signature = method_code | code << 16 | root + 1
        size = -1 if any_size or kind == SPARSE_KIND else n_bytes
        if signature != calls.code or size != calls.n_bytes or site != calls.site:
            calls.begin_run(board, size, signature, site)
        calls.n = k + 1
        q[calls_at] = calls.posted = posted = calls.posted + ONE
        for other in others:
            theirs = q[other]
            if theirs != posted and theirs >= posted - calls.mark:
                group.look_around(k)
                break
        # torch's dispatcher shows a call to its modes.
        work = None if is_over else dispatch(*arguments, **named) if _n_modes() else hand_on(*arguments, **named)
        if waits and work is not None:
            q[k_at] = k
            d[since_at] = start
            q[wait_at] = wait_word if alone else may_move(wait_word, gives_up)
            try:
                work.wait()
            except Exception as error:
                if _HAS_CLOSED.search(str(error)):  # who has left the call out counts on from it
                    if calls.n == k + 1:
                        calls.take_back(q)
                    others.clear()
                    group.compared.clear()
                raise
            finally:
                q[wait_at] = wait_word - IS_WAITING
            end = perf_counter()
            add((site, -1, n_bytes, start, end, 0, number, k, start, end, kept, itemsize, part, kind))
            work = DONE
        else:
            row = [
                site, -1, n_bytes, start, start, 0, number, k, -1.0, -1.0, kept, itemsize, part, kind, work, wait_word
            ]  # fmt: skip
            add(row)
            if work is None:  # it is over already
                row[WAIT_START], row[WAIT_END] = start, perf_counter()
            elif outer is None:
                work = keeper.cpp_works.take(Work((row, work)))
            else:
                if n_bytes >= _TIMED_BYTES:
                    note_end(work, row)
                work = Work((row, work))
        if k & last_call == last_call:
            keeper.compact()
        return work

    return not_compiled(collect)


def handed_on(group, method: str) -> Callable[..., Any] | None:
    """The method of gloo's that does it: a few are bound to Python only on the group around a backend."""
    for owner in (group._inner, group.plain):
        for name in (method, ALIASES.get(method, method)):
            if hasattr(owner, name):
                return getattr(owner, name)
    return None


def _first(tensors) -> torch.Tensor:
    """The first of tensors in lists."""
    while not isinstance(tensors, torch.Tensor):
        tensors = tensors[0]
    return tensors


def _of_sparse(tensor: torch.Tensor) -> tuple[int, int, int]:
    """(bytes of indices and values, 1, code of the dtype): gloo gathers both, and each member adds them up."""
    return sum(part.nbytes for part in sparse_parts(tensor)), 1, DTYPE_CODES[tensor.dtype]


def _within_rank(tensors: list[torch.Tensor]) -> torch.Tensor:
    """The sum of a rank's own sparse tensors, which gloo then adds to the others'; the first if it will refuse them."""
    alike = all(t.layout is tensors[0].layout and t.shape == tensors[0].shape for t in tensors)
    return sum(tensors[1:], tensors[0]) if alike else tensors[0]


def _root_of(arguments: tuple, named: dict) -> int:
    """The root's place: of options, which come last, or given as it is, as a group's own methods take it."""
    options = named.get("opts") or arguments[-1]
    if hasattr(options, "rootRank"):
        return options.rootRank
    return named.get("root", next((value for value in arguments if type(value) is int), 0))


def _gives_up(arguments: tuple, named: dict) -> bool:
    """Whether a monitored_barrier has a time limit that the program gave."""
    timeout = arguments[0] if arguments else named.get("timeout")
    return timeout is not None and timeout != default_pg_timeout


def _own_piece(arguments: tuple, group) -> int:
    """Bytes that this member keeps of an all_to_all: alltoall(outputs, inputs), or single with a row a split."""
    mine, place = arguments[1], group.rank()
    if isinstance(mine, list):
        return mine[place].nbytes if place < len(mine) else 0  # gloo will refuse it
    check_splits(group.size(), (arguments[3], mine), (arguments[2], arguments[0]))
    splits = arguments[3]
    rows, total = (splits[place], sum(splits)) if splits else (1, group.size())
    return mine.nbytes * rows // total if total else 0


def _measure(tensors, is_dense: bool) -> tuple[int, int, int]:
    """(bytes, bytes of one element, code of the dtype) of tensors in lists, which may have to be dense."""
    if type(tensors) is list and len(tensors) == 1:
        tensors = tensors[0]
    if isinstance(tensors, torch.Tensor):
        if is_dense:
            require_dense(tensors)
        n_bytes = tensors.nbytes if tensors.layout is torch.strided else 0  # gloo will refuse it
        return n_bytes, tensors.element_size(), DTYPE_CODES[tensors.dtype]
    if not tensors:
        return 0, 1, 0
    parts = [_measure(t, is_dense) for t in tensors]
    return sum(p[0] for p in parts), parts[0][1], parts[0][2]


# method -> which argument is this rank's own data (None: there is none)
COLLECTIVES = {
    "allreduce": 0, "allreduce_coalesced": 0, "broadcast": 0, "reduce": 0, "scatter": 0,
    "allgather": 1, "allgather_coalesced": 1, "_allgather_base": 1, "all_gather_single": 1,
    "allgather_into_tensor_coalesced": 1, "all_gather_single_coalesced": 1, "gather": 1,
    "reduce_scatter": 1, "_reduce_scatter_base": 1, "reduce_scatter_single": 1,
    "reduce_scatter_tensor_coalesced": 1, "reduce_scatter_single_coalesced": 1,
    "alltoall": 1, "alltoall_base": 1, "all_to_all_single": 1,
    "barrier": None, "monitored_barrier": None,
}  # fmt: skip
CODES = {name: i << 32 for i, name in enumerate([*COLLECTIVES, "new_group"], 1)}
_ROOTED = {"broadcast", "reduce", "gather", "scatter"}
_COMBINED = {"allreduce", "broadcast"}  # of several tensors a rank, one travels
_UNEVEN = {"alltoall", "alltoall_base", "all_to_all_single"}  # each pair of ranks may exchange another size
