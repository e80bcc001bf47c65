"""What a stage of an answer's keeps: bytes that can be found, and by weak references what lives on unseen."""

from __future__ import annotations

import gc
from collections import Counter
from typing import Any

import torch

from hw_utils.checks.kept_bytes import bytes_beside, is_here
from hw_utils.core.calls.dispatch import beneath_transforms
from hw_utils.material.kept.tensors import NUMBERS, has_numbers, kept_elsewhere, kept_tensors
from hw_utils.material.kept.values import hung_on
from hw_utils.material.kept.watching import Hook, MemoryRef


class Keeper:
    """One stage, watched: of an object in another process only the tensors that can be found there are known.

    looks: whether anybody asks for what it keeps; to see that, all of it may have to come from another process.
    """

    def __init__(self, make: Any, module: torch.nn.Module, *, looks: bool) -> None:
        self.before = Counter(hung_on([module]))
        self.stage, self.make, self.module = make(module), make, module
        self.is_here, self.now, self.looks = is_here(self.stage), -1, looks
        self.watched: dict[int, list[MemoryRef]] = {}  # micro-batch -> what was made for it
        self.values: dict[int, list[torch.Tensor]] = {}  # micro-batch -> copies of its numbers
        if self.is_here and looks:
            of_stage = Counter(hung_on([module]))
            for part in module.modules():
                part.register_forward_hook(Hook(self._made))  # an answer may copy its module
            self.before += Counter(hung_on([module])) - of_stage
        self.at_first = self.n_bytes() if looks else 0

    def _made(self, part: torch.nn.Module, args: tuple, output: Any) -> None:
        if isinstance(output, torch.Tensor):
            self._refer(self.now, [output])

    def watch(self, k: int, *tensors: torch.Tensor | None) -> None:
        """From now on these and their numbers are known to be micro-batch k's, whoever keeps them."""
        if not self.looks:
            return
        found = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]
        floats = [tensor.detach().flatten().double().clone() for tensor in found if tensor.is_floating_point()]
        self.values.setdefault(k, []).extend(floats)
        if self.is_here:
            self._refer(k, found)

    def _refer(self, k: int, tensors: list[torch.Tensor]) -> None:
        refs = [MemoryRef(beneath_transforms(tensor).untyped_storage()) for tensor in tensors]
        self.watched.setdefault(k, []).extend(refs)

    def n_alive(self, k: int) -> int:
        """How many of micro-batch k's tensors somebody still keeps; they are watched no longer."""
        refs = self.watched.pop(k, [])
        if not all(ref.expired() for ref in refs):
            gc.collect()
        return len({ref.cdata for ref in refs if not ref.expired()})

    def has_a_value(self, k: int) -> bool:
        """Whether a single float somewhere is one of micro-batch k's numbers; they are known no longer."""
        values = torch.cat(self.values.pop(k, [torch.empty(0)]))
        values = values[values.abs() > 0]
        single = [t for path, t in self._tensors().items() if path.endswith(NUMBERS) or t.numel() == 1]
        floats = [t.detach().double().flatten() for t in single if t.is_floating_point()]
        return any(bool(torch.isin(numbers, values).any()) for numbers in floats)

    def graph_kept(self) -> str:
        """Where on the object a tensor is that has a graph, and with it what the graph was made from; "" if none."""
        found = kept_tensors(self.stage).items() if self.is_here else ()
        return next((path for path, tensor in found if tensor.grad_fn is not None), "")

    def n_bytes(self) -> int:
        """Bytes of floats and characters on the object, its module, its class and global names, tensors or not."""
        found = {t.untyped_storage().data_ptr(): t for t in self._tensors().values() if t.numel() and _is_data(t)}
        return bytes_beside(found.values(), self.module)

    def left_on_module(self) -> list[str]:
        """What hangs on the module and did not before it was given to the stage: attributes and hooks."""
        now = hung_on([self.module]) if self.is_here else self.stage.hung()
        return sorted(Counter(now) - self.before)

    def _tensors(self) -> dict[str, torch.Tensor]:
        if not self.is_here:
            return self.stage.kept_anywhere()
        own = kept_tensors(self.stage, with_numbers=True)
        beside = kept_elsewhere([self.make], [self.module], with_numbers=True)
        return own | {f"beside: {path}": tensor for path, tensor in beside.items()}

    def weights(self) -> list[torch.Tensor]:
        """Copies of them, as they are now."""
        return [p.detach().clone() for p in self.module.parameters()]

    def settings(self) -> list[bool]:
        """What a module has that is not numbers: which parts are in training, which parameters are followed."""
        training = [part.training for part in self.module.modules()]
        return training + [p.requires_grad for p in self.module.parameters()]


def _is_data(tensor: torch.Tensor) -> bool:
    """Masks and random states are none."""
    return has_numbers(tensor) or tensor.dtype == torch.int64
