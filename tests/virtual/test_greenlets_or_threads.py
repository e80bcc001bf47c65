"""What ends a rank is told as that rank's, whatever carries it: an error of torch's C++ code, a time limit."""

from __future__ import annotations

import copy
import io
import os
import pickle
import random
import socket
import sys
import threading
import time
import timeit
from datetime import date, datetime, timedelta, timezone

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel
from tqdm import std as tqdm_module
from tqdm import tqdm

from hw_utils import Network, TimedOut, WorkerFailed, simulate


def _shapes_do_not_fit(rank: int, world_size: int, depth: int, n_messages: int) -> None:
    received = torch.empty(1)
    for _ in range(n_messages):
        sending = dist.isend(torch.ones(1), (rank + 1) % world_size)
        dist.recv(received, (rank - 1) % world_size)
        sending.wait()
    if depth:
        _shapes_do_not_fit(rank, world_size, depth - 1, 0)
    torch.ones(3, 5).t().view(-1)


@pytest.mark.parametrize(("world_size", "depth", "n_messages"), [(1, 0, 0), (4, 0, 0), (4, 40, 20), (64, 0, 2)])
def test_torchs_own_error_in_a_rank_kills_nothing(world_size: int, depth: int, n_messages: int):
    with pytest.raises(WorkerFailed, match="RuntimeError: view size is not compatible"):
        simulate(_shapes_do_not_fit, world_size, (depth, n_messages), compute="free", echo=False)


def _needs_threads(rank: int, world_size: int, what: str) -> None:
    _functional_collectives.all_reduce(torch.ones(1), "sum", dist.group.WORLD).wait()
    received = torch.zeros(1)
    while what == "messages":
        dist.send(received, 1) if rank == 0 else dist.recv(received, 0)
    while what == "collectives":
        dist.all_reduce(received)
    while what == "computes" and rank == 1:
        received.add_(1)
    while what == "catches everything" and rank == 1:
        try:
            received.add_(1)
        except BaseException:
            continue
    dist.barrier()


@pytest.mark.parametrize("what", ["messages", "collectives", "computes", "catches everything"])
def test_a_time_limit_names_the_line_of_a_rank_that_is_a_thread(what: str):
    with pytest.raises(TimedOut, match="still busy after 2 s") as caught:
        simulate(_needs_threads, 2, (what,), timeout_s=2, echo=False)
    assert caught.value.failures[0].where.file == __file__


# Beside other threads of the process, as a Jupyter kernel has them: they are no part of the run

RANKS = 5
HELD_OPEN_S = 10  # a thread that never answers ends the test instead of the suite


def _steps(rank, world_size, turn):
    """Lets the other thread of the process do one thing within the run, in the middle of every rank's step."""
    total = torch.full((4,), float(rank))
    turn()
    dist.all_reduce(total)
    time.sleep(0.5)
    return total[0].item(), time.perf_counter(), os.environ["RANK"], random.random()


def _in_backward(rank, world_size, turn):
    """The same with a thread a rank: it communicates inside its backward pass."""
    weight = torch.ones(4, requires_grad=True)
    weight.register_hook(lambda grad: (turn(), dist.all_reduce(grad), grad)[2])
    (weight * weight).sum().backward()
    time.sleep(0.5)
    return weight.grad[0].item(), time.perf_counter(), os.environ["RANK"], random.random()


class Beside(threading.Thread):
    """A thread that was there before the run, and does `act` whenever the run lets it."""

    def __init__(self, act):
        super().__init__(name="beside the run", daemon=True)
        self.act, self.found, self.errors = act, [], []
        self.asked, self.done, self.is_over = threading.Semaphore(0), threading.Semaphore(0), False

    def run(self):
        while True:
            self.asked.acquire()
            if self.is_over:
                return
            try:
                self.found.append(self.act())
            except BaseException as error:
                self.errors.append(error)
            self.done.release()

    def turn(self):
        self.asked.release()
        assert self.done.acquire(timeout=HELD_OPEN_S)

    def end(self):
        self.is_over = True
        self.asked.release()
        self.join()


def _turn():
    """Found by name: a global of this module would be each rank's own."""
    for thread in threading.enumerate():
        if thread.name == "beside the run":
            thread.turn()


def _writes_environment():
    os.environ["SET_BESIDE"] = "here"
    return os.environ.pop("SET_BESIDE"), os.environ.get("RANK")


def _starts_a_thread():
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()


ACTS = {
    "sleeps": lambda: time.sleep(0.001),  # as ipykernel's ParentPoller, every second
    "asks the time": time.perf_counter,
    "asks for the time in ns": lambda: time.time_ns(),
    "asks for the default group": lambda: c10d._world.default_pg,
    "writes variables": _writes_environment,
    "draws": lambda: random.random(),
    "prints": lambda: print("beside the run"),
    "starts a thread": _starts_a_thread,
    "imports": lambda: __import__("sched"),
}


@pytest.mark.parametrize("worker", [_steps, _in_backward])
@pytest.mark.parametrize("name", ACTS)
def test_another_thread_of_the_process_changes_nothing_in_the_run(name, worker, capsys):
    alone = simulate(worker, RANKS, (_turn,), compute="free", isolate=False)
    before_s, thread = time.perf_counter(), Beside(ACTS[name])
    thread.start()
    try:
        run = simulate(worker, RANKS, (_turn,), compute="free", isolate=False)
    finally:
        thread.end()
    within = thread.found
    assert not thread.errors
    assert len(within) >= RANKS
    assert run.results == alone.results
    assert list(run.trace) == list(alone.trace)
    assert run.output == alone.output == [""] * RANKS
    if name == "asks the time":
        assert all(before_s <= found <= time.perf_counter() for found in within)  # real seconds
    if name == "asks for the default group":
        assert within == [None] * len(within)
    if name == "writes variables":
        assert set(within) == {("here", None)}
        assert "SET_BESIDE" not in os.environ
    if name == "prints":
        assert capsys.readouterr().out == "beside the run\n" * len(within)


def _timed(rank, world_size):
    total = torch.ones(1)
    begin = timeit.default_timer()
    seconds = timeit.timeit(lambda: dist.all_reduce(total), number=1)
    return seconds, timeit.default_timer() - begin


def test_timeit_reads_the_virtual_clock():
    before = timeit.default_timer, timeit.timeit.__defaults__
    network = Network(latency_s=1.0, bandwidth_Bps=1e9)
    for seconds, beside in simulate(_timed, 2, network=network, compute="free", echo=False, isolate=False):
        assert 1.0 <= seconds <= beside <= 10.0
    assert (timeit.default_timer, timeit.timeit.__defaults__) == before


def _dated(rank: int, world_size: int, is_apart: bool):
    if is_apart:
        os.chdir(os.getcwd())
    begin, zone = datetime.now(), datetime.now(timezone.utc)
    time.sleep(86_400 * (rank + 1))
    utc = [datetime.now(timezone.utc).replace(tzinfo=None), datetime.utcnow()]
    assert copy.deepcopy(begin) == pickle.loads(pickle.dumps(begin)) == begin
    passed = [(datetime.now() - begin).days, (datetime.now(timezone.utc) - zone).days, (utc[1] - utc[0]).days]
    return passed, type(begin) is datetime, datetime.now().date() == date.today() == datetime.today().date(), utc[0]


@pytest.mark.parametrize("isolate", [True, False])
@pytest.mark.parametrize("is_apart", [False, True])
@pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow")  # deprecated from Python 3.12 on
def test_dates_are_of_the_virtual_clock(is_apart, isolate):
    before = datetime.now()
    run = simulate(_dated, 2, (is_apart and isolate,), compute="free", echo=False, isolate=isolate)
    days = [datetime(1970, 1, 2), datetime(1970, 1, 3)]
    assert run.results == [([rank + 1, rank + 1, 0], True, True, days[rank]) for rank in range(2)]
    assert before <= datetime.now() <= before + timedelta(hours=1)
    assert datetime.now(timezone.utc) - datetime.utcnow().replace(tzinfo=timezone.utc) < timedelta(hours=1)


def _process(rank, world_size):
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()
    return os.getpid()


def test_threads_whose_program_changes_nothing_stay_in_one_process():
    assert len(set(simulate(_process, 2, echo=False).results)) == 1


def seconds_of_a_bar(rank: int, world_size: int, is_apart: bool) -> float:
    if is_apart:
        os.chdir(os.getcwd())
    with tqdm(total=1, file=io.StringIO()) as bar:
        time.sleep(5)
        bar.update()
        return bar.format_dict["elapsed"]


@pytest.mark.parametrize("is_apart", [False, True], ids=["together", "a process a rank"])
def test_a_package_that_has_taken_a_clock_for_itself_reads_the_virtual_one(is_apart):
    before = tqdm_module.time
    assert simulate(seconds_of_a_bar, 2, (is_apart,), compute="free", echo=False).results == [5.0, 5.0]
    assert simulate(seconds_of_a_bar, 2, (False,), compute="free", echo=False, isolate=False).results == [5.0, 5.0]
    assert tqdm_module.time is before is time.time


def says_more_on_a_thread(rank: int, world_size: int) -> None:
    if threading.current_thread().name.startswith("rank"):
        print("only on a thread", file=sys.stderr)
    print("before")
    with torch.autocast("cpu"):
        dist.barrier()
    print("after")


def test_what_an_attempt_has_shown_is_not_shown_again_where_the_next_one_says_more(capfd):
    run = simulate(says_more_on_a_thread, 3)
    shown = capfd.readouterr().out
    assert [shown.count(word) for word in ("before", "only on a thread", "after")] == [3, 3, 3]
    assert run.output == ["before\nafter\n"] * 3


def waits_in_the_system_for_another_rank(rank: int, world_size: int, name: str) -> None:
    print("before", rank)
    with socket.socket(socket.AF_UNIX) as mine:
        if rank == 0:
            mine.bind(name)
            mine.listen()
            dist.barrier()
            mine.accept()[0].close()
        else:
            dist.barrier()
            mine.connect(name)
    print("after", rank)


def test_what_an_attempt_that_stood_still_has_printed_is_shown_once(capfd, tmp_path):
    simulate(waits_in_the_system_for_another_rank, 2, [f"\0{tmp_path}"])  # a name of no file: it goes with its process
    shown = capfd.readouterr().out
    assert [shown.count(word) for word in ("before 0", "before 1", "after 0", "after 1")] == [1, 1, 1, 1]
