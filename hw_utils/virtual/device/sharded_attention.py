"""How DTensors of queries, keys and values may be sharded on a virtual device.

A GPU's attention kernels have their rules in torch. Values are computed on the CPU here, by a kernel that no DTensor of
a CPU program meets with a rule; it is the same attention, so batches and heads are cut as on a GPU.
"""

from __future__ import annotations

from functools import cache

import torch


@cache
def register() -> None:
    """Gives torch the rules of the CPU's attention kernel, once in a process."""
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

    aten = torch.ops.aten

    @register_sharding(aten._scaled_dot_product_flash_attention_for_cpu.default)
    def forward(query, key, value, *others, **options):
        return alike(2, 3, others, **options)

    @register_sharding(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
    def backward(gradient, query, key, value, output, logsumexp, *others, **options):
        return alike(3, 6, others, **options)
