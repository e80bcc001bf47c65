"""Starts its ranks itself, as the tutorials do: by mp.spawn, or a process each."""

from __future__ import annotations

import contextlib
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def train(rank: int, world_size: int, way: str) -> None:
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "12355"}
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    print(way, rank, total.item())
    if way == "fails_first":
        raise ArithmeticError("the first time")
    if way != "kept":
        dist.destroy_process_group()
    if way == "leaves":
        sys.exit(0)


def without_a_number(world_size: int) -> None:
    dist.init_process_group("gloo")


def main(way: str, n: int) -> None:
    if way in ("joined", "leaves"):
        mp.spawn(train, args=(n, way), nprocs=n)
    elif way == "waited_for":
        context = mp.spawn(train, args=(n, way), nprocs=n, join=False)
        while not context.join():
            pass
    elif way == "fails_first":
        with contextlib.suppress(Exception):
            mp.spawn(train, args=(n, way), nprocs=n)
        mp.spawn(train, args=(n, "afterwards"), nprocs=n)
    elif way in ("processes", "kept"):
        mp.set_start_method("spawn", force=True)
        for _ in range(2):  # as many ranks again, once the first ones are through
            processes = [mp.Process(target=train, args=(rank, n, way)) for rank in range(n)]
            for process in processes:
                process.start()
            for process in processes:
                process.join()
            assert [process.exitcode for process in processes] == [0] * n
    else:
        process = mp.get_context("fork").Process(target=without_a_number, args=("text",))
        process.start()
        process.join()
    print("done")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
