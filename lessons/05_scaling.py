# %% [markdown]
# # 5. Where the time goes, and how to get it back
#
# After this lesson you can
#
# 1. say where every millisecond of a distributed training step goes, and how much of N times faster is left;
# 2. send gradients in buckets, and send them while the rest is still being computed;
# 3. take a disappointing speedup apart into its causes.
#
# About 160 minutes, 40 points: 130 for the tasks, 30 for reading and runs. You need lessons 1 to 3; lesson 4 helps.

# %% [markdown]
# ## Words
#
# | word | meaning |
# |---|---|
# | speedup | how many times the work of one rank N ranks do in the same time |
# | efficiency | speedup divided by N; 1 at best |
# | serial fraction | the part of the work that does not get faster with more ranks |
# | bucket | several gradients sent as one message |
# | overlap | communication under way while the rank computes |
# | hook | a function that autograd calls when a gradient is there |
# | straggler | a rank that is slower than the others |

# %% setup

# %% [markdown]
# ## 5.1 What to expect
#
# Two things are known before anything runs: how much a serial part costs, and how many bytes an algorithm moves.
#
# **Predict.** 5 % of a program cannot be shared out. How many times faster is it on 20 ranks? On 1,000?
#
# **Task 5.1** (15 minutes, 4 points). Three formulas: the speedup with a serial part; the bytes that go *through* a
# parameter server in one step; the bytes that one rank of a ring *sends*. Chunks may be fractions of a byte. Target:
# six digits.

# %% [markdown]
# <details><summary>Hint 1: the time, then the ratio</summary>
#
# Say one rank needs 1 s. The serial part still takes serial_fraction seconds; the rest is divided by N.
#
# </details>
# <details><summary>Hint 2: one of the ranks is the server</summary>
#
# Rank 0 keeps the model of n_bytes. Every *other* rank sends it a gradient and gets the weights back.
#
# </details>
# <details><summary>Hint 3: N - 1 of N</summary>
#
# Lesson 2: two phases, N - 1 steps each, one chunk a step.
#
# </details>


# %% exercise="amdahl_speedup"
def amdahl_speedup(world_size: int, serial_fraction: float) -> float:
    """How many times faster world_size ranks are if serial_fraction of the work stays serial. 1 line."""
    ### BEGIN SOLUTION
    return 1 / (serial_fraction + (1 - serial_fraction) / world_size)
    ### END SOLUTION


# %% exercise="server_bytes"
def server_bytes(world_size: int, n_bytes: int) -> float:
    """Bytes that rank 0, the server of a model of n_bytes, receives and sends in one step. 1 line."""
    ### BEGIN SOLUTION
    return 2 * (world_size - 1) * n_bytes
    ### END SOLUTION


# %% exercise="ring_bytes"
def ring_bytes(world_size: int, n_bytes: int) -> float:
    """Bytes that one rank sends in a ring all-reduce of n_bytes. 1 line."""
    ### BEGIN SOLUTION
    return 2 * (world_size - 1) / world_size * n_bytes
    ### END SOLUTION


# %%
sizes = [2**k for k in range(11)]
fig, (left, right) = plt.subplots(1, 2, figsize=(13, 3.8), layout="constrained")
curves = {f"{s:.0%} serial": (sizes, [amdahl_speedup(n, s) for n in sizes]) for s in (0.0, 0.01, 0.05, 0.25)}
plots.plot_lines({}, curves, x_label="ranks N", y_label="speedup", title="Amdahl's law", ax=left)
ranks = sizes[1:]
traffic = {
    "server": (ranks, [server_bytes(n, 1e6) for n in ranks]),
    "one rank of a ring": (ranks, [ring_bytes(n, 1e6) for n in ranks]),
}
plots.plot_lines({}, traffic, x_label="ranks N", y_label="bytes a step", title="traffic, 1 MB model", ax=right)
# %% check="amdahl_speedup" points=2
checks.lesson_05.amdahl_speedup(amdahl_speedup)
### BEGIN HIDDEN TESTS
checks.lesson_05.amdahl_speedup(amdahl_speedup, cases=[{"world_size": 12, "serial_fraction": 0.125}])
### END HIDDEN TESTS

# %% check="server_bytes" points=1
checks.lesson_05.server_bytes(server_bytes)
### BEGIN HIDDEN TESTS
checks.lesson_05.server_bytes(server_bytes, cases=[{"world_size": 7, "n_bytes": 333}])
### END HIDDEN TESTS

# %% check="ring_bytes" points=1
checks.lesson_05.ring_bytes(ring_bytes)
### BEGIN HIDDEN TESTS
checks.lesson_05.ring_bytes(ring_bytes, cases=[{"world_size": 9, "n_bytes": 4095}])
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** A serial part of 5 % ends every hope at 20 times: for ever more ranks the speedup tends to $1/s$.
# The server's line rises with N, because all traffic meets in one place; the ring's goes flat just below two models,
# however many ranks there are. What still grows for the ring is the *number* of messages, and with it latency.

# %% [markdown]
# ## 5.2 Measure
#
# The model is `SimpleCNN`: 8 parameter tensors, 315,722 numbers. Every rank has its own batch of 128, so N ranks see
# N batches in an iteration. One iteration is compute (forward, backward, step) and communication (one `all_reduce` a
# parameter). With $t_1$ seconds for an iteration on one rank and $t_N$ on each of N,
#
# $$\text{speedup} = \frac{N\,t_1}{t_N}, \qquad \text{efficiency} = \frac{\text{speedup}}{N} = \frac{t_1}{t_N}.$$
#
# **Predict** which of the two is longer on this machine with 2 ranks.

# %%
from hw_utils.material.models import SimpleCNN


def fresh_start(rank: int, batch_size: int):
    """The same model on every rank, its optimizer, and a batch of its own."""
    torch.manual_seed(0)
    model = SimpleCNN()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)
    images = torch.randn(batch_size, 3, 32, 32, generator=generator)
    labels = torch.randint(0, 10, (batch_size,), generator=generator)
    return model, optimizer, images, labels


# %% [markdown]
# **Task 5.2** (25 minutes, 10 points). `profiled_training` trains for `n_iterations` and returns means an iteration in
# seconds: `comp_s`, `comm_s` and their sum `iteration_s`, and `n_calls`, the number of this rank's `all_reduce` calls
# in the whole run. With one rank there is no call. `calls_per_epoch` counts calls; `scaling_metrics` turns profiles
# into ratio, speedup and efficiency. Target: all three times within 1 us on a virtual cluster, where forward, backward,
# step and calls take known seconds.

# %% [markdown]
# <details><summary>Hint 1: four readings of the clock</summary>
#
# `time.perf_counter()` before forward, after backward, and after the last call. The step after it is compute too: read
# once more. Add up the differences, divide by n_iterations at the end.
#
# </details>
# <details><summary>Hint 2: examples an iteration</summary>
#
# batch_size * world_size; an epoch needs enough iterations for all examples, so round up.
#
# </details>
# <details><summary>Hint 3: N batches</summary>
#
# In iteration_s seconds N ranks do N batches. How many does one rank do in that time?
#
# </details>

# %% exercise="profiled_training"
import time


def profiled_training(rank: int, world_size: int, n_iterations: int, batch_size: int) -> dict[str, float]:
    """comp_s, comm_s, iteration_s (means an iteration) and n_calls (the whole run). About 20 lines."""
    ### BEGIN SOLUTION
    model, optimizer, images, labels = fresh_start(rank, batch_size)
    comp_s = comm_s = 0.0
    n_calls = 0
    for _ in range(n_iterations):
        start = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        computed = time.perf_counter()
        communicated = computed
        if world_size > 1:
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= world_size
                n_calls += 1
            communicated = time.perf_counter()
        optimizer.step()
        comp_s += computed - start + time.perf_counter() - communicated
        comm_s += communicated - computed
    comp_s, comm_s = comp_s / n_iterations, comm_s / n_iterations
    return {"comp_s": comp_s, "comm_s": comm_s, "iteration_s": comp_s + comm_s, "n_calls": n_calls}
    ### END SOLUTION


# %% exercise="calls_per_epoch"
def calls_per_epoch(n_parameters: int, n_examples: int, batch_size: int, world_size: int) -> int:
    """How often one rank calls all_reduce in an epoch, a call a parameter and iteration. About 2 lines."""
    ### BEGIN SOLUTION
    iterations = -(-n_examples // (batch_size * world_size))
    return n_parameters * iterations if world_size > 1 else 0
    ### END SOLUTION


# %% exercise="scaling_metrics"
def scaling_metrics(profiles: dict[int, dict[str, float]]) -> dict[int, dict[str, float]]:
    """World size to `ratio` (compute over communication), `speedup` and `efficiency`. About 6 lines.

    profiles: world size to comp_s, comm_s, iteration_s; 1 is among them. Without communication the ratio is infinite.
    """
    ### BEGIN SOLUTION
    metrics = {}
    for n, profile in profiles.items():
        ratio = profile["comp_s"] / profile["comm_s"] if profile["comm_s"] else float("inf")
        speedup = n * profiles[1]["iteration_s"] / profile["iteration_s"]
        metrics[n] = {"ratio": ratio, "speedup": speedup, "efficiency": speedup / n}
    return metrics
    ### END SOLUTION


# %% check="profiled_training" points=6
checks.lesson_05.profiled_training(profiled_training)
### BEGIN HIDDEN TESTS
checks.lesson_05.profiled_training(
    profiled_training, cases=[{"world_size": 3, "n_iterations": 4, "batch_size": 2, "compute": "free"}]
)
### END HIDDEN TESTS

# %% check="calls_per_epoch" points=1
checks.lesson_05.calls_per_epoch(calls_per_epoch)
### BEGIN HIDDEN TESTS
checks.lesson_05.calls_per_epoch(
    calls_per_epoch, cases=[{"n_parameters": 5, "n_examples": 999, "batch_size": 10, "world_size": 3}]
)
### END HIDDEN TESTS

# %% check="scaling_metrics" points=3
checks.lesson_05.scaling_metrics(scaling_metrics)
### BEGIN HIDDEN TESTS
checks.lesson_05.scaling_metrics(scaling_metrics, cases=[{"profiles": [[1, 1.0, 0.0, 1.0], [3, 1.0, 0.5, 1.5]]}])
### END HIDDEN TESTS

# %% [markdown]
# Now this machine, and a cluster that nobody here has: a core for every rank, and slow links of 200 Mb/s. `launch` is
# real, so its ranks share the cores that there are; the virtual clock of `simulate` gives each rank the time that its
# own work took.

# %%
import os

from tqdm.auto import tqdm

WORLD_SIZES, ARGS = (1, 2, 4, 8), (3, 128)
cluster = Network(latency_s=500e-6, bandwidth_Bps=25e6)  # 200 Mb/s
real, virtual = {}, {}
for n in tqdm(WORLD_SIZES, desc="ranks"):
    real[n] = launch(profiled_training, n, args=ARGS)[0]
    virtual[n] = simulate(profiled_training, n, args=ARGS, network=cluster)[0]

# %%
print(f"real: {os.cpu_count()} cores for up to {max(WORLD_SIZES)} ranks; virtual: a core each, 200 Mb/s links")
print(f"{'':9}{'N':>2}{'calls/epoch':>13}{'comm [s]':>10}{'iter [s]':>10}{'ratio':>8}{'speedup':>9}{'eff.':>7}")
for kind, profiles in (("real", real), ("virtual", virtual)):
    for n, row in scaling_metrics(profiles).items():
        p, calls = profiles[n], calls_per_epoch(8, 50_000, 128, n)
        numbers = f"{p['comm_s']:>10.4f}{p['iteration_s']:>10.4f}{row['ratio']:>8.2f}{row['speedup']:>9.2f}"
        print(f"{kind:9}{n:>2}{calls:>13,}{numbers}{row['efficiency']:>7.0%}")

# %%
from hw_utils.pictures import lesson_05

fig, (left, right) = plt.subplots(1, 2, figsize=(13, 3.8), layout="constrained", sharey=True)
lesson_05.plot_step_bars(real, ax=left).set_title("real: ranks share the cores", loc="left")
lesson_05.plot_step_bars(virtual, ax=right).set_title("virtual: a core each, 200 Mb/s", loc="left")
# %%
metrics = scaling_metrics(virtual)
lesson_05.plot_metrics(metrics)
lesson_05.plot_speedup({n: row["speedup"] for n, row in metrics.items()})
# %% [markdown]
# **What it shows.** With more ranks than cores the real bars grow in *compute*: the ranks take turns, and no network
# is to blame. On the virtual cluster compute stays and communication grows, first with the bytes, then with the
# latency of eight calls an iteration. The shaded part is what the rest of this lesson gets back.

# %% [markdown]
# `torch.profiler` sees operators, the ledger sees messages. Written as trace files, both open side by side in
# Perfetto (ui.perfetto.dev).

# %%
import tempfile
from pathlib import Path

from hw_utils.pictures import perfetto

folder = Path(tempfile.mkdtemp())
perfetto.write(simulate(profiled_training, 2, args=(2, 16), network=cluster).trace, folder / "ledger.json")
model, optimizer, images, labels = fresh_start(0, 16)
with torch.profiler.profile() as profile:
    torch.nn.functional.cross_entropy(model(images), labels).backward()
profile.export_chrome_trace(str(folder / "operators.json"))
print("\n".join(f"{file.name}: {file.stat().st_size:,} bytes" for file in sorted(folder.iterdir())))

# %% [markdown]
# ## 5.3 Buckets
#
# Eight calls pay eight times the latency of a ring. Laid out in one flat vector and cut into pieces of a chosen size,
# the same bytes need fewer calls. Where a piece begins has nothing to do with where a gradient does:

# %%
lesson_05.draw_buckets([9, 3, 6, 2], 8)

# %% [markdown]
#
# **Predict.** What happens to the communication time as the bucket grows from 1 element to the whole model, if nothing
# else happens at the same time?

# %% [markdown]
# **Task 5.3** (20 minutes, 8 points). `bucketed_all_reduce` replaces every gradient by the mean over all ranks, in
# place (in the memory that it has, which is contiguous), with one `all_reduce` a bucket of *exactly* `bucket_elements`
# elements; the last one holds what is left, and nothing is padded. `bucketed_s` predicts its seconds. Target: as many
# calls as the flat vector has buckets, and seconds to six digits.
#
# <details><summary>Hint 1: out, cut, back</summary>
#
# `torch.cat` of the flattened gradients, `.split(bucket_elements)`, one call a piece, then `.split` again at the
# gradients' sizes and `copy_` back. The pieces of a split share memory with the whole.
#
# </details>
# <details><summary>Hint 2: one bucket, then many</summary>
#
# A ring of a bucket takes 2 (N - 1) steps of a chunk each. The buckets go one after another.
#
# </details>


# %% exercise="bucketed_all_reduce"
def bucketed_all_reduce(gradients: list[torch.Tensor], bucket_elements: int) -> None:
    """Replaces each gradient by its mean over all ranks, a call a bucket. About 6 lines."""
    ### BEGIN SOLUTION
    flat = torch.cat([g.flatten() for g in gradients])
    for bucket in flat.split(bucket_elements):
        dist.all_reduce(bucket)
    flat /= dist.get_world_size()
    for g, mean in zip(gradients, flat.split([g.numel() for g in gradients])):
        g.copy_(mean.view_as(g))
    ### END SOLUTION


# %% exercise="bucketed_s"
def bucketed_s(n_bytes: int, bucket_bytes: int, world_size: int, network: Network) -> float:
    """Seconds of ring all-reduces of n_bytes in buckets, one after another; bucket_bytes divides n_bytes. 2 lines."""
    ### BEGIN SOLUTION
    chunk_s = network.latency_s + bucket_bytes / world_size / network.bandwidth_Bps
    return n_bytes // bucket_bytes * 2 * (world_size - 1) * chunk_s
    ### END SOLUTION


# %%
def reduce_model(rank: int, world_size: int, bucket_elements: int) -> None:
    bucketed_all_reduce([torch.ones(2**14)], bucket_elements)


elements = [2**k for k in range(4, 15)]
seconds = [simulate(reduce_model, 4, args=(k,), network=cluster, compute="free").seconds for k in elements]
predicted = [bucketed_s(4 * 2**14, 4 * k, 4, cluster) for k in elements]
plots.plot_lines(
    {"buckets": (elements, seconds)},
    {"buckets": (elements, predicted)},
    x_label="elements a bucket",
    y_label="communication [s]",
    title="nothing else at the same time",
)
# %% check="bucketed_all_reduce" points=6
checks.lesson_05.bucketed_all_reduce(bucketed_all_reduce)
### BEGIN HIDDEN TESTS
checks.lesson_05.bucketed_all_reduce(
    bucketed_all_reduce, cases=[{"world_size": 5, "bucket_elements": 6}, {"world_size": 2, "bucket_elements": 13}]
)
### END HIDDEN TESTS

# %% check="bucketed_s" points=2
checks.lesson_05.bucketed_s(bucketed_s)
### BEGIN HIDDEN TESTS
checks.lesson_05.bucketed_s(
    bucketed_s, cases=[{"n_bytes": 24000, "bucket_bytes": 600, "world_size": 3, "link": [2e-4, 5e6]}]
)
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** The points lie on the line: the model is exact here. Left of the bend latency rules and doubling
# the bucket halves the time; right of it nothing more is to be had. With blocking calls, bigger is never worse. That
# changes as soon as something useful can happen meanwhile.

# %% [markdown]
# ## 5.4 Overlap
#
# Backward computes the *last* layer's gradient first. It could travel while the layers before it are still at work.
#
# **Predict.** Backward takes `compute_s` in `n_buckets` equal parts; a bucket's all-reduce takes `bucket_s` and starts
# when its part is done and the link is free. How long is the step, if communication is the faster of the two? If it
# is the slower?
#
# **Task 5.4a** (10 minutes, 2 points). Write it as `overlapped_s`. Target: six digits.

# %% [markdown]
# <details><summary>Hint 1: which one never stops?</summary>
#
# If bucket_s is at most a part's time, compute never waits and the last bucket travels alone at the end. If it is
# more, the link never rests once the first part is done.
#
# </details>


# %% exercise="overlapped_s"
def overlapped_s(compute_s: float, n_buckets: int, bucket_s: float) -> float:
    """Seconds of a step whose buckets travel while backward goes on. About 3 lines."""
    ### BEGIN SOLUTION
    part_s = compute_s / n_buckets
    return compute_s + bucket_s if bucket_s <= part_s else part_s + n_buckets * bucket_s
    ### END SOLUTION


# %% check="overlapped_s" points=2
checks.lesson_05.overlapped_s(overlapped_s)
### BEGIN HIDDEN TESTS
checks.lesson_05.overlapped_s(overlapped_s, cases=[{"compute_s": 3.0, "n_buckets": 5, "bucket_s": 0.7}])
### END HIDDEN TESTS

# %% [markdown]
# Now the real thing. Autograd calls a hook when a parameter's gradient is complete. The buckets are given: filled from
# the last parameter to the first. A parameter that is used twice is still one parameter and its hook comes once; one
# that is not used has no hook call at all.

# %%
from contextlib import contextmanager


def buckets_of(parameters: list[torch.nn.Parameter], bucket_bytes: int) -> list[list[torch.nn.Parameter]]:
    """Neighbours together as long as they fit; a parameter that is larger than a bucket has one of its own."""
    buckets, room = [], 0
    for p in parameters:
        n_bytes = p.numel() * p.element_size()
        if n_bytes > room:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(p)
        room -= n_bytes
    return buckets


# %% [markdown]
# **Task 5.4b** (35 minutes, 10 points). Fill in three methods of `OverlappedGradients`. A bucket is one message: one
# `all_reduce` of all its gradients in a flat vector. Every rank must start its buckets in the same order, whatever
# order its gradients come in. After `wait` each gradient (contiguous, as all here are) is the mean, unused ones count
# as zeros. In `no_sync` nothing is sent. Target: one call a bucket, and the step within 10 % of `overlapped_s`.

# %% [markdown]
# <details><summary>Hint 1: "nothing is sent before backward ends", "waited for inside the hook"</summary>
#
# `dist.all_reduce(flat, async_op=True)` returns a handle at once. Keep it with its flat buffer, wait in `wait`.
#
# </details>
# <details><summary>Hint 2: "ranks start buckets in different orders"</summary>
#
# What must be true of the buckets before this one when it goes off? And when one goes off late, who else may have been
# waiting for it?
#
# </details>
# <details><summary>Hint 3: "a bucket with an unused parameter never fills"</summary>
#
# Its hook never comes, on this rank; others may send that bucket. When is the last moment at which this rank can, too,
# and what stands in for a gradient that is None?
#
# </details>


# %% exercise="overlap"
class OverlappedGradients:
    """Averages gradients over all ranks while backward still runs: make one, then backward(), wait(), step()."""

    def __init__(self, model: torch.nn.Module, bucket_bytes: int) -> None:
        trained = [p for p in model.parameters() if p.requires_grad]
        self.buckets = buckets_of(trained[::-1], bucket_bytes)
        self.syncing = True
        self.start_over()
        for k, bucket in enumerate(self.buckets):
            for p in bucket:
                p.register_post_accumulate_grad_hook(lambda p, k=k: self.gradient_is_there(k))

    def start_over(self) -> None:
        self.missing = [len(bucket) for bucket in self.buckets]  # gradients that are not there yet
        self.flights = []  # (handle, flat buffer) of the buckets that were started, in order

    @contextmanager
    def no_sync(self):
        self.syncing = False
        yield
        self.syncing = True

    def gradient_is_there(self, k: int) -> None:
        """The hook: one more gradient of bucket k is complete; start what can be started. About 4 lines."""
        ### BEGIN SOLUTION
        if not self.syncing:
            return
        self.missing[k] -= 1
        while len(self.flights) < len(self.buckets) and self.missing[len(self.flights)] == 0:
            self.start_next()
        ### END SOLUTION

    def start_next(self) -> None:
        """Starts the all-reduce of the first bucket that is not under way yet. About 4 lines."""
        ### BEGIN SOLUTION
        bucket = self.buckets[len(self.flights)]
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in bucket])
        self.flights.append((dist.all_reduce(flat, async_op=True), flat))
        ### END SOLUTION

    def wait(self) -> None:
        """After it every gradient is the mean over all ranks, and the next backward may begin. About 9 lines."""
        ### BEGIN SOLUTION
        while len(self.flights) < len(self.buckets):
            self.start_next()
        for (handle, flat), bucket in zip(self.flights, self.buckets):
            handle.wait()
            flat /= dist.get_world_size()
            for p, mean in zip(bucket, flat.split([p.numel() for p in bucket])):
                p.grad = mean.view_as(p).clone()
        self.start_over()
        ### END SOLUTION


# %%
# One backward pass of six layers, 10 ms each: everything in one bucket, then a bucket a layer.
from hw_utils.material.timed_layers import TimedChain


def one_step(rank: int, world_size: int, n_layers: int, n_elements: int, backward_s: float, n_buckets: int) -> None:
    model = TimedChain(n_layers, n_elements // n_layers, backward_s / n_layers)
    gradients = OverlappedGradients(model, bucket_bytes=8 * n_elements // n_buckets)
    model(torch.ones(n_elements // n_layers, dtype=torch.float64)).backward()
    gradients.wait()


fig, axes = plt.subplots(2, 1, figsize=(9, 5), sharex=True, layout="constrained")
for ax, n_buckets in zip(axes, (1, 6)):
    run = simulate(one_step, 4, args=(6, 60_000, 0.06, n_buckets), network=cluster, compute="free")
    plots.plot_timeline(run.trace, ax=ax, end_s=run.seconds)
    ax.set_title(f"buckets: {n_buckets}; the step takes {run.seconds:.4f} s", loc="left", fontsize="medium")

# %%
# Few buckets overlap badly, many pay latency: the best number lies in between, where your formulas put it.
n_bytes, counts = 2**20, [2**k for k in range(7)]
measured_s = [
    simulate(one_step, 4, args=(k, n_bytes // 8, 0.1, k), network=cluster, compute="free").seconds for k in counts
]
predicted_s = [overlapped_s(0.1, k, bucketed_s(n_bytes // k, n_bytes // k, 4, cluster)) for k in counts]
best = counts[predicted_s.index(min(predicted_s))]
plots.plot_lines(
    {"your buckets": (counts, measured_s)},
    {"your buckets": (counts, predicted_s)},
    x_label="buckets",
    y_label="one step [s]",
    title="1 MiB of gradients, 100 ms of backward, 4 ranks",
    mark={f"best: {best}": best},
)
# %% check="overlap" points=5
checks.lesson_05.overlap(OverlappedGradients)
### BEGIN HIDDEN TESTS
checks.lesson_05.overlap(
    OverlappedGradients,
    cases=[
        {"world_size": 4, "bucket_bytes": 24, "situation": "rank 0 leaves the last layer out"},
        {"world_size": 2, "bucket_bytes": 1, "situation": "rank 0 has no gradient at all"},
    ],
)
### END HIDDEN TESTS

# %% check="overlap_in_time" points=5
checks.lesson_05.overlap_in_time(OverlappedGradients)
### BEGIN HIDDEN TESTS
checks.lesson_05.overlap_in_time(
    OverlappedGradients, cases=[{"world_size": 3, "n_layers": 5, "backward_s": 0.4, "bucket_s": 0.3}]
)
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** Above, all communication comes after the last layer. Below, only the tail of the last bucket sticks
# out. No byte was saved; it was sent earlier. In the second picture too few buckets leave a long tail, too many pay
# latency over and over. The same class runs on real processes, unchanged:


# %%
def train_with_overlap(rank: int, world_size: int) -> float:
    model, optimizer, images, labels = fresh_start(rank, 32)
    gradients = OverlappedGradients(model, bucket_bytes=2**18)
    for _ in range(2):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        gradients.wait()
        optimizer.step()
    return sum(p.double().sum().item() for p in model.parameters())


run = launch(train_with_overlap, 2)
print("the same weights on both ranks:", run[0] == run[1])

# %% [markdown]
# ## 5.5 Why it is still not N times
#
# On a virtual cluster each cause can be switched on alone. A step is: rank 0's serial part while everybody waits, then
# 1 s of compute on every rank, then an `all_reduce` of 10,000 float32.
#
# **Predict.** The last of 8 ranks is 1.5 times slower than the others. How much slower is the step?

# %% [markdown]
# **Task 5.5** (25 minutes, 6 points). `step_under` runs one step under conditions: `serial_s` (seconds of rank 0 before
# anyone may start), `straggler` (the *last* rank's compute takes that many times as long), `cores` (if there are fewer
# cores than ranks, compute takes world_size / cores times as long: 2.5 times for 5 ranks on 2 cores). `time.sleep` is
# compute on the virtual clock. `waterfall` splits an actual step into parts that add up. Target: the step within 0.5 %,
# the parts to six digits.

# %% [markdown]
# <details><summary>Hint 1: everybody waits for rank 0</summary>
#
# `dist.barrier()` after rank 0's `time.sleep(serial_s)`. A condition that is missing in the dict is switched off:
# `conditions.get("straggler", 1.0)`.
#
# </details>
# <details><summary>Hint 2: what a cause adds</summary>
#
# Its step alone minus the ideal step. Several causes together cost more or less than their sum; that difference is
# the last part.
#
# </details>


# %% exercise="step_under"
def step_under(rank: int, world_size: int, conditions: dict[str, float]) -> None:
    """One step: serial part, 1 s of compute, all_reduce of 10,000 float32. About 9 lines."""
    ### BEGIN SOLUTION
    if rank == 0:
        time.sleep(conditions.get("serial_s", 0.0))
    if "serial_s" in conditions:
        dist.barrier()
    compute_s = max(1.0, world_size / conditions.get("cores", world_size))
    if rank == world_size - 1:
        compute_s *= conditions.get("straggler", 1.0)
    time.sleep(compute_s)
    dist.all_reduce(torch.zeros(10_000))
    ### END SOLUTION


# %% exercise="waterfall"
def waterfall(ideal_s: float, alone_s: dict[str, float], actual_s: float) -> dict[str, float]:
    """Parts that add up to actual_s: "ideal", then what each cause adds alone, then "together" for the rest.

    alone_s: cause to the seconds of a step with that cause alone. About 4 lines.
    """
    ### BEGIN SOLUTION
    parts = {"ideal": ideal_s}
    parts |= {cause: seconds - ideal_s for cause, seconds in alone_s.items()}
    parts["together"] = actual_s - sum(parts.values())
    return parts
    ### END SOLUTION


# %% check="step_under" points=3
checks.lesson_05.step_under(step_under)
### BEGIN HIDDEN TESTS
checks.lesson_05.step_under(step_under, cases=[{"world_size": 6, "conditions": {"cores": 3, "straggler": 1.25}}])
### END HIDDEN TESTS

# %% check="waterfall" points=3
checks.lesson_05.waterfall(waterfall)
### BEGIN HIDDEN TESTS
checks.lesson_05.waterfall(waterfall, cases=[{"ideal_s": 3.0, "alone_s": {"a": 3.5, "b": 4.0}, "actual_s": 4.25}])
### END HIDDEN TESTS

# %%
fast, slow = Network(latency_s=0.0, bandwidth_Bps=1e12), Network(latency_s=5e-3, bandwidth_Bps=1e6)
causes = {"serial": {"serial_s": 0.2}, "straggler": {"straggler": 1.5}, "cores": {"cores": 4}}


def step_s(conditions: dict[str, float], network: Network) -> float:
    return simulate(step_under, 8, args=(conditions,), network=network, compute="free").seconds


ideal_s = step_s({}, fast)
alone_s = {name: step_s(conditions, fast) for name, conditions in causes.items()} | {"link": step_s({}, slow)}
actual_s = step_s({key: value for c in causes.values() for key, value in c.items()}, slow)
lesson_05.plot_waterfall(waterfall(ideal_s, alone_s, actual_s))

# %% [markdown]
# **What it shows.** The straggler alone costs half a step, because all wait for one. With too few cores it costs a
# whole one: causes multiply, and the last part says by how much. With $t_c$ for cause c alone,
#
# $$t_\text{actual} = t_\text{ideal} + \sum_c (t_c - t_\text{ideal}) + t_\text{together}.$$
#
# Read from left to right it is a work list: whatever stands tallest is worth the next week, and a faster link would
# have helped least.

# %% [markdown]
# ## Done
#
# You said where a step's time goes, sent gradients in buckets and while backward ran, proved it from the ledger, and
# took a speedup apart.
#
# **Open question.** Overlap hides communication behind *backward*. What could be hidden behind the next *forward*, and
# which parameters would have to arrive first?

# %% [markdown]
# ## Further reading
#
# 1. G. M. Amdahl, **[Validity of the single processor approach to achieving large scale computing
#    capabilities](https://doi.org/10.1145/1465482.1465560)**, 1967: three pages, and the serial fraction.
# 2. S. Li et al., **[PyTorch Distributed: Experiences on Accelerating Data Parallel
#    Training](https://arxiv.org/abs/2006.15704)**, VLDB 2020: hooks, buckets, no_sync and how large a bucket should be.
# 3. M. Li et al., **[Scaling Distributed Machine Learning with the Parameter
#    Server](https://www.usenix.org/conference/osdi14/technical-sessions/presentation/li_mu)**, OSDI 2014.
# 4. S. Rajbhandari et al., **[ZeRO: Memory Optimizations Toward Training Trillion Parameter
#    Models](https://arxiv.org/abs/1910.02054)**, 2020: what else need not stand on every rank.
# 5. PyTorch, **[Distributed communication package](https://docs.pytorch.org/docs/2.13/distributed.html)** and
#    **[torch.profiler](https://docs.pytorch.org/docs/2.13/profiler.html)**.
