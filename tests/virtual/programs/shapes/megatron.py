"""Transformer layers as Megatron-LM splits them: tensor and sequence parallelism by plain collectives, recomputation.

After Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models". Written anew, for a
group of ranks, by default all: tensors are (sequence, batch, width), in the sequence-parallel parts
(sequence / N, batch, width).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from hw_utils.core.memory import own


@dataclass(frozen=True)
class Shape:
    width: int
    heads: int
    layers: int  # of a rank
    micro_batch: int
    length: int = 2048
    dropout: float = 0.1
    sequence_parallel: bool = False
    recompute: str = "none"  # or "selective", "full"
    group: dist.ProcessGroup | None = None  # whose ranks share each layer

    @property
    def n_shards(self) -> int:
        return dist.get_world_size(self.group)


def gathered(x, group=None):
    """(sequence / N, ...) of each rank to (sequence, ...)."""
    whole = x.new_empty(x.shape[0] * dist.get_world_size(group), *x.shape[1:])
    getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(whole, x.contiguous(), group=group)
    return whole


def summed_and_scattered(x, group=None):
    """The sum over ranks of (sequence, ...), a part of the sequence each."""
    part = x.new_empty(x.shape[0] // dist.get_world_size(group), *x.shape[1:])
    getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)(part, x.contiguous(), group=group)
    return part


class Enter(torch.autograd.Function):
    """Into a tensor-parallel part: the same forward, gradients are summed."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class Leave(torch.autograd.Function):
    """Out of a tensor-parallel part: what ranks hold is summed."""

    @staticmethod
    def forward(ctx, x, sequence_parallel, group):
        ctx.sequence_parallel, ctx.group = sequence_parallel, group
        if sequence_parallel:
            return summed_and_scattered(x, group)
        ctx.mark_dirty(x)
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return (gathered(gradient, ctx.group) if ctx.sequence_parallel else gradient), None, None


class GatherThenLinear(torch.autograd.Function):
    """A linear layer of the whole sequence; it keeps this rank's part of its input, and gathers again in backward."""

    @staticmethod
    def forward(ctx, x, weight, bias, group):
        ctx.save_for_backward(x, weight)
        ctx.group = group
        return F.linear(gathered(x, group), weight, bias)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        of_input = summed_and_scattered(gradient @ weight, ctx.group)
        flat = gradient.flatten(0, 1)
        return of_input, flat.t() @ gathered(x, ctx.group).flatten(0, 1), flat.sum(0), None


class ColumnLinear(nn.Linear):
    """weight: local (d_out / N, d_in), global (d_out, d_in)."""

    def __init__(self, d_in: int, d_out: int, shape: Shape) -> None:
        super().__init__(d_in, d_out // shape.n_shards, dtype=torch.bfloat16)
        self.shape = shape

    def forward(self, x):
        if self.shape.sequence_parallel:
            return GatherThenLinear.apply(x, self.weight, self.bias, self.shape.group)
        return super().forward(Enter.apply(x, self.shape.group))


class RowLinear(nn.Linear):
    """weight: local (d_out, d_in / N), global (d_out, d_in)."""

    def __init__(self, d_in: int, d_out: int, shape: Shape) -> None:
        super().__init__(d_in // shape.n_shards, d_out, dtype=torch.bfloat16)
        self.shape = shape

    def forward(self, x):
        return Leave.apply(F.linear(x, self.weight), self.shape.sequence_parallel, self.shape.group) + self.bias


def dropped_out(x, p: float):
    """With a mask of one byte an element, as on a GPU."""
    return torch.native_dropout(x, p, True)[0]


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, self.heads = shape, shape.heads // shape.n_shards
        self.qkv = ColumnLinear(shape.width, 3 * shape.width, shape)
        self.out = RowLinear(shape.width, shape.width, shape)

    def core(self, q, k, v, future):
        length, n, _ = q.shape  # (sequence, batch * heads, width of a head)
        scores = torch.baddbmm(
            q.new_empty(n, length, length), q.transpose(0, 1), k.permute(1, 2, 0), beta=0, alpha=q.shape[2] ** -0.5
        )
        weights = dropped_out(F.softmax(scores.masked_fill_(future, float("-inf")), -1), self.shape.dropout)
        return torch.bmm(weights, v.transpose(0, 1))

    def forward(self, x, future):
        qkv = self.qkv(x)
        length, batch, _ = qkv.shape
        parts = qkv.view(length, batch * self.heads, -1).chunk(3, 2)
        if self.shape.recompute == "selective":
            seen = checkpoint(self.core, *parts, future, use_reentrant=False)
        else:
            seen = self.core(*parts, future)
        seen = seen.view(batch, self.heads, length, -1).permute(2, 0, 1, 3)
        return self.out(seen.reshape(length, batch, -1))


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, self.attention = shape, Attention(shape)
        self.before, self.between = (nn.LayerNorm(shape.width, dtype=torch.bfloat16) for _ in range(2))
        self.up, self.down = (
            ColumnLinear(shape.width, 4 * shape.width, shape), RowLinear(4 * shape.width, shape.width, shape),
        )  # fmt: skip

    def forward(self, x, future):
        x = x + dropped_out(self.attention(self.before(x), future), self.shape.dropout)
        return x + dropped_out(self.down(F.gelu(self.up(self.between(x)))), self.shape.dropout)


class Stage(nn.Module):
    """The layers of one pipeline stage, or of one of its chunks."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, self.layers = shape, nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.register_buffer("future", torch.ones(shape.length, shape.length, dtype=torch.bool).triu(1), False)

    def input(self):
        """What the embedding, or the stage before, gives for a micro-batch."""
        n = self.shape.n_shards if self.shape.sequence_parallel else 1
        size = self.shape.length // n, self.shape.micro_batch, self.shape.width
        return torch.randn(size, dtype=torch.bfloat16, requires_grad=True)

    def forward(self, x):
        for layer in self.layers:
            full = self.shape.recompute == "full"
            x = checkpoint(layer, x, self.future, use_reentrant=False) if full else layer(x, self.future)
        return x


class MixedAdam:
    """Parameters in bfloat16; gradients, parameters and Adam's moments in float32."""

    def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
        self.pairs = []
        for parameter in parameters:
            main, gradient = parameter.detach().float(), torch.zeros_like(parameter, dtype=torch.float32)
            own("optimizer", main)
            own("gradients", gradient)
            self.pairs.append((parameter, main, gradient))
            parameter.register_post_accumulate_grad_hook(lambda p, gradient=gradient: self._add(p, gradient))
        self.adam = torch.optim.Adam([main for _, main, _ in self.pairs])

    def _add(self, parameter: nn.Parameter, gradient) -> None:
        gradient += parameter.grad
        parameter.grad = None

    def step(self) -> None:
        for _, main, gradient in self.pairs:
            main.grad = gradient
        self.adam.step()
        for parameter, main, _ in self.pairs:
            parameter.data.copy_(main)
