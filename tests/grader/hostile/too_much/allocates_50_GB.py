"""Allocates 50 GB at once."""

# expects: fail limit crashed
import torch

x = torch.ones(50 * 10**9 // 4)
y = bytearray(50 * 10**9)
