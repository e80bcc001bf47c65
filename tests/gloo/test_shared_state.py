"""The board: what one rank publishes of its calls is what another reads, however many there have been."""

from __future__ import annotations

import itertools
import random

import pytest

from hw_utils.gloo.shared_state import RECEIVE, RING, SEND, Board, Publisher
from tests.processes.launching import failing_launch


@pytest.fixture
def board(tmp_path):
    board = Board(str(tmp_path / "board"), 2, create=True)
    yield board
    board.close()


def runs_of(calls):
    """How many times in a row something changes."""
    return 1 + sum(a != b for a, b in itertools.pairwise(calls))


@pytest.mark.parametrize("seed", range(10))
def test_every_call_is_read_back_until_as_many_runs_as_there_is_room_for_have_followed(board, seed):
    choose = random.Random(seed)
    publisher = Publisher(board, 0)
    channel, written = publisher.channel(1, 0, 0, SEND), []
    call = (4, 1, 0)
    for k in range(300):
        if choose.random() < 0.3:
            call = choose.choice([4, 8]), choose.choice([1, 2]), choose.choice([0, 1])
        written.append(call)
        assert publisher.post(channel, *call) == k
        at = Publisher(board, 1).counterpart(0, 0, 0, RECEIVE)
        for earlier in range(k + 1):
            kept = runs_of(written[earlier:]) < RING
            assert board.call(at, earlier) == (written[earlier] if kept else None)
        assert board.call(at, k + 1) is None


def test_calls_that_are_alike_are_published_by_one_number(board):
    publisher = Publisher(board, 0)
    channel = publisher.channel(1, 0, 0, SEND)
    publisher.post(channel, 4, 1, 0)
    before = list(board.q)
    for _ in range(1000):
        publisher.post(channel, 4, 1, 0)
    changed = [i for i, (a, b) in enumerate(zip(before, board.q)) if a != b]
    assert changed == [channel.at]


@pytest.mark.parametrize("wrong", [0, 1, 17, 29])
@pytest.mark.parametrize("change_every", [1, 3, 100])
def test_a_message_unlike_its_receive_is_found_at_any_place_in_a_row(wrong, change_every):
    def worker(rank, world_size):
        import torch
        import torch.distributed as dist

        sizes = [4 + i // change_every % 2 for i in range(30)]
        if rank == 0:
            sizes[wrong] = 7
        tensors = [torch.ones(n) for n in sizes]
        for request in [(dist.irecv if rank else dist.isend)(t, 1 - rank) for t in tensors]:
            request.wait()

    error = failing_launch(worker, 2)
    assert {f.kind for f in error.failures} == {"mismatch"}
    assert "rank 0 sends 7 float32" in str(error)
