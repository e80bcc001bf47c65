"""The driver's side of a student's answer: a stand-in that is called like the function but runs it elsewhere.

The driver, `launch`, `simulate` and their ledger then work in processes that no student's code has ever been in. What
the answer wants of torch.distributed, it asks for over its line; the stand-in does it, on the rank that called.
"""

from __future__ import annotations

import builtins
import copy
import linecache
import os
import socket
import sys
import time
import weakref
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call

from hw_grader.driving.lent import Lent, tensors_in
from hw_grader.driving.parcel import Line, Parcel, Unpacker
from hw_utils.material.handwritten_layer import Handmade

CALLS = frozenset({
    "send", "recv", "isend", "irecv", "batch_isend_irecv", "all_reduce", "reduce", "broadcast", "barrier", "gather",
    "scatter", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "all_to_all",
    "all_to_all_single", "all_gather_single", "reduce_scatter_single", "get_rank", "get_world_size",
})  # fmt: skip
CLOCKS = frozenset({"perf_counter", "time", "monotonic", "sleep", "perf_counter_ns", "monotonic_ns", "time_ns"})
REDUCTIONS = ("SUM", "PRODUCT", "MIN", "MAX", "AVG", "BAND", "BOR", "BXOR")


# The default group of a rank of a run -> whose copy of the answers it calls: ranks share no variables.
_copies: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


class AnswerEnded(Exception):
    """The process with the answers is gone."""


def answers_at(path: str) -> list[Any]:
    """The answers that a process serves at `path`: values as they are, functions as stand-ins."""
    line = connect(path)
    try:
        line.send({"describe": True})
        message, blob = line.receive()
        unpacker = Unpacker(blob)
        return [_answer(path, n, said, unpacker) for n, said in enumerate(message["answers"])]
    except (EOFError, ConnectionError) as error:
        raise AnswerEnded("the answer ended its process") from error
    finally:
        line.close()


def _answer(path: str, number: int, said: dict, unpacker: Unpacker) -> Any:
    if "value" in said:
        return unpacker.unpack(said["value"])
    return StandIn(path, number, str(said["name"])[:200])


def connect(path: str) -> Line:
    """A line to the answers."""
    end = socket.socket(socket.AF_UNIX)
    try:
        end.connect(path)
    except OSError as error:
        raise AnswerEnded(str(error)) from None
    return Line(end)


class Session:
    """What one call lends to the answers and what they keep of it, for the calls of what they kept."""

    def __init__(self, path: str, copy: str | None) -> None:
        self.path, self.copy, self.id = path, copy, os.urandom(8).hex()
        self.lent = Lent(of_number=self._object)
        self.works: list[tuple[Any, list]] = []
        self.passes: dict[int, tuple[list, list]] = {}  # number -> outputs and inputs of a model's forward pass
        self.far: dict[int, Any] = {}
        self.made: dict[str, nn.Module] = {}  # models that the answer has made and the driver computes
        self.hooked: set[tuple] = set()
        self.kinds: tuple[type, ...] = ()

    def call(self, what: dict[str, Any], args: Any = (), options: Any = None) -> Any:
        """What the answers' process says to a call, with what it changed in the things and tensors of ours."""
        parcel = Parcel(self.lent, is_whole=True)
        message = {**what, "given": parcel.pack([list(args), options or {}])}
        given = (list(parcel.tensors), list(parcel.memory))
        message |= {"session": self.id, "copy": self.copy, "passes": [kind.__name__ for kind in self.kinds]}
        message["rank"] = [dist.get_rank(), dist.get_world_size()] if dist.is_initialized() else None
        message["random"] = parcel.pack(torch.get_rng_state())
        line = connect(self.path)
        try:
            send_with_things(line, message, parcel, self.lent)
            return Conversation(line, given, self).until_returned()
        except (EOFError, ConnectionError) as error:
            raise AnswerEnded("the answer ended its process") from error
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

    def _model(self, like: int, tensors: Any, parts: Any, unpack: Any) -> nn.Module:
        """A copy of one of our models with the answer's layers in the place of some of its own."""
        if not isinstance(self.lent.things[like], nn.Module):
            raise ValueError("not a model")
        model = copy.deepcopy(self.lent.things[like])
        for path, layer in unpack(parts).items():
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, Handmade(layer))
        mine = dict(model.named_parameters())
        for name, tensor in unpack(tensors).items():
            mine[name].data = tensor
        return model

    def install_hooks(self, hooks: Any) -> None:
        """Makes our parameters call the hooks that the answer has put on its copies."""
        for thing, name, kind in hooks:
            parameter = dict(self.lent.things[thing].named_parameters())[name]
            if (thing, name, kind) not in self.hooked:
                self.hooked.add((thing, name, kind))
                hook = partial(self._hook, thing, name, kind)
                (parameter.register_hook if kind == "gradient" else parameter.register_post_accumulate_grad_hook)(hook)

    def _hook(self, thing: int, name: str, kind: str, value: torch.Tensor) -> Any:
        given = [value] if kind == "gradient" else []
        changed = self.call({"hook": [thing, name, kind]}, given)
        return changed if kind == "gradient" else None


def send_with_things(line: Line, message: dict[str, Any], parcel: Parcel, lent: Lent) -> None:
    """Sends a message with the new things that it speaks of, and the states of all."""
    things = lent.dump()
    message["states"] = parcel.pack(lent.states())
    line.send({**message, "things": len(things)}, parcel.blob() + things)


def _copy_for(rank: bool) -> str | None:
    """Whose copy of the answers the calling rank uses: ranks share no variables."""
    return _copies.setdefault(dist.group.WORLD, os.urandom(16).hex()) if rank else None


class StandIn:
    """Called like the student's function or class; pickles by reference, so that each rank of a run has its own."""

    CROSSES_AS = "answer"

    def __init__(self, path: str, number: int, name: str, kinds: tuple[type, ...] = ()) -> None:
        self.path, self.number, self.kinds = path, number, kinds
        self.__name__ = self.__qualname__ = name

    def __reduce__(self):
        return StandIn, (self.path, self.number, self.__name__, self.kinds)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._session().call({"call": self.number}, args, options)

    def _session(self) -> Session:
        session = Session(self.path, _copy_for(dist.is_initialized()))
        session.kinds = self.kinds
        return session

    def number_in(self, lent: Lent) -> int:
        """What it is called in a parcel."""
        return self.number

    def with_passes_here(self, *kinds: type) -> StandIn:
        """The same answer; what models of these kinds compute in it, forward and backward, they compute here."""
        return StandIn(self.path, self.number, self.__name__, kinds)

    def in_orders(self, *args: Any) -> Any:
        """`interleave.CallsInOrders(its class, *args)`, in the answers' process."""
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
        self._ask({"tensors": self._number})

    def _call(self, name: str, *args: Any, **options: Any) -> Any:
        return self._ask({"method": [self._number, name]}, args, options)

    def _ask(self, what: dict[str, Any], args: Any = (), options: Any = None) -> Any:
        return self._session.call({**what, "object": self._number}, [self._set, *args], options)

    def kept_tensors(self) -> dict[str, torch.Tensor]:
        """Path -> tensor that hangs on its attributes, each with all the memory that it is a view of."""
        return self._ask({"tensors": self._number})

    def kept_anywhere(self) -> dict[str, torch.Tensor]:
        """The same, and what its class, global names and the parameters of lent models have come to keep."""
        return self._ask({"anywhere": self._number})

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


class Conversation:
    """One call of an answer: does what it asks for, until it returns or raises."""

    def __init__(self, line: Line, given: tuple[list, list], session: Session) -> None:
        """given: the tensors that the answer was given, and the memory that they lie in."""
        self.line, self.given, self.session, self.lent = line, given, session, session.lent

    def until_returned(self) -> Any:
        """What the answer returned; the tensors it was given hold what it wrote into them."""
        while True:
            message, blob = self.line.receive()
            if message.get("printed"):
                sys.stdout.write(str(message["printed"]))
            unpacker = Unpacker(blob, self.lent)
            if "returned" in message:
                self._write_back(unpacker.unpack(message["changed"]))
                self.lent.set_states(unpacker.unpack(message["states"]))
                torch.set_rng_state(unpacker.unpack(message["random"]))
                self._finish_models(unpacker.unpack(message["made"]))
                self.session.install_hooks(message["hooks"])
                return unpacker.unpack(message["returned"])
            if "raised" in message:
                _raise(message)
            self._serve(message, unpacker)

    def _write_back(self, changed: list) -> None:
        for mine, theirs in zip(self.given, changed, strict=True):
            for tensor, new in zip(mine, theirs, strict=True):
                if new is not None and mine is self.given[0]:
                    tensor.data = new  # it lies elsewhere now, or has another shape
                elif new is not None:
                    tensor.copy_(new)

    def _finish_models(self, made: dict[str, dict[str, torch.Tensor]]) -> None:
        """Models of the answer's that were computed here have its last weights."""
        for number, tensors in made.items():
            for name, parameter in self.session.made[number].named_parameters():
                parameter.data = tensors[name]

    def _serve(self, message: dict, unpacker: Unpacker) -> None:
        works = self.session.works
        if message.get("clock") in CLOCKS:
            self._reply(getattr(time, message["clock"])(*unpacker.unpack(message["given"])), [])
        elif message.get("dist") in CALLS:
            args, options = unpacker.unpack(message["given"])
            args = [_special(a) for a in args]
            options = {k: _special(v) for k, v in options.items()}
            function = getattr(dist, message["dist"])
            result = _at_line(lambda: function(*args, **options), message)
            self._reply(self._keep(result, unpacker.tensors), unpacker.tensors)
        elif "function" in message:
            self._serve_function(message, unpacker)
        elif "pass" in message:
            self._reply(_at_line(partial(self._pass, message, unpacker), message), [])
        elif "backward" in message:
            outputs, inputs = self.session.passes.pop(message["backward"])
            (upstream,) = unpacker.unpack(message["given"])
            self._reply(_at_line(partial(_gradients, outputs, inputs, upstream), message), [])
        elif "wait" in message:
            work, tensors = works[message["wait"]]
            given = unpacker.unpack(message["given"])
            for tensor, now, is_changed in zip(tensors, given, message["changed"], strict=True):
                if is_changed:  # too early, which is an error here too; else there may be more in it by now
                    tensor.detach().copy_(now)
            _at_line(work.wait, message)
            self._reply(None, tensors)
        elif "is_completed" in message:
            self._reply(bool(works[message["is_completed"]][0].is_completed()), [])
        else:
            raise ValueError("the answer asks for what it may not have")

    def _serve_function(self, message: dict, unpacker: Unpacker) -> None:
        """Calls one of the functions that were lent, on things that are equal on both sides, before and after."""
        function = self.lent.functions[message["function"]]
        args, options = unpacker.unpack(message["given"])
        given = list(unpacker.tensors)
        self.lent.set_states(unpacker.unpack(message["states"]))
        torch.set_rng_state(unpacker.unpack(message["random"]))
        result = _at_line(lambda: function(*args, **options), message)
        self._reply(result, given, with_states=True)

    def _pass(self, message: dict, unpacker: Unpacker) -> Any:
        """A model's output, and its buffers after that; what its backward pass needs is kept."""
        module = self._model_of(message["pass"])
        args, options, state, names, training = unpacker.unpack(message["given"])
        for part, is_training in zip(module.modules(), training, strict=True):
            part.training = is_training is True
        inputs = [t for t in tensors_in([args, options]) if t.requires_grad]
        for name in names:
            inputs.append(state[name].requires_grad_())
        with torch.set_grad_enabled(message["followed"] is True):
            output = functional_call(module, state, tuple(args), options)
        outputs = [t for t in tensors_in(output) if t.requires_grad]
        if outputs:
            self.session.passes[message["number"]] = outputs, inputs
        return output, {name: state[name] for name, _ in module.named_buffers()}

    def _model_of(self, which: Any) -> nn.Module:
        """The lent model at [number, path], or the one that stands for the answer's own of a kind and number."""
        first, second = which
        if type(first) is int:
            return self.lent.things[first].get_submodule(second)
        if second not in self.session.made:
            (kind,) = (kind for kind in self.session.kinds if kind.__name__ == first)
            with torch.random.fork_rng(devices=[]):
                self.session.made[second] = kind()
        return self.session.made[second]

    def _keep(self, result: Any, tensors: list) -> Any:
        """Works stay here; the answer gets their numbers."""
        if isinstance(result, list):
            return [self._keep(one, tensors) for one in result]
        if hasattr(result, "wait"):
            self.session.works.append((result, list(tensors)))
            return ("work", len(self.session.works) - 1)
        return result

    def _reply(self, result: Any, tensors: list, *, with_states: bool = False) -> None:
        parcel = Parcel(self.lent)
        tree = parcel.pack([result, list(tensors)])
        if with_states:
            random = parcel.pack(torch.get_rng_state())
            send_with_things(self.line, {"done": tree, "random": random}, parcel, self.lent)
        else:
            self.line.send({"done": tree}, parcel.blob())


def _gradients(outputs: list, inputs: list, upstream: list) -> list:
    pairs = [(o, u) for o, u in zip(outputs, upstream, strict=True) if u is not None]
    return list(torch.autograd.grad([o for o, _ in pairs], inputs, [u for _, u in pairs], allow_unused=True))


def _special(value: Any) -> Any:
    """Reductions and batched operations, which are not plain, from their names."""
    if type(value) is tuple and value and value[0] == "reduction" and value[1] in REDUCTIONS:
        return getattr(dist.ReduceOp, value[1])
    if type(value) is list and value and type(value[0]) is tuple and value[0][:1] == ("p2p",):
        kinds = {"isend": dist.isend, "irecv": dist.irecv}
        return [dist.P2POp(kinds[kind], tensor, peer, tag=tag) for _, kind, tensor, peer, tag in value]
    return value


def _at_line(call, message: dict) -> Any:
    """Makes the call from the student's own file and line, so that errors and the ledger name them."""
    file, line = message.get("file"), message.get("line")
    if not (isinstance(file, str) and file in linecache.cache and type(line) is int and 0 < line < 100_000):
        return call()
    found: dict[str, Any] = {"call": call}
    exec(compile("\n" * (line - 1) + "result = call()", file, "exec"), found)
    return found["result"]


def _raise(message: dict) -> None:
    """The answer's exception, as the built-in one of its name; its own lines follow in the text."""
    name, text = str(message["raised"])[:100], str(message.get("text", ""))[:2000]
    kind = getattr(builtins, name, None)
    known = isinstance(kind, type) and issubclass(kind, Exception)
    error = (
        kind(text)
        if known and kind not in (UnicodeDecodeError, UnicodeEncodeError)
        else RuntimeError(f"{name}: {text}")
    )

    def go():
        raise error

    _at_line(go, message)
