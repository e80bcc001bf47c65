"""The same function on real processes and on the virtual cluster: same values to the bit, and they hang alike."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hw_utils import Deadlock, WorkerFailed, launch, simulate

N_ELEMENTS = 3
COLLECTIVES = ("all_reduce", "max", "broadcast", "reduce", "all_gather", "gather", "scatter", "barrier", "object")
few = settings(
    max_examples=15, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), print_blob=False
)


def interpret(rank: int, world_size: int, programs: list[list[tuple]]) -> list[list]:
    """Runs this rank's program: a list of (what, ...) steps; returns what it received, step by step."""
    generator = torch.Generator().manual_seed(rank)
    handles, seen = [], []
    for step in programs[rank]:
        mine = torch.randn(N_ELEMENTS, generator=generator)
        if step[0] in ("send", "isend", "recv", "irecv"):
            what, peer, tag = step
            done = getattr(dist, what)(mine, peer, tag=tag)
            if what[0] == "i":
                handles.append(done)
        elif step[0] == "wait":
            while handles:
                handles.pop(0).wait()
        else:
            mine = collective(step[0], step[1], mine, rank, world_size)
        seen.append(mine)
    for handle in handles:
        handle.wait()
    return [x.tolist() if isinstance(x, torch.Tensor) else x for x in seen]


def collective(name: str, root: int, mine: torch.Tensor, rank: int, world_size: int):
    parts = [torch.zeros(N_ELEMENTS) for _ in range(world_size)]
    at_root = parts if rank == root else None
    if name == "all_reduce":
        dist.all_reduce(mine)
    elif name == "max":
        dist.all_reduce(mine, dist.ReduceOp.MAX)
    elif name in ("broadcast", "reduce"):
        getattr(dist, name)(mine, root)
    elif name == "all_gather":
        dist.all_gather(parts, mine)
    elif name == "gather":
        dist.gather(mine, at_root, dst=root)
    elif name == "scatter":
        dist.scatter(mine, [mine + i for i in range(world_size)] if rank == root else None, src=root)
    elif name == "barrier":
        dist.barrier()
    else:
        parts = [None] * world_size
        dist.all_gather_object(parts, {"rank": rank, "first": mine[0].item()})
        return parts
    return [mine.tolist(), [part.tolist() for part in parts]]


@st.composite
def matched(draw) -> tuple[int, list[list[tuple]]]:
    """(world_size, a program a rank) in which every send has its receive and all call the same collectives."""
    world_size = draw(st.integers(2, 4))
    rank = st.integers(0, world_size - 1)
    programs: list[list[tuple]] = [[] for _ in range(world_size)]
    for _ in range(draw(st.integers(1, 7))):
        if draw(st.booleans()):
            src, dst, tag = draw(rank), draw(rank), draw(st.integers(0, 1))
            if src != dst:
                programs[src].append((draw(st.sampled_from(["send", "isend"])), dst, tag))
                programs[dst].append((draw(st.sampled_from(["recv", "irecv"])), src, tag))
        else:
            step = (draw(st.sampled_from(COLLECTIVES)), draw(rank))
            for program in programs:
                program.append(("wait",))
                program.append(step)
    return world_size, programs


@st.composite
def disturbed(draw) -> tuple[int, list[list[tuple]]]:
    """Matched programs, of which one rank has lost a step or does two in the other order."""
    world_size, programs = draw(matched())
    program = programs[draw(st.integers(0, world_size - 1))]
    if program:
        i = draw(st.integers(0, len(program) - 1))
        if draw(st.booleans()):
            program.pop(i)
        else:
            program.insert(draw(st.integers(0, len(program) - 1)), program.pop(i))
    return world_size, programs


def outcome(engine, world_size: int, programs, **options):
    """("values", what each rank saw), or how the run ended."""
    try:
        return "values", engine(interpret, world_size, (programs,), echo=False, **options).results
    except Deadlock as error:
        return "hangs", sorted(row.rank for row in error.rows)
    except WorkerFailed as error:
        return "fails", {f.kind for f in error.failures}


@pytest.mark.slow
@few
@given(matched())
def test_matched_programs_give_the_same_values_to_the_bit(case):
    kind, values = virtual = outcome(simulate, *case, compute="free", isolate=False)
    assert kind == "values", values
    assert virtual == outcome(launch, *case)


@pytest.mark.slow
@few
@given(disturbed())
def test_disturbed_programs_hang_on_both_or_on_neither(case):
    virtual, real = outcome(simulate, *case, compute="free", isolate=False), outcome(launch, *case)
    assert virtual[0] == real[0], (virtual, real)
    if virtual[0] == "values":
        assert virtual == real


GROUP_CALLS = (
    "all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all", "barrier",
    "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list", "send_object_list",
)  # fmt: skip


def in_groups(rank: int, world_size: int, groups: list[list[int]], steps: list[tuple[str, int, int, int]]) -> None:
    """Each step is (what, which group, root's place in it, elements); group 0 is everybody."""
    made = [None] + [dist.new_group(ranks) for ranks in groups]
    members = [list(range(world_size)), *groups]
    for what, number, root, n_elements in steps:
        if rank in members[number]:
            ranks = members[number]
            call_in_group(what, rank, ranks[root % len(ranks)], ranks, n_elements, made[number])


def call_in_group(what: str, rank: int, root: int, ranks: list[int], n_elements: int, group) -> None:
    mine, size, is_root = torch.ones(n_elements), len(ranks), rank == root
    parts, things = list(torch.ones(size, n_elements)), ["x" * n_elements * (1 + rank)] * size
    if what in ("broadcast", "reduce"):
        getattr(dist, what)(mine, root, group=group)
    elif what == "all_gather":
        dist.all_gather(parts, mine, group=group)
    elif what == "gather":
        dist.gather(mine, parts if is_root else None, dst=root, group=group)
    elif what == "scatter":
        dist.scatter(mine, parts if is_root else None, src=root, group=group)
    elif what == "reduce_scatter":
        dist.reduce_scatter(mine, parts, group=group)
    elif what == "all_to_all":
        dist.all_to_all_single(torch.empty(size, n_elements), torch.ones(size, n_elements), group=group)
    elif what == "all_gather_object":
        dist.all_gather_object([None] * size, things[0], group=group)
    elif what == "gather_object":
        dist.gather_object(things[0], [None] * size if is_root else None, dst=root, group=group)
    elif what == "broadcast_object_list":
        dist.broadcast_object_list(things, src=root, group=group)
    elif what == "scatter_object_list":
        dist.scatter_object_list([None], things if is_root else None, src=root, group=group)
    elif what == "send_object_list":
        if size > 1 and rank == ranks[0]:
            dist.send_object_list(things, dst=ranks[1], group=group)
        elif size > 1 and rank == ranks[1]:
            dist.recv_object_list([None] * size, src=ranks[0], group=group)
    else:
        getattr(dist, what)(*([mine] if what == "all_reduce" else []), group=group)


@st.composite
def grouped(draw) -> tuple[int, list[list[int]], list[tuple[str, int, int, int]]]:
    world_size = draw(st.integers(1, 4))
    some_ranks = st.sets(st.integers(0, world_size - 1), min_size=1).map(sorted)
    groups = draw(st.lists(some_ranks, max_size=2))
    step = st.tuples(
        st.sampled_from(GROUP_CALLS), st.integers(0, len(groups)), st.integers(0, world_size - 1), st.integers(1, 9)
    )
    return world_size, groups, draw(st.lists(step, min_size=1, max_size=6))


def counted(trace) -> list[list[tuple]]:
    """What each rank's ledger says, times left out."""
    names = ["order", "waited", "op", "peer", "n_bytes", "sent_bytes", "sent_messages", "rounds", "tag"]
    names += ["group", "line"]
    rows = [[tuple(getattr(e, name) for name in names) for e in trace.of_rank(r)] for r in range(trace.world_size)]
    return [sorted(mine) for mine in rows]


@pytest.mark.slow
@few
@given(grouped())
def test_the_ledgers_count_the_same_in_subgroups_and_for_objects(case):
    world_size, *args = case
    virtual = simulate(in_groups, world_size, args, compute="free", echo=False, isolate=False)
    assert counted(virtual.trace) == counted(launch(in_groups, world_size, tuple(args), echo=False).trace)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("n_elements", [1, 7, 1000])
def test_sums_are_added_in_gloos_order(world_size, n_elements):
    virtual = simulate(sums, world_size, (n_elements,), compute="free", echo=False, isolate=False)
    assert virtual.results == launch(sums, world_size, (n_elements,), echo=False).results


def sums(rank: int, world_size: int, n_elements: int) -> list:
    generator = torch.Generator().manual_seed(rank)
    seen = []
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN):
            x = (torch.randn(n_elements, generator=generator) * 3).to(dtype)
            dist.all_reduce(x, op)
            y = (torch.randn(n_elements, generator=generator) * 3).to(dtype)
            dist.reduce(y, world_size - 1, op)
            seen += [x.tolist(), y.tolist()]
    parts = list(torch.randn(world_size, n_elements, generator=generator))
    out = torch.zeros(n_elements)
    dist.reduce_scatter(out, parts)
    return [*seen, out.tolist()]


REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
DTYPES = (
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.int16, torch.int32,
    torch.int64, torch.bool, torch.complex64,
)  # fmt: skip
COUNT = [0]


def reductions(rank: int, world_size: int, call: str, is_apart: bool) -> dict[tuple, list | str]:
    """What every reduction of every type gives, "refused" if that is an error."""
    if is_apart:
        COUNT[0] += rank  # a module's variable: the ranks are processes from here on
        dist.barrier()
    found = {}
    for op, dtype in itertools.product(REDUCTIONS, DTYPES):
        tensor = torch.tensor([3 * rank + 1, rank + 1, 5, 0]).to(dtype)
        try:
            found[op, dtype] = _reduced(call, getattr(dist.ReduceOp, op), tensor, rank)
        except (RuntimeError, ValueError):
            found[op, dtype] = "refused"
    return found


def _reduced(call: str, op, tensor: torch.Tensor, rank: int) -> list:
    if call == "all_reduce":
        dist.all_reduce(tensor, op)
    elif call == "reduce":
        dist.reduce(tensor, 0, op)
    else:
        part = tensor.new_zeros(2)
        dist.reduce_scatter_tensor(part, tensor, op)
        tensor = part
    return tensor.tolist()


@pytest.mark.parametrize("is_apart", [False, True], ids=["together", "apart"])
@pytest.mark.parametrize("call", ["all_reduce", "reduce", "reduce_scatter"])
def test_every_reduction_of_every_type_gives_the_same_or_is_refused_on_all_ranks(call, is_apart):
    expected = list(launch(reductions, 2, (call, False), echo=False))
    assert list(simulate(reductions, 2, (call, is_apart), echo=False)) == expected
    assert expected[0]["AVG", torch.int64] == expected[1]["AVG", torch.int64] == "refused"
