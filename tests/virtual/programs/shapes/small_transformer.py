"""A transformer of a few thousand numbers and a training step of it, in the ways that programs do it."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

WIDTH, HEADS, VOCABULARY, LENGTH = 32, 4, 50, 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down, self.dropout = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)

    def forward(self, x):
        n, length, _ = x.shape
        heads = (part.view(n, length, HEADS, -1).transpose(1, 2) for part in self.qkv(self.before(x)).split(WIDTH, 2))
        attention = F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + self.dropout(self.out(attention))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Transformer(nn.Module):
    def __init__(self, *, recomputes: bool = False) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(3)), nn.LayerNorm(WIDTH)
        self.head, self.recomputes = nn.Linear(WIDTH, VOCABULARY, bias=False), recomputes

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recomputes else block(x)
        return self.head(self.norm(x))


def train(rank: int, world_size: int, how: str) -> torch.Tensor:
    """Two steps; `how` names what the program does, as "fsdp2 recompute"."""
    torch.manual_seed(rank)
    model = Transformer(recomputes="recompute" in how)
    if "fsdp2" in how:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    if "ddp" in how:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach="foreach" in how, fused="fused" in how)
    for _ in range(2):
        tokens = torch.randint(0, VOCABULARY, (2, LENGTH + 1))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled="autocast" in how):
            scores = model(tokens[:, :-1])
        loss = F.cross_entropy(scores.float().flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        if "by hand" in how:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return loss.detach()
