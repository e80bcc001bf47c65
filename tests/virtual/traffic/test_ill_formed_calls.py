"""Tensors that do not fit a collective: what real gloo refuses the virtual cluster refuses, and says who gave what."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from hw_utils import WorkerFailed, launch, simulate
from tests.virtual.runs import run

# torch 2.13 has shorter names for the calls that take one tensor.
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated. Please use:FutureWarning")
WORLD_SIZE = 3
VIRTUAL_GPUS = {"cluster": "h100x8", "compute": "device"}


def _several(n: int, *shape: int, of: int = WORLD_SIZE, **options) -> list[torch.Tensor]:
    return [torch.ones(n, *shape, **options) for _ in range(of)]


def scattered(n_in, n_out, **options):
    return lambda rank, on: dist.reduce_scatter_tensor(torch.empty(n_out, **on, **options), torch.ones(n_in, **on))


def scattered_list(n_in, n_out, of=WORLD_SIZE, **options):
    return lambda rank, on: dist.reduce_scatter(torch.empty(n_out, **on, **options), _several(n_in, of=of, **on))


def gathered(n_in, n_out, **options):
    return lambda rank, on: dist.all_gather_into_tensor(torch.empty(n_out, **on, **options), torch.ones(n_in, **on))


def gathered_list(n_in, n_out, of=WORLD_SIZE, **options):
    return lambda rank, on: dist.all_gather(_several(n_out, of=of, **on, **options), torch.ones(n_in, **on))


def exchanged(n_in, n_out, takes=None, gives=None, **options):
    return lambda rank, on: dist.all_to_all_single(
        torch.empty(n_out, **on, **options), torch.ones(n_in, **on), takes, gives(rank) if callable(gives) else gives
    )


def exchanged_lists(n_in, n_out, of=WORLD_SIZE):
    return lambda rank, on: dist.all_to_all(_several(n_out, of=of, **on), _several(n_in, of=of, **on))


def dealt_out(n_in, n_out, of=WORLD_SIZE, **options):
    return lambda rank, on: dist.scatter(
        torch.empty(n_out(rank) if callable(n_out) else n_out, **on, **options),
        None if rank else _several(n_in, of=of, **on),
    )


def collected(n_in, n_out, of=WORLD_SIZE, **options):
    return lambda rank, on: dist.gather(
        torch.ones(n_in(rank) if callable(n_in) else n_in, **on),
        None if rank else _several(n_out, of=of, **on, **options),
    )


def longer_on_the_last(call):
    return lambda rank, on: call(torch.ones(3 if rank == WORLD_SIZE - 1 else 2, **on), 0)


def other_dtype_on_the_last(call):
    return lambda rank, on: call(torch.ones(2, dtype=torch.float64 if rank == WORLD_SIZE - 1 else None, **on), 0)


def _all_reduce(tensor, _):
    dist.all_reduce(tensor)


DOUBLE, LAST = {"dtype": torch.float64}, WORLD_SIZE - 1
# The call, and what the virtual cluster says of it.
ILL_FORMED = {
    "reduce_scatter_tensor, too long": (scattered(7, 2), "3 times the output.* got float32 of shape .7. for .* .2."),
    "reduce_scatter_tensor, too short": (scattered(5, 2), "3 times the output.* got float32 of shape .5. for .* .2."),
    "reduce_scatter_tensor, dtype": (
        scattered(6, 2, **DOUBLE),
        "different dtypes|one dtype, got float32 of shape .6. for float64",
    ),
    "reduce_scatter, one part too few": (scattered_list(2, 2, of=2), "list size 2, must be world size 3"),
    "reduce_scatter, too long": (scattered_list(3, 2), "on rank 0 input 0 and the output must have one"),
    "reduce_scatter, dtype": (scattered_list(2, 2, **DOUBLE), "different dtypes"),
    "all_gather_into_tensor, too short": (gathered(2, 5), "all_?gather"),
    "all_gather_into_tensor, too long": (gathered(2, 8), "all_?gather"),
    "all_gather_into_tensor, dtype": (gathered(2, 6, **DOUBLE), "different dtypes|invalid tensor type"),
    "all_gather, one too few": (gathered_list(2, 2, of=2), "expected length 3, got 2"),
    "all_gather, too long": (gathered_list(2, 3), r"invalid tensor size at index 0 \(expected \(2\), got \(3\)"),
    "all_gather, dtype": (gathered_list(2, 2, **DOUBLE), "different dtypes"),
    "all_to_all_single, no whole rows": (exchanged(7, 7), "does not divide equally"),
    "all_to_all_single, output too long": (exchanged(6, 9), "rank 0 gives 2 float32 .8 bytes. to rank 0.* takes 3"),
    "all_to_all_single, sum of splits": (exchanged(6, 6, [2, 2, 1], [2, 2, 2]), "doesn't match total dim 0 size"),
    "all_to_all_single, number of splits": (exchanged(6, 6, [3, 3], [3, 3]), "splits not equal to group size"),
    "all_to_all_single, two ranks' splits": (
        exchanged(6, 6, [2, 2, 2], lambda rank: [2, 1, 3] if rank == 0 else [2, 2, 2]),
        r"rank 0 gives 1 float32 .4 bytes. to rank 1 in all_to_all_single at .*, but rank 1 takes 2 float32 .8 bytes.",
    ),
    "all_to_all, too long": (exchanged_lists(2, 3), "all_?to_?all"),
    "all_to_all, one too few": (exchanged_lists(2, 2, of=2), "list size 2 does not match world size 3"),
    "scatter, one too few": (dealt_out(2, 2, of=2), "list size 2"),
    "scatter, too long": (dealt_out(3, 2), "invalid tensor size at index 0"),
    "scatter, dtype": (dealt_out(2, 2, **DOUBLE), "invalid tensor type|dtype"),
    "scatter, one member's": (dealt_out(2, lambda rank: 3 if rank == LAST else 2), "rank 2 calls scatter of 3 float32"),
    "gather, one too few": (collected(2, 2, of=2), "list size 2"),
    "gather, too long": (collected(2, 3), "invalid tensor size at index 0"),
    "gather, dtype": (collected(2, 2, **DOUBLE), "invalid tensor type|dtype"),
    "gather, one member's": (collected(lambda rank: 3 if rank == LAST else 2, 2), "rank 2 calls gather of 3 float32"),
    "broadcast, one member's": (longer_on_the_last(dist.broadcast), "rank 2 calls broadcast of 3 float32"),
    "broadcast, dtype": (other_dtype_on_the_last(dist.broadcast), "rank 2 calls broadcast of 2 float64"),
    "reduce, one member's": (longer_on_the_last(dist.reduce), "rank 2 calls reduce of 3 float32"),
    "all_reduce, one member's": (longer_on_the_last(_all_reduce), "rank 2 calls all_reduce of 3 float32"),
    "all_reduce, dtype": (other_dtype_on_the_last(_all_reduce), "rank 2 calls all_reduce of 2 float64"),
}


def calls(rank, _, name, device):
    if device == "cuda":
        dist.destroy_process_group()
        dist.init_process_group("nccl")
    ILL_FORMED[name][0](rank, {"device": device})


@pytest.mark.parametrize("name", ILL_FORMED)
def test_what_gloo_refuses_is_refused_and_says_what_came(name):
    with pytest.raises(WorkerFailed):
        launch(calls, WORLD_SIZE, (name, "cpu"), echo=False)
    with pytest.raises(WorkerFailed, match=ILL_FORMED[name][1]):
        run(calls, WORLD_SIZE, name, "cpu")


@pytest.mark.parametrize("values", ["real", "shapes"])
@pytest.mark.parametrize("name", ILL_FORMED)
def test_virtual_gpus_refuse_it_too_with_and_without_values(name, values):
    with pytest.raises(WorkerFailed, match=ILL_FORMED[name][1]) as caught:
        simulate(calls, WORLD_SIZE, (name, "cuda"), echo=False, isolate=False, values=values, **VIRTUAL_GPUS)
    assert "Gloo" not in str(caught.value)


def flat_input(rank, world_size, device):
    output = torch.empty(2, 2, device=device)
    dist.reduce_scatter_tensor(output, torch.arange(12.0, device=device))
    return output.tolist()


def test_a_flat_input_is_cut_where_elements_are_counted_as_nccl_does():
    with pytest.raises(WorkerFailed, match=r"3 times the output, shape \(6, 2\)"):
        run(flat_input, WORLD_SIZE, "cpu")
    found = simulate(flat_input, WORLD_SIZE, ("cuda",), echo=False, isolate=False, **VIRTUAL_GPUS).results
    assert found == [[[12.0 * r, 12.0 * r + 3], [12.0 * r + 6, 12.0 * r + 9]] for r in range(WORLD_SIZE)]


def uneven(rank, _):
    sizes = [1, 2, 3] if rank else [2, 2, 2]
    dist.reduce_scatter(torch.empty(sizes[rank]), [torch.ones(n) for n in sizes])


def test_lists_with_as_many_elements_that_are_cut_otherwise_are_told_apart():
    with pytest.raises(WorkerFailed, match=r"reduce_scatter of 1 float32 \+ 2 float32 \+ 3 float32 .24 bytes."):
        run(uneven, WORLD_SIZE)
