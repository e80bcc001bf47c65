"""A store for checkpoints, as a data centre has one: named tensors, written whole, read in ranges."""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch


class Store:
    """Named flat tensors. A write is there as a whole when its time is over, and not before; it replaces an older one.

    `writes` and `reads` say what this rank did: (name, tensor, when it was there), (name, bytes).
    """

    LENDS = ("write", "read", "names")  # what an answer may use

    def __init__(self, content: Mapping[str, torch.Tensor] | None = None, seconds_a_byte: float = 0.0) -> None:
        self.content = dict(content or {})
        self.seconds_a_byte = seconds_a_byte
        self.writes: list[tuple[str, torch.Tensor, float]] = []
        self.reads: list[tuple[str, int]] = []

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Writes a flat tensor under that name.

        Raises:
            ValueError: it is not flat.
        """
        if tensor.dim() != 1:
            raise ValueError(f"a store takes flat tensors, got one of {tuple(tensor.shape)} as {name!r}")
        kept = tensor.detach().clone()
        time.sleep(self.seconds_a_byte * kept.numel() * kept.element_size())
        self.content[name] = kept
        self.writes.append((name, kept, time.perf_counter()))

    def read(self, name: str, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Elements start to stop of what is there under that name; only these are read.

        Raises:
            KeyError: there is nothing under it.
            ValueError: some of these elements are not there.
        """
        if name not in self.content:
            raise KeyError(f"the store has no {name!r}, but {', '.join(sorted(self.content)) or 'nothing'}")
        there = len(self.content[name])
        last = there if stop is None else stop
        if min(start, last) < 0 or start < last > there:
            raise ValueError(f"{name!r} has elements 0 to {there}, asked for {start} to {last}")
        part = self.content[name][start:stop].clone()
        self.reads.append((name, part.numel() * part.element_size()))
        return part

    def names(self) -> list[str]:
        """What is there."""
        return sorted(self.content)
