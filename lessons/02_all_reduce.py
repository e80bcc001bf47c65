# %% [markdown]
# # 2. All-reduce: the same sum on every rank
#
# When you have finished, you can
#
# 1. write an all-reduce along a tree and around a ring from nothing but send and receive,
# 2. count the messages, bytes and rounds of an algorithm, and say which one a slow network punishes,
# 3. predict from latency and bandwidth how long it takes, and which algorithm to choose.
#
# About 150 minutes: 115 for the tasks, 35 for reading; 50 points. The bonus takes 30 more. You need lesson 1: send,
# recv, isend, and how to read a deadlock.

# %% [markdown]
# **Words.** *All-reduce*: rank n has a tensor x_n; afterwards every rank has the sum of them all. *Chunk*: a piece of
# a tensor that travels. *Round*: messages that can travel at the same time; an algorithm's rounds are its longest chain
# of messages that wait for one another. *Neighbour*: the next rank in a ring. *Latency*: seconds before the first byte
# of a message. *Bandwidth*: bytes a second after it. *Ledger*: `run.trace`, the list of every message.

# %% setup

# %% [markdown]
# ## What an all-reduce does
#
# Training on N workers needs one operation again and again: add up everybody's gradients, and let everybody have the
# sum. `dist.all_reduce` does that in place. Below, rank r holds `10**r`, so a digit of the result tells whose share is
# in it. Look at the last column of the picture: who sends how much?


# %%
def built_in(rank, world_size):
    tensor = 10.0**rank * torch.ones(8)
    dist.all_reduce(tensor)
    return tensor[0].item()


run = launch(built_in, 4)
run

# %% [markdown]
# Four real processes, and each has 1111. The ledger counts what gloo's algorithm puts on the wire. In this lesson you
# write the algorithm. No collective may be called: only `send`, `recv`, `isend`, `irecv` and `batch_isend_irecv`, and
# the ledger tells. Your functions take one tensor of any shape and reduce it in place; rank and world size come from
# `dist.get_rank()` and `dist.get_world_size()`.

# %% [markdown]
# ## 2.1 A tree
#
# Phase I: ranks pair up, one of each pair sends its tensor and is done, the other adds it. Those who are left pair up
# again, until rank 0 has the sum. Phase II: the sum goes back along the same pairs, last pair first.
#
# **Predict.** 8 ranks, and all pairs of a step exchange at once. How many steps until everybody has the sum? And with
# 9 ranks? With 1,000? Write the three numbers down before you go on.

# %% [markdown]
# ### 2.1a Count the steps
#
# **Task** (10 minutes, 5 points). `tree_steps(world_size)` returns the steps of both phases together. Target: exact for
# every number of ranks from 1 to 2**29 + 1, as an `int`.
#
# <details><summary>Hint 1: how fast do they become fewer?</summary>
#
# After a step, half of the ranks are left; of an odd number, the larger half. Count until one is left.
#
# </details>
# <details><summary>Hint 2: "rounded down" or "expected an int"</summary>
#
# `math.log2` gives a float, and for large numbers not an exact one. `int.bit_length()` is exact: try it for 7, 8 and 9,
# and for one less than each.
#
# </details>


# %% exercise="tree_steps"
def tree_steps(world_size: int) -> int:
    """Steps that a tree all-reduce takes, both phases. About 1 line."""
    ### BEGIN SOLUTION
    return 2 * (world_size - 1).bit_length()
    ### END SOLUTION


# %%
from hw_utils.pictures import lesson_02

lesson_02.plot_steps({n: tree_steps(n) for n in range(1, 33)})

# %% check="tree-steps" points=5
checks.lesson_02.tree_steps(tree_steps)
### BEGIN HIDDEN TESTS
checks.lesson_02.tree_steps(tree_steps, cases=[{"world_sizes": [1, 2, 10, 17, 33, 127, 128, 129, 4095, 4097]}])
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** A staircase that climbs by two whenever the number of ranks passes a power of two, far below the
# line of a root that talks to one rank after the other. From 8 to 1,024 ranks the tree goes from 6 steps to 20, the
# other way from 14 to 2,046.

# %% [markdown]
# ### 2.1b Find the partner
#
# At step 1 every odd rank sends to the rank just below it. The even ones are left: 0, 2, 4, 6, ... At step 2 every
# second one of those sends to the one below it *that is left*: 2 to 0, 6 to 4. And so on: after step i only the
# multiples of 2**i are left.
#
# **Predict.** To whom does rank 12 send, and at which step? And rank 7?

# %% [markdown]
# **Task** (10 minutes, 5 points). `tree_partner(rank, step)` returns the rank to which `rank` sends at `step` (counted
# from 1) of phase I, or `None` if it does not send then: because it receives, or because it has sent before. Target:
# right for all 63 sends among 64 ranks.
#
# <details><summary>Hint 1: write a column of remainders</summary>
#
# For step 2, write rank modulo 4 beside each rank from 0 to 7. Which remainder do exactly the senders have?
#
# </details>
# <details><summary>Hint 2: "sent at an earlier step: expected None"</summary>
#
# An odd rank has done its part at step 1. Its remainder at step 2 is 1 or 3, the senders' is another one.
#
# </details>


# %% exercise="tree_partner"
def tree_partner(rank: int, step: int) -> int | None:
    """To whom `rank` sends at `step` (from 1) of phase I; None if it does not send. About 3 lines."""
    ### BEGIN SOLUTION
    distance = 2 ** (step - 1)
    sends = rank % (2 * distance) == distance
    return rank - distance if sends else None
    ### END SOLUTION


# %%
lesson_02.plot_partners([[tree_partner(rank, step) for rank in range(8)] for step in (1, 2, 3)])

# %% check="tree-partner" points=5
checks.lesson_02.tree_partner(tree_partner)
### BEGIN HIDDEN TESTS
checks.lesson_02.tree_partner(tree_partner, cases=[{"world_size": 128}])
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** Every rank but 0 has one arrow that leaves it, and they meet in rank 0: a tree, drawn from its
# leaves. In each row the arrows touch every rank at most once, so they can travel at the same time. Read from the last
# row to the first with the arrows turned round, it is phase II.

# %% [markdown]
# ### 2.1c All-reduce along the tree
#
# **Predict.** How many whole tensors travel in all, with 8 ranks? Which rank sends most, and how many?
#
# **Task** (20 minutes, 10 points). `tree_all_reduce(tensor)`: after it, `tensor` holds the sum on every rank. Any
# number of ranks, any shape (a single number without dimensions, too), any dtype of numbers (bfloat16, too), also a
# tensor whose elements do not lie side by side in memory.
# Target: 2 (N - 1) messages of the whole tensor, `tree_steps(N)` rounds.

# %% [markdown]
# <details><summary>Hint 1: the other end</summary>
#
# `tree_partner` tells a sender whom to send to. A receiver asks for the rank `2 ** (step - 1)` above: does it exist,
# and would it send to me at this step?
#
# </details>
# <details><summary>Hint 2: "input tensor has to be contiguous"</summary>
#
# Messages need elements side by side. `tensor.contiguous()` gives the tensor itself if they are, else a copy; copy the
# result back into `tensor` at the end.
#
# </details>
# <details><summary>Hint 3: "3 is not a power of two"</summary>
#
# With 3 ranks, rank 2 has no partner at step 1. It skips that step and sends at step 2. Phase II runs the same steps
# backwards, and every send becomes a receive into the tensor itself.
#
# </details>


# %% exercise="tree_all_reduce"
def tree_all_reduce(tensor: torch.Tensor) -> None:
    """Replaces `tensor` by the sum over all ranks, along a binary tree. About 20 lines."""
    ### BEGIN SOLUTION
    rank, world_size = dist.get_rank(), dist.get_world_size()
    data = tensor.contiguous()
    incoming = torch.empty_like(data)
    steps = range(1, tree_steps(world_size) // 2 + 1)

    def sender(step: int) -> int | None:
        above = rank + 2 ** (step - 1)
        return above if above < world_size and tree_partner(above, step) == rank else None

    for step in steps:
        if (below := tree_partner(rank, step)) is not None:
            dist.send(data, below)
        elif (above := sender(step)) is not None:
            dist.recv(incoming, above)
            data += incoming
    for step in reversed(steps):
        if (below := tree_partner(rank, step)) is not None:
            dist.recv(data, below)
        elif (above := sender(step)) is not None:
            dist.send(data, above)
    if data is not tensor:
        tensor.copy_(data)
    ### END SOLUTION


# %%
# Your own run, round by round: which ranks' shares does each rank hold?
from hw_utils.pictures.partial_sums import watch
from hw_utils.pictures.player import play

play(chunks=watch(tree_all_reduce, world_size=8, n_chunks=1))

# %% [markdown]
# Four points are for the sum, whatever the way. Six are for the way.

# %% check="tree-sum" points=4
checks.lesson_02.tree_sum(tree_all_reduce)
### BEGIN HIDDEN TESTS
checks.lesson_02.tree_sum(
    tree_all_reduce,
    cases=[{"world_size": 4, "n_elements": 6, "seed": 3}, {"world_size": 7, "n_elements": 5, "seed": 1}],
)
### END HIDDEN TESTS

# %% check="tree" points=6
checks.lesson_02.tree_all_reduce(tree_all_reduce)
### BEGIN HIDDEN TESTS
checks.lesson_02.tree_all_reduce(
    tree_all_reduce,
    cases=[
        {"world_size": 6, "n_elements": 11, "seed": 2},
        {"world_size": 11, "n_elements": 4, "dtype": "int64", "seed": 5},
        {"world_size": 5, "shape": [2, 3, 2], "layout": "transposed", "seed": 4, "calls": 2},
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** Phase I fills rank 0 and leaves the others behind; phase II overwrites what is stale. At the first
# and the last step four messages travel, in the middle only one: most links are idle most of the time, and every
# message is the whole tensor.

# %% [markdown]
# ## 2.2 A ring
#
# Cut the tensor into N chunks, and keep every link busy. At each step every rank sends one chunk to its *left*
# neighbour, (n - 1) mod N, and receives another one from its right. Phase I, *scatter-reduce*: add what comes in, N - 1
# steps; then each rank has one chunk complete. Phase II, *all-gather*: pass the complete chunks on, N - 1 steps.

# %% [markdown]
# ### 2.2a Which chunk, when
#
# At step 1, rank n sends chunk n - 1. From then on it passes on the chunk that has just come in, with its own share
# added.
#
# **Predict.** With 4 ranks, follow chunk 0: which ranks does it visit, and where is it complete after three steps?
# Which chunk does rank 2 own then?

# %% [markdown]
# **Task** (15 minutes, 5 points). Two formulas. `chunk_to_send(rank, step, world_size)`: the chunk that leaves `rank`
# at `step` (from 1) of phase I. `chunk_owned(rank, world_size)`: the chunk that is complete on `rank` after phase I.
# Target: numbers from 0 to N - 1, right for every N from 2.
#
# <details><summary>Hint 1: a table</summary>
#
# Write ranks down and steps across for N = 4. The first column is given; each other entry is what the rank below sent
# one step earlier.
#
# </details>
# <details><summary>Hint 2: "chunks are numbered 0 to 3"</summary>
#
# Rank 0 starts with chunk N - 1: `%` takes care of it, for negative numbers too.
#
# </details>
# <details><summary>Hint 3: "n - 2 and n + 2 are the same"</summary>
#
# Only for N = 4. The chunk that a rank owns is the last one it *received*: one step further than the last it sent.
#
# </details>


# %% exercise="chunk_to_send"
def chunk_to_send(rank: int, step: int, world_size: int) -> int:
    """The chunk that `rank` sends at `step` (from 1) of phase I. About 1 line."""
    ### BEGIN SOLUTION
    return (rank - 2 + step) % world_size
    ### END SOLUTION


# %% exercise="chunk_owned"
def chunk_owned(rank: int, world_size: int) -> int:
    """The chunk that is complete on `rank` after phase I. About 1 line."""
    ### BEGIN SOLUTION
    return (rank - 2) % world_size
    ### END SOLUTION


# %%
sent = [[chunk_to_send(rank, step, 5) for step in range(1, 5)] for rank in range(5)]
lesson_02.plot_chunk_numbers(sent, owned=[chunk_owned(rank, 5) for rank in range(5)])

# %% check="chunk-to-send" points=3
checks.lesson_02.chunk_to_send(chunk_to_send)
### BEGIN HIDDEN TESTS
checks.lesson_02.chunk_to_send(chunk_to_send, cases=[{"world_size": 6}, {"world_size": 13}, {"world_size": 33}])
### END HIDDEN TESTS

# %% check="chunk-owned" points=2
checks.lesson_02.chunk_owned(chunk_owned)
### BEGIN HIDDEN TESTS
checks.lesson_02.chunk_owned(chunk_owned, cases=[{"world_size": 2}, {"world_size": 9}])
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** In every column each number stands once: all chunks travel at every step. Each colour climbs
# one rank a step, to the left neighbour, and the framed last column is where it comes to rest: one chunk a rank.

# %% [markdown]
# ### 2.2b All-reduce around the ring
#
# **Predict.** With 4 ranks and a tensor of 8 MB, how many MB does each rank send in all? And with 1,000 ranks? What
# happens if every rank calls a blocking `send` first?
#
# **Task** (30 minutes, 15 points). `ring_all_reduce(tensor)`, for the same tensors as in 2.1c, of any length, also one
# that N does not divide or that is shorter than N. Target: 2 (N - 1)/N of the tensor sent by each rank, 2 (N - 1)
# rounds.

# %% [markdown]
# <details><summary>Hint 1: cutting</summary>
#
# `flat.tensor_split(world_size)` gives N chunks, *views* of the tensor, whose lengths differ by at most one; some may
# be empty. `chunk` and `split` may give fewer than N.
#
# </details>
# <details><summary>Hint 2: "every rank stands in send"</summary>
#
# Start the send, receive, and only then wait for the send: `sending = dist.isend(...)`, `dist.recv(...)`,
# `sending.wait()`. Receive into a buffer of your own, not into the chunk that is being sent.
#
# </details>
# <details><summary>Hint 3: the second phase</summary>
#
# What leaves at step N is the chunk that you own: the formula of 2.2a simply goes on. Only what happens to a chunk that
# comes in differs.
#
# </details>


# %% exercise="ring_all_reduce"
def ring_all_reduce(tensor: torch.Tensor) -> None:
    """Replaces `tensor` by the sum over all ranks, around a ring, sending to the left. About 16 lines."""
    ### BEGIN SOLUTION
    rank, world_size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    data = tensor.contiguous()
    chunks = data.view(-1).tensor_split(world_size)
    buffer = torch.empty_like(chunks[0])  # the first chunk is the longest
    for step in range(1, 2 * world_size - 1):
        leaving = chunks[chunk_to_send(rank, step, world_size)]
        arriving = chunks[chunk_to_send(right, step, world_size)]
        is_sum = step < world_size
        incoming = buffer[: len(arriving)] if is_sum else arriving
        sending = dist.isend(leaving, left)
        dist.recv(incoming, right)
        if is_sum:
            arriving += incoming
        sending.wait()
    if data is not tensor:
        tensor.copy_(data)
    ### END SOLUTION


# %%
# Your own run, round by round: whose shares are in which chunk, on which rank?
play(chunks=watch(ring_all_reduce, world_size=4))


# %%
# And in time: the arrows of one step should be parallel.
def one_all_reduce(rank, world_size, all_reduce, n_elements):
    all_reduce(torch.ones(n_elements))


play(simulate(one_all_reduce, 4, args=(ring_all_reduce, 4000), compute="free"))

# %% [markdown]
# Five points are for the sum, whatever the way. Ten are for the way: neighbours, bytes, rounds.

# %% check="ring-sum" points=5
checks.lesson_02.ring_sum(ring_all_reduce)
### BEGIN HIDDEN TESTS
checks.lesson_02.ring_sum(
    ring_all_reduce,
    cases=[{"world_size": 4, "n_elements": 8, "seed": 3}, {"world_size": 6, "n_elements": 5, "seed": 1}],
)
### END HIDDEN TESTS

# %% check="ring" points=10
checks.lesson_02.ring_all_reduce(ring_all_reduce)
### BEGIN HIDDEN TESTS
checks.lesson_02.ring_all_reduce(
    ring_all_reduce,
    cases=[
        {"world_size": 4, "n_elements": 16, "seed": 2},
        {"world_size": 11, "n_elements": 5},
        {"world_size": 7, "n_elements": 40, "dtype": "int64", "seed": 5, "calls": 2},
        {"world_size": 5, "shape": [3, 2, 3], "layout": "transposed", "seed": 4},
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** At every step each rank sends and receives once, so all links are busy from the first step to the
# last, and nobody sends more than anybody else. A rank sends less than two tensors however many ranks there are; what
# grows with N is the number of rounds.


# %%
# The same function, unchanged, on four real processes.
def on_real_ranks(rank, world_size, all_reduce):
    tensor = 10.0**rank * torch.arange(1, 9)
    all_reduce(tensor)
    return tensor.tolist()


launch(on_real_ranks, 4, args=(ring_all_reduce,))

# %% [markdown]
# ## 2.3a What it costs
#
# A message of $D$ bytes over a link with latency $t$ (seconds) and bandwidth $b$ (bytes a second) waits for the latency
# once, then the bytes follow. A rank can send one message and receive one at the same time. Messages that wait for one
# another add up, messages of the same round do not:
#
# $$T = \sum_{\text{rounds}} \left(t + \frac{\text{bytes of the longest message}}{b}\right)$$
#
# That model is called Hockney's, and `simulate` plays it exactly.
#
# **Predict.** t = 50 microseconds, b = 125 MB/s, 16 ranks. Which is faster for 1 kB, tree or ring? For 100 MB?

# %% [markdown]
# **Task** (15 minutes, 6 points). Three formulas in seconds: one message of `n_bytes`; a tree all-reduce; a ring
# all-reduce, of `n_bytes` on each of `world_size` ranks. `network.latency_s` and `network.bandwidth_Bps` are t and b.
# A ring's chunk is `n_bytes / world_size` here, also where that is a fraction. Target: equal to the virtual network's
# clock to 9 digits, so round nothing.
#
# <details><summary>Hint 1: rounds times a message</summary>
#
# All messages of a round travel at once, and all have the same length. How many rounds, how long is a message in each?
#
# </details>
# <details><summary>Hint 2: "a step moves one chunk, not the whole tensor"</summary>
#
# Dividing the tensor by N divides the bytes of a message, not its latency.
#
# </details>


# %% exercise="point_to_point_s"
def point_to_point_s(n_bytes: float, network: Network) -> float:
    """Seconds for one message of `n_bytes`. About 1 line."""
    ### BEGIN SOLUTION
    return network.latency_s + n_bytes / network.bandwidth_Bps
    ### END SOLUTION


# %% exercise="tree_all_reduce_s"
def tree_all_reduce_s(world_size: int, n_bytes: float, network: Network) -> float:
    """Seconds for a tree all-reduce of `n_bytes` on each rank, any number of ranks. About 1 line."""
    ### BEGIN SOLUTION
    return tree_steps(world_size) * point_to_point_s(n_bytes, network)
    ### END SOLUTION


# %% exercise="ring_all_reduce_s"
def ring_all_reduce_s(world_size: int, n_bytes: float, network: Network) -> float:
    """Seconds for a ring all-reduce of `n_bytes` on each rank. About 1 line."""
    ### BEGIN SOLUTION
    return 2 * (world_size - 1) * point_to_point_s(n_bytes / world_size, network)
    ### END SOLUTION


# %%
cluster = Network(latency_s=50e-6, bandwidth_Bps=125e6)  # 1 Gb/s Ethernet
sizes = [4 * 8**k for k in range(9)]  # 4 B to 67 MB


def predicted(world_size, largest, network):
    formulas = {"tree": tree_all_reduce_s, "ring": ring_all_reduce_s}
    on = [4 * 2 ** (k / 2) for k in range(49) if 4 * 2 ** (k / 2) <= largest]
    return {name: (on, [f(world_size, n, network) for n in on]) for name, f in formulas.items()}


lesson_02.plot_cost(sizes, {}, predicted(16, sizes[-1], cluster), title="16 ranks, 1 Gb/s")

# %% check="point-to-point-s" points=2
checks.lesson_02.point_to_point_s(point_to_point_s)
### BEGIN HIDDEN TESTS
checks.lesson_02.point_to_point_s(point_to_point_s, cases=[{"n_bytes": 77, "latency_s": 3e-3, "bandwidth_Bps": 7e3}])
### END HIDDEN TESTS

# %% check="tree-s" points=2
checks.lesson_02.tree_all_reduce_s(tree_all_reduce_s)
### BEGIN HIDDEN TESTS
checks.lesson_02.tree_all_reduce_s(
    tree_all_reduce_s,
    cases=[{"world_sizes": [2, 4, 9, 32, 33], "n_bytes": 1000, "latency_s": 3e-3, "bandwidth_Bps": 7e3}],
)
### END HIDDEN TESTS

# %% check="ring-s" points=2
checks.lesson_02.ring_all_reduce_s(ring_all_reduce_s)
### BEGIN HIDDEN TESTS
checks.lesson_02.ring_all_reduce_s(
    ring_all_reduce_s,
    cases=[{"world_sizes": [2, 4, 9, 12, 36], "n_bytes": 360, "latency_s": 3e-3, "bandwidth_Bps": 7e3}],
)
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** On the left both lines are flat: only latency counts, and the tree has fewer rounds. On the right
# both rise with the bytes, and the ring is the lower one, because it sends less than two tensors where the tree waits
# for eight. Somewhere between, the lines cross.

# %% [markdown]
# ## 2.3b When to use which
#
# A tree pays few latencies and many bytes, a ring the other way round. With $r$ rounds and $w$ tensors one after the
# other (a ring's $w$ is less than 2) the two meet at
#
# $$r_\text{tree}\, t + w_\text{tree} \frac{D}{b} = r_\text{ring}\, t + w_\text{ring} \frac{D}{b}.$$
#
# **Predict.** Does the crossing move to larger or smaller tensors when there are more ranks? When the latency halves?
#
# **Task** (10 minutes, 2 points). `crossover_bytes(world_size, network)`: the bytes of a tensor for which tree and
# ring take equally long; 0 if the ring is never slower. At least 2 ranks. Target: exact to 6 digits, in bytes.
#
# <details><summary>Hint 1: two straight lines</summary>
#
# Write r and w down for N = 4 from your two formulas, and solve the equation for D. Then replace 4 by N.
#
# </details>
# <details><summary>Hint 2: "is not a power of two"</summary>
#
# Use `tree_steps(world_size)`, which rounds up, not a logarithm.
#
# </details>


# %% exercise="crossover_bytes"
def crossover_bytes(world_size: int, network: Network) -> float:
    """Bytes at which tree and ring take equally long; 0 if the ring is never slower. About 4 lines."""
    ### BEGIN SOLUTION
    tree_rounds, ring_rounds = tree_steps(world_size), 2 * (world_size - 1)
    more_latency_s = (ring_rounds - tree_rounds) * network.latency_s
    fewer_tensors = tree_rounds - ring_rounds / world_size
    return more_latency_s / fewer_tensors * network.bandwidth_Bps
    ### END SOLUTION


# %%
at = crossover_bytes(16, cluster)
lesson_02.plot_cost(sizes, {}, predicted(16, sizes[-1], cluster), title="16 ranks, 1 Gb/s", crossover_bytes=at)

# %% check="crossover" points=2
checks.lesson_02.crossover_bytes(crossover_bytes)
### BEGIN HIDDEN TESTS
checks.lesson_02.crossover_bytes(
    crossover_bytes, cases=[{"world_sizes": [2, 3, 4, 9, 31, 32, 33], "latency_s": 2e-3, "bandwidth_Bps": 1e4}]
)
### END HIDDEN TESTS

# %% [markdown] manual="when_to_use" points=2
# **In words** (5 minutes, 2 points). A model's gradients arrive as 200 tensors, most of a few kB and a few of many MB.
# The cluster has 64 nodes. Which algorithm for which tensor, and why? And what changes when the network's latency
# becomes ten times smaller? Three to five sentences.
#
# ### BEGIN SOLUTION
# Small tensors along a tree, large ones around a ring. For a few kB the time is latency times rounds, and the tree has
# 2 log2 N = 12 rounds where the ring has 126. For many MB the time is bytes over bandwidth, and a ring's rank sends
# less than 2 tensors one after the other where the tree's path is 12 tensors long. The boundary is crossover_bytes(64),
# and it is proportional to latency times bandwidth: with a tenth of the latency, ten times smaller tensors are worth a
# ring. (Better still: put small tensors into one bucket, and pay the latency once.)
#
# **Rubric**
#
# - 1 point: tree = few rounds = small tensors and ring = few bytes = large ones, with the reason
# - 1 point: the crossover moves down in proportion to the latency
# ### END SOLUTION

# %% [markdown]
# **What it shows.** At the dotted line both take the same time, and your formula put it there. Left of it the tree
# wins, by a factor that grows with N; right of it the ring does. Libraries choose by size for exactly this reason.

# %% [markdown]
# ## 2.4 Measured against predicted
#
# **Predict.** `simulate` plays the model, so its points must lie on your lines. Real processes share this computer's
# cores and memory: for which N will they be furthest from the lines, and above or below?
#
# First the virtual cluster, 64 ranks with 1 Gb/s links, tensors of 4 B to 1 MB.


# %%
def virtual_s(all_reduce, world_size, n_bytes):
    args = (all_reduce, n_bytes // 4)
    return simulate(one_all_reduce, world_size, args=args, network=cluster, compute="free").seconds


# %%
small = sizes[:7]  # 4 B to 1 MB
mine = {"tree": tree_all_reduce, "ring": ring_all_reduce, "built in": dist.all_reduce}
virtual = {name: [virtual_s(f, 64, n) for n in small] for name, f in mine.items()}
lesson_02.plot_cost(
    small,
    virtual,
    predicted(64, small[-1], cluster),
    title="64 virtual ranks, 1 Gb/s",
    crossover_bytes=crossover_bytes(64, cluster),
)

# %% [markdown]
# The points lie on the lines, to the last digit where 64 divides the length: below 64 elements some chunks are empty,
# and an empty message still costs its latency. The crossing is where you said. The built-in all-reduce of the virtual
# cluster is a ring, so its points hide yours.

# %%
for n_bytes in (256, 16_384, 1_048_576):
    for name, predicted_s in (("tree", tree_all_reduce_s), ("ring", ring_all_reduce_s)):
        measured_s, model_s = virtual_s(mine[name], 64, n_bytes), predicted_s(64, n_bytes, cluster)
        print(f"{name} {n_bytes:>9,} B: measured {measured_s:.9f} s, predicted {model_s:.9f} s")

# %% [markdown]
# Now a cluster that grows, with a tensor of 64 kB: 2 to 1,024 ranks. Beyond 128 ranks the ring's points come from the
# built-in ring, which is the same messages without your function's Python.

# %%
world_sizes = [2**k for k in range(1, 11)]
growing = {
    "tree": [virtual_s(tree_all_reduce, n, 65_536) for n in world_sizes],
    "ring": [virtual_s(ring_all_reduce if n <= 128 else dist.all_reduce, n, 65_536) for n in world_sizes],
}
lines = {
    "tree": [tree_all_reduce_s(n, 65_536, cluster) for n in world_sizes],
    "ring": [ring_all_reduce_s(n, 65_536, cluster) for n in world_sizes],
}
lesson_02.plot_growing(world_sizes, growing, lines, title="64 kB, 1 Gb/s, more and more ranks")

# %% [markdown]
# The ring pays a latency a round: with 1,024 ranks a chunk is 64 bytes, and two thousand latencies are nearly its whole
# time. The tree climbs by two rounds whenever N doubles, each as long as the whole tensor. Neither is good at both
# ends.

# %% [markdown]
# Now real processes on this computer. First its link, measured between two ranks and nothing else; then the three
# algorithms for 2, 4 and 8 ranks and 4 B to 64 MB. This takes about a minute. Expect the points to leave the lines.


# %%
import time


def best_s(rank, world_size, all_reduce, sizes, repeats):
    seconds = []
    for n_bytes in sizes:
        tensor, best = torch.ones(n_bytes // 4), float("inf")
        for _ in range(repeats):
            dist.barrier()
            start = time.perf_counter()
            all_reduce(tensor)
            best = min(best, time.perf_counter() - start)
        seconds.append(best)
    return seconds


# %%
link = Network.measure()
fig, axes = plt.subplots(3, 1, figsize=(8, 12), layout="constrained")
for n, ax in zip((2, 4, 8), axes):
    real = {}
    for name, all_reduce in mine.items():
        run = launch(best_s, n, args=(all_reduce, sizes, 3))
        real[name] = [max(seconds) for seconds in zip(*run.results)]
    at = crossover_bytes(n, link)
    title = f"{n} real ranks on this computer (not in the model: its cores are shared)"
    lesson_02.plot_cost(sizes, real, predicted(n, sizes[-1], link), title=title, crossover_bytes=at, ax=ax)

# %% [markdown]
# **What it shows.** The points lie above their lines, and further for larger N. The model gives every rank a link of
# its own; here all ranks share two or so cores, which also copy the bytes and add the numbers, and a rank that has to
# wait for a core holds up its neighbours. Nothing of that is the algorithm's fault: it is why the virtual cluster
# exists.

# %% [markdown]
# ## Bonus: both at once
#
# *Recursive halving and doubling*, for N a power of two. Halving: exchange half of your tensor with the rank N/2 away,
# add the half you keep; then a quarter with the rank N/4 away, and so on, until you have 1/N of the sum. Doubling: the
# same exchanges backwards, each giving what it has.
#
# **Predict** its rounds and the bytes a rank sends, and the line in the picture.

# %% [markdown]
# **Task** (30 minutes, no points, much honour). `halving_doubling_all_reduce(tensor)` for 1, 2, 4, 8, 16, ... ranks.
# Target: 2 log2 N rounds, 2 (N - 1)/N of the tensor sent by each rank.
#
# <details><summary>Hint 1: the partner</summary>
#
# `rank ^ distance` flips one bit of the rank: the partner's partner is you. Who keeps the lower half? The lower rank.
#
# </details>
# <details><summary>Hint 2: "every rank stands in send"</summary>
#
# Both partners send and both receive: isend, recv, wait, as in the ring. Keep a list of the halves you gave away: the
# second phase fills them in reverse.
#
# </details>


# %% exercise="halving_doubling"
def halving_doubling_all_reduce(tensor: torch.Tensor) -> None:
    """Replaces `tensor` by the sum over all ranks; the number of ranks is a power of two. About 22 lines."""
    ### BEGIN SOLUTION
    rank, distance = dist.get_rank(), dist.get_world_size() // 2
    data = tensor.contiguous()
    kept, given = data.view(-1), []

    def exchange(leaving: torch.Tensor, incoming: torch.Tensor, partner: int) -> None:
        sending = dist.isend(leaving, partner)
        dist.recv(incoming, partner)
        sending.wait()

    while distance:
        partner, (low, high) = rank ^ distance, kept.tensor_split(2)
        kept, away = (low, high) if rank < partner else (high, low)
        incoming = torch.empty_like(kept)
        exchange(away, incoming, partner)
        kept += incoming
        given.append((kept, away, partner))
        distance //= 2
    for kept, away, partner in reversed(given):
        exchange(kept, away, partner)
    if data is not tensor:
        tensor.copy_(data)
    ### END SOLUTION


# %%
play(chunks=watch(halving_doubling_all_reduce, world_size=4))

# %% check="halving-doubling" points=0
checks.lesson_02.halving_doubling_all_reduce(halving_doubling_all_reduce)
### BEGIN HIDDEN TESTS
checks.lesson_02.halving_doubling_all_reduce(
    halving_doubling_all_reduce, cases=[{"world_size": 8, "n_elements": 21, "seed": 2}]
)
### END HIDDEN TESTS


# %%
def halving_doubling_s(world_size, n_bytes, network):
    latency_s = tree_steps(world_size) * network.latency_s
    return latency_s + 2 * (world_size - 1) / world_size * n_bytes / network.bandwidth_Bps


name = "halving-doubling"
points = {**virtual, name: [virtual_s(halving_doubling_all_reduce, 64, n) for n in small]}
lines = predicted(64, small[-1], cluster)
on, _ = lines["tree"]
lines[name] = (on, [halving_doubling_s(64, n, cluster) for n in on])
lesson_02.plot_cost(small, points, lines, title="64 virtual ranks, 1 Gb/s")

# %% [markdown]
# **What it shows.** The new line follows the tree on the left and the ring on the right: the rounds of one, the bytes
# of the other. Its partners are far apart, though: where distant nodes share links, all those exchanges
# across the middle meet on the same cables.

# %% [markdown]
# ## Done
#
# You wrote two all-reduces and watched every chunk of them travel; you counted their messages, bytes and rounds, and
# the ledger agreed; you predicted their times, found the size at which they swap places, and saw where a real computer
# leaves the model.
#
# **Further reading**
#
# - **[P. Patarasuk, X. Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations
#   (2009)](https://doi.org/10.1016/j.jpdc.2008.09.002)**: the ring, and the proof that no algorithm sends fewer bytes.
# - **[R. Thakur, R. Rabenseifner, W. Gropp: Optimization of collective communication operations in MPICH
#   (2005)](https://doi.org/10.1177/1094342005051521)**: which algorithm for which size, measured; halving and doubling.
# - **[E. Chan, M. Heimlich, A. Purkayastha, R. van de Geijn: Collective communication: theory, practice, and experience
#   (2007)](https://doi.org/10.1002/cpe.1206)**: costs and lower bounds of them all, in one notation.
# - **[A. Gibiansky: Bringing HPC techniques to deep learning
#   (2017)](https://andrew.gibiansky.com/blog/machine-learning/baidu-allreduce/)**: how the ring came to deep learning.
# - **[S. Jeaugey: Massively scale your deep learning training with NCCL 2.4
#   (2019)](https://developer.nvidia.com/blog/massively-scale-deep-learning-training-nccl-2-4/)**: trees again, on GPUs.
#
# **Open question.** A ring's bytes can't be beaten: why must every rank send at least 2 (N - 1)/N of the tensor,
# whatever the algorithm? And what would a switch that can add numbers change?
