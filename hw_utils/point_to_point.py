"""Short cuts for send, recv, isend, irecv and batch_isend_irecv while a simulation runs.

torch.distributed checks its arguments in some 10 us a call. A call in plain form (the default group, a dense tensor,
a rank that exists) goes straight to the engine; any other goes the long way, through torch.distributed's own function
and its errors.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

_PATCHED = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_COMPLEX = frozenset({torch.complex32, torch.complex64, torch.complex128})  # torch sends these as real ones


class ShortCuts:
    """The five functions, for one engine."""

    def __init__(self, engine) -> None:
        frame = sys._getframe
        long_way = {name: getattr(c10d, name) for name in _PATCHED}
        long_send, long_recv, long_isend, long_irecv = (long_way[n] for n in _PATCHED[:4])
        op_send, op_recv, op_isend, op_irecv = (engine.op(n) for n in _PATCHED[:4])
        size, post, place_of = engine.world_size, engine.post, engine.places.of

        def is_plain(tensor) -> bool:
            return type(tensor) in _TENSORS and tensor.is_contiguous() and tensor.dtype not in _COMPLEX

        clock, is_free, block = engine.clock, engine.is_free, engine.block

        def send(tensor, dst=None, group=None, tag=0, group_dst=None):
            me = engine.rank
            if (
                group is not None or type(dst) is not int or dst == me or not 0 <= dst < size
                or type(tensor) not in _TENSORS or not tensor.is_contiguous() or (dtype := tensor.dtype) in _COMPLEX
            ):  # fmt: skip
                return long_send(tensor, dst, group, tag, group_dst)
            request = post(True, op_send, tensor, dtype, dst, tag, 0, place_of(frame(1)), me, dst, True)
            if request.done_s < 0:
                request.is_awaited = True
                block(me, request)
            elif request.done_s > clock[me]:
                clock[me] = request.done_s
            if not is_free:
                engine.resume_compute()

        def recv(tensor, src=None, group=None, tag=0, group_src=None):
            me = engine.rank
            if (
                group is not None or type(src) is not int or src == me or not 0 <= src < size
                or type(tensor) not in _TENSORS or not tensor.is_contiguous() or (dtype := tensor.dtype) in _COMPLEX
            ):  # fmt: skip
                return long_recv(tensor, src, group, tag, group_src)
            request = post(False, op_recv, tensor, dtype, src, tag, 0, place_of(frame(1)), src, me, True)
            if request.done_s < 0:
                request.is_awaited = True
                block(me, request)
            elif request.done_s > clock[me]:
                clock[me] = request.done_s
            if not request.is_delivered:
                request.deliver()
            if not is_free:
                engine.resume_compute()
            return src

        def isend(tensor, dst=None, group=None, tag=0, group_dst=None):
            me = engine.rank
            if (
                group is not None or type(dst) is not int or dst == me or not 0 <= dst < size
                or type(tensor) not in _TENSORS or not tensor.is_contiguous() or (dtype := tensor.dtype) in _COMPLEX
            ):  # fmt: skip
                return long_isend(tensor, dst, group, tag, group_dst)
            request = post(True, op_isend, tensor, dtype, dst, tag, 0, place_of(frame(1)), me, dst, False)
            if not is_free:
                engine.resume_compute()
            return request

        def irecv(tensor, src=None, group=None, tag=0, group_src=None):
            me = engine.rank
            if (
                group is not None or type(src) is not int or src == me or not 0 <= src < size
                or type(tensor) not in _TENSORS or not tensor.is_contiguous() or (dtype := tensor.dtype) in _COMPLEX
            ):  # fmt: skip
                return long_irecv(tensor, src, group, tag, group_src)
            request = post(False, op_irecv, tensor, dtype, src, tag, 0, place_of(frame(1)), src, me, False)
            if not is_free:
                engine.resume_compute()
            return request

        def batch_isend_irecv(p2p_op_list):
            c10d._check_p2p_op_list(p2p_op_list)
            place, me, requests = place_of(frame(1)), engine.rank, []
            for p in p2p_op_list:
                is_send = p.op in (isend, long_isend)
                if p.group.members.number or not is_plain(p.tensor):
                    key = "group_dst" if is_send else "group_src"
                    requests.append(p.op(p.tensor, group=p.group, tag=p.tag, **{key: p.group_peer}))
                elif is_send:
                    requests.append(
                        post(True, op_isend, p.tensor, p.tensor.dtype, p.peer, p.tag, 0, place, me, p.peer, False)
                    )
                else:
                    requests.append(
                        post(False, op_irecv, p.tensor, p.tensor.dtype, p.peer, p.tag, 0, place, p.peer, me, False)
                    )
            if not is_free:
                engine.resume_compute()
            return requests

        def _check_op(op):
            if op not in (isend, irecv, long_isend, long_irecv):
                raise ValueError("op of a P2POp is dist.isend or dist.irecv")

        self.functions = {f.__name__: f for f in (send, recv, isend, irecv, batch_isend_irecv)}
        self.checks = {"_check_op": _check_op}

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
