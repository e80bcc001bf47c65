"""Right answers to lesson 02 that are not the reference's."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
import torch.distributed as dist

from tests.checks.right_answers import right, right_values

# 2.1a and b

right_values("lesson_02.tree_steps", "counts_digits", lambda n: 2 * len(f"{n - 1:b}") if n > 1 else 0)
right_values("lesson_02.tree_steps", "shifts", lambda n: 2 * next(k for k in range(99) if 1 << k >= n))


@right("lesson_02.tree_steps")
def halves_what_is_left(world_size: int) -> int:
    steps = 0
    while world_size > 1:
        world_size = (world_size + 1) // 2
        steps += 2
    return steps


@right("lesson_02.tree_steps")
@lru_cache
def calls_itself(world_size):
    return 0 if world_size == 1 else 2 + calls_itself(-(-world_size // 2))


@right("lesson_02.tree_partner")
def asks_for_the_lowest_bit(rank, step):
    low = rank & -rank
    return rank ^ low if low == 1 << (step - 1) else None


@right("lesson_02.tree_partner")
def plays_the_steps(rank, step):
    left = list(range(rank + 1))
    for _ in range(step - 1):
        left = left[::2]
    if rank in left and left.index(rank) % 2 == 1:
        return left[left.index(rank) - 1]


@right("lesson_02.tree_partner")
class PartnerAsAnObject:
    def __new__(cls, rank, step):
        if rank % 2**step == 2**step // 2:
            return rank - 2**step // 2
        return None


# 2.1c tree_all_reduce

TREE = ("lesson_02.tree_sum", "lesson_02.tree_all_reduce")
RING = ("lesson_02.ring_sum", "lesson_02.ring_all_reduce")
HALVING = "lesson_02.halving_doubling_all_reduce"


@right(*TREE)
def climbs_recursively(tensor):
    """Each call of `climb` is a step; the broadcast happens on the way back."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    data = tensor.clone(memory_format=torch.contiguous_format)

    def climb(distance):
        if distance >= world_size:
            return
        if rank % (2 * distance):
            dist.send(data, dst=rank - distance)
            dist.recv(data, src=rank - distance)
            return
        if rank + distance < world_size:
            received = torch.zeros_like(data)
            dist.recv(received, src=rank + distance)
            data.add_(received)
        climb(2 * distance)
        if rank + distance < world_size:
            dist.send(data, dst=rank + distance)

    climb(1)
    tensor.copy_(data)
    return tensor


@right(*TREE)
def sends_a_binomial_tree_flat(tensor):
    """A flat copy, irecv with a wait at once, isends that are all under way; tensor[...] = ... at the end."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    flat = tensor.reshape(-1).clone()
    distance, stack = 1, []
    while distance < world_size and rank % (2 * distance) == 0:
        if rank + distance < world_size:
            part = flat.new_empty(flat.shape)
            dist.irecv(part, rank + distance).wait()
            flat = flat + part
            stack.append(rank + distance)
        distance *= 2
    if rank:
        parent = rank & (rank - 1)
        dist.isend(flat, parent).wait()
        dist.irecv(flat, parent).wait()
    for work in [dist.isend(flat, child) for child in reversed(stack)]:
        work.wait()
    tensor[...] = flat.reshape(tensor.shape)


@right(*TREE)
def uses_batches_of_one(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    data = torch.stack([tensor]).squeeze(0)

    def exchange(op, buffer, peer):
        for work in dist.batch_isend_irecv([dist.P2POp(op, buffer, peer)]):
            work.wait()

    levels = [2**k for k in range(max(n - 1, 0).bit_length())]
    for d in levels:
        if rank % (2 * d) == d:
            exchange(dist.isend, data, rank - d)
        elif rank % (2 * d) == 0 and rank + d < n:
            incoming = torch.empty_like(data)
            exchange(dist.irecv, incoming, rank + d)
            data += incoming
    for d in levels[::-1]:
        if rank % (2 * d) == d:
            exchange(dist.irecv, data, rank - d)
        elif rank % (2 * d) == 0 and rank + d < n:
            exchange(dist.isend, data, rank + d)
    tensor.copy_(data)


@right(*TREE)
def leaves_early_when_alone(tensor):
    if dist.get_world_size() == 1:
        return tensor
    print("rank", dist.get_rank(), "starts")
    return climbs_recursively(tensor)


class _Tree:
    """A class that is called: state in the object, one object for all calls."""

    def __call__(self, tensor: torch.Tensor) -> None:
        self.mine = tensor.contiguous()
        rank, size = dist.get_rank(), dist.get_world_size()
        for phase in (self._up, self._down):
            phase(rank, size)
        if self.mine.data_ptr() != tensor.data_ptr():
            tensor.copy_(self.mine)

    def _up(self, rank, size):
        step = 1
        while step < size:
            if rank % (step * 2) == step:
                return dist.send(self.mine, rank - step)
            if rank % (step * 2) == 0 and rank + step < size:
                dist.recv(other := torch.empty_like(self.mine), rank + step)
                self.mine += other
            step *= 2

    def _down(self, rank, size):
        step = 2 ** math.ceil(math.log2(size)) // 2
        while step:
            if rank % (step * 2) == step:
                dist.recv(self.mine, rank - step)
            if rank % (step * 2) == 0 and rank + step < size:
                dist.send(self.mine, rank + step)
            step //= 2


right_values(TREE[0], "an_object_for_each_call", lambda tensor: _Tree()(tensor))
right_values(TREE[1], "an_object_for_each_call", lambda tensor: _Tree()(tensor))

# 2.2

right_values(
    "lesson_02.chunk_to_send", "adds_n", lambda rank, step, world_size: (rank + step + world_size - 2) % world_size
)
right_values("lesson_02.chunk_to_send", "fmod", lambda r, i, n: int(math.fmod(r + i - 2 + n, n)))


@right("lesson_02.chunk_to_send")
def asks_the_neighbour(rank, step, world_size):
    if step == 1:
        return rank - 1 if rank > 0 else world_size - 1
    return asks_the_neighbour((rank + 1) % world_size, step - 1, world_size)


right_values("lesson_02.chunk_owned", "adds_n", lambda rank, world_size: (rank + world_size - 2) % world_size)
right_values("lesson_02.chunk_owned", "last_received", lambda r, n: asks_the_neighbour((r + 1) % n, n - 1, n))
right_values("lesson_02.chunk_owned", "from_a_list", lambda r, n: [*range(n)][r - 2] if n > 1 else 0)


@right(*RING)
def posts_both_at_once(tensor):
    """batch_isend_irecv; the sums in a list of copies."""
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = [c.clone() for c in tensor.flatten().tensor_split(n)]
    for step in range(2 * (n - 1)):
        out, into = (rank - 1 + step) % n, (rank + step) % n
        incoming = torch.empty_like(chunks[into])
        ops = [
            dist.P2POp(dist.isend, chunks[out], (rank - 1) % n),
            dist.P2POp(dist.irecv, incoming, (rank + 1) % n),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        chunks[into] = chunks[into] + incoming if step < n - 1 else incoming
    tensor.copy_(torch.cat(chunks).view_as(tensor))


@right(*RING)
def posts_the_receive_first(tensor):
    """irecv, then a blocking send; narrow in place of tensor_split; two loops."""
    rank, n = dist.get_rank(), dist.get_world_size()
    left, right = (rank + n - 1) % n, (rank + 1) % n
    flat = tensor.flatten().contiguous()
    borders = [k * flat.numel() // n for k in range(n + 1)]

    def chunk(k):
        return flat.narrow(0, borders[k % n], borders[k % n + 1] - borders[k % n])

    for i in range(n - 1):
        buffer = torch.zeros_like(chunk(rank + i))
        receiving = dist.irecv(buffer, right)
        dist.send(chunk(rank - 1 + i), left)
        receiving.wait()
        chunk(rank + i).add_(buffer)
    for i in range(n - 1):
        receiving = dist.irecv(chunk(rank - 1 + i), right)
        dist.send(chunk(rank - 2 + i).contiguous(), left)
        receiving.wait()
    tensor.copy_(flat.view(tensor.shape))


@right(*RING)
def waits_for_all_sends_at_the_end(tensor):
    """Chunks are copied before they leave, so that every isend may be waited for late."""
    rank, n = dist.get_rank(), dist.get_world_size()
    parts, works = list(tensor.reshape(-1).clone().tensor_split(n)), []
    for step in range(1, 2 * n - 1):
        leaving = parts[(rank - 2 + step) % n].clone()
        works.append((dist.isend(leaving, (rank - 1) % n), leaving))
        k = (rank - 1 + step) % n
        incoming = torch.empty_like(parts[k])
        dist.recv(incoming, (rank + 1) % n)
        parts[k] = incoming + (parts[k] if step < n else 0)
    for work, _ in works:
        work.wait()
    tensor.copy_(torch.cat(parts).reshape(tensor.shape))


@right(*RING)
def goes_round_recursively(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return tensor
    data = tensor.contiguous()
    sizes = [data.numel() // n + (k < data.numel() % n) for k in range(n)]
    chunks = data.view(-1).split(sizes)

    def go(step):
        if step == 2 * n - 2:
            return
        into = chunks[(rank + step) % n]
        copy = torch.empty_like(into)
        receiving = dist.irecv(copy, (rank + 1) % n)
        sending = dist.isend(chunks[(rank + step - 1) % n], (rank - 1) % n)
        receiving.wait()
        sending.wait()
        into.copy_(copy + into if step < n - 1 else copy)
        go(step + 1)

    go(0)
    if data is not tensor:
        tensor.copy_(data)
    return tensor


@right(*RING)
def gives_the_last_chunks_one_more(tensor):
    """Chunks that differ by at most one element, the longer ones last."""
    rank, n = dist.get_rank(), dist.get_world_size()
    flat = tensor.flatten()
    flat = flat.clone() if flat.data_ptr() == tensor.data_ptr() else flat
    chunks = flat.split([(flat.numel() + k) // n for k in range(n)])
    for step in range(2 * n - 2):
        arriving = chunks[(rank + step) % n]
        buffer = torch.empty_like(arriving)
        work = dist.isend(tensor=chunks[(rank + step - 1) % n], dst=(rank - 1) % n)
        dist.recv(tensor=buffer, src=(rank + 1) % n)
        work.wait()
        arriving[:] = arriving + buffer if step < n - 1 else buffer
    tensor[...] = flat.view_as(tensor)


# 2.3

right_values(
    "lesson_02.point_to_point_s",
    "fraction",
    lambda m, net: (
        (net.latency_s * net.bandwidth_Bps + m) / net.bandwidth_Bps if net.bandwidth_Bps < 1e200 else net.latency_s
    ),
)
right_values(
    "lesson_02.point_to_point_s", "numpy", lambda m, net: np.float64(net.latency_s) + np.divide(m, net.bandwidth_Bps)
)
right_values(
    "lesson_02.point_to_point_s",
    "tensor",
    lambda m, net: torch.tensor(net.latency_s + m / net.bandwidth_Bps, dtype=torch.float64),
)


def _hop_s(m, net):
    return net.latency_s + m / net.bandwidth_Bps


right_values("lesson_02.tree_all_reduce_s", "math_log2", lambda n, m, net: 2 * math.ceil(math.log2(n)) * _hop_s(m, net))
right_values(
    "lesson_02.tree_all_reduce_s",
    "adds_up",
    lambda n, m, net: sum(_hop_s(m, net) for _ in range(2 * (n - 1).bit_length())),
)
right_values(
    "lesson_02.ring_all_reduce_s",
    "two_terms",
    lambda n, m, net: 2 * (n - 1) * net.latency_s + 2 * (n - 1) / n * m / net.bandwidth_Bps,
)
right_values("lesson_02.ring_all_reduce_s", "adds_up", lambda n, m, net: math.fsum([_hop_s(m / n, net)] * (2 * n - 2)))


@right("lesson_02.crossover_bytes")
def solves_two_lines(world_size, network):
    """Both times at two sizes are two lines; where they meet."""

    def times(m):
        return (
            2 * (world_size - 1).bit_length() * _hop_s(m, network),
            2 * (world_size - 1) * _hop_s(m / world_size, network),
        )

    (tree0, ring0), (tree1, ring1) = times(0), times(1e6)
    return max(0.0, 1e6 * (ring0 - tree0) / ((tree1 - tree0) - (ring1 - ring0)))


@right("lesson_02.crossover_bytes")
def bisects(world_size, network):
    levels = (world_size - 1).bit_length()

    def ring_is_slower(m):
        return 2 * (world_size - 1) * _hop_s(m / world_size, network) > 2 * levels * _hop_s(m, network)

    low, high = 0.0, 1e12
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if ring_is_slower(middle) else (low, middle)
    return low


@right("lesson_02.crossover_bytes")
def gives_zero_as_an_int(n, network):
    k = math.ceil(math.log2(n))
    if n - 1 <= k:
        return 0
    return n * network.latency_s * network.bandwidth_Bps * (n - 1 - k) / (n * k - n + 1)


# Bonus


@right(HALVING)
def halves_by_recursion(tensor):
    rank = dist.get_rank()
    data = tensor.contiguous()

    def swap(leaving, peer, into):
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, leaving, peer), dist.P2POp(dist.irecv, into, peer)])
        [work.wait() for work in works]

    def go(part, distance):
        if not distance:
            return
        peer, half = rank ^ distance, part.numel() // 2
        mine, other = (part[:half], part[half:]) if rank & distance == 0 else (part[half:], part[:half])
        incoming = torch.empty_like(mine)
        swap(other, peer, incoming)
        mine += incoming
        go(mine, distance // 2)
        swap(mine, peer, other)

    go(data.view(-1), dist.get_world_size() >> 1)
    if data is not tensor:
        tensor.copy_(data)


@right(HALVING)
def starts_with_the_neighbour(tensor):
    """Halves with the rank next door first, then two away; the bytes and rounds are the same."""
    rank, n = dist.get_rank(), dist.get_world_size()
    part, given, distance = tensor.flatten().clone(), [], 1
    whole = part
    while distance < n:
        peer = rank ^ distance
        low, high = part.tensor_split(2)
        mine, away = (low, high) if rank < peer else (high, low)
        incoming = torch.empty_like(mine)
        receiving = dist.irecv(incoming, peer)
        dist.send(away, peer)
        receiving.wait()
        mine += incoming
        given.append((mine, away, peer))
        part, distance = mine, distance * 2
    while given:
        mine, away, peer = given.pop()
        receiving = dist.irecv(away, peer)
        dist.send(mine, peer)
        receiving.wait()
    tensor.copy_(whole.view_as(tensor))
