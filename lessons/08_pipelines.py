# %% [markdown]
# # 8. Pipelines
#
# After this lesson you can
#
# 1. cut a model into stages on several ranks, and take its gradients across the cuts;
# 2. order the passes of many micro-batches: GPipe, 1F1B, interleaved, zero bubble, and say what each costs;
# 3. read a schedule off its picture: what is idle, what is held, who waits for whom.
#
# About 180 minutes, 60 points: 150 for the tasks, 30 for reading and runs. You need lessons 1, 5 and 7.

# %% [markdown]
# ## Words
#
# | word | meaning |
# |---|---|
# | stage | some layers in a row; here rank r has stage r of p |
# | micro-batch | a part of the batch that goes through the stages by itself; there are m, numbered from 0 |
# | pass | what one stage does with one micro-batch: F is forward, B backward |
# | bubble | the time in which stages are idle, because what they need is not there yet |
# | in flight | what went forward through a stage and not back yet: its activations are kept |
# | warm-up | the forward passes of a rank before its first backward pass |
# | chunk | a stage of a rank that has several |

# %% setup

# %% [markdown]
# ## 8.1 Two bubbles
#
# A stage waits until the first micro-batch reaches it, and again until the first gradient comes back. That is the
# bubble. Papers give it in two ways: as a share of the *total* time, idle over everything (GPipe, zero bubble), or
# against the *ideal* time, idle over busy (Megatron). Whoever compares numbers has to know which.
#
# $$\text{share of the total} = \frac{\text{idle}}{\text{idle} + \text{busy}}, \qquad
# \text{share of the ideal} = \frac{\text{idle}}{\text{busy}}$$
#
# **Predict.** GPipe's authors found the bubble negligible from m = 4 p on. With p = 8 and m = 32, what share of the
# total time is it?

# %% [markdown]
# **Task 8.1** (10 minutes, 4 points). All micro-batches go forward through all stages, then all go back; forward takes
# the same time on each stage, and so does backward. Write both bubbles for p stages and m micro-batches. Targets: nine
# digits, with 0.1795 of the total and 0.2188 of the ideal time for p = 8 and m = 32.
#
# <details><summary>Hint 1: count slots</summary>
#
# A slot is one pass. How many does a rank use forward, and for how many does it wait before its first and after its
# last one, together? Draw p = 2, m = 1. Backward adds the same again, with longer slots.
#
# </details>


# %% exercise="bubbles"
def bubble_of_total(n_stages: int, n_batches: int) -> float:
    """Idle time over all time, of all ranks together. About 1 line."""
    ### BEGIN SOLUTION
    return (n_stages - 1) / (n_batches + n_stages - 1)
    ### END SOLUTION


def bubble_of_ideal(n_stages: int, n_batches: int) -> float:
    """Idle time over busy time. About 1 line."""
    ### BEGIN SOLUTION
    return (n_stages - 1) / n_batches
    ### END SOLUTION


# %%
counts = [4, 8, 16, 32, 64, 128]
lines = {
    "of the total": (counts, [bubble_of_total(8, m) for m in counts]),
    "of the ideal": (counts, [bubble_of_ideal(8, m) for m in counts]),
}
plots.plot_lines({}, lines, x_label="micro-batches", y_label="bubble", title="8 stages", mark={"m = 4 p": 32}, log="x")

# %% check="bubble_of_total" points=2
checks.lesson_08.bubble_of_total(bubble_of_total)
### BEGIN HIDDEN TESTS
checks.lesson_08.bubble_of_total(bubble_of_total, cases=[{"n_stages": 6, "n_batches": 11}])
### END HIDDEN TESTS

# %% check="bubble_of_ideal" points=2
checks.lesson_08.bubble_of_ideal(bubble_of_ideal)
### BEGIN HIDDEN TESTS
checks.lesson_08.bubble_of_ideal(bubble_of_ideal, cases=[{"n_stages": 6, "n_batches": 11}])
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** With m = 4 p almost a fifth of the total time is still idle, far from negligible. GPipe could call
# it so because its stages recompute activations, and do that while they wait for the gradient. The two conventions part
# where the bubble is large: with few micro-batches one passes 1, the other never does.

# %% [markdown]
# ## 8.2 A graph in pieces
#
# Autograd follows a tensor through one process. What a rank receives is numbers without a past: the graph of stage 2
# begins at its input and ends at its output, and the gradient has to be carried over each cut by hand.
#
# **Predict.** Four ranks send their outputs on with `dist.send`, the last one calls `loss.backward()`. Which ranks have
# gradients then, and does anything fail?

# %% [markdown]
# **Task 8.2** (30 minutes, 10 points). `Stage(module)` takes micro-batches through a module. `forward(k, x)` returns
# the output for micro-batch k without a graph, and keeps what backward needs. `backward(k, gradient)` takes the
# gradient of that output, adds to the gradients that the module's parameters have, and returns the gradient of x.
# Several micro-batches may be in flight, under any numbers, and come back in any order. The caller leaves x alone until
# backward(k), and so do you: the x and the gradient that you get stay as they are, and of the module only the gradients
# change. Some parameters may be frozen (requires_grad is False), unused, or used twice: each gets what autograd gives
# it, a frozen one None, and an unused one None or zeros. To go through the module again in backward is allowed; the
# gradient is that of the output that has left, also where a module draws random numbers, as dropout does, and torch's
# random state is after backward what it was before; no module here has buffers that a pass changes, as batch norm has.
# The first stage's x are characters, whole numbers, which have no gradient: there anything may be returned. Targets:
# gradients of a TinyGPT in parts equal those of one process to 1e-10; after backward(k, ...) nothing of micro-batch k's
# tensors is kept, on the object or elsewhere, not even one value of theirs.
#
# <details><summary>Hint 1: "the input of a stage is the start of its graph", "does not require grad"</summary>
#
# A new leaf: `x.detach().requires_grad_()`. The module's output then has a graph back to it, and after backward the
# leaf has a `.grad`.
#
# </details>
# <details><summary>Hint 2: several in flight; "only Tensors of floating point"</summary>
#
# Keep x and y under the number k, in a dictionary. `y.backward(gradient)` begins with a gradient that somebody else
# has computed. Ask `x.is_floating_point()` before you ask for its gradient.
#
# </details>
# <details><summary>Hint 3: "still keeps", "hangs on its graph"</summary>
#
# A graph lives as long as somebody holds its output. `dict.pop(k)` returns a value and forgets it; `y.detach()` is the
# same numbers without the graph.
#
# </details>


# %% exercise="stage"
class Stage:
    """A module as one stage of a pipeline: micro-batches go forward and come back by number."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.kept = {}  # k -> what backward needs

    def forward(self, k: int, x: torch.Tensor) -> torch.Tensor:
        """The module's output for micro-batch k, without its graph. About 6 lines."""
        ### BEGIN SOLUTION
        x = x.detach()
        if x.is_floating_point():
            x.requires_grad_()
        y = self.module(x)
        self.kept[k] = x, y
        return y.detach()
        ### END SOLUTION

    def backward(self, k: int, gradient: torch.Tensor) -> torch.Tensor | None:
        """The gradient of micro-batch k's input, given that of its output. About 3 lines."""
        ### BEGIN SOLUTION
        x, y = self.kept.pop(k)
        y.backward(gradient)
        return x.grad
        ### END SOLUTION


# %%
# One line of Alice through a GPT in four parts, on four ranks.
from hw_utils import data, models
from hw_utils.pictures import lesson_08, player

text = data.alice(say=False).train


def gpt_parts() -> tuple:
    torch.manual_seed(0)
    model = models.TinyGPT().double()
    return model, models.parts(model, [1, 1, 1, 1])


def one_line(rank: int, world_size: int) -> float:
    x, y = text[[100]]
    part = gpt_parts()[1][rank]
    stage, edge = Stage(part), torch.empty(1, 64, 64, dtype=torch.float64)
    if rank > 0:
        dist.recv(edge, rank - 1)
    out = stage.forward(0, edge if rank > 0 else x)
    if rank < world_size - 1:
        dist.send(out, rank + 1)
        gradient = torch.empty_like(out)  # a buffer of its own: the stage still needs what is in edge
        dist.recv(gradient, rank + 1)
    else:
        gradient = (torch.softmax(out, -1) - torch.nn.functional.one_hot(y, 96)) / 64  # of the mean cross-entropy
    back = stage.backward(0, gradient)
    if rank > 0:
        dist.send(back, rank - 1)
    return sum(p.grad.square().sum().item() for p in part.parameters() if p.grad is not None) ** 0.5


# %%
model, whole = gpt_parts()
h, y = text[[100]]
for part in whole:
    h = part(h)
torch.nn.functional.cross_entropy(h.flatten(0, 1), y.flatten()).backward()
norms = [sum(p.grad.square().sum().item() for p in part.parameters()) ** 0.5 for part in whole]
lesson_08.plot_gradients(norms, simulate(one_line, 4, compute="free").results)

# %% check="stage" points=6
checks.lesson_08.stage(Stage)
### BEGIN HIDDEN TESTS
checks.lesson_08.stage(
    Stage, cases=[{"n_layers": 3, "width": 8, "cut": [1, 2], "steps": ["F2 F0 B0 F1 B2 B1", "F1 F0 B0 B1"]}]
)
### END HIDDEN TESTS

# %% check="stage_lets_go" points=4
checks.lesson_08.stage_lets_go(Stage)
### BEGIN HIDDEN TESTS
checks.lesson_08.stage_lets_go(
    Stage, cases=[{"n_layers": 3, "width": 8, "cut": [1, 2], "steps": ["F2 F0 B0 F1 B2 B1"]}]
)
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** Each rank has gradients only because somebody carried them over. Without that nothing fails: the
# last stage learns, the others stay as they were, and the loss even falls a little. The embedding stands in part 0 and,
# as the head, in part 3: the sum of both gradients is the one that its single copy would have got.

# %% [markdown]
# ## 8.3 GPipe
#
# Cut the batch into m micro-batches, send one after another, and stage 0 works on the second while stage 1 has the
# first. GPipe has two halves: all micro-batches forward, then all back.
#
# **Predict.** 4 stages, 8 micro-batches, forward 1 s and backward 2 s: how long is a step? Which stage waits longest?

# %% [markdown]
# From here on the stage is given. `stage.forward(k, x)` takes micro-batch k, float64 of shape (rows, 3), and gives an
# output of the same shape; on the last rank it gives the mean loss of that micro-batch, a number. `stage.backward(k,
# gradient)` takes the gradient of what forward gave, and returns that of x. So the last rank begins with the weight
# that a micro-batch's mean has in the mean of the whole batch: its share of the rows. The stage has its own copy of x
# until backward(k). Each pass takes its time, and is written down.

# %% [markdown]
# **Task 8.3** (20 minutes, 8 points). Write `gpipe`. `batches` has m micro-batches, some with more rows than others; on
# rank 0 they are the numbers to start with, on all other ranks zeros of the same shapes; they stay as they are, what
# comes is received in tensors of your own. Use `torch.distributed` between neighbours. The last rank returns the loss
# of the whole batch. Targets: gradients and loss of one process to 1e-10; every forward pass comes before the first
# backward pass; over each cut an activation goes forward and a gradient goes back, one message each a micro-batch, and
# no rank waits for all others; exactly (m + p - 1)(F + B) seconds on a free network.
#
# <details><summary>Hint 1: two loops</summary>
#
# Receive from rank - 1 unless you are the first, pass forward, send to rank + 1 unless you are the last. The second
# loop is its mirror, in the same order of micro-batches. `torch.empty_like(batches[k])` fits what arrives in both.
#
# </details>
# <details><summary>Hint 2: "its share of the rows"</summary>
#
# The mean over n rows is the sum of the micro-batches' means, each times rows / n. `stage.backward(k, share)` takes a
# plain float on the last rank.
#
# </details>


# %% exercise="gpipe"
def gpipe(stage, batches: list[torch.Tensor], rank: int, world_size: int) -> float | None:
    """One step: all forward passes, then all backward passes; the loss on the last rank. About 17 lines."""
    ### BEGIN SOLUTION
    n_rows, loss = sum(len(x) for x in batches), 0.0
    for k, x in enumerate(batches):
        if rank > 0:
            x = torch.empty_like(x)
            dist.recv(x, rank - 1)
        y = stage.forward(k, x)
        if rank < world_size - 1:
            dist.send(y, rank + 1)
        else:
            loss += y.item() * len(x) / n_rows
    for k, x in enumerate(batches):
        gradient = len(x) / n_rows
        if rank < world_size - 1:
            gradient = torch.empty_like(x)
            dist.recv(gradient, rank + 1)
        gradient = stage.backward(k, gradient)
        if rank > 0:
            dist.send(gradient, rank - 1)
    return loss if rank == world_size - 1 else None
    ### END SOLUTION


# %%
# One step of your schedule on stages that take 1 s forward and 2 s back.
from hw_utils.material.by_hand.orders import in_flight, play
from hw_utils.material.by_hand.stages import TimedModule, TimedStage

FREE = Network(latency_s=0.0, bandwidth_Bps=float("inf"))


def one_step(rank: int, world_size: int, schedule, n_batches: int) -> list[tuple]:
    batches = [torch.ones(2, 3, dtype=torch.float64) * (rank == 0) for _ in range(n_batches)]
    stage = TimedStage(rank, world_size, 3, 1.0, 2.0, targets=batches)
    schedule(stage, batches, rank, world_size)
    return stage.passes


def passes_of(schedule, world_size: int = 4, n_batches: int = 8) -> list[tuple]:
    run = simulate(one_step, world_size, args=(schedule, n_batches), network=FREE, compute="free")
    return [one for passes in run for one in passes]


gpipe_passes = passes_of(gpipe)
lesson_08.plot_schedule(gpipe_passes, in_flight(gpipe_passes), title="GPipe")

# %% check="gpipe" points=4
checks.lesson_08.gpipe(gpipe)
### BEGIN HIDDEN TESTS
checks.lesson_08.gpipe(gpipe, cases=[{"world_size": 3, "n_batches": 5}])
### END HIDDEN TESTS

# %% check="gpipe_in_time" points=4
checks.lesson_08.gpipe_in_time(gpipe)
### BEGIN HIDDEN TESTS
checks.lesson_08.gpipe_in_time(gpipe, cases=[{"world_size": 5, "n_batches": 6, "seconds": 30.0}])
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** 33 seconds, of which 24 are work, on every rank: all wait equally long, the first in the middle,
# the last at both ends. The strip below is the price. Each stage holds all 8 micro-batches before the first goes back,
# and more micro-batches, which would shrink the bubble, make that hill higher.

# %% [markdown]
# ## 8.4 One forward, one backward
#
# The last stage could go back with micro-batch 0 right after its forward pass. If every stage takes a backward pass as
# soon as there is one, activations go sooner.
#
# **Predict.** GPipe with 4 stages and 8 micro-batches keeps 8 activations on stage 0. How many are kept now, and how
# much shorter is the step?

# %% [markdown]
# **Task 8.4** (35 minutes, 14 points). `one_f_one_b` has the arguments and the result of `gpipe`. A rank starts with
# its warm-up of forward passes, then makes one forward and one backward pass in turn, then the backward passes that are
# left. Targets: gradients and loss of one process to 1e-10, with GPipe's messages; at most min(m, p - r) micro-batches
# in flight on rank r, and no more than one further activation received, asked for or still kept, as it came or as a
# copy; no gradient kept once it went into backward (what a rank sends does not count until it has waited for it);
# what came first goes back first; the same seconds as GPipe where all stages are alike, and where they are not,
# as few as such an order of passes needs.

# %% [markdown]
# <details><summary>Hint 1: how long is the warm-up?</summary>
#
# Ask the last stage first: it can go back at once. The one before it needs one more micro-batch under way, to have work
# while the first is away. And there are never more than m. After the last forward pass, what is under way still has to
# go back: as many backward passes as the warm-up has forward ones.
#
# </details>
# <details><summary>Hint 2: "two neighbours send to each other"</summary>
#
# After the warm-up, rank r sends its activation to r + 1, while r + 1 sends a gradient to r. `send` returns when the
# other side receives, and neither does. Send with `isend` and wait for it later, or put both messages of a cut into one
# `dist.batch_isend_irecv([dist.P2POp(dist.isend, y, rank + 1), dist.P2POp(dist.irecv, gradient, rank + 1)])`.
#
# </details>
# <details><summary>Hint 3: "stage 3 held 2"</summary>
#
# In flight are the warm-up and the forward pass that follows it. The last stage has no warm-up, its predecessor one of
# 1. Backward passes take the oldest micro-batch.
#
# </details>


# %% exercise="one_f_one_b"
def one_f_one_b(stage, batches: list[torch.Tensor], rank: int, world_size: int) -> float | None:
    """One step with few micro-batches in flight; the loss on the last rank. About 25 lines."""
    ### BEGIN SOLUTION
    m, n_rows, losses, sends = len(batches), sum(len(x) for x in batches), [], []

    def forward(k: int) -> None:
        x = batches[k]
        if rank > 0:
            x = torch.empty_like(x)
            dist.recv(x, rank - 1)
        y = stage.forward(k, x)
        if rank < world_size - 1:
            sends.append(dist.isend(y, rank + 1))
        else:
            losses.append(y.item() * len(x) / n_rows)

    def backward(k: int) -> None:
        gradient = len(batches[k]) / n_rows
        if rank < world_size - 1:
            gradient = torch.empty_like(batches[k])
            dist.recv(gradient, rank + 1)
        gradient = stage.backward(k, gradient)
        if rank > 0:
            sends.append(dist.isend(gradient, rank - 1))

    warm_up = min(m, world_size - rank - 1)
    for k in range(warm_up):
        forward(k)
    for k in range(m):
        if warm_up + k < m:
            forward(warm_up + k)
        backward(k)
    for send in sends:
        send.wait()
    return sum(losses) if rank == world_size - 1 else None
    ### END SOLUTION


# %%
# Yours, and GPipe's hill behind it.
passes = passes_of(one_f_one_b)
lesson_08.plot_schedule(passes, in_flight(passes), title="1F1B", behind=in_flight(gpipe_passes), behind_label="GPipe's")

# %%
# The same to step through: arrow keys, or point at a pass.
player.play(passes=passes, held=in_flight(passes), title="1F1B")

# %% check="one_f_one_b" points=4
checks.lesson_08.one_f_one_b(one_f_one_b)
### BEGIN HIDDEN TESTS
checks.lesson_08.one_f_one_b(one_f_one_b, cases=[{"world_size": 3, "n_batches": 2}, {"world_size": 5, "n_batches": 11}])
### END HIDDEN TESTS

# %% check="one_f_one_b_in_flight" points=5
checks.lesson_08.one_f_one_b_in_flight(one_f_one_b)
### BEGIN HIDDEN TESTS
checks.lesson_08.one_f_one_b_in_flight(
    one_f_one_b, cases=[{"world_size": 3, "n_batches": 2}, {"world_size": 5, "n_batches": 11}]
)
### END HIDDEN TESTS

# %% check="one_f_one_b_in_time" points=5
checks.lesson_08.one_f_one_b_in_time(one_f_one_b)
### BEGIN HIDDEN TESTS
checks.lesson_08.one_f_one_b_in_time(
    one_f_one_b,
    cases=[
        {"world_size": 3, "n_batches": 2, "seconds": 12.0},
        {"world_size": 5, "n_batches": 11, "seconds": 45.0},
        {"world_size": 3, "n_batches": 6, "seconds": 32.5, "forward_s": [1.0, 2.0, 1.5], "backward_s": [1.0, 3.0, 1.0]},
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** The step did not get shorter: the bubble is the way of the first micro-batch to the last stage and
# back, and no order of these passes changes that way. What fell is memory, from m to p - r. And memory is
# what allows the larger m that does make the bubble small.

# %% [markdown]
# ## 8.5 Stages that are alike
#
# All of this was with stages of one speed. The slowest stage sets the pace of a pipeline: whoever is faster waits. An
# embedding is a cheap layer, the head over a large vocabulary an expensive one.
#
# **Predict.** An embedding of 0.5 s, 12 blocks of 1 s, a head of 2.5 s, 4 stages. Three blocks for each stage, with the
# embedding in the first and the head in the last: by how much is a step slower than it could be?

# %% [markdown]
# **Task 8.5** (15 minutes, 5 points). `balance(layer_s, p)` gets the seconds of the layers in their order, and returns
# how many each of the p stages gets, at least one each, in their order; `layer_s` stays as it is. Target: no other way
# to cut has a faster slowest stage. Up to 30 layers and 5 stages come, so trying all cuts is allowed.
#
# <details><summary>Hint 1: where can a cut be?</summary>
#
# p - 1 cuts among len(layer_s) - 1 places: `itertools.combinations` has them all.
#
# </details>
# <details><summary>Hint 2: "filled up to the mean", "one cut after another"</summary>
#
# What an early stage leaves is what later ones must take. Try all cuts; or ask for a limit whether stages filled up to
# it are enough, and search the least such limit.
#
# </details>


# %% exercise="balance"
def balance(layer_s: list[float], n_stages: int) -> list[int]:
    """How many layers each stage gets so that the slowest one is as fast as can be. About 6 lines."""
    ### BEGIN SOLUTION
    from itertools import combinations

    def counts(cuts: tuple[int, ...]) -> list[int]:
        return [b - a for a, b in zip((0, *cuts), (*cuts, len(layer_s)))]

    def slowest(cuts: tuple[int, ...]) -> float:
        return max(sum(layer_s[a:b]) for a, b in zip((0, *cuts), (*cuts, len(layer_s))))

    return counts(min(combinations(range(1, len(layer_s)), n_stages - 1), key=slowest))
    ### END SOLUTION


# %%
layer_s = [0.5] + 12 * [1.0] + [2.5]
lesson_08.plot_stages(layer_s, {"three blocks each": [4, 3, 3, 4], "yours": balance(layer_s, 4)})

# %% check="balance" points=5
checks.lesson_08.balance(balance)
### BEGIN HIDDEN TESTS
checks.lesson_08.balance(
    balance,
    cases=[
        {"layer_s": [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0], "n_stages": 4, "slowest_s": 11.0},
        {"layer_s": [3.33, 3.78, 3.73, 3.1, 1.56, 3.27, 2.09], "n_stages": 4, "slowest_s": 6.92},
        {"layer_s": [0.1, 2.0002, 0.3, 2.0002, 1.0001, 1.0, 0.3], "n_stages": 4, "slowest_s": 2.3001},
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** 4 seconds instead of 5.5 for the slowest stage: more than a quarter of the step, for moving two
# blocks. The mean is 3.75, but layers cannot be cut in two. Where one layer alone is slower than the mean, no cut
# helps: it has to be split over ranks, as in lesson 6.

# %% [markdown]
# ## 8.6 Interleaved chunks
#
# The bubble is p - 1 times the time of a stage. So make stages shorter: give each rank v chunks of 1/v of the layers,
# chunk c of rank r being stage c p + r of v p. A micro-batch goes round the ranks v times. The first one reaches the
# last *rank* v times sooner.
#
# **Predict.** What does v = 2 cost?

# %% [markdown]
# **Task 8.6** (20 minutes, 9 points). `interleaved_order(p, m, v, rank)` returns the rank's passes in order, each ("F"
# or "B", chunk, micro-batch). Every rank makes them in that order, each as soon as what it needs is there; m is a
# multiple of p, v is at least 1, and passes take F/v and B/v, with F = 1 and B = 2. Targets: every pass once;
# m (F + B) + (p - 1)(F + B)/v seconds on a free network, so 28.5 for 4 ranks, 8 micro-batches, 2 chunks; where each
# message takes 0.25 s, 2 (v p - 1) of these more and no others, so 32; on rank r no more than
# 2 (p - r - 1) + (v - 1) p + 1 chunks in flight, so 11, 9, 7 and 5.
#
# <details><summary>Hint 1: the order of forward passes</summary>
#
# All ranks have the same one: p micro-batches through chunk 0, the same p through chunk 1, and so on, then the next p.
# Number the v m passes; chunk and micro-batch follow from the number by // and %.
#
# </details>
# <details><summary>Hint 2: "comes to a halt", "goes back first"</summary>
#
# Backward is the same order with the chunks reversed: what went through the last chunk can go back first. After the
# warm-up, one forward and one backward pass in turn, then what is left.
#
# </details>
# <details><summary>Hint 3: "the warm-up is too short", "holds"</summary>
#
# The last rank makes p passes in each chunk but the last, and can go back after the next one. A rank nearer to the
# front needs at least one more for each rank behind it, and with two more nobody waits for a message: one pass is
# computed while the other's is under way.
#
# </details>


# %% exercise="interleaved_order"
def interleaved_order(n_ranks: int, n_batches: int, n_chunks: int, rank: int) -> list[tuple[str, int, int]]:
    """The rank's passes in order: (kind, chunk, micro-batch). About 12 lines."""
    ### BEGIN SOLUTION
    n = n_batches * n_chunks

    def step(kind: str, number: int) -> tuple[str, int, int]:
        group, place = divmod(number, n_ranks * n_chunks)
        chunk, k = divmod(place, n_ranks)
        return kind, chunk if kind == "F" else n_chunks - 1 - chunk, group * n_ranks + k

    warm_up = min(n, 2 * (n_ranks - rank - 1) + (n_chunks - 1) * n_ranks)
    order = [step("F", number) for number in range(warm_up)]
    for number in range(n):
        if warm_up + number < n:
            order.append(step("F", warm_up + number))
        order.append(step("B", number))
    return order
    ### END SOLUTION


# %%
interleaved, waits = play([interleaved_order(4, 8, 2, rank) for rank in range(4)], {"F": 0.5, "B": 1.0})
print(*waits, sep="\n")
lesson_08.plot_schedule(interleaved, in_flight(interleaved), title="interleaved, a prime for chunk 1")

# %% check="interleaved_order" points=9
checks.lesson_08.interleaved_order(interleaved_order)
### BEGIN HIDDEN TESTS
checks.lesson_08.interleaved_order(
    interleaved_order,
    cases=[
        {"n_ranks": 3, "n_batches": 3, "n_chunks": 2, "seconds": 12.0, "late_s": 14.5, "held": [6, 6, 4]},
        {"n_ranks": 3, "n_batches": 9, "n_chunks": 3, "seconds": 29.0, "late_s": 33.0, "held": [11, 9, 7]},
        {"n_ranks": 5, "n_batches": 15, "n_chunks": 4, "seconds": 48.0, "late_s": 57.5, "held": [24, 22, 20, 18, 16]},
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** 28.5 seconds instead of 33: the bubble is half as long. It costs twice the messages, for a
# micro-batch crosses v p - 1 cuts now, and memory: 11 chunks of half a stage are 5.5 stages' worth, where 1F1B had 4.
# On a free network a warm-up with one more pass a rank would do, with 8 chunks. The second one is there for the
# messages: without it the step takes 36 s where a message takes 0.25 s, with it 32.

# %% [markdown]
# ## 8.7 A backward pass in two halves
#
# A backward pass computes two things: the gradient of the input, for which the rank before waits, and the gradient of
# the weights, for which nobody waits until the step ends. Call the first B and the second W, and there is work that
# fits into a bubble.
#
# **Predict.** F, B and W take 1 s each. 1F1B on 4 ranks with 8 micro-batches takes 33 s. Which part of its bubble can W
# fill: before the first B, or after the last one?

# %% [markdown]
# **Task 8.7** (20 minutes, 10 points). `zero_bubble_order(p, m, rank)` returns the rank's passes in order, each ("F",
# "B" or "W", micro-batch). A B needs the B of the next rank, not its W; a W needs its own B. Activations are held until
# the W. Targets: every pass once; 3 m + p - 1 seconds for m >= p, so 27 for 4 ranks and 8 micro-batches; for fewer 2 m
# + 2 p - 1, for then the way of the last micro-batch back to rank 0 is longer; never more than min(m, p) micro-batches
# in flight on a rank.
#
# <details><summary>Hint 1: begin with 1F1B</summary>
#
# Its order with each B followed by its W takes 33 s. Rank 0 has nothing better to do after a B than its W. The last
# rank has: its next B is awaited by everybody.
#
# </details>
# <details><summary>Hint 2: "until their W", "the last rank makes a W"</summary>
#
# How many micro-batches does rank r hold in 1F1B, and how many may it? The difference is how many W it can put off.
# From then on, one W a B, the oldest first; the others come at the end, where the bubble was.
#
# </details>


# %% exercise="zero_bubble_order"
def zero_bubble_order(n_ranks: int, n_batches: int, rank: int) -> list[tuple[str, int]]:
    """The rank's passes in order: (kind, micro-batch). About 9 lines."""
    ### BEGIN SOLUTION
    warm_up = n_ranks - rank  # with the first forward pass of the turns, which comes before the first B anyway
    order = [("F", k) for k in range(min(warm_up, n_batches))]
    for k in range(n_batches):
        order.append(("B", k))
        if k >= rank:
            order.append(("W", k - rank))
        if warm_up + k < n_batches:
            order.append(("F", warm_up + k))
    return order + [("W", k) for k in range(max(n_batches - rank, 0), n_batches)]
    ### END SOLUTION


# %%
zero_bubble, waits = play([zero_bubble_order(4, 8, rank) for rank in range(4)], {"F": 1.0, "B": 1.0, "W": 1.0})
print(*waits, sep="\n")
lesson_08.plot_schedule(zero_bubble, in_flight(zero_bubble), title="B and W apart")

# %% check="zero_bubble_order" points=10
checks.lesson_08.zero_bubble_order(zero_bubble_order)
### BEGIN HIDDEN TESTS
checks.lesson_08.zero_bubble_order(
    zero_bubble_order,
    cases=[
        {"n_ranks": 3, "n_batches": 1, "seconds": 7.0},
        {"n_ranks": 5, "n_batches": 3, "seconds": 15.0},
        {"n_ranks": 5, "n_batches": 11, "seconds": 37.0},
        {"n_ranks": 1, "n_batches": 1, "seconds": 3.0},
        {"n_ranks": 6, "n_batches": 13, "seconds": 44.0},
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** After the last B nobody is idle: the W that were put off fill it. What is left is the way of the
# first micro-batch, p - 1 slots. It costs memory on the later ranks, all of which hold p now, as rank 0 did. The paper
# goes on: with twice the memory, and weights that step rank by rank, the rest goes too.

# %% [markdown]
# ## The same with torch's own
#
# `torch.distributed.pipelining` has these schedules ready, and runs unmodified on the virtual cluster. Its first step
# makes an extra pass to learn the shapes, so the second is drawn. Which warm-up differs from yours? No points.

# %%
import time

from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B


def torch_steps(rank: int, world_size: int, n_batches: int, n_chunks: int) -> list[tuple]:
    modules = [TimedModule(rank, 3, 1.0 / n_chunks, 2.0 / n_chunks, chunk) for chunk in range(n_chunks)]
    stages = [
        PipelineStage(module, chunk * world_size + rank, n_chunks * world_size, torch.device("cpu"))
        for chunk, module in enumerate(modules)
    ]
    kind, of = (Schedule1F1B, stages[0]) if n_chunks == 1 else (ScheduleInterleaved1F1B, stages)
    schedule = kind(of, n_batches, loss_fn=lambda y, target: (y - target).square().mean())
    batch = torch.ones(2 * n_batches, 3, dtype=torch.float64)
    for _ in range(2):
        dist.barrier()
        start_s, n_before = time.perf_counter(), [module.n_begun for module in modules]
        schedule.step(*([batch] if rank == 0 else []), **({"target": batch} if rank == world_size - 1 else {}))
    return [
        (r, kind, k - n, chunk, a - start_s, b - start_s)
        for module, n in zip(modules, n_before)
        for r, kind, k, chunk, a, b in module.passes
        if k >= n
    ]


# %%
for own, n_chunks in ((passes, 1), (interleaved, 2)):
    run = simulate(torch_steps, 4, args=(8, n_chunks), network=FREE, compute="free")
    theirs = [one for rank_passes in run for one in rank_passes]
    lesson_08.plot_pipeline(theirs, title=f"torch, {n_chunks} chunk{'s' * (n_chunks > 1)}")
    for name, made in (("yours", own), ("torch", theirs)):
        first = [min(one[4] for one in made if one[0] == r and one[1] == "B") for r in range(4)]
        before = [sum(one[0] == r and one[1] == "F" and one[4] < first[r] for one in made) for r in range(4)]
        print(f"{n_chunks} x 4 stages, forward passes before the first backward pass, {name}: {before}")

# %% [markdown]
# **What it shows.** None differs: pass by pass torch makes the same, for 1F1B and for two chunks, the factor of two in
# the warm-up included. Its source counts p - r passes of warm-up where you counted p - r - 1 and one forward pass in
# turn: the same order, told in two ways.

# %% [markdown]
# ## Done
#
# You carried gradients over cuts, ordered passes so that memory or time fell, found where neighbours block each other,
# and read off a picture what a schedule costs.
#
# **Open question.** Where do the embedding and the head go, and what does that do to the bubble?

# %% [markdown]
# ## Further reading
#
# 1. Y. Huang et al., **[GPipe: Efficient Training of Giant Neural Networks using Pipeline
#    Parallelism](https://arxiv.org/abs/1811.06965)**, 2019: micro-batches, recomputation, the bubble of the total.
# 2. D. Narayanan et al., **[Efficient Large-Scale Language Model Training on GPU Clusters Using
#    Megatron-LM](https://arxiv.org/abs/2104.04473)**, 2021: 1F1B with a flush, interleaved chunks, the bubble of the
#    ideal.
# 3. P. Qi et al., **[Zero Bubble Pipeline Parallelism](https://arxiv.org/abs/2401.10241)**, 2024: B and W apart, and
#    the rest of the bubble.
# 4. DeepSeek-AI, **[DualPipe](https://github.com/deepseek-ai/DualPipe)**: bubbles and memory of four schedules in one
#    table. There B is the whole backward pass.
# 5. **[PyTorch: torch.distributed.pipelining](https://docs.pytorch.org/docs/2.13/distributed.pipelining.html)**.
