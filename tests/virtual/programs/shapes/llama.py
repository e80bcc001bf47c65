"""A training step of a Llama of 7 billion parameters under torch's `fully_shard`, as its users write it.

Touvron et al. 2023, "LLaMA: open and efficient foundation language models", table 2; parameters in float32, bfloat16
while they are gathered, AdamW.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Size:
    width: int = 4096
    hidden: int = 11_008
    layers: int = 32
    heads: int = 32
    vocabulary: int = 32_000
    length: int = 4096


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, width = size.heads, size.width
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, size.hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(size.hidden, width, bias=False)

    def turned(self, x, turns):
        """Rotary positions: x (batch, heads, sequence, width of a head), turns (2, sequence, half of it)."""
        a, b = x.chunk(2, -1)
        return torch.cat([a * turns[0] - b * turns[1], a * turns[1] + b * turns[0]], -1)

    def forward(self, x, turns):
        heads = (n.unflatten(-1, (self.heads, -1)).transpose(1, 2) for n in self.qkv(self.before(x)).chunk(3, -1))
        q, k, v = heads
        seen = F.scaled_dot_product_attention(self.turned(q, turns), self.turned(k, turns), v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size, self.words = size, nn.Embedding(size.vocabulary, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm, self.head = nn.RMSNorm(size.width), nn.Linear(size.width, size.vocabulary, bias=False)

    def forward(self, tokens):
        x = self.words(tokens)
        half = self.size.width // self.size.heads // 2
        angles = torch.outer(torch.arange(tokens.shape[1]), 10_000 ** (-torch.arange(half) / half))
        turns = torch.stack([angles.cos(), angles.sin()]).to(x.dtype)
        for block in self.blocks:
            x = checkpoint(block, x, turns, use_reentrant=False)
        return self.head(self.norm(x))


def train(rank: int, world_size: int, size: Size, batch: int) -> tuple[int, float]:
    """Two steps; (parameters, virtual seconds of the second)."""
    mesh = init_device_mesh("cuda", (world_size,))
    model = Llama(size).cuda()
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(2):
        torch.cuda.synchronize()
        begin_s = time.perf_counter()
        tokens = torch.randint(0, size.vocabulary, (batch, size.length + 1))
        scores = model(tokens[:, :-1]).float()
        F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
    return n_parameters, time.perf_counter() - begin_s
