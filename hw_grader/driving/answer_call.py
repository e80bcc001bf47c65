"""One call of an answer, seen by the driver: what the answer asks for on the way, until it returns or raises."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call

from hw_grader.driving.marshalling.call_channel import Forged, Line
from hw_grader.driving.marshalling.exceptions import at_line, raise_again
from hw_grader.driving.marshalling.lent_objects import Lent, is_everybodys
from hw_grader.driving.marshalling.packed_values import Parcel, Unpacker
from hw_grader.driving.marshalling.passes_elsewhere import tensors_in
from hw_grader.driving.process_of_each_rank import PROCESS_OF_EACH_RANK
from hw_utils.virtual.ranks.clock import TAKEN

CALLS = frozenset({
    "send", "recv", "isend", "irecv", "batch_isend_irecv", "all_reduce", "reduce", "broadcast", "barrier", "gather",
    "scatter", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "all_to_all",
    "all_to_all_single", "all_gather_single", "reduce_scatter_single", "get_rank", "get_world_size", "new_group",
    "monitored_barrier",
})  # fmt: skip
CLOCKS = frozenset(TAKEN)
REDUCTIONS = ("SUM", "PRODUCT", "MIN", "MAX", "AVG", "BAND", "BOR", "BXOR")


def send_with_things(line: Line, message: dict[str, Any], parcel: Parcel, lent: Lent) -> None:
    """Sends a message with the new things that it speaks of, and the states of all."""
    things = lent.dump()
    message["states"] = parcel.pack(lent.states())
    line.send({**message, "things": len(things)}, b"".join((parcel.blob(), things)) if things else parcel.blob())


@dataclass(frozen=True)
class Given:
    """What an answer was given: tensors, the memory that they lie in, lists and dictionaries."""

    tensors: list[torch.Tensor]
    memory: list[torch.Tensor]
    containers: list[list | dict]


class Conversation:
    """One call of an answer: does what it asks for, until it returns or raises."""

    def __init__(self, line: Line, given: Given, session: Any) -> None:
        self.line, self.given, self.session, self.lent = line, given, session, session.lent

    def until_returned(self) -> Any:
        """What the answer returned; what it was given is as it left it."""
        while True:
            message, blob = self.line.receive()
            if message.get("printed"):
                sys.stdout.write(str(message["printed"]))
            unpacker = Unpacker(blob, self.lent)
            if "returned" in message:
                *changed, contents = message["changed"]
                self._write_back(*map(unpacker.unpack_plain, changed), unpacker.unpack(contents))
                self.lent.set_states(unpacker.unpack_plain(message["states"]))
                if message["random"] is not None:
                    torch.set_rng_state(unpacker.unpack_plain(message["random"]))
                torch.set_grad_enabled(message["grad"] is True)
                self._finish_models(unpacker.unpack_plain(message["made"]))
                self.session.install_hooks(message["hooks"])
                return unpacker.unpack(message["returned"])
            if "raised" in message:
                raise_again(message)
            self._serve(message, unpacker)

    def _write_back(self, moved: list, written: list, followed: list, contents: list) -> None:
        """See `GivenArguments.changed`."""
        for tensor, new in zip(self.given.tensors, moved, strict=True):
            if new is not None:
                tensor.data = new  # it lies elsewhere now, or has another shape
        for memory, new in zip(self.given.memory, written, strict=True):
            if new is not None:
                memory.copy_(new)
        for tensor, new in zip(self.given.tensors, followed, strict=True):
            if new is not None and tensor.is_leaf:
                tensor.requires_grad_(new[0] is True)
                tensor.grad = new[1]
        for container, new in zip(self.given.containers, contents, strict=True):
            if isinstance(container, list) and new is not None:
                container[:] = new
            elif new is not None:
                container.clear()
                container.update(new if isinstance(new, dict) else dict.fromkeys(range(len(new))))

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
            self._share(unpacker.tensors, message["shared"])
            args = [self._special(a) for a in args]
            options = {k: self._special(v) for k, v in options.items()}
            function = getattr(dist, message["dist"])
            result = at_line(lambda: function(*args, **options), message)
            if not hasattr(result, "wait"):  # else there may be nothing in them yet
                PROCESS_OF_EACH_RANK.alter(unpacker.tensors)
            self._reply(self._keep(result, unpacker.tensors), unpacker.tensors)
        elif "function" in message:
            self._serve_function(message, unpacker)
        elif "pass" in message:
            self._reply(at_line(partial(self._pass, message, unpacker), message), [])
        elif "backward" in message:
            outputs, inputs, _ = self.session.passes.pop(message["backward"])
            (upstream,) = unpacker.unpack(message["given"])
            self._reply(at_line(partial(_gradients, outputs, inputs, upstream), message), [])
        elif "stepped" in message:
            if self.session.stepped is not None:
                self.session.stepped()
            self._reply(None, [])
        elif "wait" in message:
            work, tensors = works[message["wait"]]
            given = unpacker.unpack(message["given"])
            for tensor, now, is_changed in zip(tensors, given, message["changed"], strict=True):
                if is_changed:  # too early, which is an error here too; else there may be more in it by now
                    tensor.detach().copy_(now)
            at_line(work.wait, message)
            works[message["wait"]] = work, []  # what it held is the answer's to keep from now on
            PROCESS_OF_EACH_RANK.alter(tensors)
            self._reply(None, tensors)
        elif "is_completed" in message:
            self._reply(bool(works[message["is_completed"]][0].is_completed()), [])
        else:
            raise Forged("what came asks for nothing that there is")

    def _share(self, tensors: list[torch.Tensor], shared: list) -> None:
        """Tensors that are one for the answer lie in one place here, too: a buffer for a send and a receive at once."""
        for tensor, what in zip(tensors, shared, strict=True):
            if what is not None:
                work, place, is_written = what
                other, now = tensors[place] if work is None else self.session.works[work][1][place], tensor.clone()
                tensor.data = other.data
                if is_written is True:
                    tensor.detach().copy_(now)

    def _serve_function(self, message: dict, unpacker: Unpacker) -> None:
        """Calls one of the functions that were lent, on things that are equal on both sides, before and after."""
        function = self.lent.functions[message["function"]]
        args, options = unpacker.unpack(message["given"])
        given = list(unpacker.tensors)
        self.session.held.take(message["handed"], given, message["gone"])
        self.lent.set_states(unpacker.unpack_plain(message["states"]))
        torch.set_rng_state(unpacker.unpack_plain(message["random"]))
        result = at_line(lambda: function(*args, **options), message)
        self._reply(result, given, with_states=True)

    def _pass(self, message: dict, unpacker: Unpacker) -> Any:
        """A model's output, and its buffers after that; what its backward pass needs is kept."""
        module = self._model_of(message["pass"])
        args, options, state, names, training = unpacker.unpack(message["given"])
        inputs = [t for t in tensors_in([args, options]) if t.requires_grad]
        for name in names:
            inputs.append(state[name].requires_grad_())
        with _in_modes(module, training), torch.set_grad_enabled(message["followed"] is True):
            output = functional_call(module, state, tuple(args), options)
        outputs = [t for t in tensors_in(output) if t.requires_grad]
        if outputs:
            self.session.passes[message["number"]] = outputs, inputs, list(unpacker.memory)
        return output, {name: state[name] for name, _ in module.named_buffers()}

    def _model_of(self, which: Any) -> nn.Module:
        """The lent model at [number, path], or the one that stands for the answer's own of a kind and number."""
        first, second = which
        if type(first) is int:
            module = self.lent.things[first].get_submodule(second)
            if is_everybodys(type(module)):
                raise Forged("the answer's process makes the passes of this one itself")
            return module
        if second not in self.session.made:
            (kind,) = (kind for kind in self.session.kinds if kind.__name__ == first)
            with torch.random.fork_rng(devices=[]):
                self.session.made[second] = kind()
        return self.session.made[second]

    def _special(self, value: Any) -> Any:
        """Reductions, batched operations, groups and durations, which are not plain, from names and numbers."""
        if type(value) is tuple and value and value[0] == "reduction" and value[1] in REDUCTIONS:
            return getattr(dist.ReduceOp, value[1])
        if type(value) is tuple and len(value) == 2 and value[0] == "group" and type(value[1]) is int:
            return self.session.groups[value[1]]
        if type(value) is tuple and len(value) == 2 and value[0] == "seconds" and type(value[1]) is float:
            return timedelta(seconds=value[1])
        if type(value) is list and value and type(value[0]) is tuple and value[0][:1] == ("p2p",):
            kinds = {"isend": dist.isend, "irecv": dist.irecv}
            return [
                dist.P2POp(kinds[kind], tensor, peer, self._special(group), tag, group_peer)
                for _, kind, tensor, peer, group, tag, group_peer in value
            ]
        return value

    def _keep(self, result: Any, tensors: list) -> Any:
        """Works and groups stay here; the answer gets their numbers."""
        if isinstance(result, list):
            return [self._keep(one, tensors) for one in result]
        if isinstance(result, dist.ProcessGroup):
            self.session.groups.append(result)
            return ("group", len(self.session.groups) - 1)
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


@contextmanager
def _in_modes(module: nn.Module, training: list) -> Iterator[None]:
    """Within it each part is in training or not, as it is for the answer at this moment; it may be over soon."""
    own = [(part, part.training) for part in module.modules()]
    try:
        for (part, _), is_training in zip(own, training, strict=True):
            part.training = is_training is True
        yield
    finally:
        for part, was in own:
            part.training = was


def _gradients(outputs: list, inputs: list, upstream: list) -> list:
    pairs = [(o, u) for o, u in zip(outputs, upstream, strict=True) if u is not None]
    return list(torch.autograd.grad([o for o, _ in pairs], inputs, [u for _, u in pairs], allow_unused=True))
