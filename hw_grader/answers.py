"""Role `answers`: opens a check's answers and lets a trusted driver call them, over one line a call.

Here the student's code runs, with what it was given and nothing else: no case, no judge, no driver, no ledger on its
stack. torch.distributed and the clock are asked for on the driver's side.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import pickle
import socket
import sys
import threading
import time
import traceback
import types
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from hw_grader.driver import is_ours, remember_sources
from hw_grader.inside import fork_server
from hw_grader.mirrors import Lent
from hw_grader.parcel import Line, Parcel, Unpacker, tensor_bytes
from hw_grader.remote import CALLS, CLOCKS
from hw_grader.seal import replaced, seal_elsewhere
from hw_grader.wire import Wire
from hw_utils import forkserver
from hw_utils.copies import is_constant
from hw_utils.where import is_students

_here = threading.local()  # .call: the call that this thread serves


def warm_up() -> None:
    """Nothing of its own: the parent has imported torch."""


def main(end: socket.socket) -> None:
    """Opens the answers, then serves them until the grader hangs up."""
    wire = Wire(end)
    sys.modules["__main__"] = types.ModuleType("__main__")
    request, blob = wire.receive(timeout_s=60)
    remember_sources(request.get("sources", {}))
    ask_elsewhere()
    server = socket.socket(socket.AF_UNIX)
    server.bind(request["path"])
    server.listen(256)
    pid = os.getpid()
    if b"hw_utils" in blob:  # they may launch something themselves
        forkserver.adopt(fork_server(end.fileno()))
    try:
        answers = Answers(blob)
    except Exception as error:
        wire.send({"error": type(error).__name__, "lines": [f"{type(error).__name__}: {error}"[:500]]})
        return
    if os.getpid() != pid:
        os._exit(0)
    wire.send({"opened": True})
    threading.Thread(target=_accept, args=(server, answers), daemon=True).start()
    with contextlib.suppress(EOFError):
        while wire.receive(timeout_s=24 * 3600):
            wire.send({"replaced": replaced()})


class Answers:
    """A check's answers: the ones that were opened, and a copy for each rank of a run if they hold what can change."""

    def __init__(self, blob: bytes) -> None:
        self.blob, self.opened = blob, pickle.loads(blob)
        self.are_constant = is_constant(tuple(self.opened))
        self.copies: dict[str, list] = {}

    def of(self, copy: str | None) -> list:
        """The copy of that name."""
        if copy is None or self.are_constant:
            return self.opened
        if copy not in self.copies:
            self.copies[copy] = pickle.loads(self.blob)
        return self.copies[copy]


def _accept(server: socket.socket, answers: Answers) -> None:
    while True:
        end, _ = server.accept()
        threading.Thread(target=_serve, args=(Line(end), answers), daemon=True).start()


def _serve(line: Line, answers: Answers) -> None:
    try:
        message, blob = line.receive()
        if "describe" in message:
            parcel = Parcel()
            line.send({"answers": [_describe(a, parcel) for a in answers.opened]}, parcel.blob())
        else:
            Call(line, message, blob).run(answers)
    except Exception as error:
        with contextlib.suppress(OSError):  # the driver may be gone, which is no matter
            line.send(_raised(error))
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


class Call:
    """One call of an answer, in its own thread."""

    def __init__(self, line: Line, message: dict, blob: bytes) -> None:
        self.line, self.number = line, message["call"]
        self.rank, self.copy = message["rank"], message["copy"]
        n_tensor_bytes = len(blob) - message["things"]
        self.lent = Lent(pickle.loads(blob[n_tensor_bytes:]) if message["things"] else [], self._ask_for_function)
        unpacker = Unpacker(blob[:n_tensor_bytes], self.lent)
        self.args, self.options = unpacker.unpack(message["given"])
        self.given, self.memory = list(unpacker.tensors), list(unpacker.memory)
        self.lent.set_states(unpacker.unpack(message["states"]))
        self.random = unpacker.unpack(message["random"])  # each rank's own, as in a process of its own
        self.before = [flat.numpy().tobytes() for flat in self.memory]
        self.places = [_place(t) for t in self.given]
        self.printed, self.pid = io.StringIO(), os.getpid()

    def run(self, answers: Answers) -> None:
        """Calls the answer; tells what it returned and which of the tensors it was given it has changed."""
        _here.call = self
        try:
            torch.set_rng_state(self.random)
            value = answers.of(self.copy)[self.number](*self.args, **self.options)
            parcel = Parcel(self.lent)
            tree = parcel.pack(value)
            moved = [t.detach() if _place(t) != old else None for t, old in zip(self.given, self.places)]
            written = [m if m.numpy().tobytes() != old else None for m, old in zip(self.memory, self.before)]
            changed = [moved, written]
            message = {"returned": tree, "changed": parcel.pack(changed), "states": parcel.pack(self.lent.states())}
            message["random"] = parcel.pack(torch.get_rng_state())
        except (EOFError, OSError) as error:
            if isinstance(error, (EOFError, ConnectionError)):
                return
            message, parcel = _raised(error), Parcel()
        except BaseException as error:
            message, parcel = _raised(error), Parcel()
        if os.getpid() != self.pid:
            os._exit(0)  # a process that the answer forked: it has no say here
        self.line.send({**message, **self._text()}, parcel.blob())

    def ask(self, message: dict, given: Any) -> tuple[Any, list[torch.Tensor]]:
        """What the driver's side says to a request, and its tensors after it."""
        parcel = Parcel(self.lent)
        message = {**message, "given": parcel.pack(given), **self._text(), **_students_place()}
        mine = list(parcel.tensors)
        if "function" in message:
            message["states"] = parcel.pack(self.lent.states())
        self.random = torch.get_rng_state()
        self.line.send(message, parcel.blob())
        reply, blob = self.line.receive()
        torch.set_rng_state(self.random)
        result, tensors, states = Unpacker(blob, self.lent).unpack(reply["done"])
        if states is not None:
            self.lent.set_states(states)
        for here, there in zip(mine, tensors):  # last: one may be a lent model's, which did not take part over there
            here.detach().copy_(there)
        return result, mine

    def _ask_for_function(self, number: int, args: tuple, options: dict) -> Any:
        return self.ask({"function": number}, [list(args), options])[0]

    def _text(self) -> dict[str, str]:
        text = self.printed.getvalue()[:1_000_000]
        self.printed = io.StringIO()
        return {"printed": text} if text else {}


def _place(tensor: torch.Tensor) -> tuple:
    """Where it lies, and as what."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _raised(error: BaseException) -> dict[str, Any]:
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if is_students(f.filename) and not is_ours(f.filename)
    ]
    at = {"file": frames[-1].filename, "line": frames[-1].lineno} if frames else {}
    return {"raised": type(error).__name__, "text": str(error)[:2000], **at}


def _students_place() -> dict[str, Any]:
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_students(file) and not is_ours(file):
            return {"file": file, "line": frame.f_lineno}
        frame = frame.f_back
    return {}


class Work:
    """What isend, irecv and async_op=True give: the work itself is on the driver's side."""

    def __init__(self, number: int, tensors: list[torch.Tensor]) -> None:
        self.number, self.tensors, self.done = number, tensors, False
        self.before = [tensor_bytes(t) for t in tensors]

    def wait(self, timeout: Any = None) -> bool:
        """Waits; the tensors then hold what came."""
        if not self.done:
            self.done = True
            changed = [tensor_bytes(t) != old for t, old in zip(self.tensors, self.before)]
            _here.call.ask({"wait": self.number, "changed": changed}, list(self.tensors))
        return True

    def is_completed(self) -> bool:
        return self.done or _here.call.ask({"is_completed": self.number}, [])[0]


class P2POp:
    """As torch.distributed.P2POp."""

    def __init__(self, op: Any, tensor: torch.Tensor, peer: int | None = None, group: Any = None, tag: int = 0,
                 group_peer: int | None = None) -> None:  # fmt: skip
        self.op, self.tensor, self.peer, self.tag = op, tensor, peer, tag


def ask_elsewhere() -> None:
    """Puts questions to the driver in place of torch.distributed's functions, the clock's and the output's."""
    for name in CALLS:
        function = _asking(name, getattr(dist, name))
        setattr(dist, name, function)
        setattr(distributed_c10d, name, function)
    dist.P2POp = distributed_c10d.P2POp = P2POp
    dist.is_initialized = distributed_c10d.is_initialized = lambda: _of_rank() is not None
    for name in CLOCKS:
        setattr(time, name, _clock(name, getattr(time, name)))
    sys.stdout = _Printed()
    seal_elsewhere()
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (for good): as in `launch`, what a rank printed is its stdout


def _of_rank() -> list | None:
    call = getattr(_here, "call", None)
    return call.rank if call is not None else None


def _asking(name: str, real: Any) -> Any:
    @functools.wraps(real)
    def ask(*args: Any, **options: Any) -> Any:
        rank = _of_rank()
        if rank is None:
            return real(*args, **options)
        if name in ("get_rank", "get_world_size") and not any([*args, *options.values()]):
            return rank[0 if name == "get_rank" else 1]
        given = [[_plain(a) for a in args], {k: _plain(v) for k, v in options.items()}]
        result, tensors = _here.call.ask({"dist": name}, given)
        return _works(result, tensors)

    return ask


def _plain(value: Any) -> Any:
    if isinstance(value, dist.ReduceOp.RedOpType):
        return ("reduction", value.name)
    if isinstance(value, dist.ReduceOp):
        return ("reduction", dist.ReduceOp.RedOpType(value.op).name if hasattr(value, "op") else "SUM")
    if isinstance(value, list) and value and isinstance(value[0], P2POp):
        return [("p2p", op.op.__name__, op.tensor, op.peer, op.tag) for op in value]
    return value


def _works(result: Any, tensors: list[torch.Tensor]) -> Any:
    if type(result) is list:
        return [_works(one, tensors) for one in result]
    if type(result) is tuple and result[:1] == ("work",):
        return Work(result[1], tensors)
    return result


def _clock(name: str, real: Any) -> Any:
    def ask(*args: Any) -> Any:
        return _here.call.ask({"clock": name}, list(args))[0] if _of_rank() is not None else real(*args)

    return ask


class _Printed(io.TextIOBase):
    """What a call prints goes back with its next message."""

    def write(self, text: str) -> int:
        call = getattr(_here, "call", None)
        if call is not None and call.printed.tell() < 1_000_000:
            call.printed.write(text)
        return len(text)

    def writable(self) -> bool:
        return True
