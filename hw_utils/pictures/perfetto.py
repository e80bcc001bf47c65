"""The ledger as a file that ui.perfetto.dev and chrome://tracing open: a process a rank, an arrow a message.

The format is Chrome's Trace Event JSON, which torch.profiler writes too, so both fit into one picture:

    perfetto.write(run.trace, "run.json", beside={0: "profile_of_rank_0.json"})
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hw_utils.core.trace import Event, Trace
from hw_utils.pictures.figure.busy_spans import rows_of

Record = dict[str, Any]
_WAITS = 0  # the thread of a rank that shows when it stands still; its communication is on threads 1, 2, ...
_PROFILE_PIDS = 1_000_000  # a profile's own process numbers must not meet the ranks'


def write(trace: Trace, path: str | os.PathLike, *, beside: Mapping[int, str | os.PathLike] | None = None) -> Path:
    """Writes the trace to `path` and returns it. beside: rank -> a file of torch.profiler, put into the same picture.

    A profile has a clock of its own: its first event is placed at the run's start.
    """
    path = Path(path)
    records = [*trace_events(trace)]
    for rank, profile in (beside or {}).items():
        records += _profile_events(rank, json.loads(Path(profile).read_text(encoding="utf-8")))
    path.write_text(json.dumps({"traceEvents": records, "displayTimeUnit": "ms"}), encoding="utf-8")
    return path


def trace_events(trace: Trace) -> Iterator[Record]:
    """The trace in Chrome's form: times in µs, pid = rank, tid 0 = standing still, tid 1.. = communication, streams."""
    sides: dict[int, list[tuple[Event, int]]] = {}
    for rank in range(trace.world_size):
        yield _name("process_name", rank, 0, f"rank {rank}")
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}}
        yield _name("thread_name", rank, _WAITS, "stands still")
        lanes: list[float] = []
        mine = list(trace.of_rank(rank))
        yield from _waits(mine)
        for event in mine:
            lane = _free_lane(lanes, event)
            yield _slice(event, lane)
            if event.message >= 0 and not event.is_collective:
                sides.setdefault(event.message, []).append((event, lane))
        for lane in range(1, len(lanes) + 1):
            yield _name("thread_name", rank, lane, "communication" + (f" {lane}" if lane > 1 else ""))
        yield from _streams(trace, rank, len(lanes) + 1)
    yield from _arrows(sides)


def _streams(trace: Trace, rank: int, first: int) -> Iterator[Record]:
    """A thread a stream of the rank's device, from `first` on: when it was busy."""
    of_device = [(name, spans) for kind, name, spans in rows_of(trace, rank) if kind == "compute"]
    for tid, (name, spans) in enumerate(of_device, first):
        yield _name("thread_name", rank, tid, name)
        for start_s, end_s in spans.tolist():
            yield {
                "ph": "X", "cat": "stream", "name": "computes", "pid": rank, "tid": tid,
                "ts": start_s * 1e6, "dur": (end_s - start_s) * 1e6,
            }  # fmt: skip


def _name(kind: str, pid: int, tid: int, name: str) -> Record:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _free_lane(lanes: list[float], event: Event) -> int:
    """The first thread (from 1) on which nothing is under way: slices of one thread must not cross."""
    for i, busy_until in enumerate(lanes):
        if busy_until <= event.start_s:
            lanes[i] = max(event.end_s, event.start_s)
            return i + 1
    lanes.append(max(event.end_s, event.start_s))
    return len(lanes)


def _slice(event: Event, tid: int) -> Record:
    where = {"file": os.path.basename(event.file), "line": event.line} if event.line else {}
    facts = {"bytes": event.n_bytes, "bytes sent": event.sent_bytes, "tag": event.tag, "message": event.message}
    peer = {} if event.peer is None else {"peer": event.peer}
    to = "" if event.peer is None else f" {'to' if event.is_send else 'from'} {event.peer}"
    return {
        "ph": "X", "cat": "collective" if event.is_collective else "message", "name": event.op + to,
        "pid": event.rank, "tid": tid, "ts": event.start_s * 1e6, "dur": max(event.seconds, 0.0) * 1e6,
        "args": {**facts, **peer, **where},
    }  # fmt: skip


def _waits(mine: list[Event]) -> Iterator[Record]:
    end_s = 0.0
    for event in sorted(mine, key=lambda e: e.wait_start_s):
        start_s = max(event.wait_start_s, end_s)  # two waits for one work object: shown once
        if event.wait_end_s > start_s:
            end_s = event.wait_end_s
            yield {
                "ph": "X", "cat": "waiting", "name": f"waits in {event.op}", "pid": event.rank, "tid": _WAITS,
                "ts": start_s * 1e6, "dur": (end_s - start_s) * 1e6, "args": {"message": event.message},
            }  # fmt: skip


def _arrows(sides: dict[int, list[tuple[Event, int]]]) -> Iterator[Record]:
    for message, both in sides.items():
        if len(both) != 2 or both[0][0].is_send == both[1][0].is_send:
            continue
        (sent, sent_lane), (got, got_lane) = sorted(both, key=lambda side: not side[0].is_send)
        flow = {"cat": "message", "name": "message", "id": message}
        yield {"ph": "s", "pid": sent.rank, "tid": sent_lane, "ts": sent.start_s * 1e6, **flow}
        yield {"ph": "f", "bp": "e", "pid": got.rank, "tid": got_lane, "ts": got.end_s * 1e6, **flow}


def _profile_events(rank: int, profile: Any) -> Iterator[Record]:
    records = profile["traceEvents"] if isinstance(profile, dict) else profile
    begin = min((r["ts"] for r in records if r.get("ph") == "X"), default=0.0)
    pids: dict[Any, int] = {}
    for record in records:
        pid = pids.setdefault(record.get("pid"), _PROFILE_PIDS * (rank + 1) + len(pids))
        moved = {"ts": max(record["ts"] - begin, 0.0)} if "ts" in record and record.get("ph") != "M" else {}
        link = {"id": f"{rank}:{record['id']}"} if "id" in record else {}
        yield {**record, "pid": pid, **moved, **link}
    for number in pids.values():
        yield _name("process_name", number, 0, f"rank {rank}, torch.profiler")
        yield {"ph": "M", "name": "process_sort_index", "pid": number, "tid": 0, "args": {"sort_index": rank}}
