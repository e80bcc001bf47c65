"""A run on the virtual cluster: attempts with greenlets, threads or processes, until one gets to its end."""

from __future__ import annotations

from hw_utils.virtual import stuck_threads
from hw_utils.virtual.ending import time_limit
from hw_utils.virtual.multiprocess.engine_server import preloadable
from hw_utils.virtual.multiprocess.run_multiprocess import AttemptApart
from hw_utils.virtual.ranks.per_rank_state.new_imports import Imports
from hw_utils.virtual.ranks.progress_file import lit
from hw_utils.virtual.run_in_one_process import Attempt


def simulation(call: bytes, job: dict, *, timeout_s: float | None = None, progress_file: str | None = None) -> dict:
    """Runs `call`, a pickled (worker, args), as `job` says: greenlets first, threads if the program needs them, and
    with seeds of the ranks' own from the start if one draws before it has set one.

    timeout_s: ends it with the rank that is busy then. progress_file: always names the rank that runs. A program that
    needs a process a rank is given up: the outcome says so with "apart", and the caller starts it again, with that in
    its job, in a process that has not seen the program.
    """
    shown, imports = job.get("shown", []), Imports()
    is_last = job["fold"] is not None or job["world_size"] > job.get("most_processes", 0)
    with (
        time_limit(timeout_s) as attempts,
        lit(progress_file) as (lamp, virtual_s),
        stuck_threads.watched(
            lamp if progress_file else None, lambda: _tell_time(attempts, virtual_s), is_last=is_last
        ),
    ):
        carrier, kind = ("processes", AttemptApart) if "apart" in job else ("greenlets", Attempt)
        while True:
            attempt = kind(call, job, lamp, shown)
            attempts.append(attempt)
            attempt.run(carrier)
            given_up = attempt.engine.ending.given_up
            if given_up is None or given_up.wants == "processes":
                break
            shown = attempt.streams.shown
            if given_up.wants == "seeds":
                job = {**job, "own_seeds": True}
            else:
                carrier = "threads"
        if given_up is not None and given_up.wants == "processes":
            return {
                "apart": given_up.why, "shown": attempt.streams.shown, "modules": preloadable(imports.new()),
                "rank": given_up.rank,
            }  # fmt: skip
    return attempt.outcome()


def _tell_time(attempts: list[Attempt], virtual_s) -> None:
    """How far the last attempt is."""
    if attempts:
        virtual_s[0] = max(attempts[-1].engine.clock)
