"""Students' own hooks: collectives started inside backward, waited for after it."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from hw_utils import Network, simulate
from hw_utils.material.timed_layers import TimedChain


def hooked(rank: int, world_size: int, n_layers: int, backward_s: float) -> list[float]:
    """A bucket a layer, its all_reduce started from a post-accumulate hook; returns the last layer's mean gradient."""
    model = TimedChain(n_layers=n_layers, n_elements=120, backward_s=backward_s)
    flights = []

    def start(p):
        flat = p.grad.flatten().clone() * (rank + 1)
        flights.append((dist.all_reduce(flat, async_op=True), flat))

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(start)
    model(torch.ones(120, dtype=torch.float64)).backward()
    for handle, _ in flights:
        handle.wait()
    return [flat[0].item() for _, flat in flights]


@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
@pytest.mark.parametrize(("backward_s", "bucket_s"), [(1.0, 0.5), (0.5, 1.0), (1.0, 1.0)])
def test_hooks_overlap_communication_with_backward_exactly(world_size, backward_s, bucket_s):
    network = Network(latency_s=bucket_s / (2 * (world_size - 1)), bandwidth_Bps=1e30)
    run = simulate(hooked, world_size, (4, backward_s), network=network, compute="free")
    assert all(result == [world_size * (world_size + 1) / 2] * 4 for result in run)
    free_s = 0.0
    for k in range(4):
        free_s = max(free_s, (k + 1) * backward_s) + bucket_s
    assert run.seconds == pytest.approx(free_s, rel=1e-9)
