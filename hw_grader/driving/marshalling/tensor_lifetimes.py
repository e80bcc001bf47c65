"""How long tensors live that an answer hands to a function of the driver's: as long there as in the answer's process.

What crosses is a copy. So a check that watches what it was given, by weak references, would see only copies go; the
driver keeps each for as long as the memory lives of which it is one, or another copy in the answer's variables. It has
the answers' process's word for that.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from hw_utils.core.source.students_files import students_frames
from hw_utils.material.kept.tensors import Memories, kept_by_frames

_PACKAGE = os.path.join(Path(__file__).absolute().parents[2], "")  # ends with a separator


class Handed:
    """On the answer's side: memory that went to functions of the driver's, by number."""

    def __init__(self) -> None:
        self.alive: dict[int, StorageWeakRef] = {}
        self.contents: dict[int, torch.Tensor] = {}
        self.n_handed = 0

    def numbers(self, tensors: Sequence[torch.Tensor], lent: Sequence[torch.Tensor]) -> list[int | None]:
        """The number of each tensor's memory, which it keeps when it is handed over again; None for the driver's."""
        known = {ref.cdata: number for number, ref in self.alive.items()}
        theirs, of_lent = {tensor.untyped_storage()._cdata for tensor in lent}, Memories(lent)
        found: list[int | None] = []
        for tensor in tensors:
            storage = tensor.untyped_storage()
            number = None if storage._cdata in theirs else known.get(storage._cdata)
            if number is None and storage._cdata not in theirs:
                number = known[storage._cdata] = self.n_handed
                self.alive[number], self.n_handed = StorageWeakRef(storage), self.n_handed + 1
            if number is not None:
                self.contents[number] = tensor.detach().flatten()[: 0 if of_lent.have(tensor) else None].clone()
            found.append(number)
        return found

    def gone(self) -> list[int]:
        """The numbers of memory that nobody has any more, nor a copy in a variable; told once."""
        found = [number for number, ref in self.alive.items() if ref.expired()]
        frames = (f for f in students_frames() if not f.f_code.co_filename.startswith(_PACKAGE))
        kept = Memories(kept_by_frames(frames) if found else ())
        found = [number for number in found if not kept.have(self.contents[number])]
        for number in found:
            del self.alive[number], self.contents[number]
        return found


class Held:
    """On the driver's side: the latest copy of each."""

    def __init__(self) -> None:
        self.copies: dict[int, torch.Tensor] = {}

    def take(self, numbers: object, tensors: Sequence[torch.Tensor], gone: object) -> None:
        """Lets go of what is gone there, and holds these.

        Raises:
            ValueError: not a number or None for each tensor.
        """
        are_numbers = isinstance(numbers, list) and all(n is None or type(n) is int for n in numbers)
        if not are_numbers or len(numbers) != len(tensors) or not isinstance(gone, list):
            raise ValueError("not the numbers of what was handed over")
        for number in gone:
            self.copies.pop(number, None)
        self.copies |= {number: tensor for number, tensor in zip(numbers, tensors) if number is not None}
