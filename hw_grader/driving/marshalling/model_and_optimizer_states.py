"""What of a lent model or optimizer crosses, as plain values, and how its counterpart becomes the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def state_of(thing: nn.Module | torch.optim.Optimizer) -> dict[str, Any]:
    """All that an answer may change, as plain values and tensors."""
    if isinstance(thing, torch.optim.Optimizer):
        return thing.state_dict()
    tensors = tensors_of(thing)
    return {
        "tensors": {name: t.detach() for name, t in tensors.items()},
        "followed": {name: t.requires_grad for name, t in tensors.items()},
        "gradients": {name: t.grad.detach() for name, t in tensors.items() if t.is_leaf and t.grad is not None},
        "training": {name: module.training for name, module in thing.named_modules()},
    }


def tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Name -> parameter or buffer."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def set_state(thing: nn.Module | torch.optim.Optimizer, state: dict[str, Any], *, with_settings: bool = False) -> None:
    """Makes it what `state_of` said of its counterpart; what is equal already is not touched.

    Raises:
        AttributeError, KeyError, RuntimeError, TypeError, ValueError: it has other parts, or they do not fit.
    """
    if isinstance(thing, torch.optim.Optimizer):
        own = {} if with_settings else {"param_groups": thing.state_dict()["param_groups"]}
        thing.load_state_dict({**state, **own})
        return
    tensors = tensors_of(thing)
    if state["tensors"].keys() != tensors.keys():
        raise ValueError("it has lost or gained tensors; change a copy of it (copy.deepcopy)")
    for name, tensor in tensors.items():
        _set(tensor, state["tensors"][name])
        if tensor.is_leaf:
            tensor.requires_grad_(bool(state["followed"][name]))
            _set_gradient(tensor, state["gradients"].get(name))
    for name, module in thing.named_modules():
        module.training = bool(state["training"][name])


def move_parameters(model: nn.Module, moved: Any) -> None:
    """Gives parameters, the same objects, other names: name -> which one it had.

    Raises:
        AttributeError, KeyError, ValueError: there are no such parameters.
    """
    if type(moved) is not dict or not all(type(name) is str for pair in moved.items() for name in pair):
        raise ValueError("not names of parameters")
    before = dict(model.named_parameters(remove_duplicate=False))
    for name, old in moved.items():
        path, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(path), leaf, before[old])


def move_memory(model: nn.Module, names: Any) -> None:
    """Gives these tensors memory of their own: a view of what they had stays as it is.

    Raises:
        KeyError, ValueError: there are no such tensors.
    """
    if type(names) is not list or not all(type(name) is str for name in names):
        raise ValueError("not names of tensors")
    for name in names:
        tensor = tensors_of(model)[name]
        tensor.data = tensor.detach().clone()


def replace_parameters(model: nn.Module, groups: Any) -> None:
    """Makes new objects of these parameters, one for each group of names.

    Raises:
        AttributeError, IndexError, ValueError: there are no such parameters.
    """
    if type(groups) is not list or not all(type(name) is str for names in groups for name in names):
        raise ValueError("not names of parameters")
    for names in groups:
        old = model.get_parameter(names[0])
        new = nn.Parameter(old.detach().clone(), requires_grad=old.requires_grad)
        new.grad = old.grad
        for name in names:
            path, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(path), leaf, new)


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
