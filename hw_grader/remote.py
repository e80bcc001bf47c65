"""The driver's side of a student's answer: a stand-in that is called like the function but runs it elsewhere.

The driver, `launch`, `simulate` and their ledger then work in processes that no student's code has ever been in. What
the answer wants of torch.distributed, it asks for over its line; the stand-in does it, on the rank that called.
"""

from __future__ import annotations

import builtins
import linecache
import os
import socket
import sys
import time
import weakref
from typing import Any

import torch
import torch.distributed as dist

from hw_grader.mirrors import Lent
from hw_grader.parcel import Line, Parcel, Unpacker

CALLS = frozenset({
    "send", "recv", "isend", "irecv", "batch_isend_irecv", "all_reduce", "reduce", "broadcast", "barrier", "gather",
    "scatter", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "all_to_all",
    "all_to_all_single", "get_rank", "get_world_size",
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


class StandIn:
    """Called like the student's function; pickles by reference, so that every rank of a run has its own."""

    def __init__(self, path: str, number: int, name: str) -> None:
        self.path, self.number = path, number
        self.__name__ = self.__qualname__ = name

    def __reduce__(self):
        return StandIn, (self.path, self.number, self.__name__)

    def __call__(self, *args: Any, **options: Any) -> Any:
        lent = Lent()
        parcel = Parcel(lent, is_whole=True)
        call = {"call": self.number, "given": parcel.pack([list(args), options])}
        given, things = (list(parcel.tensors), list(parcel.memory)), lent.dump()
        call["rank"] = call["copy"] = None
        if dist.is_initialized():
            call["rank"] = [dist.get_rank(), dist.get_world_size()]
            call["copy"] = _copies.setdefault(dist.group.WORLD, os.urandom(16).hex())
        call["states"], call["random"] = parcel.pack(lent.states()), parcel.pack(torch.get_rng_state())
        line = connect(self.path)
        try:
            line.send({**call, "things": len(things)}, parcel.blob() + things)
            return Conversation(line, given, lent).until_returned()
        except (EOFError, ConnectionError) as error:
            raise AnswerEnded("the answer ended its process") from error
        finally:
            line.close()


class Conversation:
    """One call of an answer: does what it asks for, until it returns or raises."""

    def __init__(self, line: Line, given: tuple[list, list], lent: Lent) -> None:
        """given: the tensors that the answer was given, and the memory that they lie in."""
        self.line, self.given, self.lent = line, given, lent
        self.works: list[tuple[Any, list]] = []

    def until_returned(self) -> Any:
        """What the answer returned; the tensors it was given hold what it wrote into them."""
        while True:
            message, blob = self.line.receive()
            if message.get("printed"):
                sys.stdout.write(str(message["printed"]))
            unpacker = Unpacker(blob, self.lent)
            if "returned" in message:
                value = unpacker.unpack(message["returned"])
                self._write_back(unpacker.unpack(message["changed"]))
                self.lent.set_states(unpacker.unpack(message["states"]))
                torch.set_rng_state(unpacker.unpack(message["random"]))
                return value
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

    def _serve(self, message: dict, unpacker: Unpacker) -> None:
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
        elif "wait" in message:
            work, tensors = self.works[message["wait"]]
            given = unpacker.unpack(message["given"])
            for tensor, now, is_changed in zip(tensors, given, message["changed"], strict=True):
                if is_changed:  # too early, which is an error here too; else there may be more in it by now
                    tensor.detach().copy_(now)
            _at_line(work.wait, message)
            self._reply(None, tensors)
        elif "is_completed" in message:
            self._reply(bool(self.works[message["is_completed"]][0].is_completed()), [])
        else:
            raise ValueError("the answer asks for what it may not have")

    def _serve_function(self, message: dict, unpacker: Unpacker) -> None:
        """Calls one of the functions that were lent, on things that are equal on both sides, before and after."""
        function = self.lent.functions[message["function"]]
        args, options = unpacker.unpack(message["given"])
        given = list(unpacker.tensors)
        self.lent.set_states(unpacker.unpack(message["states"]))
        result = _at_line(lambda: function(*args, **options), message)
        self._reply(result, given, self.lent.states())

    def _keep(self, result: Any, tensors: list) -> Any:
        """Works stay here; the answer gets their numbers."""
        if isinstance(result, list):
            return [self._keep(one, tensors) for one in result]
        if hasattr(result, "wait"):
            self.works.append((result, list(tensors)))
            return ("work", len(self.works) - 1)
        return result

    def _reply(self, result: Any, tensors: list, states: list | None = None) -> None:
        parcel = Parcel(self.lent)
        tree = parcel.pack([result, list(tensors), states])
        self.line.send({"done": tree}, parcel.blob())


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
