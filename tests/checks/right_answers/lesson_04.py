"""Right answers to lesson 04 that are not the reference's."""

from __future__ import annotations

import copy
import time
from functools import partial
from itertools import islice

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset

from tests.checks.right_answers import right, right_values
from tests.checks.wrong_answers.lesson_04 import all_reduce_mean, bytes_sent, gather_scatter


@right("lesson_04.train")
def counts_while_it_goes(model, batches, sync, optimizer, report=print):
    losses, total_s, n_timed = [], 0.0, 0
    model.train()
    for i, batch in enumerate(batches):
        start = time.perf_counter()
        loss = torch.nn.CrossEntropyLoss()(model(batch[0]), batch[1])
        model.zero_grad()
        loss.backward()
        sync(model)
        optimizer.step()
        if 1 <= i < 40:
            total_s += time.perf_counter() - start
            n_timed += 1
        losses.append(float(loss))
        if (i + 1) % 20 == 0:
            report("iteration " + str(i + 1) + f": loss {loss:.3f}")
    return losses, np.float64(total_s / n_timed)


@right("lesson_04.train")
def clears_after_the_step(model, batches, sync, optimizer, report=print):
    losses, moments = torch.zeros(0), []
    for x, y in batches:
        before = time.perf_counter()
        loss = cross_entropy(model(x), y)
        loss.backward()
        sync(model)
        optimizer.step()
        optimizer.zero_grad()
        moments.append(time.perf_counter() - before)
        losses = torch.cat([losses, loss.detach().reshape(1)])
        if len(moments) % 20 == 0:
            report(f"iteration {len(moments)}: loss {loss:.3f}")
    return losses.tolist(), torch.tensor(moments[1:40], dtype=torch.float64).mean().item()


@right("lesson_04.train")
def keeps_a_tensor_until_the_end(model, batches, sync, optimizer, report=print):
    losses, times = [], []
    for x, y in batches:
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=False)
        loss = cross_entropy(model(x), y)
        loss.backward()
        sync(model)
        optimizer.step()
        times.append(time.perf_counter() - start)
        losses.append(loss.detach())
        if len(losses) % 20 == 0:
            report(f"iteration {len(losses)}: loss {losses[-1]:.3f}")
    return torch.stack(losses).tolist(), np.mean(times[1:40])


@right("lesson_04.evaluate")
@torch.no_grad()
def decorated(model, batches):
    model.train(False)
    outputs, labels = zip(*[(model(x), y) for x, y in batches])
    scores, y = torch.cat(outputs), torch.cat(labels)
    return cross_entropy(scores, y).item(), float((scores.argmax(dim=1) == y).float().mean())


@right("lesson_04.evaluate")
def weighs_the_means(model, batches):
    training = model.training
    model.eval()
    loss = right_ones = n = 0
    with torch.inference_mode():
        for x, y in batches:
            out = model(x)
            loss += cross_entropy(out, y).item() * y.size(0)
            right_ones += out.max(1).indices.eq(y).sum().item()
            n += y.size(0)
    model.train(training)
    return [loss / n, right_ones / n]


@right("lesson_04.evaluate")
def shows_all_to_a_copy(model, batches):
    tested = copy.deepcopy(model).eval().requires_grad_(False)
    scores, y = (torch.cat(parts) for parts in zip(*((tested(x), y) for x, y in batches)))
    return cross_entropy(scores, y).item(), (scores.argmax(1) == y).float().mean().item()


@right("lesson_04.batches")
def by_keywords(dataset, rank, world_size, total_batch, epoch=0, seed=0):
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, seed=seed)
    sampler.set_epoch(epoch)
    return list(DataLoader(dataset, batch_size=total_batch // world_size, sampler=sampler, num_workers=0))


@right("lesson_04.batches")
def yields_them(dataset, rank, world_size, total_batch, epoch=0, seed=0):
    sampler = DistributedSampler(dataset, world_size, rank, seed=seed + 1000 * epoch)
    yield from DataLoader(Subset(dataset, list(sampler)), total_batch // world_size)


def _prepared(model):
    for p in model.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            yield p


@right("lesson_04.gather_scatter", "lesson_04.gather_scatter_traffic")
def sums_a_list(model):
    root = dist.get_rank() == 0
    for p in list(_prepared(model)):
        parts = [torch.zeros_like(p.grad) for _ in range(dist.get_world_size())] if root else None
        dist.gather(p.grad, gather_list=parts, dst=0)
        mean = sum(parts) / len(parts) if root else None
        received = torch.empty_like(p.grad)
        dist.scatter(received, scatter_list=[mean.clone() for _ in parts] if root else None, src=0)
        p.grad = received


@right("lesson_04.gather_scatter", "lesson_04.gather_scatter_traffic")
def in_two_passes(model):
    """First gathers everything, then scatters everything."""
    rank, n = dist.get_rank(), dist.get_world_size()
    means, parameters = [], list(_prepared(model))
    for p in parameters:
        each = [p.grad.new_empty(p.grad.shape) for _ in range(n)] if rank == 0 else []
        dist.gather(p.grad.detach(), each if rank == 0 else None)
        means.append(torch.stack(each).sum(0).div_(n) if rank == 0 else None)
    for p, mean in zip(parameters, means):
        dist.scatter(p.grad, [mean for _ in range(n)] if rank == 0 else None)


@right("lesson_04.gather_scatter", "lesson_04.gather_scatter_traffic")
def in_one_flat_vector(model):
    parameters = list(_prepared(model))
    for p in parameters:
        flat = p.grad.flatten().clone()
        if dist.get_rank():
            dist.gather(flat)
            dist.scatter(flat)
        else:
            table = torch.empty(dist.get_world_size(), flat.numel(), dtype=flat.dtype)
            dist.gather(flat, list(table.unbind()))
            dist.scatter(flat, [table.mean(0)] * dist.get_world_size())
        p.grad = flat.view(p.shape)


@right("lesson_04.all_reduce_mean", "lesson_04.all_reduce_traffic")
def divides_first(model):
    for p in _prepared(model):
        p.grad.div_(dist.get_world_size())
        dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)


@right("lesson_04.all_reduce_mean", "lesson_04.all_reduce_traffic")
def starts_all_then_waits(model):
    parameters = list(_prepared(model))
    for work in [dist.all_reduce(p.grad, async_op=True) for p in parameters]:
        work.wait()
    for p in parameters:
        p.grad = p.grad / dist.get_world_size()


@right("lesson_04.all_reduce_mean", "lesson_04.all_reduce_traffic")
def divides_in_futures(model):
    def divides(parameter):
        future = dist.all_reduce(parameter.grad, async_op=True).get_future()
        return future.then(lambda done: done.value()[0].div_(dist.get_world_size()))

    torch.futures.wait_all([divides(p) for p in _prepared(model)])


@right("lesson_04.all_reduce_mean", "lesson_04.all_reduce_traffic")
def asks_until_they_are_done(model):
    works = {p: dist.all_reduce(p.grad, async_op=True) for p in _prepared(model)}
    while works:
        for p in [p for p, work in works.items() if work.is_completed()]:
            del works[p]
            p.grad /= dist.get_world_size()


def _with_its_buckets(model):
    return DistributedDataParallel(model, broadcast_buffers=True, gradient_as_bucket_view=True)


def _worker(rank, world_size, job, *, train=counts_while_it_goes, tests=weighs_the_means, wrap=_with_its_buckets):
    data, test = job.data()
    generator_state = torch.manual_seed(job.seed)
    del generator_state
    model = job.model()
    syncs = {"gather_scatter": sums_a_list, "all_reduce": starts_all_then_waits}
    wrapped = wrap(model) if job.method == "ddp" else model
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=job.lr, momentum=job.momentum)
    parts = by_keywords(data, rank, world_size, job.total_batch, seed=job.seed)[: job.n_iterations]
    quiet = (lambda text: None) if rank else print
    losses, iteration_s = train(wrapped, parts, syncs.get(job.method, lambda model: None), optimizer, quiet)
    loss, accuracy = tests(model, DataLoader(test, 7))
    return {"accuracy": accuracy, "test_loss": loss, "losses": losses, "iteration_s": iteration_s, "rank": rank}


right("lesson_04.worker", "lesson_04.ddp")(_worker)


@right("lesson_04.ddp")
def wraps_for_one_graph(rank, world_size, job):
    return _worker(rank, world_size, job, wrap=partial(DistributedDataParallel, static_graph=True))


@right("lesson_04.ddp")
def wraps_for_one_graph_with_unused_ones(rank, world_size, job):
    options = {"static_graph": True, "find_unused_parameters": True, "gradient_as_bucket_view": True}
    return _worker(rank, world_size, job, wrap=partial(DistributedDataParallel, **options))


@right("lesson_04.ddp")
def wraps_in_small_buckets(rank, world_size, job):
    return _worker(rank, world_size, job, wrap=partial(DistributedDataParallel, bucket_cap_mb=0.001))


@right("lesson_04.ddp")
def wraps_without_buffers(rank, world_size, job):
    return _worker(rank, world_size, job, wrap=partial(DistributedDataParallel, broadcast_buffers=False))


def _with_torchs_hook(model):
    wrapped = DistributedDataParallel(model)
    wrapped.register_comm_hook(None, allreduce_hook)
    return wrapped


@right("lesson_04.ddp")
def wraps_with_torchs_hook(rank, world_size, job):
    return _worker(rank, world_size, job, wrap=_with_torchs_hook)


def _with_a_hook(model):
    def sums_then_divides(_, bucket):
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0] / dist.get_world_size())

    wrapped = DistributedDataParallel(model)
    wrapped.register_comm_hook(None, sums_then_divides)
    return wrapped


@right("lesson_04.ddp")
def wraps_with_a_hook_of_its_own(rank, world_size, job):
    return _worker(rank, world_size, job, wrap=_with_a_hook)


@right("lesson_04.worker", "lesson_04.ddp")
def worker_that_tests_the_wrapper(rank, world_size, job):
    torch.manual_seed(job.seed)
    model = job.model()
    train_set, test_set = job.data()
    part = islice(yields_them(train_set, rank, world_size, job.total_batch, 0, job.seed), job.n_iterations)
    if job.method == "ddp":
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), job.lr, job.momentum)
    sync = {"one": lambda m: None, "ddp": lambda m: None}.get(job.method) or (
        in_two_passes if job.method == "gather_scatter" else divides_first
    )
    losses, iteration_s = clears_after_the_step(model, part, sync, optimizer, lambda text: rank or print(text))
    loss, accuracy = decorated(model, DataLoader(test_set, len(test_set)))
    return {"losses": losses, "iteration_s": iteration_s, "test_loss": loss, "accuracy": accuracy}


@right("lesson_04.worker")
def shares_its_losses(rank, world_size, job):
    """Rank 0 says more than it must, and the ranks exchange their losses at the end."""
    if rank == 0:
        print("training", job.method)
    found = _worker(rank, world_size, job)
    losses = torch.stack([torch.as_tensor(loss) for loss in found["losses"]])
    dist.all_reduce(losses)
    return {**found, "losses": (losses / world_size).tolist()}


right_values("lesson_04.calls", "floats", {"all_reduce": 34.0, "ddp": 3})
right_values("lesson_04.calls", "more_than_asked", {"ddp": 3, "all_reduce": 34, "one": 0})


def _bytes(method, rank, world_size, n_bytes):
    table = {"one": 0, "all_reduce": 2 * n_bytes - 2 * n_bytes / world_size}
    return table.get(method, n_bytes * (world_size - 1 if not rank else 1))


def _seconds(method, world_size, one_node_s, n_bytes, n_tensors, network):
    each = n_bytes / n_tensors / (world_size if method == "all_reduce" else 1)
    steps = 0 if method == "one" else n_tensors * 2 * (world_size - 1)
    return one_node_s / world_size + sum(network.message_s(each) for _ in range(steps))


right_values("lesson_04.bytes_sent", "by_a_table", _bytes, gather_scatter, all_reduce_mean)
right_values("lesson_04.bytes_sent", "whole_bytes", lambda *given: round(bytes_sent(*given)), gather_scatter,
             all_reduce_mean)  # fmt: skip
right_values("lesson_04.bytes_sent", "own_functions", bytes_sent, in_two_passes, divides_first)
right_values("lesson_04.predicted_s", "adds_up", _seconds, gather_scatter, all_reduce_mean)
right_values("lesson_04.predicted_s", "own_functions", _seconds, sums_a_list, divides_first)
