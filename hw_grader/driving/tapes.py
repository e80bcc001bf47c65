"""What the copy of the answers that one rank of a run calls was asked and said, kept to ask it again, alone.

Ranks of one answer share a process, where one can find what nobody sent it: in a module, on a class, in a file. Asked
again in a process of its own, by the same messages, such a rank knows only what came by torch.distributed and as its
arguments. What it then returns and writes has to be the same, but for rounding. Only the driver's side plays tapes.
"""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from hw_grader.driving.parcel import HungUp, Line, Unpacker

RANKS = 3  # of one case are asked again, or as many as there are
MOST_BYTES = 2**28  # of one case's tapes
RELATIVE, ABSOLUTE = 1e-4, 1e-7
_ASKED = ("dist", "clock", "function", "pass", "backward", "wait", "is_completed", "returned", "raised")
_SEARCHES = {"tensors", "anywhere"}  # bring whole memory, with what nobody has written


class TooLong(Exception):
    """One rank's messages take more than a driver keeps."""


@dataclass
class Tape:
    """One copy's messages, in order: (number of the line, whether the driver sent it, message, its bytes)."""

    heard: list[tuple[int, bool, dict, bytes]] = field(default_factory=list)
    is_rank: bool = True
    n_lines: int = 0
    n_bytes: int = 0

    @property
    def tells(self) -> bool:
        """Whether it is worth another process: a call without ranks that asked for nothing has only its arguments."""
        asked = [message for _, is_sent, message, _ in self.heard if not is_sent]
        return self.is_rank or any("function" in message for message in asked)


class Tapes:
    """Those of some ranks of the case that is driven now, and of one case before it; which, nobody can know."""

    def __init__(self) -> None:
        self.now: dict[str, Tape] = {}
        self.drawn: list[Tape] = []
        self.known: set[str] = set()
        self.n_cases = 0

    def begin(self) -> None:
        """Another case begins."""
        self.now, self.known = {}, set()

    def end(self) -> None:
        """The case is over, and its data is there: it is the one that is kept with the same chance as each before."""
        told = [tape for tape in self.now.values() if tape.tells]
        if len(self.known) > 1 and told:
            self.n_cases += 1
            if secrets.randbelow(self.n_cases) == 0:
                self.drawn = told
        self.begin()

    def of(self, copy: str, is_rank: bool = True) -> Tape | None:
        """The tape of a rank's copy, or of one call's session, if it is one of those that are kept.

        Each has the same chance.
        """
        if copy not in self.known:
            self.known.add(copy)
            if len(self.known) <= RANKS:
                self.now[copy] = Tape(is_rank=is_rank)
            elif secrets.randbelow(len(self.known)) < RANKS:
                self.now.pop(list(self.now)[secrets.randbelow(len(self.now))])
                self.now[copy] = Tape(is_rank=is_rank)
        return self.now.get(copy)

    def add(self, tape: Tape, number: int, is_sent: bool, message: dict, blob: bytes) -> None:
        """Keeps a message; of a case with large ones fewer ranks are kept.

        Raises:
            TooLong: there is no room for one rank.
        """
        if all(kept is not tape for kept in self.now.values()):
            return
        tape.heard.append((number, is_sent, message, blob))
        tape.n_bytes += len(blob)
        while sum(kept.n_bytes for kept in self.now.values()) > MOST_BYTES:
            if len(self.now) == 1:
                raise TooLong(f"one rank's messages take more than {MOST_BYTES >> 20} MiB in one case")
            self.now.pop(list(self.now)[secrets.randbelow(len(self.now))])


TAPES = Tapes()


class TapedLine(Line):
    """A line whose messages are kept, of those that the answer sends only what it returns."""

    def __init__(self, end: socket.socket, tape: Tape) -> None:
        super().__init__(end)
        self.tape, self.number = tape, tape.n_lines
        tape.n_lines += 1

    def send(self, message: dict[str, Any], blob: bytes = b"") -> None:
        TAPES.add(self.tape, self.number, True, message, blob)
        super().send(message, blob)

    def receive(self) -> tuple[dict[str, Any], bytes]:
        message, blob = super().receive()
        is_last = "returned" in message
        kept = message if is_last else {kind: message[kind] for kind in _ASKED if kind in message}
        TAPES.add(self.tape, self.number, False, kept, blob if is_last else b"")
        return message, blob


def says_the_same(tape: Tape, connect: Any) -> bool:
    """Whether a process that hears what the driver said on the tape says what the answer said then."""
    lines: dict[int, Line] = {}
    asked: dict[int, dict] = {}
    try:
        for number, is_sent, message, blob in tape.heard:
            if number not in lines:
                lines[number], asked[number] = connect(), message
            if is_sent:
                lines[number].send(message, blob)
            elif not _is_same(asked[number], (message, blob), lines[number].receive()):
                return False
        return True
    except (HungUp, ValueError, TypeError, KeyError):
        return False
    finally:
        for line in lines.values():
            line.close()


def _is_same(asked: dict, then: tuple[dict, bytes], now: tuple[dict, bytes]) -> bool:
    kinds = [next((kind for kind in _ASKED if kind in message), "") for message, _ in (then, now)]
    if kinds[0] != kinds[1] or then[0].get("dist") != now[0].get("dist"):
        return False
    if kinds[0] != "returned" or _SEARCHES & asked.keys():
        return True
    return is_close(*(_values(*said) for said in (then, now)))


class _Marks:
    """Unpacks what is no value as what stands for it."""

    def unpack(self, kind: str, content: Any, unpack: Any) -> Any:
        return kind, content[:2] if kind == "object" else content


def _values(message: dict, blob: bytes) -> list:
    unpacker = Unpacker(blob, _Marks())  # in the order in which they were packed
    values = {name: unpacker.unpack(message[name]) for name in ("changed", "states", "random", "made", "returned")}
    values["changed"] = [values["changed"][0], [_Memory(flat) for flat in values["changed"][1]]]
    return [values[name] for name in ("changed", "states", "made", "returned")]


@dataclass
class _Memory:
    """Bytes of nobody knows which numbers."""

    flat: torch.Tensor | None


def is_close(a: Any, b: Any) -> bool:
    """Whether two plain values are equal but for rounding."""
    if isinstance(a, np.ndarray | np.generic) and isinstance(b, np.ndarray | np.generic):
        a, b = torch.from_numpy(np.array(a)), torch.from_numpy(np.array(b))
    if isinstance(a, _Memory) and isinstance(b, _Memory):
        return _memory_is_close(a.flat, b.flat)
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return (a.shape, a.dtype) == (b.shape, b.dtype) and _numbers_are_close(a.detach(), b.detach())
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(is_close(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and type(a) is type(b):
        return len(a) == len(b) and all(map(is_close, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return _numbers_are_close(torch.tensor(a).double(), torch.tensor(b).double())
    return type(a) is type(b) and a == b


def _numbers_are_close(a: torch.Tensor, b: torch.Tensor) -> bool:
    if not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b)
    scale = float(a.abs().nan_to_num(0, 0, 0).max()) if a.numel() else 0.0
    return torch.allclose(a, b, rtol=RELATIVE, atol=ABSOLUTE * max(scale, 1e-30), equal_nan=True)


def _memory_is_close(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None or a.shape != b.shape:
        return a is b
    kinds = [kind for kind in (torch.float32, torch.float64) if a.numel() % kind.itemsize == 0]
    return torch.equal(a, b) or any(_numbers_are_close(a.view(kind), b.view(kind)) for kind in kinds)
