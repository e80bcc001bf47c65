# %% [markdown]
# # 3. Distributed SGD
#
# After this lesson you can
#
# 1. train LeNet-5 on N workers, and prove that it is the same training as one worker with an N times larger batch;
# 2. measure how many iterations N workers save, with its spread over seeds, and say why it is not N times;
# 3. predict on which network, and up to which N, more workers also save *time*.
#
# About 100 minutes: 70 for the tasks, 30 for reading; 35 points. You need lesson 2 (what an all-reduce does and costs)
# and a PyTorch training loop.

# %% [markdown]
# ## Words
#
# | word | meaning |
# |---|---|
# | worker | a rank that trains; N of them |
# | shard | the examples that are one worker's own |
# | B, batch | examples that one worker takes in one iteration; N B all of them together |
# | iteration | one step of every worker and one averaging, counted from 1 |
# | alpha, step | the learning rate |
# | k\*(N) | the first iteration at which N workers reach the target test accuracy, here 97 % |
# | speedup | k\*(1) / k\*(N); ideal is N |

# %% setup

# %%
# `Recipe` holds the settings that all workers share. full = True is real MNIST with larger batches: see 3.2c.
import itertools
import math
from functools import partial
from statistics import median

from torch.nn.functional import cross_entropy

from hw_utils import data
from hw_utils.pictures import lesson_03
from hw_utils.material.recipe import Recipe
from hw_utils.material.sweep import sweep

full = False
train_set, test_set = data.mnist("data") if full else data.digits()
lesson_03.plot_examples(train_set, 16)

# %% [markdown]
# ## The algorithm
#
# All workers start from the same weights x⁰. In iteration k every worker n
#
# - computes a gradient Gₙ on its *own* B examples,
# - takes a local step from xᵏ to xₙ = xᵏ − α Gₙ,
# - sums the xₙ over all workers (an all-reduce) and divides by N: that is xᵏ⁺¹, the same everywhere.
#
# $$x^{k+1} = \frac1N \sum_{n=0}^{N-1} \left(x^k - \alpha\, G_n(x^k)\right)
# = x^k - \alpha\, \frac1N \sum_{n=0}^{N-1} G_n(x^k)$$

# %% [markdown]
# Read the right side: a step along the mean of the gradients. So N workers with batch B do what one worker does with
# batch N B. You build it in four small functions and then hold it to that sentence.

# %% [markdown]
# ## 3.1a Shards
#
# Which examples are whose? Every worker knows the same shuffled `order` of one epoch, its rank and N, so no message is
# needed. In iteration k all workers together must take the *next N B examples of the order*: then the training can be
# compared with one worker's.
#
# **Predict.** 23 examples, 4 workers, B = 3. How many iterations has the epoch, and how many examples has each worker
# in the last one?

# %% [markdown]
# **Task** (10 minutes, 5 points). Write `batches`. Deal the N B examples of an iteration out like cards: worker 0 gets
# the first, worker 1 the second, and so on (any other fair deal of the same examples counts as well: shares that differ
# by at most one). Nobody drops the short rest. Target: every example once an epoch, and the same number of batches on
# every rank, if need be empty ones.

# %% [markdown]
# <details><summary>Hint 1: cut first, deal then</summary>
#
# `order.split(m)` cuts a tensor into pieces of m, the last one shorter. `piece[a::b]` takes every b-th element.
#
# </details>
# <details><summary>Hint 2: "counts 12 for all ranks, together they take 11"</summary>
#
# The second number of a pair is the length of the piece before it was dealt out.
#
# </details>


# %% exercise="batches"
def batches(order: torch.Tensor, rank: int, world_size: int, batch_size: int) -> list[tuple[torch.Tensor, int]]:
    """This rank's batches of one epoch: (the entries of `order` that are its own, how many all ranks take together).

    order: int64 (n_examples,), the same on every rank. About 3 lines.
    """
    ### BEGIN SOLUTION
    chunks = order.split(world_size * batch_size)
    return [(chunk[rank::world_size], len(chunk)) for chunk in chunks]
    ### END SOLUTION


# %%
# Your own deal: a column an example of the order, a colour an iteration.
lesson_03.plot_batches([batches(torch.arange(23), rank, 4, 3) for rank in range(4)], 23)

# %% check="batches" points=5
checks.lesson_03.batches(batches)
### BEGIN HIDDEN TESTS
checks.lesson_03.batches(
    batches,
    cases=[
        {"n_examples": 31, "world_size": 5, "batch_size": 2},
        {"n_examples": 7, "world_size": 7, "batch_size": 3},
        {"n_examples": 1437, "world_size": 8, "batch_size": 8},
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** Each column has one coloured cell: no example is lost and none is shared. The last colour is
# narrower, and some rank may have no cell of it at all. That rank still has an iteration to run, because the others
# will wait for it in the all-reduce.

# %% [markdown]
# ## 3.1b Equal starts
#
# **Predict.** Each rank makes its own random LeNet-5. If nobody sends anything, will averaging alone make them equal
# after the first iteration? Will it then be the training of *one* of them?
#
# **Task** (5 minutes, 2 points). Write `start_equal`: afterwards every rank's model holds what rank 0's held. Target:
# all parameters and all buffers (a batch norm's running means are buffers) to the last bit, written into the memory
# that they have, nothing else sent, and no barrier.

# %% [markdown]
# <details><summary>Hint 1: where the tensors are</summary>
#
# `model.parameters()` and `model.buffers()` go through all of a model's tensors. (`model.state_dict()` has those that
# are saved: a buffer may be registered with `persistent=False`.) `dist.broadcast(tensor, 0)` sends from rank 0 and
# receives on all others.
#
# </details>
# <details><summary>Hint 2: "a leaf Variable that requires grad is being used in an in-place operation"</summary>
#
# You wrote into a parameter while autograd was watching: use `p.data`, or `with torch.no_grad():`.
#
# </details>


# %% exercise="start_equal"
def start_equal(model: torch.nn.Module) -> None:
    """Gives every rank's model the parameters and buffers of rank 0's, in place; all are contiguous. About 2 lines."""
    ### BEGIN SOLUTION
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.data, 0)
    ### END SOLUTION


# %%
def first_weights(rank: int, world_size: int) -> list[list[float]]:
    model = Recipe().start(rank)[0]
    before = model.fc3.bias.tolist()
    start_equal(model)
    return [before, model.fc3.bias.tolist()]


lesson_03.plot_weights(simulate(first_weights, 4, compute="free").results, ("before", "after"))

# %% check="start_equal" points=2
checks.lesson_03.start_equal(start_equal)
### BEGIN HIDDEN TESTS
checks.lesson_03.start_equal(start_equal, cases=[{"world_size": 3}, {"world_size": 4}])
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** On the left four rows of different colours, on the right four equal ones, and they are rank 0's.
# Averaging would have made the ranks equal too, but equal to a blend of four random models that nobody chose. Seeding
# all ranks alike would also do, until
# somebody draws one random number more on one rank. A broadcast holds whatever went before.

# %% [markdown]
# ## 3.1c The mean of the models
#
# **Predict.** LeNet-5 has 10 parameter tensors with 61,706 numbers in all. How many all-reduces, and how many bytes
# does each of 4 ranks send if they go around a ring? (Lesson 2: 2 (N − 1) / N times the tensor.)
#
# **Task** (5 minutes, 3 points). Write `average`: every parameter becomes its mean over the ranks, in place: in the
# memory that it has (contiguous), of which somebody else may hold a view. Call the argument `all_reduce`, which takes a
# tensor and sums it in place, so that your own ring can take its place. Target: at most one all-reduce a parameter, and
# no barrier.

# %% [markdown]
# <details><summary>Hint 1: in place</summary>
#
# The all-reduce must write into the parameter itself: `p.data` shares its memory, `p.data.clone()` does not, and
# `p.data = ...` gives it another one.
#
# </details>
# <details><summary>Hint 2: "10 is the sum, 2.5 the mean"</summary>
#
# The all-reduce gives the same sum to every rank; every rank divides, once.
#
# </details>


# %% exercise="average"
def average(model: torch.nn.Module, all_reduce=dist.all_reduce) -> None:
    """Makes every parameter its mean over the ranks, in place; buffers and gradients stay. About 3 lines.

    all_reduce: sums a tensor over the ranks in place, as `dist.all_reduce` does.
    """
    ### BEGIN SOLUTION
    for parameter in model.parameters():
        all_reduce(parameter.data)
        parameter.data /= dist.get_world_size()
    ### END SOLUTION


# %%
def average_once(rank: int, world_size: int) -> list[list[float]]:
    model = Recipe().start(rank)[0]
    before = model.fc3.bias.tolist()
    average(model)
    return [before, model.fc3.bias.tolist()]


run = simulate(average_once, 4, compute="free")
lesson_03.plot_weights(run.results, ("before", "after"))
print(f"{run.trace.calls['all_reduce'] // 4} all-reduces a rank, {run.trace.bytes_sent(0):,} bytes sent by rank 0")

# %% check="average" points=3
checks.lesson_03.average(average)
### BEGIN HIDDEN TESTS
checks.lesson_03.average(average, cases=[{"world_size": 4, "own": False}, {"world_size": 6, "own": True}])
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** On the right the four rows are equal, and paler than on the left: the mean of independent random
# numbers lies nearer to zero. Ten all-reduces, one a tensor, most of them tiny; each pays the network's latency.
# Lesson 5 packs them into
# buckets.

# %% [markdown]
# ## 3.1d One iteration
#
# Now the step itself. The last batches of an epoch differ in length, and some are empty: the mean of the ranks' means
# would then favour the examples of the short ones. Every example should count alike, as it does for one worker:
#
# $$G(x) = \frac{1}{n_\text{total}} \sum_{\text{all examples}} \nabla \ell_i(x)$$
#
# What has to stand in front of a rank's own sum, if the models are *averaged* afterwards? A rank without examples steps
# and averages too: with momentum or weight decay the model
# still moves.
#
# **Predict.** Without momentum, what goes wrong first if the average comes *before* the local step?

# %% [markdown]
# **Task** (15 minutes, 10 points). Write `distributed_step`: a loss for which every example counts alike, a step of the
# optimizer, the average.
# Target: equal models on all ranks to the bit after every step, and off from one big batch by less than 1e-9 in
# float64. Averaging gradients before the step leads to the same models, and counts as right, too: it is lesson 4's way.
# Either way there is one averaging an iteration, and nothing else is sent.

# %% [markdown]
# <details><summary>Hint 1: an empty batch</summary>
#
# `cross_entropy(..., reduction="sum")` of no examples is 0, with gradient 0. The default, the mean, is nan.
#
# </details>
# <details><summary>Hint 2: "no rank can go on"</summary>
#
# Some rank returned early, or skipped the average. The number of all-reduces must not depend on the data.
#
# </details>
# <details><summary>Hint 3: right at step 1, off at step 2</summary>
#
# Something is left over from before, from the last step or from whoever had the model: gradients add up until
# `optimizer.zero_grad()`.
#
# </details>


# %% exercise="distributed_step"
def distributed_step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    x: torch.Tensor,
    y: torch.Tensor,
    n_total: int,
    all_reduce=dist.all_reduce,
) -> None:
    """One iteration: a local step on this rank's x, y (perhaps none), then the mean of all ranks' models.

    n_total: examples of all ranks together. The loss is the cross entropy. About 5 lines.
    """
    ### BEGIN SOLUTION
    loss = cross_entropy(model(x), y, reduction="sum") * dist.get_world_size() / n_total
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average(model, all_reduce)
    ### END SOLUTION


# %%
# Ten iterations on 4 ranks, and on one rank with the whole batches: how far apart are the models?
def path(rank: int, world_size: int, batch_size: int) -> list[torch.Tensor]:
    model, optimizer, train_set, _ = Recipe().start(rank)
    start_equal(model)
    places = []
    for mine, n_total in batches(torch.arange(80), rank, world_size, batch_size):
        distributed_step(model, optimizer, *train_set[mine], n_total)
        places.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    return places


four, one = (simulate(path, n, (8 // n,), compute="free").results for n in (4, 1))
lesson_03.plot_paths(four, one[0])

# %% check="step-equal" points=4
checks.lesson_03.step_equal(distributed_step)
### BEGIN HIDDEN TESTS
checks.lesson_03.step_equal(
    distributed_step,
    cases=[
        {"net": "small", "n_examples": 29, "batch_size": 2, "n_steps": 9, "world_size": 5, "momentum": 0.5},
        {"net": "lenet", "n_examples": 44, "batch_size": 4, "n_steps": 5, "world_size": 3},
    ],
)
### END HIDDEN TESTS

# %% check="step-follows" points=6
checks.lesson_03.step_follows(distributed_step)
### BEGIN HIDDEN TESTS
checks.lesson_03.step_follows(
    distributed_step,
    cases=[
        {"net": "small", "n_examples": 31, "batch_size": 2, "n_steps": 20, "world_size": 7, "momentum": 0.8},
        {"net": "lenet", "n_examples": 61, "batch_size": 5, "n_steps": 8, "world_size": 3, "momentum": 0.5},
        {"net": "small", "n_examples": 20, "batch_size": 5, "n_steps": 1, "world_size": 2, "stretch": 5000.0},
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** The ranks differ by exactly 0, so they have no mark on the logarithmic axis; from one big batch
# they differ by a few parts in ten million, which is float32 adding the same numbers in another order. Data
# parallelism changes *where* the work is done. Whether the larger batch is worth it is the next question.

# %% [markdown]
# ## 3.2a Accuracy, shared
#
# To find k\*, all workers look at the *test* set every few iterations. The models are equal, so each can look at its
# own share, and only a number has to travel. It must also be the same number on every rank, and to the last digits: a
# rank that thinks it has arrived, alone, leaves the others waiting in the next all-reduce.
#
# **Predict.** 10 test examples, 3 ranks. Is the mean of the three accuracies the accuracy on the ten?

# %% [markdown]
# **Task** (5 minutes, 3 points). Write `test_accuracy`. Target: at most ⌈n/N⌉ examples looked at by each rank, one
# number all-reduced, the same float everywhere, right to 12 digits (a float32 has 7). Training goes on after a look:
# the model is left as it was, in the mode (training or evaluation) that it came in. The models here have neither
# dropout nor batch norm, so either mode gives the same scores.
#
# <details><summary>Hint 1: what to add up</summary>
#
# Counts add up, fractions do not. All-reduce how many are right, divide once by the size of the whole set.
#
# </details>
# <details><summary>Hint 2: a share of a data set</summary>
#
# `test_set[a::b]` gives (x, y) of every b-th example. `with torch.no_grad():` saves the work for gradients.
#
# </details>


# %% exercise="test_accuracy"
def test_accuracy(model: torch.nn.Module, test_set) -> float:
    """The fraction of the whole test set that the model gets right, on every rank; each looks at its share.

    About 5 lines.
    """
    ### BEGIN SOLUTION
    x, y = test_set[dist.get_rank() :: dist.get_world_size()]
    with torch.no_grad():
        n_right = (model(x).argmax(1) == y).sum()
    dist.all_reduce(n_right)
    return n_right.item() / len(test_set)
    ### END SOLUTION


# %%
def look(rank: int, world_size: int) -> float:
    model, _, _, test_set = Recipe().start(0)
    return test_accuracy(model, test_set)


simulate(look, 4, compute="free")

# %% check="test_accuracy" points=3
checks.lesson_03.test_accuracy(test_accuracy)
### BEGIN HIDDEN TESTS
checks.lesson_03.test_accuracy(
    test_accuracy,
    cases=[
        {"world_size": 4, "n_examples": 1237},
        {"world_size": 7, "n_examples": 12},
        {"world_size": 3, "n_examples": 1211, "mode": "evaluation"},
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** An untrained model guesses about one digit in ten, and every rank knows the same number after one
# all-reduce of 8 bytes. The test set is never trained on; a k\* read off the training set would flatter.

# %% [markdown]
# ## 3.2b The whole training
#
# This helper strings epochs together: iteration after iteration it gives a rank's x and y and the whole number of
# examples, at most `recipe.max_iterations` times. An order that is the same on every rank comes from the recipe.


# %%
def iterations(rank: int, world_size: int, recipe: Recipe, train_set):
    """(x, y, n_total) of iteration 1, 2, ..., recipe.max_iterations."""
    epochs = (
        batches(recipe.order(epoch, len(train_set)), rank, world_size, recipe.batch_size) for epoch in itertools.count()
    )
    for places, n_total in itertools.islice(itertools.chain.from_iterable(epochs), recipe.max_iterations):
        yield *train_set[places], n_total


# %% [markdown]
# **Predict.** `recipe.start(rank)` gives every rank other weights, on purpose. Which line of `train` would you have
# to forget for the training to go wrong without any error?
#
# **Task** (10 minutes, 5 points). Write `train`: after every `recipe.every` iterations note (iteration, test
# accuracy); end when it is at least `recipe.target`, or after the last iteration. A training that never gets there
# returns its curve all the same. Target: the curve of one worker with batch N B, on every rank, and one equal start.

# %% [markdown]
# <details><summary>Hint 1: counting</summary>
#
# `enumerate(iterations(...), start=1)` counts iterations from 1; look when `k % recipe.every == 0`, after the step.
#
# </details>
# <details><summary>Hint 2: "one rank stops and the others train on"</summary>
#
# Decide on the value of `test_accuracy`, which all ranks share, and in no `if rank == 0`.
#
# </details>


# %% exercise="train"
def train(rank: int, world_size: int, recipe: Recipe, all_reduce=dist.all_reduce) -> list[tuple[int, float]]:
    """[(iteration, test accuracy), ...] of a training to recipe.target, the same on every rank. About 8 more lines."""
    model, optimizer, train_set, test_set = recipe.start(rank)
    ### BEGIN SOLUTION
    start_equal(model)
    curve = []
    for k, (x, y, n_total) in enumerate(iterations(rank, world_size, recipe, train_set), start=1):
        distributed_step(model, optimizer, x, y, n_total, all_reduce)
        if k % recipe.every == 0:
            curve.append((k, test_accuracy(model, test_set)))
            if curve[-1][1] >= recipe.target:
                break
    return curve
    ### END SOLUTION


# %%
curves = {n: simulate(train, n, (Recipe(),), compute="free", echo=False, timeout_s=600)[0] for n in (1, 4)}
lesson_03.plot_curves(curves, target=0.97)

# %% check="train" points=5
checks.lesson_03.train(train)
### BEGIN HIDDEN TESTS
checks.lesson_03.train(
    train,
    cases=[
        {"world_size": 4, "seed": 11, "batch_size": 5, "every": 3, "max_iterations": 40, "target": 0.75},
        {"world_size": 2, "seed": 12, "batch_size": 9, "every": 7, "max_iterations": 20, "target": 1.5},
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** Both curves climb fast and then crawl; four workers, with four times the examples an iteration,
# cross the line earlier. How much earlier depends on one noisy crossing, so one seed proves nothing. The next two
# exercises turn many curves into one honest number.

# %% [markdown]
# ## 3.2c k\* and the speedup
#
# **Predict.** A run that never reaches the target: should it be left out of the statistics? What would that do to the
# reported speedup?
#
# **Task** (10 minutes, 2 points). `k_star` is the first iteration whose accuracy is at least the target, `math.inf`
# if there is none. `speedup` puts the median k\*(1) over the largest, the median and the smallest k\*(N): the lowest,
# middle and highest speedup. Infinity takes care of itself: 400 / math.inf is 0. Target: three digits.
#
# $$S(N) = \frac{\operatorname{median} k^*(1)}{k^*(N)}$$

# %% [markdown]
# <details><summary>Hint 1: the first of several</summary>
#
# `next(generator, default)` gives the first element, or the default if there is none.
#
# </details>
# <details><summary>Hint 2: "lowest and highest are swapped"</summary>
#
# The slowest run has the largest k\*, and gives the lowest speedup.
#
# </details>


# %% exercise="k_star"
def k_star(curve: list[tuple[int, float]], target: float) -> float:
    """The first iteration with an accuracy of at least `target`, or math.inf. About 1 line."""
    ### BEGIN SOLUTION
    return next((k for k, accuracy in curve if accuracy >= target), math.inf)
    ### END SOLUTION


# %% exercise="speedup"
def speedup(k_star: dict[int, list[float]]) -> dict[int, tuple[float, float, float]]:
    """N -> (lowest, median, highest) of k*(1) / k*(N), from N -> the k* of several seeds. About 2 lines.

    The numerator is always the median of k_star[1].
    """
    ### BEGIN SOLUTION
    base = median(k_star[1])
    return {n: (base / max(values), base / median(values), base / min(values)) for n, values in k_star.items()}
    ### END SOLUTION


# %% check="k_star" points=1
checks.lesson_03.k_star(k_star)
### BEGIN HIDDEN TESTS
checks.lesson_03.k_star(
    k_star,
    cases=[
        {"curve": [[3, 0.2], [6, 0.7], [9, 0.6], [12, 0.9]], "target": 0.7, "expected": 6},
        {"curve": [[3, 0.2], [6, 0.6]], "target": 0.7, "expected": 1e999},
    ],
)
### END HIDDEN TESTS

# %% check="speedup" points=1
checks.lesson_03.speedup(speedup)
### BEGIN HIDDEN TESTS
checks.lesson_03.speedup(
    speedup,
    cases=[
        {
            "k_star": {"1": [90, 30, 60], "3": [30, 20, 1e999], "16": [10, 12, 20]},
            "expected": {"1": [0.66667, 1, 2], "3": [0, 2, 3], "16": [3, 5, 6]},
        }
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ### Twenty trainings
#
# N = 1, 2, 4, 8 with five seeds each, on the virtual cluster, as many at a time as you have cores. A seed sets the
# initial weights and the order of the examples. With `full = True` in the first cell the same cell trains on MNIST's
# 60,000 examples with 32 a worker, and takes many times as long.

# %%
larger = {"data": partial(data.mnist, "data", say=False), "batch_size": 32, "every": 10, "max_iterations": 2_000}


def arrive(n_and_seed: tuple[int, int]) -> float:
    n, seed = n_and_seed
    recipe = Recipe(seed=seed, **(larger if full else {}))
    curve = simulate(train, n, (recipe,), compute="free", echo=False, timeout_s=3_600)[0]
    return k_star(curve, recipe.target)


found = sweep(arrive, [(n, seed) for n in (8, 4, 2, 1) for seed in range(5)], "trainings")

# %%
k_stars = {n: [found[n, seed] for seed in range(5)] for n in (1, 2, 4, 8)}
speedups = speedup(k_stars)
print(" N  k* of five seeds             median  speedup (lowest to highest)")
for n, values in k_stars.items():
    low, middle, high = speedups[n]
    shown = ", ".join(f"{k:>4}" for k in values)
    print(f"{n:>2}  {shown:<28}  {median(values):>6}  {middle:.2f} ({low:.2f} to {high:.2f})")
lesson_03.plot_speedup(speedups)

# %% [markdown]
# **What it shows.** The bars are the spread over seeds, and they are wide: a first crossing of a line is a noisy thing.
# Still the medians tell a clear story. Two workers save something, four more, and from there the curve leaves the
# dashed line further and further behind. A run that never arrived would stand here as `inf`, with speedup 0.

# %% [markdown] manual="why_not_linear" points=5
# **3.2d Your words** (10 minutes, 5 points). Is the speedup linear? Say in about 100 words what your table and plot
# show (with numbers and spread), what limits it, and one change to the settings that you expect to raise it, with the
# reason.
#
# ### BEGIN SOLUTION
# **Model answer.** No. With the embedded digits k\*(8) is well under k\*(1), but the median speedup is nearer to 2 than
# to 8, and the ranges of neighbouring N overlap, so 4 against 8 is not settled by five seeds. An N times larger batch
# only takes *noise* out of the gradient. Its direction, and with a fixed alpha the length of a step, stay: once the
# noise is no longer what slows training down, more examples an iteration change nothing, and k\* approaches that of
# full-batch gradient descent. Raising alpha with N (linear scaling, with a warm-up) uses the quieter gradient for
# longer steps and should raise the speedup until the steps become unstable.
#
# **Rubric**
#
# - 1 point: says it is not linear, with numbers from the own table
# - 1 point: names the spread and what it leaves open
# - 1 point: names a limit, be it the bare "diminishing returns"
# - 1 point: says what it comes from: the larger batch lowers the noise only; step length or curvature then limits
# - 1 point: a sensible change with a reason (alpha with N, smaller B a worker, momentum)
# ### END SOLUTION

# %% [markdown]
# ## 3.3 Iterations are not seconds
#
# An iteration on N ranks also *communicates*. How long does one rank compute? Measured here on your machine, for one
# worker and without its first steps. What the ten all-reduces cost depends on the network, and that you choose below.


# %%
import time


def compute_step_s(rank: int, world_size: int, n_steps: int) -> float:
    """Seconds of one iteration; the first five warm up."""
    model, optimizer, train_set, _ = Recipe().start(rank)
    times_s = []
    for x, y, n_total in itertools.islice(iterations(rank, world_size, Recipe(), train_set), n_steps):
        start_s = time.perf_counter()
        distributed_step(model, optimizer, x, y, n_total)
        times_s.append(time.perf_counter() - start_s)
    return median(times_s[5:])


compute_s = simulate(compute_step_s, 1, (55,))[0]
print(f"one step of 8 examples computes for {compute_s * 1e3:.2f} ms on this machine")

# %% [markdown]
# On the virtual cluster a rank that computes is a rank that sleeps for so long, and then calls *your* `average` on a
# model of the right shapes. Every rank computes equally long and nothing overlaps. **Predict** from lesson 2's formula
# whether the orange or the blue is longer with 4 ranks on 1 Gb/s.


# %%
def virtual_steps(rank: int, world_size: int, n_steps: int, compute_s: float) -> None:
    model = Recipe().model()
    for _ in range(n_steps):
        time.sleep(compute_s)  # virtual seconds: nobody really waits
        average(model)


run = simulate(virtual_steps, 4, (3, compute_s), network=Network(latency_s=50e-6, bandwidth_Bps=125e6), compute="free")
plots.plot_timeline(run.trace)

# %% [markdown]
# For 16, 32 and 64 workers use what you proved in 3.1d: N workers of batch 8 follow one worker of batch 8 N. So *one*
# rank with the large batch finds k\*(N), much faster than 64 ranks on a laptop would. Three seeds each. The time to
# 97 % is then k\*(N) times the time of one iteration; looking at the test set is left out.


# %%
def arrive_alone(n_and_seed: tuple[int, int]) -> float:
    n, seed = n_and_seed
    recipe = Recipe(seed=seed, batch_size=8 * n)
    return k_star(simulate(train, 1, (recipe,), compute="free", echo=False, timeout_s=3_600)[0], recipe.target)


many = sweep(arrive_alone, [(n, seed) for n in (64, 32, 16) for seed in range(3)], "large batches")
k_of = {n: median(values) for n, values in k_stars.items()}
k_of |= {n: median(many[n, seed] for seed in range(3)) for n in (16, 32, 64)}
k_of

# %%
networks = {
    "1 Gb/s, 50 µs": Network(latency_s=50e-6, bandwidth_Bps=125e6),
    "100 Gb/s, 2 µs": Network(latency_s=2e-6, bandwidth_Bps=12.5e9),
}
fig, axes = plt.subplots(1, 2, figsize=(13, 3.8), layout="constrained")
for ax, (name, network) in zip(axes, networks.items()):
    runs = {n: simulate(virtual_steps, n, (1, compute_s), network=network, compute="free") for n in k_of}
    communicate_s = {n: run.seconds - compute_s for n, run in runs.items()}
    lesson_03.plot_time_to_target(k_of, compute_s, communicate_s, title=name, ax=ax)

# %% [markdown]
# **What it shows.** On the slow network one worker is fastest: an iteration that computes for about two milliseconds
# waits for many more in its all-reduces. On the fast one time falls while k\* falls, and rises again when ten times
# 2 (N - 1) latencies an iteration outweigh what a larger batch still saves. Change `networks` and find the latency at
# which 8 workers break even.

# %% [markdown]
# ## 3.4 Experiment: local SGD
#
# If averaging is the expensive part, do it less often: every H steps. Between two averages the workers walk apart.
# H = 1 is what you built. **Predict**: by how much do the bytes fall at H = 8, and what happens to the accuracy after
# 160 iterations?


# %%
def local_sgd(rank: int, world_size: int, recipe: Recipe, average_every: int) -> float:
    """Test accuracy after recipe.max_iterations, a multiple of average_every."""
    model, optimizer, train_set, test_set = recipe.start(rank)
    start_equal(model)
    for k, (x, y, _) in enumerate(iterations(rank, world_size, recipe, train_set), start=1):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        if k % average_every == 0:
            average(model)
    return test_accuracy(model, test_set)


# %%
def local_run(h_and_seed: tuple[int, int]) -> tuple[int, float]:
    average_every, seed = h_and_seed
    recipe = Recipe(seed=seed, max_iterations=160)
    run = simulate(local_sgd, 4, (recipe, average_every), compute="free", echo=False, timeout_s=600)
    return run.trace.bytes_sent(0), run[0]


every_h = [1, 4, 16, 64, 160]
points = sweep(local_run, [(h, seed) for h in every_h for seed in range(3)], "local SGD")
lesson_03.plot_local_sgd({h: (points[h, 0][0], median(points[h, seed][1] for seed in range(3))) for h in every_h})

# %% [markdown]
# **What it shows.** The bytes fall nearly as 1/H, the accuracy by a few points only, and a single mean at the very end
# (H = 160) still gives a useful model: the four began at the same place and took short steps, so they did not walk far
# apart. With three seeds trust the trend, not the order of neighbours.

# %% [markdown]
# ## 3.5 Your own ring
#
# `dist.all_reduce` was a black box that you know from inside. Put *your* `ring_all_reduce` of lesson 2 in its place:
# copy it, and what it calls, into the next cell and name it in the first line. **Predict**: will the accuracies be the
# same? And the models, to the bit or nearly?

# %%
my_all_reduce = dist.all_reduce  # name your ring_all_reduce here

short = Recipe(max_iterations=20)
theirs = simulate(train, 4, (short,), compute="free", echo=False)[0]
mine = simulate(train, 4, (short, my_all_reduce), compute="free", echo=False)[0]
print(f"after {mine[-1][0]} iterations: {mine[-1][1]:.4f} with yours, {theirs[-1][1]:.4f} with dist.all_reduce")

# %% [markdown]
# And the same function on two real processes, whose clock is the wall's. The numbers must agree with the virtual
# cluster's: where a rank runs changes nothing of what it computes.

# %%
real_run = launch(train, 2, (Recipe(max_iterations=20),), echo=False)
virtual_run = simulate(train, 2, (Recipe(max_iterations=20),), compute="free", echo=False)
print(f"real {real_run[0][-1]}, virtual {virtual_run[0][-1]}; {real_run.seconds:.1f} s on the wall")

# %% [markdown]
# ## What you did
#
# 1. You trained LeNet-5 on N workers, from shards to a shared accuracy, and held every step to one worker with the
#    large batch.
# 2. You measured k\*(1)/k\*(N) over five seeds, with its spread and the runs that never arrive.
# 3. You put seconds on it, and saw a network on which one worker wins and one on which several do.
#
# **Further reading**
#
# - **[Y. LeCun, L. Bottou, Y. Bengio, P. Haffner: Gradient-based learning applied to document recognition
#   (1998)](https://doi.org/10.1109/5.726791)**: LeNet-5 and MNIST.
# - **[P. Goyal and others: Accurate, large minibatch SGD (2017)](https://arxiv.org/abs/1706.02677)**:
#   alpha grows with N, after a warm-up.
# - **[S. McCandlish and others: An empirical model of large-batch training (2018)](https://arxiv.org/abs/1812.06162)**:
#   the noise of the gradient says how large a batch is worth it.
# - **[C. J. Shallue and others: Measuring the effects of data parallelism on neural network training
#   (2018)](https://arxiv.org/abs/1811.03600)**: your picture of k\*, for many models.
# - **[S. U. Stich: Local SGD converges fast and communicates little (2018)](https://arxiv.org/abs/1805.09767)**:
#   why 3.4 works.
#
# **Open question.** Averaging *weights* after the step and averaging *gradients* before it gave the same training
# here. For which optimizers does it not, and why does everybody average gradients?
