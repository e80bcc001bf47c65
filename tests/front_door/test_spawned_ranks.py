"""A script that starts its ranks itself runs as it is: each rank of the run plays one of its processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hw_utils import Network, WorkerFailed, launch, simulate
from hw_utils.core.hardware import Cluster

SCRIPT = Path(__file__).parents[1] / "outside" / "scripts" / "starts_its_ranks.py"
both = pytest.mark.parametrize("engine", [launch, simulate], ids=["launch", "simulate"])


@both
@pytest.mark.parametrize(
    ("way", "times"), [("joined", 1), ("leaves", 1), ("waited_for", 1), ("processes", 2), ("kept", 2)]
)
def test_rank_k_plays_the_kth_process_that_the_script_starts(engine, way, times):
    run = engine(SCRIPT, 3, [way, 3], echo=False)
    for rank, text in enumerate(run.output):
        assert [line for line in text.splitlines() if not line.startswith("init_")] == [
            *[f"{way} {rank} 6.0"] * times,
            "done",
        ]


@both
def test_a_script_goes_on_after_processes_that_have_failed(engine):
    run = engine(SCRIPT, 2, ["fails_first", 2], echo=False)
    for rank, text in enumerate(run.output):
        assert text.splitlines()[-3:] == [f"fails_first {rank} 3.0", f"afterwards {rank} 3.0", "done"]


@both
def test_as_many_processes_as_ranks_are_asked_for_with_the_next_step(engine):
    with pytest.raises(WorkerFailed, match=r"starts 4 processes for train, and this run has 3 ranks.*--ranks 4"):
        engine(SCRIPT, 3, ["joined", 4], echo=False)


SHARES = """\
import sys
import torch
import torch.multiprocessing as mp

def worker(rank, world_size, given):
    raise SystemExit("a rank was started")

MAKE = {
    "queue": lambda: mp.get_context("spawn").Queue(),
    "simple_queue": lambda: mp.SimpleQueue(),
    "pipe": lambda: [mp.Pipe()],
    "value": lambda: {"n": mp.Value("i", 0)},
    "array": lambda: mp.Array("i", 4),
    "manager": lambda: mp.Manager().dict(),
    "tensor": lambda: torch.zeros(4).share_memory_(),
    "module": lambda: torch.nn.Linear(2, 2).share_memory(),
}

if __name__ == "__main__":
    given = MAKE[sys.argv[1]]()
    if sys.argv[2] == "spawn":
        mp.spawn(worker, args=(2, given), nprocs=2)
    processes = [mp.Process(target=worker, args=(rank,), kwargs={"world_size": 2, "given": given}) for rank in (0, 1)]
    for process in processes:
        process.start()
"""


@both
@pytest.mark.parametrize("how", ["spawn", "process"])
@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("queue", "a Queue"), ("simple_queue", "a Queue"), ("pipe", "the end of a Pipe"), ("value", "a Value or Array"),
        ("array", "a Value or Array"), ("manager", "a Manager"), ("tensor", "a tensor in shared memory"),
        ("module", "a module in shared memory"),
    ],
)  # fmt: skip
def test_what_a_script_would_share_with_its_processes_is_refused_where_it_starts_them(
    engine, what, name, how, tmp_path
):
    (tmp_path / "shares.py").write_text(SHARES)
    with pytest.raises(WorkerFailed, match=f"gives {name}.* shares it with none .*gather_object") as caught:
        engine(tmp_path / "shares.py", 2, [what, how], echo=False)
    starts = "mp.spawn(worker, args=(2, given), nprocs=2)" if how == "spawn" else "process.start()"
    assert {f.where.source for f in caught.value.failures} == {starts}


def test_a_process_that_plays_no_rank_cannot_join_them(capfd):
    run = launch(SCRIPT, 2, ["forked", 2])
    assert [text.splitlines()[-1] for text in run.output] == ["done"] * 2
    assert "init_process_group in a process that rank 1 has forked" in capfd.readouterr().out


def _torchruns(rank, world_size):
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "WORLD_SIZE")
    return [int(os.environ[name]) for name in names]


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"cluster": Cluster.named("h100x16"), "compute": "device"},
        {"network": Network.two_level(8, Network(1e-6, 1e9), Network(1e-5, 1e8))},
    ],
    ids=["cluster", "network"],
)
def test_on_hosts_a_rank_has_its_place_there_as_from_torchrun(options, isolate):
    found = simulate(_torchruns, 16, echo=False, isolate=isolate, **options).results
    assert found == [[rank, rank % 8, 8, rank // 8, 2, 16] for rank in range(16)]


def test_a_last_host_with_fewer_ranks_says_so():
    network = Network.two_level(4, Network(1e-6, 1e9), Network(1e-5, 1e8))
    assert simulate(_torchruns, 6, echo=False, network=network).results[5] == [5, 1, 2, 1, 2, 6]
    assert simulate(_torchruns, 2, echo=False).results[1] == [1, 1, 2, 0, 1, 2]


def test_a_script_that_runs_once_a_host_plays_by_its_place_there(tmp_path):
    script = tmp_path / "once_a_host.py"
    script.write_text(
        "import os, torch, torch.distributed as dist, torch.multiprocessing as mp\n"
        "def work(local_rank, n_devices, host):\n"
        "    rank = host * n_devices + local_rank\n"
        "    dist.init_process_group('nccl', rank=rank, world_size=16)\n"
        "    total = torch.ones(1, device=f'cuda:{local_rank}')\n"
        "    dist.all_reduce(total)\n"
        "    print(rank, local_rank, total.item())\n"
        "n = torch.cuda.device_count()\n"
        "mp.spawn(work, args=(n, int(os.environ['GROUP_RANK'])), nprocs=n)\n"
    )
    run = simulate(script, 16, cluster=Cluster.named("h100x16"), compute="device", echo=False)
    assert [text.strip() for text in run.output] == [f"{rank} {rank % 8} 16.0" for rank in range(16)]
