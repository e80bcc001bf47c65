"""Planted mistakes of lesson 05."""

from __future__ import annotations

import math
import statistics
import time
from contextlib import contextmanager

import torch
import torch.distributed as dist

from hw_utils.material.models import SimpleCNN
from tests.checks.wrong_answers import wrong, wrong_values

# 5.1 expectation

for _name, _formula, _says in [
    ("takes_percent", lambda n, s: 1 / (s / 100 + (1 - s / 100) / n), "0.2 and not 20"),
    ("inverse", lambda n, s: s + (1 - s) / n, "how many times faster: one over it"),
    ("ideal", lambda n, s: float(n), "does not shrink with N"),
    ("mixed_up", lambda n, s: 1 / (s / n + 1 - s), "only it is divided by N"),
    ("in_percent", lambda n, s: 100 / (s + (1 - s) / n), "that is in percent"),
    ("gustafson", lambda n, s: s + (1 - s) * n, "for work that grows with N"),
    ("the_efficiency", lambda n, s: 1 / (s + (1 - s) / n) / n, "that is the efficiency"),
    ("the_bound", lambda n, s: min(n, 1 / s) if s else n, "for ever more ranks"),
    ("rounded", lambda n, s: round(1 / (s + (1 - s) / n)), "nothing is rounded"),
    ("nothing", lambda n, s: None, "gave None.*is there a return"),
    ("never_over_twenty", lambda n, s: min(20.0, 1 / (s + (1 - s) / n)), r"amdahl_speedup\(200, 0.01\) gave 20"),
    ("right_for_many_only", lambda n, s: 1 / (s + (1 - s) / n) if n > 4 else n - s, "gave"),
    ("the_bound_for_many", lambda n, s: 1 / s if n > 200 else 1 / (s + (1 - s) / n), "for ever more ranks"),
    ("shares_out_the_whole", lambda n, s: 1 / (s + 1 / n), "only 1 - serial_fraction is shared out"),
    ("two_digits", lambda n, s: round(1 / (s + (1 - s) / n), 2), "right but rounded"),
    ("in_words", lambda n, s: f"{1 / (s + (1 - s) / n)}", "that is text"),
    ("no_brackets", lambda n, s: (1 / s if s else 1.0) + (1 - s) / n, "stands below the 1: brackets around it"),
    ("times_n", lambda n, s: n * (s + (1 - s) / n), "how much of N times the work is done|gustafson"),
]:
    wrong_values("lesson_05.amdahl_speedup", _name, _formula, says=_says)

for _name, _formula, _says in [
    ("one_way", lambda n, m: (n - 1) * m, "count both ways"),
    ("sends_to_itself", lambda n, m: 2 * n * m, "sends nothing to itself"),
    ("one_client", lambda n, m: 2 * m, "sends nothing to itself|meet at the server"),
    ("one_message_more", lambda n, m: (2 * n - 1) * m, "every other rank, both ways"),
    ("like_a_ring", lambda n, m: 2 * (n - 1) / n * m, "nothing is divided by N"),
    ("bits", lambda n, m: 16 * (n - 1) * m, "these are bits"),
    ("weights_go_out_once", lambda n, m: n * m, "the weights go out N - 1 times"),
    ("quadratic", lambda n, m: 2 * (n - 1) ** 2 * m, "expected"),
    ("not_finite", lambda n, m: math.nan, "gave nan.*is something divided by zero"),
    ("of_four_bytes", lambda n, m: 8 * (n - 1) * m, "bytes already: nothing is multiplied by 4"),
    ("kilobytes", lambda n, m: 2 * (n - 1) * m / 1000, "a thousandth of the right number"),
]:
    wrong_values("lesson_05.server_bytes", _name, _formula, says=_says)

for _name, _formula, _says in [
    ("one_phase", lambda n, m: (n - 1) / n * m, "that is one phase"),
    ("rounds_each_phase_down", lambda n, m: 2 * ((n - 1) * m // n), "/ and not //"),
    ("all_ranks", lambda n, m: 2 * (n - 1) * m, "what all ranks send together"),
    ("two_tensors", lambda n, m: 2 * m, "N - 1 of N chunks"),
    ("sent_and_received", lambda n, m: 4 * (n - 1) / n * m, "sent and received together"),
    ("bits", lambda n, m: 16 * (n - 1) / n * m, "these are bits"),
    ("whole_chunks", lambda n, m: 2 * (n - 1) * (m // n), "/ and not //"),
    ("one_chunk", lambda n, m: m / n, "one chunk, one step"),
    ("chunks_of_n_minus_one", lambda n, m: 2 * m / max(n - 1, 1), "expected"),
    ("steps_only", lambda n, m: 2 * (n - 1), "expected"),
    ("upside_down", lambda n, m: 2 * n / max(n - 1, 1) * m if n > 1 else 0, "upside down: N - 1 of N"),
    ("rounded_up", lambda n, m: 2 * (n - 1) * math.ceil(m / n), "neither up nor down"),
    ("divided_twice", lambda n, m: 2 * (n - 1) * m / n**2, "divided by N twice"),
    ("floored_share", lambda n, m: 2 * (n - 1) // n * m, "/ and not //, and nothing rounded"),
]:
    wrong_values("lesson_05.ring_bytes", _name, _formula, says=_says)

# 5.2 measure


def _fresh_start(rank, batch_size):
    torch.manual_seed(0)
    model = SimpleCNN()
    generator = torch.Generator().manual_seed(rank)
    images = torch.randn(batch_size, 3, 32, 32, generator=generator)
    labels = torch.randint(0, 10, (batch_size,), generator=generator)
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), images, labels


def _profiled(
    rank, world_size, n_iterations, batch_size, *, start=_fresh_start, early=False, per_call=False, alone=True,
    reduce=True, divide=1, clear=True, step="after", backward=1, scale=1.0, reduction="mean", clears_late=False,
):  # fmt: skip
    model, optimizer, images, labels = start(rank, batch_size)
    comp_s = comm_s = 0.0
    n_calls = 0
    for _ in range(n_iterations):
        start_s = time.perf_counter()
        if clear:
            optimizer.zero_grad()
        for _ in range(backward):
            loss = torch.nn.functional.cross_entropy(model(images), labels, reduction=reduction)
            (scale * loss).backward()
        if step == "before":
            optimizer.step()
        computed = time.perf_counter()
        if reduce and (world_size > 1 or not alone):
            for p in model.parameters():
                before = time.perf_counter()
                dist.all_reduce(p.grad)
                p.grad /= world_size**divide
                n_calls += 1
                if per_call:
                    computed = before
        communicated = time.perf_counter()
        if clears_late:
            optimizer.zero_grad()
        if step == "after" or (step == "rank 0" and rank == 0):
            optimizer.step()
        done = time.perf_counter()
        if early:
            communicated = computed
        comp_s += computed - start_s + done - communicated
        comm_s += communicated - computed
    k = n_iterations
    return {"comp_s": comp_s / k, "comm_s": comm_s / k, "iteration_s": (comp_s + comm_s) / k, "n_calls": n_calls}


def _profiles(**change):
    return lambda *given: _profiled(*given, **change)


def _own_weights(rank, batch_size):
    torch.manual_seed(rank)
    model = SimpleCNN()
    _, _, images, labels = _fresh_start(rank, batch_size)
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), images, labels


def _other_optimizer(rank, batch_size):
    model, _, images, labels = _fresh_start(rank, batch_size)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), images, labels


for _name, _change, _says in [
    ("forgets_to_divide", {"divide": 0}, "that is the sum of the gradients"),
    ("divides_by_n_twice", {"divide": 2}, "divided by world_size twice"),
    ("takes_no_step", {"step": ""}, "they never move: optimizer.step.. ends"),
    ("steps_before_it_reduces", {"step": "before"}, "ranks drift apart: step with what the all_reduce left"),
    ("steps_on_rank_0", {"step": "rank 0"}, "rank 1 do not follow SGD.*ranks drift apart"),
    ("never_clears", {"clear": False}, "optimizer.zero_grad\\(\\) before backward"),
    ("never_clears_nor_divides", {"clear": False, "divide": 0}, "optimizer.zero_grad\\(\\) before backward"),
    ("clears_before_the_step", {"clears_late": True}, "is called, and finds gradients of zeros, or none"),
    ("two_backwards", {"backward": 2}, "ran backward through the model 6 times"),
    ("adds_up_the_loss", {"reduction": "sum"}, "the loss is the mean over the batch"),
    ("weights_of_its_own", {"start": _own_weights}, "ranks start from different weights"),
    ("another_optimizer", {"start": _other_optimizer}, "the optimizer of fresh_start steps once"),
]:
    wrong_values("lesson_05.profiled_training", _name, _profiles(**_change), says=_says)


@wrong("lesson_05.profiled_training", says="ran backward through the model 0 times")
def reduces_ones(rank, world_size, n_iterations, batch_size):
    start_s = time.perf_counter()
    for _ in range(8 * n_iterations if world_size > 1 else 0):
        dist.all_reduce(torch.ones(10))
    comm_s = (time.perf_counter() - start_s) / n_iterations
    n_calls = 8 * n_iterations if world_size > 1 else 0
    comp_s = 1.0 if world_size == 1 else 0.0
    return {"comp_s": comp_s, "comm_s": comm_s, "iteration_s": comp_s + comm_s, "n_calls": n_calls}


@wrong(
    "lesson_05.profiled_training", says="315722 numbers into one all_reduce and 0 into another.*one call a parameter"
)
def reduces_all_at_once_and_nothing_seven_times(rank, world_size, n_iterations, batch_size):
    model, optimizer, images, labels = _fresh_start(rank, batch_size)
    parameters, comp_s, comm_s = list(model.parameters()), 0.0, 0.0
    for _ in range(n_iterations):
        marks = [time.perf_counter()]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        marks.append(time.perf_counter())
        if world_size > 1:
            whole = torch.cat([p.grad.flatten() for p in parameters])
            for part in (whole, *(whole.new_empty(0) for _ in parameters[1:])):
                dist.all_reduce(part)
            torch.nn.utils.vector_to_parameters(whole / world_size, [p.grad for p in parameters])
        marks.append(time.perf_counter())
        optimizer.step()
        comm_s += marks[2] - marks[1]
        comp_s += time.perf_counter() - marks[0] - (marks[2] - marks[1])
    k, n_calls = n_iterations, 8 * n_iterations * (world_size > 1)
    return {"comp_s": comp_s / k, "comm_s": comm_s / k, "iteration_s": (comp_s + comm_s) / k, "n_calls": n_calls}


@wrong("lesson_05.profiled_training", says="starts from the first weights: .* once, before the loop")
def a_new_model_every_iteration(rank, world_size, n_iterations, batch_size):
    runs = [_profiled(rank, world_size, 1, batch_size) for _ in range(n_iterations)]
    return {k: sum(run[k] for run in runs) / (1 if k == "n_calls" else n_iterations) for k in runs[0]}


@wrong("lesson_05.profiled_training", says="the clock was read before the calls were done")
def reads_the_clock_too_early(rank, world_size, n_iterations, batch_size):
    return _profiled(rank, world_size, n_iterations, batch_size, early=True)


@wrong("lesson_05.profiled_training", says="with 2 ranks.* has 0 all_reduce calls")
def takes_two_for_one(rank, world_size, n_iterations, batch_size):
    return _profiled(rank, world_size if world_size > 2 else 1, n_iterations, batch_size)


@wrong("lesson_05.profiled_training", says="n_calls is .*not iterations or parameters")
def counts_iterations(rank, world_size, n_iterations, batch_size):
    profile = _profiled(rank, world_size, n_iterations, batch_size)
    return {**profile, "n_calls": n_iterations if world_size > 1 else 0}


@wrong("lesson_05.profiled_training", says="divide by n_iterations")
def adds_up_the_run(rank, world_size, n_iterations, batch_size):
    profile = _profiled(rank, world_size, n_iterations, batch_size)
    return {k: v if k == "n_calls" else v * n_iterations for k, v in profile.items()}


@wrong("lesson_05.profiled_training", says="not one of them")
def times_the_last_call(rank, world_size, n_iterations, batch_size):
    return _profiled(rank, world_size, n_iterations, batch_size, per_call=True)


@wrong("lesson_05.profiled_training", says="with one rank there is nothing to reduce")
def reduces_alone(rank, world_size, n_iterations, batch_size):
    return _profiled(rank, world_size, n_iterations, batch_size, alone=False)


@wrong("lesson_05.profiled_training", says="the ledger has 0 all_reduce calls")
def never_reduces(rank, world_size, n_iterations, batch_size):
    return _profiled(rank, world_size, n_iterations, batch_size, reduce=False)


@wrong("lesson_05.profiled_training", says="expected a dict with comp_s")
def returns_a_pair(rank, world_size, n_iterations, batch_size):
    profile = _profiled(rank, world_size, n_iterations, batch_size)
    return profile["comp_s"], profile["comm_s"]


def _times(comp=("forward", "backward", "step"), comm=("calls",), unit=1.0):
    """A right training whose clock counts these parts of an iteration."""

    def profile(rank, world_size, n_iterations, batch_size):
        model, optimizer, images, labels = _fresh_start(rank, batch_size)
        spent = dict.fromkeys(("forward", "backward", "calls", "step", "nothing"), 0.0)
        n_calls = 0
        for _ in range(n_iterations):
            optimizer.zero_grad()
            marks = [time.perf_counter()]
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            marks.append(time.perf_counter())
            loss.backward()
            marks.append(time.perf_counter())
            for p in model.parameters() if world_size > 1 else ():
                dist.all_reduce(p.grad)
                p.grad /= world_size
                n_calls += 1
            marks.append(time.perf_counter())
            optimizer.step()
            marks.append(time.perf_counter())
            for name, start, end in zip(spent, marks, marks[1:]):
                spent[name] += (end - start) / n_iterations
        comp_s, comm_s = (unit * sum(spent[name] for name in names) for names in (comp, comm))
        return {"comp_s": comp_s, "comm_s": comm_s, "iteration_s": comp_s + comm_s, "n_calls": n_calls}

    return profile


for _name, _profile, _says in [
    ("no_forward", _times(comp=("backward", "step")), "forward is not in it"),
    ("no_step", _times(comp=("forward", "backward")), "the step is not in it"),
    ("backward_alone", _times(comp=("backward",)), "forward and the step is not in it"),
    ("step_is_communication", _times(comp=("forward", "backward"), comm=("calls", "step")),
     "the step is counted as communication"),
    ("backward_is_communication", _times(comp=("forward", "step"), comm=("backward", "calls")),
     "backward is counted as communication"),
    ("calls_are_compute_too", _times(comp=("forward", "backward", "calls", "step")), "communication is in it"),
    ("tells_milliseconds", _times(unit=1e3), "these are milliseconds"),
    ("tells_microseconds", _times(unit=1e6), "these are microseconds"),
    ("made_up", lambda *given: _times()(*given) | {"comp_s": 1e-3}, "comp_s is 0.001 s an iteration"),
    ("all_ranks_calls", lambda rank, n, *given: (found := _times()(rank, n, *given)) | {
        "n_calls": n * found["n_calls"]}, "all ranks together: a rank counts its own"),
    ("the_whole_runs_iteration", lambda rank, n, k, size: (found := _times()(rank, n, k, size)) | {
        "iteration_s": k * found["iteration_s"]}, "iteration_s is the mean of an iteration"),
]:  # fmt: skip
    wrong_values("lesson_05.profiled_training", _name, _profile, says=_says)


@wrong("lesson_05.profiled_training", says="the same batch.*fresh_start\\(rank, batch_size\\)")
def one_batch_for_all(rank, world_size, n_iterations, batch_size):
    return _profiled(0, world_size, n_iterations, batch_size)


@wrong("lesson_05.profiled_training", says="16 all_reduce calls.*these are 2 iterations, not 3")
def one_iteration_too_few(rank, world_size, n_iterations, batch_size):
    return _profiled(rank, world_size, n_iterations - 1, batch_size)


@wrong("lesson_05.profiled_training", says="comm_s.*swapped")
def swaps_the_two(rank, world_size, n_iterations, batch_size):
    profile = _profiled(rank, world_size, n_iterations, batch_size)
    return profile | {"comp_s": profile["comm_s"], "comm_s": profile["comp_s"]}


def _of_iterations(rank, world_size, n_iterations, batch_size, of_all):
    """A profile with one number of all iterations' seconds: `of_all` of them."""
    model, optimizer, images, labels = _fresh_start(rank, batch_size)
    comp, comm, n_calls = [], [], 0
    for _ in range(n_iterations):
        start_s = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        computed_s = time.perf_counter()
        for p in model.parameters() if world_size > 1 else ():
            dist.all_reduce(p.grad)
            p.grad /= world_size
            n_calls += 1
        done_s = time.perf_counter()
        optimizer.step()
        comp.append(computed_s - start_s + time.perf_counter() - done_s)
        comm.append(done_s - computed_s)
    comp_s, comm_s = of_all(comp), of_all(comm)
    return {"comp_s": comp_s, "comm_s": comm_s, "iteration_s": comp_s + comm_s, "n_calls": n_calls}


@wrong("lesson_05.profiled_training", says="the last iteration is counted alone")
def keeps_the_last_iteration(rank, world_size, n_iterations, batch_size):
    return _of_iterations(rank, world_size, n_iterations, batch_size, lambda seconds: seconds[-1])


@wrong("lesson_05.profiled_training", says="that is the median: the mean is asked")
def medians(rank, world_size, n_iterations, batch_size):
    return _of_iterations(rank, world_size, n_iterations, batch_size, statistics.median)


@wrong("lesson_05.profiled_training", says="with 1 rank.*one rank makes no call, and counts none")
def counts_without_a_call(rank, world_size, n_iterations, batch_size):
    return _times()(rank, world_size, n_iterations, batch_size) | {"n_calls": 8 * n_iterations}


@wrong("lesson_05.profiled_training", says="comm_s.*one iteration's seconds are divided by n_iterations: add up")
def overwrites_and_divides(rank, world_size, n_iterations, batch_size):
    profile = keeps_the_last_iteration(rank, world_size, n_iterations, batch_size)
    return profile | {name: profile[name] / n_iterations for name in ("comp_s", "comm_s", "iteration_s")}


@wrong("lesson_05.profiled_training", says="rank 1 returned None.*every rank returns its own profile")
def tells_rank_zeros_alone(rank, world_size, n_iterations, batch_size):
    profile = _profiled(rank, world_size, n_iterations, batch_size)
    return profile if rank == 0 else None


@wrong("lesson_05.profiled_training", says="comm_s.*not of a call")
def divides_by_the_calls(rank, world_size, n_iterations, batch_size):
    profile = _profiled(rank, world_size, n_iterations, batch_size)
    return profile | {"comm_s": profile["comm_s"] * n_iterations / max(profile["n_calls"], 1)}


def _trains(optimizer_of=lambda model, first: first, divisor=lambda n, size: n):
    """A right profile of a training with another optimizer, or another divisor."""

    def profile(rank, world_size, n_iterations, batch_size):
        model, optimizer, images, labels = _fresh_start(rank, batch_size)
        for _ in range(n_iterations):
            optimizer = optimizer_of(model, optimizer)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            for p in model.parameters() if world_size > 1 else ():
                dist.all_reduce(p.grad)
                p.grad /= divisor(world_size, batch_size)
            optimizer.step()
        return {"comp_s": 0.0, "comm_s": 0.0, "iteration_s": 0.0, "n_calls": 8 * n_iterations * (world_size > 1)}

    return profile


def _starts_all(then):
    """A training whose calls are all under way at once; `then` does the rest of the iteration."""

    def profile(rank, world_size, n_iterations, batch_size):
        model, optimizer, images, labels = _fresh_start(rank, batch_size)
        comm_s = 0.0
        for _ in range(n_iterations):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            parameters = list(model.parameters()) if world_size > 1 else []
            handles = [dist.all_reduce(p.grad, async_op=True) for p in parameters]
            comm_s += then(handles, parameters, world_size, optimizer) / n_iterations
        return {"comp_s": 0.0, "comm_s": comm_s, "iteration_s": comm_s, "n_calls": 8 * n_iterations * (world_size > 1)}

    return profile


def _wait_and_divide(handles, parameters, n):
    for handle in handles:
        handle.wait()
    for p in parameters:
        p.grad /= n


def _steps_and_waits(handles, parameters, n, optimizer):
    optimizer.step()
    _wait_and_divide(handles, parameters, n)
    return 0.0


def _divides_and_waits(handles, parameters, n, optimizer):
    for p in parameters:
        p.grad /= n
    _wait_and_divide(handles, parameters, 1)
    optimizer.step()
    return 0.0


def _times_the_last_wait(handles, parameters, n, optimizer):
    _wait_and_divide(handles[:-1], [], n)
    start_s = time.perf_counter()
    _wait_and_divide(handles[-1:], parameters, n)
    waited_s = time.perf_counter() - start_s
    optimizer.step()
    return waited_s


for _name, _then, _says in [
    ("steps_before_it_waits", _steps_and_waits, "no p.grad is yours until wait"),
    ("divides_before_it_waits", _divides_and_waits, "a tensor is not yours until wait.*no p.grad"),
    ("times_the_last_wait", _times_the_last_wait, "comm_s.*under way from its start"),
]:
    wrong_values("lesson_05.profiled_training", _name, _starts_all(_then), says=_says)

wrong_values(
    "lesson_05.profiled_training", "makes_an_optimizer_each_time",
    _trains(lambda model, first: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)), says="momentum is lost",
)  # fmt: skip
wrong_values(
    "lesson_05.profiled_training", "divides_by_all_examples", _trains(divisor=lambda n, size: n * size),
    says="divided by the batch's size too",
)  # fmt: skip


@wrong("lesson_05.profiled_training", says="nothing else")
def iteration_of_nothing(rank, world_size, n_iterations, batch_size):
    return {**_profiled(rank, world_size, n_iterations, batch_size), "iteration_s": 0.0}


for _name, _formula, _says in [
    ("one_batch", lambda p, m, b, n: p * -(-m // b), "an iteration uses batch_size \\* world_size"),
    ("drops_the_last", lambda p, m, b, n: p * (m // (b * n)), "smaller batch is an iteration too"),
    ("iterations_only", lambda p, m, b, n: -(-m // (b * n)), "one call a parameter"),
    ("alone_too", lambda p, m, b, n: p * -(-m // (b * n)), "nobody to talk to"),
    ("each_rank_drops_some", lambda p, m, b, n: p * -(-(m // n) // b) * (n > 1), "smaller batch is an iteration too"),
    ("every_example", lambda p, m, b, n: p * m, "expected"),
    ("all_ranks", lambda p, m, b, n: n * p * -(-m // (b * n)) * (n > 1), "the calls of one rank are asked"),
    ("a_fraction", lambda p, m, b, n: p * m / (b * n) * (n > 1), "an iteration is whole: round"),
    ("rounds_up_too_late", lambda p, m, b, n: math.ceil(p * m / (b * n)) * (n > 1), "an iteration is whole: round"),
    ("product_rounded_down", lambda p, m, b, n: p * m // (b * n) * (n > 1), "round the iterations up first"),
    ("always_one_more", lambda p, m, b, n: p * (m // (b * n) + 1) * (n > 1), "leave no iteration over"),
    ("half_to_even", lambda p, m, b, n: p * round(m / (b * n) + 0.5) * (n > 1), "leave no iteration over: round up"),
    ("messages", lambda p, m, b, n: 2 * (n - 1) * p * -(-m // (b * n)), "however many messages its ring sends"),
]:
    wrong_values("lesson_05.calls_per_epoch", _name, _formula, says=_says)


def _metrics(change):
    def scaling_metrics(profiles):
        rows = {}
        for n, p in profiles.items():
            speedup = n * profiles[1]["iteration_s"] / p["iteration_s"]
            ratio = p["comp_s"] / p["comm_s"] if p["comm_s"] else math.inf
            rows[n] = change({"ratio": ratio, "speedup": speedup, "efficiency": speedup / n}, n, p, profiles)
        return rows

    return scaling_metrics


def _zero_ratio(row, n, p, profiles):
    return {**row, "ratio": row["ratio"] if p["comm_s"] else 0.0}


for _name, _change, _says in [
    ("zero_without_communication", _zero_ratio, "math.inf"),
    (
        "ratio_upside_down",
        lambda r, n, p, _: {**r, "ratio": 1 / r["ratio"] if p["comm_s"] else math.inf},
        "over compute",
    ),
    ("one_batch_only", lambda r, n, p, _: {**r, "speedup": r["speedup"] / n}, "N batches in an iteration"),
    ("not_divided", lambda r, n, p, _: {**r, "efficiency": r["speedup"]}, "divided by N"),
    ("in_percent", lambda r, n, p, _: {**r, "efficiency": 100 * r["efficiency"]}, "in percent"),
    ("a_share", lambda r, n, p, _: {**r, "ratio": p["comp_s"] / p["iteration_s"]}, "that is a share of the iter"),
    ("ratio_upside_down_throughout", lambda r, n, p, _: {**r, "ratio": p["comm_s"] / p["comp_s"]}, "over compute"),
    (
        "keeps_clear_of_a_zero",
        lambda r, n, p, _: {**r, "ratio": p["comp_s"] / (p["comm_s"] + 1e-6)},
        "nothing is added to comm_s",
    ),
    (
        "keeps_clear_of_a_zero_by_less",
        lambda r, n, p, _: {**r, "ratio": p["comp_s"] / (p["comm_s"] + 1e-12)},
        "the ratio is infinite",
    ),
    (
        "a_microsecond_is_nothing",
        lambda r, n, p, _: {**r, "ratio": r["ratio"] if p["comm_s"] > 1e-6 else math.inf},
        "is infinite, expected 400.*little and not nothing",
    ),
    ("of_compute", lambda r, n, p, q: {**r, "speedup": n * q[1]["comp_s"] / p["comp_s"]}, "of whole iterations"),
    (
        "compute_of_one_rank",
        lambda r, n, p, q: {**r, "speedup": n * q[1]["comp_s"] / p["iteration_s"]},
        "whole iterations, communication included",
    ),
    ("divided_twice", lambda r, n, p, _: {**r, "efficiency": r["efficiency"] / n}, "divide it by N once"),
    (
        "no_efficiency",
        lambda r, n, p, _: {"ratio": r["ratio"], "speedup": r["speedup"]},
        "row of 1 rank has no eff",
    ),
    (
        "none_without_communication",
        lambda r, n, p, _: {**r, "ratio": r["ratio"] if p["comm_s"] else None},
        "gave None.*the ratio is infinite",
    ),
]:
    wrong_values("lesson_05.scaling_metrics", _name, _metrics(_change), says=_says)


def _against_the_first(profiles):
    first_s = next(iter(profiles.values()))["iteration_s"]
    rows = _metrics(lambda row, n, p, profiles: row)(profiles)
    for n, row in rows.items():
        row["speedup"] = n * first_s / profiles[n]["iteration_s"]
        row["efficiency"] = row["speedup"] / n
    return rows


def _named_by_text(profiles):
    return {str(n): row for n, row in _metrics(lambda row, n, p, profiles: row)(profiles).items()}


_ROWS = {}


def _puts_rows_beside_it(profiles):
    _ROWS.update(_metrics(lambda row, n, p, profiles: row)(profiles))
    return _ROWS


wrong_values(
    "lesson_05.scaling_metrics",
    "puts_rows_beside_it",
    _puts_rows_beside_it,
    says="row for 3 ranks.*`_ROWS` keeps something from call to call",
)


def _counts_world_sizes(profiles):
    rows = _metrics(lambda row, n, p, profiles: row)(profiles)
    return {2**k: row for k, row in enumerate(rows.values())}


wrong_values(
    "lesson_05.scaling_metrics", "counts_world_sizes", _counts_world_sizes,
    says="a row for 2 ranks and none for 3.*the keys of `profiles`, not counted ones",
)  # fmt: skip
wrong_values("lesson_05.scaling_metrics", "against_the_first", _against_the_first, says="compares with one rank")


def _against_the_shortest(profiles):
    shortest_s = min(p["iteration_s"] for p in profiles.values())
    return _metrics(lambda row, n, p, _: row)(
        {n: {**p, "iteration_s": shortest_s if n == 1 else p["iteration_s"]} for n, p in profiles.items()}
    ) | {1: {"ratio": math.inf, "speedup": shortest_s / profiles[1]["iteration_s"], "efficiency": 1.0}}


wrong_values("lesson_05.scaling_metrics", "against_the_shortest", _against_the_shortest, says="not the shortest time")
wrong_values("lesson_05.scaling_metrics", "keys_are_text", _named_by_text, says="no row for 1 ranks.*under an int")
wrong_values("lesson_05.scaling_metrics", "a_list", lambda profiles: list(profiles), says="expected a dict")

# 5.3 bucketing

_FLAT = []


@wrong("lesson_05.bucketed_all_reduce", says="an earlier call's gradients: make the flat vector anew")
def keeps_the_flat_vector(gradients, bucket_elements):
    made = [vector for rank, vector in _FLAT if rank == dist.get_rank()]
    flat = made[0] if made else torch.cat([g.flatten() for g in gradients])
    _FLAT.append((dist.get_rank(), flat))
    if not made:
        for bucket in flat.split(bucket_elements):
            dist.all_reduce(bucket)
        flat /= dist.get_world_size()
    _write(flat, gradients)


def _write(flat, gradients):
    for g, part in zip(gradients, flat.split([g.numel() for g in gradients])):
        g.copy_(part.view_as(g))


@wrong("lesson_05.bucketed_all_reduce", says="gradient 0 on rank 0 lies in other memory.*`g.data = ...`")
def assigns_the_means(gradients, bucket_elements):
    flat = torch.cat([g.flatten() for g in gradients])
    for bucket in flat.split(bucket_elements):
        dist.all_reduce(bucket)
    torch.nn.utils.vector_to_parameters(flat / dist.get_world_size(), gradients)


@wrong("lesson_05.bucketed_all_reduce", says="gradient 0 on rank 0 lies in other memory.*copy_ writes into it")
def assigns_each_mean(gradients, bucket_elements):
    copies = [g.clone() for g in gradients]
    _bucketed(copies, bucket_elements)
    for g, mean in zip(gradients, copies):
        g.data = mean


@wrong("lesson_05.bucketed_all_reduce", says="gradient 3 on rank 0 lies in other memory")
def sets_the_last_mean(gradients, bucket_elements):
    last = gradients[-1].clone()
    gradients[-1].set_(last)
    _bucketed(gradients, bucket_elements)


def _bucketed(gradients, bucket_elements, *, divide=1, skip_last=False, write=True, whole=False):
    flat = torch.cat([g.flatten() for g in gradients])
    buckets = flat.split(len(flat) if whole else bucket_elements)
    for bucket in buckets[:-1] if skip_last and len(buckets) > 1 else buckets:
        dist.all_reduce(bucket)
    flat /= dist.get_world_size() ** divide
    if write:
        for g, mean in zip(gradients, flat.split([g.numel() for g in gradients])):
            g.copy_(mean.view_as(g))


@wrong("lesson_05.bucketed_all_reduce", says="that is the sum")
def forgets_the_mean(gradients, bucket_elements):
    _bucketed(gradients, bucket_elements, divide=0)


@wrong("lesson_05.bucketed_all_reduce", says="divided twice")
def divides_twice(gradients, bucket_elements):
    _bucketed(gradients, bucket_elements, divide=2)


@wrong("lesson_05.bucketed_all_reduce", says="elements from 24 on were never reduced: every bucket")
def forgets_the_last_bucket(gradients, bucket_elements):
    _bucketed(gradients, bucket_elements, skip_last=True)


@wrong("lesson_05.bucketed_all_reduce", says="reduced .25, 0. elements.*a call carries nothing")
def one_bucket_more_than_there_are(gradients, bucket_elements):
    flat = torch.cat([g.flatten() for g in gradients])
    for k in range(len(flat) // bucket_elements + 1):
        dist.all_reduce(flat[k * bucket_elements : (k + 1) * bucket_elements])
    _write(flat / dist.get_world_size(), gradients)


@wrong("lesson_05.bucketed_all_reduce", says="nothing of the mean arrives: .* copy_")
def never_writes_back(gradients, bucket_elements):
    _bucketed(gradients, bucket_elements, write=False)


@wrong("lesson_05.bucketed_all_reduce", says="elements from 24 on were reduced, but not written back")
def leaves_the_last_gradient(gradients, bucket_elements):
    copies = [g.clone() for g in gradients]
    _bucketed(copies, bucket_elements)
    for g, mean in zip(gradients[:-1], copies):
        g.copy_(mean)


@wrong(
    "lesson_05.bucketed_all_reduce", says="gradient 2 holds the means from place 5 of the flat vector on, not from 17"
)
def forgets_the_places_before(gradients, bucket_elements):
    copies, place = [g.clone() for g in gradients], 0
    _bucketed(copies, bucket_elements)
    flat = torch.cat([g.flatten() for g in copies])
    for g in gradients:
        g.copy_(flat[place : place + g.numel()].view_as(g))
        place = g.numel()


@wrong("lesson_05.bucketed_all_reduce", says="these are whole numbers: divide with /")
def divides_buckets_whole(gradients, bucket_elements):
    _bucketed(gradients, bucket_elements, divide=0)
    for g in gradients:
        g //= dist.get_world_size()


@wrong("lesson_05.bucketed_all_reduce", says="the largest is taken")
def takes_the_largest(gradients, bucket_elements):
    flat = torch.cat([g.flatten() for g in gradients])
    for bucket in flat.split(bucket_elements):
        dist.all_reduce(bucket, op=dist.ReduceOp.MAX)
    _write(flat / dist.get_world_size(), gradients)


@wrong("lesson_05.bucketed_all_reduce", says="everything went in one call")
def one_bucket_for_all(gradients, bucket_elements):
    _bucketed(gradients, bucket_elements, whole=True)


@wrong("lesson_05.bucketed_all_reduce", says="one call a parameter")
def a_call_a_parameter(gradients, bucket_elements):
    for g in gradients:
        dist.all_reduce(g)
        g /= dist.get_world_size()


@wrong("lesson_05.bucketed_all_reduce", says="parameter borders|one call a parameter")
def cuts_each_parameter(gradients, bucket_elements):
    for g in gradients:
        for part in g.view(-1).split(bucket_elements):
            dist.all_reduce(part)
        g /= dist.get_world_size()


@wrong("lesson_05.bucketed_all_reduce", says="the last bucket is the short one: cut from the front")
def begins_with_the_short_one(gradients, bucket_elements):
    flat = torch.cat([g.flatten() for g in gradients])
    rest = len(flat) % bucket_elements
    for part in (flat[:rest], *flat[rest:].split(bucket_elements)):
        if len(part):
            dist.all_reduce(part)
    for g, mean in zip(gradients, (flat / dist.get_world_size()).split([g.numel() for g in gradients])):
        g.copy_(mean.view_as(g))


@wrong("lesson_05.bucketed_all_reduce", says="do not cut into equal parts")
def cuts_equal_parts(gradients, bucket_elements):
    flat = torch.cat([g.flatten() for g in gradients])
    for part in flat.chunk(-(-len(flat) // bucket_elements)):
        dist.all_reduce(part)
    flat /= dist.get_world_size()
    for g, mean in zip(gradients, flat.split([g.numel() for g in gradients])):
        g.copy_(mean.view_as(g))


@wrong("lesson_05.bucketed_all_reduce", says="out of order")
def writes_back_in_reverse(gradients, bucket_elements):
    flat = torch.cat([g.flatten() for g in gradients[::-1]])
    for bucket in flat.split(bucket_elements):
        dist.all_reduce(bucket)
    flat /= dist.get_world_size()
    for g, mean in zip(gradients, flat.split([g.numel() for g in gradients])):
        g.copy_(mean.view_as(g))


@wrong("lesson_05.bucketed_all_reduce", says="nothing of the mean arrives: .* copy_")
def puts_new_tensors_into_the_list(gradients, bucket_elements):
    means = [g.clone() for g in gradients]
    _bucketed(means, bucket_elements)
    gradients[:] = means


@wrong("lesson_05.bucketed_all_reduce", says="gets the first piece of the flat vector: move on by g.numel")
def never_moves_on(gradients, bucket_elements):
    flat = torch.cat([g.flatten() for g in gradients])
    for bucket in flat.split(bucket_elements):
        dist.all_reduce(bucket)
    for g in gradients:
        g.copy_(flat[: g.numel()].view_as(g) / dist.get_world_size())


@wrong("lesson_05.bucketed_all_reduce", says="no bytes, and no number of buckets")
def cuts_into_so_many_buckets(gradients, bucket_elements):
    flat = torch.cat([g.flatten() for g in gradients])
    for bucket in flat.tensor_split(bucket_elements):
        dist.all_reduce(bucket)
    flat /= dist.get_world_size()
    for g, mean in zip(gradients, flat.split([g.numel() for g in gradients])):
        g.copy_(mean.view_as(g))


@wrong("lesson_05.bucketed_all_reduce", says="the last bucket is filled up")
def pads_the_last_bucket(gradients, bucket_elements):
    flat = torch.cat([g.flatten() for g in gradients])
    flat = torch.cat([flat, flat.new_zeros(-len(flat) % bucket_elements)])
    for bucket in flat.split(bucket_elements):
        dist.all_reduce(bucket)
    _write(flat[:25] / dist.get_world_size(), gradients)


@wrong("lesson_05.bucketed_all_reduce", says="never waits for")
def never_waits(gradients, bucket_elements):
    flat = torch.cat([g.flatten() for g in gradients])
    for bucket in flat.split(bucket_elements):
        dist.all_reduce(bucket, async_op=True)
    flat /= dist.get_world_size()
    for g, mean in zip(gradients, flat.split([g.numel() for g in gradients])):
        g.copy_(mean.view_as(g))


@wrong("lesson_05.bucketed_all_reduce", says="the gradients' own dtype")
def rounds(gradients, bucket_elements):
    flat = torch.cat([g.flatten().float() / 3 for g in gradients])
    for bucket in flat.split(bucket_elements):
        dist.all_reduce(bucket)
    flat *= 3 / dist.get_world_size()
    for g, mean in zip(gradients, flat.split([g.numel() for g in gradients])):
        g.copy_(mean.view_as(g))


@wrong("lesson_05.bucketed_all_reduce", says="2 bytes a number travel, as float16")
def halves_the_bytes(gradients, bucket_elements):
    flat = torch.cat([g.flatten().half() for g in gradients])
    for bucket in flat.split(bucket_elements):
        dist.all_reduce(bucket)
    flat = flat.double() / dist.get_world_size()
    for g, mean in zip(gradients, flat.split([g.numel() for g in gradients])):
        g.copy_(mean.view_as(g))


@wrong("lesson_05.bucketed_all_reduce", says="8 bytes a number travel, as float64")
def always_in_float64(gradients, bucket_elements):
    flat = torch.cat([g.flatten().double() for g in gradients])
    for bucket in flat.split(bucket_elements):
        dist.all_reduce(bucket)
    for g, mean in zip(gradients, (flat / dist.get_world_size()).split([g.numel() for g in gradients])):
        g.copy_(mean.view_as(g))


@wrong("lesson_05.bucketed_all_reduce", says="more than once: divide each once, after the loop")
def divides_after_every_bucket(gradients, bucket_elements):
    flat = torch.cat([g.flatten() for g in gradients])
    for bucket in flat.split(bucket_elements):
        dist.all_reduce(bucket)
        flat /= dist.get_world_size()
    for g, mean in zip(gradients, flat.split([g.numel() for g in gradients])):
        g.copy_(mean.view_as(g))


for _name, _formula, _says in [
    (
        "bits",
        lambda m, b, n, net: m / b * 2 * (n - 1) * (net.latency_s + 8 * b / n / net.bandwidth_Bps),
        "these are bits",
    ),
    (
        "tells_milliseconds",
        lambda m, b, n, net: 1e3 * m / b * 2 * (n - 1) * (net.latency_s + b / n / net.bandwidth_Bps),
        "these are milliseconds",
    ),
    (
        "a_latency_a_bucket",
        lambda m, b, n, net: m / b * net.latency_s + 2 * (n - 1) * m / n / net.bandwidth_Bps,
        "not once a bucket",
    ),
    (
        "n_steps",
        lambda m, b, n, net: m / b * 2 * n * (net.latency_s + b / n / net.bandwidth_Bps),
        "N - 1 steps a phase",
    ),
    (
        "one_bucket",
        lambda m, b, n, net: 2 * (n - 1) * (net.latency_s + b / n / net.bandwidth_Bps),
        "that is one bucket",
    ),
    ("no_buckets", lambda m, b, n, net: 2 * (n - 1) * (net.latency_s + m / n / net.bandwidth_Bps), "once a bucket"),
    (
        "one_phase",
        lambda m, b, n, net: m / b * (n - 1) * (net.latency_s + b / n / net.bandwidth_Bps),
        "two phases",
    ),
    (
        "whole_buckets",
        lambda m, b, n, net: m / b * 2 * (n - 1) * (net.latency_s + b / net.bandwidth_Bps),
        "one chunk, 1/N of",
    ),
    (
        "whole_bytes",
        lambda m, b, n, net: m // b * 2 * (n - 1) * (net.latency_s + b // n / net.bandwidth_Bps),
        "fractions of a byte",
    ),
    (
        "one_bucket_fewer",
        lambda m, b, n, net: (m // b - 1) * 2 * (n - 1) * (net.latency_s + b / n / net.bandwidth_Bps),
        "not one fewer",
    ),
    (
        "buckets_at_once",
        lambda m, b, n, net: (2 * (n - 1) + m // b - 1) * (net.latency_s + b / n / net.bandwidth_Bps),
        "one after another",
    ),
    (
        "numbers_of_four_bytes",
        lambda m, b, n, net: m // b * 2 * (n - 1) * (net.latency_s + 4 * b / n / net.bandwidth_Bps),
        "nothing is multiplied by 4",
    ),
    (
        "cuts_into_one_chunk_fewer",
        lambda m, b, n, net: m // b * 2 * (n - 1) * (net.latency_s + b / max(n - 1, 1) / net.bandwidth_Bps),
        "one chunk, 1/N of the bucket",
    ),
    (
        "cuts_the_whole",
        lambda m, b, n, net: m // b * 2 * (n - 1) * (net.latency_s + m / n / net.bandwidth_Bps),
        "bucket_bytes / N, not n_bytes / N",
    ),
    (
        "two_latencies_a_bucket",
        lambda m, b, n, net: m // b * 2 * (net.latency_s + (n - 1) * b / n / net.bandwidth_Bps),
        "not once a bucket or a phase",
    ),
    (
        "rounds_a_chunk_up",
        lambda m, b, n, net: m // b * 2 * (n - 1) * (net.latency_s + -(-b // n) / net.bandwidth_Bps),
        "a chunk is not rounded up",
    ),
    ("no_latency", lambda m, b, n, net: 2 * (n - 1) / n * m / net.bandwidth_Bps, "the latency is missing"),
    ("nothing", lambda m, b, n, net: None, "gave None"),
]:
    wrong_values("lesson_05.bucketed_s", _name, _formula, says=_says)

# 5.4 overlap

for _name, _formula, _says in [
    ("no_overlap", lambda c, b, t: c + b * t, "without overlap"),
    ("only_communication", lambda c, b, t: b * t, "cannot start before"),
    ("the_larger", lambda c, b, t: max(c, b * t), "still to come|cannot start before"),
    ("always_compute", lambda c, b, t: c + t, "the link never rests after the first part"),
    ("always_link", lambda c, b, t: c / b + b * t, "only the last one sticks out"),
    ("shares_the_bucket", lambda c, b, t: c + t / b if t <= c / b else c / b + t, "nothing of it is divided|expected"),
    ("the_smaller", lambda c, b, t: min(c, b * t), "expected"),
    ("one_bucket_fewer", lambda c, b, t: c + t if t <= c / b else c / b + (b - 1) * t, "the last one too"),
    ("compute_up_to_a_bit_more", lambda c, b, t: c + t if b * t <= 1.001 * c else c / b + b * t, "link never rests"),
    ("the_link_from_a_bit_less", lambda c, b, t: c + t if b * t <= 0.999 * c else c / b + b * t, "only the last one"),
    ("one_part_more", lambda c, b, t: c / b + b * max(c / b, t), "no further part of backward"),
    ("one_part_beside", lambda c, b, t: max(c, b * t) + c / b, "no further part of backward"),
    ("a_part_at_the_end", lambda c, b, t: c + c / b if t <= c / b else c / b + b * t, "no further part of backward"),
    ("whole_parts", lambda c, b, t: c + t if t <= c / b else c // b + b * t, "a fraction of a second"),
]:
    wrong_values("lesson_05.overlapped_s", _name, _formula, says=_says)


class Overlapped:
    """A right answer, of which each mistake changes one part."""

    def __init__(self, model, bucket_bytes):
        self.buckets = []
        room = 0
        for p in self.order([p for p in model.parameters() if p.requires_grad]):
            n_bytes = p.numel() * p.element_size()
            if n_bytes > room:
                self.buckets.append([])
                room = bucket_bytes
            self.buckets[-1].append(p)
            room -= n_bytes
        self.syncing = True
        self.start_over()
        for k, bucket in enumerate(self.buckets):
            for p in bucket:
                p.register_post_accumulate_grad_hook(lambda p, k=k: self.gradient_is_there(k))

    def order(self, parameters):
        return parameters[::-1]

    def start_over(self):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.flights = []

    @contextmanager
    def no_sync(self):
        self.syncing = False
        yield
        self.syncing = True

    def gradient_is_there(self, k):
        if not self.syncing:
            return
        self.missing[k] -= 1
        while len(self.flights) < len(self.buckets) and self.missing[len(self.flights)] == 0:
            self.start_next()

    def flat(self, bucket):
        return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in bucket])

    def start_next(self):
        flat = self.flat(self.buckets[len(self.flights)])
        self.flights.append((dist.all_reduce(flat, async_op=True), flat))

    def start_the_rest(self):
        while len(self.flights) < len(self.buckets):
            self.start_next()

    def wait_for(self, handle):
        handle.wait()

    def divisor(self):
        return dist.get_world_size()

    def wait(self):
        self.start_the_rest()
        for (handle, flat), bucket in zip(self.flights, self.buckets):
            self.wait_for(handle)
            flat /= self.divisor()
            for p, mean in zip(bucket, flat.split([p.numel() for p in bucket])):
                p.grad = mean.view_as(p).clone()
        self.start_over()


@wrong("lesson_05.overlap", says="the sum divided by 3: divide it by the number of ranks")
class DividesByTheBuckets(Overlapped):
    def divisor(self):
        return len(self.buckets)


@wrong("lesson_05.overlap", says="divide by the number of ranks")
class ForgetsTheMean(Overlapped):
    def divisor(self):
        return 1


@wrong("lesson_05.overlap_in_time", says="second step.*wait starts over with all that was counted")
class ForgetsToCountAnew(Overlapped):
    def start_over(self):
        self.missing = getattr(self, "missing", None) or [len(bucket) for bucket in self.buckets]
        self.flights = []


@wrong("lesson_05.overlap", says="each bucket goes twice.*start_over comes last")
class StartsOverTooSoon(Overlapped):
    def wait(self):
        self.start_over()
        super().wait()


@wrong("lesson_05.overlap", says="divided twice")
class DividesTwice(Overlapped):
    def divisor(self):
        return dist.get_world_size() ** 2


@wrong("lesson_05.overlap", says="never written back")
class NeverWritesBack(Overlapped):
    def wait(self):
        self.start_the_rest()
        for handle, _ in self.flights:
            handle.wait()
        self.start_over()


@wrong("lesson_05.overlap", says="added to the rank's own")
class AddsInsteadOfSets(Overlapped):
    def wait(self):
        self.start_the_rest()
        for (handle, flat), bucket in zip(self.flights, self.buckets):
            handle.wait()
            for p, total in zip(bucket, flat.split([p.numel() for p in bucket])):
                mean = total.view_as(p) / dist.get_world_size()
                p.grad = mean if p.grad is None else p.grad + mean
        self.start_over()


@wrong("lesson_05.overlap", says="before|did not wait|never waited|without wait|buffer|under way")
class NeverWaits(Overlapped):
    def wait_for(self, handle):
        return


@wrong("lesson_05.overlap", says="are never started: start them in wait")
class ForgetsWhatIsLeft(Overlapped):
    def start_the_rest(self):
        return


@wrong("lesson_05.overlap", says="before all its gradients were there|that is the sum|expected|never reduced")
class FlushesTooEarly(Overlapped):
    def gradient_is_there(self, k):
        if self.syncing and len(self.flights) <= k:
            self.start_next()


@wrong("lesson_05.overlap", says="inside no_sync")
class IgnoresNoSync(Overlapped):
    def gradient_is_there(self, k):
        self.missing[k] -= 1
        while len(self.flights) < len(self.buckets) and self.missing[len(self.flights)] <= 0:
            self.start_next()

    @contextmanager
    def no_sync(self):
        yield
        self.wait()


@wrong("lesson_05.overlap", says="never fills|different orders|start them in order|unused|expected")
class StartsWhenReady(Overlapped):
    """Each bucket on its own, and the unused ones not at all."""

    def gradient_is_there(self, k):
        if not self.syncing:
            return
        self.missing[k] -= 1
        if self.missing[k] == 0:
            flat = self.flat(self.buckets[k])
            self.flights.append((dist.all_reduce(flat, async_op=True), flat, k))

    def wait(self):
        for handle, flat, k in self.flights:
            handle.wait()
            flat /= dist.get_world_size()
            for p, mean in zip(self.buckets[k], flat.split([p.numel() for p in self.buckets[k]])):
                p.grad = mean.view_as(p).clone()
        self.start_over()


@wrong("lesson_05.overlap", says="buffer|under way")
class ReusesOneBuffer(Overlapped):
    def flat(self, bucket):
        values = super().flat(bucket)
        if not hasattr(self, "buffer") or self.buffer.numel() < values.numel():
            self.buffer = torch.zeros(100, dtype=values.dtype)
        self.buffer[: values.numel()] = values
        return self.buffer[: values.numel()]


@wrong("lesson_05.overlap", says="rank 0 has its gradients in another order.*before all its gradients were there")
class StartsTheNextForEveryBucket(Overlapped):
    def gradient_is_there(self, k):
        if self.syncing:
            self.missing[k] -= 1
            if self.missing[k] == 0:
                self.start_next()


class ACallAParameter(Overlapped):
    def start_next(self):
        parts = [self.flat([p]) for p in self.buckets[len(self.flights)]]
        self.flights.append(([dist.all_reduce(part, async_op=True) for part in parts], parts))

    def wait(self):
        self.start_the_rest()
        for (handles, parts), bucket in zip(self.flights, self.buckets):
            for handle, part, p in zip(handles, parts, bucket):
                handle.wait()
                p.grad = part.view_as(p) / dist.get_world_size()
        self.start_over()


class InHalves(Overlapped):
    def start_next(self):
        flat = self.flat(self.buckets[len(self.flights)])
        halves = flat.tensor_split(2)
        self.flights.append(([dist.all_reduce(half, async_op=True) for half in halves], flat))

    def wait_for(self, handles):
        for handle in handles:
            handle.wait()


wrong_values("lesson_05.overlap", "a_call_a_parameter", ACallAParameter, says="a bucket is one message")
wrong_values("lesson_05.overlap", "in_halves", InHalves, says="a bucket is one message")
wrong_values(
    "lesson_05.overlap_in_time", "a_call_a_parameter", ACallAParameter, says="both of its gradients in one flat"
)


@wrong("lesson_05.overlap_in_time", says="waited for inside the hook|later than their last gradient")
class WaitsInTheHook(Overlapped):
    def start_next(self):
        super().start_next()
        self.flights[-1][0].wait()


@wrong("lesson_05.overlap_in_time", says="nothing is sent before backward ends|from the last layer to the first")
class ForwardOrder(Overlapped):
    def order(self, parameters):
        return parameters


@wrong("lesson_05.overlap_in_time", says="complete before their turn.*look at the next one at once")
class LooksAtOneBucketOnly(Overlapped):
    def gradient_is_there(self, k):
        if self.syncing:
            self.missing[k] -= 1
            if len(self.flights) < len(self.buckets) and self.missing[len(self.flights)] == 0:
                self.start_next()


@wrong("lesson_05.overlap_in_time", says="complete before their turn.*look at the next one at once")
class LooksAtItsOwnBucketOnly(Overlapped):
    def gradient_is_there(self, k):
        if self.syncing:
            self.missing[k] -= 1
            if self.missing[k] == 0 and k == len(self.flights):
                self.start_next()


@wrong("lesson_05.overlap", says="three steps.*everything starts over")
class NeverStartsOver(Overlapped):
    def wait(self):
        missing, flights = self.missing, self.flights
        super().wait()
        self.missing, self.flights = missing, flights


@wrong("lesson_05.overlap", says="first batch alone.*inside no_sync")
class CountsInNoSync(Overlapped):
    def gradient_is_there(self, k):
        self.missing[k] -= 1
        while self.syncing and len(self.flights) < len(self.buckets) and self.missing[len(self.flights)] <= 0:
            self.start_next()


@wrong("lesson_05.overlap", says="last batch alone.*is a part of the sum: nothing clears it")
class ClearsInNoSync(Overlapped):
    def gradient_is_there(self, k):
        super().gradient_is_there(k)
        if not self.syncing:
            for p in self.buckets[k]:
                p.grad = None


@wrong("lesson_05.overlap_in_time", says="inside no_sync.. nothing may be sent.*every bucket goes off once")
class WaitsAtTheEndOfNoSync(Overlapped):
    @contextmanager
    def no_sync(self):
        self.syncing = False
        yield
        self.syncing = True
        self.wait()


@wrong("lesson_05.overlap", says="4 bytes a number travel, as float32: .* float64 here")
class SendsFloat32(Overlapped):
    def flat(self, bucket):
        return super().flat(bucket).float()

    def wait(self):
        self.start_the_rest()
        for (handle, flat), bucket in zip(self.flights, self.buckets):
            handle.wait()
            for p, total in zip(bucket, flat.split([p.numel() for p in bucket])):
                p.grad = (total / dist.get_world_size()).view_as(p).to(p.dtype)
        self.start_over()


@wrong("lesson_05.overlap", says="no known mistake gives this.*print the bucket")
class MultipliesByARoundedShare(Overlapped):
    def divisor(self):
        return 1 / round(1 / dist.get_world_size(), 3)


@wrong("lesson_05.overlap", says="it is zero: its bucket went off before this gradient was there")
class GoesOffAtTheFirstGradient(Overlapped):
    def gradient_is_there(self, k):
        if self.syncing and k == len(self.flights):
            self.start_next()


@wrong("lesson_05.overlap", says="64 bytes, expected 80.*where a gradient is None, zeros travel in its place")
class LeavesOutWhatIsNone(Overlapped):
    def flat(self, bucket):
        return torch.cat(
            [torch.zeros(0, dtype=bucket[0].dtype), *(p.grad.flatten() for p in bucket if p.grad is not None)]
        )

    def wait(self):
        self.start_the_rest()
        for (handle, flat), bucket in zip(self.flights, self.buckets):
            handle.wait()
            used = [p for p in bucket if p.grad is not None]
            for p, mean in zip(used, flat.split([p.numel() for p in used])):
                p.grad = mean.view_as(p) / dist.get_world_size()
        self.start_over()


class _WritesBack(Overlapped):
    def write(self, p, mean):
        p.grad = mean.view_as(p).clone()

    def places(self, bucket):
        return bucket

    def wait(self):
        self.start_the_rest()
        for (handle, flat), bucket in zip(self.flights, self.buckets):
            handle.wait()
            flat /= dist.get_world_size()
            places = self.places(bucket)
            for p, mean in zip(places, flat.split([p.numel() for p in places])):
                self.write(p, mean)
        self.start_over()


@wrong("lesson_05.overlap", says="hold the means' numbers, not each its own.*in which the bucket filled it")
class WritesBackInTheModelsOrder(_WritesBack):
    def places(self, bucket):
        return bucket[::-1]


@wrong("lesson_05.overlap", says="a piece of the flat vector is flat: .* view_as")
class LeavesThePiecesFlat(_WritesBack):
    def write(self, p, mean):
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        p.grad.data = mean.clone()


@wrong("lesson_05.overlap", says="assign a gradient.*the shape of its parameter")
class HandsOverFlatPieces(_WritesBack):
    def write(self, p, mean):
        p.grad = mean.clone()


@wrong("lesson_05.overlap", says="is None, expected.*others have: their mean is this rank's too")
class WritesBackWhereThereWasOne(Overlapped):
    def wait(self):
        unused = [p for bucket in self.buckets for p in bucket if p.grad is None]
        super().wait()
        for p in unused:
            p.grad = None


@wrong("lesson_05.overlap", says="NoneType.*likely cause: something is None there")
class CopiesIntoNone(Overlapped):
    def wait(self):
        self.start_the_rest()
        for (handle, flat), bucket in zip(self.flights, self.buckets):
            handle.wait()
            for p, mean in zip(bucket, flat.split([p.numel() for p in bucket])):
                p.grad.copy_(mean.view_as(p) / dist.get_world_size())
        self.start_over()


@wrong("lesson_05.overlap_in_time", says="likely cause: two dtypes meet")
class TravelsInFloat32(Overlapped):
    def flat(self, bucket):
        return super().flat(bucket).float()


@wrong("lesson_05.overlap_in_time", says="nothing is sent before backward ends")
class AllAtTheEnd(Overlapped):
    def gradient_is_there(self, k):
        return


@wrong("lesson_05.overlap_in_time", says="a gradient that came in no_sync is not to be counted")
class CountsInNoSyncAndLeavesLate(Overlapped):
    def gradient_is_there(self, k):
        if self.syncing:
            super().gradient_is_there(k)
        else:
            self.missing[k] -= 1


@wrong("lesson_05.overlap_in_time", says="0 all_reduce calls.*after no_sync.. not every bucket goes off")
class StartsNothingBehindNoSync(Overlapped):
    def gradient_is_there(self, k):
        self.missing[k] -= 1
        while self.syncing and 0 in self.missing[len(self.flights) :][:1]:
            self.start_next()

    def start_the_rest(self):
        pass


@wrong("lesson_05.overlap_in_time", says="the second step: 0 all_reduce calls.*everything starts over")
class SendsOnce(Overlapped):
    begun = False

    def start_over(self):
        if not self.begun:
            super().start_over()
        self.begun = True


@wrong("lesson_05.scaling_metrics", says="ranks divides by zero.*comm_s is 0: the ratio is math.inf")
def divides_by_no_communication(profiles):
    alone_s = profiles[1]["iteration_s"]
    return {
        n: {
            "ratio": p["comp_s"] / p["comm_s"],
            "speedup": n * alone_s / p["iteration_s"],
            "efficiency": alone_s / p["iteration_s"],
        }
        for n, p in profiles.items()
    }


wrong_values("lesson_05.ring_bytes", "one_step_a_phase_around", lambda n, b: 2 * b / n, says="that is one step a phase")


@wrong("lesson_05.overlap_in_time", says="a barrier takes time too")
class MeetsInWait(Overlapped):
    def wait(self):
        super().wait()
        dist.barrier()


@wrong("lesson_05.overlap", says="each bucket goes once, in a vector longer than its gradients")
class PadsItsBuckets(Overlapped):
    def flat(self, bucket):
        return torch.cat([super().flat(bucket), torch.zeros(3, dtype=bucket[0].dtype)])

    def start_next(self):
        super().start_next()
        handle, flat = self.flights[-1]
        self.flights[-1] = (handle, flat[:-3])


# 5.5 attribution


def _step(rank, world_size, conditions, *, barrier=True, who=None, cores=True, reduce=True, straggler=True):
    if rank == 0:
        time.sleep(conditions.get("serial_s", 0.0))
    if barrier and "serial_s" in conditions:
        dist.barrier()
    compute_s = max(1.0, world_size / conditions.get("cores", world_size)) if cores else 1.0
    if straggler and (who is None or rank == who % world_size):
        compute_s *= conditions.get("straggler", 1.0)
    time.sleep(compute_s)
    if reduce:
        dist.all_reduce(torch.zeros(10_000))


@wrong("lesson_05.step_under", says="the straggler makes no difference")
def forgets_the_straggler_on_few_cores(rank, world_size, conditions):
    _step(rank, world_size, conditions, who=-1, straggler="cores" not in conditions)


@wrong("lesson_05.step_under", says="barrier after it")
def nobody_waits_for_rank_zero(rank, world_size, conditions):
    _step(rank, world_size, conditions, barrier=False, who=-1)


@wrong("lesson_05.step_under", says="does not wait for rank 0's serial part.*in a barrier")
def every_rank_does_the_serial_part(rank, world_size, conditions):
    time.sleep(conditions.get("serial_s", 0.0))
    _step(rank, world_size, {k: v for k, v in conditions.items() if k != "serial_s"}, who=-1)


@wrong("lesson_05.step_under", says="last rank only")
def all_are_stragglers(rank, world_size, conditions):
    _step(rank, world_size, conditions)


@wrong("lesson_05.step_under", says="every rank slowed down; a straggler is the last rank only")
def all_are_stragglers_behind_a_barrier(rank, world_size, conditions):
    dist.barrier()
    _step(rank, world_size, conditions)


@wrong("lesson_05.step_under", says="never waited for: without async_op")
def leaves_the_all_reduce_under_way(rank, world_size, conditions):
    _step(rank, world_size, conditions, reduce=False, who=-1)
    dist.all_reduce(torch.zeros(10_000), async_op=True)


@wrong("lesson_05.step_under", says="world_size / cores as long")
def cores_do_not_matter(rank, world_size, conditions):
    _step(rank, world_size, conditions, cores=False, who=-1)


@wrong("lesson_05.step_under", says="the all-reduce is missing")
def forgets_the_all_reduce(rank, world_size, conditions):
    _step(rank, world_size, conditions, reduce=False, who=-1)


@wrong("lesson_05.step_under", says="the compute of the step is missing")
def only_communicates(rank, world_size, conditions):
    dist.all_reduce(torch.zeros(40_000, dtype=torch.uint8))


@wrong("lesson_05.step_under", says="the straggler makes no difference")
def nobody_is_slow(rank, world_size, conditions):
    _step(rank, world_size, conditions, straggler=False)


@wrong("lesson_05.step_under", says="rank 0 does not wait for rank 8.*all wait for rank 0: the straggler is the last")
def the_first_is_slow(rank, world_size, conditions):
    _step(rank, world_size, conditions, who=0)


@wrong("lesson_05.step_under", says="rank 0 does not wait for rank 8.*all wait for rank 0: the straggler is the last")
def the_first_is_slow_after_a_barrier(rank, world_size, conditions):
    dist.barrier()
    _step(rank, world_size, conditions, who=0)


def _turns(share, slower=lambda compute_s, times: compute_s * times, n_elements=10_000, dtype=torch.float32):
    def step(rank, world_size, conditions):
        if rank == 0:
            time.sleep(conditions.get("serial_s", 0.0))
        if "serial_s" in conditions:
            dist.barrier()
        compute_s = share(world_size, conditions.get("cores", world_size))
        if rank == world_size - 1:
            compute_s = slower(compute_s, conditions.get("straggler", 1.0))
        time.sleep(compute_s)
        dist.all_reduce(torch.zeros(n_elements, dtype=dtype))

    return step


def _evenly(n, cores):
    return max(1.0, n / cores)


for _name, _function, _says in [
    ("whole_turns", _turns(lambda n, cores: math.ceil(n / cores)), "without // or rounding"),
    ("floored_turns", _turns(lambda n, cores: max(1, n // cores)), "without // or rounding"),
    ("more_cores_are_faster", _turns(lambda n, cores: n / cores), "more cores than ranks make no rank faster"),
    ("adds_the_straggler", _turns(_evenly, lambda s, times: s + times - 1), "is multiplied"),
    ("float64", _turns(_evenly, dtype=torch.float64), "float32, and that many"),
    ("a_thousand", _turns(_evenly, n_elements=1000), "float32, and that many"),
    ("four_times_as_many", _turns(_evenly, n_elements=40_000), "float32, and that many"),
    ("cores_over_ranks", _turns(lambda n, cores: cores / n), "the other way round"),
    ("the_ranks_left_over", _turns(lambda n, cores: max(1, n - cores)), "here 4 times and not 6 times"),
]:
    wrong_values("lesson_05.step_under", _name, _function, says=_says)


wrong_values(
    "lesson_05.step_under", "as_many_bytes_of_float16", _turns(_evenly, n_elements=20_000, dtype=torch.float16),
    says="takes as long as it should, and is of float16.*40,000 bytes of another dtype",
)  # fmt: skip


@wrong("lesson_05.step_under", says="rank 0 is busy for 0 s before the all_reduce, expected 1 s.*every rank computes")
def only_the_last_computes(rank, world_size, conditions):
    if rank == 0:
        time.sleep(conditions.get("serial_s", 0.0))
    if "serial_s" in conditions:
        dist.barrier()
    if rank == world_size - 1:
        time.sleep(conditions.get("straggler", 1.0) * max(1.0, world_size / conditions.get("cores", world_size)))
    dist.all_reduce(torch.zeros(10_000))


@wrong("lesson_05.step_under", says="rank 7 is busy for 4 s .* expected 1 s.*a straggler's time the last rank's")
def two_are_slow(rank, world_size, conditions):
    _step(rank, world_size, conditions, who=rank if rank >= world_size - 2 else -1)


@wrong("lesson_05.step_under", says="under way while the rank computes")
def starts_the_all_reduce_first(rank, world_size, conditions):
    work = dist.all_reduce(torch.zeros(10_000), async_op=True)
    time.sleep(1.0)
    work.wait()


@wrong("lesson_05.step_under", says="one all_reduce a step: there are two")
def reduces_twice(rank, world_size, conditions):
    _turns(_evenly)(rank, world_size, conditions)
    dist.all_reduce(torch.zeros(10_000))


def _running_sum(ideal_s, alone_s, actual_s):
    parts, height_s = {"ideal": ideal_s}, ideal_s
    for cause, seconds in alone_s.items():
        height_s += seconds - ideal_s
        parts[cause] = height_s
    return parts | {"together": actual_s - height_s}


def _waterfall(ideal_s, alone_s, actual_s):
    parts = {"ideal": ideal_s, **{cause: s - ideal_s for cause, s in alone_s.items()}}
    return {**parts, "together": actual_s - sum(parts.values())}


@wrong("lesson_05.waterfall", says="not with the cause before it")
def from_one_cause_to_the_next(ideal_s, alone_s, actual_s):
    steps = [ideal_s, *alone_s.values()]
    parts = {"ideal": ideal_s} | {cause: s - before for before, (cause, s) in zip(steps, alone_s.items())}
    return parts | {"together": actual_s - sum(parts.values())}


@wrong("lesson_05.waterfall", says="right but rounded")
def rounds_the_parts(ideal_s, alone_s, actual_s):
    parts = {cause: round(seconds, 2) for cause, seconds in _waterfall(ideal_s, alone_s, actual_s).items()}
    return {**parts, "ideal": ideal_s}


def _scaled(ideal_s, alone_s, actual_s):
    parts = _waterfall(ideal_s, alone_s, actual_s)
    total = sum(parts[c] for c in alone_s) or 1.0
    return {
        "ideal": ideal_s,
        **{c: parts[c] / total * (actual_s - ideal_s) for c in alone_s},
        "together": 0.0,
    }


for _name, _function, _says in [
    ("whole_steps", lambda i, a, t: {"ideal": i, **a, "together": t - i - sum(a.values())}, "adds to the ideal one"),
    ("no_rest", lambda i, a, t: {"ideal": i, **{c: s - i for c, s in a.items()}}, "has the parts"),
    ("rest_of_zero", lambda i, a, t: {**_waterfall(i, a, t), "together": 0.0}, "the parts add up to"),
    (
        "positive_only",
        lambda i, a, t: {**_waterfall(i, a, t), "together": abs(_waterfall(i, a, t)["together"])},
        "may be neg",
    ),
    ("scaled_to_fit", _scaled, "expected"),
    (
        "shares",
        lambda i, a, t: {c: s / t for c, s in _waterfall(i, a, t).items()},
        "these are shares of the actual step",
    ),
    ("minus_the_cause", lambda i, a, t: _waterfall(i, a, t) | {c: i - s for c, s in a.items()}, "the other way round"),
    ("another_order", lambda i, a, t: dict(reversed(_waterfall(i, a, t).items())), "the order in which they are drawn"),
    ("a_list", lambda i, a, t: list(_waterfall(i, a, t).values()), "expected a dict"),
    ("one_on_top_of_the_other", _running_sum, "a part is what one cause adds by itself"),
    (
        "shares_of_the_ideal",
        lambda i, a, t: {"ideal": i, **{c: s / i - 1 for c, s in a.items()}, "together": 0},
        "share",
    ),
    (
        "leaves_out_what_adds_nothing",
        lambda i, a, t: {c: s for c, s in _waterfall(i, a, t).items() if s or c == "together"},
        "there is no part link",
    ),
    (
        "rounds_the_rest",
        lambda i, a, t: {**_waterfall(i, a, t), "together": round(_waterfall(i, a, t)["together"], 4)},
        "Nothing is rounded, in no part",
    ),
    ("with_the_whole", lambda i, a, t: {**_waterfall(i, a, t), "actual": t}, "a part too many: actual"),
    (
        "no_cause_helps",
        lambda i, a, t: (
            (p := {"ideal": i, **{c: max(0, s - i) for c, s in a.items()}}) | {"together": t - sum(p.values())}
        ),
        "its part is negative",
    ),
]:
    wrong_values("lesson_05.waterfall", _name, _function, says=_says)


@wrong("lesson_05.profiled_training", says="rank 0 trains on 128 examples .* batch_size is 4.*is an argument")
def takes_the_lessons_batch(rank, world_size, n_iterations, batch_size):
    return _profiled(rank, world_size, n_iterations, 128)


@wrong("lesson_05.profiled_training", says="barrier is timed as well")
def meets_before_it_reduces(rank, world_size, n_iterations, batch_size):
    model, optimizer, images, labels = _fresh_start(rank, batch_size)
    n_calls, computed, communicated = 0, 0.0, 0.0
    for _ in range(n_iterations):
        start_s = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        dist.barrier()
        reduce_s = time.perf_counter()
        for p in model.parameters() if world_size > 1 else ():
            dist.all_reduce(p.grad)
            p.grad /= world_size
            n_calls += 1
        step_s = time.perf_counter()
        optimizer.step()
        communicated += (step_s - reduce_s) / n_iterations
        computed += (reduce_s - start_s + time.perf_counter() - step_s) / n_iterations
    return {"comp_s": computed, "comm_s": communicated, "iteration_s": computed + communicated, "n_calls": n_calls}


@wrong("lesson_05.overlapped_s", says="n_buckets - 1 of the slower one")
def one_bucket_too_many(compute_s, n_buckets, bucket_s):
    part = compute_s / n_buckets
    return part + n_buckets * max(part, bucket_s) + bucket_s


@wrong("lesson_05.overlapped_s", says="one part is compute_s / n_buckets")
def takes_all_for_a_part(compute_s, n_buckets, bucket_s):
    return compute_s + (n_buckets - 1) * max(compute_s, bucket_s) + bucket_s


@wrong("lesson_05.step_under", says="nothing of it is shared out")
def shares_the_serial_part(rank, world_size, conditions):
    serial_s = conditions.get("serial_s", 0.0) / world_size
    time.sleep(serial_s if rank else 0.0)
    _step(rank, world_size, {**conditions, "serial_s": serial_s} if serial_s else conditions, who=-1)


@wrong("lesson_05.step_under", says="the ledger has broadcast, and no all_reduce")
def broadcasts_at_the_end(rank, world_size, conditions):
    _step(rank, world_size, conditions, who=-1, reduce=False)
    dist.broadcast(torch.zeros(10_000), 0)


@wrong("lesson_05.step_under", says="in a barrier: the all_reduce waits for it anyway")
def meets_at_the_end(rank, world_size, conditions):
    _step(rank, world_size, conditions, who=-1, reduce=False)
    dist.barrier()
    dist.all_reduce(torch.zeros(10_000))


wrong_values(
    "lesson_05.calls_per_epoch", "one_iteration", lambda n, examples, batch, size: n if size > 1 else 0,
    says="that is one iteration",
)  # fmt: skip
wrong_values(
    "lesson_05.bucketed_s", "one_step_a_phase",
    lambda n, bucket, size, network: (
        n // bucket * 2 * (network.latency_s + bucket / size / network.bandwidth_Bps) * (size > 1)
    ),
    says="that is one step a phase",
)  # fmt: skip
wrong_values(
    "lesson_05.waterfall", "gives_the_ideal_step_for_a_part",
    lambda ideal, alone, actual: (
        {"ideal": ideal} | dict.fromkeys(alone, ideal) | {"together": actual - ideal * (1 + len(alone))}
    ),
    says="that is the ideal step",
)  # fmt: skip


wrong_values(
    "lesson_05.overlapped_s", "begins_with_a_bucket", lambda c, n, b: 2 * b + (n - 1) * max(c / n, b),
    says="before the first bucket comes the first part",
)  # fmt: skip


@wrong("lesson_05.waterfall", says="The ideal step is a part of the sum too")
def forgets_the_ideal_step_in_the_rest(ideal_s, alone_s, actual_s):
    parts = {cause: seconds - ideal_s for cause, seconds in alone_s.items()}
    return {"ideal": ideal_s, **parts, "together": actual_s - sum(parts.values())}


@wrong("lesson_05.waterfall", says=r"add up to 4.75 s.*it closes the sum\.\n")
def compares_with_the_slowest(ideal_s, alone_s, actual_s):
    parts = {cause: seconds - ideal_s for cause, seconds in alone_s.items()}
    return {"ideal": ideal_s, **parts, "together": actual_s - max(alone_s.values())}


@wrong("lesson_05.bucketed_all_reduce", says="it was divided by bucket_elements")
def divides_by_the_bucket(gradients, bucket_elements):
    _bucketed(gradients, bucket_elements, divide=0)
    for g in gradients:
        g /= bucket_elements


@wrong("lesson_05.bucketed_all_reduce", says="the mean was added to the rank's own gradient")
def adds_the_mean(gradients, bucket_elements):
    before = [g.clone() for g in gradients]
    _bucketed(gradients, bucket_elements)
    for g, own in zip(gradients, before):
        g += own


@wrong("lesson_05.step_under", says="the all_reduce comes before the compute")
def reduces_first(rank, world_size, conditions):
    if rank == 0:
        time.sleep(conditions.get("serial_s", 0.0))
    dist.barrier()
    dist.all_reduce(torch.zeros(10_000))
    turns = max(1.0, world_size / conditions.get("cores", world_size))
    time.sleep(turns * (conditions.get("straggler", 1.0) if rank == world_size - 1 else 1.0))


@wrong("lesson_05.profiled_training", says="nothing is divided by the number of ranks")
def shares_the_seconds_out(rank, world_size, *given):
    profile = _profiled(rank, world_size, *given)
    comm_s = profile["comm_s"] / world_size
    return {**profile, "comm_s": comm_s, "iteration_s": profile["comp_s"] + comm_s}


@wrong("lesson_05.overlap_in_time", says="went off before its own gradients were there.*not that some other bucket")
class StartsTheFirstWhenAnotherIsFull(Overlapped):
    def gradient_is_there(self, k):
        if self.syncing:
            self.missing[k] -= 1
            if self.missing[k] == 0:
                self.start_next()


@wrong("lesson_05.step_under", says="this one has more: what lets ranks wait for rank 0 is a barrier")
def waits_in_another_all_reduce(rank, world_size, conditions):
    if rank == 0:
        time.sleep(conditions.get("serial_s", 0.0))
    dist.all_reduce(torch.zeros(1))
    cores = conditions.get("cores", world_size)
    time.sleep(max(1.0, world_size / cores) * (conditions.get("straggler", 1.0) if rank == world_size - 1 else 1.0))
    dist.all_reduce(torch.zeros(10_000))


def _one_rank_steps_too(n_bytes, bucket_bytes, world_size, network):
    step_s = network.latency_s + bucket_bytes / world_size / network.bandwidth_Bps
    return n_bytes // bucket_bytes * 2 * max(1, world_size - 1) * step_s


wrong_values("lesson_05.bucketed_s", "one_rank_steps_too", _one_rank_steps_too, says="one rank has nobody to send to")


@wrong("lesson_05.bucketed_all_reduce", says="has 0 entries after the call.*take nothing out")
def empties_the_callers_list(gradients, bucket_elements):
    _bucketed(list(gradients), bucket_elements)
    while gradients:
        gradients.pop(0)


@wrong("lesson_05.overlap", says="float32: rank 0 reduced 80 bytes.*8 bytes a number travel, as float64")
class TravelsInFloat64(_WritesBack):
    def flat(self, bucket):
        return super().flat(bucket).double()

    def write(self, p, mean):
        p.grad = mean.view_as(p).to(p.dtype)


@wrong(
    "lesson_05.overlap", says="gradient of `last` on rank 0 is zero.*no gradient of its own there, and counts as zeros"
)
class LeavesZerosWhereItHasNone(Overlapped):
    def wait(self):
        unused = [p for bucket in self.buckets for p in bucket if p.grad is None]
        super().wait()
        for p in unused:
            p.grad = torch.zeros_like(p)


@wrong("lesson_05.overlap_in_time", says="a bucket is waited for before a later one starts.*wait in wait.. only")
class WaitsForTheBucketBefore(Overlapped):
    def start_next(self):
        if self.flights:
            self.flights[-1][0].wait()
        super().start_next()


def _cores_of(number):
    return lambda rank, world_size, conditions: _step(rank, world_size, {"cores": number} | conditions, who=-1)


for _name, _number in (("cores_of_a_laptop", 2), ("cores_of_the_notebook", 8)):
    wrong_values("lesson_05.step_under", _name, _cores_of(_number), says="no number of cores is given here")


@wrong("lesson_05.overlap", says="no gradient at all.*hangs.*also on a rank that has no gradient")
class WaitsForWhatHasBegun(Overlapped):
    def wait(self):
        if any(missing < len(bucket) for missing, bucket in zip(self.missing, self.buckets)):
            super().wait()


@wrong("lesson_05.step_under", says="stands still|only time.sleep")
def is_busy_until_the_clock_says_so(rank, world_size, conditions):
    end_s = time.perf_counter() + 1.0
    while time.perf_counter() < end_s:
        pass
    _step(rank, world_size, conditions)


@wrong("lesson_05.bucketed_all_reduce", says="whole gradients travel: lay all gradients out in one flat vector")
def fills_buckets_with_whole_gradients(gradients, bucket_elements):
    buckets = [[]]
    for g in gradients:
        if buckets[-1] and sum(map(torch.numel, buckets[-1])) + g.numel() > bucket_elements:
            buckets.append([])
        buckets[-1].append(g)
    for bucket in buckets:
        flat = torch.cat([g.view(-1) for g in bucket])
        dist.all_reduce(flat)
        for g, mean in zip(bucket, flat.split([g.numel() for g in bucket])):
            g.copy_(mean.view_as(g) / dist.get_world_size())


@wrong("lesson_05.step_under", says="the serial part takes 2 times as long as it is: it is spent once")
def shares_cores_in_the_serial_part(rank, world_size, conditions):
    turns = max(1.0, world_size / conditions.get("cores", world_size))
    more = {"serial_s": turns * conditions["serial_s"]} if "serial_s" in conditions else {}
    _turns(_evenly)(rank, world_size, {**conditions, **more})


@wrong("lesson_05.profiled_training", says="barrier takes 0.* in none of the three times.*the all_reduce calls alone")
def leaves_a_barrier_out_of_both(rank, world_size, n_iterations, batch_size):
    model, optimizer, images, labels = _fresh_start(rank, batch_size)
    n_calls, computed, communicated = 0, 0.0, 0.0
    for _ in range(n_iterations):
        start_s = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        back_s = time.perf_counter()
        dist.barrier()
        reduce_s = time.perf_counter()
        for p in model.parameters() if world_size > 1 else ():
            dist.all_reduce(p.grad)
            p.grad /= world_size
            n_calls += 1
        step_s = time.perf_counter()
        optimizer.step()
        computed += back_s - start_s + time.perf_counter() - step_s
        communicated += step_s - reduce_s
    comp_s, comm_s = computed / n_iterations, communicated / n_iterations
    return {"comp_s": comp_s, "comm_s": comm_s, "iteration_s": comp_s + comm_s, "n_calls": n_calls}


@wrong("lesson_05.overlap_in_time", says="takes the seconds that are due, but puts other numbers into all_reduce")
class SendsTheFirstGradientsForEachBucket(Overlapped):
    def flat(self, bucket):
        return super().flat(self.buckets[0])


@wrong("lesson_05.overlap_in_time", says="starts all_reduce of bucket 0 at 0.5 s, its last gradient is there at 1 s")
class WorksOutGradientsAheadOfTheirHooks(Overlapped):
    def gradient_is_there(self, k):
        if self.syncing and not self.flights:
            (whole,) = [p.grad * p.detach() for bucket in self.buckets for p in bucket if p.grad is not None][:1]
            self.ahead = {p: whole / p.detach() for bucket in self.buckets for p in bucket}
            self.start_the_rest()

    def flat(self, bucket):
        return torch.cat([self.ahead[p] for p in bucket])


@wrong("lesson_05.overlap_in_time", says="has another gradient of layer 0 than the mean.*goes back into p.grad")
class BringsNoMeansBack(Overlapped):
    def wait(self):
        self.start_the_rest()
        for handle, _ in self.flights:
            handle.wait()
        self.start_over()


@wrong("lesson_05.overlap", says="after step 3: gradient of `last`.*kept from the step before")
class FillsOneVectorForAllSteps(Overlapped):
    def flat(self, bucket):
        kept = self.__dict__.setdefault("kept", {})
        flat = kept.setdefault(id(bucket), torch.zeros(sum(p.numel() for p in bucket), dtype=bucket[0].dtype))
        for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
            if p.grad is not None:
                part.copy_(p.grad.flatten())
        return flat


@wrong(
    "lesson_05.overlap",
    says="after step 2: .*off before all its gradients|after step 2: .*went off before this gradient",
)
class ResetsFullBucketsOnly(Overlapped):
    def start_over(self):
        left = getattr(self, "missing", [0] * len(self.buckets))
        self.missing = [m + len(bucket) if m <= 0 else m for m, bucket in zip(left, self.buckets)]
        self.flights = []


@wrong("lesson_05.overlap", says="after step 2: gradient of `last`")
class RemembersWhoWasUsed(Overlapped):
    def flat(self, bucket):
        used = self.__dict__.setdefault("used", {})
        mine = used.setdefault(id(bucket), [p.grad is not None for p in bucket])
        return torch.cat([(p.grad if u else torch.zeros_like(p)).flatten() for p, u in zip(bucket, mine)])


@wrong("lesson_05.overlap", says="every bucket goes, and 1 more all_reduce beside them: nothing else travels")
class CountsItsBuckets(Overlapped):
    def wait(self):
        dist.all_reduce(torch.ones(len(self.buckets)))
        super().wait()


@wrong("lesson_05.bucketed_all_reduce", says="0-dim tensor.*a tensor may be one number, without dimensions")
def writes_by_a_slice(gradients, bucket_elements):
    flat = torch.cat([g.flatten() for g in gradients])
    for bucket in flat.split(bucket_elements):
        dist.all_reduce(bucket)
    flat /= dist.get_world_size()
    for g, mean in zip(gradients, flat.split([g.numel() for g in gradients])):
        g[:] = mean.view_as(g)


@wrong("lesson_05.overlap_in_time", says="buckets that were complete before their turn start later")
class StartsUpToTheOneThatFills(Overlapped):
    def gradient_is_there(self, k):
        if self.syncing:
            self.missing[k] -= 1
            while len(self.flights) <= k and all(m <= 0 for m in self.missing[: len(self.flights) + 1]):
                self.start_next()
