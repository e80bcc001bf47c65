"""A training step of GPT as Megatron-LM runs it: tensor, data and pipeline parallelism on one mesh, 1F1B.

After Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters". Vocabulary-parallel
embedding and loss, one embedding for both ends, a flat float32 buffer of gradients that data-parallel ranks sum.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from hw_utils.core.memory import own
from tests.virtual.programs.shapes.megatron import Shape, Stage

AXES = ("pp", "dp", "tp")


@dataclass(frozen=True)
class Plan:
    """How a model of `layers` layers is spread: stages x replicas x shards, and what each replica trains on."""

    shape: Shape  # of a stage
    vocabulary: int
    mesh: tuple[int, int, int]  # pp, dp, tp
    micro_batches: int  # of each replica

    @property
    def by_axis(self) -> dict[str, int]:
        return dict(zip(AXES, self.mesh))


class SummedOver(torch.autograd.Function):
    """The sum over a group of what its ranks hold; the gradient is everybody's."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Part(nn.Module):
    """One stage on one rank: words at the first, the loss at the last."""

    def __init__(self, plan: Plan, shape: Shape, stage: int) -> None:
        super().__init__()
        self.plan, self.shape, self.is_first, self.is_last = plan, shape, stage == 0, stage == plan.mesh[0] - 1
        self.stage = Stage(shape)
        if self.is_first or self.is_last:  # weight: local (vocabulary / tp, width)
            self.words = nn.Embedding(plan.vocabulary // shape.n_shards, shape.width, dtype=torch.bfloat16)
        if self.is_first:
            self.places = nn.Embedding(shape.length, shape.width, dtype=torch.bfloat16)
        if self.is_last:
            self.norm = nn.LayerNorm(shape.width, dtype=torch.bfloat16)

    def forward(self, x):
        """x: tokens (sequence, batch) at the first stage, else (sequence, batch, width)."""
        if self.is_first:
            mine = x % self.words.num_embeddings  # those of other shards are masked to zero
            x = SummedOver.apply(self.words(mine), self.shape.group)
            x = x + self.places(torch.arange(self.shape.length, device=x.device)).unsqueeze(1)
        x = self.stage(x)
        return self.loss(self.norm(x)) if self.is_last else x

    def loss(self, x):
        """Cross-entropy over a vocabulary that is spread over shards."""
        group = self.shape.group
        scores = torch.matmul(x, self.words.weight.t()).float()  # (sequence, batch, vocabulary / tp)
        largest = scores.detach().amax(-1)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        scores = scores - largest.unsqueeze(-1)
        of_target = SummedOver.apply(scores[..., 0], group)
        return (SummedOver.apply(scores.exp().sum(-1), group).log() - of_target).mean()


class FlatAdam:
    """Adam on float32 copies; gradients of all parameters lie in one float32 buffer, as in Megatron-LM."""

    def __init__(self, parameters) -> None:
        self.parameters = list(parameters)
        self.gradients = torch.zeros(sum(p.numel() for p in self.parameters), dtype=torch.float32)
        own("gradients", self.gradients)
        self.mains, at = [], 0
        for parameter in self.parameters:
            main = parameter.detach().float()
            own("optimizer", main)
            main.grad = self.gradients[at : at + main.numel()].view_as(main)
            at += main.numel()
            self.mains.append(main)
            parameter.register_post_accumulate_grad_hook(lambda p, gradient=main.grad: self._add(p, gradient))
        self.adam = torch.optim.Adam(self.mains, foreach=True)

    def _add(self, parameter, gradient) -> None:
        gradient += parameter.grad
        parameter.grad = None

    def gradient_of(self, parameter):
        return next(main.grad for main, p in zip(self.mains, self.parameters) if p is parameter)

    def step(self) -> None:
        self.adam.step()
        torch._foreach_copy_([p.data for p in self.parameters], self.mains)


class Pipe:
    """The two neighbours of a stage, and one-forward-one-backward."""

    def __init__(self, part: Part, mesh) -> None:
        self.part, self.shape = part, part.shape
        ranks, stage = dist.get_process_group_ranks(mesh.get_group("pp")), mesh.get_local_rank("pp")
        self.stage, self.n_stages = stage, len(ranks)
        self.before = None if part.is_first else ranks[stage - 1]
        self.after = None if part.is_last else ranks[stage + 1]

    def message(self):
        n = self.shape.n_shards if self.shape.sequence_parallel else 1
        size = self.shape.length // n, self.shape.micro_batch, self.shape.width
        return torch.empty(size, dtype=torch.bfloat16)

    def exchange(self, *, sent=None, to=None, source=None):
        """Sends and receives at once; the tensor received, or None."""
        got = None if source is None else self.message()
        ops = [] if to is None or sent is None else [dist.P2POp(dist.isend, sent, to)]
        ops += [] if source is None else [dist.P2POp(dist.irecv, got, source)]
        for work in dist.batch_isend_irecv(ops) if ops else ():
            work.wait()
        return got

    def forward(self, x):
        if self.before is None:
            x = torch.randint(0, self.part.plan.vocabulary, (self.shape.length, self.shape.micro_batch))
        else:
            x.requires_grad_()
        return x, self.part(x)

    def backward(self, x, y, gradient):
        if self.after is None:
            (y / self.part.plan.micro_batches).backward()
        else:
            torch.autograd.backward(y, gradient)
        return x.grad if self.before is not None else None

    def step(self) -> None:
        """Forward and backward passes of all micro-batches, in Megatron-LM's order."""
        n, ahead = self.part.plan.micro_batches, min(self.n_stages - self.stage - 1, self.part.plan.micro_batches)
        kept = []
        for _ in range(ahead):
            kept.append(self.forward(self.exchange(source=self.before)))
            self.exchange(sent=kept[-1][1].detach(), to=self.after)
        x = self.exchange(source=self.before) if ahead < n else None
        for k in range(n - ahead):
            kept.append(self.forward(x))
            gradient = self.exchange(sent=kept[-1][1].detach(), to=self.after, source=self.after)
            back = self.backward(*kept.pop(0), gradient)
            x = self.exchange(sent=back, to=self.before, source=self.before if k < n - ahead - 1 else None)
        for _ in range(ahead):
            back = self.backward(*kept.pop(0), self.exchange(source=self.after))
            self.exchange(sent=back, to=self.before)


def train(rank: int, world_size: int, plan: Plan) -> tuple[float, float]:
    """One step; (when it began, when it ended), in virtual seconds."""
    mesh = init_device_mesh("cuda", plan.mesh, mesh_dim_names=AXES)
    n_stages = plan.mesh[0]
    replicas = world_size // n_stages  # ranks of one stage
    ends = [dist.new_group(sorted({first, first + world_size - replicas})) for first in range(replicas)]
    stage = mesh.get_local_rank("pp")
    part = Part(plan, replace(plan.shape, group=mesh.get_group("tp")), stage)
    optimizer, pipe = FlatAdam(part.parameters()), Pipe(part, mesh)
    torch.cuda.synchronize()
    dist.barrier()
    begin_s = time.perf_counter()
    pipe.step()
    dist.all_reduce(optimizer.gradients, group=mesh.get_group("dp"))
    if n_stages > 1 and (part.is_first or part.is_last):
        dist.all_reduce(optimizer.gradient_of(part.words.weight), group=ends[rank % replicas])
    optimizer.step()
    torch.cuda.synchronize()
    dist.barrier()
    return begin_s, time.perf_counter()
