"""FSDP2 and tensor parallelism on a two-dimensional mesh, as pytorch/examples' fsdp_tp_example has them."""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH = 16


class Feed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, 32), torch.nn.Linear(32, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def main():
    world_size = int(os.environ["WORLD_SIZE"])
    mesh = init_device_mesh("cpu", (world_size // 2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = torch.nn.Sequential(Feed(), Feed())
    for feed in model:
        parallelize_module(feed, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(feed, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(mesh["dp"].get_local_rank())
    for _ in range(2):
        loss = model(torch.randn(4, WIDTH, generator=data)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    shards = sum(p.to_local().detach().double().sum() for p in model.parameters())
    print(f"result {loss.item():.12f} {shards:.12f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
