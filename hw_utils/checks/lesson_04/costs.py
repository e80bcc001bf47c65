"""Checks of lesson 04: what an iteration sends, and how long it takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from hw_utils.checks.check import check
from hw_utils.checks.lesson_04 import costs_judge
from hw_utils.checks.lesson_04.costs_judge import TENSOR_BYTES
from hw_utils.checks.lesson_04.loop import observed
from hw_utils.core.hardware import Network


class _Equal(nn.Module):
    """`n_tensors` parameters of 240 elements, which 2, 3, 4, 5, 6 and 8 ranks divide evenly."""

    def __init__(self, n_tensors: int) -> None:
        super().__init__()
        self.tensors = nn.ParameterList(nn.Parameter(torch.ones(240)) for _ in range(n_tensors))
        for p in self.tensors:
            p.grad = torch.ones(240)


def _drive_step(rank, world_size, sync, n_tensors, compute_s):
    model = _Equal(n_tensors)
    time.sleep(compute_s)
    if sync is not None:
        sync(model)


def _sync_of(method: str, gather_scatter, all_reduce_mean):
    return {"one": None, "gather_scatter": gather_scatter, "all_reduce": all_reduce_mean}[method]


def _bytes_cases() -> Iterator[dict[str, Any]]:
    for method in ("one", "gather_scatter", "all_reduce"):
        for world_size in (1,) if method == "one" else (6, 4, 1):
            yield {"method": method, "world_size": world_size}


@check(
    "lesson_04.bytes_sent",
    judge=costs_judge.judge_bytes,
    cases=list(_bytes_cases()),
    ok="your formula and the ledger of your own functions agree, for every rank.",
    hint="hint 1 of exercise 4.5a",
)
def bytes_sent(bytes_sent, gather_scatter, all_reduce_mean, /, method: str, world_size: int):
    """The student's formula beside the ledger of the student's own functions."""
    data = observed(_drive_step, world_size, _sync_of(method, gather_scatter, all_reduce_mean), 3, 0.0)
    said = [bytes_sent(method, rank, world_size, 3 * TENSOR_BYTES) for rank in range(world_size)]
    odd = [bytes_sent(method, rank, world_size, 1001) for rank in range(world_size)]
    return {**data, "said": said, "odd": odd, "n_bytes": 3 * TENSOR_BYTES}


@check(
    "lesson_04.predicted_s",
    judge=costs_judge.judge_predicted_s,
    cases=[
        {"method": "one", "world_size": 1, "n_tensors": 2},
        {"method": "all_reduce", "world_size": 5, "n_tensors": 3},
        {"method": "gather_scatter", "world_size": 5, "n_tensors": 3},
        {"method": "all_reduce", "world_size": 2, "n_tensors": 1},
    ],
    ok="your formula predicts what your own functions take on the virtual cluster.",
    hint="hint 2 of exercise 4.5b",
)
def predicted_s(predicted_s, gather_scatter, all_reduce_mean, /, method: str, world_size: int, n_tensors: int):
    """The student's formula beside the virtual time of the student's own functions."""
    network, one_node_s = Network(latency_s=1e-3, bandwidth_Bps=1e6), 0.11
    sync = _sync_of(method, gather_scatter, all_reduce_mean)
    step = (_drive_step, world_size, sync, n_tensors, one_node_s / world_size)
    run = observed(*step, network=network)
    run.pop("results", None)
    no_latency_s = observed(*step, network=replace(network, latency_s=0.0)).get("seconds")
    said = predicted_s(method, world_size, one_node_s, n_tensors * TENSOR_BYTES, n_tensors, network)
    return {"run": run, "said": said, "one_node_s": one_node_s, "no_latency_s": no_latency_s,
            "network": [network.latency_s, network.bandwidth_Bps]}  # fmt: skip
