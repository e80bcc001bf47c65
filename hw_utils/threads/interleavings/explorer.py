"""Orders of threads on purpose: the same few calls, run under thousands of interleavings, each one repeatable.

A data race shows itself once in a million runs, and never in class. Here the ranks are threads of which one runs
at a time (`turns`), and the turn may pass to another rank before every access to an attribute, a list, a
dictionary or a function in the student's code, and in what this calls of libraries that are written in Python. First
one unlucky switch at every such point, then seeded random ones.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import gc
import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from hw_utils.core.errors import ranks_text
from hw_utils.core.source.lines import locate
from hw_utils.core.source.unseen_calls import refuse_unseen
from hw_utils.threads.interleavings.in_place import ChangedTensors, InTwoSteps, Place, arrays_are_seen
from hw_utils.threads.interleavings.locks import managed_locks
from hw_utils.threads.interleavings.story import source_of, tell
from hw_utils.threads.interleavings.switch_plan import Plan
from hw_utils.threads.interleavings.switch_points import comes_from_a_traced, is_of_a_library, opening_of, points_in
from hw_utils.threads.turns import Stopped, Turns
from hw_utils.threads.turns import __file__ as turns_file

_STEP_LIMIT = 20_000
_MOST_OUTCOMES = 100
LOST_TRACE = "sys.settrace was called: then no other rank can be let in between two steps"
_OBJECTS = 200_000  # between two collections: each goes through all that a notebook has imported
_address = object.__hash__  # as `id`, of which Python tells every audit hook, and not the slow hash of a code
_BATCH = 100  # orders that are run at a time


@dataclass
class Outcome:
    """One way in which a run ended, with the first interleaving that led there."""

    results: list[Any] | None  # a rank each; None if the run did not end well
    kind: str = "returned"  # "raised", "hung", "endless"
    rank: int = -1  # that raised
    text: str = ""  # the exception, or who waits where
    error: BaseException | None = None
    line: str = ""  # the source line at which it raised
    story: list[str] = field(default_factory=list)
    number: int = 0  # of the interleaving
    switches: int = 0  # that were not forced by a wait
    count: int = 1  # interleavings that ended so
    n_points: int = 0  # at which the turn could pass
    turns: list[tuple[int, int, int]] = field(default_factory=list)  # points before, who gives it away, who may take it
    passed: list[list[list]] = field(default_factory=list)  # rank -> between its notes -> (frame, code, offset)


@dataclass
class Explored:
    """Every outcome that differs, in the order found; the first is that of the plainest order."""

    outcomes: list[Outcome]
    n_interleavings: int
    n_points: int  # at which the turn could pass, in the plainest order


class _Interleaving:
    """One run: lets the plan switch at the points of the student's code, and keeps the lines in their order."""

    def __init__(self, turns: Turns, plan: Plan, shared: Set[Place] | None) -> None:
        """shared: where tensors are changed in place that several ranks change; None if this run is to find out."""
        self.turns, self.plan, self.shared = turns, plan, shared
        self.changed = ChangedTensors()
        self.lines: list[tuple[int, str, int]] = []  # rank, file, line; or rank, what it did, 0
        self.endless: tuple[int, str, int] | None = None  # the step at which the limit was passed
        self.steps = [0, 0]  # in the student's code, in libraries' code
        self.frames: dict[int, int] = {}  # the number of a frame that is running
        self.n_frames = 0
        self.passed: list[list[list]] = [[[]] for _ in range(turns.world_size)]  # rank -> call -> (frame, code, offset)

    def tracer(self, rank: int) -> Callable:
        """What `sys.settrace` takes on the thread of a rank."""
        steppers: dict[int, tuple] = {}  # by address
        mine = self.passed[rank]

        def on_call(frame: FrameType, event: str, arg: Any) -> Callable | None:
            code = frame.f_code
            known = steppers.get(_address(code))
            if known is None:
                stepper = self._stepper(rank, code, points, mine) if (points := points_in(code)) else None
                known = steppers[_address(code)] = (stepper, is_of_a_library(code), opening_of(code), code)
            stepper, is_librarys, opening, _ = known
            if stepper is None and opening is None:
                return None
            if opening is not None and frame.f_back is not None and frame.f_back.f_trace is not None:
                self._open(code, opening, mine)
            if stepper is None or (is_librarys and not comes_from_a_traced(frame.f_back)):
                return None
            frame.f_trace = stepper  # first: then Python 3.13 begins with this very frame, not with the next
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            self.n_frames += 1
            self.frames[_address(frame)] = self.n_frames
            return stepper

        return on_call

    def _open(self, code: CodeType, opening: int, mine: list[list]) -> None:
        """Lets the plan switch before a library's code begins that has no other points."""
        self.n_frames += 1
        mine[-1].append((self.n_frames, code, opening))
        self.steps[True] += 1
        if self.plan.at_point():
            self.turns.pause()

    def _stepper(self, rank: int, code: CodeType, points: frozenset[int], mine: list[list]) -> Callable:
        turns, plan, frames, steps, file = self.turns, self.plan, self.frames, self.steps, code.co_filename
        is_librarys = is_of_a_library(code)
        lines = [] if is_librarys else self.lines  # the story is told in the student's lines
        limit = _STEP_LIMIT * 10 if is_librarys else _STEP_LIMIT

        def on_step(frame: FrameType, event: str, arg: Any) -> Callable:
            at = frame.f_lasti
            if at not in points or event != "opcode":
                return on_step
            here = (rank, file, frame.f_lineno)
            if not lines or lines[-1] != here:
                lines.append(here)
            mine[-1].append((frames[_address(frame)], code, at))
            steps[is_librarys] += 1
            if steps[is_librarys] > limit:
                self.endless = self.endless or here
                raise Stopped
            if plan.at_point():
                turns.pause()
                if lines[-1] != here:
                    lines.append(here)
            return on_step

        return on_step

    def in_two_steps(self, rank: int) -> contextlib.AbstractContextManager:
        """For the thread of a rank: lets the plan switch while torch changes a tensor that others change, too."""
        shared = self.shared
        if shared is not None and not shared:
            return contextlib.nullcontext()  # a mode of torch's costs a tenth of the time

        def pause(frame: FrameType, place: Place) -> bool:
            if shared is None or place not in shared or not self.plan.at_point():
                return False
            here = (rank, frame.f_code.co_filename, frame.f_lineno)
            self.turns.pause()
            self.lines.append(here)
            return True

        return InTwoSteps(rank, self.changed, pause)

    def note(self, rank: int, text: str) -> None:
        self.lines.append((rank, text, 0))
        self.passed[rank].append([])


def explore(
    make: Callable[[], Any],
    program: Callable[[Any, int, Callable[[str], None]], Any],
    world_size: int,
    *,
    n_interleavings: int = 1000,
    seed: int = 0,
    timeout_s: float = 10.0,
    key: Callable[[list[Any]], Any] = repr,
    one_is_right: bool = False,
) -> Explored:
    """The distinct outcomes of `program(shared, rank, note)` on every rank, over `n_interleavings` orders.

    `make()` gives what the ranks share, anew for each run, with locks that the scheduler controls. Whatever
    `program` calls in the student's files can be switched at every shared access; `program` itself cannot.
    `note(text)` puts a line into the story. `key(results)` tells outcomes apart.
    Ends at the first run that raises, hangs or never ends: one is enough. With `one_is_right`, also at the second
    outcome: they cannot both be the one that is wanted.
    """
    with Explorer(make, program, world_size, timeout_s) as explorer:
        return explored(explorer.run, world_size, n_interleavings, seed, key, one_is_right)


def explored(
    run: Callable[[list[tuple]], list[Outcome]],
    world_size: int,
    n_interleavings: int,
    seed: int,
    key: Callable[[list[Any]], Any],
    one_is_right: bool,
) -> Explored:
    """As `explore`; `run` gives the outcomes of some orders, up to the first that did not end well."""
    found: dict[Any, Outcome] = {}
    (plainest,), done = run([(-1, 0, None)]), 0
    orders, waiting = _orders(plainest.n_points, world_size, n_interleavings, seed), [plainest]
    while True:
        for outcome in waiting:
            done += 1
            outcome.number = done
            same = key(outcome.results) if outcome.results is not None else outcome.kind
            if same in found:
                found[same].count += 1
            elif len(found) < _MOST_OUTCOMES:
                found[same] = outcome
            if outcome.results is None or (one_is_right and len(found) > 1):
                return Explored(list(found.values()), done, plainest.n_points)
        waiting = run(batch) if (batch := list(itertools.islice(orders, _BATCH))) else []
        if not waiting:
            return Explored(list(found.values()), done, plainest.n_points)


class Explorer:
    """Runs what `make()` gives in the orders that it is told; a context manager."""

    def __init__(self, make: Callable[[], Any], program: Callable, world_size: int, timeout_s: float) -> None:
        self.make, self.program, self.timeout_s = make, program, timeout_s
        self.turns = Turns(world_size)
        self.stack = contextlib.ExitStack()
        self.shared: set[Place] | None = None  # where tensors are changed in place that several ranks change

    def __enter__(self) -> Explorer:
        _refuse_unseen_in_ranks()
        self.stack.enter_context(self.turns)
        self.stack.callback(gc.set_threshold, *gc.get_threshold())
        gc.set_threshold(_OBJECTS, 50, 100)
        self.stack.enter_context(arrays_are_seen())
        closed_over = getattr(self.make, "__closure__", None) or ()
        students = [self.make, *(cell.cell_contents for cell in closed_over)]
        self.stack.enter_context(managed_locks(self.turns, *students))
        return self

    def __exit__(self, *error: Any) -> None:
        self.stack.close()

    def run(self, orders: list[tuple]) -> list[Outcome]:
        """The outcome of each order, (at, to, seed) of a plan, up to the first that does not end well."""
        self.turns.caller = _thread.get_ident()
        self.turns.gather()
        if self.shared is None:  # and Python 3.12 shows a thread's steps from the next thread on
            first, changed = self._run_one(Plan(), None)
            if first.results is None:
                return [first]
            self.shared = changed.shared()
        outcomes = []
        for order in orders:
            outcomes.append(self._run_one(Plan(*order), self.shared)[0])
            if outcomes[-1].results is None:
                break
        return outcomes

    def _run_one(self, plan: Plan, shared: Set[Place] | None) -> tuple[Outcome, ChangedTensors]:
        one = _Interleaving(self.turns, plan, shared)

        def work(rank: int) -> Any:
            before, tracer = sys.gettrace(), one.tracer(rank)
            sys.settrace(tracer)
            try:
                with one.in_two_steps(rank):
                    result = self.program(given, rank, functools.partial(one.note, rank))
                if sys.gettrace() is not tracer:
                    raise RuntimeError(LOST_TRACE)
                return result
            finally:
                sys.settrace(before)

        given = self.make()
        ended = self.turns.run([work] * self.turns.world_size, plan.choose, self.timeout_s)
        outcome = _outcome(self.turns, one, ended)
        outcome.switches, outcome.n_points, outcome.turns = plan.switches, plan.seen, plan.turns
        outcome.passed = one.passed
        return outcome, one.changed


@functools.cache
def _refuse_unseen_in_ranks() -> None:
    """Once a process: a hook stays for good. Where one is that does not stop at ranks, it lets no other one in."""
    with contextlib.suppress(PermissionError):
        refuse_unseen([turns_file], everywhere=False)


def _orders(n_points: int, world_size: int, n: int, seed: int) -> Iterator[tuple]:
    """After the plainest order: one switch, at every point and to every other rank, if these are more than half of the
    orders at so many of them, evenly spread; then random ones."""
    if world_size == 1:
        return
    single = [(at, to, None) for at in range(1, n_points + 1) for to in range(world_size - 1)]
    n_single = min(len(single), n // 2)
    yield from (single[k * len(single) // n_single] for k in range(n_single))
    for i in range(n - 1 - n_single):
        yield -1, 0, seed * 1_000_003 + i


def _outcome(turns: Turns, one: _Interleaving, ended: list) -> Outcome:
    failed = [e for e in ended if e.error is not None and not isinstance(e.error, Stopped)]
    if one.endless or turns.timed_out:
        rank, *busy_at = one.endless or (turns.current, *turns.busy_at)
        text = f"rank {rank} never ended; its last line: {_last_line(one, tuple(busy_at))}"
        return Outcome(None, "endless", rank, text, story=tell(one.lines))
    if failed:
        return _raised(failed, one)
    if turns.stuck:
        return Outcome(None, "hung", text=_waits(ended, one), story=tell(one.lines))
    return Outcome([e.result for e in ended], story=one.lines)  # told when asked for


def _raised(failed: list, one: _Interleaving) -> Outcome:
    # A rank that only found the barrier broken is not the one to blame.
    first = next((e for e in failed if not isinstance(e.error, threading.BrokenBarrierError)), failed[0])
    rank, error = first.rank, first.error
    line = next((source_of(file, n) for r, file, n in reversed(one.lines) if r == rank and n), "")
    text = f"{type(error).__name__}: {error}"
    story = [*tell(one.lines, upto_rank=rank), f"rank {rank} raises {text}"]
    return Outcome(None, "raised", rank, text, error, line, story)


def _waits(ended: list, one: _Interleaving) -> str:
    by_line: dict[str, list[int]] = {}
    for e in ended:
        if isinstance(e.error, Stopped):
            at = next(((f, n) for r, f, n in reversed(one.lines) if r == e.rank and n), None)
            by_line.setdefault(f"{locate(*at)}: {source_of(*at)}" if at else "?", []).append(e.rank)
    gone = [e.rank for e in ended if not isinstance(e.error, Stopped)]
    waits = "; ".join(f"{ranks_text(r)} wait{'s' if len(r) == 1 else ''} at {line}" for line, r in by_line.items())
    return waits + (f"; {ranks_text(gone)} {'has' if len(gone) == 1 else 'have'} returned" if gone else "")


def _last_line(one: _Interleaving, busy_at: tuple[str, int]) -> str:
    stepped = [(file, line) for _, file, line in one.lines if line]
    file, line = busy_at if busy_at[1] else (stepped or [("", 0)])[-1]
    return f"{locate(file, line)}: {source_of(file, line)}" if line else "?"
