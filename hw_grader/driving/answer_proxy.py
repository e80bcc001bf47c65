"""The driver's side of a student's answer: a stand-in that is called like the function but runs it elsewhere.

The driver, `launch`, `simulate` and their ledger then work in processes that no student's code has ever been in. What
the answer wants of torch.distributed, it asks for over its line; the stand-in does it, on the rank that called.
"""

from __future__ import annotations

import copy
import os
import socket
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from hw_grader.driving.answer_call import Conversation, Given, send_with_things
from hw_grader.driving.marshalling.call_channel import HungUp, Line
from hw_grader.driving.marshalling.lent_memory import expected
from hw_grader.driving.marshalling.lent_objects import Lent
from hw_grader.driving.marshalling.packed_values import Parcel, Unpacker, containers_in
from hw_grader.driving.marshalling.tensor_lifetimes import Held
from hw_grader.driving.process_of_each_rank import PROCESS_OF_EACH_RANK
from hw_utils.material.handwritten_layer import Handmade

# The default group of a rank of a run -> whose copy of the answers it calls: ranks share no variables.
_copies: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


_ENDED = "the answer ended its process: os._exit, or a crash?"


class AnswerEnded(Exception):
    """The process with the answers is gone."""

    told_without_module = True  # a student has none of the grader's modules


def answers_at(path: str) -> list[Any]:
    """The answers that a process serves at `path`: values as they are, functions as stand-ins."""
    line = connect(path)
    try:
        line.send({"describe": True})
        message, blob = line.receive()
        unpacker = Unpacker(blob)
        return [_answer(path, n, said, unpacker) for n, said in enumerate(message["answers"])]
    except HungUp:
        raise AnswerEnded(_ENDED) from None
    finally:
        line.close()


def _answer(path: str, number: int, said: dict, unpacker: Unpacker) -> Any:
    if "value" in said:
        return unpacker.unpack(said["value"])
    return AnswerProxy(path, number, str(said["name"])[:200])


def connect(path: str) -> Line:
    """A line to the answers."""
    end = socket.socket(socket.AF_UNIX)
    try:
        end.connect(path)
    except OSError:
        end.close()
        raise AnswerEnded(_ENDED) from None
    return Line(end)


class Session:
    """What one call lends to the answers and what they keep of it, for the calls of what they kept."""

    def __init__(self, path: str, copy: str | None) -> None:
        self.path, self.copy, self.id = PROCESS_OF_EACH_RANK.of_caller(path, copy), copy, os.urandom(8).hex()
        self.lent = Lent(of_number=self._object)
        self.works: list[tuple[Any, list]] = []
        self.groups: list[dist.ProcessGroup] = []
        # number -> of a model's forward pass: outputs, followed inputs, and the memory of all that came with it
        self.passes: dict[int, tuple[list, list, list]] = {}
        self.far: dict[int, Any] = {}
        self.held = Held()
        self.made: dict[str, nn.Module] = {}  # models that the answer has made and the driver computes
        self.hooked: dict[tuple[int, str], nn.Parameter] = {}
        self.parameters: dict[int, nn.Parameter] = {}  # of the models that the answer has built, by its numbers
        self.kinds: tuple[type, ...] = ()
        self.stepped: Callable[[], None] | None = None
        _sessions.add(self)

    def bytes_under_way(self) -> int:
        """What the driver holds for the answer: in works that nobody has waited for, and for a backward pass."""
        tensors = [t for _, held in self.works for t in held]
        tensors += [t for held in self.passes.values() for of_one in held for t in of_one]
        return sum(t.untyped_storage().nbytes() for t in {t.untyped_storage().data_ptr(): t for t in tensors}.values())

    def call(self, what: dict[str, Any], args: Any = (), options: Any = None) -> Any:
        """What the answers' process says to a call, with what it changed in the things and tensors of ours."""
        PROCESS_OF_EACH_RANK.of_caller(self.path, copy_of_caller())  # also of what no rank has made
        parcel = Parcel(self.lent, is_whole=True)
        message = {**what, "given": parcel.pack([list(args), options or {}])}
        given = Given(
            list(parcel.tensors), list(parcel.memory), list(containers_in([*args, *(options or {}).values()]))
        )
        message |= {"session": self.id, "copy": self.copy, "passes": [kind.__name__ for kind in self.kinds]}
        message["rank"] = rank = [dist.get_rank(), dist.get_world_size()] if dist.is_initialized() else None
        message["thread"] = f"{self.copy} {rank[0]}" if rank else _name_of_this_thread()
        message["random"], message["grad"] = parcel.pack(torch.get_rng_state()), torch.is_grad_enabled()
        line = connect(self.path)
        try:
            send_with_things(line, message, parcel, self.lent)
            return Conversation(line, given, self).until_returned()
        except HungUp:
            raise AnswerEnded(_ENDED) from None
        except BaseException:
            self.lent.forget_states()
            raise
        finally:
            line.close()

    def _object(self, kind: str, content: Any, unpack: Any) -> Any:
        """The one for an object that the answer keeps: a stand-in, or the model that it is a copy of."""
        number, name, built = content
        if kind != "object" or type(number) is not int:
            raise ValueError("not an object")
        if number not in self.far:
            self.far[number] = self._model(*built, unpack) if built else far_object(self, number, str(name)[:200])
        return self.far[number]

    def _model(self, like: int, tensors: Any, parts: Any, hung: Any, numbers: Any, unpack: Any) -> nn.Module:
        """A copy of one of our models with the answer's layers in the place of some of its own; `hung` is what the
        answer's keeps beside its parameters. A parameter that has two names there, in one model or two, is one here."""
        if not isinstance(self.lent.things[like], nn.Module):
            raise ValueError("not a model")
        model = copy.deepcopy(self.lent.things[like])
        for path, layer in unpack(parts).items():
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, Handmade(layer))
        mine = dict(model.named_parameters())
        for name, tensor in unpack(tensors).items():
            mine[name].data = tensor
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, self.parameters.setdefault(int(numbers[name]), mine[name]))
        model.hung = unpack(hung)
        return model

    def install_hooks(self, hooks: Any) -> None:
        """Makes our parameters call the hooks that the answer has put on its copies."""
        parameters = {thing: dict(self.lent.things[thing].named_parameters()) for thing in {hook[0] for hook in hooks}}
        for thing, name, kind in hooks:
            parameter = parameters[thing][name]
            if (id(parameter), kind) not in self.hooked:
                self.hooked[id(parameter), kind] = parameter  # as long as it lives nothing else has its id
                hook = partial(self._hook, thing, parameter, kind)
                (parameter.register_hook if kind == "gradient" else parameter.register_post_accumulate_grad_hook)(hook)

    def _hook(self, thing: int, parameter: nn.Parameter, kind: str, value: torch.Tensor) -> Any:
        name = next(name for name, p in self.lent.things[thing].named_parameters() if p is parameter)
        given = [value] if kind == "gradient" else []
        changed = self.call({"hook": [thing, name, kind]}, given)
        return changed if kind == "gradient" else None


def _name_of_this_thread() -> str:
    """One that no other thread has, nor one that comes after it has ended."""
    if not hasattr(_of_thread, "name"):
        _of_thread.name = os.urandom(8).hex()
    return _of_thread.name


_of_thread = threading.local()


def copy_of_caller() -> str | None:
    """Whose copy of the answers the calling rank uses: ranks share no variables."""
    return _copies.setdefault(dist.group.WORLD, os.urandom(16).hex()) if dist.is_initialized() else None


class AnswerProxy:
    """Called like the student's function or class; pickles by reference, so that each rank of a run has its own."""

    CROSSES_AS = "answer"

    def __init__(
        self, path: str, number: int, name: str, kinds: tuple[type, ...] = (), stepped: Callable[[], None] | None = None
    ) -> None:
        self.path, self.number, self.kinds, self.stepped = path, number, kinds, stepped
        self.__name__ = self.__qualname__ = name

    def __reduce__(self):
        return AnswerProxy, (self.path, self.number, self.__name__, self.kinds)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._session().call({"call": self.number}, args, options)

    def _session(self) -> Session:
        session = Session(self.path, copy_of_caller())
        session.kinds, session.stepped = self.kinds, self.stepped
        return session

    def number_in(self, lent: Lent) -> int:
        """What it is called in a parcel."""
        return self.number

    def with_passes_here(self, *kinds: type, stepped: Callable[[], None] | None = None) -> AnswerProxy:
        """The same answer; what models of these kinds compute in it, forward and backward, they compute here.

        stepped: called here after each step of an optimizer there.
        """
        return AnswerProxy(self.path, self.number, self.__name__, kinds, stepped)

    def new_bytes(self, n_ranks: int, *, is_at_rest: bool = False) -> list[int] | None:
        """How much of the answers' process is new since each earlier call of this, whatever holds it and in which form.

        n_ranks: of a run that begins now. is_at_rest: nothing should be under way: what the driver holds for works that
        nobody has waited for counts, too. None where it cannot be seen.
        """
        session = self._session()
        said = session.call({"settle": n_ranks})
        sessions = [one for one in list(_sessions) if one.path == session.path]
        there = [part for one in sessions for part in expected(one.lent, said.get(one.id) if said else None)]
        new = PROCESS_OF_EACH_RANK.look_at(session.path, there)
        beside = sum(one.bytes_under_way() for one in sessions) if is_at_rest else 0
        return new and [n_bytes + beside for n_bytes in new]

    def share_nothing(self, n_ranks: int) -> None:
        """In the run that comes each of so many ranks has a process of its own, until the case is over."""
        PROCESS_OF_EACH_RANK.share_nothing(n_ranks)

    def in_orders(self, *args: Any) -> Any:
        """`CallsInOrders(its class, *args)`, in the answers' process."""
        return self._session().call({"in_orders": self.number}, args)


class FarObject:
    """Something that an answer made and keeps: its attributes are asked for, its methods called there."""

    CROSSES_AS = "object"

    def __init__(self, session: Session, number: int) -> None:
        self.__dict__.update(_session=session, _number=number, _set={}, _methods=set())

    def number_in(self, lent: Lent) -> int:
        """What it is called in a parcel of its own session."""
        if lent is not self._session.lent:
            raise TypeError(f"a {type(self).__name__} does not cross: it belongs to other objects")
        return self._number

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self._methods:
            return partial(self._call, name)
        value = self._ask({"get": [self._number, name]})
        if value == ("method",):
            self._methods.add(name)
            return partial(self._call, name)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        self._set[name] = value
        self.kept_tensors()

    def _call(self, name: str, *args: Any, **options: Any) -> Any:
        return self._ask({"method": [self._number, name]}, args, options)

    def _ask(self, what: dict[str, Any], args: Any = (), options: Any = None) -> Any:
        return self._session.call({**what, "object": self._number}, [self._set, *args], options)

    def hung(self) -> list[str]:
        """The names of what hangs on the models that were lent for it."""
        return self._ask({"hung": self._number})

    def kept_tensors(self, *, beside_models: bool = False) -> dict[str, torch.Tensor]:
        """Path -> tensor that hangs on its attributes, each with all the memory that it is a view of.

        beside_models: without memory in which the weights and gradients of lent models lie.
        """
        return self._ask({"tensors": self._number, "beside_models": beside_models})

    def kept_anywhere(self) -> dict[str, torch.Tensor]:
        """The same, and what its class, global names and lent models have come to keep, floats of Python's included."""
        return self._ask({"anywhere": self._number})

    def kept_both(self) -> list[dict[str, torch.Tensor]]:
        """What hangs on its attributes, beside the lent models' memory, and what is kept anywhere, at one moment."""
        return self._ask({"both": self._number})

    def kept_values(self) -> tuple[list[str], list[str]]:
        """As texts, what hangs on it, and what is held beside it, that is no tensor of floats."""
        own, beside = self._ask({"values": self._number})
        return own, beside

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._call("__call__", *args, **options)

    def __enter__(self) -> Any:
        return self._call("__enter__")

    def __exit__(self, *error: Any) -> None:
        self._call("__exit__", None, None, None)  # the driver's error is none of its business

    def __iter__(self) -> Any:
        return iter(self._call("__iter__"))

    def __len__(self) -> int:
        return self._call("__len__")

    def __getitem__(self, key: Any) -> Any:
        return self._call("__getitem__", key)


def far_object(session: Session, number: int, name: str) -> FarObject:
    """The stand-in of a kept object, of a class with the name of its own."""
    return type(name if name.isidentifier() else "object", (FarObject,), {"__module__": "answer"})(session, number)
