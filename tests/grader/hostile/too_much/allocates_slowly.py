"""Allocates without end, in pieces, and touches them."""

# expects: fail limit
import torch

kept = []
while True:
    try:
        kept.append(torch.ones(5_000_000))
    except (MemoryError, RuntimeError):
        pass
