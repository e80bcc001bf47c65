"""What a driver lends to an answer for one call: models, optimizers, functions, a communication layer.

Models and optimizers are copied to the answer's process and kept equal: their tensors, gradients and plain attributes
cross with the call, with each question about them, and when it returns. Functions stay where they are and are asked
for. Settings and data sets are copied once. Only the driver's side makes pickles; the other side answers in plain
values, which change what is there and add nothing.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Iterator
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FUNCTIONS = (FunctionType, MethodType, BuiltinMethodType)
KEPT_EQUAL = (nn.Module, torch.optim.Optimizer)
_PLAIN = (bool, int, float, str, type(None))


class Lent:
    """The things and functions of one call, in the order in which they were met."""

    def __init__(self, things: list | None = None, ask: Callable[..., Any] | None = None) -> None:
        """`ask(number, args)` calls a function of the driver's: on the answer's side only, where `things` came."""
        self.things, self.ask = list(things or []), ask
        self.functions: list[Callable] = []

    def pack(self, value: Any, pack: Callable[[Any], Any]) -> Any:
        """What stands for the value in a parcel.

        Raises:
            TypeError: it is nothing that can be lent.
        """
        known = [k for k, thing in enumerate(self.things) if thing is value]
        if known:
            return {"lent": known[0]}
        if self.ask is not None and isinstance(value, (Iterator, DataLoader)):
            return pack(list(value))  # a driver goes through it once
        if self.ask is None:
            if isinstance(value, FUNCTIONS):
                return {"function": self._function(value)}
            if hasattr(type(value), "LENDS"):
                parts = {name: getattr(value, name) for name in type(value).LENDS}
                return {"layer": [[name, pack(part)] for name, part in parts.items()]}
            if isinstance(value, (*KEPT_EQUAL, Dataset)) or (
                dataclasses.is_dataclass(value) and not isinstance(value, type)
            ):
                self.things.append(value)
                return {"lent": len(self.things) - 1}
        raise TypeError(f"a {type(value).__name__} does not cross")

    def _function(self, function: Callable) -> int:
        self.functions.append(function)
        return len(self.functions) - 1

    def unpack(self, kind: str, content: Any, unpack: Callable[[Any], Any]) -> Any:
        """The value that `{kind: content}` stands for.

        Raises:
            ValueError: it stands for nothing.
        """
        if kind == "lent" and type(content) is int and 0 <= content < len(self.things):
            return self.things[content]
        if self.ask is not None and kind == "function":
            return _Asking(self.ask, content)
        if self.ask is not None and kind == "layer":
            return _Layer({name: unpack(part) for name, part in content})
        raise ValueError(f"not a packed value: {kind!r}"[:100])

    def dump(self) -> bytes:
        """The things, for the other side.

        Raises:
            TypeError: one cannot be pickled.
        """
        if not self.things:
            return b""
        try:
            return pickle.dumps(self.things)
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise TypeError(f"a {type(self.things[0]).__name__} does not cross: {error}") from None

    def states(self) -> list:
        """The state of each thing that is kept equal; None for the others."""
        return [state_of(thing) if isinstance(thing, KEPT_EQUAL) else None for thing in self.things]

    def set_states(self, states: Any) -> None:
        """Makes the things what the other side says that they are.

        Raises:
            TypeError: they cannot become that.
        """
        if type(states) is not list or len(states) != len(self.things):
            raise TypeError("not the states of what was lent")
        for thing, state in zip(self.things, states):
            if isinstance(thing, KEPT_EQUAL):
                try:
                    set_state(thing, state)
                except (AttributeError, KeyError, RuntimeError, ValueError) as error:
                    raise TypeError(f"this {type(thing).__name__} does not cross: {error}") from None


class _Asking:
    """A function of the driver's, on the answer's side."""

    def __init__(self, ask: Callable[..., Any], number: int) -> None:
        self._ask, self._number = ask, number

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._ask(self._number, args, options)


class _Layer:
    """A communication layer of the driver's, on the answer's side: its values, and its methods to ask for."""

    def __init__(self, parts: dict[str, Any]) -> None:
        self.__dict__.update(parts)


def state_of(thing: nn.Module | torch.optim.Optimizer) -> dict[str, Any]:
    """All that may change, as plain values and tensors."""
    if isinstance(thing, torch.optim.Optimizer):
        return thing.state_dict()
    tensors = _tensors(thing)
    return {
        "tensors": {name: t.detach() for name, t in tensors.items()},
        "followed": {name: t.requires_grad for name, t in tensors.items()},
        "gradients": {name: t.grad.detach() for name, t in tensors.items() if t.is_leaf and t.grad is not None},
        "plain": {name: _plain_attributes(module) for name, module in thing.named_modules()},
    }


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _plain_attributes(module: nn.Module) -> dict[str, Any]:
    return {k: v for k, v in vars(module).items() if not k.startswith("_") and _is_plain(v)}


def _is_plain(value: Any, depth: int = 0) -> bool:
    if type(value) in (list, tuple):
        return depth < 5 and all(_is_plain(v, depth + 1) for v in value)
    return type(value) in _PLAIN


def set_state(thing: nn.Module | torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Makes it what `state_of` said of its counterpart; what is equal already is not touched.

    Raises:
        AttributeError, KeyError, RuntimeError, TypeError, ValueError: it has other parts, or they do not fit.
    """
    if isinstance(thing, torch.optim.Optimizer):
        thing.load_state_dict(state)
        return
    tensors = _tensors(thing)
    if state["tensors"].keys() != tensors.keys():
        raise ValueError("it has lost or gained tensors")
    for name, tensor in tensors.items():
        _set(tensor, state["tensors"][name])
        if tensor.is_leaf:
            tensor.requires_grad_(bool(state["followed"][name]))
            _set_gradient(tensor, state["gradients"].get(name))
    for name, module in thing.named_modules():
        for key, value in state["plain"][name].items():
            if key in vars(module) and _is_plain(vars(module)[key]) and _is_plain(value):
                vars(module)[key] = value


def _set(tensor: torch.Tensor, new: torch.Tensor) -> None:
    if tensor.shape != new.shape or tensor.dtype != new.dtype:
        tensor.data = new
    elif not _is_same(tensor, new):
        tensor.data.copy_(new)  # `.data`: autograd, which may have it in a graph, takes no notice


def _set_gradient(tensor: torch.Tensor, new: torch.Tensor | None) -> None:
    if new is None or tensor.grad is None or tensor.grad.shape != new.shape or tensor.grad.dtype != new.dtype:
        tensor.grad = new
    else:
        _set(tensor.grad, new)


def _is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """To the bit where it matters: -0 is 0, and nan is nan."""
    return bool(torch.equal(a, b)) or bool(((a == b) | ((a != a) & (b != b))).all())
