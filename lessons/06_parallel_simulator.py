# %% [markdown]
# # 6. A parallel machine from threads
#
# After this lesson you can
#
# 1. build all-gather and all-reduce from a barrier and a lock, and say which step of them a race would break;
# 2. train data-parallel, and say why the mean of the ranks' means is not the mean;
# 3. cut a linear layer by columns or by rows, with its forward and backward written by hand.
#
# About 210 minutes: 180 for the tasks, 30 for reading; 70 points. You need Python classes, the gradient of a matrix
# product, and what an all-reduce is.

# %% [markdown]
# ## Words
#
# | word | meaning |
# |---|---|
# | thread | a line of execution inside one process; all threads see the same variables |
# | lock | only one thread at a time is past its `acquire`; `with lock:` gives it back at the end |
# | barrier | nobody passes it until everybody has arrived |
# | race | a result that depends on which thread happened to be faster |
# | interleaving | one order of the threads' steps, out of very many |
# | data parallel | every rank has the whole model and a shard of the batch |
# | tensor parallel | every rank has the whole batch and a shard of each weight |
# | upstream gradient | the gradient of the loss by a layer's output, which its backward starts from |

# %% setup

# %%
import copy
import threading

from torch.nn.functional import gelu, mse_loss

from hw_utils import data, models
from hw_utils.pictures import lesson_06
from hw_utils.core.errors import WorkerFailed
from hw_utils.material.handwritten_layer import Handmade
from hw_utils.threads import run_threads, watch

# %% [markdown]
# ## 6.1 The communication layer
#
# `run_threads(worker, world_size, args)` runs `worker(rank, world_size, *args)` on threads: N devices on one CPU. They
# share memory, so "sending" is writing where another thread reads. The whole art is *when*: nobody may read before all
# have written, nor write again before all have read.
#
# **Predict.** Below, rank 2 fails before the barrier. What happens to the other three?


# %%
def meets_or_fails(rank: int, world_size: int, barrier: threading.Barrier) -> str:
    if rank == 2:
        raise RuntimeError("this device is broken")
    barrier.wait()
    return "met"


try:
    run_threads(meets_or_fails, 4, args=(threading.Barrier(4),))
except WorkerFailed as error:
    print(error)

# %% [markdown]
# Left alone, ranks 0, 1 and 3 would stand in that barrier until you restart the kernel. The runner breaks the barrier,
# names the rank that failed with its line, and ends the others.
#
# And if nobody fails, but one rank simply does not come?


# %%
def one_stays_away(rank: int, world_size: int, barrier: threading.Barrier) -> None:
    if rank != 2:
        barrier.wait()


try:
    run_threads(one_stays_away, 4, args=(threading.Barrier(4),))
except WorkerFailed as error:
    print(error)

# %% [markdown]
# The table says who waits, for whom, and at which line. You will meet it again.
#
# **Task** (40 minutes, 15 points). Write `DistributedContext`, from what `threading` (or `queue`) has. Its two methods
# are called by all ranks, each from its own thread. Results have the same bits on every rank and are *copies*: nobody
# sees what another rank, or a later call, does with its result. The same `group_id` can be used again at once, also
# with another shape; two contexts have nothing in common. An unknown op is refused on every rank, before any rank
# waits. Target: right in 1,001 interleavings, 0 hangs.

# %% [markdown]
# <details><summary>Hint 1: the shape of it</summary>
#
# One dictionary from `group_id` to a list with a slot a rank. Write into your own slot, wait, read all slots, ... and
# think about the fast rank that already makes its next call.
#
# </details>
# <details><summary>Hint 2: "removed the buffer", "under one lock"</summary>
#
# Two ranks looked whether the list exists, both found nothing, and both made one: nothing may come between looking and
# making. If the story shows a `pop` or `del`, someone tidied up while another still read.
#
# </details>
# <details><summary>Hint 3: "no rank can go on"</summary>
#
# A barrier inside `with lock:` is reached by one rank only: the others wait for the lock. Keep the lock for the few
# lines that touch the dictionary.
#
# </details>


# %% exercise="context"
class DistributedContext:
    """The communication layer of `world_size` threads. About 20 lines.

    all_gather gives a list of copies of every rank's tensor, in rank order; all_reduce, of floating-point tensors, one
    tensor, the "sum" or the "mean" over all ranks, with the same bits on each. Every rank calls both with its own
    `tensor` and `rank`, and the same `group_id`; in one call all tensors have one shape and dtype, and so have the
    results.

    Raises:
        ValueError: op is neither "sum" nor "mean"; raised at once, on every rank.
    """

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        ### BEGIN SOLUTION
        self.barrier = threading.Barrier(world_size)
        self.lock = threading.Lock()
        self.slots: dict[str, list] = {}
        ### END SOLUTION

    def all_gather(self, tensor: torch.Tensor, rank: int, group_id: str) -> list[torch.Tensor]:
        ### BEGIN SOLUTION
        with self.lock:
            slots = self.slots.setdefault(group_id, [None] * self.world_size)
        slots[rank] = tensor.detach().clone()
        self.barrier.wait()  # all have written
        gathered = [slot.clone() for slot in slots]
        self.barrier.wait()  # all have read: the slots may be written again
        return gathered
        ### END SOLUTION

    def all_reduce(self, tensor: torch.Tensor, rank: int, group_id: str, op: str = "sum") -> torch.Tensor:
        ### BEGIN SOLUTION
        if op not in ("sum", "mean"):
            raise ValueError(f"op must be sum or mean, got {op!r}")
        total = torch.stack(self.all_gather(tensor, rank, group_id)).sum(0)
        return total / self.world_size if op == "mean" else total
        ### END SOLUTION


# %%
# Your own run: six ranks, each brings its number. Whose tensor lies where?
def bring_my_number(rank: int, world_size: int, context) -> list[float]:
    return [tensor.item() for tensor in context.all_gather(torch.tensor(float(rank)), rank, "numbers")]


run = run_threads(bring_my_number, 6, args=(DistributedContext(6),))
lesson_06.plot_slots(run.results)

# %% [markdown]
# One run that is right proves little: threads usually come in the same lucky order. The check runs your class under
# orders that it chooses: one switch at every access to an attribute, list or dictionary, then hundreds of random ones.
# When one of them breaks something, it tells you the story of that order, step by step, and the same one every time.

# %% check="gather" points=8
checks.lesson_06.all_gather(DistributedContext)
### BEGIN HIDDEN TESTS
checks.lesson_06.all_gather(
    DistributedContext, cases=[{"world_size": 4, "calls": 3, "n_interleavings": 200, "seed": 9}]
)
### END HIDDEN TESTS

# %% check="reduce" points=7
checks.lesson_06.all_reduce(DistributedContext)
### BEGIN HIDDEN TESTS
checks.lesson_06.all_reduce(
    DistributedContext,
    cases=[{"world_size": 4, "calls": 3, "n_interleavings": 200, "seed": 9, "ops": ["mean", "sum", "mean"]}],
)
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** Every row reads 0 to 5: a rank's place in the list is its number, not its moment of arrival. Two
# waits make the layer safe, one after writing and one after reading; take either away and some order breaks it. Real
# libraries have the same two, well hidden: a collective is a promise about *order*, and the bytes are the easy part.

# %% [markdown]
# ## 6.2 Data parallelism
#
# Every rank has the whole model and a shard of the batch. One step: gradients of the own shard, one all-reduce, the
# same update everywhere. The model is a `SimpleMLP` without biases on 200 points of two moons; its loss is the mean
# squared error.
#
# ### 6.2a A shard of the batch
#
# **Predict.** 10 examples over 4 ranks: which sizes have the shards? And over 16 ranks?
#
# **Task** (10 minutes, 5 points). Write `split_batch`. Sizes differ by at most one, no example is lost or doubled, and
# the parts in rank order are `x` again. Target: 0 examples lost, for any N.

# %% [markdown]
# <details><summary>Hint 1: "the remainder is"</summary>
#
# `divmod(n, world_size)` gives the small size and how many ranks have one more. A rank starts where the one before it
# ends: how many of the ranks before it have one more?
#
# </details>


# %% exercise="split"
def split_batch(x: torch.Tensor, rank: int, world_size: int) -> torch.Tensor:
    """This rank's part of x (n, ...), cut along the first dimension. About 3 lines."""
    ### BEGIN SOLUTION
    size, remainder = divmod(len(x), world_size)
    start = rank * size + min(rank, remainder)
    return x[start : start + size + (rank < remainder)]
    ### END SOLUTION


# %%
# Your own run: the sizes of the parts.
for n_ranks in (4, 16):
    print(n_ranks, "ranks:", [len(split_batch(torch.arange(10), rank, n_ranks)) for rank in range(n_ranks)])

# %% check="split" points=5
checks.lesson_06.split_batch(split_batch)
### BEGIN HIDDEN TESTS
checks.lesson_06.split_batch(
    split_batch,
    cases=[
        {"n_examples": 23, "world_size": 6},
        {"n_examples": 1, "world_size": 3},
        {"n_examples": 4, "world_size": 3, "n_dims": 1},
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ### 6.2b One step
#
# **Predict.** A model of 3 layers, 4 ranks, one step: how many calls does a rank make if every parameter's gradient
# travels alone, and how many if all travel together?
#
# **Task** (25 minutes, 8 points). Write `dp_step`. Gradients travel, not weights: all of them in *one* flat vector, in
# *one* `all_reduce`. Each rank then makes the same update, with its optimizer; what stood in `p.grad` before the call
# has no part in it. Return the loss of the own shard, before the step. Target: losses and weights equal to one
# process's to 1e-6 for N = 1 to 10, 1 `all_reduce` a step.

# %% [markdown]
# <details><summary>Hint 1: sum or mean</summary>
#
# The loss of a shard is a mean already. With equal shards, what must be done with N such means to get the mean over
# the whole batch? `all_reduce` can do it.
#
# </details>
# <details><summary>Hint 2: flat and back</summary>
#
# `torch.cat` makes one vector of flattened gradients, `split` cuts one at given sizes, `view_as(p)` gives a piece its
# shape. The optimizer reads `p.grad`, and nothing else.
#
# </details>


# %% exercise="dp_step"
def dp_step(model, optimizer, x: torch.Tensor, y: torch.Tensor, context, rank: int) -> float:
    """The loss (MSE) of this rank's shard x (n, 2), y (n, 1), before one data-parallel step. About 10 lines.

    context has `world_size`, all_gather and all_reduce, as in 6.1.
    """
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    loss = mse_loss(model(x), y)
    loss.backward()
    parameters = list(model.parameters())
    flat = torch.cat([p.grad.flatten() for p in parameters])
    flat = context.all_reduce(flat, rank, "gradients", "mean")
    for p, piece in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad = piece.view_as(p)
    optimizer.step()
    return loss.item()
    ### END SOLUTION


# %%
# Given: the plain loop, and the same with your step on threads. Losses are weighed by the shards' sizes.
x, y = (t.double() for t in data.two_moons().tensors)
torch.manual_seed(0)
base = models.SimpleMLP(2, 16, 1).double()


def train(model, x: torch.Tensor, y: torch.Tensor, n_steps: int = 60) -> list[float]:
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05), []
    for _ in range(n_steps):
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# %%
def shard_losses(rank: int, world_size: int, step, context, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    model = copy.deepcopy(base)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    my_x, my_y = (split_batch(t, rank, world_size) for t in (x, y))
    losses = [step(model, optimizer, my_x, my_y, context, rank) for _ in range(60)]
    return torch.tensor(losses, dtype=torch.float64) * len(my_x) / len(x)


def train_dp(step, world_size: int, x: torch.Tensor, y: torch.Tensor) -> list[float]:
    run = run_threads(shard_losses, world_size, args=(step, DistributedContext(world_size), x, y))
    return sum(run.results).tolist()


# %%
# Your own run: 1, 2, 5 and 10 ranks over the plain curve.
plain = train(copy.deepcopy(base), x, y)
curves = {"plain": plain} | {f"N = {n}": train_dp(dp_step, n, x, y) for n in (1, 2, 5, 10)}
lesson_06.plot_curves(curves, title="data parallel, 200 examples")

# %% check="dp_step" points=8
checks.lesson_06.dp_step(dp_step)
### BEGIN HIDDEN TESTS
checks.lesson_06.dp_step(dp_step, cases=[{"n_examples": 15, "world_size": 5, "n_steps": 7, "seed": 21}])
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** Five curves, one line: with even shards the mean of the means *is* the mean of the batch.
#
# ### 6.2c Shards of any size
#
# **Predict.** Now 10 examples over 4 ranks, so shards of 3, 3, 2, 2. How much does an example in a small shard count,
# compared with one in a large shard?

# %%
# The gap: your step on 10 examples, with 2 ranks (even shards) and 4 ranks (uneven).
few_x, few_y = x[:10], y[:10]
plain_few = train(copy.deepcopy(base), few_x, few_y)


def gap(step, world_size: int) -> list[float]:
    return [mine - right for mine, right in zip(train_dp(step, world_size, few_x, few_y), plain_few)]


lesson_06.plot_gaps({f"{n} ranks, plain mean": gap(dp_step, n) for n in (2, 4)})

# %% [markdown]
# With 4 ranks the loss is off from the second step on: an example in a shard of 2 counts half as much again as one in
# a shard of 3. That is a different training run, and nothing crashed.
#
# **Task** (20 minutes, 7 points). Write `weighted_dp_step`: the same, right for any shard sizes, empty ones included
# (loss 0.0). Target: losses and weights equal to 1e-6, still 1 `all_reduce` a step.

# %% [markdown]
# <details><summary>Hint 1: "nan", and an empty shard</summary>
#
# The mean over an empty shard is 0/0. A rank without examples brings a gradient of zeros, but it must still make the
# call and the step: the others wait.
#
# </details>
# <details><summary>Hint 2: what is to be known</summary>
#
# The mean of the batch is a sum over all examples, divided by their number. Which two things must each rank bring, so
# that both can be had from sums? One vector has room for both.
#
# </details>


# %% exercise="weighted_dp_step"
def weighted_dp_step(model, optimizer, x: torch.Tensor, y: torch.Tensor, context, rank: int) -> float:
    """As dp_step, for shards of any size: every *example* counts the same. 0.0 for an empty shard. About 14 lines."""
    ### BEGIN SOLUTION
    parameters = list(model.parameters())
    gradients, loss = [torch.zeros_like(p) for p in parameters], 0.0
    if len(x):
        mean = mse_loss(model(x), y)
        gradients, loss = torch.autograd.grad(mean, parameters), mean.item()
    mine = torch.cat([len(x) * g.flatten() for g in gradients])
    flat = torch.cat([mine, mine.new_tensor([len(x)])])
    flat = context.all_reduce(flat, rank, "gradients", "sum")
    flat = flat[:-1] / flat[-1]
    for p, piece in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad = piece.view_as(p)
    optimizer.step()
    return loss
    ### END SOLUTION


# %%
# Your own run: the plain mean against yours, on uneven and on empty shards.
gaps = {"4 ranks, plain mean": gap(dp_step, 4)}
gaps |= {f"{n} ranks, weighted": gap(weighted_dp_step, n) for n in (4, 16)}
lesson_06.plot_gaps(gaps)

# %% check="weighted_dp_step" points=7
checks.lesson_06.weighted_dp_step(weighted_dp_step)
### BEGIN HIDDEN TESTS
checks.lesson_06.weighted_dp_step(
    weighted_dp_step, cases=[{"n_examples": 9, "world_size": 5, "n_steps": 6, "seed": 31}]
)
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** Weighed by its size, a shard's share of the gradient is exact, and an empty shard is no special
# case for the others. `DistributedDataParallel` takes the plain mean: it assumes even shards, and `DistributedSampler`
# makes them even by repeating examples.

# %% [markdown]
# ## 6.3 Tensor parallelism
#
# Now the weight is cut, and every rank sees the whole batch. Take `y = x @ W`, with W of shape (d_in, d_out). Columns
# of W give columns of y that stand side by side; rows of W meet the same columns of x, and give shares of a sum:
#
# $$x\,\big[\,W_0 \;\big|\; W_1 \;\big|\; \dots\,\big] = \big[\,x W_0 \;\big|\; x W_1 \;\big|\; \dots\,\big], \qquad
# \big[\,x_0 \;\big|\; x_1 \;\big|\; \dots\,\big]\, W = \sum_r x_r\, W_r.$$
#
# | layer | a rank keeps | forward | backward |
# |---|---|---|---|
# | column | (d_in, d_out / N) | own columns of y, all-gather | all-reduce of the input gradient |
# | row | (d_in / N, d_out) | a share of all of y, all-reduce | all-gather of the input gradient |
#
# **Predict.** Cover the two right columns, and say for each layer which collective it needs in which direction.

# %% [markdown]
# ### 6.3a By columns
#
# **Task** (35 minutes, 15 points). Write `ColumnParallelLinear`, without autograd: nothing has `requires_grad`.
# `backward` gets the upstream gradient (batch, d_out), the same on every rank, leaves the local weight gradient in
# `self.weight_grad` (the last backward's, not a sum), and returns the input gradient (batch, d_in), the same on every
# rank. No later pass changes what a pass has returned. Target: 1e-10 in float64 (1e-5 in float32), in each direction
# the table's collective, once, 1/N of the weight kept and nothing of the other ranks' parts.

# %% [markdown]
# <details><summary>Hint 1: which part is mine</summary>
#
# `slice(a, b)` can be kept and used twice: `weight[:, mine]` now, `grad_output[:, mine]` later. A slice is a view of
# the whole tensor; `.clone()` makes it the rank's own, and lets the whole go.
#
# </details>
# <details><summary>Hint 2: "mat1 and mat2 shapes cannot be multiplied"</summary>
#
# For y = x @ W the gradients are x.T @ g and g @ W.T. In the column layer W has d_out / N columns on this rank, and g
# has d_out: only the rank's own columns of g meet its W. Which shares are then missing from g @ W.T?
#
# </details>
# <details><summary>Hint 3: "on the object and not on the class"</summary>
#
# backward needs what forward got. Keep it on `self`: the class is shared by all threads, and by all layers.
#
# </details>


# %% exercise="column"
class ColumnParallelLinear:
    """y = x @ W with the columns of W spread over the ranks. About 15 lines.

    weight: given global (d_in, d_out); self.weight is this rank's own copy of (d_in, d_out / N),
    with which both passes compute: a step may have changed it in place.

    Raises:
        ValueError: d_out is not divisible by context.world_size.
    """

    def __init__(self, weight: torch.Tensor, rank: int, context, group_id: str) -> None:
        ### BEGIN SOLUTION
        n, d_out = context.world_size, weight.shape[1]
        if d_out % n:
            raise ValueError(f"d_out must be divisible by the world size, got {d_out} over {n} ranks")
        self.rank, self.context, self.group_id = rank, context, group_id
        self.mine = slice(rank * d_out // n, (rank + 1) * d_out // n)
        self.weight = weight[:, self.mine].detach().clone()
        ### END SOLUTION

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (batch, d_in) -> (batch, d_out), the same on every rank."""
        ### BEGIN SOLUTION
        self.x = x
        return torch.cat(self.context.all_gather(x @ self.weight, self.rank, self.group_id), dim=1)
        ### END SOLUTION

    def backward(self, grad_output: torch.Tensor) -> torch.Tensor:
        """(batch, d_out) -> (batch, d_in), the same on every rank; self.weight_grad is (d_in, d_out / N)."""
        ### BEGIN SOLUTION
        my_grad = grad_output[:, self.mine]
        self.weight_grad = self.x.T @ my_grad
        return self.context.all_reduce(my_grad @ self.weight.T, self.rank, self.group_id, "sum")
        ### END SOLUTION


# %%
# Your own run: the whole weight, and what each of four ranks keeps of it.
weight = torch.linspace(-1, 1, 4 * 8).reshape(4, 8)
context = DistributedContext(4)
layers = [ColumnParallelLinear(weight, rank, context, "column") for rank in range(4)]
lesson_06.plot_pieces(weight, [layer.weight for layer in layers], title="a column layer's weight, (4, 8)")

# %% check="column_forward" points=7
checks.lesson_06.column_forward(ColumnParallelLinear)
### BEGIN HIDDEN TESTS
checks.lesson_06.column_forward(
    ColumnParallelLinear,
    cases=[
        {"world_size": 3, "d_in": 5, "d_out": 12, "batch": 2, "dtype": "float64", "seed": 41, "backward": False},
        {
            "world_size": 5,
            "d_in": 5,
            "d_out": 12,
            "batch": 2,
            "dtype": "float64",
            "seed": 41,
            "backward": False,
            "divides": False,
        },
    ],
)
### END HIDDEN TESTS

# %% check="column_backward" points=8
checks.lesson_06.column_backward(ColumnParallelLinear)
### BEGIN HIDDEN TESTS
checks.lesson_06.column_backward(
    ColumnParallelLinear,
    cases=[{"world_size": 12, "d_in": 5, "d_out": 12, "batch": 2, "dtype": "float64", "seed": 42, "backward": True}],
)
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** Each rank's piece has the colours of its own columns, left to right: put side by side they are the
# weight again, and so are their outputs. No rank ever held more than 1/N of it.
#
# ### 6.3b By rows
#
# **Predict.** With W cut by rows, a rank can use only some of x's features. Which shape has what it computes, and what
# must happen to N of these?
#
# **Task** (20 minutes, 10 points). Write `RowParallelLinear`: what 6.3a asks for, cut the other way. It takes the whole
# x and uses its own slice. Target: 1e-10 in float64 (1e-5 in float32), in each direction the table's collective, once,
# 1/N of the weight kept and nothing of the other ranks' parts.

# %% [markdown]
# <details><summary>Hint 1: everything turns round</summary>
#
# In the column layer x was whole and the upstream gradient was cut. Which of the two must be cut so that it meets
# d_in / N rows, and where else is that cut needed?
#
# </details>
# <details><summary>Hint 2: whose gradient is it</summary>
#
# `g @ W.T` with the rank's rows gives (batch, d_in / N): the gradient of the features that this rank used, complete.
#
# </details>


# %% exercise="row"
class RowParallelLinear:
    """y = x @ W with the rows of W spread over the ranks. About 15 lines.

    weight: given global (d_in, d_out); self.weight is this rank's own copy of (d_in / N, d_out),
    with which both passes compute: a step may have changed it in place.

    Raises:
        ValueError: d_in is not divisible by context.world_size.
    """

    def __init__(self, weight: torch.Tensor, rank: int, context, group_id: str) -> None:
        ### BEGIN SOLUTION
        n, d_in = context.world_size, weight.shape[0]
        if d_in % n:
            raise ValueError(f"d_in must be divisible by the world size, got {d_in} over {n} ranks")
        self.rank, self.context, self.group_id = rank, context, group_id
        self.mine = slice(rank * d_in // n, (rank + 1) * d_in // n)
        self.weight = weight[self.mine].detach().clone()
        ### END SOLUTION

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (batch, d_in) -> (batch, d_out), the same on every rank."""
        ### BEGIN SOLUTION
        self.x = x[:, self.mine]
        return self.context.all_reduce(self.x @ self.weight, self.rank, self.group_id, "sum")
        ### END SOLUTION

    def backward(self, grad_output: torch.Tensor) -> torch.Tensor:
        """(batch, d_out) -> (batch, d_in), the same on every rank; self.weight_grad is (d_in / N, d_out)."""
        ### BEGIN SOLUTION
        self.weight_grad = self.x.T @ grad_output
        return torch.cat(self.context.all_gather(grad_output @ self.weight.T, self.rank, self.group_id), dim=1)
        ### END SOLUTION


# %%
# Your own run: the whole output, and what each of four ranks has before the sum (its share) and after it.
def row_output(rank: int, world_size: int, context, x: torch.Tensor) -> tuple:
    layer = RowParallelLinear(weight.T, rank, context, "row")
    output = layer.forward(x)
    return x.chunk(world_size, 1)[rank] @ layer.weight, output


some_x = torch.linspace(0, 1, 24).reshape(3, 8)
run = run_threads(row_output, 4, args=(DistributedContext(4), some_x))
lesson_06.plot_pieces(
    some_x @ weight.T, [share for share, _ in run.results], title="a row layer's output, and shares of it"
)
lesson_06.plot_pieces(some_x @ weight.T, [output for _, output in run.results], title="after the all-reduce")

# %% check="row_forward" points=5
checks.lesson_06.row_forward(RowParallelLinear)
### BEGIN HIDDEN TESTS
checks.lesson_06.row_forward(
    RowParallelLinear,
    cases=[
        {"world_size": 3, "d_in": 12, "d_out": 5, "batch": 2, "dtype": "float64", "seed": 43, "backward": False},
        {
            "world_size": 5,
            "d_in": 12,
            "d_out": 5,
            "batch": 2,
            "dtype": "float64",
            "seed": 43,
            "backward": False,
            "divides": False,
        },
    ],
)
### END HIDDEN TESTS

# %% check="row_backward" points=5
checks.lesson_06.row_backward(RowParallelLinear)
### BEGIN HIDDEN TESTS
checks.lesson_06.row_backward(
    RowParallelLinear,
    cases=[{"world_size": 12, "d_in": 12, "d_out": 5, "batch": 2, "dtype": "float64", "seed": 44, "backward": True}],
)
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** A row layer's ranks each have a pale share of *every* output; only the sum is the output. That is
# why it reduces where the column layer gathers. In the backward the two change roles.
#
# ### 6.3c Column, then row
#
# A transformer's block is a column layer, an activation, a row layer. Gather after the first, slice in the second: the
# slice that a rank cuts out is the one that it had before the gather.
#
# **Task** (10 minutes, 3 points). Write `column_then_row` with local weights. Target: 1 all-reduce, 0 all-gathers.
#
# <details><summary>Hint 1: shapes on one rank</summary>
#
# GELU looks at one number at a time, so a rank's own columns are enough for it. Write down the shapes of `x @ w1` and
# of what w2 makes of it: the second is (batch, d_out) on every rank, and of what is it a share?
#
# </details>


# %% exercise="column_then_row"
def column_then_row(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, rank: int, context) -> torch.Tensor:
    """gelu(x @ W1) @ W2 on every rank; w1 is local (d_in, d_hidden / N), w2 (d_hidden / N, d_out). About 2 lines."""
    ### BEGIN SOLUTION
    share = gelu(x @ w1) @ w2
    return context.all_reduce(share, rank, "block", "sum")
    ### END SOLUTION


# %%
# Your own run: bytes that a rank sends in one forward of 64 examples, with the gather and without it.
def block_forward(rank: int, world_size: int, context, gathers: bool) -> torch.Tensor:
    x, w1, w2 = torch.ones(64, 32), torch.ones(32, 128), torch.ones(128, 32)
    if not gathers:
        mine1, mine2 = w1.chunk(world_size, 1)[rank], w2.chunk(world_size, 0)[rank]
        return column_then_row(x, mine1, mine2, rank, context)
    hidden = gelu(ColumnParallelLinear(w1, rank, context, "w1").forward(x))
    return RowParallelLinear(w2, rank, context, "w2").forward(hidden)


sent = {}
for name, gathers in (("with the gather", True), ("without it", False)):
    run = run_threads(block_forward, 4, args=(watch(DistributedContext(4)), gathers))
    sent[name] = run.trace.bytes_sent(0)
lesson_06.plot_costs({"bytes sent by a rank": sent}, title="one forward of the block, 4 ranks")

# %% check="column_then_row" points=3
checks.lesson_06.column_then_row(column_then_row)
### BEGIN HIDDEN TESTS
checks.lesson_06.column_then_row(
    column_then_row, cases=[{"world_size": 5, "d_in": 2, "d_hidden": 15, "d_out": 3, "seed": 51}]
)
### END HIDDEN TESTS

# %% [markdown] manual="why_no_gather" points=2
# ### 6.3d In words
#
# **Task** (5 minutes, 2 points). How many bytes does the all-gather between the two layers cost a rank, in terms of
# batch B, hidden size H and N? Why may it go when the activation is GELU, and would it also go with a softmax over the
# hidden dimension? Two or three sentences.
#
# ### BEGIN SOLUTION
# Each rank has B x H / N numbers and sends as many N - 1 times around a ring: (N - 1) / N x B x H numbers, times 4
# bytes in float32; the backward has another gather of the same size. GELU acts on each number alone, so a rank can
# apply it to its own columns, and these are exactly the columns that its rows of the second weight meet. A softmax
# over H needs the sum over all columns: one small collective (B numbers) would have to stay.
#
# **Rubric**
#
# - 1 point: the bytes (proportional to B H and (N - 1) / N; a factor 2 for the backward is fine)
# - 1 point: elementwise plus own columns = own rows; softmax needs a sum over all columns
# ### END SOLUTION

# %% [markdown]
# **What it shows.** The gather cost more than the reduction that is left, and it moved numbers to ranks that threw most
# of them away at once. Column then row, with nothing in between, is how large models are cut.

# %% [markdown]
# ## 6.4 Train it
#
# `Handmade(layer)` is given: a module with `layer.weight` as its parameter, which calls your `forward` and `backward`
# where autograd comes by. So a cut model trains in the very loop that the plain one does.
#
# **Predict.** `SimpleMLP(2, 16, 1)` over 4 ranks, lin1 by columns, lin2 by rows: how many weights does a rank keep?
#
# **Task** (15 minutes, 5 points). Write `parallelize`: one model a rank, in which every layer named in `plan` is
# replaced, and no other. It is called once, before any thread starts, so a size that N does not divide fails there,
# with the layer's ValueError. Target: losses equal to the plain model's to 1e-6, 1/N of each cut weight a rank.

# %% [markdown]
# <details><summary>Hint 1: "shapes cannot be multiplied"</summary>
#
# Print `model.lin1.weight.shape`. `nn.Linear` computes x @ weight.T, and stores (d_out, d_in).
#
# </details>
# <details><summary>Hint 2: every rank its own</summary>
#
# `copy.deepcopy(model)` is a second model with weights of its own. `setattr(copied, name, module)` replaces a layer.
#
# </details>


# %% exercise="parallelize"
def parallelize(model, plan: dict[str, type], context) -> list:
    """A model for each rank of context, with the layers in plan ("lin1": ColumnParallelLinear, ...) cut. About 8 lines.

    The model itself stays as it is. Each new layer is Handmade(Layer(weight, rank, context, name)).
    """
    ### BEGIN SOLUTION
    copies = []
    for rank in range(context.world_size):
        mine = copy.deepcopy(model)
        for name, Layer in plan.items():
            weight = getattr(model, name).weight.detach().T  # nn.Linear keeps (d_out, d_in)
            setattr(mine, name, Handmade(Layer(weight, rank, context, name)))
        copies.append(mine)
    return copies
    ### END SOLUTION


# %%
# Your own run: plain, data parallel and tensor parallel, on top of each other.
def train_mine(rank: int, world_size: int, copies: list) -> list[float]:
    return train(copies[rank], x, y)


plan = {"lin1": ColumnParallelLinear, "lin2": RowParallelLinear}
tp_run = run_threads(train_mine, 4, args=(parallelize(base, plan, watch(DistributedContext(4))),))
curves = {"plain": plain, "4 ranks, data parallel": train_dp(dp_step, 4, x, y), "4 ranks, tensor parallel": tp_run[0]}
lesson_06.plot_curves(curves, title="three ways to the same loss")

# %% check="parallelize" points=5
checks.lesson_06.parallelize(parallelize, ColumnParallelLinear, RowParallelLinear)
### BEGIN HIDDEN TESTS
checks.lesson_06.parallelize(
    parallelize,
    ColumnParallelLinear,
    RowParallelLinear,
    cases=[
        {"world_size": 3, "d_hidden": 9, "layers": ["lin1"], "n_steps": 5, "seed": 61},
        {"world_size": 5, "d_hidden": 12, "layers": ["lin2"], "n_steps": 1, "seed": 61},
    ],
)
### END HIDDEN TESTS

# %%
# What one rank keeps, sends and computes in a step: 200 examples, 4 ranks.
dp_run = run_threads(shard_losses, 4, args=(dp_step, watch(DistributedContext(4)), x, y))
step_runs = {"data parallel": dp_run, "tensor parallel": tp_run}
n_weights = sum(p.numel() for p in base.parameters())
costs = {
    "weights kept": {"data parallel": n_weights, "tensor parallel": n_weights / 4},
    "bytes sent": {name: run.trace.bytes_sent(0) / 60 for name, run in step_runs.items()},
    "multiplications": {"data parallel": 3 * 50 * n_weights, "tensor parallel": 3 * 200 * n_weights / 4},
}
lesson_06.plot_costs(costs, title="what one rank keeps, sends and computes in a step")

# %% [markdown]
# **What it shows.** The work is the same: a quarter of the batch, or a quarter of the weights. Data parallelism keeps
# everything everywhere and sends gradients, whose size has nothing to do with the batch. Tensor parallelism keeps 1/N
# and sends activations, which grow with it: 4 collectives a step here. With 48 weights and 200 examples that is a bad
# bargain; with weights that do not fit on one device there is no other.

# %% [markdown]
# ## The same layers on real processes
#
# Nothing in your layers knows about threads: they ask a context. Below is one with the same two methods on
# `torch.distributed`, and `launch` gives it four processes with gloo between them. Each process has its own memory, so
# there is no barrier to forget.


# %%
class GlooContext:
    """The same two methods, on torch.distributed."""

    def __init__(self) -> None:
        self.world_size = dist.get_world_size()

    def all_gather(self, tensor: torch.Tensor, rank: int, group_id: str) -> list[torch.Tensor]:
        gathered = [torch.empty_like(tensor) for _ in range(self.world_size)]
        dist.all_gather(gathered, tensor.contiguous())
        return gathered

    def all_reduce(self, tensor: torch.Tensor, rank: int, group_id: str, op: str = "sum") -> torch.Tensor:
        total = tensor.clone()
        dist.all_reduce(total)
        return total / self.world_size if op == "mean" else total


# %%
def train_on_gloo(rank: int, world_size: int) -> list[float]:
    return train(parallelize(base, plan, GlooContext())[rank], x, y)


gloo_run = launch(train_on_gloo, 4)
difference = max(abs(a - b) for a, b in zip(gloo_run[0], plain))
print(f"largest difference from the plain loss: {difference:.1e}; {gloo_run.trace.calls} on {len(gloo_run)} processes")
lesson_06.plot_curves({"plain": plain, "4 processes, tensor parallel": gloo_run[0]}, title="on real gloo")

# %% [markdown]
# ## Done
#
# You built a communication layer and saw which orders break it, trained data-parallel with shards of any size, and cut
# a model by columns and rows, first on threads and then, unchanged, on processes.
#
# **Open question.** Both ways can be combined: 8 ranks as 2 groups of 4, tensor parallel inside, data parallel between.
# What would `DistributedContext` need for that, and which of the two groups should share a host?

# %% [markdown]
# ## Further reading
#
# 1. M. Shoeybi et al., **[Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
#    Parallelism](https://arxiv.org/abs/1909.08053)**, 2019: column then row, in every block of a transformer.
# 2. D. Narayanan et al., **[Efficient Large-Scale Language Model Training on GPU Clusters Using
#    Megatron-LM](https://arxiv.org/abs/2104.04473)**, 2021: the open question, answered for 3,072 GPUs.
# 3. A. Krizhevsky, **[One weird trick for parallelizing convolutional neural
#    networks](https://arxiv.org/abs/1404.5997)**, 2014: data parallel where weights are few, cut where they are many.
# 4. A. B. Downey, **[The Little Book of Semaphores](https://greenteapress.com/wp/semaphores/)**: barriers that can be
#    used again, and why the obvious one cannot.
# 5. PyTorch, **[Tensor Parallelism](https://docs.pytorch.org/docs/2.13/distributed.tensor.parallel.html)**: the same
#    two layers as styles that a module is given.
