"""All-reduces and the like as a student writes them: what the virtual cluster is timed on."""

from __future__ import annotations

import torch
import torch.distributed as dist


def ring_all_reduce(tensor: torch.Tensor) -> None:
    """Chunks travel to the left neighbour: N - 1 steps add them up, N - 1 more hand them out."""
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = tensor.view(-1).tensor_split(n)
    incoming = torch.empty_like(chunks[0])  # the longest
    for step in range(2 * (n - 1)):
        give, take = chunks[(rank - 1 + step) % n], chunks[(rank + step) % n]
        request = dist.isend(give, (rank - 1) % n)
        if step < n - 1:
            part = incoming if take.numel() == incoming.numel() else incoming[: take.numel()]
            dist.recv(part, (rank + 1) % n)
            take.add_(part)
        else:
            dist.recv(take, (rank + 1) % n)
        request.wait()


def tree_all_reduce(tensor: torch.Tensor) -> None:
    """Up a binary tree to rank 0 and down again."""
    rank, n = dist.get_rank(), dist.get_world_size()
    incoming, distance = torch.empty_like(tensor), 1
    while distance < n:
        if rank % (2 * distance) == distance:
            dist.send(tensor, rank - distance)
        elif rank % (2 * distance) == 0 and rank + distance < n:
            dist.recv(incoming, rank + distance)
            tensor.add_(incoming)
        distance *= 2
    while distance > 1:
        distance //= 2
        if rank % (2 * distance) == 0 and rank + distance < n:
            dist.send(tensor, rank + distance)
        elif rank % (2 * distance) == distance:
            dist.recv(tensor, rank - distance)


def exchange(mine: torch.Tensor, theirs: torch.Tensor, peer: int) -> None:
    """Both ways at once."""
    request = dist.isend(mine, peer)
    dist.recv(theirs, peer)
    request.wait()


def halving_doubling(tensor: torch.Tensor) -> None:
    """Recursive halving, then doubling; N a power of two, and a divisor of the length."""
    rank, distance = dist.get_rank(), dist.get_world_size() // 2
    part, seen = tensor.view(-1), []
    while distance:
        low, high = part.chunk(2)
        keep, give = (high, low) if rank & distance else (low, high)
        incoming = torch.empty_like(keep)
        exchange(give, incoming, rank ^ distance)
        keep.add_(incoming)
        seen.append((distance, keep, give))
        part, distance = keep, distance // 2
    for distance, keep, give in reversed(seen):
        exchange(keep, give, rank ^ distance)


def gather_to_root(tensor: torch.Tensor) -> None:
    """Rank 0 receives from each, in rank order."""
    if dist.get_rank():
        dist.send(tensor, 0)
    else:
        for peer in range(1, dist.get_world_size()):
            dist.recv(torch.empty_like(tensor), peer)


def scatter_from_root(tensor: torch.Tensor) -> None:
    if dist.get_rank():
        dist.recv(tensor, 0)
    else:
        for peer in range(1, dist.get_world_size()):
            dist.send(tensor, peer)


def parameter_server(tensor: torch.Tensor) -> None:
    """The last rank is the server: it receives every worker's gradient from whoever is ready, then answers all."""
    server = dist.get_world_size() - 1
    if dist.get_rank() == server:
        total = torch.zeros_like(tensor)
        for _ in range(server):
            incoming = torch.empty_like(tensor)
            dist.recv(incoming)
            total += incoming
        for peer in range(server):
            dist.send(total, peer)
    else:
        dist.send(tensor, server)
        dist.recv(tensor, server)
