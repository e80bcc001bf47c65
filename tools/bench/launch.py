"""How soon a notebook function has run on four ranks, beside other ways to start them; what the ledger costs.

    python -m tools.bench.launch

Everything runs from one real Jupyter kernel, the same function, in turns; medians and ratios to `launch`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile

from jupyter_client.manager import start_new_kernel

HELLO = """
import torch
import torch.distributed as dist

def hello(rank, world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    print("hello", rank)
    return tensor.item()

def connected(rank, world_size, path):
    dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=world_size)
    hello(rank, world_size)
    dist.destroy_process_group()

def by_environment():
    dist.init_process_group("gloo")
    hello(dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()

if __name__ == "__main__":
    by_environment()
"""

SETUP = """
import json, os, statistics, subprocess, sys, tempfile, time, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {folder!r})
import torch, torch.multiprocessing
import hello_ranks
from hello_ranks import hello
from hw_utils import launch
from hw_utils.processes.spare_processes import SPARES
from hw_utils.processes.supervisor import START_S
from hw_utils.processes.worker_processes import wait_until
import accelerate, ipyparallel

N = 4

def spare():
    wait_until(SPARES._workers, lambda: all(m.is_up for m in SPARES._workers.members), time.perf_counter() + START_S)

def no_spare():
    spare()
    SPARES.drop()
    time.sleep(0.2)

def with_spare(): launch(hello, N, echo=False)
def fresh(): launch(hello, N, echo=False)
def spawn(): torch.multiprocessing.spawn(hello_ranks.connected, (N, tempfile.mktemp()), nprocs=N)
def torchrun():
    subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(N),
                    hello_ranks.__file__], check=True, capture_output=True)
def notebook_launcher(): accelerate.notebook_launcher(hello_ranks.by_environment, num_processes=N)
def engines():
    path = tempfile.mktemp()
    for result in [view.apply_async(hello_ranks.connected, r, N, path) for r, view in enumerate(views)]:
        result.get()

cluster = ipyparallel.Cluster(n=N, log_level=40)
views = list(cluster.start_and_connect_sync())
for view in views:
    view.execute("import sys; sys.path.insert(0, '{folder}'); import hello_ranks", block=True)
engines()
launch(hello, N, echo=False)

def seconds(function, before=lambda: None):
    before()
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
"""

MEASURE = """
times = {}
def add(name, *how): times.setdefault(name, []).append(seconds(*how))
for turn in range(6):
    for _ in range(3):
        add("launch, workers standing by", with_spare, spare)
    add("launch, fresh workers", fresh, no_spare)
    add("ipyparallel, warm engines", engines)
    add("accelerate.notebook_launcher", notebook_launcher)
    if turn % 3 == 0:
        add("torch.multiprocessing.spawn", spawn)
        add("torchrun", torchrun)
cluster.stop_cluster_sync()
print("TIMES", json.dumps(times))
"""

# Recording alone: the same calls through a group that hands on to nothing, with and without the ledger.
LEDGER = """
import time, torch, torch.distributed as dist
from hw_utils import launch

def cost(rank, world_size):
    import torch.distributed.distributed_c10d as c10d

    class Nothing:
        def wait(self): return True
        def nothing(self, *arguments, **named): return self
        send = recv = allreduce = nothing
    nothing = Nothing()

    class Thin(dist.ProcessGroup):
        group_name = pg_name = "thin"
        def size(self): return world_size
        def rank(self): return rank
        def send(self, tensors, peer, tag): return nothing
        recv = send
        def allreduce(self, tensors, options): return nothing

    world, thin, tensor, longer = dist.group.WORLD, Thin(rank, world_size), torch.ones(1), torch.ones(2)
    names = c10d._world
    names.pg_map[thin], names.pg_names[thin] = names.pg_map[world], "thin"
    names.pg_group_ranks[thin] = {r: r for r in range(world_size)}
    if rank == 1:
        dist.irecv(tensor, 0)  # the channels are there, as in any exchange
        dist.isend(tensor, 0)
        return None
    dist.isend(tensor, 1).wait()
    dist.recv(tensor, 1)
    world._inner = nothing
    world.settle()

    def fastest(call, n=200, turns=150):
        best = 1.0
        for _ in range(turns):
            world.keeper.begin()
            start = time.thread_time()
            for _ in range(n):
                call()
            best = min(best, (time.thread_time() - start) / n)
        return best * 1e6

    def two_sends(group):
        dist.send(tensor, 1, group=group)
        dist.send(longer, 1, group=group)

    def two_all_reduces(group):
        dist.all_reduce(tensor, group=group)
        dist.all_reduce(longer, group=group)

    calls = {
        "isend": (lambda group: dist.isend(tensor, 1, group=group).wait(), 2),  # its wait is an operation too
        "send": (lambda group: dist.send(tensor, 1, group=group), 1),
        "recv": (lambda group: dist.recv(tensor, 1, group=group), 1),
        "all_reduce": (lambda group: dist.all_reduce(tensor, group=group), 1),
        "send, two sizes in turn": (two_sends, 2),
        "all_reduce, two sizes in turn": (two_all_reduces, 2),
    }
    return {
        name: (fastest(lambda: call(thin)) / n, fastest(lambda: call(world)) / n) for name, (call, n) in calls.items()
    }

print("TIMES", json.dumps(launch(cost, 2, echo=False)[0]))
"""

REPORTS = """
import _thread, threading
from hw_utils import Deadlock, WorkerFailed

def ring(rank, world_size):
    closing = time.perf_counter()
    print(closing, flush=True)
    dist.send(torch.ones(1), (rank + 1) % world_size)

def raises(rank, world_size):
    if rank == 0:
        print(time.perf_counter(), flush=True)
        raise ValueError
    dist.barrier()

def busy(rank, world_size):
    while True: pass

import torch.distributed as dist
class Last:
    def __init__(self): self.at = 0.0
    def write(self, text):
        for line in text.splitlines():
            if line.startswith("[rank"): self.at = max(self.at, float(line.split()[-1]))
    def flush(self): pass
found = {"deadlock reported after it closed": [], "failure reported": [], "interrupt": []}
for _ in range(5):
    for name, worker in (("deadlock reported after it closed", ring), ("failure reported", raises)):
        spare(); sys.stdout, kept = Last(), sys.stdout
        try: launch(worker, 4)
        except WorkerFailed: found[name].append(time.perf_counter() - sys.stdout.at)
        finally: sys.stdout = kept
    spare()
    pressed = []
    timer = threading.Timer(0.5, lambda: (pressed.append(time.perf_counter()), os.kill(os.getpid(), 2)))
    timer.start()
    try: launch(busy, 4, echo=False)
    except KeyboardInterrupt: found["interrupt"].append(time.perf_counter() - pressed[0])
print("TIMES", json.dumps(found))
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "hello_ranks.py"), "w") as file:
            file.write(HELLO)
        manager, client = start_new_kernel(kernel_name="python3", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            run(client, SETUP.format(folder=folder))
            show_launch(run(client, MEASURE))
            show_ledger(run(client, LEDGER))
            show_reports(run(client, REPORTS))
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)


def run(client, cell: str) -> dict | None:
    """What a cell printed as TIMES."""
    found = []

    def take(message) -> None:
        if message["msg_type"] == "stream":
            found.extend(line for line in message["content"]["text"].splitlines() if line.startswith("TIMES"))
        elif message["msg_type"] == "error":
            sys.exit("\n".join(message["content"]["traceback"]))

    client.execute_interactive(cell, output_hook=take, timeout=600)
    return json.loads(found[0].removeprefix("TIMES")) if found else None


def show_launch(times: dict[str, list[float]]) -> None:
    medians = {name: statistics.median(found) for name, found in times.items()}
    base = medians["launch, workers standing by"]
    print(f"four ranks all-reduce once and print, from a Jupyter kernel ({os.cpu_count()} cores)\n")
    print(f"{'':32}{'median':>10}{'ratio':>10}{'runs':>6}")
    for name, median in sorted(medians.items(), key=lambda item: item[1]):
        print(f"{name:32}{median * 1e3:>7.0f} ms{median / base:>10.1f}{len(times[name]):>6}")


def show_ledger(times: dict[str, tuple[float, float]]) -> None:
    print(f"\n{'the ledger, an operation':32}{'without':>10}{'with':>10}{'costs':>10}")
    for name, (without, recorded) in times.items():
        print(f"{name:32}{without:>7.2f} us{recorded:>7.2f} us{recorded - without:>7.2f} us")


def show_reports(times: dict[str, list[float]]) -> None:
    print(f"\n{'back in the notebook':40}{'median':>10}{'longest':>10}")
    for name, found in times.items():
        print(f"{name:40}{statistics.median(found):>8.2f} s{max(found):>8.2f} s")


if __name__ == "__main__":
    main()
