"""What a driver lends to an answer, and what an answer keeps for a driver.

The driver's models and optimizers are copied to the answer's process: weights, gradients, buffers and momentum cross
with each call, with each question about them, and come back when it returns, of a model those that have changed; so
does whether it is in training, and which parameters are new objects. Nothing else of them does. Functions stay where
they are and are asked for, and so do the passes of a model whose class only the driver has. Settings and data sets are
copied once. What an answer makes and is no plain value, a layer for example, stays in its process too: the driver has
its number.

Only the driver's side makes pickles; the other side answers in plain values, which change what is there.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import pickle
from collections.abc import Callable, Iterator
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from hw_grader.driving.marshalling.model_and_optimizer_states import (
    LastExchanged,
    move_memory,
    move_parameters,
    replace_parameters,
    set_state,
    state_of,
    tensors_of,
)
from hw_grader.driving.marshalling.passes_elsewhere import Shell, shell_of
from hw_utils.material.by_hand.interface import Interface
from hw_utils.material.kept.tensors import kept_elsewhere

FUNCTIONS = (FunctionType, MethodType, BuiltinMethodType, functools.partial)
KEPT_EQUAL = (nn.Module, torch.optim.Optimizer)
OURS = "hw_utils.checks"  # what is defined there is not in the answer's process


class Lent:
    """The things and functions of one driver and one answer, in the order in which they were met."""

    def __init__(self, ask: Callable[..., Any] | None = None, of_number: Callable[..., Any] | None = None) -> None:
        """ask: calls the driver's function of a number; on the answer's side only.
        of_number: what the other side named with `object` (on both sides) or `answer`."""
        self.things: list[Any] = []
        self.functions: list[Callable] = []  # on the driver's side
        self.kept: list[Any] = []  # what the answer made, on its side
        self.built: list[torch.Tensor] = []  # parameters of the models among that
        self.parameters: dict[int, dict[str, nn.Parameter]] = {}  # of each model, as both sides know them
        self.addresses: dict[int, dict[str, int]] = {}  # of each model's tensors, when that was noted
        self.exchanged: dict[int, LastExchanged] = {}  # of each model
        self.ask, self.of_number = ask, of_number
        self._n_dumped = 0

    def pack(self, value: Any, pack: Callable[[Any], Any]) -> Any:
        """What stands for the value in a parcel.

        Raises:
            TypeError: it is nothing that can be lent.
        """
        known = [k for k, thing in enumerate(self.things) if thing is value]
        if known:
            return {"lent": known[0]}
        return self._pack_made(value, pack) if self.ask is not None else self._pack_own(value, pack)

    def _pack_made(self, value: Any, pack: Callable[[Any], Any]) -> Any:
        """On the answer's side: what a driver goes through once, or else a number for it."""
        if isinstance(value, DataLoader):
            return pack(list(value))
        if isinstance(value, Iterator):
            return {"iterator": [type(value).__name__[:200], pack(list(value))]}
        if isinstance(value, Asking):
            return {"function": value.number}
        known = [k for k, kept in enumerate(self.kept) if kept is value]
        if not known:
            self.kept.append(value)
        number = known[0] if known else len(self.kept) - 1
        return {"object": [number, type(value).__name__[:200], self._built(value, pack)]}

    def _built(self, value: Any, pack: Callable[[Any], Any]) -> Any:
        """Of a copy of a lent model with layers in the place of some parts: of which one, its tensors, these layers,
        and what else hangs on its parts."""
        if not isinstance(value, nn.Module):
            return None
        like = [k for k, thing in enumerate(self.things) if type(thing) is type(value)]
        parts = {name: part.layer for name, part in value.named_modules() if type(part).__name__ == "Handmade"}
        if not like or any(isinstance(part, Asking) for part in parts.values()):
            return None
        tensors = {n: t.detach() for n, t in tensors_of(value).items() if n.rpartition(".")[0] not in parts}
        return [
            like[0],
            pack(tensors),
            pack(parts),
            pack({p: t.detach() for p, t in kept_elsewhere([], [value]).items()}),
            {name: self._number_of(t) for name, t in tensors_of(value).items() if name in tensors},
        ]

    def _number_of(self, tensor: torch.Tensor) -> int:
        """The same for the same tensor, under whatever names."""
        known = [k for k, one in enumerate(self.built) if one is tensor]
        if not known:
            self.built.append(tensor)
        return known[0] if known else len(self.built) - 1

    def _pack_own(self, value: Any, pack: Callable[[Any], Any]) -> Any:
        """On the driver's side."""
        if isinstance(value, Iterator):
            return pack(list(value))
        if hasattr(type(value), "CROSSES_AS"):
            return {value.CROSSES_AS: value.number_in(self)}
        if isinstance(value, FUNCTIONS):
            return {"function": self.function(value)}
        if hasattr(type(value), "LENDS"):
            parts = {name: getattr(value, name) for name in value.LENDS}
            return {"layer": [[name, pack(part)] for name, part in parts.items()]}
        is_settings = dataclasses.is_dataclass(value) and not isinstance(value, type)
        if isinstance(value, (*KEPT_EQUAL, Dataset)) or is_settings:
            self.things.append(value)
            return {"lent": len(self.things) - 1}
        raise TypeError(f"a {type(value).__name__} does not cross")

    def function(self, function: Callable) -> int:
        """The number of a function of the driver's."""
        if function not in self.functions:
            self.functions.append(function)
        return self.functions.index(function)

    def unpack(self, kind: str, content: Any, unpack: Callable[[Any], Any]) -> Any:
        """The value that `{kind: content}` stands for.

        Raises:
            ValueError: it stands for nothing.
        """
        if kind == "lent" and type(content) is int and 0 <= content < len(self.things):
            return self.things[content]
        if kind == "iterator":
            name, values = content
            return drawn(str(name)[:200], unpack(values))
        if kind in ("object", "answer") and self.of_number is not None:
            return self.of_number(kind, content, unpack)
        if self.ask is None and kind == "function" and type(content) is int and 0 <= content < len(self.functions):
            return self.functions[content]
        if self.ask is not None and kind == "function":
            return Asking(self.ask, content)
        if self.ask is not None and kind == "layer":
            return Interface({name: unpack(part) for name, part in content})
        raise ValueError(f"not a packed value: {kind!r}"[:100])

    def dump(self) -> bytes:
        """The things that the other side does not have yet.

        Raises:
            TypeError: one cannot be pickled.
        """
        new = self.things[self._n_dumped :]
        if not new:
            return b""
        file = io.BytesIO()
        try:
            _Pickler(file, self).dump(new)
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise TypeError(f"a {type(new[0]).__name__} does not cross: {error}") from None
        for number in range(self._n_dumped, len(self.things)):
            self._note_pickled(number)
        self._n_dumped = len(self.things)
        return file.getvalue()

    def _note_pickled(self, number: int) -> None:
        if isinstance(self.things[number], nn.Module):
            self.exchanged.setdefault(number, LastExchanged()).note_pickled(self.things[number])

    def load(self, things: bytes) -> None:
        """Takes over what the driver has dumped."""
        if things:
            unpickler = pickle.Unpickler(io.BytesIO(things))
            unpickler.persistent_load = self._known
            for thing in unpickler.load():
                self.things.append(thing)
                self._note_pickled(len(self.things) - 1)
                if isinstance(thing, nn.Module):
                    self._note_parameters(len(self.things) - 1, tensors_of(thing))
                    for path, part in thing.named_modules():
                        if isinstance(part, Shell):
                            part.at = [len(self.things) - 1, path]

    def _known(self, name: tuple[str, int]) -> Any:
        kind, number = name
        return self.things[number] if kind == "lent" else Asking(self.ask, number)

    def states(self) -> list:
        """What has changed of each thing that is kept equal, to be sent; None for the others."""
        return [
            self._state(number, thing) if isinstance(thing, KEPT_EQUAL) else None
            for number, thing in enumerate(self.things)
        ]

    def _state(self, number: int, thing: nn.Module | torch.optim.Optimizer) -> dict[str, Any]:
        state = state_of(thing)
        placed = self._placed_anew(number, state.get("tensors", {}))
        if isinstance(thing, nn.Module):
            known = self.exchanged.setdefault(number, LastExchanged())
            if any(placed.values()):  # the names are those of others now
                known.forget()
            state = known.changed(state)
        return {**state, **placed}

    def forget_states(self) -> None:
        """A call has failed: what the other side has made of the things is not known, and all of them cross next."""
        self.exchanged.clear()

    def _note_parameters(self, number: int, tensors: dict[str, torch.Tensor]) -> None:
        self.parameters[number] = dict(self.things[number].named_parameters(remove_duplicate=False))
        self.addresses[number] = {name: t.data_ptr() for name, t in tensors.items()}

    def _placed_anew(self, number: int, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
        """What has changed since the last exchange: "replaced", the names of parameters that are new objects, those of
        one together, "moved", name -> the name that the same object had (a model's layers in another order), and
        "elsewhere", the names of tensors that lie in other memory: who has a view of them does not see what they hold.
        """
        known, replaced, moved = self.parameters.get(number), {}, {}
        lay, elsewhere = self.addresses.get(number, {}), []
        if isinstance(self.things[number], nn.Module):
            self._note_parameters(number, tensors)
            names = {id(parameter): name for name, parameter in (known or {}).items()}
            for name, parameter in self.parameters[number].items() if known is not None else ():
                if known.get(name) is not parameter and id(parameter) in names:
                    moved[name] = names[id(parameter)]
                elif known.get(name) is not parameter:
                    replaced.setdefault(id(parameter), []).append(name)
            others = {*moved, *(name for names in replaced.values() for name in names)}
            lie = self.addresses[number]
            elsewhere = [name for name in lie if name not in others and lay.get(name, lie[name]) != lie[name]]
        return {"replaced": list(replaced.values()), "moved": moved, "elsewhere": elsewhere}

    def set_states(self, states: Any, *, with_settings: bool = False) -> None:
        """Makes the things what the other side says that they are. with_settings: also an optimizer's.

        Raises:
            TypeError: they cannot become that.
        """
        if type(states) is not list or len(states) != len(self.things):
            raise TypeError("not the states of what was lent")
        came = False
        for number, (thing, state) in enumerate(zip(self.things, states)):
            if isinstance(thing, KEPT_EQUAL):
                try:
                    came |= self._set(number, thing, state, with_settings=with_settings)
                except (AttributeError, IndexError, KeyError, RuntimeError, ValueError) as error:
                    raise TypeError(f"this {type(thing).__name__} does not cross: {error}") from None
        for number, (thing, state) in enumerate(zip(self.things, states)):  # of all: one may be a part of another
            if came and isinstance(thing, nn.Module):
                own = state_of(thing)
                self.exchanged[number].note(own, state)
                self._note_parameters(number, own["tensors"])

    def _set(self, number: int, thing: nn.Module | torch.optim.Optimizer, state: Any, *, with_settings: bool) -> bool:
        """Whether anything of a model's came."""
        replaced, moved, elsewhere = (state.pop(name) for name in ("replaced", "moved", "elsewhere"))
        if isinstance(thing, nn.Module):
            known = self.exchanged.setdefault(number, LastExchanged())
            if not (replaced or moved or elsewhere) and known.has_all(state):
                return False
            move_parameters(thing, moved)
            replace_parameters(thing, replaced)
            move_memory(thing, elsewhere)
        set_state(thing, state, with_settings=with_settings)
        return isinstance(thing, nn.Module)


class Drawn:
    """What an iterator of the answer's gave: to go through once, without a length, as where it was made."""

    def __init__(self, values: Any) -> None:
        self._values = iter(values)

    def __iter__(self) -> Iterator:
        return self

    def __next__(self) -> Any:
        return next(self._values)


def drawn(name: str, values: Any) -> Drawn:
    """An iterator over them, of a class of that name: a generator, a map, a zip."""
    return type(name if name.isidentifier() else "iterator", (Drawn,), {"__module__": "answer"})(values)


class _Pickler(pickle.Pickler):
    """The driver's own functions and classes cross by number, its models without their class."""

    def __init__(self, file: io.BytesIO, lent: Lent) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.lent = lent
        self.known = {id(thing): k for k, thing in enumerate(lent.things[: lent._n_dumped])}

    def persistent_id(self, value: Any) -> tuple[str, int] | None:
        if id(value) in self.known:
            return "lent", self.known[id(value)]
        named = value.func if isinstance(value, functools.partial) else value  # which arguments it has is not told
        is_ours = isinstance(named, FunctionType | type) and str(named.__module__).startswith(OURS)
        return ("function", self.lent.function(value)) if is_ours else None

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, nn.Module) and not is_everybodys(type(value)):
            own = value._parameters, value._buffers, value._modules
            return shell_of, (*map(dict, own), value.training)
        return NotImplemented


def is_everybodys(kind: type) -> bool:
    """Whether a model's class is torch's or a lesson's, so that the answer's process has it, too."""
    return kind.__module__.startswith(("torch.", "hw_utils.")) and not kind.__module__.startswith(OURS)


class Asking:
    """A function of the driver's, on the answer's side."""

    def __init__(self, ask: Callable[..., Any], number: int) -> None:
        self._ask, self.number = ask, number

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._ask(self.number, args, options)
