"""What a run comes to, as lines of text: communication that was waited for, bytes a level of links, peak memory."""

from __future__ import annotations

import numpy as np

from hw_utils.core.calls.folded_trace import FoldedTrace
from hw_utils.core.errors import ranks_text
from hw_utils.core.hardware import Cluster
from hw_utils.core.hardware.nccl_costs import Layout, share_between_hosts
from hw_utils.core.run_result import Run
from hw_utils.core.trace import SENDS, Trace

_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def statistics(run: Run, cluster: Cluster | None = None) -> list[str]:
    """The lines; those of memory if the run kept it, those of links if there is a cluster."""
    lines = [_communication(run)]
    if cluster is not None:
        lines.append(_levels(run.trace, cluster))
    if run.kept_memory is not None:
        lines.append(_memory(run.kept_memory))
    return lines


def who_ran(trace: Trace) -> list[str]:
    """Of a folded run a line that says it: a program that prints on its last rank prints nothing."""
    if not isinstance(trace, FoldedTrace):
        return []
    fold = trace.fold
    return [
        f"folded: {ranks_text(fold.representatives)} ran, for {fold.size} that do the same each; what the script does "
        "or prints on another rank alone is missing"
    ]


def communication_s(trace: Trace, rank: int) -> tuple[float, float]:
    """(exposed, hidden) seconds of a rank: it stood still for communication; some went on while it did not.

    A rank with a device stands still while none of its device's streams computes.

    >>> communication_s(Trace.of([], 1), 0)
    (0.0, 0.0)
    """
    records = trace.records[trace.records["rank"] == rank]
    under_way = np.stack([records["start_s"], records["end_s"]], 1)
    if len(trace.streams):
        busy = trace.streams[trace.streams["rank"] == rank]
        computing = np.stack([busy["start_s"], busy["end_s"]], 1)
        exposed_s = _covered_s(np.concatenate([computing, under_way])) - _covered_s(computing)
        return exposed_s, max(0.0, _covered_s(under_way) - exposed_s)
    waits = np.stack([records["wait_start_s"], records["wait_end_s"]], 1)
    exposed_s = _covered_s(waits)
    return exposed_s, max(0.0, _covered_s(np.concatenate([waits, under_way])) - exposed_s)


def _covered_s(spans: np.ndarray) -> float:
    """Seconds in at least one of the spans; shape (k, 2), from and to."""
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    reached = np.maximum.accumulate(spans[:, 1]) if len(spans) else spans[:, 1]
    starts = np.maximum(spans[:, 0], np.concatenate([spans[:1, 0], reached[:-1]]))
    return float(np.maximum(spans[:, 1] - starts, 0.0).sum())


def level_bytes(trace: Trace, cluster: Cluster) -> tuple[int, int]:
    """Bytes that ranks sent (inside their hosts, between hosts); of a collective by the algorithm that it takes."""
    records, sent = trace.summed()
    host_of = np.array([cluster.host_of(rank) for rank in range(trace.world_size)])
    is_message = np.isin(records["op"], [i for i, name in enumerate(trace.names) if name in SENDS])
    leaves = is_message & (host_of[records["rank"]] != host_of[records["peer"]])
    between = float(sent[leaves].sum())
    calls, which = np.unique(records[~is_message][["op", "group", "sent_bytes"]], return_inverse=True)
    for call, n_bytes in zip(calls, np.bincount(which, sent[~is_message], len(calls)).tolist()):
        members = trace.groups[call["group"]] or tuple(range(trace.world_size))
        between += n_bytes * _share_between(trace.names[call["op"]], members, int(call["sent_bytes"]), cluster)
    return int(sent.sum()) - round(between), round(between)


def _share_between(op: str, members: tuple[int, ...], sent_bytes: int, cluster: Cluster) -> float:
    """Of what a member of a collective sends, how much leaves its host."""
    of_name = {"allreduce": "all_reduce", "alltoall": "all_to_all"}  # all others go around a ring
    kind = next((kind for name, kind in of_name.items() if op.replace("_", "").startswith(name)), "all_gather")
    n = len(members)
    n_bytes = sent_bytes * n / (2 * (n - 1)) if kind == "all_reduce" and n > 1 else sent_bytes
    return share_between_hosts(Layout.of(cluster, members), kind, n_bytes)


def _communication(run: Run) -> str:
    of_ranks = _communication_of_all(run.trace)
    exposed_s, hidden_s = np.mean(of_ranks, axis=0)
    most = max(range(len(run)), key=lambda rank: of_ranks[rank][0])
    return (
        f"communication, mean of the ranks: {exposed_s:.4g} s exposed, {hidden_s:.4g} s hidden; "
        f"most exposed is rank {most} with {of_ranks[most][0]:.4g} s"
    )


def _communication_of_all(trace: Trace) -> list[tuple[float, float]]:
    """(exposed, hidden) seconds of each rank; those that one rank of a folded run stands for have its."""
    fold = getattr(trace, "fold", None)
    if fold is None:
        return [communication_s(trace, rank) for rank in range(trace.world_size)]
    found = {rank: communication_s(trace.own, rank) for rank in fold.representatives}
    return [found[fold.representative(rank)] for rank in range(trace.world_size)]


def _levels(trace: Trace, cluster: Cluster) -> str:
    inside, between = level_bytes(trace, cluster)
    return f"sent inside hosts {text_of(inside)}, between hosts {text_of(between)}"


def _memory(memory) -> str:
    peak = max((memory.peak(rank) for rank in memory.ranks), key=lambda peak: (peak.n_bytes, -peak.rank))
    owners = sorted(peak.by_owner.items(), key=lambda item: -item[1])
    where = f" at {peak.where}" if peak.where else ""
    return f"peak memory {text_of(peak.n_bytes)}, rank {peak.rank}{where}: " + ", ".join(
        f"{owner} {text_of(n)}" for owner, n in owners
    )


def text_of(n_bytes: int) -> str:
    """`1.234 GB`.

    >>> text_of(999), text_of(1_234_000_000)
    ('999 bytes', '1.234 GB')
    """
    if n_bytes < 1000:
        return f"{n_bytes} bytes"
    k = min((len(str(n_bytes)) - 1) // 3, len(_UNITS) - 1)
    return f"{n_bytes / 1000**k:.4g} {_UNITS[k]}"
