"""A script for torchrun as people write them: it meets, trains, ends its group; --fail, --hang and --gpu go wrong."""

import argparse
import os
import sys

import manager
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--fail", type=int, default=-1)
parser.add_argument("--hang", action="store_true")
parser.add_argument("--gpu", action="store_true")


class Report:
    """Of a class of `__main__`: pickled by name."""

    def __init__(self, rank):
        self.rank = rank


def train(arguments, rank, world_size):
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr)
    data = torch.Generator().manual_seed(rank)
    for _ in range(3):
        loss = model(torch.randn(8, 4, generator=data)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"weight {model.module.weight.double().sum().item():.12f}")


def main():
    arguments = parser.parse_args()
    assert not dist.is_initialized()
    dist.init_process_group("nccl", init_method="env://")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    assert (rank, world_size) == (dist.get_rank(), dist.get_world_size())
    assert os.environ["LOCAL_RANK"] == str(rank)
    manager.start(rank)
    train(arguments, rank, world_size)
    reports = [None] * world_size
    dist.all_gather_object(reports, Report(rank))
    assert [report.rank for report in reports] == list(range(world_size))
    assert manager.current.rank == rank
    dist.destroy_process_group()
    dist.init_process_group()
    if arguments.hang:
        dist.recv(torch.zeros(1), (rank + 1) % world_size)
    if arguments.gpu:
        torch.ones(1, device="cuda")
    if rank == arguments.fail:
        sys.exit(3)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
