"""The trace file: slices nest, arrows start and end inside their slices, torch.profiler's file opens beside it."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hw_utils import Event, Trace
from hw_utils.pictures import perfetto

TIMES = st.integers(0, 50)
unhurried = settings(derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def traces(draw) -> Trace:
    events = []
    for message in range(draw(st.integers(0, 12))):
        source, target = draw(st.permutations(range(3)))[:2]
        for rank, op, peer in ((source, "isend", target), (target, "irecv", source)):
            start, length, wait = draw(TIMES), draw(TIMES), draw(TIMES)
            times = {"start_s": start, "end_s": start + length, "wait_start_s": start, "wait_end_s": start + wait}
            events.append(Event(rank, op, peer, 8, message=message, line=3, file="/x/cell.py", **times))
    return Trace.of(events, 3)


def slices_by_thread(records):
    threads = defaultdict(list)
    for record in records:
        if record["ph"] == "X":
            threads[record["pid"], record["tid"]].append((record["ts"], record["ts"] + record["dur"]))
    return threads


@unhurried
@given(traces())
def test_slices_of_one_thread_never_cross(trace):
    for spans in slices_by_thread(perfetto.trace_events(trace)).values():
        spans.sort()
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


@unhurried
@given(traces())
def test_every_arrow_starts_in_its_send_and_ends_in_its_receive(trace):
    records = list(perfetto.trace_events(trace))
    threads = slices_by_thread(records)
    arrows = [r for r in records if r["ph"] in "sf"]
    assert len(arrows) == len(trace)
    for arrow in arrows:
        assert any(a <= arrow["ts"] <= b for a, b in threads[arrow["pid"], arrow["tid"]])


def test_a_rank_is_a_process_with_its_name(tmp_path):
    trace = Trace.of([Event(1, "all_reduce", None, 8, 0.5, 0.75, message=0, sent_bytes=12)])
    written = json.loads(perfetto.write(trace, tmp_path / "run.json").read_text())
    names = {r["pid"]: r["args"]["name"] for r in written["traceEvents"] if r["name"] == "process_name"}
    assert names == {0: "rank 0", 1: "rank 1"}
    (call,) = [r for r in written["traceEvents"] if r["ph"] == "X"]
    assert (call["name"], call["ts"], call["dur"]) == ("all_reduce", 5e5, 2.5e5)
    assert call["args"]["bytes sent"] == 12


def test_torch_profilers_file_stands_beside_the_ranks_in_one_picture(tmp_path):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
        torch.ones(8) + 1
    profile.export_chrome_trace(str(tmp_path / "profile.json"))
    trace = Trace.of([Event(0, "barrier", None, 0, 0.0, 0.1, message=0)])
    path = perfetto.write(trace, tmp_path / "run.json", beside={0: tmp_path / "profile.json"})
    records = json.loads(path.read_text())["traceEvents"]
    ours = {r["pid"] for r in records if r["name"] == "barrier"}
    theirs = {r["pid"] for r in records if r["name"] == "aten::add"}
    assert ours == {0}
    assert theirs
    assert not ours & theirs
    assert min(r["ts"] for r in records if r["name"] == "aten::add") < 10e6  # beside the run, not years after it
