"""Short cuts for send, recv, isend, irecv and batch_isend_irecv while a simulation runs.

torch.distributed checks its arguments in some 10 us a call. A call in plain form (the default group, a dense tensor,
a rank that exists) goes straight to the engine; any other goes the long way, through torch.distributed's own function
and its errors.

Every message of a ring of 1,024 ranks comes through here, two million of them. So the usual case is written out once
for sends and once for receives: what `matching.py` does for every case, without the cases.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import contextmanager
from heapq import heappush

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from hw_utils.core.calls.tensor_layout import no_memory
from hw_utils.virtual.traffic.ledger_rows import END, put_end, put_plain_row
from hw_utils.virtual.traffic.tensor_bytes import memory, writable

_PATCHED = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
FLOAT32 = torch.float32  # what most tensors are
_COMPLEX = frozenset({torch.complex32, torch.complex64, torch.complex128})  # torch sends these as real ones


def sends(engine, name: str, long_way: Callable, *, is_blocking: bool) -> Callable:
    """`dist.send` or `dist.isend` on an engine."""
    agenda, ports, ledger, queues, turns = engine.agenda, engine.ports, engine.rows, engine.queues, engine.turns
    op, getframe, Request, cross = ledger.op(name), sys._getframe, engine.queues.Request, engine.queues.cross
    is_free, learn, unusual, sent_by = engine.compute.is_free, engine.places.learn, queues.unusual, queues.sent_by
    clock, waiting, times, later = agenda.clock, agenda.waiting, agenda.times, agenda.later
    order, rows, next_row, next_message = ledger.order, ledger.data, ledger.next_row, ledger.next_message
    is_flat, latency_s, bandwidth_Bps = ports.is_flat, ports.latency_s, ports.bandwidth_Bps
    sending, receiving, travel = ports.sending, ports.receiving, ports.travel
    sites, unknown = {}, (None, 0)  # instruction of the student's call -> (its code, the number of its line)

    def post(tensor, dst=None, group=None, tag=0, group_dst=None):
        me = engine.rank
        try:
            queue = sent_by[me][dst]
        except KeyError:
            queue = queues.route(me, me, dst, dst)
        if (
            queue is None or group is not None or group_dst is not None
            or type(tensor) not in _TENSORS or not tensor.is_contiguous()
            or ((dtype := tensor.dtype) is not FLOAT32 and dtype in _COMPLEX)
        ):  # fmt: skip
            return long_way(tensor, dst, group, tag, group_dst)
        frame = getframe(1)
        code, site = sites.get(frame.f_lasti, unknown)
        if code is not frame.f_code:
            site = learn(frame, sites)
        if tag or unusual:
            request = engine.queues.post(True, op, tensor, dtype, dst, tag, 0, site, me, dst, is_blocking)
        else:
            now_s = clock[me]
            if not is_free:
                now_s = engine.compute.now()
                engine.keep_up(me)
            order[me] = place = order[me] + 1
            request = Request()  # without an __init__, which would cost 0.1 us
            request.rank, request.is_send, request.is_blocking, request.is_waited = me, True, is_blocking, is_blocking
            request.tensor, request.dtype, request.row = tensor, dtype, (row := next_row())
            request.n_bytes = n_bytes = tensor.nbytes
            at = tensor.data_ptr()
            if not at and n_bytes:
                raise no_memory(tensor)
            request.data = data = None if is_blocking else memory[at : at + n_bytes]
            if (
                queue and waiting[dst] is (recv := queue[0]) and recv.n_bytes == n_bytes and recv.dtype is dtype
            ):  # fmt: skip
                # The usual case once more, what `cross` does without its cases: the receiver stands waiting.
                queue.popleft()
                if is_flat:
                    end_s = sending[me] if sending[me] > now_s else now_s
                    if receiving[dst] > end_s:
                        end_s = receiving[dst]
                    end_s += latency_s + n_bytes / bandwidth_Bps
                    sending[me] = receiving[dst] = end_s
                else:
                    end_s = travel(me, dst, n_bytes, now_s)
                clock[dst] = recv.done_s = request.done_s = end_s
                message = next_message()
                put_plain_row(rows, row, me, op, dst, n_bytes, now_s, end_s, message, site, place, -1)
                put_end(rows, recv.row + END, end_s, message)
                to = recv.tensor.data_ptr()
                if not to and n_bytes:
                    raise no_memory(recv.tensor)
                writable[to : to + n_bytes] = writable[at : at + n_bytes] if data is None else data
                waiting[dst] = None
                due_then = later.get(end_s)
                if due_then is None:
                    later[end_s] = [dst]
                    heappush(times, end_s)
                else:
                    due_then.append(dst)
            else:
                request.done_s = -1.0
                put_plain_row(rows, row, me, op, dst, n_bytes, now_s, -1.0, -1, site, place, -1)
                if queue and not queue[0].is_send:
                    cross(request, queue.popleft(), now_s)
                else:
                    queue.append(request)
        if is_blocking:
            if request.done_s < 0:
                waiting[me] = request
                turns.switch(me)
            elif request.done_s > clock[me]:
                engine.move_on(me, request.done_s)
            request = None
        if not is_free:
            engine.compute.resume()
        return request

    post.__name__ = name
    return post


def receives(engine, name: str, long_way: Callable, *, is_blocking: bool) -> Callable:
    """`dist.recv` or `dist.irecv` on an engine."""
    agenda, ports, ledger, queues, turns = engine.agenda, engine.ports, engine.rows, engine.queues, engine.turns
    op, getframe, Request, cross = ledger.op(name), sys._getframe, engine.queues.Request, engine.queues.cross
    is_free, learn, unusual, sent_to = engine.compute.is_free, engine.places.learn, queues.unusual, queues.sent_to
    clock, waiting, times, later, due = agenda.clock, agenda.waiting, agenda.times, agenda.later, agenda.due
    order, rows, next_row, next_message = ledger.order, ledger.data, ledger.next_row, ledger.next_message
    is_flat, latency_s, bandwidth_Bps = ports.is_flat, ports.latency_s, ports.bandwidth_Bps
    sending, receiving, travel = ports.sending, ports.receiving, ports.travel
    sites, unknown = {}, (None, 0)  # instruction of the student's call -> (its code, the number of its line)
    kept: list = [None] * engine.world_size  # a blocking receive's request: nobody sees it, so the next takes it again

    def new(me: int):
        request = Request()  # without an __init__, which would cost 0.1 us
        request.rank, request.is_send, request.is_blocking, request.is_waited = me, False, is_blocking, is_blocking
        request.data = None
        return request

    def post(tensor, src=None, group=None, tag=0, group_src=None):
        me = engine.rank
        try:
            queue = sent_to[me][src]
        except KeyError:
            queue = queues.route(me, src, me, src)
        if (
            queue is None or group is not None or group_src is not None
            or type(tensor) not in _TENSORS or not tensor.is_contiguous()
            or ((dtype := tensor.dtype) is not FLOAT32 and dtype in _COMPLEX)
        ):  # fmt: skip
            return long_way(tensor, src, group, tag, group_src)
        frame = getframe(1)
        code, site = sites.get(frame.f_lasti, unknown)
        if code is not frame.f_code:
            site = learn(frame, sites)
        if tag or unusual:
            request = engine.queues.post(False, op, tensor, dtype, src, tag, 0, site, src, me, is_blocking)
        else:
            now_s = clock[me]
            if not is_free:
                now_s = engine.compute.now()
                engine.keep_up(me)
            order[me] = place = order[me] + 1
            if (
                is_blocking and queue and (send := queue[0]).is_send and (data := send.data) is not None
                and send.n_bytes == tensor.nbytes and send.dtype is dtype
            ):  # fmt: skip
                # The usual case once more, what `cross` does without its cases: the message has been on offer.
                queue.popleft()
                n_bytes = send.n_bytes
                if is_flat:
                    end_s = sending[src] if sending[src] > now_s else now_s
                    if receiving[me] > end_s:
                        end_s = receiving[me]
                    end_s += latency_s + n_bytes / bandwidth_Bps
                    sending[src] = receiving[me] = end_s
                else:
                    end_s = travel(src, me, n_bytes, now_s)
                send.done_s = end_s
                message = next_message()
                put_plain_row(rows, next_row(), me, op, src, n_bytes, now_s, end_s, message, site, place, -1)
                put_end(rows, send.row + END, end_s, message)
                at = tensor.data_ptr()
                if not at and n_bytes:
                    raise no_memory(tensor)
                writable[at : at + n_bytes] = data
                due_then = later.get(end_s)
                if waiting[src] is send:
                    waiting[src], clock[src] = None, end_s
                    if due_then is None:
                        later[end_s] = due_then = [src]
                        heappush(times, end_s)
                    else:
                        due_then.append(src)
                if end_s > now_s:
                    clock[me] = end_s
                    if (due and agenda.due_s < end_s) or (times and times[0] < end_s):
                        if due_then is None:
                            later[end_s] = [me]
                            heappush(times, end_s)
                        else:
                            due_then.append(me)
                        turns.switch(me)
                if not is_free:
                    engine.compute.resume()
                return src
            if not is_blocking:
                request = new(me)
            elif (request := kept[me]) is None:
                request = kept[me] = new(me)
            request.tensor, request.dtype, request.done_s = tensor, dtype, -1.0
            request.row, request.n_bytes = row, n_bytes = next_row(), tensor.nbytes
            put_plain_row(rows, row, me, op, src, n_bytes, now_s, -1.0, -1, site, place, -1)
            if queue and queue[0].is_send:
                cross(queue.popleft(), request, now_s)
            else:
                queue.append(request)
        if is_blocking:
            if request.done_s < 0:
                waiting[me] = request
                turns.switch(me)
            elif request.done_s > clock[me]:
                engine.move_on(me, request.done_s)
            request.tensor = None
        if not is_free:
            engine.compute.resume()
        return src if is_blocking else request

    post.__name__ = name
    return post


class ShortCuts:
    """The five functions, for one engine."""

    def __init__(self, engine) -> None:
        long_way = {name: getattr(c10d, name) for name in _PATCHED}
        send, isend = (sends(engine, name, long_way[name], is_blocking=name == "send") for name in ("send", "isend"))
        recv, irecv = (receives(engine, name, long_way[name], is_blocking=name == "recv") for name in ("recv", "irecv"))
        is_send = {isend: True, long_way["isend"]: True, irecv: False, long_way["irecv"]: False}
        long_way_check, long_way_check_list = c10d._check_op, c10d._check_p2p_op_list
        op_isend, op_irecv, place_of = engine.rows.op("isend"), engine.rows.op("irecv"), engine.places.of

        def batch_isend_irecv(p2p_op_list):
            long_way_check_list(p2p_op_list)
            place, me, requests = place_of(sys._getframe(1)), engine.rank, []
            for p in p2p_op_list:
                sends_it, tensor, peer = is_send[p.op], p.tensor, p.peer
                if p.group.members.number or p.group.members.gave_up or not _is_plain(tensor):
                    key = "group_dst" if sends_it else "group_src"
                    requests.append(p.op(tensor, group=p.group, tag=p.tag, **{key: p.group_peer}))
                else:
                    op, ends = (op_isend, (me, peer)) if sends_it else (op_irecv, (peer, me))
                    requests.append(
                        engine.queues.post(sends_it, op, tensor, tensor.dtype, peer, p.tag, 0, place, *ends, False)
                    )
            engine.compute.resume()
            return requests

        def _check_op(op):
            if op not in is_send:
                long_way_check(op)  # raises

        def _check_p2p_op_list(p2p_op_list):
            """Of torch's own batch_isend_irecv, which a program may have from before: it knows its own isend alone."""
            long_way_check_list(p2p_op_list)
            for p in p2p_op_list:
                p.op = long_way["isend" if is_send[p.op] else "irecv"]

        self.functions = {f.__name__: f for f in (send, recv, isend, irecv, batch_isend_irecv)}
        self.checks = {"_check_op": _check_op, "_check_p2p_op_list": _check_p2p_op_list}

    @contextmanager
    def installed(self):
        """Puts the short cuts in place, and the long ways back."""
        before = [(module, name, getattr(module, name)) for module in (dist,) for name in self.functions]
        before += [(c10d, name, getattr(c10d, name)) for name in self.checks]
        try:
            for module, name, _ in before:
                setattr(module, name, {**self.functions, **self.checks}[name])
            yield
        finally:
            for module, name, original in before:
                setattr(module, name, original)


def _is_plain(tensor) -> bool:
    return type(tensor) in _TENSORS and tensor.is_contiguous() and tensor.dtype not in _COMPLEX
