"""Sends meet receives: the one function that every message of the virtual cluster goes through twice.

It is written for speed, in one piece and on local names: a ring of 1,024 ranks has two million messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappush

from hw_utils.memory import move
from hw_utils.records import BLOCK, END, GROUP, MESSAGE, PEER, TAG, WIDTH, pack
from hw_utils.requests import Request
from hw_utils.unlike import MessageMismatch


def post_of(engine) -> Callable[..., Request]:
    """The function that posts a send or receive of the running rank on `engine`."""
    size, is_free, is_flat, eager_bytes = engine.world_size, engine.is_free, engine.is_flat, engine.eager_bytes
    latency_s, bandwidth_Bps, message_s = engine.latency_s, engine.bandwidth_Bps, engine.network.message_s
    clock, order, heap, rows, queues = engine.clock, engine.order, engine.heap, engine.rows, engine.queues
    sending, receiving, waiting, any_source = engine.sending, engine.receiving, engine.waiting, engine.any_source

    def post(is_send, op, tensor, peer, tag, group, site, src, dst, is_blocking) -> Request:
        """`peer`, `src`, `dst` are global ranks, -1 is anybody."""
        rank = engine.rank
        if engine.watch is not None:
            engine.watch(rank)
        now_s = clock[rank] if is_free else engine.now()
        if heap and heap[0][0] < now_s:
            engine.let_the_past_run(rank)
        n_bytes = tensor.nbytes
        order[rank] = place = order[rank] + 1
        row = engine.n_values
        engine.n_values = after = row + WIDTH
        if after > len(rows):
            rows.extend(BLOCK)
        pack(rows, row * 8, rank, op, peer, n_bytes, now_s, site, place)
        request = Request(engine, rank, is_send, tensor, peer, tag, row, n_bytes, is_blocking)
        key = src * size + dst
        if tag or group:
            key = (group, src, dst, tag)
            rows[row + TAG], rows[row + GROUP] = tag, group
        if peer < 0 or any_source:
            other = engine.match_anybody(request, key, group, dst, tag)
        else:
            queue, other = queues.get(key), None
            if queue is None:
                queues[key] = deque((request,))
            elif queue and queue[0].is_send is not is_send:
                other = queue.popleft()
            else:
                queue.append(request)
        if other is None:
            if is_send and 0 < eager_bytes >= n_bytes:
                engine.send_ahead(request, dst, now_s)
        elif is_send:
            cross(request, other, now_s)
        else:
            cross(other, request, now_s)
        return request

    def cross(send: Request, recv: Request, now_s: float) -> None:
        """The bytes go from one to the other; both ports are taken until then, and both sides are done."""
        n_bytes = send.n_bytes
        if n_bytes != recv.n_bytes or send.tensor.dtype is not recv.tensor.dtype:
            raise MessageMismatch(_mismatch(send, recv))
        src, dst = send.rank, recv.rank
        was_sent_ahead = send.arrives_s >= 0
        if was_sent_ahead:
            end_s = send.arrives_s if send.arrives_s > now_s else now_s
        else:
            if sending[src] > now_s:
                now_s = sending[src]
            if receiving[dst] > now_s:
                now_s = receiving[dst]
            end_s = now_s + (latency_s + n_bytes / bandwidth_Bps if is_flat else message_s(n_bytes, src, dst))
            sending[src] = receiving[dst] = end_s
        row, other_row, message = send.row, recv.row, engine.n_messages
        engine.n_messages = message + 1
        rows[row + MESSAGE] = rows[other_row + MESSAGE] = message
        if recv.peer < 0:
            recv.peer = src
            rows[other_row + PEER] = src
        if recv.is_blocking or recv.is_awaited:
            recv.is_delivered = True
            move(recv.tensor.data_ptr(), send.tensor.data_ptr() if send.data is None else send.data, n_bytes)
        else:
            recv.data = send.take() if send.data is None else send.data
        recv.done_s = rows[other_row + END] = end_s
        if recv.is_awaited:
            recv.is_awaited = False
            del waiting[dst]
            clock[dst] = end_s
            heappush(heap, (end_s, dst))
        if not was_sent_ahead:
            send.done_s = rows[row + END] = end_s
            if send.is_awaited:
                send.is_awaited = False
                del waiting[src]
                clock[src] = end_s
                heappush(heap, (end_s, src))

    return post


def _mismatch(send: Request, recv: Request) -> str:
    rule = "dtype" if send.n_bytes == recv.n_bytes else "number of bytes"
    return f"{send.text()}, but {recv.text()}: a message and its receive must have the same {rule}"
