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
