"""Operations whose result's shape, or Python value, depends on elements: what they say where those are not known."""

from __future__ import annotations

import torch

from hw_utils.virtual.ranks.shapes.known_values import is_known
from hw_utils.virtual.ranks.shapes.meta_cache_keys import tensors_of
from hw_utils.virtual.ranks.shapes.meta_results import Computing


class NoValue(RuntimeError):
    """A program wants to know the value of a tensor that has none."""

    def __init__(self, what: str, tensor: torch.Tensor | None = None) -> None:
        dtype = "" if tensor is None else str(tensor.dtype).removeprefix("torch.")
        whose = "a tensor" if tensor is None else f"a {dtype} tensor of shape {tuple(tensor.shape)}"
        super().__init__(
            f'{what} needs the values of {whose}, and with values="shapes" it has none: it comes from random or '
            "uninitialised numbers, or is large. What works: numbers of Python, tensors made from them "
            "(torch.tensor(3.0), arange, integers) and what is computed from those alone. Next step: decide by sizes, "
            'steps or ranks instead, leave the line out of this run, or take values="real"'
        )


class Reading:
    """Calls of one operation whose result's shape, or Python value, depends on elements."""

    def __init__(self, mode, func) -> None:
        self.is_index = func._opname == "index"
        self.with_shapes = Computing(mode, func)
        self.text = _TEXTS.get(func._opname, f"{func._opname}()")

    def __call__(self, func, args: tuple, kwargs: dict):
        if self.is_index and not any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]):
            return self.with_shapes(func, args, kwargs)
        for tensor in tensors_of((args, kwargs)):
            if tensor.is_cpu and not is_known(tensor):
                raise NoValue(self.text, tensor)
        return func(*args, **kwargs)


_TEXTS = {
    "_local_scalar_dense": "item(), or if, float(), int() or a format of a tensor,",
    "index": "an index by a mask",
    "equal": "torch.equal()",
}
