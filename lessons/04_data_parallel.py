# %% [markdown]
# # 4. Data parallel, three ways
#
# After this lesson you can
#
# 1. train one model on N ranks and prove that it is the same training as on one;
# 2. synchronise gradients by gather and scatter, by all-reduce and by DistributedDataParallel, and say what each
#    costs before you run it;
# 3. take a function from this notebook to real hosts, and read their network counters.
#
# About 190 minutes, 40 points: 150 for the tasks, 40 for reading and for VGG-11 to train. You need lesson 1 to 3, or
# all-reduce and SGD from elsewhere.

# %% [markdown]
# ## Words
#
# | word | meaning |
# |---|---|
# | total batch | the examples of all ranks together in one step; each rank has total / N of them |
# | shard | the part of the data set that one rank sees in one epoch |
# | root | the rank through which a gather or a scatter goes; here rank 0 |
# | bucket | several gradients that travel as one message |
# | overlap | a message travels while the next gradient is computed |
# | batch norm | a layer that subtracts the mean of its batch, and keeps running means for testing |
# | counter | a network interface's own count of the bytes that it sent and received |

# %% setup

# %% [markdown]
# One switch. Quick mode trains VGG-11 (9.23 million parameters) on drawn pictures, 24 small iterations, in the cells
# of this notebook together under three minutes on two cores. `FULL = True` is one epoch of CIFAR-10: total batch 256,
# 196 iterations, a few hours on two cores.

# %%
from dataclasses import replace

from hw_utils import data, models
from hw_utils.material.job import Job

FULL = False


def quick_data():
    return data.drawn(768, 200, say=False)


job = Job() if FULL else Job(data=quick_data, total_batch=32, n_iterations=24, lr=0.005)
print(job.settings())

# %% [markdown]
# ## 4.1 The loop
#
# Every method of this lesson shares one loop. What differs is `sync(model)`, called between `backward` and `step`: it
# may change the gradients, and everything the ranks say to each other happens there. With step size $\eta$, momentum
# $\mu$ and the gradient $\bar g$ that sync leaves, a step is
#
# $$v \leftarrow \mu v + \bar g, \qquad \theta \leftarrow \theta - \eta v.$$
#
# **Predict.** A rank's first iteration allocates memory and warms caches. By what factor is it slower than the
# second? Should it count in a mean?

# %% [markdown]
# **Task 4.1a** (15 minutes, 5 points). Write `train`. Reports go to `report(text)`, one every 20 iterations. Target:
# the losses of plain SGD to four digits, and the mean seconds of iterations 2 to 40, each with its sync and its step.
#
# <details><summary>Hint 1: the order</summary>
#
# `optimizer.zero_grad()`, loss, `loss.backward()`, `sync(model)`, `optimizer.step()`. Read `time.perf_counter()`
# before the first and after the last of them.
#
# </details>
# <details><summary>Hint 2: "in the mean", "count from 1"</summary>
#
# Keep all times in a list, and cut it at the end. Iterations count from 1, lists from 0. A run of 30 iterations has 29
# times to take the mean of.
#
# </details>

# %%
import time
from itertools import islice

from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


# %% exercise="train"
def train(model, batches, sync, optimizer, report=print) -> tuple[list[float], float]:
    """The loss of every iteration, and the mean seconds of iterations 2 to 40.

    batches: (x, y) pairs, one an iteration; an iterator, perhaps, which has no length. sync(model) is called between
    backward and step. The loss is cross_entropy(model(x), y), kept as a number (a float, no tensor). Every 20
    iterations: report(f"iteration {i}: loss {loss:.3f}"). The seconds are those of zero_grad, forward, backward, sync
    and step together. About 14 lines.
    """
    ### BEGIN SOLUTION
    losses, seconds = [], []
    for i, (x, y) in enumerate(batches, 1):
        began_s = time.perf_counter()
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        sync(model)
        optimizer.step()
        seconds.append(time.perf_counter() - began_s)
        losses.append(loss.item())
        if i % 20 == 0:
            report(f"iteration {i}: loss {losses[-1]:.3f}")
    timed = seconds[1:40]
    return losses, sum(timed) / len(timed)
    ### END SOLUTION


# %%
# The small CNN learns the drawn pictures in a few seconds. Does your loss fall from about 2.3 = ln 10?
from hw_utils.pictures import lesson_04

torch.manual_seed(0)
cnn = models.SimpleCNN()
train_set, test_set = quick_data()
loader = DataLoader(train_set, 32, shuffle=True)
losses, iteration_s = train(cnn, loader, lambda model: None, torch.optim.Adam(cnn.parameters()))
lesson_04.plot_losses({f"small CNN, {iteration_s * 1e3:.0f} ms an iteration": losses})
# %% check="train" points=5
checks.lesson_04.train(train)
### BEGIN HIDDEN TESTS
checks.lesson_04.train(train, cases=[{"n_iterations": 2, "momentum": 0.5}, {"n_iterations": 61, "momentum": 0.0}])
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** A falling, noisy line: each point is another batch. The mean leaves the first iteration out, and
# stops at 40 so that a long run and a short one measure the same thing.
#
# **Task 4.1b** (10 minutes, 2 points). Write `evaluate`, over batches whose last one may be smaller. Target: loss and
# accuracy of the whole set, to four digits.
#
# <details><summary>Hint 1: "the mean of the batches' means"</summary>
#
# `cross_entropy(..., reduction="sum")` adds up. Count examples and right answers too, and divide once, at the end.
#
# </details>
# <details><summary>Hint 2: "training mode", "records gradients"</summary>
#
# Two switches, and they are not the same: `model.eval()` is for layers such as dropout, `torch.no_grad()` for autograd.
#
# </details>


# %% exercise="evaluate"
def evaluate(model, batches) -> tuple[float, float]:
    """(mean loss, share of right answers) over all examples, in evaluation mode, no gradients. About 9 lines."""
    ### BEGIN SOLUTION
    model.eval()
    loss, n_right, n = 0.0, 0, 0
    with torch.no_grad():
        for x, y in batches:
            scores = model(x)
            loss += cross_entropy(scores, y, reduction="sum").item()
            n_right += (scores.argmax(1) == y).sum().item()
            n += len(y)
    return loss / n, n_right / n
    ### END SOLUTION


# %%
test_loss, accuracy = evaluate(cnn, DataLoader(test_set, 100))
print(f"test loss {test_loss:.3f}, accuracy {accuracy:.2f}")

# %% check="evaluate" points=2
checks.lesson_04.evaluate(evaluate)
### BEGIN HIDDEN TESTS
checks.lesson_04.evaluate(evaluate, cases=[{"sizes": [16, 16, 16, 1]}])
### END HIDDEN TESTS

# %% [markdown]
# ## 4.2 Gather and scatter
#
# First, who sees what. If N ranks with batch B / N are to do what one rank with batch B does, their shards must be
# disjoint, cover everything, and be mixed anew every epoch, in *one* order that all of them know.
#
# **Predict.** Two ranks shuffle with different seeds. What goes wrong, and would any loss show it?

# %% [markdown]
# **Task 4.2a** (10 minutes, 4 points). Write `batches` with `DistributedSampler` and `DataLoader`. Target: no example
# twice in an epoch, but for up to N - 1 that fill up the last round, so that all ranks have as many; and iteration k of
# all ranks together is the k-th batch of one rank alone.
#
# <details><summary>Hint 1: the arguments</summary>
#
# The sampler takes the data set, N, the rank and the seed, which is the same on all ranks; the loader takes the sampler
# and the rank's own batch size, and neither drops anything.
#
# </details>
# <details><summary>Hint 2: "the same order as epoch 0"</summary>
#
# A sampler that nobody tells the epoch starts over with the same order: `set_epoch`. It mixes (`shuffle`) by itself.
#
# </details>


# %% exercise="batches"
def batches(dataset, rank: int, world_size: int, total_batch: int, epoch: int = 0, seed: int = 0):
    """This rank's (x, y) batches of one epoch: total_batch / world_size examples each, shuffled. About 3 lines."""
    ### BEGIN SOLUTION
    sampler = DistributedSampler(dataset, world_size, rank, shuffle=True, seed=seed)
    sampler.set_epoch(epoch)
    return DataLoader(dataset, total_batch // world_size, sampler=sampler)
    ### END SOLUTION


# %%
# A dot is an example, its colour the iteration in which its rank sees it. Every column has one dot.
from torch.utils.data import TensorDataset

numbers = TensorDataset(torch.arange(48), torch.arange(48))
lesson_04.plot_shards([[x.tolist() for x, _ in batches(numbers, rank, 4, 16)] for rank in range(4)])
# %% check="batches" points=4
checks.lesson_04.batches(batches)
### BEGIN HIDDEN TESTS
checks.lesson_04.batches(batches, cases=[{"n_examples": 101, "world_size": 3, "total_batch": 12}])
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** One dot in every column: nothing is lost and nothing is seen twice. A colour is an iteration, and
# every rank has four dots of it: the sampler deals the shuffled examples out like cards, so one colour on all ranks is
# one batch of one rank alone. That makes the losses below comparable.

# %% [markdown]
# Now the gradients. Rank 0 gathers a parameter's gradient from every rank, takes the mean, and scatters it: every
# rank gets its own copy. Blue goes to the root, red comes back; on the right what 4.3 will do instead.

# %%
lesson_04.draw_roads()

# %% [markdown]
# **Predict.** VGG-11's gradient is 36.9 MB, and there are four ranks. How many bytes leave rank 0 in one
# iteration, how many leave rank 1, and which cable limits the whole?
#
# **Task 4.2b** (20 minutes, 7 points). Write `gather_scatter`, with rank 0 as root. Target: one gather and one scatter
# for each trainable parameter and no other call (a barrier neither), and the mean to five digits on every rank.

# %% [markdown]
# <details><summary>Hint 1: two roles</summary>
#
# `dist.gather(tensor, list_on_rank_0)`: the others pass no list. `dist.scatter(tensor, list_on_rank_0)`: the tensor
# is where the result goes. Every parameter has its own two calls; several in one vector is lesson 5's subject.
#
# </details>
# <details><summary>Hint 2: "no rank can go on"</summary>
#
# A rank left a parameter out that another one waits for. Decide by `p.requires_grad`, which is the same everywhere;
# where `p.grad` is None, this rank's contribution is zeros.
#
# </details>


# %% exercise="gather_scatter"
def gather_scatter(model) -> None:
    """Sets every p.grad to its mean over the ranks, by way of rank 0.

    Frozen parameters (requires_grad is False) take no part. A gradient of None counts as zeros of the parameter's
    dtype, the others are contiguous. About 14 lines.
    """
    ### BEGIN SOLUTION
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for p in model.parameters():
        if not p.requires_grad:
            continue
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        if rank == 0:
            each = [torch.empty_like(p.grad) for _ in range(world_size)]
            dist.gather(p.grad, each)
            mean = torch.stack(each).mean(dim=0)
            dist.scatter(p.grad, [mean] * world_size)
        else:
            dist.gather(p.grad)
            dist.scatter(p.grad)
    ### END SOLUTION


# %%
# Two linear layers, four ranks, one synchronisation on the virtual cluster. Where does everybody wait?
def sync_once(rank, world_size, sync):
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(200, 100), torch.nn.Linear(100, 10))
    model(torch.randn(8, 200)).sum().backward()
    sync(model)
    return model[1].bias.grad


run = simulate(sync_once, 4, args=(gather_scatter,), compute="free")
plots.plot_space_time(run.trace)
# %%
plots.plot_bytes(run.trace)

# %% check="gather_scatter" points=5
checks.lesson_04.gather_scatter(gather_scatter)
### BEGIN HIDDEN TESTS
checks.lesson_04.gather_scatter(
    gather_scatter,
    cases=[{"world_size": 6, "names": ["branch", "scalar", "frozen", "weight"]}],
)
### END HIDDEN TESTS

# %% check="gather_scatter_traffic" points=2
checks.lesson_04.gather_scatter_traffic(gather_scatter)
### BEGIN HIDDEN TESTS
checks.lesson_04.gather_scatter_traffic(gather_scatter, cases=[{"world_size": 5, "names": ["weight", "scalar"]}])
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** All roads lead through rank 0: its cable carries N - 1 gradients in and N - 1 means out, one after
# the other, while the other cables stand idle most of the time. Twice as many ranks, twice as long.

# %% [markdown]
# ## 4.3 All-reduce
#
# **Predict.** The same mean without a root. Which rank sends most, and how does that change from 4 to 400 ranks?
#
# **Task 4.3a** (10 minutes, 3 points). Write `all_reduce_mean`: `dist.all_reduce` sums in place, the mean is one
# division away. Target: one all-reduce for each trainable parameter, no other call, and the same means as before, to
# five digits.
#
# <details><summary>Hint 1: what takes part</summary>
#
# The same parameters as in 4.2, and the same zeros. Only the two calls differ.
#
# </details>
# <details><summary>Hint 2: "this is the sum", "nothing was added up"</summary>
#
# `p.grad` itself must hold the mean in the end. `g = g / N` gives a new tensor a name, `g /= N` changes the old one.
#
# </details>


# %% exercise="all_reduce_mean"
def all_reduce_mean(model) -> None:
    """Sets every p.grad to its mean over the ranks, without a root; contract as in 4.2. About 6 lines."""
    ### BEGIN SOLUTION
    for p in model.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
    ### END SOLUTION


# %%
run = simulate(sync_once, 4, args=(all_reduce_mean,), compute="free")
plots.plot_bytes(run.trace)
# %% check="all_reduce_mean" points=2
checks.lesson_04.all_reduce_mean(all_reduce_mean)
### BEGIN HIDDEN TESTS
checks.lesson_04.all_reduce_mean(
    all_reduce_mean,
    cases=[{"world_size": 6, "names": ["branch", "scalar", "frozen", "weight"]}],
)
### END HIDDEN TESTS

# %% check="all_reduce_traffic" points=1
checks.lesson_04.all_reduce_traffic(all_reduce_mean)
### BEGIN HIDDEN TESTS
checks.lesson_04.all_reduce_traffic(all_reduce_mean, cases=[{"world_size": 3, "names": ["weight", "unused"]}])
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** Equal bars: of a gradient of $n$ bytes each rank sends
#
# $$2\,\frac{N-1}{N}\,n,$$
#
# which never reaches twice its size, however many ranks there are.
#
# **Task 4.3b** (20 minutes, 4 points). Put it together: `worker` is what every rank runs. Target: gather/scatter,
# all-reduce and one worker have the same losses to three digits, because they *are* the same training: with shards
# $S_r$ of $B/N$ examples each,
#
# $$\frac1N \sum_{r=0}^{N-1} \nabla \Big( \frac{1}{B/N} \sum_{i \in S_r} \ell_i \Big)
# = \nabla \Big( \frac1B \sum_i \ell_i \Big).$$

# %% [markdown]
# <details><summary>Hint 1: the order</summary>
#
# Seed, model, data, optimizer, batches, train, evaluate. `islice(batches(...), job.n_iterations)` stops the epoch
# early.
#
# </details>
# <details><summary>Hint 2: "the first loss differs"</summary>
#
# Ranks must start from the same weights: `torch.manual_seed(job.seed)` directly before `job.model()`. Anything
# random between the two moves the weights.
#
# </details>
# <details><summary>Hint 3: "the first loss is right"</summary>
#
# Then the step is not. Which `sync` does train get for this `job.method`? Which two numbers of the job does SGD take?
# For "ddp": what is trained, the model or what `DistributedDataParallel(model)` gave back?
#
# </details>


# %% exercise="worker"
def worker(rank: int, world_size: int, job: Job) -> dict:
    """Trains job.model() by job.method on job.data() and returns losses, iteration_s, test_loss and accuracy.

    SGD with job.lr and job.momentum. Rank 0 reports, the others are silent; every rank evaluates the whole test set.
    Methods: "one", "gather_scatter", "all_reduce", and from 4.4 on "ddp". About 14 lines.
    """
    ### BEGIN SOLUTION
    torch.manual_seed(job.seed)
    model = job.model()
    if job.method == "ddp":
        model = DistributedDataParallel(model)
    sync = {"gather_scatter": gather_scatter, "all_reduce": all_reduce_mean}.get(job.method, lambda model: None)
    train_set, test_set = job.data()
    optimizer = torch.optim.SGD(model.parameters(), job.lr, job.momentum)
    mine = islice(batches(train_set, rank, world_size, job.total_batch, seed=job.seed), job.n_iterations)
    losses, iteration_s = train(model, mine, sync, optimizer, print if rank == 0 else lambda text: None)
    test_loss, accuracy = evaluate(model, DataLoader(test_set, 200))
    return {"losses": losses, "iteration_s": iteration_s, "test_loss": test_loss, "accuracy": accuracy}
    ### END SOLUTION


# %% [markdown]
# VGG-11 for real, on the processes of this machine: one worker, then four with each method, the same total batch.

# %%
runs = {"one": launch(worker, 1, args=(replace(job, method="one"),), timeout_s=36_000)}
for method in ("gather_scatter", "all_reduce"):
    runs[method] = launch(worker, 4, args=(replace(job, method=method),), timeout_s=36_000)
lesson_04.plot_losses({method: lesson_04.mean_losses(run) for method, run in runs.items()})
# %% check="worker" points=4
checks.lesson_04.worker(worker)
### BEGIN HIDDEN TESTS
checks.lesson_04.worker(
    worker,
    cases=[
        {"method": "all_reduce", "world_size": 3, "total_batch": 24, "n_iterations": 3, "seed": 11},
        {"method": "gather_scatter", "world_size": 4, "total_batch": 24, "n_iterations": 4, "seed": 2},
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** Three lines that start together and drift apart a little, although the check has just shown that
# the trainings are the same. Your functions are right; VGG-11 contains something that the small model of the check
# does not. Look at the test losses of the four ranks, with and without batch norm:

# %%
from functools import partial

small = replace(job, method="all_reduce", data=lambda: data.drawn(64, 50, say=False), total_batch=16, n_iterations=3)
for batch_norm in (True, False):
    run = simulate(worker, 4, args=(replace(small, model=partial(models.VGG11, batch_norm=batch_norm)),), echo=False)
    print(f"batch_norm={batch_norm}: test losses", [f"{result['test_loss']:.5f}" for result in run])

# %% [markdown] manual="batch_norm" points=3
# **Explain** (10 minutes, 3 points). Gradients and parameters are the same on all ranks after every step, yet with
# batch norm the ranks' test losses differ. Which tensors differ, why does no gradient ever correct them, and why does
# the training loss differ from one worker's as well? Name two ways to repair it.
#
# ### BEGIN SOLUTION
# **Model answer.** The running means and variances of the batch-norm layers differ. They are buffers, not parameters:
# they are set from the rank's own batch, have no gradient, and so nothing synchronises them. In training a rank also
# normalises with the mean and variance of its B / N examples and not of all B, so even the first training loss is
# another function than one worker's. Repairs: broadcast rank 0's buffers before each forward pass, as
# DistributedDataParallel does; average the buffers before testing; synchronised batch norm, which all-reduces the
# batch's sums in the forward pass; a normalisation that does not look at the batch.
#
# **Rubric**
#
# - 1 point: names running mean and variance (buffers)
# - 1 point: they follow the local batch and have no gradient
# - 1 point: two repairs
# ### END SOLUTION

# %% [markdown]
# ## 4.4 DistributedDataParallel
#
# PyTorch's own: wrap the model and train the wrapper. Gradients are put into buckets, and a bucket's all-reduce
# starts as soon as its last gradient is there, while `backward` goes on with earlier layers. It broadcasts the
# weights at the start and the buffers before each forward pass.
#
# **Predict.** VGG-11 has 9.23 million parameters in how many tensors? How many buckets of 25 MiB is that?

# %% [markdown]
# **Task 4.4** (5 minutes, 4 points). Add the method `"ddp"` to `worker` in 4.3 (3 points), and fill in `calls`: the
# all-reduces that one rank starts in one iteration of VGG-11, the first one aside, with your `all_reduce_mean` and with
# DDP (1 point). Target: both numbers as the ledger has them.
#
# <details><summary>Hint 1: count in the picture</summary>
#
# The orange bars below are all three iterations of DDP. In the first one it does not know yet in which order gradients
# arrive; look at a later one. Your `all_reduce_mean` makes one call a tensor of `model.parameters()`.
#
# </details>
# <details><summary>Hint 2: "0 all-reduces", "every rank trains alone", "both DistributedDataParallel and"</summary>
#
# `DistributedDataParallel(model)` is a new module, the wrapper: the optimizer takes either's parameters, but only the
# wrapper's own forward makes the gradients travel. Then `sync` has nothing left to do.
#
# </details>

# %% exercise="calls"
calls = {"all_reduce": None, "ddp": None}
### BEGIN SOLUTION
calls = {"all_reduce": 34, "ddp": 3}
### END SOLUTION

# %%
# VGG-11 on paper: its parameters, its time, no arithmetic. One worker takes 2.52 s for 256 examples.
from hw_utils.material.timed_model import BlankImages, OnPaper

ONE_NODE_S = 2.52


def vgg11_on_paper():
    return OnPaper(models.VGG11(), torch.zeros(1, 3, 32, 32), ONE_NODE_S / 256)


def blank_images():
    return BlankImages(256 * 4), BlankImages(1)


# %%
paper = Job("ddp", vgg11_on_paper, blank_images, total_batch=256, n_iterations=3)
run = simulate(worker, 4, args=(paper,), network=Network(), compute="free", echo=False)
plots.plot_timeline(run.trace)
# %% check="ddp" points=3
checks.lesson_04.ddp(worker)
### BEGIN HIDDEN TESTS
checks.lesson_04.ddp(
    worker, cases=[{"method": "ddp", "world_size": 4, "total_batch": 24, "n_iterations": 3, "seed": 4}]
)
### END HIDDEN TESTS

# %% check="calls" points=1
checks.lesson_04.calls(calls)

# %% [markdown]
# **What it shows.** In later iterations the first orange bar starts while the rank still computes (blue): the last
# layers' bucket travels during the backward pass of the first ones. Grey is what overlap could not hide. The second
# bucket holds most of the bytes and becomes full late, so most of its way is grey.

# %% [markdown]
# ## 4.5 Compare
#
# Four VMs with a 1 Gb/s network, VGG-11, total batch 256, as a course report measured them: one node 2.52 s an
# iteration, gather/scatter 1.36 s, all-reduce 1.02 s, DDP 0.87 s; node 0's counter says 55.6 MB sent an iteration.
#
# **Predict** all four from 2.52 s, 36.9 MB and 125 MB/s, before the formula. Which one do you trust least?

# %% [markdown]
# **Task 4.5a** (15 minutes, 2 points). `bytes_sent`: what a rank puts on the wire in one iteration. Target: the
# ledger's number, to the byte.
#
# <details><summary>Hint 1: three kinds of ranks</summary>
#
# With gather/scatter the root sends N - 1 means, the others one gradient each. With a ring all ranks are alike. What is
# received is not counted, and the unit is bytes.
#
# </details>


# %% exercise="bytes_sent"
def bytes_sent(method: str, rank: int, world_size: int, n_bytes: int) -> float:
    """Bytes that a rank sends in one iteration: "one", "gather_scatter" or "all_reduce". About 5 lines.

    n_bytes: of all gradients of the model together.
    """
    ### BEGIN SOLUTION
    if method == "gather_scatter":
        return (world_size - 1) * n_bytes if rank == 0 else n_bytes
    if method == "all_reduce":
        return 2 * (world_size - 1) / world_size * n_bytes
    return 0
    ### END SOLUTION


# %% check="bytes_sent" points=2
checks.lesson_04.bytes_sent(bytes_sent, gather_scatter, all_reduce_mean)
### BEGIN HIDDEN TESTS
checks.lesson_04.bytes_sent(
    bytes_sent,
    gather_scatter,
    all_reduce_mean,
    cases=[{"method": "gather_scatter", "world_size": 7}, {"method": "all_reduce", "world_size": 5}],
)
### END HIDDEN TESTS


# %% [markdown]
# **Task 4.5b** (20 minutes, 3 points). `predicted_s`: seconds of one iteration. The compute of one node is shared by N
# ranks; every tensor is synchronised on its own. Target: your own functions' virtual time, to six digits.
#
# <details><summary>Hint 1: one port</summary>
#
# The root receives N - 1 messages through one port, one after the other, then sends N - 1.
#
# </details>
# <details><summary>Hint 2: latencies</summary>
#
# The bytes of all tensors add up to n_bytes. The latency is paid per message, and each tensor has its own messages.
#
# </details>


# %% exercise="predicted_s"
def predicted_s(method, world_size, one_node_s, n_bytes, n_tensors, network) -> float:
    """Seconds of one iteration with "one", "gather_scatter" or "all_reduce", nothing overlapped. About 8 lines.

    n_bytes: of all gradients together, in n_tensors tensors. network.latency_s, network.bandwidth_Bps: of each port.
    """
    ### BEGIN SOLUTION
    compute_s = one_node_s / world_size
    if method == "one":
        return compute_s
    n_messages = 2 * (world_size - 1)  # one after the other, for each tensor
    share = 1 if method == "gather_scatter" else 1 / world_size
    return compute_s + n_messages * (n_tensors * network.latency_s + share * n_bytes / network.bandwidth_Bps)
    ### END SOLUTION


# %% check="predicted_s" points=3
checks.lesson_04.predicted_s(predicted_s, gather_scatter, all_reduce_mean)
### BEGIN HIDDEN TESTS
checks.lesson_04.predicted_s(
    predicted_s,
    gather_scatter,
    all_reduce_mean,
    cases=[
        {"method": "gather_scatter", "world_size": 8, "n_tensors": 2},
        {"method": "all_reduce", "world_size": 6, "n_tensors": 7},
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# Your own `worker`, unchanged, on four nodes that nobody has: VGG-11 on paper, 1 Gb/s. Nothing below was fitted to
# the report but the one-node time.

# %%
published_s = {"one": 2.52, "gather_scatter": 1.36, "all_reduce": 1.02, "ddp": 0.87}
virtual = {}
for method in published_s:
    n_ranks = 1 if method == "one" else 4
    virtual[method] = simulate(
        worker, n_ranks, args=(replace(paper, method=method, n_iterations=4),), compute="free", echo=False
    )
virtual_s = {method: run[0]["iteration_s"] for method, run in virtual.items()}
lesson_04.plot_methods({"report": published_s, "virtual cluster": virtual_s})

# %%
for method, seconds in virtual_s.items():
    gradients = virtual[method].trace.of_op("gather", "scatter", "all_reduce")
    sent_MB = gradients.bytes_sent(0) / 4 / 1e6
    off = seconds / published_s[method] - 1
    print(
        f"{method:15} {seconds:.2f} s, report {published_s[method]:.2f} s ({off:+.0%}), rank 0 sends {sent_MB:.1f} MB"
    )

# %% [markdown]
# Three of four within a few percent, and gather/scatter far off. Is the model wrong, or the report? A port is full
# duplex. At best the root receives the next gradients *while* it sends the last means, so with $T_1$ for one node and
# bandwidth $\beta$ no iteration is shorter than
#
# $$\frac{T_1}{N} + \frac{(N-1)\,n}{\beta}.$$

# %%
n_bytes = 4 * 9_231_114
floor_s = ONE_NODE_S / 4 + 3 * n_bytes / 125e6  # three gradients in, three means out, both at once
print(f"gather/scatter on 1 Gb/s: {virtual_s['gather_scatter']:.2f} s one after the other, at best {floor_s:.2f} s")

# %% [markdown] manual="compare" points=1
# **Judge** (5 minutes, 1 point). The report says 1.36 s for gather/scatter. Can a four-node cluster with 1 Gb/s ports
# have done that? What would you check first?
#
# ### BEGIN SOLUTION
# **Model answer.** No: three gradients of 36.9 MB must enter rank 0's port, 0.89 s at 125 MB/s, and the quarter of
# the compute is 0.63 s; 1.52 s is the least, even if gather and scatter overlap perfectly. So the port was faster
# than 1 Gb/s for that run (two of the VMs on one physical machine, for instance), the compute was less than a quarter,
# or it moved fewer bytes. Check the counters of that run: rank 0 must have sent 110.8 MB an iteration; the report's
# 55.6 MB is the ring's figure.
#
# **Rubric**
#
# - 1 point: a lower bound from bytes and bandwidth that 1.36 s breaks, and a measurement that would decide
# ### END SOLUTION

# %% [markdown]
# Now this machine, four real processes on its cores. There is no 1 Gb/s cable here, but memory, and four ranks that
# share the cores.

# %%
runs["ddp"] = launch(worker, 4, args=(replace(job, method="ddp"),), timeout_s=36_000)
measured_s = {method: run[0]["iteration_s"] for method, run in runs.items()}
lesson_04.plot_methods({"this machine": measured_s, "virtual cluster": virtual_s})
# %%
for method, run in runs.items():
    result = run[0]
    sent_MB = run.trace.of_op("gather", "scatter", "all_reduce").bytes_sent(0) / len(result["losses"]) / 1e6
    print(f"{method:15} {result['iteration_s']:.3f} s an iteration, rank 0 sends {sent_MB:.1f} MB,", end=" ")
    print(f"test loss {result['test_loss']:.3f}, accuracy {result['accuracy']:.2f}")

# %% [markdown]
# Bytes over time, from the ledger: what a network monitor on each host would have shown.

# %%
from hw_utils.core.bytes_over_time import profile_of

lesson_04.plot_profile(profile_of(virtual["gather_scatter"].trace))

# %% [markdown]
# ## 4.6 Real hosts
#
# When two cores are too few, the same function runs on real machines. On each of them, with this package installed:
#
# ```
# python -m hw_utils export data_parallel.ipynb worker --args job -o train.py
# torchrun --nnodes 4 --nproc_per_node 1 --rdzv_endpoint HOST0:29400 --rdzv_backend c10d train.py
# ```
#
# `train.py` holds your functions and nothing else of the notebook. It finds the network interface that leads to
# HOST0 (or takes `--interface NAME`), checks that all hosts run the same code, reads the interface's counters before
# and after, and stops with a sentence when a host dies.

# %% [markdown]
# Each host writes `runs/NAME/rank_R.json`: results, settings and the counters over time. Back here, or anywhere:
#
# ```
# python -m hw_utils report runs --notebook data_parallel.ipynb -o report.html
# ```
#
# makes one HTML file of tables, charts, losses and your written answers. The cell below does so for the runs of this
# notebook.

# %%
from hw_utils.hosts import training_report

for method, run in runs.items():
    training_report.save("runs", method, run, replace(job, method=method).settings())
training_report.write("runs", "report.html")

# %% [markdown] manual="hosts" points=2
# **Discuss** (10 minutes, 2 points). On four hosts with real 1 Gb/s links the interface counters agree with the
# ledger to about 3 %, but gather/scatter takes half as long again as predicted. What is in the counters that is not
# in the ledger, and what does the model leave out? If you have run it on hosts, give your own numbers.
#
# ### BEGIN SOLUTION
# **Model answer.** The counters include headers (Ethernet, IP and TCP, about 66 of every 1,514 bytes, fewer with
# segmentation offload), acknowledgements, gloo's own small messages and the rendezvous. The model leaves out: three
# TCP streams that meet in one port and lose packets (incast, retransmission), the slow start of each burst after a
# pause, copies between tensor and socket, the mean that rank 0 alone computes, and the cores that compute and
# communicate in turn.
#
# **Rubric**
#
# - 1 point: headers or acknowledgements in the counters
# - 1 point: a cost that the model leaves out, such as congestion at the root or copies
# ### END SOLUTION

# %% [markdown]
# ## What you have done
#
# - You trained one model on four ranks and proved from the losses that it is the same training.
# - You synchronised gradients three ways, and predicted bytes and seconds of each before measuring them.
# - You found what breaks the equality (batch norm), and checked a published table against physics.
#
# **An open question.** DDP's second bucket is full late and large. If you could choose the buckets, where would you
# cut? Lesson 5 lets you.

# %% [markdown]
# ## Further reading
#
# 1. S. Li et al., **[PyTorch Distributed: Experiences on Accelerating Data Parallel
#    Training](https://arxiv.org/abs/2006.15704)**, VLDB 2020: DDP's buckets and overlap, by those who built it.
# 2. P. Patarasuk, X. Yuan, **[Bandwidth optimal all-reduce algorithms for clusters of
#    workstations](https://doi.org/10.1016/j.jpdc.2008.09.002)**, 2009: the ring and its 2 (N - 1) / N.
# 3. A. Sergeev, M. Del Balso, **[Horovod: fast and easy distributed deep learning in
#    TensorFlow](https://arxiv.org/abs/1802.05799)**, 2018: the same ring, put under a training loop.
# 4. P. Goyal et al., **[Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour](https://arxiv.org/abs/1706.02677)**,
#    2017: what changes when N ranks make the batch N times larger, batch norm included.
# 5. PyTorch, **[DistributedDataParallel](https://docs.pytorch.org/docs/2.13/generated/torch.nn.parallel.DistributedDataParallel.html)**
#    and its **[design note](https://docs.pytorch.org/docs/2.13/notes/ddp.html)**.
