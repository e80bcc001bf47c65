# %% [markdown]
# # 1. Hello, ranks
#
# After this lesson you can
#
# 1. start N processes from a notebook cell and tell them apart by their **rank**;
# 2. move tensors between them with `send`, `recv`, `isend` and `irecv`, and say who waits for whom;
# 3. read a deadlock, repair it two ways, and measure what a message costs.
#
# About 105 minutes: 80 for the tasks, 25 for reading; 15 points. You need Python functions and PyTorch tensors,
# nothing about networks.

# %% [markdown]
# ## Words
#
# | word | meaning |
# |---|---|
# | process | a running program with its own memory; no other process sees its variables |
# | world size | how many processes work together in one job, N |
# | rank | a process's own number in the job, 0 to N - 1 |
# | message | a tensor's bytes on the way from one rank to another |
# | blocking | a call that returns only when its work is done |
# | deadlock | every rank waits for another one, for ever |
# | latency, bandwidth | seconds before the first byte arrives; bytes per second after it |

# %% setup

# %% [markdown]
# ## 1.1 Hello
#
# One function, many processes: `launch(worker, world_size)` starts `world_size` processes and every one of them
# runs the *same* function. Only the first argument differs. That number, the rank, decides which data, and later
# which part of a model, is a process's own.
#
# **Predict.** Four processes print one line each. In which order do the lines appear below? Run the cell twice.


# %%
def who_am_i(rank: int, world_size: int) -> int:
    print(f"I am {rank} of {world_size}")
    return rank * rank


run = launch(who_am_i, 4)
run

# %% [markdown]
# The order is whatever the processes made of it; `[rank 2]` in front of a line says who wrote it. What `return`
# gave back is in `run.results`, always in rank order, and `run.output` has what each rank printed.
#
# **Task** (5 minutes, 3 points). Write `hello`: every rank prints exactly one line, `Rank r: Hello, NAME!`, with its
# own number for r and the name as it came. Target: 1 line a rank, 0 messages: the order does not matter.

# %% [markdown]
# <details><summary>Hint 1: the text</summary>
#
# An f-string does it: `f"Rank {rank}: ..."`. Capital R, a comma after Hello, an exclamation mark.
#
# </details>
# <details><summary>Hint 2: "one rank prints for the others"</summary>
#
# There is no loop. The function already runs once on every rank; it only has to speak for itself.
#
# </details>


# %% exercise="hello"
def hello(rank: int, world_size: int, name: str) -> None:
    """Prints `Rank r: Hello, NAME!` for this rank's own r. About 1 line."""
    ### BEGIN SOLUTION
    print(f"Rank {rank}: Hello, {name}!")
    ### END SOLUTION


# %%
# Your own run: what did each rank print?
launch(hello, 3, args=("Ada",))

# %% check="hello" points=3
checks.lesson_01.hello(hello)
### BEGIN HIDDEN TESTS
checks.lesson_01.hello(hello, cases=[{"world_size": 3, "name": "Barbara L."}, {"world_size": 6, "name": "Zoë"}])
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** Nobody told the processes apart but their rank. They share the code and nothing else: a variable
# that rank 0 sets does not exist on rank 1. Whatever one rank knows and another needs must be *sent*, and the rest of
# this course is about sending as little as possible, as early as possible.

# %% [markdown]
# ## 1.2a What send and receive promise
#
# | call | returns when | its buffer |
# |---|---|---|
# | `dist.send(x, dst)` | rank dst has received the bytes | free when it returns |
# | `dist.recv(x, src)` | the bytes are in `x` | full when it returns |
# | `w = dist.isend(x, dst)` | at once | not yours until `w.wait()` |
# | `w = dist.irecv(x, src)` | at once | not yours until `w.wait()` |
#
# The third row is where most bugs live. A call without a partner is no error: it waits.

# %% [markdown]
# Below are five programs for two ranks. **Predict** before you run anything: does each one finish, hang, or fail?
# *Fails* means that it breaks a rule of the table; the virtual cluster stops such a program, real processes may send
# either value.

# %%
import inspect

from IPython.display import Code

from hw_utils.material import programs

names = ["both_send_first", "one_sends_first", "wait_comes_last", "changed_too_early", "one_recv_too_many"]
Code("\n".join(inspect.getsource(getattr(programs, name)) for name in names), language="python")

# %% [markdown]
# **Task** (10 minutes, 1 point). Fill in `predictions` with `"finishes"`, `"hangs"` or `"fails"`. The check runs the
# five programs and compares. Target: 5 of 5. (In cells with values like this one, delete the line that raises.)
#
# <details><summary>Hint 1: a table of calls</summary>
#
# Write two columns, one a rank, and draw a line between each call and its partner. A blocking call without a line
# stops its rank there.
#
# </details>

# %% exercise="predictions"
predictions = {
    "both_send_first": "?",
    "one_sends_first": "?",
    "wait_comes_last": "?",
    "changed_too_early": "?",
    "one_recv_too_many": "?",
}
### BEGIN SOLUTION
predictions = {
    "both_send_first": "hangs",
    "one_sends_first": "finishes",
    "wait_comes_last": "finishes",
    "changed_too_early": "fails",
    "one_recv_too_many": "hangs",
}
### END SOLUTION

# %%
# A picture of one that finishes: time runs to the right, an arrow is a message.
plots.plot_space_time(simulate(programs.wait_comes_last, 2, compute="free").trace)
# %% check="predictions" points=1
checks.lesson_01.predictions(predictions)

# %% [markdown]
# **What it shows.** Both arrows leave at once: `isend` announced the messages before anybody stood still. Swap it
# for `send` and both ranks stand still before they can receive. `both_send_first` is what MPI programmers write by
# habit, because MPI buffers short messages; here no message is short enough.

# %% [markdown]
# ## 1.2b When each call returns
#
# `simulate` runs the same functions on a virtual cluster whose clock is exact. A message of $D$ bytes over a link with
# latency $t$ and bandwidth $b$ takes
#
# $$T(D) = t + \frac{D}{b}$$
#
# from the moment at which *both* sides have called. The link below needs 1 s before the first byte and then 1 s for
# one float32, together 2 s. In `late_receiver` rank 1 is busy for 2 s first.

# %%
slow_link = Network(latency_s=1.0, bandwidth_Bps=4.0)  # one float32 is 4 bytes
Code(inspect.getsource(programs.late_receiver), language="python")

# %% [markdown]
# **Task** (10 minutes, 1 point). After how many seconds, from rank 0's `start`, does each of its three calls
# return? Target: three numbers in seconds, exact to the microsecond.
#
# <details><summary>Hint 1: start with the meeting</summary>
#
# A message starts when the later side has called, and takes 2 s. The send is called when the wait has returned.
#
# </details>

# %% exercise="times"
times = {"isend_s": None, "wait_s": None, "send_s": None}
### BEGIN SOLUTION
times = {"isend_s": 0.0, "wait_s": 4.0, "send_s": 6.0}
### END SOLUTION

# %%
run = simulate(programs.late_receiver, 2, network=slow_link, compute="free")
plots.plot_space_time(run.trace)
# %% check="times" points=1
checks.lesson_01.times(times)

# %% [markdown]
# **What it shows.** `isend` returned at 0 s although nobody was there to receive; the wait paid for it. A send ends
# when its receiver has the bytes, so a slow receiver makes a slow sender. In lesson 5 that gap between isend and wait
# is where a gradient travels while the next one is computed.

# %% [markdown]
# ## 1.3a Messages between two ranks
#
# **Predict.** A ball goes from rank 0 to rank 1 and back, `n_rounds` times. Each player adds 1 before it sends.
# Which number does rank 0 hold at the end, and how many messages were sent?
#
# **Task** (10 minutes, 1 point). Write `ping_pong`. Both players return the last value that they held; ranks 2 and up,
# if there are any, return 0.0. Target: 2 messages of 4 bytes a round, and every `isend` waited for.

# %% [markdown]
# <details><summary>Hint 1: two different programs</summary>
#
# `if rank == 0:` one order of send and receive, `elif rank == 1:` the other. The loop stands inside each branch.
#
# </details>
# <details><summary>Hint 2: "no rank can go on"</summary>
#
# The table names a line a rank. If both lines are the same, both ranks run the same branch.
#
# </details>


# %% exercise="ping_pong"
def ping_pong(rank: int, world_size: int, n_rounds: int) -> float:
    """The last value that this rank held of a one-element float32 ball that goes to rank 1 and back n_rounds times.

    It starts at 0.0 on rank 0; each player adds 1 just before it sends. About 10 lines.
    """
    ### BEGIN SOLUTION
    ball = torch.zeros(1)
    for _ in range(n_rounds):
        if rank == 0:
            dist.send(ball.add_(1), 1)
            dist.recv(ball, 1)
        elif rank == 1:
            dist.recv(ball, 0)
            dist.send(ball.add_(1), 0)
    return ball.item()
    ### END SOLUTION


# %%
run = simulate(ping_pong, 2, args=(3,), network=slow_link, compute="free")
plots.plot_space_time(run.trace)
# %% check="ping_pong" points=1
checks.lesson_01.ping_pong(ping_pong)
### BEGIN HIDDEN TESTS
checks.lesson_01.ping_pong(ping_pong, cases=[{"world_size": 3, "n_rounds": 7}])
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** Half of the time each player stands still. A chain of messages in which each waits for the one
# before costs its length, however many ranks there are; the ledger calls that length `run.trace.rounds`.

# %% [markdown]
# ## 1.3b A relay
#
# **Predict.** A tensor travels 0, 1, ..., N - 1 and every rank adds its own. How many messages is that, and how many
# if it comes back to rank 0?
#
# **Task** (10 minutes, 2 points). Write `relay`. `numbers[rank]` is this rank's own tensor, and what travels has its
# shape and dtype: do not change it, and read no other rank's. If `close_ring` is true, the last rank sends the sum back
# to rank 0. Target: N - 1 messages, N to close the ring.

# %% [markdown]
# <details><summary>Hint 1: three kinds of ranks</summary>
#
# The first has nobody to receive from, the last nobody to send to; those between do both. With one rank the first is
# also the last: no message at all.
#
# </details>
# <details><summary>Hint 2: a place to receive into</summary>
#
# `torch.empty_like(numbers[rank])` has the right shape and dtype; `a + b` makes a new tensor, `a += b` changes a.
#
# </details>


# %% exercise="relay"
def relay(rank: int, world_size: int, numbers: list[torch.Tensor], close_ring: bool = False) -> torch.Tensor | None:
    """The sum of all numbers: on rank N - 1, or on rank 0 if the ring is closed; None on the others.

    numbers: one tensor a rank, all of the same shape, whichever that is. About 12 lines.
    """
    ### BEGIN SOLUTION
    total = numbers[rank].clone()
    if rank > 0:
        dist.recv(total, rank - 1)
        total += numbers[rank]
    if rank < world_size - 1:
        dist.send(total, rank + 1)
    elif close_ring and world_size > 1:
        dist.send(total, 0)
    if close_ring and rank == 0 and world_size > 1:
        dist.recv(total, world_size - 1)
    ends_here = 0 if close_ring else world_size - 1
    return total if rank == ends_here else None
    ### END SOLUTION


# %%
numbers = [10**r * torch.arange(1, 4) for r in range(4)]
run = simulate(relay, 4, args=(numbers, True), network=slow_link, compute="free")
plots.plot_space_time(run.trace)
# %% check="relay" points=1
checks.lesson_01.relay(relay)
### BEGIN HIDDEN TESTS
checks.lesson_01.relay(relay, cases=[{"world_size": 6, "shape": [3, 1, 3], "closed": False}])
### END HIDDEN TESTS

# %% check="relay_closed" points=1
checks.lesson_01.relay(
    relay,
    cases=[
        {"world_size": 1, "n_elements": 2, "closed": True},
        {"world_size": 2, "n_elements": 1, "closed": True},
        {"world_size": 5, "shape": [3, 2], "closed": True},
    ],
)
### BEGIN HIDDEN TESTS
checks.lesson_01.relay(relay, cases=[{"world_size": 7, "n_elements": 4, "closed": True}])
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** A staircase: at any moment one message travels and N - 1 ranks wait. The sum is right and the
# number of messages is as small as it can be, yet with 1,000 ranks almost everybody would stand still almost always.
# Lesson 2 gets the same sum with every link busy.

# %% [markdown]
# ## 1.4a Read a hang
#
# Every rank sends to the right, then receives from the left. It looks fair, and never ends.

# %%
Code(inspect.getsource(programs.everybody_sends), language="python")

# %%
from hw_utils import Deadlock

try:
    launch(programs.everybody_sends, 4)
except Deadlock as deadlock:
    print(deadlock)

# %% [markdown]
# Each row is a rank: the call in which it stands, whom it waits for, since when, at which line. These were four real
# processes, and nothing could ever have moved again.
#
# **Task** (5 minutes, 1 point). Write what the table says: for each rank the call and the rank it waits for, as
# `("recv", 3)`. Target: 4 of 4.
#
# <details><summary>Hint 1: the cycle</summary>
#
# Follow the column `for` from rank 0: whom does it wait for, and whom does that one wait for?
#
# </details>

# %% exercise="read_a_hang"
waits = {0: None, 1: None, 2: None, 3: None}
### BEGIN SOLUTION
waits = {0: ("send", 1), 1: ("send", 2), 2: ("send", 3), 3: ("send", 0)}
### END SOLUTION

# %% check="read_a_hang" points=1
checks.lesson_01.read_a_hang(waits)

# %% [markdown]
# ## 1.4b Repair it, two ways
#
# **Task** (15 minutes, 2 points). In both, `values[rank]` is the number that a rank sends to its
# *right* neighbour, and it returns the number that came from its left one.
#
# - `shift_by_parity`: only `send` and `recv`. Ranks call in different orders. Target: 2 rounds, 3 if N is odd.
# - `shift_at_once`: with `isend` or `irecv`, each of them waited for. Target: 1 round.
#
# **Predict** for which N the first repair is slower than the second.

# %% [markdown]
# <details><summary>Hint 1: parity</summary>
#
# Even ranks send first, odd ranks receive first. Try N = 3 on paper as well: ranks 2 and 0 are neighbours and both
# even, but rank 1 gets its number at once, so somebody can move.
#
# </details>
# <details><summary>Hint 2: "something is waited for before the other half is posted"</summary>
#
# `w = dist.isend(...)`, then the receive, then `w.wait()`. Nothing may stand still between the first two.
#
# </details>


# %% exercise="shift_by_parity"
def shift_by_parity(rank: int, world_size: int, values: list[float]) -> float:
    """The value of the left neighbour, moved with blocking calls only. At least 2 ranks. About 9 lines."""
    ### BEGIN SOLUTION
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    mine, theirs = torch.tensor([values[rank]]), torch.empty(1)
    if rank % 2 == 0:
        dist.send(mine, right)
        dist.recv(theirs, left)
    else:
        dist.recv(theirs, left)
        dist.send(mine, right)
    return theirs.item()
    ### END SOLUTION


# %% exercise="shift_at_once"
def shift_at_once(rank: int, world_size: int, values: list[float]) -> float:
    """The value of the left neighbour; every message travels at the same time. At least 2 ranks. About 6 lines."""
    ### BEGIN SOLUTION
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    mine, theirs = torch.tensor([values[rank]]), torch.empty(1)
    sending = dist.isend(mine, right)
    dist.recv(theirs, left)
    sending.wait()
    return theirs.item()
    ### END SOLUTION


# %%
fig, axes = plt.subplots(2, 1, figsize=(9, 5), layout="constrained")
for ax, repair in zip(axes, (shift_by_parity, shift_at_once)):
    run = simulate(repair, 5, args=([0.0, 1.0, 2.0, 3.0, 4.0],), network=slow_link, compute="free")
    plots.plot_space_time(run.trace, ax=ax)
    ax.set_title(f"{repair.__name__}: rounds: {run.trace.rounds}", loc="left", fontsize="medium")
    ax.set_xlim(0, 6.2)

# %% check="shift_by_parity" points=1
checks.lesson_01.shift_by_parity(shift_by_parity)
### BEGIN HIDDEN TESTS
checks.lesson_01.shift_by_parity(
    shift_by_parity, cases=[{"world_size": 7, "way": "shift_by_parity"}, {"world_size": 10, "way": "shift_by_parity"}]
)
### END HIDDEN TESTS

# %% check="shift_at_once" points=1
checks.lesson_01.shift_at_once(shift_at_once)
### BEGIN HIDDEN TESTS
checks.lesson_01.shift_at_once(shift_at_once, cases=[{"world_size": 9, "way": "shift_at_once"}])
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** Parity takes two rounds, and a third where two even ranks meet; with `isend` all arrows are
# parallel. The second never needs more than one round, so it wins for every N, and it does not need to know who its
# neighbours' neighbours are. Rings in lesson 2 are built from it.

# %% [markdown]
# ## 1.5 Measure a link
#
# What does a message cost on this machine? Two numbers answer it: seconds before the first byte, and bytes per second
# after it. **Predict** both for two processes on one computer, before you measure.
#
# **Task** (15 minutes, 4 points). `time_message` times `repeats` round trips between ranks 0 and 1, in messages of
# n_bytes, and returns the seconds of *one* message on rank 0. `fit_link` finds latency and bandwidth from sizes and
# times. Target: on a link without noise both exact to 6 digits; with 5 % noise both fits within 3 %.
#
# Sizes from 1 B to 16 MB have times that differ by a factor of thousands, and each is off by a few per cent *of
# itself*. So the line should be close to every time in per cent, not in seconds: find $t$ and $b$ for which
#
# $$\sum_k \left(\frac{t + D_k / b - T_k}{T_k}\right)^2$$
#
# is smallest. Ordinary least squares leaves the division out, and the largest message decides alone.

# %% [markdown]
# <details><summary>Hint 1: there and back</summary>
#
# A tensor of `torch.uint8` has one byte an element. `time.perf_counter()` before and after; a round trip is two
# messages.
#
# </details>
# <details><summary>Hint 2: "one big message outweighs the small ones"</summary>
#
# latency + bytes / bandwidth = seconds is one equation a size. Divide it by its seconds, so that every size counts
# alike: `torch.linalg.lstsq` with columns 1 / seconds and bytes / seconds, right side 1.
#
# </details>

# %% exercise="time_message"
import time


def time_message(rank: int, world_size: int, n_bytes: int, repeats: int) -> float:
    """Seconds of one message of n_bytes between ranks 0 and 1, the only ones; rank 0 returns it. About 10 lines."""
    ### BEGIN SOLUTION
    buffer = torch.zeros(n_bytes, dtype=torch.uint8)
    start = time.perf_counter()
    for _ in range(repeats):
        if rank == 0:
            dist.send(buffer, 1)
            dist.recv(buffer, 1)
        else:
            dist.recv(buffer, 0)
            dist.send(buffer, 0)
    return (time.perf_counter() - start) / (2 * repeats)
    ### END SOLUTION


# %% exercise="fit_link"
def fit_link(sizes_bytes: list[int], seconds: list[float]) -> tuple[float, float]:
    """(latency_s, bandwidth_Bps) of the link that explains the times best, each size counting alike. About 5 lines."""
    ### BEGIN SOLUTION
    t = torch.tensor(seconds, dtype=torch.float64)
    columns = torch.stack([1 / t, torch.tensor(sizes_bytes, dtype=torch.float64) / t], dim=1)
    latency_s, seconds_per_byte = torch.linalg.lstsq(columns, torch.ones(len(t), 1, dtype=torch.float64)).solution
    return latency_s.item(), 1 / seconds_per_byte.item()
    ### END SOLUTION


# %%
# Your link, on two real processes, from 1 byte to 16 MB.
sizes_bytes = [4**k for k in range(13)]
seconds = [launch(time_message, 2, args=(size, 20))[0] for size in sizes_bytes]
latency_s, bandwidth_Bps = fit_link(sizes_bytes, seconds)
plots.plot_link(sizes_bytes, seconds, fit=Network(latency_s, bandwidth_Bps))
print(f"latency {latency_s * 1e6:.0f} us, bandwidth {bandwidth_Bps / 1e9:.2f} GB/s")

# %% check="time_message" points=1
checks.lesson_01.time_message(time_message)
### BEGIN HIDDEN TESTS
checks.lesson_01.time_message(
    time_message, cases=[{"n_bytes": 333, "repeats": 7, "latency_s": 0.02, "bandwidth_Bps": 1e4}]
)
### END HIDDEN TESTS

# %% check="fit_link" points=3
checks.lesson_01.fit_link(fit_link)
### BEGIN HIDDEN TESTS
checks.lesson_01.fit_link(
    fit_link,
    cases=[
        {"latency_s": 3e-4, "bandwidth_Bps": 1.25e8, "noise": 0.04},
        {"latency_s": 2.5e-3, "bandwidth_Bps": 7e9, "noise": 0.0},
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# **What it shows.** Left of the bend a message costs its latency, whatever is in it: a thousand small ones cost a
# thousand latencies. Right of it only bytes count. The bend is at latency times bandwidth; whether an algorithm should
# send few messages or few bytes depends on which side of it you are. Lesson 2 turns that into a choice.

# %% [markdown]
# ## Done
#
# You started processes from a cell and told them apart, moved tensors and said who waits for whom, read a deadlock,
# repaired it twice, and measured a link.
#
# **Further reading**
#
# - **[torch.distributed](https://docs.pytorch.org/docs/2.13/distributed.html)**: every call of this lesson, from its
#   makers.
# - **[Writing distributed applications with PyTorch](https://docs.pytorch.org/tutorials/intermediate/dist_tuto.html)**:
#   the same first steps, started from a shell.
# - **[The MPI standard](https://www.mpi-forum.org/docs/)**: where send, receive, rank and their promises come from.
# - **[E. G. Coffman, M. Elphick, A. Shoshani: System deadlocks (1971)](https://doi.org/10.1145/356586.356588)**:
#   the four conditions, and the graph that the wait-for table draws.
# - **[R. W. Hockney: The communication challenge for MPP (1994)](https://doi.org/10.1016/S0167-8191(06)80021-9)**:
#   latency and bandwidth as two numbers that are measured with a ping-pong.
#
# **Open question.** The relay needs N - 1 rounds for a sum that ends on one rank. What is the smallest number of
# rounds in which *every* rank can hold the sum, and does it also take the fewest bytes?
