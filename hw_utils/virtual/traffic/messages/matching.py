"""Sends meet receives: the one function that every message of the virtual cluster goes through twice.

It is written for speed, in one piece and on local names: a ring of 1,024 ranks has two million messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from hw_utils.core.calls.mismatch_text import messages_differ
from hw_utils.core.errors import MessageMismatch
from hw_utils.virtual.traffic.ledger_rows import END, MESSAGE, PEER, put_end, put_int, put_message, put_row, start_of
from hw_utils.virtual.traffic.messages.requests import Request
from hw_utils.virtual.traffic.tensor_bytes import contents, copy, fill


def post_of(engine, queues) -> tuple[Callable[..., Request], Callable[[Request, Request, float], None]]:
    """`post` and `cross` of an engine's queues: the running rank posts a send or receive; the two sides meet."""
    agenda, ports, ledger = engine.agenda, engine.ports, engine.rows
    size, is_free, eager_bytes, Own = engine.world_size, engine.compute.is_free, queues.eager_bytes, queues.Request
    has_streams = engine.lines is not None
    clock, waiting, schedule = agenda.clock, agenda.waiting, agenda.schedule
    is_flat, latency_s, bandwidth_Bps, arrived = ports.is_flat, ports.latency_s, ports.bandwidth_Bps, Own.arrived
    sending, receiving, travel = ports.sending, ports.receiving, ports.travel
    order, rows, next_row, next_message = ledger.order, ledger.data, ledger.next_row, ledger.next_message
    by_key, any_source, match_anybody = queues.by_key, queues.any_source, queues.match_anybody
    watched = queues.watched

    def post(is_send, op, tensor, dtype, peer, tag, group, site, src, dst, is_blocking) -> Request:
        """`peer`, `src`, `dst` are global ranks, -1 is anybody."""
        rank = engine.rank
        if watched and rank in watched:
            watched[rank](is_send, tensor)
        now_s = clock[rank]
        if not is_free:
            now_s = engine.compute.now()
            engine.keep_up(rank)
        n_bytes = tensor.nbytes
        order[rank] = place = order[rank] + 1
        row = next_row()
        put_row(rows, row, rank, op, peer, n_bytes, now_s, -1.0, -1, site, 0, tag, group, place, -1)
        # Without an __init__, which would cost 0.1 us.
        request = Own()
        request.rank, request.is_send, request.is_blocking, request.is_waited = rank, is_send, is_blocking, is_blocking
        request.tensor, request.dtype, request.n_bytes, request.row = tensor, dtype, n_bytes, row
        request.done_s, request.data = -1.0, None
        if is_send and not is_blocking:
            request.data = contents(tensor, n_bytes)
        if eager_bytes:
            request.arrives_s = -1.0
        key = (group, src, dst, tag) if tag or group else src * size + dst
        if peer < 0 or any_source:
            other = match_anybody(request, key, group, dst, tag)
        else:
            queue, other = by_key.get(key), None
            if queue is None:
                by_key[key] = deque((request,))
            elif queue and queue[0].is_send is not is_send:
                other = queue.popleft()
            else:
                queue.append(request)
        if other is None:
            if eager_bytes and is_send and n_bytes <= eager_bytes:
                send_ahead(request, dst, now_s)
        else:
            if has_streams:  # of which one may be ahead of the other's
                now_s = max(now_s, start_of(rows, other.row))
            if is_send:
                cross(request, other, now_s)
            else:
                cross(other, request, now_s)
        return request

    def cross(send: Request, recv: Request, now_s: float) -> None:
        """The bytes go from one to the other; both ports are taken until then, and both sides are done."""
        n_bytes = send.n_bytes
        if n_bytes != recv.n_bytes or send.dtype is not recv.dtype:
            raise MessageMismatch(_mismatch(send, recv))
        src, dst = send.rank, recv.rank
        was_sent_ahead = eager_bytes > 0 and send.arrives_s >= 0
        if was_sent_ahead:
            end_s = send.arrives_s if send.arrives_s > now_s else now_s
        elif is_flat:
            if sending[src] > now_s:
                now_s = sending[src]
            if receiving[dst] > now_s:
                now_s = receiving[dst]
            sending[src] = receiving[dst] = end_s = now_s + (latency_s + n_bytes / bandwidth_Bps)
        else:
            end_s = travel(src, dst, n_bytes, now_s)
        message = next_message()
        put_end(rows, recv.row + END, end_s, message)
        if any_source and recv.peer < 0:
            put_int(rows, recv.row + PEER, src)
        data = send.data
        is_awaited = waiting[dst] is recv
        if not (is_awaited or recv.is_blocking):
            recv.data = data = contents(send.tensor, n_bytes) if data is None else data
            if data:
                arrived[recv.tensor.data_ptr()] = recv
        elif data is None:
            copy(send.tensor, recv.tensor, n_bytes)
        else:
            fill(recv.tensor, data)
        recv.done_s = end_s
        if is_awaited:
            waiting[dst] = None
            clock[dst] = end_s
            schedule(dst, end_s)
        if was_sent_ahead:
            put_message(rows, send.row + MESSAGE, message)
            send.was_taken()
            return
        put_end(rows, send.row + END, end_s, message)
        send.done_s = end_s
        if waiting[src] is send:
            waiting[src] = None
            clock[src] = end_s
            schedule(src, end_s)

    def send_ahead(send: Request, dst: int, now_s: float) -> None:
        """A short message leaves before its receive is posted; the sender has its buffer back at once."""
        send.take()
        send.arrives_s = travel(send.rank, dst, send.n_bytes, now_s)
        send.done_s = now_s
        ledger.note_end(send.row, send.arrives_s)
        if send.is_blocking:
            ledger.note_wait(send.row, order[send.rank], now_s, now_s)

    return post, cross


def _mismatch(send: Request, recv: Request) -> str:
    return messages_differ(send.text(), recv.text(), is_dtype=send.n_bytes == recv.n_bytes)
