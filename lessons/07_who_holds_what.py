# %% [markdown]
# # 7. Who holds what
#
# After this lesson you can
#
# 1. account for every byte that a training step holds, and say which of them N ranks need only once;
# 2. cut optimizer, gradients and weights over the ranks, and hide the gathering behind the computing;
# 3. load on one cluster what another one saved.
#
# About 180 minutes, 55 points: 150 for the tasks, 30 for reading and runs. You need lessons 3 and 5.

# %% [markdown]
# ## Words
#
# | word | meaning |
# |---|---|
# | state | what stays from step to step: weights, gradients, what the optimizer keeps |
# | activation | what a forward pass keeps until backward has used it |
# | shard | the piece of a flat vector that stays on one rank: 1/N of it, padded with zeros to the same length |
# | reduce-scatter | everybody's vectors are added, and each rank gets one shard of the sum |
# | all-gather | each rank gives a shard, everybody gets the whole vector |
# | prefetch | gather what comes next while the present is being computed |
# | recompute | throw activations away, and run the forward pass again when backward needs them |

# %% setup

# %% [markdown]
# ## 7.1 Bytes on paper
#
# Training with mixed precision holds, for every parameter: a float16 weight, a float16 gradient, and in the optimizer
# (Adam) a float32 copy of the weight and two float32 moments. Data parallelism holds all of it N times. ZeRO cuts it,
# in stages: stage 1 cuts the optimizer's part over the N ranks, stage 2 the gradients as well, stage 3 the weights too.
#
# **Predict.** 7.5 billion parameters, 64 ranks. Which of the three parts falls most, and what is left in stage 1?

# %% [markdown]
# The other half is activations. One layer of a transformer keeps, for a batch of b sequences of s places, width h and
# a heads, in float16 (a dropout mask takes 1 byte a place):
#
# | of | tensors |
# |---|---|
# | attention, each (b, s, h) | input of the first norm; input of q, k and v; q; k; v; input of the last linear layer |
# | attention, each (b, a, s, s) | softmax's output; its dropout mask; what that dropout gives |
# | second half, each (b, s, h) | input of the second norm; input of the first linear layer |
# | second half, each (b, s, 4 h) | input of GELU; input of the second linear layer |
# | two masks (b, s, h) | dropout after attention, dropout after the second half |

# %% [markdown]
# **Task 7.1** (15 minutes, 6 points). `state_bytes` gives the bytes of state on one rank in stages 0 to 3; a part that
# is cut is divided by the number of ranks, fractions allowed. `activation_bytes` adds up the table for one layer; with
# `recompute` the tensors of (b, a, s, s) are not kept. Targets: nine digits (a float32 has seven), with 120, 31.4, 16.6
# and 1.9 GB for 7.5 billion parameters on 64 ranks, and for GPT-3's layer (s = 2048, h = 12,288, a = 96) 114 bytes a
# number of its input, or 34.
#
# <details><summary>Hint 1: three parts, three stages</summary>
#
# Bytes a parameter: 2 for the weight, 2 for the gradient, 4 + 4 + 4 for the optimizer. Stage k divides the first k
# parts of the list optimizer, gradients, weights.
#
# </details>
# <details><summary>Hint 2: a tensor has 2 bytes a place, a mask has 1</summary>
#
# Count in units of s b h: six tensors of 2 bytes, one mask of 1, and so on. The square ones have a s / h times as many
# places.
#
# </details>


# %% exercise="state_bytes"
def state_bytes(n_parameters: int, world_size: int, stage: int) -> float:
    """Bytes of weights, gradients and optimizer on one rank in stage 0, 1, 2 or 3. About 4 lines."""
    ### BEGIN SOLUTION
    optimizer = 12 * n_parameters / (world_size if stage >= 1 else 1)
    gradients = 2 * n_parameters / (world_size if stage >= 2 else 1)
    weights = 2 * n_parameters / (world_size if stage >= 3 else 1)
    return weights + gradients + optimizer
    ### END SOLUTION


# %% exercise="activation_bytes"
def activation_bytes(sequence: int, batch: int, width: int, heads: int, recompute: bool) -> float:
    """Bytes that one layer keeps for backward; with recompute those of (b, a, s, s) are not kept. About 3 lines."""
    ### BEGIN SOLUTION
    plain = sequence * batch * width
    square = batch * heads * sequence**2
    return 34 * plain + (0 if recompute else 5 * square)
    ### END SOLUTION


# %%
from hw_utils.pictures import lesson_07

psi = 7_500_000_000
fig, (left, right) = plt.subplots(1, 2, figsize=(14, 3.8), layout="constrained")
stages = {f"stage {k}": {"state": state_bytes(psi, 64, k)} for k in range(4)}
lesson_07.plot_held(stages, left, title="7.5 billion parameters, 64 ranks", cap_bytes=80e9)
layers = {}
for s in (1024, 2048, 4096):
    linear = activation_bytes(s, 1, 12_288, 96, True)
    layers[f"{s} places"] = {"linear in s": linear, "square": activation_bytes(s, 1, 12_288, 96, False) - linear}
lesson_07.plot_held(layers, right, title="activations of one layer of GPT-3")

# %% check="state_bytes" points=3
checks.lesson_07.state_bytes(state_bytes)
### BEGIN HIDDEN TESTS
checks.lesson_07.state_bytes(state_bytes, cases=[{"n_parameters": 4200, "world_size": 7, "stage": 2}])
### END HIDDEN TESTS

# %% check="activation_bytes" points=3
checks.lesson_07.activation_bytes(activation_bytes)
### BEGIN HIDDEN TESTS
checks.lesson_07.activation_bytes(
    activation_bytes, cases=[{"sequence": 16, "batch": 5, "width": 24, "heads": 3, "recompute": False}]
)
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** Stage 1 takes most of it: three quarters of the state are the optimizer's, and nobody needs them
# twice. The dashed line is an accelerator of 80 GB: plain data parallelism does not fit, however many there are. On the
# right the square of the sequence is 70 % of what a GPT-3 layer keeps, in tensors that are cheap to compute again.

# %% [markdown]
# ## 7.2 Throw away, compute again
#
# A chain of L layers keeps L inputs until backward comes for them. Cut it into segments: keep each segment's first
# input, forget the rest, and recompute one segment at a time when backward reaches it.
#
# **Predict.** 16 layers in 4 segments; backward takes twice as long as forward. How many inputs are kept at most? How
# much longer is a step?

# %% [markdown]
# **Task 7.2** (20 minutes, 8 points). The layers work by hand, without autograd. `layer.forward(x, keep=True)` returns
# the output and keeps x inside the layer; with `keep=False` it forgets x. `layer.backward(gradient)` needs that x,
# forgets it, and returns the gradient of x. A layer may have dropout: it draws a new mask in each forward pass. Use
# these two calls of a layer and nothing else of it.
#
# Fill in `Recomputed`: `n_segments` segments of at most ceil(L / n_segments) layers. Targets: after forward one input a
# segment at most is kept beside the layers, at no time do more than ceil(L / n_segments) layers keep theirs (together
# $2\sqrt L$ for $\sqrt L$ segments), the last segment is not computed twice (so at most 4/3 of the time), and
# gradients equal those of the plain layers to 1e-12, also after a forward that no backward followed (an evaluation).
#
# <details><summary>Hint 1: "this layer has kept no input to go back through", "keeps every input"</summary>
#
# Forward: all segments but the last with keep=False. Backward, last segment first: run that segment forward from its
# kept input with keep=True, then back through its layers in reverse.
#
# </details>
# <details><summary>Hint 2: "recomputed layers draw other dropout masks"</summary>
#
# `torch.get_rng_state()` beside each kept input. Set it before the segment is recomputed with `torch.set_rng_state`,
# and afterwards put back the one that was there.
#
# </details>


# %% exercise="recomputed"
class Recomputed:
    """A chain of layers in segments, of which only the first inputs are kept."""

    def __init__(self, layers: list, n_segments: int) -> None:
        size = -(-len(layers) // n_segments)
        self.segments = [layers[k : k + size] for k in range(0, len(layers), size)]
        self.starts = []  # (input, random state) of the segments that must be recomputed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The output of the last layer. About 8 lines."""
        ### BEGIN SOLUTION
        self.starts = []
        for segment in self.segments[:-1]:
            self.starts.append((x, torch.get_rng_state()))
            for layer in segment:
                x = layer.forward(x, keep=False)
        for layer in self.segments[-1]:
            x = layer.forward(x)
        return x
        ### END SOLUTION

    def backward(self, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient of the input, given that of the output. About 11 lines."""
        ### BEGIN SOLUTION
        for k in reversed(range(len(self.segments))):
            if k < len(self.starts):
                x, state = self.starts.pop()
                now = torch.get_rng_state()
                torch.set_rng_state(state)
                for layer in self.segments[k]:
                    x = layer.forward(x)
                torch.set_rng_state(now)
            for layer in reversed(self.segments[k]):
                gradient = layer.backward(gradient)
        return gradient
        ### END SOLUTION


# %%
# How many layers keep their input while a step of 16 layers goes on: forward 1 s, backward 2 s a layer.
import time

from hw_utils.material.by_hand.layers import KeepingLayer, drawn_weights


def kept_inputs(rank: int, world_size: int, n_layers: int, n_segments: int) -> list[tuple[float, int]]:
    layers = [KeepingLayer(drawn_weights(4, 4, k), 1.0, 2.0) for k in range(n_layers)]
    marks = [(0.0, 0)]
    for layer in layers:
        layer.watch = lambda what: marks.append((time.perf_counter(), sum(one.saved is not None for one in layers)))
    model = Recomputed(layers, n_segments)
    model.backward(model.forward(torch.ones(2, 4, dtype=torch.float64)))
    return [*marks, (time.perf_counter(), sum(one.saved is not None for one in layers))]


fig, axes = plt.subplots(2, 1, figsize=(9, 4), sharex=True, layout="constrained")
for ax, n_segments in zip(axes, (1, 4)):
    run = simulate(kept_inputs, 1, args=(16, n_segments), compute="free")
    lesson_07.plot_count(run[0], ax, label="layers that keep x", end_s=run.seconds)
    ax.set_title(f"segments: {n_segments}; the step takes {run.seconds:g} s", loc="left", fontsize="medium")

# %% check="recomputed" points=8
checks.lesson_07.recomputed(Recomputed)
### BEGIN HIDDEN TESTS
checks.lesson_07.recomputed(Recomputed, cases=[{"n_layers": 11, "n_segments": 4, "dropout": 0.25}])
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** Above, a hill of 16. Below, a saw with teeth of 4, and 4 kept inputs that the picture leaves out:
# 8 in all, for 12 seconds more on 48. With k segments of L / k layers,
#
# $$k + \frac Lk \;\ge\; 2 \sqrt L, \qquad \text{and equal for } k = \sqrt L,$$
#
# so memory grows with $\sqrt L$, and time never by more than a third. `torch.utils.checkpoint` does the same for
# autograd, random state included.

# %% [markdown]
# ## 7.3 Everybody keeps a part of the optimizer
#
# Adam needs two numbers a parameter, and each is needed in one place only. Rank r updates the r-th shard of the
# weights: it needs the *sum* of the gradients there, and nothing else of them. An all-reduce is a reduce-scatter and an
# all-gather; here the step comes in between.
#
# **Predict.** How many bytes more does a rank send than with an all-reduce of the gradients?

# %% [markdown]
# Two helpers are given. Places in the flat vector are those of the parameters one after another, zeros behind them.


# %%
def flattened(tensors: list[torch.Tensor], n_elements: int) -> torch.Tensor:
    """All elements in one new vector of n_elements, zeros at its end."""
    flat = torch.cat([t.detach().flatten() for t in tensors])
    return torch.nn.functional.pad(flat, (0, n_elements - flat.numel()))


def put_back(flat: torch.Tensor, tensors: list[torch.Tensor]) -> None:
    """Writes the vector's elements into the tensors; what is left over is padding."""
    place = 0
    for t in tensors:
        t.detach().copy_(flat[place : place + t.numel()].view_as(t))
        place += t.numel()


# %% [markdown]
# **Task 7.3** (30 minutes, 12 points). `ShardedAdam(model, lr)` steps as `torch.optim.Adam` does with the mean of all
# ranks' gradients: $m \leftarrow \beta_1 m + (1 - \beta_1) g$, $v \leftarrow \beta_2 v + (1 - \beta_2) g^2$, and the
# weight loses $\text{lr}\ \hat m / (\sqrt{\hat v} + \epsilon)$ with $\hat m = m / (1 - \beta_1^t)$, $\hat v = v / (1 -
# \beta_2^t)$, t = 1 in the first step; $\beta_1$, $\beta_2$ and $\epsilon$ are Adam's 0.9, 0.999 and 1e-8 in every
# check, so constants will do. Targets, for $\Psi$ parameters of B bytes: weights equal to one Adam's to 1e-12 in
# float64; beside the model no rank keeps more than three shards between steps (both moments, and its own weights if you
# like); $2 (N - 1) \lceil \Psi / N \rceil B$ bytes sent a step, in $2 (N - 1)$ rounds. Every parameter has a gradient.
#
# <details><summary>Hint 1: two calls</summary>
#
# `dist.reduce_scatter(shard, list(flat.split(size)))` adds everybody's flat vectors and leaves one shard. Then
# `dist.all_gather(list(flat.split(size)), shard)` makes a whole vector of everybody's: what is split shares its memory.
#
# </details>
# <details><summary>Hint 2: the formula, on a shard</summary>
#
# Nothing in it mixes places: with m, v, g and w all of a shard's length it stands as it is. t is one number, counted
# on every rank.
#
# </details>
# <details><summary>Hint 3: N does not divide</summary>
#
# A shard has ceil(n / N) elements, the flat vector N times as many: pad it. Ranks at the end may have nothing but
# padding, and make the same calls as all others.
#
# </details>


# %% exercise="sharded_adam"
class ShardedAdam:
    """Adam of which each rank keeps the moments of one shard of all parameters."""

    def __init__(self, model: torch.nn.Module, lr: float, beta1=0.9, beta2=0.999, eps=1e-8) -> None:
        self.parameters = list(model.parameters())
        self.lr, self.beta1, self.beta2, self.eps, self.t = lr, beta1, beta2, eps, 0
        n = sum(p.numel() for p in self.parameters)
        self.size = -(-n // dist.get_world_size())
        self.m = torch.zeros(self.size, dtype=self.parameters[0].dtype)
        self.v = torch.zeros_like(self.m)

    def step(self) -> None:
        """One step with the mean of all ranks' p.grad; afterwards all ranks have the same weights. About 14 lines."""
        ### BEGIN SOLUTION
        world_size, rank = dist.get_world_size(), dist.get_rank()
        n = self.size * world_size
        g = torch.empty_like(self.m)
        dist.reduce_scatter(g, list(flattened([p.grad for p in self.parameters], n).split(self.size)))
        g /= world_size
        weights = flattened(self.parameters, n)
        w = weights[rank * self.size : (rank + 1) * self.size].clone()
        self.t += 1
        self.m = self.beta1 * self.m + (1 - self.beta1) * g
        self.v = self.beta2 * self.v + (1 - self.beta2) * g**2
        m_hat = self.m / (1 - self.beta1**self.t)
        v_hat = self.v / (1 - self.beta2**self.t)
        w -= self.lr * m_hat / (v_hat.sqrt() + self.eps)
        dist.all_gather(list(weights.split(self.size)), w)
        put_back(weights, self.parameters)
        ### END SOLUTION


# %%
# A small GPT learns sentences of a grammar whose entropy is known, and says what it held.
from hw_utils import data, models


def train_gpt(rank: int, world_size: int, n_steps: int) -> tuple[list[float], dict[str, int]]:
    torch.manual_seed(0)
    model = models.TinyGPT(n_layers=1, width=32)
    text = data.grammar(say=False).train
    optimizer = ShardedAdam(model, lr=1e-2)
    places, losses = torch.Generator().manual_seed(rank), []
    for _ in range(n_steps):
        model.zero_grad()
        loss = model.loss(*text[torch.randint(len(text), (8,), generator=places)])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weights = sum(p.numel() * p.itemsize for p in model.parameters())
    return losses, {"weights": weights, "gradients": weights, "optimizer": optimizer.m.nbytes + optimizer.v.nbytes}


# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(14, 3.8), layout="constrained")
held = {f"N = {n}": simulate(train_gpt, n, args=(1,))[0][1] for n in (1, 2, 4)}
lesson_07.plot_held(held, left, title="what rank 0 holds")
losses = simulate(train_gpt, 2, args=(60,))[0][0]
lesson_07.plot_loss(losses, data.grammar(say=False).train.nats, right)

# %% check="sharded_adam" points=12
checks.lesson_07.sharded_adam(ShardedAdam)
### BEGIN HIDDEN TESTS
checks.lesson_07.sharded_adam(ShardedAdam, cases=[{"world_size": 6, "widths": [4, 3, 3]}])
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** The optimizer's part shrinks to 1/N, and not a byte more is sent than before: the same two halves
# of an all-reduce, with the step between them. That is why ZeRO's stage 1 is switched on wherever there is a choice.
# The dashed line is what a character of these sentences is worth; no model can stay below it for long.

# %% [markdown]
# ## 7.4 Gradients that nobody else needs
#
# With `ShardedAdam` each rank still holds *all* gradients until its step. In lesson 5 hooks sent buckets while backward
# went on. Now a bucket is reduce-scattered, and its gradients are dropped as soon as they have left.
#
# **Predict.** 4 ranks, 8 buckets of equal size. How much of the gradients does a rank hold at most, if one bucket is
# under way while the next one fills?

# %% [markdown]
# The buckets are those of lesson 5: from the last parameter to the first.


# %%
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
# **Task 7.4** (25 minutes, 9 points). Fill in three methods of `ShardedGradients`. A bucket is one `reduce_scatter`,
# padded to a multiple of N, started in the hook that completes it; other calls of `torch.distributed` that communicate
# are not made, barriers included. `wait` returns one flat shard of the mean gradient a bucket, in the order of the
# buckets; a parameter without a gradient counts as zeros, and the dtype is the model's. The layers may be used in
# another order than they stand in the model: a bucket that is full before its turn starts in the hook that completes
# the one before it. Targets: whenever a gradient arrives, a rank holds its shards of the buckets that have started, and
# two buckets at most (the one that fills, the one under way); after `wait` every `p.grad` is None;
# $(N - 1) \lceil n / N \rceil B$ bytes a bucket of n numbers; the step within 10 % of lesson 5's formula.
#
# <details><summary>Hint 1: a shard of a bucket</summary>
#
# `flattened` with the next multiple of N, an empty tensor of 1/N of that, and
# `dist.reduce_scatter(shard, list(flat.split(size)), async_op=True)`.
#
# </details>
# <details><summary>Hint 2: flat vectors pile up</summary>
#
# As a bucket starts, the one before it has had a whole bucket's time: wait for it then. After that keep its shard and
# forget its flat vector. p.grad = None as soon as the flat vector is made.
#
# </details>
# <details><summary>Hint 3: a bucket that is not full</summary>
#
# A parameter that is not used has no hook call. `wait` starts what is left, with zeros where p.grad is None.
#
# </details>


# %% exercise="sharded_gradients"
class ShardedGradients:
    """Leaves of all gradients this rank's shards: make one, then backward() and wait()."""

    def __init__(self, model: torch.nn.Module, bucket_bytes: int) -> None:
        self.buckets = buckets_of(list(model.parameters())[::-1], bucket_bytes)
        self.start_over()
        for k, bucket in enumerate(self.buckets):
            for p in bucket:
                p.register_post_accumulate_grad_hook(lambda p, k=k: self.gradient_is_there(k))

    def start_over(self) -> None:
        self.missing = [len(bucket) for bucket in self.buckets]  # gradients that are not there yet
        self.shards = []  # of the buckets that were started, in order
        self.flight = None  # (handle, flat vector) of the bucket under way

    def gradient_is_there(self, k: int) -> None:
        """The hook: one more gradient of bucket k is complete; start what can be started. About 3 lines."""
        ### BEGIN SOLUTION
        self.missing[k] -= 1
        while len(self.shards) < len(self.buckets) and self.missing[len(self.shards)] == 0:
            self.start_next()
        ### END SOLUTION

    def start_next(self) -> None:
        """Starts the reduce-scatter of the first bucket that is not under way yet. About 10 lines."""
        ### BEGIN SOLUTION
        if self.flight:
            self.flight[0].wait()
        bucket = self.buckets[len(self.shards)]
        size = -(-sum(p.numel() for p in bucket) // dist.get_world_size())
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = flattened(gradients, size * dist.get_world_size())
        for p in bucket:
            p.grad = None
        self.shards.append(flat.new_empty(size))
        self.flight = dist.reduce_scatter(self.shards[-1], list(flat.split(size)), async_op=True), flat
        ### END SOLUTION

    def wait(self) -> list[torch.Tensor]:
        """This rank's shard of each bucket's mean; the next backward may begin. About 6 lines."""
        ### BEGIN SOLUTION
        while len(self.shards) < len(self.buckets):
            self.start_next()
        self.flight[0].wait()
        shards = [shard / dist.get_world_size() for shard in self.shards]
        self.start_over()
        return shards
        ### END SOLUTION


# %%
# A backward pass of six layers, 10 ms each, in two buckets and in six, and the whole gradients that stand meanwhile.
from hw_utils.material.timed_layers import TimedChain


def one_backward(rank: int, world_size: int, n_buckets: int) -> list[tuple[float, int]]:
    model = TimedChain(6, 10_000, 0.01)
    gradients = ShardedGradients(model, bucket_bytes=8 * 60_000 // n_buckets)
    marks = [(0.0, 0)]
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(
            lambda p: marks.append((time.perf_counter(), sum(q.grad is not None for q in model.parameters())))
        )
    model(torch.ones(10_000, dtype=torch.float64)).backward()
    gradients.wait()
    return marks


# %%
cluster = Network(latency_s=500e-6, bandwidth_Bps=25e6)  # 200 Mb/s
fig, axes = plt.subplots(4, 1, figsize=(9, 8), sharex=True, layout="constrained")
for (above, below), n_buckets in zip((axes[:2], axes[2:]), (2, 6)):
    run = simulate(one_backward, 4, args=(n_buckets,), network=cluster, compute="free")
    plots.plot_timeline(run.trace, ax=above, end_s=run.seconds)
    above.set_title(f"buckets: {n_buckets}; {run.seconds:.4f} s", loc="left", fontsize="medium")
    lesson_07.plot_count(run[0], below, label="whole p.grad", end_s=run.seconds)

# %% check="sharded_gradients" points=6
checks.lesson_07.sharded_gradients(ShardedGradients)
### BEGIN HIDDEN TESTS
checks.lesson_07.sharded_gradients(
    ShardedGradients,
    cases=[
        {"world_size": 6, "widths": [2, 3, 3, 2], "bucket_bytes": 60, "unused": True},
        {
            "world_size": 3,
            "widths": [2, 2, 2, 2, 2],
            "bucket_bytes": 48,
            "unused": False,
            "order": [2, 1, 4, 3, 0, 5, 6],
        },
    ],
)
### END HIDDEN TESTS

# %% check="sharded_gradients_in_time" points=3
checks.lesson_07.sharded_gradients_in_time(ShardedGradients)
### BEGIN HIDDEN TESTS
checks.lesson_07.sharded_gradients_in_time(
    ShardedGradients, cases=[{"world_size": 3, "n_layers": 5, "backward_s": 0.4, "bucket_s": 0.3}]
)
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** Gradients come and go: with small buckets hardly one stands whole, and only shards pile up. The
# volume is half of lesson 5's, since nobody gets sums back that it does not keep; the other half is paid after the
# step, when the weights are gathered. Together that is ZeRO's stage 2: 2 $\Psi$ numbers a step, as ever.

# %% [markdown]
# ## 7.5 Weights that come and go
#
# Last, the weights. A rank keeps its shard of every layer, and gathers a layer just before it computes. To hide the
# time, the *next* layer is gathered while this one computes; afterwards a layer's slot is emptied. Backward needs every
# layer once more, last one first, and reduce-scatters what comes out.
#
# **Predict.** An all-reduce moves 2 (N - 1)/N of the weights' bytes a step. How many times as much is it now?

# %% [markdown]
# **Task 7.5** (40 minutes, 14 points). Each layer has `layer.shard` (this rank's piece, padded), `layer.n_elements`
# (without padding), in whatever dtype, and a slot: `layer.fill(full)` takes the whole flat weight, `layer.clear()`
# empties it. With the slot full, `layer.forward(x)` returns the output and `layer.backward(gradient)` the gradients of
# x and of the flat weight. Use these and nothing else of a layer.
#
# Write `FullySharded`: `forward(x)`, and `backward(gradient)`, which returns the list of this rank's shards of the mean
# gradients, in the order of the layers. A layer takes at most one `all_gather` forward, one back, and one
# `reduce_scatter`; nothing else is called, no barrier either. Targets: $3 (N - 1)/N$ of the padded weights' bytes sent
# a step; never more than two layers gathered or on their way; with f, b seconds for a layer's passes and g for its
# gather (or reduce-scatter), forward within 5 % of $g + (L - 1) \max(f, g) + f$ and backward within 5 % of $g + (L - 1)
# \max(b, 2 g) + b + g$.

# %% [markdown]
# <details><summary>Hint 1: start and wait are two things</summary>
#
# `gather(k)` starts `dist.all_gather(list(full.split(size)), shard, async_op=True)` and keeps (handle, full);
# `use(k)` waits, fills the slot with the first n_elements, and forgets what was kept. A gradient is padded at its end
# before `reduce_scatter`, and every handle is waited for before backward returns.
#
# </details>
# <details><summary>Hint 2: "whole or on their way at once"</summary>
#
# In the loop: use layer k, start the gather of the next one, compute, clear. No other gather is under way then.
#
# </details>
# <details><summary>Hint 3: what rests while a layer computes?</summary>
#
# If nothing is under way during a forward pass, a gather starts too late: before the computing, not after it. In
# backward the next layer is k - 1, and a reduce-scatter that is waited for where it starts stops everything.
#
# </details>


# %% exercise="fully_sharded"
class FullySharded:
    """A chain of layers of which each rank keeps shards, and gathers one layer ahead."""

    def __init__(self, layers: list) -> None:
        self.layers = layers
        self.flights = {}  # layer -> (handle, tensor that fills) of a gather under way

    def gather(self, k: int) -> None:
        """Starts the all-gather of layer k, if there is such a layer. About 5 lines."""
        ### BEGIN SOLUTION
        if 0 <= k < len(self.layers):
            shard = self.layers[k].shard
            full = shard.new_empty(len(shard) * dist.get_world_size())
            self.flights[k] = dist.all_gather(list(full.split(len(shard))), shard, async_op=True), full
        ### END SOLUTION

    def use(self, k: int) -> None:
        """Waits for the gather of layer k and fills its slot. About 3 lines."""
        ### BEGIN SOLUTION
        handle, full = self.flights.pop(k)
        handle.wait()
        self.layers[k].fill(full[: self.layers[k].n_elements])
        ### END SOLUTION

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The output of the last layer. About 7 lines."""
        ### BEGIN SOLUTION
        self.gather(0)
        for k, layer in enumerate(self.layers):
            self.use(k)
            self.gather(k + 1)
            x = layer.forward(x)
            layer.clear()
        return x
        ### END SOLUTION

    def backward(self, gradient: torch.Tensor) -> list[torch.Tensor]:
        """This rank's shard of each layer's mean gradient. About 15 lines."""
        ### BEGIN SOLUTION
        world_size, handles = dist.get_world_size(), []
        shards = [torch.empty_like(layer.shard) for layer in self.layers]
        self.gather(len(self.layers) - 1)
        for k in reversed(range(len(self.layers))):
            self.use(k)
            self.gather(k - 1)
            gradient, whole = self.layers[k].backward(gradient)
            self.layers[k].clear()
            flat = flattened([whole], len(shards[k]) * world_size)
            handles.append(dist.reduce_scatter(shards[k], list(flat.split(len(shards[k]))), async_op=True))
        for handle in handles:
            handle.wait()
        return [shard / world_size for shard in shards]
        ### END SOLUTION


# %%
# One step of six layers on four ranks: forward 10 ms, backward 20 ms a layer, a gather in between.
from hw_utils.material.by_hand.layers import SlotLayer


def one_step(rank: int, world_size: int) -> list[tuple[float, int]]:
    log, whole, marks = [], 0, [(0.0, 0)]
    layers = [SlotLayer(k, drawn_weights(40, 100, k), rank, world_size, 0.01, 0.02, log) for k in range(6)]
    model = FullySharded(layers)
    model.backward(model.forward(torch.ones(2, 100, dtype=torch.float64)))
    for event in log:  # (what, layer, seconds)
        whole += {"fill": 1, "clear": -1}.get(event[0], 0)
        marks.append((event[2], whole))
    return marks


fig, (above, below) = plt.subplots(2, 1, figsize=(9, 4.5), sharex=True, layout="constrained")
run = simulate(one_step, 4, network=Network(latency_s=100e-6, bandwidth_Bps=5e6), compute="free")
plots.plot_timeline(run.trace, ax=above, end_s=run.seconds)
lesson_07.plot_count(run[0], below, label="full slots", end_s=run.seconds, allowed=2)

# %% check="fully_sharded" points=8
checks.lesson_07.fully_sharded(FullySharded)
### BEGIN HIDDEN TESTS
checks.lesson_07.fully_sharded(FullySharded, cases=[{"world_size": 5, "hidden": [2, 5, 8, 12], "width": 3}])
### END HIDDEN TESTS

# %% check="fully_sharded_in_time" points=6
checks.lesson_07.fully_sharded_in_time(FullySharded)
### BEGIN HIDDEN TESTS
checks.lesson_07.fully_sharded_in_time(
    FullySharded, cases=[{"world_size": 3, "n_layers": 5, "forward_s": 0.5, "backward_s": 1.5, "gather_s": 0.4}]
)
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** In forward the link works under every layer, and one slot is full at a time; what is on its way is
# the second. Backward has two messages a layer, so its link is the busier one. For $\Psi$ weights a rank sends
#
# $$\underbrace{2\,\tfrac{N - 1}{N}\,\Psi}_{\text{gathered twice}}
# + \underbrace{\tfrac{N - 1}{N}\,\Psi}_{\text{gradients}},$$
#
# half as much again as in an all-reduce, and as long as a layer computes longer than its messages take, the step does
# not notice.

# %% [markdown]
# ## 7.6 Another cluster
#
# A run that was saved on 8 ranks goes on with 6. The file is a flat vector in 8 shards, and rank 1 of 6 needs the end
# of one and the beginning of the next. And a machine may die in the middle of saving: what is there then must still be
# a whole step, if an older one.
#
# **Predict.** 96 elements, from 8 ranks to 6. From which old shards does new rank 1 read, and how much of each?

# %% [markdown]
# **Task 7.6** (20 minutes, 6 points). A store has `store.write(name, tensor)`, which takes flat tensors of any dtype
# and time, `store.read(name, start, stop)`, which reads these elements and no others and fails if one is not there, and
# `store.names()`. `save_shards` writes this rank's padded shard of a vector of n_elements at that step. `load_shards`
# returns this rank's padded shard of the newest step that is whole, on any number of ranks. Targets: equal to the bit,
# dtype included; a rank writes its shard, which stays as it is, and reads its share, and 256 bytes beside them; after
# every single write of a save, all ranks load one whole step, whatever number of ranks saved the step before.
#
# <details><summary>Hint 1: places in the flat vector</summary>
#
# A new shard is elements start to stop of the flat vector. Old shard j holds j * size to (j + 1) * size: what do the
# two have in common, and where does that lie in the old shard? The rest is padding: zeros.
#
# </details>
# <details><summary>Hint 2: which step is whole?</summary>
#
# Shards of different steps have different names. When all ranks have written (`dist.barrier()`), rank 0 writes under
# one fixed name what load needs to know: step, number of ranks, n_elements. Load begins with that.
#
# </details>


# %% exercise="save_shards"
def save_shards(store, step: int, shard: torch.Tensor, n_elements: int) -> None:
    """Saves this rank's shard, and lets the step count once all are there. About 5 lines."""
    ### BEGIN SOLUTION
    store.write(f"step {step}, shard {dist.get_rank()}", shard)
    dist.barrier()
    if dist.get_rank() == 0:
        store.write("newest", torch.tensor([step, dist.get_world_size(), n_elements]))
    ### END SOLUTION


# %% exercise="load_shards"
def load_shards(store) -> torch.Tensor:
    """This rank's shard of the newest whole step, (ceil(n_elements / ranks),). About 12 lines."""
    ### BEGIN SOLUTION
    step, n_saved, n_elements = store.read("newest", 0, 3).tolist()
    old, new = -(-n_elements // n_saved), -(-n_elements // dist.get_world_size())
    start = dist.get_rank() * new
    stop = min(start + new, n_elements)
    parts = [
        store.read(f"step {step}, shard {j}", max(start - j * old, 0), min(stop - j * old, old))
        for j in range(n_saved)
        if max(start, j * old) < min(stop, (j + 1) * old)
    ]
    if not parts:
        return store.read(f"step {step}, shard 0", 0, 0).new_zeros(new)
    return flattened(parts, new)
    ### END SOLUTION


# %%
# Which old shards the new ranks read.
from hw_utils.material.by_hand.store import Store


def save_all(rank: int, world_size: int, n_elements: int) -> dict[str, torch.Tensor]:
    store, size = Store(), -(-n_elements // world_size)
    whole = flattened([torch.arange(n_elements, dtype=torch.float64)], size * world_size)
    save_shards(store, 1, whole[rank * size : (rank + 1) * size], n_elements)
    return store.content


def load_all(rank: int, world_size: int, content: dict[str, torch.Tensor]) -> torch.Tensor:
    return load_shards(Store(content))


content = {name: t for one in simulate(save_all, 8, args=(96,)) for name, t in one.items()}
reads = []
for rank, shard in enumerate(simulate(load_all, 6, args=(content,))):
    places = shard[: 96 - rank * len(shard)].long().tolist()
    found = sorted({place // 12 for place in places})
    reads.append(
        [(j, min(p for p in places if p // 12 == j), max(p for p in places if p // 12 == j) + 1) for j in found]
    )
lesson_07.plot_sources(96, 8, reads)

# %% check="shards" points=6
checks.lesson_07.shards(save_shards, load_shards)
### BEGIN HIDDEN TESTS
checks.lesson_07.shards(save_shards, load_shards, cases=[{"old": 5, "new": 3, "n_elements": 23, "slow": 2}])
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** The borders of old and new shards have nothing to do with each other, so some ranks read from two.
# Nobody reads more than its share, and nobody gathers: what fits on 8 ranks only when cut never has to fit on one.

# %% [markdown]
# ## The same with torch's own
#
# `fully_shard` is PyTorch's 7.5 (it calls it FSDP2), and `torch.distributed.checkpoint` its 7.6. The model is the
# course's GPT, reading *Alice's Adventures in Wonderland*; what a rank holds is counted from its own tensors. No
# points.

# %%
import tempfile

import torch.distributed.checkpoint as checkpoint
from torch.distributed.fsdp import fully_shard


def alice_step(rank: int, world_size: int, sharded: bool) -> dict[str, int]:
    torch.manual_seed(0)
    model = models.TinyGPT()
    text = data.alice(say=False).train
    for part in [*model.blocks, model] if sharded else []:
        fully_shard(part)
    optimizer = torch.optim.Adam(model.parameters()) if sharded else ShardedAdam(model, lr=1e-3)
    scores, y = model(text[rank : rank + 2][0]), text[rank : rank + 2][1]
    torch.nn.functional.cross_entropy(scores.flatten(0, 1), y.flatten()).backward()
    optimizer.step()
    mine = [p.to_local() if sharded else p for p in model.parameters()]
    weights = sum(p.numel() * p.itemsize for p in mine)
    return {"weights": weights, "gradients": weights, "optimizer": 2 * weights if sharded else 2 * optimizer.m.nbytes}


# %%
bars = {}
for name, sharded in (("your ShardedAdam", False), ("fully_shard", True)):
    run = simulate(alice_step, 4, args=(sharded,), compute="free")
    bars[name] = run[0]
    sent = run.trace.bytes_sent(0)
    print(f"{name}: rank 0 sends {sent:,} bytes, {sent / 4 / 210_304:.2f} numbers a parameter")
lesson_07.plot_held(bars, title="TinyGPT on 4 ranks, what rank 0 holds")


# %%
def reload(rank: int, world_size: int, folder: str, is_first: bool) -> float:
    torch.manual_seed(rank if is_first else 7)
    model = models.TinyGPT(n_layers=1)
    fully_shard(model)
    state = {"model": model.state_dict()}
    (checkpoint.save if is_first else checkpoint.load)(state, checkpoint_id=folder)
    return sum(p.full_tensor().double().sum().item() for p in model.parameters())


with tempfile.TemporaryDirectory() as folder:
    saved, loaded = (simulate(reload, n, args=(folder, n == 4), compute="free")[0] for n in (4, 3))
print("saved by 4 ranks, loaded by 3, the same weights:", abs(saved - loaded) < 1e-9)

# %% [markdown]
# **What it shows.** The volumes are those of your own: about $2 (N - 1)/N$ numbers a parameter with the optimizer cut,
# and half as much again with everything cut, a little less because the outermost group of `fully_shard` stays whole
# between forward and backward. The bar of weights falls to a quarter, and that is what the bytes buy.

# %% [markdown]
# ## Done
#
# You accounted for a step's bytes, threw activations away and made them again, cut optimizer, gradients and weights
# over the ranks with the gathering hidden, and loaded what another cluster had saved.
#
# **Open question.** The weights' traffic does not depend on the batch, the computing does. At which batch size does
# half as much traffic again cost nothing?

# %% [markdown]
# ## Further reading
#
# 1. S. Rajbhandari et al., **[ZeRO: Memory Optimizations Toward Training Trillion Parameter
#    Models](https://arxiv.org/abs/1910.02054)**, 2020: the stages, and the table of 7.1.
# 2. T. Chen et al., **[Training Deep Nets with Sublinear Memory Cost](https://arxiv.org/abs/1604.06174)**, 2016.
# 3. V. Korthikanti et al., **[Reducing Activation Recomputation in Large Transformer
#    Models](https://arxiv.org/abs/2205.05198)**, 2022: the activations of a layer, counted.
# 4. Y. Zhao et al., **[PyTorch FSDP: Experiences on Scaling Fully Sharded Data
#    Parallel](https://arxiv.org/abs/2304.11277)**, 2023, and the
#    **[tutorial of fully_shard](https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html)**.
