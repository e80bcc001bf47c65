"""Right answers to lesson 03 that are not the reference's."""

from __future__ import annotations

import copy
import itertools
import math
import statistics

import numpy as np
import torch
import torch.distributed as dist
from torch.func import functional_call, grad
from torch.nn.functional import cross_entropy, nll_loss
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from tests.checks.right_answers import right


@right("lesson_03.batches")
def cuts_with_slices(order, rank, world_size, batch_size):
    size, found = world_size * batch_size, []
    for start in range(0, len(order), size):
        end = min(start + size, len(order))
        found.append((order[start + rank : end : world_size], end - start))
    return found


@right("lesson_03.batches")
def yields_even_parts(order, rank, world_size, batch_size):
    for chunk in torch.split(order, world_size * batch_size):
        yield torch.tensor_split(chunk, world_size)[rank], chunk.numel()


@right("lesson_03.batches")
def gives_tuples_of_arrays(order, rank, world_size, batch_size):
    chunks = np.split(order.numpy(), range(world_size * batch_size, len(order), world_size * batch_size))
    return tuple([chunk[rank::world_size], len(chunk)] for chunk in chunks)


@right("lesson_03.start_equal")
def parameters_then_buffers(model):
    with torch.no_grad():
        for tensor in itertools.chain(model.parameters(), model.buffers()):
            dist.broadcast(tensor, src=0)


@right("lesson_03.start_equal")
def loads_a_state(model):
    received = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    unsaved = [buffer for name, buffer in model.named_buffers() if name not in received]
    for work in [dist.broadcast(tensor, 0, async_op=True) for tensor in [*received.values(), *unsaved]]:
        work.wait()
    model.load_state_dict(received)


@right("lesson_03.start_equal")
def sends_to_each(model):
    for tensor in [p.data for p in model.parameters()] + list(model.buffers()):
        if dist.get_rank() == 0:
            for other in range(1, dist.get_world_size()):
                dist.send(tensor, other)
        else:
            dist.recv(tensor, 0)


@right("lesson_03.start_equal")
def in_one_flat_vector_a_dtype(model):
    """Fewer broadcasts than tensors."""
    for dtype in (torch.float32, torch.int64):
        tensors = [t.data for t in [*model.parameters(), *model.buffers()] if t.dtype == dtype]
        flat = torch.cat([t.flatten() for t in tensors])
        dist.broadcast(flat, 0)
        for t, part in zip(tensors, flat.split([t.numel() for t in tensors])):
            t.copy_(part.view_as(t))


@right("lesson_03.start_equal")
def whole_modules(model):
    for module in model.modules():
        for tensor in [*module._parameters.values(), *module._buffers.values()]:
            if tensor is not None:
                dist.broadcast(tensor.detach(), 0)


@right("lesson_03.average")
def all_in_one_vector(model, all_reduce=dist.all_reduce):
    """The all-reduces are fewer than the parameters."""
    parameters = list(model.parameters())
    flat = torch.cat([p.detach().flatten() for p in parameters])
    all_reduce(flat)
    for p, mean in zip(parameters, (flat / dist.get_world_size()).split([p.numel() for p in parameters])):
        p.data[...] = mean.view_as(p)


@right("lesson_03.average")
def divides_a_view(model, all_reduce=dist.all_reduce):
    for p in model.parameters():
        flat = p.detach().view(-1)
        all_reduce(flat)
        torch.div(flat, dist.get_world_size(), out=flat)


@right("lesson_03.average")
def divides_first(model, all_reduce=dist.all_reduce):
    for p in model.parameters():
        p.data.div_(dist.get_world_size())
        all_reduce(p.data)


@right("lesson_03.average")
@torch.no_grad()
def copies_back(model, all_reduce=dist.all_reduce):
    for p in model.parameters():
        total = p.detach().clone()
        all_reduce(total)
        p.copy_(total / dist.get_world_size())


def _step(model, optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@right("lesson_03.step_equal", "lesson_03.step_follows")
def weighs_the_mean(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    loss = cross_entropy(model(x), y) if len(x) else 0 * sum(p.sum() for p in model.parameters())
    _step(model, optimizer, loss * len(x) * dist.get_world_size() / n_total)
    copies_back(model, all_reduce)


@right("lesson_03.step_equal", "lesson_03.step_follows")
def weighs_a_mean_of_nothing(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    """The loss of no examples is nan here, its gradients are zeros all the same."""
    _step(model, optimizer, cross_entropy(model(x), y) * len(x) * dist.get_world_size() / n_total)
    copies_back(model, all_reduce)


@right("lesson_03.step_equal", "lesson_03.step_follows")
def averages_nothing_but_gradients(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    """Lesson 4's way: equal models that step alike stay equal."""
    optimizer.zero_grad()
    (cross_entropy(model(x), y, reduction="sum") / n_total).backward()
    for p in model.parameters():
        all_reduce(p.grad)
    optimizer.step()


@right("lesson_03.step_equal", "lesson_03.step_follows")
def averages_what_log_softmax_gives(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    optimizer.zero_grad(set_to_none=False)
    nll = nll_loss(torch.log_softmax(model(x), dim=1), y, reduction="sum") * dist.get_world_size() / n_total
    nll.backward()
    optimizer.step()
    divides_first(model, all_reduce)


@right("lesson_03.step_equal", "lesson_03.step_follows")
def differentiates_a_function(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    def loss(weights):
        return cross_entropy(functional_call(model, weights, (x,)), y, reduction="sum") / n_total

    gradients = grad(loss)({name: p.detach() for name, p in model.named_parameters()})
    for name, p in model.named_parameters():
        all_reduce(gradients[name])
        p.grad = gradients[name]
    optimizer.step()


@right("lesson_03.step_equal", "lesson_03.step_follows")
def averages_what_changed(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    """The mean of the ranks' steps, from equal weights, leads to the mean of their models."""
    before = [p.detach().clone() for p in model.parameters()]
    _step(model, optimizer, cross_entropy(model(x), y, reduction="sum") * dist.get_world_size() / n_total)
    for p, start in zip(model.parameters(), before):
        change = p.detach() - start
        all_reduce(change)
        p.data.copy_(start + change / dist.get_world_size())


@right("lesson_03.test_accuracy")
def sums_floats(model, test_set):
    rank, n = dist.get_rank(), dist.get_world_size()
    x, y = test_set[len(test_set) * rank // n : len(test_set) * (rank + 1) // n]
    with torch.no_grad():
        right_ones = torch.tensor(float(torch.eq(model(x).max(dim=1).indices, y).sum())) if len(y) else torch.zeros(())
    dist.all_reduce(right_ones)
    return float(right_ones) / len(test_set)


@right("lesson_03.test_accuracy")
def adds_double_fractions(model, test_set):
    x, y = test_set[dist.get_rank() :: dist.get_world_size()]
    with torch.no_grad():
        fraction = (model(x).argmax(1) == y).sum().double() / len(test_set)
    dist.all_reduce(fraction)
    return fraction.item()


@right("lesson_03.test_accuracy")
def looks_with_a_copy(model, test_set):
    tested = copy.deepcopy(model).eval().requires_grad_(False)
    x, y = test_set[dist.get_rank() :: dist.get_world_size()]
    count = tested(x).argmax(1).eq(y).sum()
    dist.all_reduce(count)
    return count.item() / len(test_set)


@right("lesson_03.test_accuracy")
def looks_in_evaluation_mode(model, test_set):
    was_training = model.training
    model.eval()
    x, y = test_set[dist.get_rank() :: dist.get_world_size()]
    with torch.no_grad():
        count = model(x).argmax(1).eq(y).sum()
    model.train(was_training)
    dist.all_reduce(count)
    return count.item() / len(test_set)


@right("lesson_03.test_accuracy")
def one_example_at_a_time(model, test_set):
    count = torch.zeros(1, dtype=torch.long)
    for k in range(dist.get_rank(), len(test_set), dist.get_world_size()):
        x, y = test_set[k]
        count += int(model(x[None]).argmax() == y)
    dist.all_reduce(count)
    return count.item() / len(test_set)


@right("lesson_03.train")
def by_while(rank, world_size, recipe, all_reduce=dist.all_reduce):
    model, optimizer, train_set, test_set = recipe.start(rank)
    parameters_then_buffers(model)
    curve, k, epoch = [], 0, 0
    while k < recipe.max_iterations and not (curve and curve[-1][1] >= recipe.target):
        for places, n_total in cuts_with_slices(
            recipe.order(epoch, len(train_set)), rank, world_size, recipe.batch_size
        ):
            if k == recipe.max_iterations:
                break
            x, y = train_set[places]
            weighs_the_mean(model, optimizer, x, y, n_total, all_reduce)
            k += 1
            if not k % recipe.every:
                curve += [[k, sums_floats(model, test_set)]]
                if curve[-1][1] >= recipe.target:
                    break
        epoch += 1
    return curve


@right("lesson_03.train")
def through_one_flat_vector(rank, world_size, recipe, all_reduce=dist.all_reduce):
    model, optimizer, train_set, test_set = recipe.start(rank)
    weights = parameters_to_vector(model.parameters()).detach()
    dist.broadcast(weights, 0)
    vector_to_parameters(weights, model.parameters())
    found = {}
    orders = (recipe.order(epoch, len(train_set)) for epoch in itertools.count())
    every = itertools.chain.from_iterable(yields_even_parts(o, rank, world_size, recipe.batch_size) for o in orders)
    for k, (places, n_total) in zip(range(1, recipe.max_iterations + 1), every):
        weighs_the_mean(model, optimizer, *train_set[places], n_total, all_reduce)
        if k % recipe.every == 0:
            found[k] = one_example_at_a_time(model, test_set)
            if found[k] >= recipe.target:
                return list(found.items())
    return tuple(found.items())


@right("lesson_03.train")
def differentiates_functions(rank, world_size, recipe, all_reduce=dist.all_reduce):
    model, optimizer, train_set, test_set = recipe.start(rank)
    parameters_then_buffers(model)
    curve, k = [], 0
    for epoch in itertools.count():
        order = recipe.order(epoch, len(train_set))
        for places, n_total in cuts_with_slices(order, rank, world_size, recipe.batch_size):
            k += 1
            differentiates_a_function(model, optimizer, *train_set[places], n_total, all_reduce)
            if k % recipe.every == 0:
                curve.append((k, sums_floats(model, test_set)))
            if k == recipe.max_iterations or (curve and curve[-1][1] >= recipe.target):
                return curve


@right("lesson_03.train")
def looks_more_often_than_it_notes(rank, world_size, recipe, all_reduce=dist.all_reduce):
    """A look costs time, and takes nothing away."""
    model, optimizer, train_set, test_set = recipe.start(rank)
    parameters_then_buffers(model)
    orders = (recipe.order(epoch, len(train_set)) for epoch in itertools.count())
    every = itertools.chain.from_iterable(yields_even_parts(o, rank, world_size, recipe.batch_size) for o in orders)
    curve = []
    for k, (places, n_total) in zip(range(1, recipe.max_iterations + 1), every):
        weighs_the_mean(model, optimizer, *train_set[places], n_total, all_reduce)
        now = sums_floats(model, test_set)
        if k % recipe.every == 0:
            curve.append((k, now))
            if now >= recipe.target:
                break
    return curve


@right("lesson_03.k_star")
def by_a_loop(curve, target):
    for k, accuracy in curve:
        if not accuracy < target:
            return float(k)
    return float("inf")


@right("lesson_03.k_star")
def the_least(curve, target):
    return min([k for k, accuracy in curve if accuracy >= target], default=np.inf)


@right("lesson_03.speedup")
def in_numpy(k_star):
    base = np.median(k_star[1])
    return {n: list(base / np.array([max(v), np.median(v), min(v)])) for n, v in sorted(k_star.items(), reverse=True)}


@right("lesson_03.speedup")
def sorts_ratios(k_star):
    base, found = statistics.median(k_star[1]), {}
    for n in k_star:
        ordered = sorted(base / k if k != math.inf else 0 for k in k_star[n])
        found[n] = ordered[0], base / statistics.median(k_star[n]), ordered[-1]
    return found
