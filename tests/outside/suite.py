"""Many tests over the three engines: run side by side, counted, compared with what is expected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from tests.outside import distributed_tests
from tests.outside.expected import ENGINES, Expected
from tests.outside.warm import Outcome, Warm, side_by_side

TIMEOUT_S = 60.0
LONG = {"test_ddp_uneven_inputs", "test_ddp_compile_static_graph"}  # torch gives the first five times as long, too
PRELOAD = "tests.outside.distributed_tests"


@dataclass(frozen=True)
class Result:
    """One test under one engine: passed, skipped or failed, and why."""

    engine: str
    world_size: int
    test: str
    status: str
    reason: str
    details: str
    seconds: float

    @property
    def failure(self) -> str:
        return self.reason if self.status == "failed" else ""


def run_tests(
    worlds: Iterable[int],
    engines: Iterable[str],
    *,
    tests: Callable[[str, int, str], bool] = lambda engine, world, name: True,
    jobs: int = 2,
    timeout_s: float = TIMEOUT_S,
) -> Iterator[Result]:
    """Every result as it comes; `tests(engine, world_size, name)` chooses. `jobs` tests run at a time."""
    cases = [(e, w, n) for w in worlds for e in engines for n in names() if tests(e, w, n)]

    def run_one(warm: dict[tuple[str, int], Warm], case: tuple[str, int, str]) -> Result:
        engine, world, name = case
        kind = "raw" if engine == "raw" else "engines"
        if (kind, world) not in warm:
            for other in warm.values():
                other.close()
            environ = {"WORLD_SIZE": str(world), "BACKEND": "gloo", "MASTER_ADDR": "localhost"}
            warm.clear()
            warm[kind, world] = Warm(kind, PRELOAD, environ)
        return _result(warm[kind, world], engine, world, name, timeout_s)

    return side_by_side(cases, jobs, run_one)


@cache
def names() -> list[str]:
    return distributed_tests.names()


def _result(warm: Warm, engine: str, world: int, name: str, timeout_s: float) -> Result:
    timeout_s = timeout_s * 5 if name in LONG else timeout_s
    with distributed_tests.Folders() as environ:
        outcome = warm.run(engine, distributed_tests.worker, world, (name,), timeout_s=timeout_s, environ=environ)
    status, reason = _status(outcome)
    return Result(engine, world, name, status, reason, outcome.details, outcome.seconds)


def _status(outcome: Outcome) -> tuple[str, str]:
    if not outcome.passed:
        return "failed", outcome.reason
    skips = [r for r in outcome.results if r != distributed_tests.PASSED]
    return ("skipped", skips[0]) if skips else ("passed", "")


@dataclass(frozen=True)
class Count:
    """How many of a world size's tests bare gloo runs, and of those, how many an engine passes."""

    engine: str
    world_size: int
    n_valid: int
    n_passed: int
    seconds: float


def valid_tests(results: Iterable[Result], expected: Iterable[Expected]) -> set[tuple[int, str]]:
    """(world size, test) of those that bare gloo passes: by its own results, else by the list of what it does not."""
    results, expected = list(results), list(expected)
    raw = {(r.world_size, r.test): r.status for r in results if r.engine == "raw"}
    seen = {(r.world_size, r.test) for r in results}
    skipped = {(r.world_size, r.test) for r in results if r.status == "skipped"}
    known = {(w, t) for w, t in seen if any(e.covers("raw", w, t) for e in expected)}
    return {case for case in seen if (raw[case] == "passed" if case in raw else case not in known | skipped)}


def counts(results: Iterable[Result], expected: Iterable[Expected]) -> list[Count]:
    """One row an engine and world size."""
    results = list(results)
    valid = valid_tests(results, expected)
    rows = []
    for engine, world in dict.fromkeys((r.engine, r.world_size) for r in results):
        own = [r for r in results if (r.engine, r.world_size) == (engine, world)]
        mine = [r for r in own if (world, r.test) in valid]
        passed = sum(r.status == "passed" for r in mine)
        rows.append(Count(engine, world, len(mine), passed, sum(r.seconds for r in own)))
    return sorted(rows, key=lambda c: (ENGINES.index(c.engine), c.world_size))
