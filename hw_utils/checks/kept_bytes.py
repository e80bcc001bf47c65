"""What checks of memory share: the bytes that an answer keeps, on its object or anywhere else."""

from __future__ import annotations

import re
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch

from hw_utils.checks.check import observe
from hw_utils.core.run_result import Run
from hw_utils.core.trace import Event
from hw_utils.material.kept.tensors import NUMBERS, beside_models, has_numbers
from hw_utils.material.kept.tensors import kept_tensors as kept_here
from hw_utils.material.kept.values import kept_values as values_here

MOMENT_S = 1e-3
_MOST_THINGS = 10_000
_SETTINGS = 6  # an optimizer's learning rate, betas and so on in one place
ELSEWHERE = "something outlives the step outside the object: under a global name, on the class or on a parameter."


def kept_tensors(thing: Any) -> dict[str, torch.Tensor]:
    """Path -> tensor that hangs on an answer's object, each with all the memory that it is a view of."""
    if hasattr(type(thing), "kept_tensors"):  # it is in another process
        return thing.kept_tensors()
    return kept_here(thing)


def values_kept(thing: Any, make: Any, model: torch.nn.Module | None = None) -> tuple[list[str], list[str]]:
    """As texts, what hangs on an answer's object and what is held beside it, that is no tensor of floats.

    make: the answer that made it, with this model.
    """
    if hasattr(type(thing), "kept_values"):  # it is in another process
        return thing.kept_values()
    return values_here(thing, [make], [model] if model else [])


def share_nothing(answer: Any, n_ranks: int) -> bool:
    """Has each of so many ranks of the run that comes call its answer in a process of its own; not if it is here.

    Where they share a process, what all ranks may keep together is as much as one of them could keep of all.
    """
    if hasattr(type(answer), "CROSSES_AS"):
        answer.share_nothing(n_ranks)
        return True
    return False


def look_at(answer: Any, n_ranks: int = 0, *, is_at_rest: bool = False) -> list[int] | None:
    """A look at the memory of an answer's own process: bytes that are new in it since each look before this one.

    n_ranks: of a run that begins now. is_at_rest: no call should be under way. None where nobody looks, as here.
    """
    return answer.new_bytes(n_ranks, is_at_rest=is_at_rest) if hasattr(type(answer), "CROSSES_AS") else None


def taken(before: list[int] | None, after: list[int] | None) -> int | None:
    """Bytes that are new in the later look, whatever holds them."""
    return None if before is None or after is None else after[len(before)]


def floats_kept(thing: Any, model: torch.nn.Module | None = None) -> list[torch.Tensor]:
    """The float tensors that hang on an object, one of each memory; masks and random states are not floats.

    model: of the memory in which its weights and gradients lie only what is beside them.
    """
    if model is None:
        return _floats(kept_tensors(thing))
    return _floats(beside_models(kept_tensors(thing), [model]) if is_here(thing) else
                   thing.kept_tensors(beside_models=True))  # fmt: skip


def floats_anywhere(thing: Any, model: torch.nn.Module | None = None) -> list[torch.Tensor]:
    """Those that an object in another process keeps there, on it or elsewhere; one that is here has the run's books."""
    return floats_kept(thing, model) if is_here(thing) else _floats(thing.kept_anywhere())


def floats_both(thing: Any, model: torch.nn.Module) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """`floats_kept` and `floats_anywhere` at one moment."""
    if is_here(thing):
        return (own := floats_kept(thing, model)), own
    own, anywhere = thing.kept_both()
    return _floats(own), _floats(anywhere)


def _floats(kept: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    numbers: dict[str, list[int]] = {}  # attribute -> how many floats of Python's in each of its lists
    for path, tensor in kept.items():
        if path.endswith(NUMBERS):
            numbers.setdefault(_attribute(path), []).append(tensor.numel())
    found: dict[int, torch.Tensor] = {}
    for path, tensor in kept.items():
        is_setting = path.endswith(NUMBERS) and _are_settings(numbers[_attribute(path)])
        if has_numbers(tensor) and tensor.numel() and not is_setting:
            found.setdefault(tensor.untyped_storage().data_ptr(), tensor)
    return list(found.values())


def _attribute(path: str) -> str:
    """`rows` of `rows[1][2], its numbers`."""
    return re.split(r"[\[.,]", path, maxsplit=1)[0]


def _are_settings(n_floats: list[int]) -> bool:
    """Whether lists of so many floats on one attribute are a few settings, and no tensor in disguise."""
    return max(n_floats, default=0) <= _SETTINGS and sum(n_floats) <= 4 * _SETTINGS


def n_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of their memory."""
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def bytes_beside(tensors: Iterable[torch.Tensor], model: torch.nn.Module) -> int:
    """Bytes of their memory, without the model's own weights and gradients."""
    own = [t.detach() for p in model.parameters() for t in (p, p.grad) if t is not None]
    others = []
    for tensor in tensors:
        known = [k for k, t in enumerate(own) if t.shape == tensor.shape and torch.equal(t, tensor.detach())]
        if known:
            own.pop(known[0])
        else:
            others.append(tensor)
    return n_bytes(others)


def drop_others(model: torch.nn.Module, own: list[torch.Tensor]) -> None:
    """Leaves a model the gradients that it had, or parts of them: what else lies there is kept by its optimizer."""
    for p, gradient in zip(model.parameters(), own):
        if p.grad is not None:
            share = (p.grad * gradient).sum() / (gradient * gradient).sum()
            if not torch.allclose(p.grad, share * gradient, rtol=1e-6, atol=0):
                p.grad = None


def bytes_in_lists(thing: Any) -> int:
    """Bytes of the numbers that hang on an object as raw bytes or as lists of Python's floats."""
    seen = {id(thing)}
    return sum(_bytes_in(value, seen) for value in getattr(thing, "__dict__", {}).values())


def _bytes_in(value: Any, seen: set[int]) -> int:
    """Of one attribute; a few settings, in one list or in some, are none."""
    total, n_floats, waiting = 0, [], deque([value])
    while waiting and len(seen) < _MOST_THINGS:
        value = waiting.popleft()
        if id(value) in seen:
            continue
        if isinstance(value, bytes | bytearray | array):
            total += memoryview(value).nbytes
        elif isinstance(value, list | tuple | deque | dict):
            parts = list(value.values() if isinstance(value, dict) else value)
            n_floats.append(sum(type(part) is float for part in parts))
            waiting.extend(part for part in parts if type(part) is not float)
        seen.add(id(value))
    return total + (0 if _are_settings(n_floats) else 8 * sum(n_floats))


def is_here(thing: Any) -> bool:
    """Whether an answer's object is in this process: of another one's memory the run keeps no books."""
    return not hasattr(type(thing), "kept_tensors")


def is_under_way(event: Event, place: int) -> bool:
    """Whether it had been called, and not been waited for, when its rank was at this place of its calls and waits."""
    return event.order <= place and (event.waited is None or event.waited > place)


def moment() -> float:
    """The rank's clock, which then goes on a little: what is held at this time is what was held before the call."""
    now_s = time.perf_counter()
    time.sleep(MOMENT_S)
    return now_s


def observe_memory(answer: Any, run: Callable[..., Run]) -> dict[str, Any]:
    """What `observe` gives of `run(memory=True)`, and `held`: each rank's bytes at its result's `moments`.

    None for a rank whose result has no `is_here`. An answer in another process has no bytes in this run's books, which
    would only be slow: none are kept then.
    """
    runs: list[Run] = []
    has_books = not hasattr(type(answer), "CROSSES_AS")

    def run_once() -> Run:
        runs.append(run(memory=has_books))
        return runs[-1]

    data = observe(run_once)
    if runs:
        data["held"] = [
            [sum(runs[-1].memory.held_bytes(rank, at_s).values()) for at_s in result["moments"]]
            if has_books and result["is_here"]
            else None
            for rank, result in enumerate(runs[-1].results)
        ]
    return data
