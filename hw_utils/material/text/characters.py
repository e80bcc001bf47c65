"""A text as a data set: windows of characters, and the same windows one character later."""

from __future__ import annotations

import lzma
from functools import lru_cache
from pathlib import Path

import torch
from torch.utils.data import Dataset

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))  # what a typewriter writes: 96 characters
_NUMBER = {character: number for number, character in enumerate(ALPHABET)}


def numbers_of(text: str) -> torch.Tensor:
    """int64 (n,): each character's place in ALPHABET.

    Raises:
        ValueError: a character that is not in it.

    >>> numbers_of(" !").tolist()
    [1, 2]
    """
    foreign = sorted(set(text) - set(ALPHABET))
    if foreign:
        raise ValueError(f"a text has printable ASCII and line ends only, got {foreign[0]!r}")
    return torch.tensor([_NUMBER[character] for character in text], dtype=torch.int64)


def text_of(numbers: torch.Tensor) -> str:
    """The characters of these numbers."""
    return "".join(ALPHABET[number] for number in numbers.tolist())


class Characters(Dataset):
    """Every window of a text: `text[i]` is (x, y), int64 (context,) each; y is x one character later.

    A list or tensor of places gives (n, context) each. `nats` is the entropy of a character of the source, if known.
    """

    def __init__(self, text: str, context: int, nats: float | None = None) -> None:
        if len(text) <= context:
            raise ValueError(f"a text must be longer than its context of {context}, got {len(text)} characters")
        self.tokens, self.context, self.nats = numbers_of(text), context, nats

    def __len__(self) -> int:
        return len(self.tokens) - self.context

    def __getitem__(self, places) -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.arange(len(self))[places]
        windows = starts[..., None] + torch.arange(self.context)
        return self.tokens[windows], self.tokens[windows + 1]


@lru_cache(maxsize=1)
def alice_text() -> str:
    """Lewis Carroll's book of 1865, which is in the public domain, in the edition of the Canterbury corpus."""
    return lzma.decompress(Path(__file__).with_name("alice.txt.xz").read_bytes()).decode("ascii")
