"""Ways to a tensor's values that torch's dispatcher does not see: each asks first whether there are any."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps

import torch
from torch import _tensor_str
from torch.jit import _builtins

from hw_utils.core.calls.patched import patched
from hw_utils.virtual.ranks.shapes.data_dependent import NoValue
from hw_utils.virtual.ranks.shapes.known_values import is_known

_READERS = {"tolist": "tolist()", "numpy": "numpy()", "__array__": "numpy", "__dlpack__": "__dlpack__()"}
_PRINTED = _tensor_str._str


def lacks_values(value) -> bool:
    """Whether it is a tensor of this process's memory without values."""
    return (
        isinstance(value, torch.Tensor)
        and type(value).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        and value.layout is torch.strided
        and value.is_cpu
        and not is_known(value)
    )


@contextmanager
def values_asked_for() -> Iterator[None]:
    """While it lasts, who reads elements that are nowhere gets an error, and prints and pickles have shapes."""
    with ExitStack() as stack:
        for name, text in _READERS.items():
            stack.enter_context(patched(torch.Tensor, name, _asking(getattr(torch.Tensor, name), text)))
        stack.enter_context(patched(torch.Tensor, "__reduce_ex__", _pickled(torch.Tensor.__reduce_ex__)))
        stack.enter_context(patched(torch.nn.Parameter, "__reduce_ex__", _pickled(torch.nn.Parameter.__reduce_ex__)))
        stack.enter_context(patched(_tensor_str, "_str", _shown))
        for name in ("tensor", "as_tensor"):
            original, instead = getattr(torch, name), _made_of_numbers(getattr(torch, name), f"torch.{name}()")
            stack.enter_context(patched(torch, name, instead))
            known_to_scripts = _builtins._get_builtin_table()  # by id: of what torch.jit.script does not look into
            known_to_scripts[id(instead)] = known_to_scripts.get(id(original))
            stack.callback(known_to_scripts.pop, id(instead))
        yield


def _asking(original: Callable, text: str) -> Callable:
    @wraps(original)
    def call(tensor, *args, **kwargs):
        if lacks_values(tensor):
            raise NoValue(text, tensor)
        return original(tensor, *args, **kwargs)

    return call


def _made_of_numbers(original: Callable, text: str) -> Callable:
    """Lists of tensors are read where no mode sees it; a tensor itself is copied as any other."""

    @wraps(original)
    def call(data, *args, **kwargs):
        if isinstance(data, (list, tuple)):
            for item in data:
                if lacks_values(item):
                    raise NoValue(f"{text} of a list", item)
        return original(data, *args, **kwargs)

    return call


def _pickled(original: Callable) -> Callable:
    """On its way out of the run, or into a file, a tensor without values is one of the device "meta"."""

    @wraps(original)
    def reduce(tensor, protocol):
        if not lacks_values(tensor):
            return original(tensor, protocol)
        like = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
        if isinstance(tensor, torch.nn.Parameter):
            like = torch.nn.Parameter(like, tensor.requires_grad)
        return original(like, protocol)

    return reduce


def _shown(tensor, *, tensor_contents=None):
    if tensor_contents is not None or not lacks_values(tensor):
        return _PRINTED(tensor, tensor_contents=tensor_contents)
    said = [f"tensor(..., size={tuple(tensor.shape)}"]
    if tensor.dtype is not torch.get_default_dtype():
        said.append(f"dtype={tensor.dtype}")
    if tensor.grad_fn is not None:
        said.append(f"grad_fn=<{type(tensor.grad_fn).__name__}>")
    elif tensor.requires_grad:
        said.append("requires_grad=True")
    return ", ".join(said) + ")"
