"""A rank that asks for more than it may hold: the error, its words, and what a program can do about it."""

from __future__ import annotations

import os
import pickle
import re

import pytest
import torch
from torch import nn

from hw_utils import WorkerFailed, launch, simulate
from hw_utils.core.memory import OutOfMemory
from tests.virtual.runs import run

LAYER = (32 * 32 + 32) * 4


def train(rank: int, world_size: int) -> None:
    model = nn.Linear(32, 32)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.ones(2, 32)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("engine", [launch, simulate])
def test_the_error_names_who_holds_what_and_the_next_step(engine):
    capacity_bytes = 3 * LAYER + 600  # parameters, gradients and one of Adam's moments
    with pytest.raises(WorkerFailed) as caught:
        engine(train, 2, echo=False, capacity_bytes=capacity_bytes)
    failure, error = caught.value.failures[0], caught.value.failures[0].exception
    assert failure.kind == "out_of_memory"
    assert type(error) is OutOfMemory
    assert failure.where.source == "optimizer.step()"
    assert (error.rank, error.capacity_bytes) == (failure.rank, capacity_bytes)
    assert error.by_owner["parameters"] == error.by_owner["gradients"] == LAYER
    assert sum(error.by_owner.values()) > capacity_bytes >= sum(error.by_owner.values()) - error.asked_bytes
    assert error.by_owner["optimizer"] == 32 * 32 * 4 + 4  # the weight's first moment, and its step count
    assert f"of {capacity_bytes:,} bytes and asks for" in str(caught.value)
    # A real rank that fails is not waited for by the other's failure: one or both are named.
    assert re.match(r"(ranks 0, 1|rank [01]): hw_utils\.core\.memory\.OutOfMemory: it holds", str(caught.value))
    assert "next step:" in str(caught.value)


def test_a_run_that_fits_to_the_byte_ends_and_one_byte_less_does_not():
    most = run(train, 1, memory=True).memory.peak(0).n_bytes
    found = run(train, 1, capacity_bytes=most)
    assert found.memory.capacity_bytes == most == found.memory.peak_bytes(0)
    with pytest.raises(WorkerFailed, match="OutOfMemory"):
        run(train, 1, capacity_bytes=most - 1)


def catches(rank: int, world_size: int) -> int:
    kept = []
    try:
        while True:
            kept.append(torch.zeros(100))
    except torch.OutOfMemoryError:
        fitted = len(kept)
    kept.clear()
    return fitted if torch.zeros(900).numel() else 0


def test_a_program_that_catches_torchs_own_error_goes_on():
    assert run(catches, 2, capacity_bytes=4000).results == [10, 10]


def grows_in_backward(rank: int, world_size: int) -> None:
    x = nn.Parameter(torch.ones(100))
    (x.exp() * 2).sum().backward()


def test_activations_are_named_while_a_backward_pass_goes_on():
    with pytest.raises(WorkerFailed) as caught:
        run(grows_in_backward, 1, capacity_bytes=1300)
    error = caught.value.__cause__
    assert error.by_owner["activations"] == 400 + 4  # what exp gave, and the loss
    assert error.by_owner["parameters"] == 400


def too_many_layers(rank: int, world_size: int, carrier: str) -> None:
    if carrier == "processes":
        os.chdir(os.getcwd())
    x = torch.randn(8, 32)
    for layer in nn.ModuleList(nn.Linear(32, 32) for _ in range(4)):
        x = layer(x).tanh()


@pytest.mark.parametrize(("values", "carrier"), [("real", ""), ("shapes", ""), ("real", "processes")])
def test_the_books_of_a_run_that_ran_out_are_in_its_error(values: str, carrier: str):
    batch_bytes = 8 * 32 * 4
    capacity_bytes = 4 * LAYER + 3 * batch_bytes
    with pytest.raises(WorkerFailed) as caught:
        simulate(
            too_many_layers, 2, (carrier,), capacity_bytes=capacity_bytes, values=values, compute="free", echo=False
        )
    error, failure = caught.value.__cause__, caught.value.failures[0]
    peak = caught.value.memory.peak(failure.rank)
    assert peak.by_owner == error.by_owner
    assert peak.by_owner["activations"] == 2 * batch_bytes
    assert peak.where == failure.where
    assert caught.value.memory.capacity_bytes == capacity_bytes


def test_an_error_of_a_run_that_kept_no_memory_has_no_books():
    with pytest.raises(WorkerFailed) as caught:
        run(lambda rank, world_size: 1 / 0, 1)
    assert caught.value.memory is None


def test_the_error_can_be_sent_and_reads_as_a_table():
    error = OutOfMemory(1, 400, 1000, {"parameters": 600, "activations": 500, "other": 8})
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert again.by_owner == error.by_owner
    assert str(error).splitlines() == [
        "it holds 708 of 1,000 bytes and asks for 400 more; then",
        "    600 bytes  parameters",
        "    500 bytes  activations",
        "      8 bytes  other",
        "next step: shard the parameters over more ranks (ZeRO-3, tensor or pipeline parallelism)",
    ]


@pytest.mark.parametrize("capacity_bytes", [0, -1, 1e9, True, "80 GB"])
def test_a_capacity_is_a_whole_number_of_bytes(capacity_bytes):
    with pytest.raises(ValueError, match="capacity_bytes must be a positive whole number"):
        run(train, 1, capacity_bytes=capacity_bytes)
