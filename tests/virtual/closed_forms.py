"""What communication costs in closed form, each with its source. The lessons ask for these; hw_utils has none of them.

`t` is a link's latency in seconds, `b` its bandwidth in bytes a second, D the bytes of the tensor, N the ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hw_utils import Network


def point_to_point_s(n_bytes: int, network: Network) -> float:
    """t + D/b (Hockney, The communication challenge for MPP, 1994)."""
    return network.latency_s + n_bytes / network.bandwidth_Bps


def tree_all_reduce_s(world_size: int, n_bytes: int, network: Network) -> float:
    """2 ceil(log2 N) (t + D/b): up a binomial tree and down again (Thakur, Rabenseifner, Gropp 2005)."""
    return 2 * math.ceil(math.log2(world_size)) * point_to_point_s(n_bytes, network)


def ring_all_reduce_s(world_size: int, n_bytes: int, network: Network) -> float:
    """2 (N - 1) (t + D/(N b)), equal chunks (Patarasuk and Yuan 2009)."""
    return 2 * (world_size - 1) * point_to_point_s(n_bytes / world_size, network)


def ring_half_s(world_size: int, n_bytes: int, network: Network) -> float:
    """(N - 1) (t + D/(N b)): an all-gather or a reduce-scatter of D bytes in all (Chan et al. 2007)."""
    return ring_all_reduce_s(world_size, n_bytes, network) / 2


def halving_doubling_s(world_size: int, n_bytes: int, network: Network) -> float:
    """2 log2 N t + 2 (N - 1)/N D/b, N a power of two (Thakur, Rabenseifner, Gropp 2005)."""
    n = world_size
    return 2 * math.log2(n) * network.latency_s + 2 * (n - 1) / n * n_bytes / network.bandwidth_Bps


def at_root_s(world_size: int, n_bytes: int, network: Network) -> float:
    """(N - 1) (t + D/b): a linear gather or scatter, D bytes a rank (Chan et al. 2007)."""
    return (world_size - 1) * point_to_point_s(n_bytes, network)


def tree_s(world_size: int, n_bytes: int, network: Network) -> float:
    """ceil(log2 N) (t + D/b): a binomial broadcast or reduce (Thakur, Rabenseifner, Gropp 2005)."""
    return math.ceil(math.log2(world_size)) * point_to_point_s(n_bytes, network)


def barrier_s(world_size: int, network: Network) -> float:
    """ceil(log2 N) t: dissemination (Hensgen, Finkel, Manber 1988)."""
    return math.ceil(math.log2(world_size)) * network.latency_s


def pairwise_all_to_all_s(world_size: int, n_bytes: int, network: Network) -> float:
    """(N - 1) (t + D/(N b)): a rank sends D bytes in all, 1/N of them to each (Thakur, Rabenseifner, Gropp 2005)."""
    return (world_size - 1) * point_to_point_s(n_bytes / world_size, network)


def parameter_server_s(n_workers: int, n_bytes: int, network: Network) -> float:
    """2 N (t + D/b): one server receives from N workers, then sends to all (Li et al., OSDI 2014)."""
    return 2 * n_workers * point_to_point_s(n_bytes, network)


def overlapped_s(ready_s: Sequence[float], bucket_s: Sequence[float]) -> float:
    """When the last bucket is reduced: f_i = max(f_(i-1), r_i) + c_i (Li et al., PyTorch Distributed, VLDB 2020).

    Equal buckets, B of them, C in all during a backward pass of T: T + C/B if C <= T, else T/B + C.
    """
    done_s = 0.0
    for ready, cost in zip(ready_s, bucket_s):
        done_s = max(done_s, ready) + cost
    return done_s
