"""Lesson 03: equal starts, and the mean of the models."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from hw_utils.checks import drawn_numbers
from hw_utils.checks.check import check, require_waits
from hw_utils.checks.lesson_03 import model_causes
from hw_utils.checks.lesson_03.small_trainings import on_ranks, ranks_of, require_given, results_of
from hw_utils.core.errors import CheckFailed
from hw_utils.core.trace import Trace

UNSAVED = "2.offset"  # the buffer that is no part of a saved state


def marked_model(rank: int, dtype: str = "float32", tied: bool = False) -> nn.Module:
    """A model whose numbers name their rank: every tensor of rank r holds 10**r * [4/3, 7/3, ...].

    Its last weight is frozen: nobody trains it, and it is a parameter like the others. Its last buffer is one that
    `state_dict()` leaves out, and a buffer like the others. One layer has another inside it, and the model a parameter
    of its own. tied: its first weight is another layer's, too.
    """
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
    if tied:
        model.append(nn.Linear(3, 2))
        model[3].weight = model[0].weight
    model[2].add_module("inner", nn.Linear(2, 1))
    model.register_parameter("bias", nn.Parameter(torch.zeros(2)))
    model[2].register_buffer(UNSAVED.rpartition(".")[2], torch.zeros(3), persistent=False)
    model.to(getattr(torch, dtype))[2].weight.requires_grad_(False)
    with torch.no_grad():
        for tensor in _tensors(model).values():
            drawn = torch.from_numpy(drawn_numbers.digits([tensor.numel()], rank))
            marks = 10**rank * (torch.arange(tensor.numel(), dtype=torch.float64) + 4 / 3 + drawn)
            if not tensor.is_floating_point():
                marks = 10**rank * (2**24 + marks)  # no float32 holds these, and no float16 a third
            tensor.copy_(marks.view_as(tensor))
        if rank == 0:
            model.get_buffer(UNSAVED)[-1] = -0.0  # what is added to zeros loses its sign
    return model


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Name -> the memory of every parameter and every buffer; those come last that no `state_dict()` has."""
    saved = model.state_dict()
    return saved | {name: buffer.detach() for name, buffer in model.named_buffers() if name not in saved}


def _marks(rank: int, *kind: Any) -> dict[str, np.ndarray]:
    return {name: tensor.double().numpy() for name, tensor in _tensors(marked_model(rank, *kind)).items()}


def _kept_by(
    model: nn.Module, parameters: dict[str, nn.Parameter], tensors: dict[str, torch.Tensor]
) -> tuple[bool, bool, list[str]]:
    """Whether a marked model's parameters are the objects they were, and are trained, or frozen, as they were; the
    names of the tensors that lie in other memory than before."""
    pairs = list(zip(model.named_parameters(), marked_model(0, tied=len(model) > 3).parameters()))
    return (
        all(now is parameters.get(name) for (name, now), _ in pairs),
        all(now.requires_grad == before.requires_grad for (_, now), before in pairs),
        [name for name, now in _tensors(model).items() if now.data_ptr() != tensors[name].data_ptr()],
    )


def _state(state: Any, rank: int, what: str, *kind: Any) -> dict[str, np.ndarray]:
    expected = {name: t.numpy() for name, t in _tensors(marked_model(rank, *kind)).items()}
    if not isinstance(state, dict) or state.keys() != expected.keys():
        raise CheckFailed(f"{what}: the model of rank {rank} has lost or gained tensors.")
    got = {name: np.asarray(value) for name, value in state.items()}
    for name, value in got.items():
        if value.shape != expected[name].shape:
            raise CheckFailed(f"{what}: {name} of rank {rank} has changed its shape.")
        if value.dtype != expected[name].dtype:
            raise CheckFailed(
                f"{what}: {name} of rank {rank} is {value.dtype} now, it was {expected[name].dtype}.",
                cause="write into the tensor that is there (p.data.copy_, p.data /=): what is put in its place brings "
                "its own dtype.",
            )
    return {name: value.astype(float) for name, value in got.items()}


def _require_the_same(rank: int, same: Any, what: str) -> None:
    """Raises CheckFailed unless the parameters are the objects they were, trained as they were, in the same memory."""
    if not (isinstance(same, list) and len(same) == 3):
        raise CheckFailed(f"{what}: expected to hear about the parameters of rank {rank}.")
    if same[0] is not True:
        raise CheckFailed(
            f"{what}: rank {rank}'s model has new parameters.",
            cause="the optimizer still steps the old ones: write into parameter.data, or with copy_ under no_grad.",
        )
    if same[1] is not True:
        raise CheckFailed(
            f"{what}: on rank {rank} requires_grad of a parameter is another one now.",
            cause="requires_grad says what is trained, and stays: to write into a parameter, use p.data or no_grad.",
        )
    if not (isinstance(same[2], list) and all(type(name) is str for name in same[2])):
        raise CheckFailed(f"{what}: expected to hear where the tensors of rank {rank} lie.")
    if same[2]:
        raise CheckFailed(
            f"{what}: every value is right, but {same[2][0]} of rank {rank} lies in other memory than before.",
            cause="in place is into the memory that is there (copy_, /=): `p.data = ...` (in "
            "vector_to_parameters, too) and a new buffer bring their own, and who holds a view of the old one, as "
            "DistributedDataParallel does, sees nothing of it.",
        )


def _numbers(array: np.ndarray) -> str:
    shown = ", ".join(f"{v:.0f}" if float(v).is_integer() and abs(v) < 1e9 else f"{v:g}" for v in array.ravel()[:3])
    return f"[{shown}{', ...' if array.size > 3 else ''}]"


def _judge_start(data: dict[str, Any], world_size: int) -> None:
    what = f"start_equal on {ranks_of(world_size)}"
    results = results_of(data, world_size, what, hang="every rank must call the same broadcasts in the same order.")
    if not all(isinstance(result, list) and len(result) == 2 for result in results):
        raise CheckFailed(f"{what}: expected a model from every rank.")
    states = [_state(state, rank, what) for rank, (state, _) in enumerate(results)]
    marks = [_marks(rank) for rank in range(world_size)]
    for rank, state in enumerate(states):
        for name, expected in marks[0].items():
            if np.array_equal(state[name], expected):
                if not np.array_equal(np.signbit(state[name]), np.signbit(expected)):
                    raise CheckFailed(
                        f"{what}: {name} of rank {rank} has a 0.0 where rank 0 has -0.0.",
                        cause="to the last bit is what rank 0 has, as it is: nothing is added to it, not even zero.",
                    )
                continue
            raise CheckFailed(
                f"{what}: {name} of rank {rank} is {_numbers(state[name])}, rank 0 began with {_numbers(expected)}.",
                cause=model_causes.start(states, marks, name, rank, UNSAVED),
            )
    for rank, (_, same) in enumerate(results):
        _require_the_same(rank, same, what)
    require_waits(Trace.from_plain(data["trace"]), what)
    _require_nothing_else(Trace.from_plain(data["trace"]), world_size, len(marks[0]), what)


def _require_no_barrier(trace: Trace, what: str) -> None:
    barriers = sorted(trace.ops & {"barrier", "monitored_barrier"})
    if barriers:
        raise CheckFailed(
            f"{what}: every value is right, but {barriers[0]} is called.",
            cause="a barrier makes all ranks wait for the slowest one: each call waits for what it needs anyway.",
        )


def _require_nothing_else(trace: Trace, world_size: int, n_tensors: int, what: str) -> None:
    _require_no_barrier(trace, what)
    for rank in range(1, world_size):
        n_received = len(trace.of_rank(rank).of_op("broadcast", "recv", "irecv"))
        if n_received > n_tensors:
            raise CheckFailed(
                f"{what}: every value is right, but rank {rank} receives {n_received} tensors; the model has "
                f"{n_tensors} parameters and buffers.",
                cause="something is sent twice, or something else is (gradients?): one broadcast a tensor is enough.",
            )
    n_bytes = sum(tensor.nbytes for tensor in _tensors(marked_model(0)).values())
    sent, due = sum(trace.bytes_sent(rank) for rank in range(world_size)), (world_size - 1) * n_bytes
    if sent > due:
        others = sorted(trace.ops - {"broadcast", "send", "recv", "isend", "irecv"})
        raise CheckFailed(
            f"{what}: every value is right, but the ranks send {sent} bytes; rank 0's model has {n_bytes}, and "
            f"{world_size - 1} others need it: {due} bytes.",
            cause=f"more travels than rank 0's tensors{', by ' * bool(others)}{', '.join(others)}: a broadcast from "
            "rank 0 sends those alone.",
        )


@check(
    "lesson_03.start_equal",
    judge=_judge_start,
    cases=[{"world_size": 1}, {"world_size": 2}, {"world_size": 5}],
    ok="every rank begins with the weights and buffers of rank 0.",
    hint="the hints of exercise 3.1b",
    look="print name and first number of every tensor, before and after, on every rank.",
    hints={
        "hint 2 of exercise 3.1b": "a leaf Variable",
        "hint 1 of exercise 3.1b": "broadcast|state_dict|model.buffers|every parameter|all of them|send what|root",
    },
    errors={
        "can't be cast to the desired output type": "broadcast, do not average: every rank begins with what rank 0 "
        "has. (Here a buffer of whole numbers is divided in place.)",
    },
)
def start_equal(start_equal, /, world_size: int):
    """What each rank's model holds after `start_equal(model)`."""

    def worker(rank, world_size):
        model = marked_model(rank)
        parameters, tensors = dict(model.named_parameters()), _tensors(model)
        for parameter in parameters.values():
            parameter.grad = torch.full_like(parameter, rank + 1.0)  # of something else, which nobody is to send
        start_equal(model)
        return _tensors(model), _kept_by(model, parameters, tensors)

    return on_ranks(world_size, worker)


def _is_buffer(name: str) -> bool:
    return "running" in name or "num" in name or name == UNSAVED


def _judge_average(
    data: dict[str, Any], world_size: int, own: bool, dtype: str = "float32", tied: bool = False
) -> None:
    what = f"average on {ranks_of(world_size)}" + (" with a given all_reduce" if own else "")
    what += ", a weight in two layers" if tied else ""
    results = results_of(data, world_size, what, hang="every rank must call the same all-reduces in the same order.")
    if not all(isinstance(result, list) and len(result) == 4 and type(result[1]) is int for result in results):
        raise CheckFailed(f"{what}: expected a model, its calls and its gradients from every rank.")
    states = [_state(state, rank, what, dtype, tied) for rank, (state, *_) in enumerate(results)]
    marks = [_marks(rank, dtype, tied) for rank in range(world_size)]
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    for rank, state in enumerate(states):
        for name in [n for n in marks[0] if not _is_buffer(n)]:
            expected = sum(m[name] for m in marks) / world_size
            if np.allclose(state[name], expected, rtol=tolerance, atol=0):
                continue
            raise CheckFailed(
                f"{what}: {name} of rank {rank} is {_numbers(state[name])}, the mean is {_numbers(expected)}"
                + (", in float64." if dtype == "float64" else "."),
                cause=model_causes.average(states, marks, name, rank),
            )
    for rank, state in enumerate(states):
        for name in [n for n in marks[0] if _is_buffer(n)]:
            if not np.array_equal(state[name], marks[rank][name]):
                raise CheckFailed(
                    f"{what}: the buffer {name} of rank {rank} has changed.",
                    cause="parameters alone are averaged: model.parameters(), not model.state_dict().",
                )
    _require_kept(results, what)
    trace = Trace.from_plain(data["trace"])
    require_waits(trace, what)
    _require_no_barrier(trace, what)
    all_reduces = [len(trace.of_rank(r).of_op("all_reduce")) for r in range(world_size)]
    others = sorted({event.op for event in trace if event.op != "all_reduce" and event.n_bytes})
    if any(all_reduces) and world_size > 1 and others:
        raise CheckFailed(
            f"{what}: every value is right, but numbers travel by {others[0]}, too.",
            cause="what the all-reduce brings is the sum: nothing else has to be sent.",
        )
    for rank, (_, n_given, *_) in enumerate(results if own else ()):
        cause = "dist.all_reduce stands in the function: call the argument, so that your ring can take its place."
        require_given(n_given, all_reduces[rank], rank, f"{what}: every parameter", cause)
    n_parameters, n_calls = len(results[0][2]), all_reduces[0]
    if world_size > 1 and n_calls > n_parameters:
        raise CheckFailed(
            f"{what}: every value is right after {n_calls} all-reduces a rank; {n_parameters} parameters need one "
            "each.",
            cause="a weight that two layers have is one parameter: model.parameters() gives it once, the layers one "
            "by one give it twice."
            if tied
            else "the mean of means is the same mean: average once, and nothing but the parameters."
            if n_calls % n_parameters == 0
            else "a parameter goes whole: no all-reduce for a part of it, and none for anything else.",
        )


def _require_kept(results: list[Any], what: str) -> None:
    """Raises CheckFailed unless parameters are the objects they were, and gradients as they were."""
    for rank, (_, _, gradients, same) in enumerate(results):
        if not isinstance(gradients, dict) or not gradients:
            raise CheckFailed(f"{what}: expected a gradient of every parameter of rank {rank}.")
        _require_the_same(rank, same, what)
        for name, gradient in gradients.items():
            if not np.all(np.asarray(gradient) == _GRADIENT + 10**rank):
                raise CheckFailed(
                    f"{what}: the gradient of {name} on rank {rank} has changed.",
                    cause="average is about parameters; gradients stay, and optimizer.zero_grad() has its own place.",
                )


_GRADIENT = 0.5  # what every gradient is before, plus 10**rank


@check(
    "lesson_03.average",
    judge=_judge_average,
    cases=[
        *({"world_size": w, "own": own} for w, own in ((1, False), (2, False), (5, False), (3, True))),
        {"world_size": 3, "own": False, "dtype": "float64"},
        {"world_size": 3, "own": False, "tied": True},
    ],
    ok="every parameter is the mean over the ranks, whichever all-reduce is given.",
    hint="the hints of exercise 3.1c",
    look="print the first number of a parameter before the all-reduce, after it and after the division, on every rank.",
    hints={
        "hint 2 of exercise 3.1c": "divides|not divided|divided twice|never summed|rounded down",
        "hint 1 of exercise 3.1c": "in place|parameter.data|go through all",
    },
)
def average(average, /, world_size: int, own: bool, dtype: str = "float32", tied: bool = False):
    """What each rank's model holds after `average(model)`, or with an all-reduce that counts its calls."""

    def worker(rank, world_size):
        model, calls = marked_model(rank, dtype, tied), []
        parameters, tensors = dict(model.named_parameters()), _tensors(model)
        for parameter in parameters.values():
            parameter.grad = torch.full_like(parameter, _GRADIENT + 10**rank)

        def counted(tensor):
            calls.append(tensor.numel())
            dist.all_reduce(tensor)

        average(model, counted) if own else average(model)
        same = _kept_by(model, parameters, tensors)
        gradients = {name: parameter.grad for name, parameter in parameters.items()}
        return _tensors(model), len(calls), gradients, same

    return on_ranks(world_size, worker)
