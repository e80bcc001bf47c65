"""The simulator's claim about real networks, tested on real ones: four hosts with 1 Gb/s links, gloo over TCP."""

from __future__ import annotations

import json
import sys
from functools import lru_cache

import numpy as np
import pytest

from hw_utils import Network, simulate
from tests.checks.references import lessons, namespace
from tests.hosts import namespaces

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.alone]

WITHIN = 0.15
SIZES = (1_000_000, 4_000_000, 16_000_000)
FITTED = (4, 4_000_000, 16_000_000)  # long enough for the rate limit's burst not to count
ALGORITHMS = ("tree_all_reduce", "ring_all_reduce")
# What every host runs below the reference's own cells: [name, bytes, seconds of the slowest rank, best of repeats].
# The best of several, and ahead of all other work, because what else this machine does is no part of the network.
JOB = """
import json, os, time

try:
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(10))
except PermissionError:  # a container may keep that to itself
    os.nice(-10)
torch.set_num_threads(1)
dist.init_process_group("gloo")


def seconds(call, n_bytes):
    times = []
    while len(times) < 8 or (sorted(times)[2] > 1.03 * min(times) and len(times) < 60):
        tensor = torch.ones(n_bytes // 4)
        dist.barrier()
        start = time.perf_counter()
        call(tensor)
        slowest = torch.tensor(time.perf_counter() - start)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        times.append(slowest.item())
    return min(times)


def there_and_back(tensor):
    if dist.get_rank() == 0:
        dist.send(tensor, 1)
        dist.recv(tensor, 1)
    elif dist.get_rank() == 1:
        dist.recv(tensor, 0)
        dist.send(tensor, 0)


rows = [["message", n, seconds(there_and_back, n) / 2] for n in MESSAGES]
rows += [[f.__name__, n, seconds(f, n)] for f in (tree_all_reduce, ring_all_reduce) for n in SIZES]
if dist.get_rank() == 0:
    print("ROWS", json.dumps(rows))
dist.barrier()
"""


def job() -> str:
    """The reference's cells of lesson 02 and the measuring loop, as one script."""
    lesson = next(lesson for lesson in lessons() if lesson.name == "02_all_reduce")
    cells = [cell.source for cell in lesson.with_role("exercise") if "_s(" not in cell.source]
    head = "import torch\nimport torch.distributed as dist\nfrom hw_utils import Network\n"
    told = f"SIZES = {SIZES!r}\nMESSAGES = {FITTED!r}\n"
    return "\n\n".join([head, *cells, told, JOB])


def fitted(rows: list[list]) -> Network:
    """The link that explains the messages' times best, each size counting alike; only messages are looked at."""
    sizes, seconds = np.array([(n, s) for name, n, s in rows if name == "message"]).T
    columns = np.stack([1 / seconds, sizes / seconds], axis=1)
    (latency_s, seconds_per_byte), *_ = np.linalg.lstsq(columns, np.ones(len(seconds)), rcond=None)
    return Network(max(float(latency_s), 0.0), 1 / float(seconds_per_byte))


def _one(rank, world_size, all_reduce, n_bytes):
    import torch

    all_reduce(torch.ones(n_bytes // 4))


@lru_cache
def predicted_s(network: Network, name: str, n_bytes: int) -> float:
    """What the virtual cluster says, running the same function."""
    lesson = next(lesson for lesson in lessons() if lesson.name == "02_all_reduce")
    all_reduce = namespace(lesson)[name]
    return simulate(_one, 4, (all_reduce, n_bytes), network=network, compute="free", echo=False).seconds


def measured(script: str) -> list[list]:
    """The rows of one job."""
    with namespaces.cluster(4, rate="1gbit") as cluster:
        texts = namespaces.run_on(cluster, lambda rank, host: [sys.executable, script], timeout_s=200)
    line = next(line for line in texts[0].splitlines() if line.startswith("ROWS"))
    return json.loads(line.removeprefix("ROWS"))


def table(rows: list[list], name: str) -> dict[int, tuple[float, float]]:
    """Bytes of a tensor -> seconds measured and simulated."""
    link = fitted(rows)
    return {n: (measured_s, predicted_s(link, name, n)) for kind, n, measured_s in rows if kind == name}


def farthest(rows: list[list], name: str) -> float:
    """By how much the simulation is off, as a share, where it is worst."""
    return max(abs(real_s / model_s - 1) for real_s, model_s in table(rows, name).values())


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> list[list]:
    """The best of up to three jobs: connections that fall into a slow step keep it until their job ends."""
    namespaces.require()
    script = tmp_path_factory.mktemp("job") / "job.py"
    script.write_text(job())
    rows = measured(str(script))
    for _ in range(2):
        if max(farthest(rows, name) for name in ALGORITHMS) < WITHIN:
            break
        again = measured(str(script))
        rows = [[name, n, min(one_s, other_s)] for (name, n, one_s), (_, _, other_s) in zip(rows, again, strict=True)]
    return rows


def test_a_link_of_four_hosts_carries_what_tc_lets_through(rows):
    link = fitted(rows)
    assert 0.8 * 125e6 < link.bandwidth_Bps < 125e6
    assert link.latency_s < 2e-3


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_virtual_cluster_tells_the_time_of_four_real_hosts(rows, name):
    found = table(rows, name)
    assert set(found) == set(SIZES)
    print(f"{name}, {fitted(rows)}:")
    for n, (real_s, model_s) in found.items():
        off = real_s / model_s - 1
        print(f"  {n / 1e6:g} MB: {real_s * 1e3:.2f} ms measured, {model_s * 1e3:.2f} ms simulated, {off:+.1%}")
    assert farthest(rows, name) < WITHIN
