"""Data, tensor and pipeline parallel ranks in a grid that a module's global holds, as picotron lays them out."""

import os

import grid_manager as grid
import torch
import torch.distributed as dist


class Copy(torch.autograd.Function):
    """Into a tensor parallel part: nothing forward, a sum of gradients backward (Megatron's f)."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=grid.here.tp_group)
        return gradient


class Sum(torch.autograd.Function):
    """Out of a tensor parallel part: a sum forward, nothing backward (Megatron's g)."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x, group=grid.here.tp_group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Block(torch.nn.Module):
    """A column parallel layer and a row parallel one: this rank's shard of both."""

    def __init__(self, width, seed):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        first, second = (torch.randn(width, width, generator=generator) / width**0.5 for _ in range(2))
        mine = grid.here.tp_rank, grid.here.tp_size
        self.first = torch.nn.Parameter(first.chunk(mine[1], 0)[mine[0]].clone())
        self.second = torch.nn.Parameter(second.chunk(mine[1], 1)[mine[0]].clone())

    def forward(self, x):
        return x + Sum.apply(torch.tanh(Copy.apply(x) @ self.first.T) @ self.second.T)


def step(block, batch):
    """One step of a pipeline stage; the loss, on the last stage."""
    here, n = grid.here, len(batch)
    x = batch
    if not here.is_first:
        x = torch.empty(n, batch.shape[1])
        dist.recv(x, src=here.before)
        x.requires_grad_()
    y = block(x)
    if here.is_last:
        loss = y.square().mean()
        loss.backward()
    else:
        loss = None
        dist.send(y.detach(), dst=here.after)
        gradient = torch.empty_like(y)
        dist.recv(gradient, src=here.after)
        y.backward(gradient)
    if not here.is_first:
        dist.send(x.grad, dst=here.before)
    for parameter in block.parameters():
        dist.all_reduce(parameter.grad, group=here.dp_group)
        parameter.grad /= here.dp_size
    return loss


def main():
    dist.init_process_group(backend="gloo", init_method="env://")
    grid.setup(tp_size=2, pp_size=2, dp_size=int(os.environ["WORLD_SIZE"]) // 4)
    block = Block(8, seed=grid.here.pp_rank)
    optimizer = torch.optim.AdamW(block.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(1000 + grid.here.dp_rank)
    for _ in range(3):
        optimizer.zero_grad()
        loss = step(block, torch.randn(4, 8, generator=data))
        optimizer.step()
    weight = sum(p.detach().double().sum() for p in block.parameters())
    print(f"result {grid.here} {weight:.12f} {'' if loss is None else f'{loss:.12f}'}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
