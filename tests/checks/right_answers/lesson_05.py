"""Right answers to lesson 05 that are not the reference's."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict, defaultdict
from contextlib import contextmanager
from fractions import Fraction

import numpy as np
import torch
import torch.distributed as dist

from hw_utils.material.models import SimpleCNN
from tests.checks.right_answers import right, right_values

# 5.1

right_values("lesson_05.amdahl_speedup", "one_fraction", lambda n, s: n / (1 + s * (n - 1)))
right_values("lesson_05.amdahl_speedup", "numpy", lambda n, s: np.divide(n, s * n + 1 - s))
right_values("lesson_05.amdahl_speedup", "tensor", lambda n, s: torch.tensor(n / (s * n + 1 - s), dtype=torch.float64))
right_values("lesson_05.server_bytes", "adds_up", lambda n, m: sum(m + m for rank in range(n) if rank != 0))
right_values("lesson_05.server_bytes", "float", lambda n, m: float(m) * (n - 1) * 2)
right_values("lesson_05.ring_bytes", "subtracts", lambda n, m: 2 * m - 2 * m / n)
right_values(
    "lesson_05.ring_bytes", "chunk_by_chunk", lambda n, m: sum(m / n for phase in (1, 2) for _ in range(n - 1))
)

right_values("lesson_05.overlapped_s", "the_larger_of_two", lambda c, b, t: max(c + t, c / b + b * t))
right_values(
    "lesson_05.bucketed_s",
    "latencies_and_bytes",
    lambda m, b, n, net: 2 * (n - 1) * (m // b * net.latency_s + m / n / net.bandwidth_Bps),
)
right_values(
    "lesson_05.calls_per_epoch",
    "of_the_largest_shard",
    lambda p, m, b, n: p * math.ceil(math.ceil(m / n) / b) if n > 1 else 0,
)

# 5.2


def _start(rank, batch_size):
    torch.manual_seed(0)
    model = SimpleCNN()
    torch.manual_seed(rank)
    images, labels = torch.randn(batch_size, 3, 32, 32), torch.zeros(batch_size, dtype=torch.long)
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), images, labels


class _Watch:
    """A context manager that adds up seconds."""

    def __init__(self):
        self.seconds = 0.0

    def __enter__(self):
        self.start = time.perf_counter()

    def __exit__(self, *_):
        self.seconds += time.perf_counter() - self.start


@right("lesson_05.profiled_training")
def measures_with_two_watches(rank, world_size, n_iterations, batch_size):
    model, optimizer, images, labels = _start(rank, batch_size)
    compute, communicate, n_calls = _Watch(), _Watch(), 0
    for _ in range(n_iterations):
        with compute:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad(set_to_none=False)
            loss.backward()
        if world_size != 1:
            with communicate:
                for p in model.parameters():
                    dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
                    p.grad.div_(world_size)
                    n_calls += 1
        with compute:
            optimizer.step()
    comp_s, comm_s = compute.seconds / n_iterations, communicate.seconds / n_iterations
    return {"n_calls": n_calls, "comm_s": comm_s, "comp_s": comp_s, "iteration_s": comp_s + comm_s}


@right("lesson_05.profiled_training")
def keeps_lists_and_takes_their_means(rank, world_size, n_iterations, batch_size):
    """The whole iteration from its own two readings; extra keys; counts at the end."""
    model, optimizer, images, labels = _start(rank, batch_size)
    whole, communication = [], []
    for _ in range(n_iterations):
        begin = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.CrossEntropyLoss()(model(images), labels).backward()
        t = time.perf_counter()
        if world_size > 1:
            handles = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
            for handle, p in zip(handles, model.parameters()):
                handle.wait()
                p.grad /= world_size
        communication.append(time.perf_counter() - t if world_size > 1 else 0)
        optimizer.step()
        whole.append(time.perf_counter() - begin)
    comm_s, iteration_s = np.mean(communication), np.mean(whole)
    n_calls = n_iterations * len(list(model.parameters())) * (world_size > 1)
    return {
        "rank": rank, "comp_s": iteration_s - comm_s, "comm_s": comm_s, "iteration_s": iteration_s, "n_calls": n_calls,
    }  # fmt: skip


@right("lesson_05.profiled_training")
def counts_calls_by_a_wrapper(rank, world_size, n_iterations, batch_size):
    model, optimizer, images, labels = _start(rank, batch_size)
    totals = {"comp_s": 0.0, "comm_s": 0.0, "n_calls": 0}

    def reduce(tensor):
        start = time.perf_counter()
        dist.all_reduce(tensor)
        tensor /= world_size
        totals["comm_s"] += time.perf_counter() - start
        totals["n_calls"] += 1

    start = time.perf_counter()
    for _ in range(n_iterations):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        if world_size > 1:
            [reduce(p.grad) for p in model.parameters()]
        optimizer.step()
    iteration_s = (time.perf_counter() - start) / n_iterations
    comm_s = totals["comm_s"] / n_iterations
    return {**totals, "comm_s": comm_s, "comp_s": iteration_s - comm_s, "iteration_s": iteration_s}


@right("lesson_05.profiled_training")
def divides_the_loss_and_warms_up(rank, world_size, n_iterations, batch_size):
    """The mean's division sits in the loss; one forward pass before the clock starts."""
    model, optimizer, images, labels = _start(rank, batch_size)
    model(images)
    comp_s, comm_s, n_calls = [], [], 0
    for _ in range(n_iterations):
        times = [time.perf_counter()]
        for p in model.parameters():
            p.grad = None
        (torch.nn.functional.cross_entropy(model(images), labels) / world_size).backward()
        times.append(time.perf_counter())
        for p in model.parameters():
            if world_size > 1:
                dist.all_reduce(p.grad)
                n_calls += 1
        times.append(time.perf_counter())
        optimizer.step()
        times.append(time.perf_counter())
        comp_s.append(times[1] - times[0] + times[3] - times[2])
        comm_s.append(times[2] - times[1])
    compute, communicate = sum(comp_s) / n_iterations, sum(comm_s) / n_iterations if world_size > 1 else 0.0
    return {"comp_s": compute, "comm_s": communicate, "iteration_s": compute + communicate, "n_calls": n_calls}


@right("lesson_05.profiled_training")
def steps_by_hand(rank, world_size, n_iterations, batch_size):
    """SGD with momentum written out, on what the all-reduces left in new tensors."""
    model, _, images, labels = _start(rank, batch_size)
    speeds = [torch.zeros_like(p) for p in model.parameters()]
    compute, communicate = _Watch(), _Watch()
    n_calls = 0
    for _ in range(n_iterations):
        with compute:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
        if world_size > 1:
            with communicate:
                for g in gradients:
                    dist.all_reduce(g)
                    g /= world_size
                    n_calls += 1
        with compute, torch.no_grad():
            for p, g, speed in zip(model.parameters(), gradients, speeds):
                p -= 0.01 * speed.mul_(0.9).add_(g)
    comp_s, comm_s = compute.seconds / n_iterations, communicate.seconds / n_iterations
    return {"comp_s": comp_s, "comm_s": comm_s, "iteration_s": comp_s + comm_s, "n_calls": n_calls}


right_values("lesson_05.calls_per_epoch", "ceil", lambda p, m, b, n: p * math.ceil(m / (b * n)) * (n > 1))
right_values("lesson_05.calls_per_epoch", "range", lambda p, m, b, n: 0 if n == 1 else p * len(range(0, m, b * n)))
right_values("lesson_05.calls_per_epoch", "float", lambda p, m, b, n: p * math.ceil(m / b / n) * 1.0 if n > 1 else 0.0)


@right("lesson_05.scaling_metrics")
def by_a_comprehension(profiles):
    one = profiles[1]["iteration_s"]
    return {
        n: {
            "efficiency": one / p["iteration_s"],
            "ratio": math.inf if p["comm_s"] == 0 else p["comp_s"] / p["comm_s"],
            "speedup": (n / p["iteration_s"]) / (1 / one),
            "iteration_s": p["iteration_s"],
        }
        for n, p in sorted(profiles.items())
    }


@right("lesson_05.scaling_metrics")
def in_numpy(profiles):
    rows = defaultdict(dict)
    for n in profiles:
        comp, comm, iteration = (np.float64(profiles[n][k]) for k in ("comp_s", "comm_s", "iteration_s"))
        with np.errstate(divide="ignore"):
            ratio = comp / comm
        speedup = n * profiles[1]["iteration_s"] / iteration
        rows[n] = {"ratio": ratio, "speedup": speedup, "efficiency": speedup / n}
    return rows


# 5.3


@right("lesson_05.bucketed_all_reduce")
def divides_each_bucket(gradients, bucket_elements):
    flat = torch.hstack([g.reshape(-1) for g in gradients])
    for start in range(0, len(flat), bucket_elements):
        bucket = flat[start : start + bucket_elements]
        dist.all_reduce(bucket)
        bucket /= dist.get_world_size()
    start = 0
    for g in gradients:
        g[...] = flat[start : start + g.numel()].reshape(g.shape)
        start += g.numel()


@right("lesson_05.bucketed_all_reduce")
def starts_all_buckets_at_once(gradients, bucket_elements):
    flat = torch.nn.utils.parameters_to_vector(gradients) / dist.get_world_size()
    buckets = [b.clone() for b in torch.split(flat, bucket_elements)]
    for work in [dist.all_reduce(bucket, async_op=True) for bucket in buckets]:
        work.wait()
    for g, mean in zip(gradients, torch.cat(buckets).split([g.numel() for g in gradients])):
        g.data.copy_(mean.view(g.shape))


@right("lesson_05.bucketed_all_reduce")
def fills_a_bucket_element_by_element(gradients, bucket_elements):
    """Positions are counted, nothing is concatenated."""
    places = [(g.view(-1), k) for g in gradients for k in range(g.numel())]
    while places:
        now, places = places[:bucket_elements], places[bucket_elements:]
        bucket = torch.stack([flat[k] for flat, k in now])
        dist.all_reduce(bucket)
        for (flat, k), value in zip(now, bucket):
            flat[k] = value / dist.get_world_size()


right_values("lesson_05.bucketed_s", "two_terms", lambda m, b, n, net: (
    m / b * 2 * (n - 1) * net.latency_s + 2 * (n - 1) / n * m / net.bandwidth_Bps))  # fmt: skip
right_values("lesson_05.bucketed_s", "adds_up", lambda m, b, n, net: sum(
    2 * (n - 1) * net.message_s(b / n) for _ in range(m // b)))  # fmt: skip


@right("lesson_05.bucketed_s")
def by_fractions(n_bytes, bucket_bytes, world_size, network):
    chunk_s = Fraction(network.latency_s) + Fraction(bucket_bytes, world_size) / Fraction(network.bandwidth_Bps)
    return float(Fraction(n_bytes, bucket_bytes) * 2 * (world_size - 1) * chunk_s)


# 5.4

right_values("lesson_05.overlapped_s", "larger_of_both", lambda c, b, t: max(c + t, c / b + b * t))
right_values("lesson_05.overlapped_s", "one_formula", lambda c, b, t: c / b + t + (b - 1) * max(c / b, t))


@right("lesson_05.overlapped_s")
def plays_the_pipeline(compute_s, n_buckets, bucket_s):
    free = 0.0
    for k in range(1, n_buckets + 1):
        free = max(free, k * compute_s / n_buckets) + bucket_s
    return free


class _Base:
    """What the notebook gives: buckets from the last parameter to the first, a hook a parameter."""

    def __init__(self, model, bucket_bytes):
        self.buckets, room = [], 0
        for p in [p for p in model.parameters() if p.requires_grad][::-1]:
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

    def start_over(self):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.flights = []

    @contextmanager
    def no_sync(self):
        self.syncing = False
        yield
        self.syncing = True


@right("lesson_05.overlap", "lesson_05.overlap_in_time")
class AveragesBeforeItSends(_Base):
    """Divides what leaves, and copies the result into gradients that stay where they are."""

    def gradient_is_there(self, k):
        if self.syncing:
            self.missing[k] -= 1
            while (due := len(self.flights)) < len(self.buckets) and not self.missing[due]:
                self.start_next()

    def start_next(self):
        bucket = self.buckets[len(self.flights)]
        parts = [torch.zeros(p.shape, dtype=p.dtype) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([part.reshape(-1) for part in parts]) / dist.get_world_size()
        self.flights.append((dist.all_reduce(flat, async_op=True), flat))

    def wait(self):
        for _ in range(len(self.buckets) - len(self.flights)):
            self.start_next()
        for bucket, (handle, flat) in zip(self.buckets, self.flights):
            handle.wait()
            start = 0
            for p in bucket:
                mean = flat[start : start + p.numel()].reshape(p.shape)
                start += p.numel()
                if p.grad is None:
                    p.grad = mean.clone()
                else:
                    p.grad.copy_(mean)
        self.start_over()


@right("lesson_05.overlap", "lesson_05.overlap_in_time")
class LeavesViewsInGrad(_Base):
    """The gradients become views of the flat buffers, which are new at every step."""

    def gradient_is_there(self, k):
        if not self.syncing:
            return
        self.missing[k] = self.missing[k] - 1
        self.go_on(lambda bucket: self.missing[bucket] <= 0)

    def go_on(self, ready):
        while len(self.flights) < len(self.buckets) and ready(len(self.flights)):
            self.start_next()

    def start_next(self):
        bucket = self.buckets[len(self.flights)]
        flat = torch.hstack([p.new_zeros(p.numel()) if p.grad is None else p.grad.ravel() for p in bucket])
        self.flights.append((dist.all_reduce(flat, op=dist.ReduceOp.SUM, async_op=True), flat))

    def wait(self):
        self.go_on(lambda bucket: True)
        [handle.wait() for handle, _ in self.flights]
        while self.flights:
            _, flat = self.flights.pop()
            bucket = self.buckets[len(self.flights)]
            flat.div_(dist.get_world_size())
            for p, mean in zip(bucket, flat.split([p.numel() for p in bucket])):
                p.grad = mean.view(p.shape)
        self.start_over()


@right("lesson_05.overlap", "lesson_05.overlap_in_time")
class CountsWhichAreThere(_Base):
    """Its own bookkeeping: a set of ready buckets, and the number of those under way."""

    def start_over(self):
        self.seen = [0] * len(self.buckets)
        self.flights = {}

    def gradient_is_there(self, k):
        if not self.syncing:
            return None
        self.seen[k] += 1
        for bucket in range(len(self.flights), len(self.buckets)):
            if self.seen[bucket] < len(self.buckets[bucket]):
                return None
            self.start_next()

    def start_next(self):
        k = len(self.flights)
        for p in self.buckets[k]:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        flat = torch.nn.utils.parameters_to_vector([p.grad for p in self.buckets[k]])
        self.flights[k] = dist.all_reduce(flat, async_op=True), flat

    def wait(self):
        while len(self.flights) != len(self.buckets):
            self.start_next()
        for k, (handle, flat) in self.flights.items():
            handle.wait()
            torch.nn.utils.vector_to_parameters(flat / dist.get_world_size(), [p.grad for p in self.buckets[k]])
        self.start_over()


# 5.5


@right("lesson_05.step_under")
def waits_always(rank, world_size, conditions):
    """The barrier stands there without a serial part as well."""
    if rank == 0 and conditions.get("serial_s"):
        time.sleep(conditions["serial_s"])
    dist.barrier()
    slow = conditions.get("straggler", 1) if rank + 1 == world_size else 1
    crowded = max(1, world_size / conditions["cores"]) if "cores" in conditions else 1
    time.sleep(1.0 * slow * crowded)
    gradients = torch.ones(10_000, dtype=torch.float32)
    dist.all_reduce(gradients)


@right("lesson_05.step_under")
def counts_the_ready(rank, world_size, conditions):
    """What lets all wait for rank 0 is a small all-reduce."""
    if "serial_s" in conditions:
        time.sleep(conditions["serial_s"] if rank == 0 else 0.0)
        dist.all_reduce(torch.ones((), dtype=torch.int64))
    turns = max(1.0, world_size / conditions.get("cores", world_size))
    time.sleep(turns * (conditions.get("straggler", 1.0) if rank == world_size - 1 else 1.0))
    dist.all_reduce(torch.zeros(10_000))


@right("lesson_05.step_under")
def broadcasts_the_start(rank, world_size, conditions):
    """Everybody waits for a number of rank 0's."""
    serial_s = conditions.get("serial_s", 0)
    if serial_s:
        if rank == 0:
            time.sleep(serial_s)
        dist.barrier()
    factor = 1.0
    if "cores" in conditions and conditions["cores"] < world_size:
        factor *= world_size / conditions["cores"]
    if rank == world_size - 1 and "straggler" in conditions:
        factor *= conditions["straggler"]
    time.sleep(factor / 2)
    time.sleep(factor / 2)
    dist.all_reduce(torch.empty(100, 100))


@right("lesson_05.step_under")
def computes_in_a_thread(rank, world_size, conditions):
    if rank == 0:
        time.sleep(conditions.get("serial_s", 0))
    dist.barrier()
    seconds = max(1.0, world_size / conditions.get("cores", world_size))
    seconds *= conditions.get("straggler", 1.0) if rank == world_size - 1 else 1.0
    computing = threading.Thread(target=time.sleep, args=(seconds,))
    computing.start()
    computing.join()
    dist.all_reduce(torch.zeros(10_000))


@right("lesson_05.waterfall")
def fills_a_dictionary(ideal_s, alone_s, actual_s):
    parts, rest = {"ideal": ideal_s}, actual_s - ideal_s
    for cause in alone_s:
        parts[cause] = alone_s[cause] - ideal_s
        rest -= parts[cause]
    parts["together"] = rest
    return parts


right_values("lesson_05.waterfall", "unpacks", lambda ideal, alone, actual: {
    "ideal": ideal, **{c: s - ideal for c, s in alone.items()},
    "together": actual - ideal - sum(alone.values()) + len(alone) * ideal})  # fmt: skip


@right("lesson_05.waterfall")
def makes_a_dict_subclass(ideal_s, alone_s, actual_s):
    parts = OrderedDict(ideal=ideal_s)
    parts.update((cause, s - ideal_s) for cause, s in alone_s.items())
    parts["together"] = actual_s - math.fsum(parts.values())
    return parts


@right("lesson_05.bucketed_all_reduce")
def starts_with_the_last_bucket(gradients, bucket_elements):
    flat = torch.nn.utils.parameters_to_vector(gradients)
    for bucket in reversed(flat.split(bucket_elements)):
        dist.all_reduce(bucket)
    flat /= dist.get_world_size()
    for g, mean in zip(gradients, flat.split([g.numel() for g in gradients])):
        g.copy_(mean.view_as(g))


def _infinite_for_one(profiles):
    """With one rank there is no call, whatever its clock shows between two readings."""
    alone_s = profiles[1]["iteration_s"]
    rows = {}
    for n, p in profiles.items():
        ratio = math.inf if n == 1 or not p["comm_s"] else p["comp_s"] / p["comm_s"]
        efficiency = alone_s / p["iteration_s"]
        rows[n] = {"ratio": ratio, "speedup": n * efficiency, "efficiency": efficiency}
    return rows


right_values("lesson_05.scaling_metrics", "infinite_for_one_rank", _infinite_for_one)


@right("lesson_05.profiled_training")
def meets_before_it_starts(rank, world_size, n_iterations, batch_size):
    dist.barrier()
    profile = measures_with_two_watches(rank, world_size, n_iterations, batch_size)
    dist.barrier()
    return profile
