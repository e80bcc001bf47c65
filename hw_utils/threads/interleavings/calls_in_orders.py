"""The collective calls that lesson 06's checks make in many orders, and all that is said of them in plain values."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch

from hw_utils.threads.interleavings.explorer import Explorer, Outcome
from hw_utils.threads.interleavings.in_place import unseen
from hw_utils.threads.interleavings.story import tell
from hw_utils.threads.interleavings.switch_points import about

_address = object.__hash__  # as `id`, of which Python tells every audit hook


class Calls:  # what it does beside the calls has few functions: a tracer is told of each that is called
    """A program for `explore`: every rank calls a method of what they share, a few times in a row.

    When a call has returned, the rank writes into all that it got, and into the tensor that it brought: nobody else
    may see that. Gives for each call what it returned, and the rank's own tensor after it and after the writing;
    `changed_later` says what stands in the results of a call after a later one, if that is not what was written.
    """

    def __init__(self, method: str, brought: list[list[torch.Tensor]], args: list[tuple]) -> None:
        """brought: rank -> call -> tensor. args: call -> what comes after the tensor and the rank."""
        self.method, self.brought, self.args = method, brought, args

    def __call__(self, contexts: list, rank: int, note: Callable[[str], None]) -> list[dict[str, Any]]:
        """contexts: what as many ranks share each, the first ones the first; usually one, for all."""
        seen, results = [], []
        place, own_rank = divmod(rank, len(self.brought) // len(contexts))
        for k, tensor in enumerate(self.brought[rank]):
            mine = tensor.clone()
            got = getattr(contexts[place], self.method)(mine, own_rank, *self.args[k])
            with unseen():
                entry = {"got": _values(got, tensor), "given": mine.flatten().tolist()}
                _look_back(seen, results, -1.0 - rank)
                _scribble(got, -1.0 - rank)
                entry["own"] = mine.flatten().tolist()
                mine.fill_(-1001.0 - rank)
            seen.append(entry)
            results.append(got)
            note(f"has returned from call {k + 1} and writes into its tensors")
        with unseen():
            _look_back(seen, results, -1.0 - rank)
        return seen


def _look_back(seen: list[dict[str, Any]], results: list, written: float) -> None:
    """Notes in a call's entry if something else than what was written stands in its results by now."""
    for entry, got in zip(seen, results):
        for part in got if isinstance(got, list | tuple) else (got,):
            numbers = part.flatten().tolist() if isinstance(part, torch.Tensor) else _numbers(part)
            if numbers.count(written) != len(numbers) and "changed_later" not in entry:
                entry["changed_later"] = [value for value in numbers if value != written]


def _numbers(got: Any) -> list[float]:
    if isinstance(got, torch.Tensor):
        return got.flatten().tolist()
    return [value for g in got for value in _numbers(g)] if isinstance(got, list | tuple) else []


def _values(got: Any, like: torch.Tensor) -> Any:
    if isinstance(got, torch.Tensor):
        if got.shape == like.shape and got.dtype == like.dtype:
            return got.flatten().tolist()
        kind = "" if got.dtype == like.dtype else f" and dtype {str(got.dtype).removeprefix('torch.')}"
        return {"unknown": f"one tensor of shape {tuple(got.shape)}{kind}"}
    if isinstance(got, list | tuple):
        found = []
        for g in got:
            is_alike = isinstance(g, torch.Tensor) and g.shape == like.shape and g.dtype == like.dtype
            found.append(g.flatten().tolist() if is_alike else _values(g, like))
        return found
    return None if got is None else {"unknown": f"a value of type {type(got).__name__}"}


def _scribble(got: Any, value: float) -> None:
    if isinstance(got, torch.Tensor):
        got.fill_(value)
    elif isinstance(got, list | tuple):
        for g in got:
            g.fill_(value) if isinstance(g, torch.Tensor) else _scribble(g, value)


class CallsInOrders:
    """An `Explorer` of `Calls` that says all in plain values, also to another process; a context manager."""

    def __init__(self, kind: Callable, world_size: int, method: str, brought: list, args: list, timeout_s: float):
        """kind: the class of what the ranks share; it takes the world size. brought: rank -> call -> tensor, of the
        ranks of one object or of several, which are made then."""
        self.world_size, self.n_calls, self.error = len(brought), len(args), None
        make = lambda: [kind(world_size) for _ in range(len(brought) // world_size)]  # noqa: E731
        self.explorer = Explorer(make, Calls(method, brought, args), len(brought), timeout_s)
        self.codes: dict[CodeType, int] = {}
        self._numbered: dict[int, tuple[int, CodeType]] = {}  # by address: the hash of a code is slow
        self.ways: dict[tuple, int] = {}
        self.told: set[str] = set()

    def __enter__(self) -> CallsInOrders:
        self.explorer.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.explorer.__exit__(*error)

    def run(self, orders: list[tuple]) -> dict[str, Any]:
        """`outcomes`, up to the first that does not end well; the `ways` and `codes` that were not said before.

        A way is the points that one call of one rank has passed: [number of the frame, number of the code, offset].
        """
        n_ways, n_codes = len(self.ways), len(self.codes)
        outcomes = [self._plain(outcome) for outcome in self.explorer.run(orders)]
        ways = [[list(step) for step in way] for way in list(self.ways)[n_ways:]]
        return {"outcomes": outcomes, "ways": ways, "codes": [about(c) for c in list(self.codes)[n_codes:]]}

    def _plain(self, outcome: Outcome) -> dict[str, Any]:
        self.error = outcome.error
        names = ("results", "kind", "rank", "text", "line", "switches", "n_points", "turns")
        found = {name: getattr(outcome, name) for name in names}
        found["passed"] = [[self._way(steps) for steps in calls] for calls in outcome.passed]
        if outcome.results is None:
            return {**found, "error": type(outcome.error).__name__, "story": {"end": outcome.story}}
        if repr(outcome.results) in self.told:
            return {**found, "story": {}}
        self.told.add(repr(outcome.results))
        story = {}
        for rank, k in itertools.product(range(self.world_size), range(self.n_calls)):
            text = f"has returned from call {k + 1} and writes into its tensors"
            story[f"{rank} {k}"] = tell(outcome.story, upto_rank=rank, upto_text=text)
        return {**found, "story": story}

    def _way(self, steps: list[tuple]) -> int:
        frames: dict[int, int] = {}
        way = tuple(
            (frames.setdefault(frame, len(frames)), self._number_of(code), offset) for frame, code, offset in steps
        )
        return self.ways.setdefault(way, len(self.ways))

    def _number_of(self, code: CodeType) -> int:
        if _address(code) not in self._numbered:
            self._numbered[_address(code)] = self.codes.setdefault(code, len(self.codes)), code
        return self._numbered[_address(code)][0]
