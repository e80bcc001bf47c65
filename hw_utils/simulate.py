"""The virtual cluster: unmodified torch.distributed code on as many ranks as you like, exact times, in one process."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from hw_utils.core import pickling, versions
from hw_utils.core.calls.folded_trace import FoldedTrace
from hw_utils.core.errors import Deadlock, Failure, TimedOut, WorkerFailed, without_our_stack
from hw_utils.core.hardware import Cluster, Network
from hw_utils.core.hardware.cluster import check_cluster
from hw_utils.core.hardware.fold import Fold, check_fold
from hw_utils.core.printed_lines import lines_shown
from hw_utils.core.run_result import Run
from hw_utils.core.source.kernel_cells import kernels_cells, know_cells
from hw_utils.core.trace import RECORD, Trace
from hw_utils.processes.isolated_call import run_isolated
from hw_utils.processes.refused_arguments import check_capacity, check_world_size
from hw_utils.scripts.torchrun_script import script_or_function
from hw_utils.virtual.ranks.progress_file import PROGRESS, seen, shown_at_a_terminal

GRACE_S = 3.0  # for the child to say itself which rank was still busy
MEMORY_BYTES = 12 * 2**30
MEMORY_FOLDER, MEMORY_FOLDER_BYTES = "/dev/shm", 2**30
_GIGABIT = Network()
MOST_PROCESSES = 128  # ranks of a program that changes what a process has once


def simulate(
    worker: Callable[..., Any] | str | os.PathLike,
    world_size: int,
    args: Sequence[Any] = (),
    *,
    network: Network = _GIGABIT,
    cluster: Cluster | str | None = None,
    compute: str | Callable[[int, float], float] = "measured",
    eager_bytes: int = 0,
    timeout_s: float = 60,
    echo: bool = True,
    isolate: bool = True,
    memory: bool = False,
    capacity_bytes: int | None = None,
    values: str = "real",
    fold: Fold | str | None = None,
) -> Run:
    """The `Run` of `worker(rank, world_size, *args)` on `world_size` virtual ranks, in one fresh process.

    The default process group is ready on each. Ranks run one at a time, the same way every time; `time.perf_counter`
    reads the rank's virtual clock and `time.sleep` advances it. Collectives take the time of the point-to-point
    algorithms that the docstring of `hw_utils.core.collective_algorithms` lists. `worker` may be the path of a script
    for torchrun, or "-m package.train"; it is run as it is, and `args` is its command line.

    network: what a message costs. cluster: hosts with devices, or the name of a preset as "h100x64"; its links are then
    the network. compute: what computation costs: "measured" the CPU time that it took, "free"
    nothing, "device" what each operation costs on the cluster's device, enqueued on its streams (docs/virtual_gpus.md),
    or a function of (rank, cpu seconds) that gives virtual seconds. eager_bytes: a message up to this size
    leaves before its receive is posted, as in MPI; with 0 every send waits for its receive, as with gloo.
    timeout_s: real seconds. isolate=False runs it in this process, for a debugger. memory: whether the run keeps the
    bytes that each rank holds, `run.memory`; an operation then takes some 15 us more. capacity_bytes: what a rank may
    hold before it gets an `OutOfMemory`; a run with it keeps memory. values: "shapes" computes nothing: tensors have
    shapes, dtypes and bytes, but no values (docs/virtual_gpus.md); ledger, times and memory are those with values, for
    models that no laptop holds. It wants `compute` to say what computation costs. fold: ranks that do the same, of
    which one is run for all (docs/virtual_gpus.md); the run answers for every rank. "all": they all do the same.

    Raises:
        Deadlock: no rank can go on. WorkerFailed: a rank raised, or two ends of a communication do not fit.
        TimedOut: a rank was still busy after `timeout_s`. KeyboardInterrupt: says where the running rank was.
    """
    with without_our_stack():
        check_world_size(world_size)
        if compute not in ("measured", "free", "device") and not callable(compute):
            kinds = '"measured", "free", "device"'
            raise ValueError(f"compute must be {kinds} or a function of (rank, cpu_s), got {compute!r}")
        if values not in ("real", "shapes"):
            raise ValueError(f'values must be "real" or "shapes", got {values!r}')
        if values == "shapes" and compute == "measured":
            raise ValueError(
                'values="shapes" computes nothing whose time could be measured: say compute="free" as well, or give a '
                "function of (rank, cpu_s)"
            )
        check_capacity(capacity_bytes)
        cluster = check_cluster(cluster, world_size)
        if cluster is not None and network is not _GIGABIT:
            raise ValueError(f"give network= or cluster=, not both: {cluster.name} has its own links")
        worker, args = script_or_function(worker, args)
        call = bytes(pickling.dump((worker, args), ""))
        if compute == "device":
            if cluster is None:
                raise ValueError('compute="device" needs to know the device: give cluster=, as "h100x8"')
            capacity_bytes = cluster.device.memory_bytes if capacity_bytes is None else capacity_bytes
        job = {
            "world_size": world_size,
            "network": network if cluster is None else cluster,
            "compute": compute,
            "eager_bytes": eager_bytes,
            "echo": echo,
            "memory": memory or capacity_bytes is not None,
            "capacity_bytes": capacity_bytes,
            "values": values,
            "fold": None if fold is None else _fold(fold, world_size, cluster, values),
        }
        alone = {**job, "most_processes": MOST_PROCESSES}  # in a process that is thrown away, ranks may get their own
        if _isolated is not _in_this_process:
            versions.say_untried_once()
        outcome = _isolated(call, alone, timeout_s) if isolate else _here(call, job)
        if "apart" in outcome:
            outcome = _apart(call, job, outcome, timeout_s)
        return _run_of(outcome, job)


def _fold(fold: Fold | str, world_size: int, cluster: Cluster | None, values: str) -> Fold:
    if values != "shapes" or cluster is None:
        raise ValueError(
            'a folded run has no values and needs to know how ranks lie on hosts: give values="shapes" and cluster=, '
            f'as "h100x64", beside fold=; got values={values!r}, cluster={cluster and cluster.name!r}'
        )
    return check_fold(fold, world_size, cluster)


def _apart(call: bytes, job: dict, given_up: dict, timeout_s: float) -> dict:
    """The outcome with a process a rank, for a program that changes what it would share with the other ranks."""
    why, size = given_up["apart"], job["world_size"]
    if job["fold"] is not None:
        reason = f"ranks of a folded run share one process, and this program changes it: {why}. Take that out"
        failure = Failure(given_up["rank"], "exception", reason)
        return {"failures": [failure], "exceptions": [None], "ended_in": "failed"}
    if size > MOST_PROCESSES or _isolated is _in_this_process:
        most = f"up to {MOST_PROCESSES} ranks get a process each, got {size}"
        reason = (
            f"ranks do not share it: {why}. "
            + (most if size > MOST_PROCESSES else "Here all ranks run in one process")
            + ": keep it in variables of the worker, or use fewer ranks"
        )
        failure = Failure(given_up["rank"], "exception", reason)
        return {"failures": [failure], "exceptions": [None], "ended_in": "failed"}
    return _isolated(call, {**job, **given_up}, timeout_s)


def _here(call: bytes, job: dict) -> dict:
    from hw_utils.virtual.simulation import simulation

    return simulation(call, job)


def _in_child(call: bytes, job: dict, timeout_s: float, cells: dict, progress_file: str) -> dict:
    """What the child process runs."""
    from hw_utils.virtual.simulation import simulation

    know_cells(cells)
    outcome = simulation(call, job, timeout_s=timeout_s, progress_file=progress_file)
    records = outcome.get("records")
    if records is not None:
        with (
            suppress(OSError),
            open(progress_file, "ab") as file,
        ):  # else they go the way of the rest, copied seven times
            records.tofile(file)
            outcome["records"] = None
    return outcome


def stay_here() -> None:
    """From now on `simulate` runs in this process: for one that is itself thrown away, as a grader's.

    Nothing is begun again there: what ranks call in other processes would be called twice.
    """
    global _isolated
    _isolated = _in_this_process


def _in_this_process(call: bytes, job: dict, timeout_s: float) -> dict:
    from hw_utils.virtual.simulation import simulation

    return simulation(call, {**job, "most_processes": 0, "own_seeds": True}, timeout_s=timeout_s)


def _isolated(call: bytes, job: dict, timeout_s: float) -> dict:
    handle, progress_file = tempfile.mkstemp(prefix="hw_utils-rank-", dir=_folder())
    os.write(handle, bytes(PROGRESS.size))
    os.close(handle)
    job = {**job, "folder": f"{progress_file}-folder"}
    try:
        with warnings.catch_warnings(), shown_at_a_terminal(progress_file) as write:
            warnings.filterwarnings("ignore", message="each rank is sent")  # it is one process that is sent it
            done = run_isolated(
                _in_child,
                (call, job, timeout_s, kernels_cells(), progress_file),
                timeout_s=timeout_s + GRACE_S,
                memory_bytes=None if job["values"] == "shapes" else MEMORY_BYTES,  # it asks for what it never touches
                on_output=write,
            )
        if done.failure is None:
            outcome = done.result
            if "records" in outcome and outcome["records"] is None:
                outcome["records"] = _records_in(progress_file)
            return outcome
        rank, stood, _ = seen(progress_file)
        if stood and "apart" not in job:
            shown = lines_shown(done.output, job["world_size"])
            return {"apart": "code of torch's waits for other ranks", "shown": shown, "modules": [], "rank": rank}
        f = done.failure
        failure = Failure(rank, f.kind, f.reason, f.frames, stack=f.stack, causes=f.causes)
        return {"failures": [failure], "exceptions": [None], "ended_in": f.kind}
    except KeyboardInterrupt as interrupt:
        rank, _, virtual_s = seen(progress_file)
        found = [replace(f, rank=rank) for f in interrupt.args if isinstance(f, Failure)]
        headline = f"simulate was interrupted after {virtual_s:.6g} virtual seconds"
        raise KeyboardInterrupt(*[WorkerFailed([f], headline=headline) for f in found]) from None
    finally:
        os.unlink(progress_file)
        shutil.rmtree(job["folder"], ignore_errors=True)  # of a run whose ranks could not tidy up themselves


def _folder() -> str | None:
    """Where Linux keeps files in memory, if there is room; else None, where temporary files are anyway."""
    try:
        free = os.statvfs(MEMORY_FOLDER)
    except (AttributeError, OSError):
        return None
    has_room = free.f_bavail * free.f_frsize >= MEMORY_FOLDER_BYTES and os.access(MEMORY_FOLDER, os.W_OK)
    return MEMORY_FOLDER if has_room else None


def _records_in(path: str) -> np.ndarray:
    """The records behind the progress_file; not copied if they lie in memory."""
    if not path.startswith(MEMORY_FOLDER) or os.path.getsize(path) == PROGRESS.size:
        return np.fromfile(path, RECORD, offset=PROGRESS.size)
    with open(path, "rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), RECORD, offset=PROGRESS.size)


def _run_of(outcome: dict, job: dict) -> Run:
    """The run, or the error that it ended in."""
    if "table" in outcome:
        raise Deadlock(outcome["table"])
    if "failures" in outcome:
        raise _error_of(outcome, job)
    trace = Trace(
        outcome["records"], outcome["names"], outcome["groups"], outcome["world_size"], outcome.get("streams")
    )
    if job["fold"] is not None:
        trace = FoldedTrace(trace, job["fold"], outcome["uneven"])
        _say_torn(outcome["torn"])
    if "each" in outcome:
        results = [pickling.load(result) for result in outcome["each"]]
    else:
        results = pickling.load(outcome["results"])
    memory = _memory_of(outcome, job)
    return Run(results, outcome["seconds"], outcome["output"], trace, clock="virtual", kept_memory=memory)


def _say_torn(torn: dict[tuple[int, ...], int]) -> None:
    for shape, n in list(torn.items())[:1]:
        warnings.warn(
            f"ranks that do the same have equal shards, got a parameter of shape {shape} over {n} of them"
            + (f", and {len(torn) - 1} more" if len(torn) > 1 else "")
            + ": times and memory are those of the first, which has most. Next step: make the size a multiple of "
            f"{n}, or leave that axis unfolded",
            stacklevel=4,
        )


def _memory_of(outcome: dict, job: dict):
    """The books of the run, if it kept any."""
    if "memory" not in outcome:
        return None
    from hw_utils.core.memory import Memory  # few runs need it

    return Memory.of(outcome["memory"], job["world_size"], job["capacity_bytes"], job["fold"])


def _error_of(outcome: dict, job: dict) -> WorkerFailed:
    failures = []
    for failure, sent in zip(outcome["failures"], outcome["exceptions"]):
        exception = None if sent is None else pickling.load_error(sent)
        failures.append(replace(failure, exception=exception))
    kind = TimedOut if outcome["ended_in"] == "timeout" else WorkerFailed
    error = kind(failures, headline=outcome.get("headline", ""), note=outcome.get("note", ""))
    causes = [f.exception for f in failures if f.exception is not None]
    error.__cause__ = causes[0] if causes else None
    error.memory = _memory_of(outcome, job)
    return error
