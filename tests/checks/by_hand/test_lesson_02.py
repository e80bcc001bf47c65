"""Lesson 02: judges that never call a student's function, on ledgers made by hand and on real ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hw_utils import CheckFailed, Event, Network, Trace, checks, launch, simulate
from hw_utils.checks.lesson_02 import costs_judge
from hw_utils.checks.lesson_02.observed_all_reduce import share
from hw_utils.pictures.partial_sums import watch
from tests.checks.references import lessons, namespace
from tests.virtual import closed_forms

CHECKS = checks.lesson_02


@pytest.fixture(scope="module")
def names() -> dict:
    return namespace(next(lesson for lesson in lessons() if lesson.name == "02_all_reduce"))


def _observed(values: list, events: list[Event], world_size: int) -> dict:
    results = [{"values": [np.asarray(v, "f8")], "around": True, "returned": None} for v in values]
    trace = Trace.of(events, world_size).as_plain()
    return {"deadlock": None, "results": results, "output": [""] * world_size, "seconds": 1.0, "trace": trace}


def _swap(n_bytes: int) -> list[Event]:
    """Two ranks that exchange one message of `n_bytes` each, twice."""
    events = []
    for step in range(2):
        for src, dst in ((0, 1), (1, 0)):
            message, order = 2 * step + src, 3 * step
            span = (float(step), float(step + 1))
            events += [
                Event(src, "isend", dst, n_bytes, *span, message=message, order=order, waited=order + 2,
                      sent_bytes=n_bytes, sent_messages=1),
                Event(dst, "recv", src, n_bytes, *span, message=message, order=order + 1, waited=order + 1),
            ]  # fmt: skip
    return events


TWO = {"world_size": 2, "n_elements": 4}
SUM = [11, 22, 33, 44]


def test_a_ledger_of_halves_is_a_ring_of_two():
    CHECKS.ring_all_reduce.judge(_observed([SUM, SUM], _swap(16), 2), **TWO)


def test_a_ledger_of_whole_tensors_is_no_ring():
    with pytest.raises(CheckFailed, match=r"every value is right, but rank 0 sent 2\.0 times") as failed:
        CHECKS.ring_all_reduce.judge(_observed([SUM, SUM], _swap(32), 2), **TWO)
    assert "whole tensors travel" in failed.value.cause


def test_right_sums_without_a_message_are_no_all_reduce():
    for check in (CHECKS.ring_all_reduce, CHECKS.tree_all_reduce, CHECKS.halving_doubling_all_reduce):
        with pytest.raises(CheckFailed):
            check.judge(_observed([SUM, SUM], [], 2), **TWO)


@pytest.mark.parametrize(
    "values",
    [
        [SUM, [np.nan] * 4],
        [SUM, [11, 22, 33]],
        [SUM, []],
        [SUM, [SUM]],
        [SUM, [11, 22, 33, 44.0001]],
        [SUM, [np.inf] * 4],
    ],
    ids=["nan", "short", "empty", "another shape", "nearly", "infinite"],
)
def test_only_the_sum_on_every_rank_passes(values):
    with pytest.raises(CheckFailed, match="on rank 1"):
        CHECKS.ring_all_reduce.judge(_observed(values, _swap(16), 2), **TWO)


def test_float32_where_float64_went_in_does_not_pass():
    data = _observed([SUM, SUM], _swap(16), 2)
    data["results"][1]["values"] = [np.asarray(SUM, "f4")]
    with pytest.raises(CheckFailed, match="on rank 1 the tensor became float32"):
        CHECKS.ring_all_reduce.judge(data, **TWO)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data.update(results=None),
        lambda data: data.update(results=[]),
        lambda data: data.update(results=data["results"][:1]),
        lambda data: data.update(trace={}),
        lambda data: data.update(trace=None),
        lambda data: data["results"][0].update(values=[]),
        lambda data: data["results"][0].update(values="11"),
        lambda data: data["results"][0].pop("values"),
        lambda data: data["results"][0].update(around={"unknown": "Yes"}),
        lambda data: data.pop("deadlock"),
        lambda data: data["trace"].update(world_size=99),
    ],
)
def test_data_that_is_no_observation_never_passes(spoil):
    for check in (CHECKS.ring_all_reduce, CHECKS.tree_all_reduce, CHECKS.ring_sum):
        data = _observed([SUM, SUM], _swap(16), 2)
        spoil(data)
        with pytest.raises((CheckFailed, ValueError)):
            check.judge(data, **TWO)


@pytest.mark.parametrize("data", [None, [], {}, "4", 4, [[]], [None] * 5, {"unknown": "int"}])
@pytest.mark.parametrize(
    "name",
    ["tree_steps", "tree_partner", "chunk_to_send", "chunk_owned", "point_to_point_s", "tree_all_reduce_s",
     "ring_all_reduce_s", "crossover_bytes"],
)  # fmt: skip
def test_small_judges_pass_nothing_that_is_no_answer(name, data):
    check = getattr(CHECKS, name)
    if name == "point_to_point_s" and data == 4:
        data = "4"
    for case in check.cases:
        with pytest.raises((CheckFailed, ValueError)):
            check.judge(data, **case)


@pytest.mark.parametrize("world_size", range(1, 9))
@pytest.mark.parametrize("name", ["tree_all_reduce", "ring_all_reduce"])
def test_the_reference_passes_for_every_world_size_length_and_dtype(names, name, world_size):
    cases = [
        {"world_size": world_size, "n_elements": n, "dtype": dtype, "layout": layout, "seed": n}
        for n in sorted({0, 1, world_size - 1, world_size, 3 * world_size + 2})
        for dtype, layout in (("float64", "contiguous"), ("int64", "strided"))
    ]
    getattr(CHECKS, name)(names[name], cases=cases)


@pytest.mark.parametrize("name", ["tree_all_reduce", "ring_all_reduce", "halving_doubling_all_reduce"])
def test_the_same_function_works_on_real_processes(names, name):
    def worker(rank, world_size, all_reduce):
        whole, odd = torch.from_numpy(share(rank, [8])).double(), torch.full((3, 2), 10.0**rank).t()
        all_reduce(whole)
        all_reduce(odd)
        return whole.tolist(), odd.flatten().tolist()

    run = launch(worker, 4, (names[name],), echo=False)
    assert run.results == [([1111.0 * k for k in range(1, 9)], [1111.0] * 6)] * 4
    assert run.trace.ops <= {"send", "recv", "isend", "irecv"}


@pytest.mark.parametrize("world_size", [2, 4, 8, 16])
def test_measured_equals_predicted_on_the_virtual_cluster(names, world_size):
    network = Network(latency_s=3e-4, bandwidth_Bps=7e6)
    n_bytes = 4 * 64 * 9

    def worker(rank, world_size, all_reduce):
        all_reduce(torch.ones(n_bytes // 4))

    for name in ("tree_all_reduce", "ring_all_reduce"):
        run = simulate(worker, world_size, (names[name],), network=network, compute="free", echo=False)
        assert run.seconds == pytest.approx(names[f"{name}_s"](world_size, n_bytes, network), rel=1e-12)


def test_the_reference_formulas_are_the_closed_forms(names):
    network = Network(latency_s=3e-4, bandwidth_Bps=7e6)
    for n in (2, 3, 4, 7, 64):
        for name, ops in (("tree_all_reduce_s", costs_judge.TREE), ("ring_all_reduce_s", costs_judge.RING)):
            expected_s = getattr(closed_forms, name)(n, 840 * n, network)
            assert names[name](n, 840 * n, network) == pytest.approx(expected_s)
            assert costs_judge.played_s(ops, n, 840 * n, network) == pytest.approx(expected_s)


def test_below_the_crossover_the_tree_is_faster_and_above_it_the_ring(names):
    network = Network()
    for n in (4, 5, 8, 100):
        at = names["crossover_bytes"](n, network)
        for size, faster, slower in ((at / 2, "tree", "ring"), (at * 2, "ring", "tree")):
            seconds = {kind: names[f"{kind}_all_reduce_s"](n, size, network) for kind in ("tree", "ring")}
            assert seconds[faster] < seconds[slower]


def test_the_step_through_of_a_ring_shows_one_more_share_a_round(names):
    frames = watch(names["ring_all_reduce"], 4)
    assert len(frames) == 7
    assert frames[0] == [[10**r] * 4 for r in range(4)]
    assert frames[1] == [[11, 1, 1, 1], [10, 110, 10, 10], [100, 100, 1100, 100], [1000, 1000, 1000, 1001]]
    assert [sum(row.count(1111) for row in frame) for frame in frames] == [0, 0, 0, 4, 8, 12, 16]


def test_the_step_through_of_a_tree_fills_the_root_first(names):
    frames = watch(names["tree_all_reduce"], 8, n_chunks=1)
    assert [frame[0][0] for frame in frames[:4]] == [1, 11, 1111, 11111111]
    assert [sum(row[0] == 11111111 for row in frame) for frame in frames] == [0, 0, 0, 1, 2, 4, 8]


def test_the_step_through_shows_a_wrong_answer_as_it_is():
    def doubles(tensor):
        tensor *= 2

    assert watch(doubles, 2) == [[[2, 2], [20, 20]]]


def test_a_step_through_has_at_most_eight_ranks():
    with pytest.raises(ValueError, match="world_size must be 1 to 8, got 9"):
        watch(lambda tensor: None, 9)
