"""Real ranks: results, output, the functions and data that go along, what a rank finds when it starts."""

from __future__ import annotations

import os
import random
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.distributed as dist

from hw_utils import launch, simulate
from tests.processes.launching import require_no_process_left


def test_results_come_in_rank_order():
    run = launch(lambda rank, world_size, factor: rank * factor, 4, (10,))
    assert run.results == [0, 10, 20, 30]
    assert (run[2], len(run), list(run)) == (20, 4, [0, 10, 20, 30])
    assert run.clock == "wall"
    assert 0 < run.seconds < 60


def test_the_default_group_is_gloo_and_ready():
    def worker(rank, world_size):
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor)
        return tensor.item(), dist.get_rank(), dist.get_world_size(), dist.get_backend()

    assert launch(worker, 3).results == [(3.0, r, 3, "gloo") for r in range(3)]


def test_output_is_kept_without_and_shown_with_the_rank(capfd):
    def worker(rank, world_size):
        print("hello from", rank)
        print("half a line", end="")

    run = launch(worker, 2)
    assert run.output == [f"hello from {r}\nhalf a line" for r in range(2)]
    shown = capfd.readouterr()
    assert sorted(shown.out.splitlines()) == sorted(
        f"[rank {r}] {text}" for r in range(2) for text in (f"hello from {r}", "half a line")
    )
    assert shown.err == ""


def test_echo_can_be_turned_off(capfd):
    assert launch(lambda rank, world_size: print("quiet"), 2, echo=False).output == ["quiet\n"] * 2
    assert capfd.readouterr() == ("", "")


def test_writes_of_c_code_to_stderr_are_caught_and_shown_with_the_rank(capfd):
    def worker(rank, world_size):
        os.write(2, b"from C++\n")
        os.write(1, b"to stdout\n")
        os.write(2, b"[W1121 10:00:00.1 socket.cpp:755] [c10d] a warning of torch\n")

    run = launch(worker, 1)
    shown = capfd.readouterr()
    assert sorted(shown.out.splitlines()) == ["[rank 0] from C++", "[rank 0] to stdout"]
    assert shown.err == ""
    assert run.output == ["to stdout\n"]


def test_ten_megabytes_printed_by_every_rank_are_kept(capfd):
    def worker(rank, world_size):
        for _ in range(10):
            sys.stdout.write((f"{rank}" * 99 + "\n") * 10_000)

    run = launch(worker, 4)
    assert [len(text) for text in run.output] == [10_000_000] * 4
    assert len(capfd.readouterr().out) < 1_200_000  # a notebook with more would be slow to open


def test_a_result_of_200_megabytes_arrives():
    def worker(rank, world_size):
        return torch.full((50_000_000,), float(rank)) if rank == 1 else None

    result = launch(worker, 2)[1]
    assert result.shape == (50_000_000,)
    assert result[-1] == 1


def test_closures_globals_and_classes_go_along():
    offset = 5

    class Box:
        def __init__(self, value):
            self.value = value

    def worker(rank, world_size):
        return Box(rank + offset)

    results = launch(worker, 2).results
    assert [type(r) for r in results] == [Box, Box]
    assert [r.value for r in results] == [5, 6]


REMEMBERS = """
from functools import cache, lru_cache

@lru_cache(maxsize=7, typed=True)
def halvings(n):
    return 0 if n < 2 else 1 + halvings(n // 2)

@cache
def square(n):
    return n * n

def worker(rank, world_size):
    found = halvings(2**10), square(rank)
    return *found, halvings.cache_parameters(), halvings.cache_info().misses, square.cache_info().currsize
"""


@pytest.mark.parametrize("runs_it", [launch, simulate])
def test_a_notebooks_functions_that_remember_their_results_go_along(runs_it):
    names = {"__name__": "__main__"}
    exec(REMEMBERS, names)
    names["square"](3)  # what the notebook remembers stays there
    parameters = {"maxsize": 7, "typed": True}
    assert runs_it(names["worker"], 2).results == [(10, rank * rank, parameters, 11, 1) for rank in range(2)]


def test_large_captured_data_is_warned_about_by_name():
    weights = torch.ones(1_000_000)

    def worker(rank, world_size):
        return float(weights.sum())

    with pytest.warns(UserWarning, match=r"each rank is sent 4.0 MB: the variable weights \(4.0 MB\)"):
        assert launch(worker, 2).results == [1e6, 1e6]


def test_small_captured_data_is_not_warned_about():
    weights = torch.ones(1_000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        launch(lambda rank, world_size: float(weights.sum()), 1)


@pytest.mark.parametrize("world_size", [0, -1])
def test_a_world_size_below_one_is_refused(world_size):
    with pytest.raises(ValueError, match=f"world_size must be at least 1, got {world_size}"):
        launch(lambda rank, world_size: None, world_size)


@pytest.mark.parametrize("world_size", ["4", 2.5, None, True])
def test_a_world_size_that_is_no_whole_number_is_refused(world_size):
    with pytest.raises(TypeError, match="world_size must be a whole number of at least 1, got"):
        launch(lambda rank, world_size: None, world_size)


def test_one_rank_works():
    def worker(rank, world_size):
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        dist.barrier()
        return tensor.tolist()

    assert launch(worker, 1).results == [[1.0, 1.0]]


def test_sixty_four_ranks_work():
    def worker(rank, world_size):
        tensor = torch.tensor([1.0])
        dist.all_reduce(tensor)
        return tensor.item()

    assert launch(worker, 64).results == [64.0] * 64
    require_no_process_left()


def leaves_a_thread(rank, world_size):
    goes_on = threading.Event()

    def last():
        goes_on.wait()
        total = torch.ones(1)
        dist.all_reduce(total)
        print(f"{total.item()} at last", flush=True)

    threading.Thread(target=last).start()
    ThreadPoolExecutor(1).submit(int).result()  # its thread ends only where the process does
    goes_on.set()
    return rank


@pytest.mark.parametrize("engine", [launch, simulate])
def test_a_rank_ends_no_sooner_than_its_threads_that_are_no_daemons(engine):
    run = engine(leaves_a_thread, 2, echo=False)
    assert run.results == [0, 1]
    assert run.output == ["2.0 at last\n"] * 2


def test_ranks_have_one_torch_thread_and_draw_numbers_of_their_own():
    def worker(rank, world_size):
        return torch.get_num_threads(), torch.rand(1).item(), np.random.rand(), random.random()

    (threads, *drawn), again = (list(zip(*launch(worker, 3).results)) for _ in range(2))
    assert threads == (1, 1, 1)
    assert [len(set(numbers)) for numbers in drawn] == [3, 3, 3]
    assert drawn[0] == again[1]  # torch's: a program that sets no seed has the same ones in each run


def test_a_rank_starts_with_one_python_thread():
    """Another one would look as if it could still post: no deadlock would be certain."""
    assert launch(lambda rank, world_size: threading.active_count(), 2).results == [1, 1]


def test_ranks_have_the_directory_path_and_environment_of_the_caller(tmp_path, monkeypatch):
    (tmp_path / "students_helper.py").write_text("def answer():\n    return 42\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("HW_UTILS_TEST", "seen")

    def worker(rank, world_size):
        import students_helper

        return students_helper.answer(), os.getcwd(), os.environ["HW_UTILS_TEST"]

    assert launch(worker, 1).results == [(42, str(tmp_path), "seen")]


def test_launches_from_threads_at_the_same_time_work():
    results = {}

    def one(n):
        results[n] = launch(lambda rank, world_size: (rank, world_size), n, echo=False).results

    threads = [threading.Thread(target=one, args=(n,)) for n in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: [(r, n) for r in range(n)] for n in (1, 2, 3)}


def test_launch_works_after_a_multi_threaded_backward_pass_here():
    model = torch.nn.Linear(500, 500)
    model(torch.ones(500, 500)).sum().backward()

    def worker(rank, world_size):
        other = torch.nn.Linear(10, 10)
        other(torch.ones(2, 10)).sum().backward()
        return other.bias.grad.tolist()

    assert launch(worker, 2).results == [[2.0] * 10] * 2
