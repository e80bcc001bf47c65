"""Tensors of every odd kind: sparse, complex, quantized, of no memory, of giant stride, NaN and -0.0."""

# expects: fail
import torch


def fit_link(sizes, seconds):
    kinds = [
        torch.zeros(2).to_sparse(), torch.zeros(2, dtype=torch.complex128), torch.empty(2, device="meta"),
        torch.zeros(1).expand(2**40), torch.zeros(2).to(torch.float8_e5m2), torch.full((2,), float("nan")),
        torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.quint8), torch.tensor([-0.0, float("inf")]),
    ]  # fmt: skip
    return kinds[len(seconds) % len(kinds)], kinds


def ping_pong(rank, world_size, n_rounds):
    return torch.zeros(1).expand(2**40) if rank else float("nan")
