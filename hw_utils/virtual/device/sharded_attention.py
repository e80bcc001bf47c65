"""How DTensors of queries, keys and values may be sharded on a virtual device.

A GPU's attention kernels have their rules in torch. Values are computed on the CPU here, by a kernel that no DTensor of
a CPU program meets with a rule; it is the same attention, so batches and heads are cut as on a GPU. Where
`context_parallel` cuts the sequence, torch's own ring calls the kernel for each pair of pieces.
"""

from __future__ import annotations

import inspect
import threading

import torch

aten = torch.ops.aten
_FORWARD = aten._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default

_one_at_a_time, _registered = threading.RLock(), []


def register() -> None:
    """Gives torch the rules of the CPU's attention kernel, once in a process.

    Whoever returns from here finds all of them: a rank that comes while another is in the middle waits for it, and one
    that was stopped in the middle is followed by one that begins anew.
    """
    with _one_at_a_time:
        if not _registered:
            _register()
            _registered.append(True)


def _register() -> None:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    def alike(n_outputs: int, n_inputs: int, others: tuple, attn_mask=None, scale=None) -> list:
        """All tensors replicated, all cut by examples, or all by heads; other arguments have no placement."""
        found = []
        for each in (Replicate(), Shard(0), Shard(1)):
            inputs = [each] * n_inputs + [None] * len(others)
            if attn_mask is not None:
                is_cut = isinstance(each, Shard) and attn_mask.ndim == 4 and attn_mask.shape[each.dim] > 1
                inputs.append(each if is_cut else Replicate())
                if inputs[-1] not in attn_mask.placements:
                    continue  # torch redistributes what is given by place, not what is given by name
            found.append(([each] * n_outputs, inputs))
        return found

    @register_sharding(_FORWARD)
    def forward(query, key, value, *others, **options):
        return alike(2, 3, others, **options)

    @register_sharding(_BACKWARD)
    def backward(gradient, query, key, value, output, logsumexp, *others, **options):
        return alike(3, 6, others, **options)

    _add_to_rings()


def _add_to_rings() -> None:
    """Within `context_parallel` the CPU's kernel goes around the ring as the GPUs' kernels do."""
    from torch.distributed.tensor import experimental

    rings = inspect.unwrap(experimental.context_parallel).__globals__
    around, around_backwards = map(rings.get, ("_templated_ring_attention", "_templated_ring_attention_backward"))
    if around is None or next(iter(inspect.signature(around).parameters)) != "group":
        return  # in older versions of torch, which take other arguments

    def forward(op, args: tuple, kwargs: dict):
        query, *_ = args
        dropout_p, is_causal = (*args[3:], *(0.0, False)[len(args) - 3 :])
        local = [tensor.to_local() for tensor in args[:3]]
        found = around(
            query.device_mesh.get_group(), 2, op, *local, is_causal=is_causal, dropout_p=dropout_p, **_scale(kwargs)
        )
        return _sharded_as(query, found)

    def backward(op, args: tuple, kwargs: dict):
        gradient, query, key, value, output, logsumexp = (tensor.to_local() for tensor in args[:6])
        found = around_backwards(
            args[1].device_mesh.get_group(), 2, op, grad_out=gradient, grad_out_name="grad_out", query=query, key=key,
            value=value, out=output, logsumexp=logsumexp, dropout_p=args[6], is_causal=args[7], **_scale(kwargs),
        )  # fmt: skip
        return _sharded_as(args[1], found)

    rings["custom_ops"].update({_FORWARD: forward, _BACKWARD: backward})


def _scale(kwargs: dict) -> dict:
    """What a ring passes on.

    Raises:
        NotImplementedError: a mask, which belongs to the whole sequence.
    """
    if kwargs.get("attn_mask") is not None:
        raise NotImplementedError("context_parallel takes is_causal=True or no mask, got attn_mask, as on GPUs")
    return {"scale": kwargs.get("scale")}


def _sharded_as(query, found: tuple[torch.Tensor, ...]) -> tuple:
    """Local results as DTensors, cut where the queries are."""
    return tuple(
        type(query).from_local(tensor, query.device_mesh, query.placements, run_check=False) for tensor in found
    )
