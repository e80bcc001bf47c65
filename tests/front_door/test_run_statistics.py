"""`python -m hw_utils run` on a virtual cluster: what it says of a script's run."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from hw_utils import Cluster, Network, simulate
from hw_utils.__main__ import main
from hw_utils.commands.run_statistics import communication_s, level_bytes

TRAINING = """
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
hosts = [dist.new_group(list(range(first, first + 8))) for first in (0, 8)]
model = nn.Linear(16_384, 16_384, bias=False)
model(torch.randn(4, 16_384)).sum().backward()
dist.all_reduce(model.weight.grad, group=hosts[dist.get_rank() // 8])
dist.all_reduce(model.weight.grad[0])
"""


def test_a_script_on_a_cluster_with_shapes_only_says_its_figures(tmp_path, capfd):
    (tmp_path / "train.py").write_text(TRAINING)
    options = ["--ranks", "16", "--cluster", "h100x16", "--shapes", "--memory", "--quiet"]
    files = ["--report", str(tmp_path / "run.html"), "--trace", str(tmp_path / "run.json")]
    assert main(["run", str(tmp_path / "train.py"), *options, *files]) == 0
    ranks, communication, sent, memory, *wrote = capfd.readouterr().out.splitlines()
    assert ranks.startswith("16 ranks, ")
    assert "s exposed, 0 s hidden" in communication
    # 1.074 GB a rank: 2 (N - 1)/N of it in its host. Then a row of it among all, along a tree: of its 15 edges one
    # joins the hosts, and takes the row once up and once down.
    assert sent == "sent inside hosts 30.07 GB, between hosts 131.1 kB"
    assert "peak memory 2.148 GB, rank 0 at train.py, line 9: " in memory
    assert "parameters 1.074 GB, gradients 1.074 GB" in memory
    assert [Path(line.split()[-1]).name for line in wrote] == ["run.json", "run.html"]
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert all(text in page for text in (communication, sent, "what each rank held at its peak"))


def test_a_folded_script_says_the_figures_of_all_ranks(tmp_path, capfd):
    (tmp_path / "train.py").write_text(TRAINING)
    options = ["--ranks", "16", "--cluster", "h100x16", "--shapes", "--memory", "--quiet"]
    assert main(["run", str(tmp_path / "train.py"), *options]) == 0
    whole = capfd.readouterr().out
    assert main(["run", str(tmp_path / "train.py"), *options, "--mesh", "host=2,gpu=8", "--fold", "host,gpu"]) == 0
    ranks, folded, *same = capfd.readouterr().out.splitlines()
    assert [ranks, *same] == whole.splitlines()
    assert "rank 0 ran, for 16 that do the same each; what the script does or prints on another rank alone" in folded
    assert main(["run", str(tmp_path / "train.py"), *options, "--fold", "gpu"]) == 2
    assert "--mesh pp=16,dp=4,tp=8 --fold dp,tp" in capfd.readouterr().err


def test_a_cluster_that_nobody_knows_is_refused_with_those_there_are(tmp_path, capfd):
    (tmp_path / "train.py").write_text(TRAINING)
    with pytest.raises(SystemExit):
        main(["run", str(tmp_path / "train.py"), "--ranks", "2", "--cluster", "h1000"])
    assert "a cluster is a preset (a100, h100" in capfd.readouterr().err


def _sent(rank: int, world_size: int, call: str) -> None:
    if call == "message":
        dist.send(torch.ones(25), 8) if rank == 0 else dist.recv(torch.ones(25), 0) if rank == 8 else None
    elif call == "broadcast":
        dist.broadcast(torch.ones(1600), 0)
    elif call == "all_to_all":
        dist.all_to_all_single(torch.ones(1600), torch.ones(1600))
    else:
        dist.all_reduce(torch.ones(1600), group=dist.new_group([0, 1, 8, 9]))


@pytest.mark.parametrize(
    ("call", "inside", "between"),
    [
        ("message", 0, 100),
        ("broadcast", 15 * 6400 * 14 // 16, 15 * 6400 * 2 // 16),  # along a ring of 16, which leaves each host once
        ("all_to_all", 16 * 7 * 400, 16 * 8 * 400),
        ("all_reduce", 6 * 6400 * 2 // 3, 6 * 6400 // 3),  # of a tree's three edges one is between the hosts
    ],
)
def test_bytes_of_a_call_are_those_of_its_links(call, inside, between):
    cluster = Cluster.named("h100x16")
    run = simulate(_sent, 16, (call,), cluster=cluster, compute="free", echo=False)
    assert level_bytes(run.trace, cluster) == (inside, between)


PREFETCHING = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl")
model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(4)))
for layer in model:
    fully_shard(layer)
fully_shard(model)
model(torch.randn(2048, 2048)).square().mean().backward()
"""


def test_on_a_cluster_computation_takes_time_and_hides_communication(tmp_path, capfd):
    (tmp_path / "train.py").write_text(PREFETCHING)
    said = {}
    for compute in ("device", "free"):
        options = ["--ranks", "2", "--cluster", "h100x2", "--shapes", "--quiet"]
        assert (
            main(["run", str(tmp_path / "train.py"), *options, *["--compute", "free"][: 2 * (compute == "free")]]) == 0
        )
        text = capfd.readouterr().out
        exposed, hidden = re.search(r"([\d.e-]+) s exposed, ([\d.e-]+) s hidden", text).groups()
        said[compute] = float(exposed), float(hidden)
    assert said["free"][1] == 0
    assert said["device"][1] > 0
    assert sum(said["device"]) == pytest.approx(said["free"][0], rel=0.01)  # the same communication


def overlapped(rank: int, world_size: int) -> None:
    work = dist.all_reduce(torch.ones(1000), async_op=True)
    time.sleep(1e-3)
    work.wait()


def test_exposed_is_what_a_rank_waited_and_hidden_what_went_on_meanwhile():
    run = simulate(overlapped, 2, network=Network(1e-3, 1e6), compute="free", echo=False)
    for rank in range(2):
        # 2 steps of 1 ms and 2 ms each; a millisecond of them is hidden behind the sleep
        assert communication_s(run.trace, rank) == pytest.approx((5e-3, 1e-3))
