"""torch's registered operations that communicate, each called once: what a compiled or a DTensor program calls.

`CALLS[name]` is a body (x, rank, world_size, group, name of the group) -> tensors; x has twelve elements, a rank's own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # registers some of them
import torch.distributed.tensor  # and these

NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd", "_dtensor", "c10d_functional", "c10d")
WORLD_SIZE = 3
f, fa, old, c = (getattr(torch.ops, n) for n in (*NAMESPACES[:2], *NAMESPACES[3:]))
wait = f.wait_tensor


def registered() -> list[str]:
    """`namespace::operation` of all that this torch has, overloads left out."""
    names = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    return sorted(name for name in names if name.partition("::")[0] in NAMESPACES)


def _all(tensors) -> list[torch.Tensor]:
    return [wait(t) for t in tensors]


def _neighbours(x, rank, n, group, name, send, recv):
    received = torch.zeros_like(x)
    works = [send(x, (rank + 1) % n), recv(received, (rank - 1) % n)]
    for work in works:
        wait(work)
    return received


def _batch(operation, waits):
    def call(x, rank, n, g, name):
        out = operation(["isend", "irecv"], [(rank + 1) % n, (rank - 1) % n], [0, 0], [x, torch.zeros_like(x)], name)
        return [waits(t) for t in out][1]

    return call


def _with_gradient(call: Callable) -> Callable:
    def both(x, *more):
        x.requires_grad_()
        out = call(x, *more)
        (out * torch.arange(out.numel()).view(out.shape)).sum().backward()
        return out.detach(), x.grad

    return both


def _parts(x, n) -> list[torch.Tensor]:
    return list(x.clone().view(n, -1))


def _filled(make: Callable, call: Callable) -> Callable:
    """The tensors that a call of `c10d::` fills; it gives back a work, alone or last."""

    def made(x, rank, n, group, name):
        into = make(x, n)
        found = call(x, into, rank, n, group.boxed())
        dist.Work.unbox(found[-1] if isinstance(found, (tuple, list)) else found).wait()
        return into

    return made


def _mesh(n: int):
    return dist.device_mesh.init_device_mesh("cpu", (n,))


def _list(x, n):
    return [torch.zeros_like(x) for _ in range(n)]


def _long(x, n):
    return x.new_zeros(n * x.numel())


def _short(x, n):
    return x.new_zeros(x.numel() // n)


def _same(x, n):
    return x


def _empty(x, n):
    return torch.zeros_like(x)


CALLS: dict[str, Callable] = {
    "_c10d_functional::_wrap_tensor_autograd": lambda x, r, n, g, name: wait(f._wrap_tensor_autograd(x)),
    "_c10d_functional::all_gather_into_tensor": lambda x, r, n, g, name: wait(f.all_gather_into_tensor(x, n, name)),
    "_c10d_functional::all_gather_into_tensor_coalesced": lambda x, r, n, g, name: _all(
        f.all_gather_into_tensor_coalesced([x, x[:5].clone()], n, name)
    ),
    "_c10d_functional::all_gather_into_tensor_out": lambda x, r, n, g, name: wait(
        f.all_gather_into_tensor_out(x, n, name, out=_long(x, n))
    ),
    "_c10d_functional::all_reduce": lambda x, r, n, g, name: wait(f.all_reduce(x, "avg", name)),
    "_c10d_functional::all_reduce_": lambda x, r, n, g, name: wait(f.all_reduce_(x, "max", name)),
    "_c10d_functional::all_reduce_coalesced": lambda x, r, n, g, name: _all(
        f.all_reduce_coalesced([x, x * 2], "sum", name)
    ),
    "_c10d_functional::all_reduce_coalesced_": lambda x, r, n, g, name: _all(
        f.all_reduce_coalesced_([x, x * 2], "sum", name)
    ),
    "_c10d_functional::all_to_all_single": lambda x, r, n, g, name: wait(
        f.all_to_all_single(x, [4] * n, [4] * n, name)
    ),
    "_c10d_functional::batch_p2p_ops": _batch(f.batch_p2p_ops, wait),
    "_c10d_functional::broadcast": lambda x, r, n, g, name: wait(f.broadcast(x, 1, name)),
    "_c10d_functional::broadcast_": lambda x, r, n, g, name: wait(f.broadcast_(x, 1, name)),
    "_c10d_functional::irecv": lambda x, r, n, g, name: _neighbours(
        x, r, n, g, name, lambda t, peer: f.isend(t, peer, 0, name), lambda t, peer: f.irecv(t, peer, 0, name)
    ),
    "_c10d_functional::isend": lambda x, r, n, g, name: _neighbours(
        x, r, n, g, name, lambda t, peer: f.isend(t, peer, 7, name), lambda t, peer: f.irecv(t, peer, 7, name)
    ),
    "_c10d_functional::reduce_scatter_tensor": lambda x, r, n, g, name: wait(
        f.reduce_scatter_tensor(x, "sum", n, name)
    ),
    "_c10d_functional::reduce_scatter_tensor_coalesced": lambda x, r, n, g, name: _all(
        f.reduce_scatter_tensor_coalesced([x, x[:6].clone()], "avg", n, name)
    ),
    "_c10d_functional::reduce_scatter_tensor_out": lambda x, r, n, g, name: wait(
        f.reduce_scatter_tensor_out(x, "sum", n, name, out=_short(x, n))
    ),
    "_c10d_functional::wait_tensor": lambda x, r, n, g, name: wait(x),
    "_c10d_functional_autograd::all_gather_into_tensor": _with_gradient(
        lambda x, r, n, g, name: wait(fa.all_gather_into_tensor(x, n, name))
    ),
    "_c10d_functional_autograd::all_to_all_single": _with_gradient(
        lambda x, r, n, g, name: wait(fa.all_to_all_single(x, [4] * n, [4] * n, name))
    ),
    "_c10d_functional_autograd::reduce_scatter_tensor": _with_gradient(
        lambda x, r, n, g, name: wait(fa.reduce_scatter_tensor(x, "sum", n, name))
    ),
    "_dtensor::shard_dim_alltoall": lambda x, r, n, g, name: torch.ops._dtensor.shard_dim_alltoall(
        x[:9].view(n, 3), 0, 1, name
    ),
    "_dtensor::mesh_get_process_group": lambda x, r, n, g, name: wait(
        f.all_reduce(x, "sum", torch.ops._dtensor.mesh_get_process_group(_mesh(n), 0))
    ),
    "c10d_functional::all_gather_into_tensor": lambda x, r, n, g, name: old.wait_tensor(
        old.all_gather_into_tensor(x, "", list(range(n)), n)
    ),
    "c10d_functional::all_gather_into_tensor_coalesced": lambda x, r, n, g, name: [
        old.wait_tensor(t) for t in old.all_gather_into_tensor_coalesced([x, x * 2], "", list(range(n)), n)
    ],
    "c10d_functional::all_reduce": lambda x, r, n, g, name: old.wait_tensor(
        old.all_reduce(x, "sum", "", list(range(n)), n)
    ),
    "c10d_functional::all_reduce_coalesced": lambda x, r, n, g, name: [
        old.wait_tensor(t) for t in old.all_reduce_coalesced([x, x * 2], "sum", "", list(range(n)), n)
    ],
    "c10d_functional::all_to_all_single": lambda x, r, n, g, name: old.wait_tensor(
        old.all_to_all_single(x, [4] * n, [4] * n, "", list(range(n)), n)
    ),
    "c10d_functional::batch_p2p_ops": _batch(old.batch_p2p_ops, old.wait_tensor),
    "c10d_functional::broadcast": lambda x, r, n, g, name: old.wait_tensor(old.broadcast(x, 1, "", list(range(n)), n)),
    "c10d_functional::irecv": lambda x, r, n, g, name: _neighbours(
        x, r, n, g, name, lambda t, peer: old.isend(t, peer, 0, name), lambda t, peer: old.irecv(t, peer, 0, name)
    ),
    "c10d_functional::isend": lambda x, r, n, g, name: _neighbours(
        x, r, n, g, name, lambda t, peer: old.isend(t, peer, 7, name), lambda t, peer: old.irecv(t, peer, 7, name)
    ),
    "c10d_functional::reduce_scatter_tensor": lambda x, r, n, g, name: old.wait_tensor(
        old.reduce_scatter_tensor(x, "sum", "", list(range(n)), n)
    ),
    "c10d_functional::reduce_scatter_tensor_coalesced": lambda x, r, n, g, name: [
        old.wait_tensor(t) for t in old.reduce_scatter_tensor_coalesced([x, x * 2], "sum", "", list(range(n)), n)
    ],
    "c10d_functional::wait_tensor": lambda x, r, n, g, name: old.wait_tensor(x),
    "c10d::_allgather_base_": _filled(_long, lambda x, out, r, n, g: c._allgather_base_(out, x, g)),
    "c10d::_reduce_scatter_base_": _filled(
        _short, lambda x, out, r, n, g: c._reduce_scatter_base_(out, x, g, torch.classes.c10d.ReduceOp())
    ),
    "c10d::allgather_": _filled(_list, lambda x, out, r, n, g: c.allgather_([out], [x], g)),
    "c10d::allgather_coalesced_": _filled(
        lambda x, n: [[torch.zeros_like(x)] for _ in range(n)],
        lambda x, out, r, n, g: c.allgather_coalesced_(out, [x], g),
    ),
    "c10d::allgather_into_tensor_coalesced_": _filled(
        _long, lambda x, out, r, n, g: c.allgather_into_tensor_coalesced_([out], [x], g)
    ),
    "c10d::allreduce_": _filled(
        _same, lambda x, out, r, n, g: c.allreduce_([x], g, torch.classes.c10d.ReduceOp(), None)
    ),
    "c10d::allreduce_coalesced_": _filled(
        _same, lambda x, out, r, n, g: c.allreduce_coalesced_([x], g, torch.classes.c10d.ReduceOp())
    ),
    "c10d::alltoall_": _filled(_empty, lambda x, out, r, n, g: c.alltoall_(list(out.view(n, -1)), _parts(x, n), g)),
    "c10d::alltoall_base_": _filled(_empty, lambda x, out, r, n, g: c.alltoall_base_(out, x, g, [], [])),
    "c10d::barrier": _filled(_same, lambda x, out, r, n, g: c.barrier(x, g, [])),
    "c10d::broadcast_": _filled(_same, lambda x, out, r, n, g: c.broadcast_([x], g, 1, 0)),
    "c10d::check_for_nan": lambda x, r, n, g, name: c.check_for_nan(x),
    "c10d::gather_": _filled(_list, lambda x, out, r, n, g: c.gather_([out] if r == 1 else [], [x], g, 1)),
    "c10d::monitored_barrier_": lambda x, r, n, g, name: c.monitored_barrier_(x, g.boxed(), [], 60_000, True),
    "c10d::recv_": lambda x, r, n, g, name: _point_to_point(x, r, g.boxed(), lambda t, g: c.recv_([t], g, 0, 3)),
    "c10d::recv_any_source_": lambda x, r, n, g, name: _point_to_point(
        x, r, g.boxed(), lambda t, g: c.recv_any_source_([t], g, 3)
    ),
    "c10d::reduce_": _filled(_same, lambda x, out, r, n, g: c.reduce_([x], g, torch.classes.c10d.ReduceOp(), 1, 0)),
    "c10d::reduce_scatter_": _filled(
        _short, lambda x, out, r, n, g: c.reduce_scatter_([out], [_parts(x, n)], g, torch.classes.c10d.ReduceOp())
    ),
    "c10d::reduce_scatter_tensor_coalesced_": _filled(
        _short, lambda x, out, r, n, g: c.reduce_scatter_tensor_coalesced_([out], [x], g, torch.classes.c10d.ReduceOp())
    ),
    "c10d::scatter_": _filled(
        _short, lambda x, out, r, n, g: c.scatter_([out], [_parts(x, n)] if r == 1 else [], g, 1)
    ),
    "c10d::send": lambda x, r, n, g, name: _point_to_point(x, r, g.boxed(), lambda t, g: c.recv_([t], g, 0, 3)),
}


def _point_to_point(x, rank, group, receive):
    """Rank 0 sends to rank 1."""
    if rank < 2:
        dist.Work.unbox(c.send([x], group, 1, 3) if rank == 0 else receive(x, group)).wait()
    return x


def worker(rank: int, world_size: int, name: str) -> list | None:
    """What the operation gave to this rank, as lists."""
    x = 10.0**rank * torch.arange(1, 13)
    group = dist.group.WORLD
    return _listed(CALLS[name](x, rank, world_size, group, group.group_name))


def with_the_group_itself(rank: int, world_size: int) -> list:
    """A functional collective takes the group's name or the group."""
    return wait(f.all_reduce(torch.ones(3) * rank, "sum", dist.group.WORLD)).tolist()


def _listed(found):
    if found is None:
        return None
    return found.tolist() if isinstance(found, torch.Tensor) else [_listed(part) for part in found]
