"""`run_isolated`: one call in one fresh process.

    done = run_isolated(simulation, (worker, 1000), timeout_s=60, memory_bytes=4 * 2**30)
    done.result, done.failure, done.output, done.seconds

It never raises for what went wrong inside: `failure` says it (exception, exit, signal, timeout, ...), None if the call
returned. Its `on_output(text)` gets whole lines as they are printed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hw_utils.core import pickling
from hw_utils.core.errors import Failure, WorkerFailed
from hw_utils.processes.supervisor import busy_ranks, watch
from hw_utils.processes.worker_processes import WorkerProcesses


@dataclass(frozen=True)
class Isolated:
    """What came of one call in one fresh process."""

    result: Any
    failure: Failure | None
    output: str
    errors: str  # what it wrote to stderr
    seconds: float


def run_isolated(
    function: Callable[..., Any],
    args: tuple = (),
    *,
    timeout_s: float = 60,
    memory_bytes: int | None = None,
    on_output: Callable[[str], None] | None = None,
) -> Isolated:
    """Calls `function(*args)` in one fresh process; nothing that it does takes the kernel down.

    memory_bytes: how much it may allocate (Linux). on_output: is given whole lines as they are printed. An interrupt
    leaves as a KeyboardInterrupt whose argument is a Failure with the line that it was at.
    """
    call = pickling.dump_call(function, tuple(args))
    workers = WorkerProcesses(1, connect=False)
    try:
        member = workers.members[0]
        workers.echo = _Lines(on_output)
        workers.call(function, args, call, memory_bytes=memory_bytes)
        failure = None
        started = time.perf_counter()
        try:
            watch(workers, timeout_s)
        except WorkerFailed as error:
            failure = error.failures[0]
        except KeyboardInterrupt:
            raise KeyboardInterrupt(busy_ranks(workers, "still busy")[0][0]) from None
        seconds = time.perf_counter() - started
        return Isolated(member.result, failure, member.stdout.text, member.stderr.text, seconds)
    finally:
        workers.close()


class _Lines:
    """Hands lines on without a prefix."""

    enabled = True

    def __init__(self, on_output: Callable[[str], None] | None) -> None:
        self.on_output = on_output

    def show(self, rank: int, lines: list[str]) -> None:
        if lines and self.on_output is not None:
            self.on_output("".join(line + "\n" for line in lines))
