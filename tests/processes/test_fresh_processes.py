"""Each launch has fresh processes: from a fork server, spare ones that stood by, or started anew."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from hw_utils import WorkerFailed, launch, simulate
from hw_utils.processes import start_by_fork
from hw_utils.processes.spare_processes import SPARES
from hw_utils.processes.worker_processes import WorkerProcesses
from tests.processes.launching import require_no_process_left

linux = pytest.mark.skipif(sys.platform != "linux", reason="the fork server is Linux's")


def test_every_launch_gets_fresh_processes():
    def worker(rank, world_size):
        torch.seen = getattr(torch, "seen", 0) + 1
        return os.getpid(), torch.seen

    runs = [launch(worker, 2).results for _ in range(3)]
    assert {seen for run in runs for _, seen in run} == {1}
    assert len({pid for run in runs for pid, _ in run}) == 6


def test_another_world_size_than_last_time_works():
    assert [launch(lambda rank, world_size: world_size, n).results for n in (2, 3, 1)] == [[2, 2], [3, 3, 3], [1]]
    require_no_process_left()


@linux
def test_processes_that_stood_by_and_died_is_replaced():
    launch(lambda rank, world_size: rank, 2)
    for pid in SPARES.pids():
        psutil.Process(pid).kill()
    while SPARES._workers.is_fresh:
        time.sleep(0.001)
    assert launch(lambda rank, world_size: rank, 2).results == [0, 1]


@linux
def test_a_fork_server_that_died_is_replaced_and_leaves_nothing_behind():
    workers = WorkerProcesses(2)
    server = start_by_fork.connect()
    psutil.Process(server.pid).kill()
    server.process.wait()
    assert launch(lambda rank, world_size: rank, 2).results == [0, 1]
    workers.close()
    assert not os.path.exists(workers.directory)


@linux
def test_the_fork_server_has_one_thread():
    launch(lambda rank, world_size: None, 1)
    assert psutil.Process(start_by_fork.connect().pid).num_threads() == 1


def test_no_directory_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    launch(lambda rank, world_size: None, 2)
    launch(lambda rank, world_size: None, 2)
    SPARES.drop()
    require_no_process_left()
    deadline = time.perf_counter() + 1
    while os.listdir(tmp_path) and time.perf_counter() < deadline:
        time.sleep(0.01)
    assert os.listdir(tmp_path) == []


SPAWN = """
import os
os.environ["HW_UTILS_START"] = "spawn"
import torch, torch.distributed as dist
from hw_utils import Deadlock, WorkerFailed, launch

def worker(rank, world_size):
    print("hello", rank)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return tensor.item()

def stuck(rank, world_size):
    dist.recv(torch.ones(1), 1 - rank)

if __name__ == "__main__":
    run = launch(worker, 2)
    print(run.results, run.output, run.trace.ops)
    try:
        launch(stuck, 2)
    except WorkerFailed as error:
        print(type(error).__name__, error)
"""


def test_spawned_ranks_work_where_there_is_no_fork_server(tmp_path):
    script = tmp_path / "spawning.py"
    script.write_text(SPAWN)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert "[2.0, 2.0] ['hello 0\\n', 'hello 1\\n'] frozenset({'all_reduce'})" in done.stdout
    assert "[rank 1] hello 1" in done.stdout
    assert "Deadlock no rank can go on: rank 0 waits for rank 1, 1 for 0, all in recv" in done.stdout


ADOPTED = """
import os
os.environ["HW_UTILS_PRELOAD"] = "0"
from hw_utils.processes import start_by_fork
sock = start_by_fork.fork_server()
child = os.fork()
if child == 0:
    import time
    start_by_fork.adopt(sock)
    from hw_utils import launch
    start = time.perf_counter()
    print(launch(lambda rank, world_size: rank, 2).results, time.perf_counter() - start < 1.5, flush=True)
    os._exit(0)
sock.close()
os.waitpid(child, 0)
"""


@linux
def test_a_warm_process_can_hand_its_own_fork_server_to_a_child():
    done = subprocess.run([sys.executable, "-c", ADOPTED], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("[0, 1] True\n", "")


def _keeps_sockets(rank, world_size, told, is_killed):
    from multiprocessing.util import get_temp_dir

    Path(told, str(rank)).write_text(get_temp_dir())
    Path(get_temp_dir(), "listener").touch()
    dist.barrier()
    if is_killed:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("engine", [launch, simulate])
def test_what_multiprocessing_keeps_goes_with_the_run(tmp_path, engine, is_killed):
    with pytest.raises(WorkerFailed) if is_killed else contextlib.nullcontext():
        engine(_keeps_sockets, 2, args=(str(tmp_path), is_killed), echo=False)
    kept = [(tmp_path / str(rank)).read_text() for rank in range(2)]
    assert not any(os.path.exists(place) or os.path.basename(place).startswith("pymp-") for place in kept)
