"""What of a lent model or optimizer crosses, as plain values, and how its counterpart becomes the same.

Of a model's tensors only those cross that have changed since both sides knew them last.
"""

from __future__ import annotations

from ctypes import string_at
from typing import Any

import torch
from torch import nn

_TENSORS, _SETTINGS = ("tensors", "gradients"), ("followed", "training")


class LastExchanged:
    """What one side had of a model when its state crossed last, in either direction: the other side had the same."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Any] = {}

    def forget(self) -> None:
        """The other side may have anything."""
        self._known.clear()

    def note_pickled(self, model: nn.Module) -> None:
        """The model itself has crossed, without gradients."""
        self._known = _fingerprints({"tensors": state_of(model)["tensors"], "gradients": {}})

    def changed(self, state: dict[str, Any]) -> dict[str, Any]:
        """The same state, to be sent, with None for each tensor and each kind of settings that the other side has."""
        before, self._known = self._known, _fingerprints(state)
        same = {key for key, mark in self._known.items() if before.get(key) == mark}
        parts = {kind: {n: None if (kind, n) in same else t for n, t in state[kind].items()} for kind in _TENSORS}
        return parts | {kind: None if (kind, "") in same else state[kind] for kind in _SETTINGS}

    def has_all(self, changed: dict[str, Any]) -> bool:
        """Whether what came changes nothing."""
        come = {(kind, name): t for kind in _TENSORS for name, t in changed[kind].items()}
        come |= {(kind, ""): changed[kind] for kind in _SETTINGS}
        return come.keys() == self._known.keys() and all(t is None for t in come.values())

    def note(self, state: dict[str, Any], changed: dict[str, Any]) -> None:
        """What came has been set, and `state` is what there is now."""
        came = {kind: {n: t for n, t in state[kind].items() if changed[kind].get(n) is not None} for kind in _TENSORS}
        settings = {kind: state[kind] for kind in _SETTINGS if changed[kind] is not None}
        stays = {(kind, name) for kind in _TENSORS for name in state[kind]} | {(kind, "") for kind in _SETTINGS}
        known = {key: self._known[key] for key in stays & self._known.keys()}
        self._known = known | _fingerprints(came | settings)


def _fingerprints(state: dict[str, Any]) -> dict[tuple[str, str], Any]:
    """(kind, name) -> what tells another one from it."""
    found: dict[tuple[str, str], Any] = {(kind, ""): state[kind] for kind in _SETTINGS if kind in state}
    return found | {(kind, name): _fingerprint(t) for kind in _TENSORS for name, t in state[kind].items()}


def _fingerprint(tensor: torch.Tensor) -> tuple:
    """Equal for equal content; of what has no memory to be read, like no other."""
    is_plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided and tensor.device.type == "cpu"
    if not is_plain or not 0 < tensor.nbytes <= tensor.untyped_storage().nbytes():
        return (object(),)
    flat = tensor.contiguous()
    return flat.dtype, flat.shape, hash(string_at(flat.data_ptr(), flat.nbytes))


def state_of(thing: nn.Module | torch.optim.Optimizer) -> dict[str, Any]:
    """All that an answer may change, as plain values and tensors."""
    if isinstance(thing, torch.optim.Optimizer):
        return thing.state_dict()
    parts = list(thing.named_modules())
    tensors = _tensors_in(parts)
    return {
        "tensors": {name: t.detach() for name, t in tensors.items()},
        "followed": {name: t.requires_grad for name, t in tensors.items()},
        "gradients": {name: t.grad.detach() for name, t in tensors.items() if t.is_leaf and t.grad is not None},
        "training": {name: module.training for name, module in parts},
    }


def tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Name -> parameter or buffer, each once; the parameters first."""
    return _tensors_in(list(module.named_modules()))


def _tensors_in(parts: list[tuple[str, nn.Module]]) -> dict[str, torch.Tensor]:
    found: tuple[dict[str, torch.Tensor], ...] = ({}, {})
    seen: set[int] = set()
    for path, part in parts:
        for of_kind, own in zip(found, (part._parameters, part._buffers)):
            new = {f"{path}.{name}" if path else name: t for name, t in own.items() if t is not None}
            of_kind |= {name: t for name, t in new.items() if id(t) not in seen}
            seen.update(map(id, new.values()))
    return found[0] | found[1]


def set_state(thing: nn.Module | torch.optim.Optimizer, state: dict[str, Any], *, with_settings: bool = False) -> None:
    """Makes it what `state_of` said of its counterpart; what is None, or equal already, is not touched.

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
    followed, gradients = state["followed"], state["gradients"]
    for name, tensor in tensors.items():
        if state["tensors"][name] is not None:
            _set(tensor, state["tensors"][name])
        if tensor.is_leaf and followed is not None:
            tensor.requires_grad_(followed[name] is True)
        if tensor.is_leaf and (name not in gradients or gradients[name] is not None):
            _set_gradient(tensor, gradients.get(name))
    for name, module in thing.named_modules() if state["training"] is not None else ():
        module.training = state["training"][name] is True


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
        old, *_ = (model.get_parameter(name) for name in names)  # each of them there already
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
