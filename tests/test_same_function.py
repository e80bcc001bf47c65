"""The same function on real processes and on the virtual cluster: same values to the bit, and they hang alike."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hw_utils import Deadlock, WorkerFailed, launch, simulate

N_ELEMENTS = 3
COLLECTIVES = ("all_reduce", "max", "broadcast", "reduce", "all_gather", "gather", "scatter", "barrier", "object")
few = settings(
    max_examples=30, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), print_blob=False
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


@few
@given(matched())
def test_matched_programs_give_the_same_values_to_the_bit(case):
    kind, values = virtual = outcome(simulate, *case, compute="free", isolate=False)
    assert kind == "values", values
    assert virtual == outcome(launch, *case)


@few
@given(disturbed())
def test_disturbed_programs_hang_on_both_or_on_neither(case):
    virtual, real = outcome(simulate, *case, compute="free", isolate=False), outcome(launch, *case)
    assert virtual[0] == real[0], (virtual, real)
    if virtual[0] == "values":
        assert virtual == real


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
