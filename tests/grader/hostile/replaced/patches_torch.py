"""torch that finds everything equal, and collectives that do nothing."""

# expects: fail
import torch
import torch.distributed as dist

torch.equal = torch.allclose = lambda *a, **k: True
torch.Tensor.__eq__ = lambda self, other: True
dist.send = dist.recv = dist.all_reduce = lambda *a, **k: None
