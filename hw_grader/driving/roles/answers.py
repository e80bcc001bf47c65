"""Role `answers`: opens a check's answers and lets a trusted driver call them, over one line a call.

Here the student's code runs, with what it was given and nothing else: no case, no judge, no driver, no ledger on its
stack. torch.distributed and the clock are asked for on the driver's side.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import socket
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from hw_grader.driving.forwarded_calls import (
    SERVES,
    asking_functions,
    calling,
    forward_calls,
    rank_of_call,
    received,
    serving,
)
from hw_grader.driving.marshalling.call_channel import HungUp, Line
from hw_grader.driving.marshalling.exceptions import told
from hw_grader.driving.marshalling.given_arguments import GivenArguments
from hw_grader.driving.marshalling.lent_memory import places
from hw_grader.driving.marshalling.lent_objects import Lent
from hw_grader.driving.marshalling.packed_values import Parcel, Unpacker
from hw_grader.driving.marshalling.passes_elsewhere import run_elsewhere
from hw_grader.driving.marshalling.tensor_lifetimes import Handed
from hw_grader.driving.opened_answers import Answers, models_of, run_in_ranks_only
from hw_grader.driving.roles.drive import remember_sources
from hw_grader.sandbox.call_filter import no_more_filters
from hw_grader.sandbox.jailed_process import fork_server
from hw_grader.sandbox.messages import Wire
from hw_utils.core.source.students_files import students_line
from hw_utils.material import models
from hw_utils.material.kept.tensors import beside_models, kept_tensors
from hw_utils.material.kept.values import hung_on, kept_values
from hw_utils.processes import start_by_fork
from hw_utils.threads.interleavings.calls_in_orders import CallsInOrders
from hw_utils.virtual.ranks.clock import know_packages


def warm_up() -> None:
    """Makes what each of these processes puts in place of torch.distributed's functions, and finds where clocks are."""
    asking_functions()
    know_packages()


def main(end: socket.socket) -> None:
    """Opens the answers, then serves them until the grader hangs up."""
    wire = Wire(end)
    sys.modules["__main__"] = types.ModuleType("__main__")
    request, blob = wire.receive(timeout_s=60)
    remember_sources(request.get("sources", {}))
    forward_calls()
    server = socket.socket(socket.AF_UNIX)
    server.bind(request["path"])
    server.listen(256)
    pid = os.getpid()
    if b"hw_utils" in blob:  # they may launch something themselves
        start_by_fork.adopt(fork_server(end.fileno()))
    if request["in_orders"]:
        run_in_ranks_only(__file__)  # each rank's thread has a filter of its own, which comes later
    else:
        no_more_filters()
    try:
        answers = Answers(blob)
    except Exception as error:
        wire.send({"error": type(error).__name__, "lines": [f"{type(error).__name__}: {error}"[:500]]})
        return
    if os.getpid() != pid:
        os._exit(0)
    wire.send({"opened": True})
    threading.Thread(target=_accept, args=(server, answers), daemon=True, name=SERVES).start()
    with contextlib.suppress(EOFError):
        wire.receive(timeout_s=24 * 3600)  # the grader hangs up


def _accept(server: socket.socket, answers: Answers) -> None:
    try:
        while True:
            end, _ = server.accept()
            threading.Thread(target=_serve, args=(Line(end), answers), daemon=True, name=SERVES).start()
    finally:  # no file or thread is left for the next call: the driver, which waits for its answer, is told at once
        os._exit(1)


def _serve(line: Line, answers: Answers) -> None:
    try:
        message, blob = line.receive()
        if "describe" in message:
            parcel = Parcel()
            line.send({"answers": [_describe(a, parcel) for a in answers.opened]}, parcel.blob())
        else:
            call = Call(line, message, blob, answers)
            del blob  # it is unpacked; a call may be looked at while it is under way
            call.run()
    except Exception as error:
        with contextlib.suppress(OSError):  # the driver may be gone, which is no matter
            line.send(told(error))
    finally:
        line.close()


def _describe(answer: Any, parcel: Parcel) -> dict[str, Any]:
    if callable(answer):
        return {"name": str(getattr(answer, "__name__", type(answer).__name__))}
    before = len(parcel.tensors)
    try:
        return {"value": parcel.pack(answer)}
    except TypeError:
        del parcel.tensors[before:]
        return {"value": {"dict": [["unknown", type(answer).__name__]]}}


class Served:
    """What one session of a driver's has lent, and what the answers keep of it."""

    def __init__(self) -> None:
        self.lent = Lent(ask=lambda *asked: calling().ask_for_function(*asked), of_number=self._of_number)
        self.answers: list = []
        self.handed = Handed()
        self.n_passes = 0
        self.under_way: WeakSet = WeakSet()  # communication that nobody has waited for
        self.made: list[nn.Module] = []  # models of the answer's that the driver computes

    def _of_number(self, kind: str, number: int, unpack: Any) -> Any:
        return self.lent.kept[number] if kind == "object" else self.answers[number]


class Call:
    """One call of an answer, in its own thread."""

    def __init__(self, line: Line, message: dict, blob: bytes, answers: Answers) -> None:
        self.line, self.message, self.rank = line, message, message["rank"]
        self.answers, self.served = answers, answers.sessions.setdefault(message["session"], Served())
        self.served.answers = answers.of(message["copy"])
        self.lent = self.served.lent
        n_tensor_bytes = len(blob) - message["things"]
        self.lent.load(blob[n_tensor_bytes:])
        unpacker = Unpacker(blob[:n_tensor_bytes], self.lent)
        self.args, self.options = unpacker.unpack(message["given"])
        tensors, memory = list(unpacker.tensors), list(unpacker.memory)
        self.random = self.driver_has = unpacker.unpack(message["random"])  # each rank's own
        self.lent.set_states(unpacker.unpack(message["states"]), with_settings=True)
        self.given: GivenArguments | None = GivenArguments([*self.args, *self.options.values()], tensors, memory)
        self.printed, self.pid, self.asking = io.StringIO(), os.getpid(), threading.Lock()
        for kind in message["passes"]:
            pass_elsewhere(kind)

    def run(self) -> None:
        """Calls the answer; tells what it returned and which of the tensors it was given it has changed."""
        try:
            with serving(self):
                message, blob = self._done()
        except HungUp:
            return
        except BaseException as error:
            message, blob = told(error), b""
        if os.getpid() != self.pid:
            os._exit(0)  # a process that the answer forked: it has no say here
        if not self.lent.kept and not message.get("hooks"):
            self.answers.sessions.pop(self.message["session"], None)
        self.args = self.options = self.given = None  # it may be asked next what is alive
        self.answers.leaves(threading.current_thread())
        self.line.send({**message, **self._text()}, blob)

    def _done(self) -> tuple[dict[str, Any], bytes]:
        torch.set_rng_state(self.random)
        torch.set_grad_enabled(self.message["grad"])
        with self.answers.busy.computing():
            value = self._do()
        parcel = Parcel(self.lent, is_whole=not _WHOLE.isdisjoint(self.message))
        message = {"changed": self.given.changed(parcel), "states": parcel.pack(self.lent.states())}
        random = torch.get_rng_state()
        message |= {"random": None if torch.equal(random, self.driver_has) else parcel.pack(random)}
        made = {str(k): {n: t.detach() for n, t in m.named_parameters()} for k, m in enumerate(self.served.made)}
        message |= {"made": parcel.pack(made), "hooks": [*_hooks(self.lent.things)], "grad": torch.is_grad_enabled()}
        try:
            message["returned"] = parcel.pack(value)  # last: the other side may ask more about it
            return message, parcel.blob()
        except (MemoryError, RecursionError, RuntimeError, ValueError) as error:
            why = f"{type(error).__name__}: {error}"[:100]
            raise TypeError(_UNREADABLE.format(type(value).__name__, why)) from None

    def _do(self) -> Any:
        message, kept = self.message, self.lent.kept
        if "object" in message:
            changed, *self.args = self.args
            for name, value in changed.items():
                _put(kept[message["object"]], name, value)
        if "call" in message:
            return self.served.answers[message["call"]](*self.args, **self.options)
        if "settle" in message:
            self.answers.settle(message["settle"])
            return {name: places(session.lent) for name, session in self.answers.sessions.items()}
        if "in_orders" in message:
            return CallsInOrders(self.served.answers[message["in_orders"]], *self.args)
        if "method" in message:
            number, name = message["method"]
            return getattr(kept[number], name)(*self.args, **self.options)
        if "get" in message:
            number, name = message["get"]
            value = getattr(kept[number], name)
            return ("method",) if callable(value) and not isinstance(value, torch.Tensor) else value
        if "tensors" in message:
            found = kept_tensors(kept[message["tensors"]])
            return beside_models(found, models_of(self.lent)) if message["beside_models"] else found
        if "values" in message:
            return kept_values(kept[message["values"]], self.served.answers, models_of(self.lent))
        if "hung" in message:
            return hung_on(models_of(self.lent))
        if "anywhere" in message:
            return self.answers.kept(kept[message["anywhere"]], self.served)
        if "both" in message:
            own = beside_models(kept_tensors(kept[message["both"]]), models_of(self.lent))
            return [own, self.answers.kept(kept[message["both"]], self.served)]
        return self._hook(*message["hook"])

    def _hook(self, thing: int, name: str, kind: str) -> torch.Tensor | None:
        parameter = dict(self.lent.things[thing].named_parameters())[name]
        if kind == "accumulated":
            for hook in list(parameter._post_accumulate_grad_hooks.values()):
                hook(parameter)
            return None
        (gradient,) = self.args
        for hook in list(parameter._backward_hooks.values()):
            changed = hook(gradient)
            gradient = gradient if changed is None else changed
        return gradient

    def ask(
        self, message: dict, given: Any, *, with_states: bool = False, is_handed: bool = False
    ) -> tuple[Any, list[torch.Tensor]]:
        """What the driver's side says to a request, and its tensors after it."""
        parcel = Parcel(self.lent, is_whole=is_handed)
        message = {**message, "given": parcel.pack(given), **self._text(), **_students_place()}
        mine = list(parcel.tensors)
        if is_handed:
            handed = self.served.handed
            message |= {"gone": handed.gone(), "handed": handed.numbers(mine, self.given.tensors)}
        if with_states:
            message["states"], message["random"] = parcel.pack(self.lent.states()), parcel.pack(torch.get_rng_state())
        with self.answers.busy.asking(), self.asking:  # one at a time, of the threads of a rank
            self.random, self.driver_has = torch.get_rng_state(), torch.zeros(0)  # equal to none
            self.line.send(message, parcel.blob())
            reply, blob = self.line.receive()
            torch.set_rng_state(self.random)
        n_tensor_bytes = len(blob) - reply.get("things", 0)
        self.lent.load(blob[n_tensor_bytes:])
        unpacker = Unpacker(blob[:n_tensor_bytes], self.lent)
        result, tensors = unpacker.unpack(reply["done"])
        if with_states:
            torch.set_rng_state(unpacker.unpack(reply["random"]))
            self.lent.set_states(unpacker.unpack(reply["states"]), with_settings=True)
        with received(mine, self.served.under_way):
            for here, there in zip(mine, tensors):  # last: one may be a lent model's, which did not take part there
                here.detach().copy_(there)
        return result, mine

    def ask_for_function(self, number: int, args: tuple, options: dict) -> Any:
        """What a function of the driver's returns."""
        return self.ask({"function": number}, [list(args), options], with_states=True, is_handed=True)[0]

    def make_pass(self, which: list, given: list, followed: bool) -> tuple[Any, int]:
        """What a model of the driver's computes, and the number of this pass."""
        self.served.n_passes += 1
        number = self.served.n_passes
        return self.ask({"pass": which, "number": number, "followed": followed}, given)[0], number

    def make_backward(self, number: int, upstream: list) -> list:
        """The gradients of a pass's inputs."""
        return self.ask({"backward": number}, [upstream])[0]

    def _text(self) -> dict[str, str]:
        text = self.printed.getvalue()[:1_000_000]
        self.printed = io.StringIO()
        return {"printed": text} if text else {}


def pass_elsewhere(kind: str) -> None:
    """From now on the driver computes what the lessons' models of this kind compute in a call."""
    module = getattr(models, kind)
    here = module.forward

    def forward(self: nn.Module, *args: Any, **options: Any) -> Any:
        if rank_of_call() is None:
            return here(self, *args, **options)
        made = calling().served.made
        if not any(one is self for one in made):
            made.append(self)
        number = next(k for k, one in enumerate(made) if one is self)
        return run_elsewhere(self, [kind, str(number)], args, options)

    if not hasattr(here, "is_elsewhere"):
        forward.is_elsewhere = True
        module.forward = forward
        _watch_steps()


@functools.cache
def _watch_steps() -> None:
    register_optimizer_step_post_hook(_tell_of_step)


def _tell_of_step(optimizer: torch.optim.Optimizer, args: Any, options: Any) -> None:
    """The driver's clock is the one that a step takes time of."""
    if rank_of_call() is not None:
        calling().ask({"stepped": True}, [])


_WHOLE = frozenset({"tensors", "anywhere", "both", "get", "method"})  # questions: a view comes with all it is a view of
_UNREADABLE = "what your code returned cannot be read, it is a {} that is too large, too deep or without memory ({})"


def _hooks(things: list) -> Iterator[list]:
    """[number of the model, name of its parameter, what kind of hook] of those that have one."""
    for number, thing in enumerate(things):
        for name, p in thing.named_parameters() if isinstance(thing, nn.Module) else ():
            if p._post_accumulate_grad_hooks:
                yield [number, name, "accumulated"]
            if p._backward_hooks:
                yield [number, name, "gradient"]


def _put(thing: Any, name: str, value: torch.Tensor) -> None:
    """Sets an attribute; a tensor that is there already keeps its memory, which others may look at, too."""
    old = getattr(thing, name, None)
    if isinstance(old, torch.Tensor) and (old.shape, old.dtype) == (value.shape, value.dtype):
        old.data.copy_(value)
    else:
        setattr(thing, name, value)


def _students_place() -> dict[str, Any]:
    file, line = students_line(sys._getframe(2))
    return {"file": file, "line": line} if file else {}
