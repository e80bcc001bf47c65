"""Planted mistakes of lesson 03."""

from __future__ import annotations

import copy
import itertools
import math
import statistics

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from tests.checks.wrong_answers import wrong, wrong_values

# The right functions, for mistakes that lie elsewhere.


def deal(order, rank, world_size, batch_size):
    return [(chunk[rank::world_size], len(chunk)) for chunk in order.split(world_size * batch_size)]


def send_state(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.data, 0)


def mean_model(model, all_reduce=dist.all_reduce):
    for parameter in model.parameters():
        all_reduce(parameter.data)
        parameter.data /= dist.get_world_size()


def local_step(model, optimizer, x, y, n_total):
    loss = cross_entropy(model(x), y, reduction="sum") * dist.get_world_size() / n_total
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


# 3.1a batches


@wrong("lesson_03.batches", says="both take example.*every rank takes the same data")
def same_data_everywhere(order, rank, world_size, batch_size):
    return [(chunk, len(chunk)) for chunk in order.split(batch_size)]


@wrong("lesson_03.batches", says="both take example.*the shards overlap")
def overlapping_shards(order, rank, world_size, batch_size):
    size = world_size * batch_size
    return [(chunk[rank : rank + len(chunk) // world_size + 1], len(chunk)) for chunk in order.split(size)]


@wrong("lesson_03.batches", says="short end of the epoch is dropped")
def drops_the_rest(order, rank, world_size, batch_size):
    size = world_size * batch_size
    return [(chunk[rank::world_size], len(chunk)) for chunk in order.split(size) if len(chunk) == size]


@wrong("lesson_03.batches", says="do not take the next .* examples of the order.*cut the order into chunks")
def contiguous_shards(order, rank, world_size, batch_size):
    mine = order.tensor_split(world_size)[rank]
    n_iterations = math.ceil(len(order) / (world_size * batch_size))
    parts = [mine[k * batch_size : (k + 1) * batch_size] for k in range(n_iterations)]
    size = world_size * batch_size
    return [(p, min(size, len(order) - k * size)) for k, p in enumerate(parts)]


@wrong("lesson_03.batches", says="rank 0 has .* batches.*only.*empty batch")
def stops_when_it_has_none(order, rank, world_size, batch_size):
    return [(part, n) for part, n in deal(order, rank, world_size, batch_size) if len(part)]


@wrong("lesson_03.batches", says="may be short: take its length")
def always_counts_full_batches(order, rank, world_size, batch_size):
    return [(part, world_size * batch_size) for part, _ in deal(order, rank, world_size, batch_size)]


@wrong("lesson_03.batches", says="the rank's own number")
def counts_its_own(order, rank, world_size, batch_size):
    return [(part, len(part)) for part, _ in deal(order, rank, world_size, batch_size)]


@wrong("lesson_03.batches", says="places in the order were returned")
def ignores_the_order(order, rank, world_size, batch_size):
    return deal(torch.arange(len(order)), rank, world_size, batch_size)


@wrong("lesson_03.batches", says="fair share differs by at most one")
def first_ranks_take_the_rest(order, rank, world_size, batch_size):
    chunks = order.split(world_size * batch_size)
    return [(c[rank * batch_size : (rank + 1) * batch_size], len(c)) for c in chunks]


@wrong("lesson_03.batches", says="did not give a list of pairs")
def forgets_the_whole_number(order, rank, world_size, batch_size):
    return [part for part, _ in deal(order, rank, world_size, batch_size)]


@wrong("lesson_03.batches", says="no rank takes any example")
def gives_nothing(order, rank, world_size, batch_size):
    return []


@wrong("lesson_03.batches", says="takes example .* twice.*leave the batch short")
def fills_up_the_last_batch(order, rank, world_size, batch_size):
    mine = [torch.cat([part, part])[:batch_size] for part, _ in deal(order, rank, world_size, batch_size)]
    return [(m, n) for m, (_, n) in zip(mine, deal(order, rank, world_size, batch_size))]


@wrong("lesson_03.batches", says="every rank has 3 batches, 2 take all examples.*the loss divides by it")
def ends_with_an_empty_iteration(order, rank, world_size, batch_size):
    return [*deal(order, rank, world_size, batch_size), (order[:0], 0)]


@wrong("lesson_03.batches", says="do not take the next .* of the order")
def cuts_into_equal_chunks(order, rank, world_size, batch_size):
    chunks = order.chunk(-(-len(order) // (world_size * batch_size)))
    return [(chunk[rank::world_size], len(chunk)) for chunk in chunks]


@wrong("lesson_03.batches", says="in nobody's batches.*some ranks' shares are missing")
def counts_ranks_from_one(order, rank, world_size, batch_size):
    return [(chunk[rank + 1 :: world_size], len(chunk)) for chunk in order.split(world_size * batch_size)]


# 3.1b start_equal


@wrong("lesson_03.start_equal", says="rank 1 receives 26 tensors; the model has 13.*sent twice")
def sends_everything_twice(model):
    send_state(model)
    send_state(model)


@wrong("lesson_03.start_equal", says="rank 1 receives 22 tensors.*gradients\\?")
def sends_gradients_too(model):
    send_state(model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
        dist.broadcast(parameter.grad, 0)


@wrong("lesson_03.start_equal", says="rank 1 receives 22 tensors.*gradients\\?")
def sends_the_gradients_that_are_there(model):
    send_state(model)
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.broadcast(parameter.grad, 0)


@wrong("lesson_03.start_equal", says="nothing was received")
def sends_nothing(model):
    pass


@wrong("lesson_03.start_equal", says="is .16777216., rank 0 began with .16777217.*broadcast, do not average")
def averages_all_state(model):
    for tensor in model.state_dict().values():
        dist.all_reduce(tensor)
        tensor.copy_(tensor / dist.get_world_size())


@wrong("lesson_03.start_equal", says="buffers are not")
def sends_parameters_only(model):
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)


@wrong("lesson_03.start_equal", says="1.num_batches_tracked of rank 1.*only some buffers are sent")
def leaves_out_whole_numbers(model):
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            dist.broadcast(tensor, 0)


@wrong("lesson_03.start_equal", says="biases are not")
def sends_weights_only(model):
    for name, tensor in model.state_dict().items():
        if "weight" in name:
            dist.broadcast(tensor, 0)


@wrong("lesson_03.start_equal", says="broadcast, do not average")
def averages_the_starts(model):
    mean_model(model)
    for buffer in model.buffers():
        dist.broadcast(buffer, 0)


@wrong("lesson_03.start_equal", says="can't be cast.*broadcast, do not average")
def averages_whole_numbers(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.all_reduce(tensor.data)
        tensor.data /= dist.get_world_size()


@wrong("lesson_03.start_equal", says="rank 1 was the root")
def sends_from_the_last_rank(model):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, dist.get_world_size() - 1)


@wrong("lesson_03.start_equal", says="equal but not rank 0's|send what rank 0 has")
def seeds_all_alike(model):
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)


@wrong("lesson_03.start_equal", says="nothing was received")
def sends_copies(model):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor.clone(), 0)


@wrong("lesson_03.start_equal", says="root 0 .*root 1 .*every rank a root")
def every_rank_is_its_own_root(model):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, dist.get_rank())


@wrong("lesson_03.start_equal", says="2.offset of rank 1 is .*persistent=False")
def sends_what_is_saved(model):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)


@wrong("lesson_03.start_equal", says="2.offset of rank 1 is .*persistent=False")
def loads_what_is_saved(model):
    received = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for tensor in received.values():
        dist.broadcast(tensor, 0)
    model.load_state_dict(received)


@wrong("lesson_03.start_equal", says="bias of rank 0 lies in other memory.*who holds a view")
def gives_parameters_what_came(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        came = tensor.detach().clone()
        dist.broadcast(came, 0)
        tensor.data = came


@wrong("lesson_03.start_equal", says="2.offset of rank 1 has a 0.0 where rank 0 has -0.0")
def adds_what_came_to_zeros(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        came = tensor.detach().clone()
        dist.broadcast(came, 0)
        if dist.get_rank() > 0:
            tensor.data.zero_().add_(came)


@wrong("lesson_03.start_equal", says="1.running_mean of rank 0 lies in other memory.*a new buffer")
def puts_new_buffers_in_place(model):
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            came = buffer.clone()
            dist.broadcast(came, 0)
            setattr(module, name, came)


@wrong("lesson_03.start_equal", says="bias of rank 0 lies in other memory")
def broadcasts_a_copy_of_biases(model):
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.data = parameter.data.clone()
        dist.broadcast(parameter.data, 0)
    for buffer in model.buffers():
        dist.broadcast(buffer, 0)


@wrong("lesson_03.start_equal", says="bias of rank 1 is|inner.*of rank 1 is")
def looks_one_level_deep(model):
    for layer in model.children():
        for tensor in (*layer.parameters(recurse=False), *layer.buffers(recurse=False)):
            dist.broadcast(tensor.data, 0)


# 3.1c average


@wrong("lesson_03.average", says="the sum is not divided")
def sums_only(model, all_reduce=dist.all_reduce):
    for parameter in model.parameters():
        all_reduce(parameter.data)


@wrong("lesson_03.average", says="the quotient is a new tensor")
def forgets_the_quotient(model, all_reduce=dist.all_reduce):
    for parameter in model.parameters():
        all_reduce(parameter.data)
        parameter = parameter.data / dist.get_world_size()


@wrong("lesson_03.average", says="rounded down")
def divides_whole(model, all_reduce=dist.all_reduce):
    for parameter in model.parameters():
        all_reduce(parameter.data)
        parameter.data //= dist.get_world_size()


@wrong("lesson_03.average", says="divided twice")
def divides_twice(model, all_reduce=dist.all_reduce):
    for parameter in model.parameters():
        parameter.data /= dist.get_world_size()
        all_reduce(parameter.data)
        parameter.data /= dist.get_world_size()


@wrong("lesson_03.average", says="only some parameters are averaged")
def averages_weights_only(model, all_reduce=dist.all_reduce):
    for name, parameter in model.named_parameters():
        if "weight" in name:
            all_reduce(parameter.data)
            parameter.data /= dist.get_world_size()


@wrong("lesson_03.average", says="must change in place")
def averages_copies(model, all_reduce=dist.all_reduce):
    for parameter in model.parameters():
        copy = parameter.detach().clone()
        all_reduce(copy)
        copy /= dist.get_world_size()


@wrong("lesson_03.average", says="must change in place, not their gradients")
def averages_gradients(model, all_reduce=dist.all_reduce):
    for parameter in model.parameters():
        if parameter.grad is not None:
            all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


@wrong("lesson_03.average", says="only rank 0 divides")
def rank_zero_divides(model, all_reduce=dist.all_reduce):
    for parameter in model.parameters():
        all_reduce(parameter.data)
        if dist.get_rank() == 0:
            parameter.data /= dist.get_world_size()


@wrong("lesson_03.average", says="divided, but never summed")
def only_divides(model, all_reduce=dist.all_reduce):
    for parameter in model.parameters():
        parameter.data /= dist.get_world_size()


@wrong("lesson_03.average", says="that is a broadcast, not a mean")
def broadcasts_instead(model, all_reduce=dist.all_reduce):
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)


@wrong("lesson_03.average", says="never called.*call the argument")
def ignores_the_given_all_reduce(model, all_reduce=dist.all_reduce):
    mean_model(model)


@wrong("lesson_03.average", says="buffer 1.running_mean of rank 0 has changed.*parameters alone")
def averages_buffers_too(model, all_reduce=dist.all_reduce):
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            all_reduce(tensor)
            tensor /= dist.get_world_size()


@wrong("lesson_03.average", says="hangs")
def rank_zero_alone(model, all_reduce=dist.all_reduce):
    if dist.get_rank() == 0:
        mean_model(model)


@wrong("lesson_03.average", says="the gradient of bias on rank 0 has changed")
def clears_gradients(model, all_reduce=dist.all_reduce):
    mean_model(model, all_reduce)
    model.zero_grad()


@wrong("lesson_03.average", says="the gradient of bias on rank 0 has changed")
def averages_gradients_too(model, all_reduce=dist.all_reduce):
    mean_model(model, all_reduce)
    for parameter in model.parameters():
        all_reduce(parameter.grad)


@wrong("lesson_03.average", says="has new parameters.*optimizer still steps the old ones")
def makes_new_parameters(model, all_reduce=dist.all_reduce):
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            total = parameter.detach().clone()
            all_reduce(total)
            setattr(module, name, torch.nn.Parameter(total / dist.get_world_size()))


@wrong("lesson_03.average", says="right after 18 all-reduces a rank; 9 parameters need one each")
def averages_twice(model, all_reduce=dist.all_reduce):
    mean_model(model, all_reduce)
    mean_model(model, all_reduce)


@wrong("lesson_03.average", says="the mean is")
def divides_by_the_others(model, all_reduce=dist.all_reduce):
    for parameter in model.parameters():
        all_reduce(parameter.data)
        parameter.data /= max(dist.get_world_size() - 1, 1)


# 3.1d distributed_step


@wrong("lesson_03.step_equal", says="all_reduce that was given was never called.*average\\(model, all_reduce\\)")
def keeps_the_all_reduce_to_itself(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    local_step(model, optimizer, x, y, n_total)
    mean_model(model)


@wrong("lesson_03.step_follows", says="off by")
def leaves_out_the_step_when_empty(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    if len(x):
        local_step(model, optimizer, x, y, n_total)
    mean_model(model, all_reduce)


@wrong("lesson_03.step_equal", says="before the step, or changes nothing")
def averages_copies_after_the_step(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    local_step(model, optimizer, x, y, n_total)
    averages_copies(model, all_reduce)


def _steps_without_the_factor(model, optimizer, x, y, n_total):
    optimizer.zero_grad()
    (cross_entropy(model(x), y, reduction="sum") / n_total).backward()
    optimizer.step()


@wrong("lesson_03.step_equal", says="comes last, in every iteration, and changes the parameters")
@wrong("lesson_03.step_follows", says="follows its own examples alone, and the loss lacks the factor N")
def averages_copies_without_the_factor(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    _steps_without_the_factor(model, optimizer, x, y, n_total)
    averages_copies(model, all_reduce)


@wrong("lesson_03.step_follows", says="the models' mean is rounded down: / divides, // cuts")
def rounds_the_mean_down(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    local_step(model, optimizer, x, y, n_total)
    for parameter in model.parameters():
        all_reduce(parameter.data)
        parameter.data //= dist.get_world_size()


@wrong("lesson_03.step_follows", says="nothing moved.*no zero_grad.. between")
def clears_between_backward_and_step(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    (cross_entropy(model(x), y, reduction="sum") * dist.get_world_size() / n_total).backward()
    optimizer.zero_grad()
    optimizer.step()
    mean_model(model, all_reduce)


@wrong("lesson_03.step_follows", says="off by")
def steps_twice(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    local_step(model, optimizer, x, y, n_total)
    optimizer.step()
    mean_model(model, all_reduce)


@wrong("lesson_03.step_follows", says="a mean is divided by the number of examples once more")
def divides_the_mean_once_more(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    optimizer.zero_grad()
    if len(x):
        (cross_entropy(model(x), y) * dist.get_world_size() / n_total).backward()
    else:
        (0 * model(x).sum()).backward()
    optimizer.step()
    for p in model.parameters():
        all_reduce(p.data)
        p.data /= dist.get_world_size()


@wrong("lesson_03.step_equal", says="nothing was sent")
def never_averages(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    local_step(model, optimizer, x, y, n_total)


@wrong("lesson_03.step_equal", says="average comes before the step")
def averages_before_the_step(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    mean_model(model, all_reduce)
    local_step(model, optimizer, x, y, n_total)


@wrong("lesson_03.step_equal", says="only some parameters are averaged")
def averages_only_weights(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    local_step(model, optimizer, x, y, n_total)
    averages_weights_only(model, all_reduce)


@wrong("lesson_03.step_equal", says="changed nothing.*none of them moved")
def never_steps(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    cross_entropy(model(x), y, reduction="sum").backward()
    mean_model(model, all_reduce)


@wrong("lesson_03.step_equal", says="only rank 0 steps: every rank")
def rank_zero_steps_alone(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    if dist.get_rank() == 0:
        local_step(model, optimizer, x, y, n_total)


@wrong("lesson_03.step_follows", says="only rank 0 steps: the others")
def rank_zero_steps_and_all_average(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    if dist.get_rank() == 0:
        local_step(model, optimizer, x, y, n_total)
    mean_model(model, all_reduce)


@wrong("lesson_03.step_follows", says="summed and not divided by the number of ranks")
def sums_the_models(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    local_step(model, optimizer, x, y, n_total)
    sums_only(model, all_reduce)


@wrong("lesson_03.step_follows", says="right but rounded.*float16")
def averages_in_half_precision(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    local_step(model, optimizer, x, y, n_total)
    for p in model.parameters():
        total = p.detach().half()
        all_reduce(total)
        p.data.copy_(total.double() / dist.get_world_size())


@wrong("lesson_03.step_follows", says="divided twice")
def divides_the_models_twice(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    local_step(model, optimizer, x, y, n_total)
    divides_twice(model, all_reduce)


@wrong("lesson_03.step_follows", says="batches differ in length")
def mean_of_means(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    optimizer.step()
    mean_model(model, all_reduce)


@wrong("lesson_03.step_follows", says="lacks the factor N")
def forgets_the_factor(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    _steps_without_the_factor(model, optimizer, x, y, n_total)
    mean_model(model, all_reduce)


@wrong("lesson_03.step_follows", says="never divided by the number of examples")
def sums_the_losses(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    optimizer.zero_grad()
    cross_entropy(model(x), y, reduction="sum").backward()
    optimizer.step()
    mean_model(model, all_reduce)


@wrong("lesson_03.step_follows", says="divided by N in whole numbers")
def divides_in_whole_numbers(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    optimizer.zero_grad()
    (cross_entropy(model(x), y, reduction="sum") / max(1, n_total // dist.get_world_size())).backward()
    optimizer.step()
    mean_model(model, all_reduce)


@wrong("lesson_03.step_follows", says="zero_grad")
def keeps_old_gradients(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    (cross_entropy(model(x), y, reduction="sum") * dist.get_world_size() / n_total).backward()
    optimizer.step()
    mean_model(model, all_reduce)


@wrong("lesson_03.step_follows", says="stood there before the first step are in it")
def clears_after_the_step(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    (cross_entropy(model(x), y, reduction="sum") * dist.get_world_size() / n_total).backward()
    optimizer.step()
    optimizer.zero_grad()
    mean_model(model, all_reduce)


@wrong("lesson_03.step_follows", says="step is N times too long")
def sums_the_gradients(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    optimizer.zero_grad()
    (cross_entropy(model(x), y, reduction="sum") * dist.get_world_size() / n_total).backward()
    for parameter in model.parameters():
        all_reduce(parameter.grad)
    optimizer.step()


@wrong("lesson_03.step_follows", says="make no new optimizer|own momentum")
def forgets_the_momentum(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    step = optimizer.param_groups[0]["lr"]
    local_step(model, torch.optim.SGD(model.parameters(), step), x, y, n_total)
    mean_model(model, all_reduce)


@wrong("lesson_03.step_follows", says="rank 0's examples count")
def sends_rank_zeros_model(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    local_step(model, optimizer, x, y, n_total)
    send_state(model)


@wrong("lesson_03.step_follows", says="hangs.*leaves early")
def leaves_when_empty(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    if len(x):
        local_step(model, optimizer, x, y, n_total)
        mean_model(model, all_reduce)


@wrong("lesson_03.step_follows", says="rank 2 has no examples at this step, but it has weight decay")
def steps_without_gradients_when_empty(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    optimizer.zero_grad()
    if len(x):
        (cross_entropy(model(x), y, reduction="sum") * dist.get_world_size() / n_total).backward()
    elif optimizer.state:
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
    optimizer.step()
    mean_model(model, all_reduce)


@wrong("lesson_03.step_follows", says="weight decay 0.1: .*the weight decay is missing: the optimizer has it")
def steps_by_another_optimizer(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    for group in optimizer.param_groups:
        group["weight_decay"] = 0
    local_step(model, optimizer, x, y, n_total)
    mean_model(model, all_reduce)


@wrong("lesson_03.average", says="a weight in two layers: .*11 all-reduces a rank; 10 param.*two layers have is one")
def averages_layer_by_layer(model, all_reduce=dist.all_reduce):
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            all_reduce(parameter.data)
            parameter.data /= dist.get_world_size()


@wrong("lesson_03.average", says="bias of rank 0 lies in other memory.*who holds a view")
def gives_parameters_other_memory(model, all_reduce=dist.all_reduce):
    parameters = list(model.parameters())
    flat = torch.cat([p.detach().flatten() for p in parameters])
    all_reduce(flat)
    for p, mean in zip(parameters, (flat / dist.get_world_size()).split([p.numel() for p in parameters])):
        p.data = mean.view_as(p).clone()


@wrong("lesson_03.average", says="bias of rank 0 lies in other memory.*`p.data = ...`")
def assigns_the_quotient(model, all_reduce=dist.all_reduce):
    for p in model.parameters():
        all_reduce(p.data)
        p.data = p.data / dist.get_world_size()


@wrong("lesson_03.average", says="bias of rank 0 lies in other memory")
def makes_parameters_views_of_one(model, all_reduce=dist.all_reduce):
    parameters = list(model.parameters())
    flat = torch.cat([p.detach().flatten() for p in parameters])
    all_reduce(flat)
    flat /= dist.get_world_size()
    torch.nn.utils.vector_to_parameters(flat, parameters)


@wrong("lesson_03.average", says="bias of rank 0 lies in other memory")
@torch.no_grad()
def sets_the_mean(model, all_reduce=dist.all_reduce):
    for p in model.parameters():
        mean = p.detach().clone()
        all_reduce(mean)
        p.set_(mean / dist.get_world_size())


# 3.2a test_accuracy


def share(test_set):
    return test_set[dist.get_rank() :: dist.get_world_size()]


def n_right(model, x, y):
    with torch.no_grad():
        return (model(x).argmax(1) == y).sum()


def _accuracy_of(is_right):
    def test_accuracy(model, test_set):
        x, y = test_set[dist.get_rank() :: dist.get_world_size()]
        was = model.training
        model.eval()
        with torch.no_grad():
            n_right = is_right(model(x), y).sum().double() if len(x) else torch.zeros((), dtype=torch.float64)
        model.train(was)
        dist.all_reduce(n_right)
        return (n_right / len(test_set)).item()

    return test_accuracy


@wrong("lesson_03.test_accuracy", says="are right")
def label_is_one_of_two(model, test_set):
    return _accuracy_of(lambda scores, y: (scores.topk(2).indices == y[:, None]).any(1))(model, test_set)


@wrong("lesson_03.test_accuracy", says="are right")
def label_is_above_a_threshold(model, test_set):
    return _accuracy_of(lambda scores, y: scores.gather(1, y[:, None])[:, 0] > 0.5)(model, test_set)


@wrong("lesson_03.test_accuracy", says="are right")
def takes_the_largest_size(model, test_set):
    return _accuracy_of(lambda scores, y: scores.abs().argmax(1) == y)(model, test_set)


@wrong("lesson_03.test_accuracy", says="are right")
def rounds_scores(model, test_set):
    return _accuracy_of(lambda scores, y: scores.round().argmax(1) == y)(model, test_set)


@wrong("lesson_03.test_accuracy", says="model of rank . is another one afterwards.*no_grad.*which ends")
def leaves_autograd_off(model, test_set):
    torch.set_grad_enabled(False)
    count = n_right(model, *share(test_set))
    dist.all_reduce(count)
    return count.item() / len(test_set)


@wrong("lesson_03.test_accuracy", says="every rank does the whole work")
def shows_all_to_a_copy(model, test_set):
    copied = copy.deepcopy(model)
    n_right(copied, *test_set[:])
    count = n_right(copied, *share(test_set))
    dist.all_reduce(count)
    return count.item() / len(test_set)


@wrong("lesson_03.test_accuracy", says="own share of the test set")
def own_share(model, test_set):
    x, y = share(test_set)
    return n_right(model, x, y).item() / max(len(y), 1)


@wrong("lesson_03.test_accuracy", says="mean of the shares' accuracies|nan")
def mean_of_accuracies(model, test_set):
    x, y = share(test_set)
    fraction = n_right(model, x, y).double() / len(y)
    dist.all_reduce(fraction)
    return fraction.item() / dist.get_world_size()


@wrong("lesson_03.test_accuracy", says="divided by N times the rank's own share")
def n_times_the_own_share(model, test_set):
    x, y = share(test_set)
    count = n_right(model, x, y)
    dist.all_reduce(count)
    return count.item() / max(len(y) * dist.get_world_size(), 1)


@wrong("lesson_03.test_accuracy", says="does the whole work")
def everybody_looks_at_all(model, test_set):
    x, y = test_set[:]
    return n_right(model, x, y).item() / len(y)


@wrong("lesson_03.test_accuracy", says="counts the whole test set and the counts are added")
def all_looks_are_added(model, test_set):
    x, y = test_set[:]
    count = n_right(model, x, y)
    dist.all_reduce(count)
    return count.item() / len(y)


@wrong("lesson_03.test_accuracy", says="number of right answers, not divided")
def gives_the_count(model, test_set):
    count = n_right(model, *share(test_set))
    dist.all_reduce(count)
    return count.item()


@wrong("lesson_03.test_accuracy", says="divided by the number of ranks as well")
def divides_by_ranks_too(model, test_set):
    count = n_right(model, *share(test_set))
    dist.all_reduce(count)
    return count.item() / len(test_set) / dist.get_world_size()


@wrong("lesson_03.test_accuracy", says="gave no float.*tensor.item")
def gives_a_tensor(model, test_set):
    count = n_right(model, *share(test_set))
    dist.all_reduce(count)
    return count / len(test_set)


@wrong("lesson_03.test_accuracy", says="do not divide evenly are left out")
def leaves_out_the_rest(model, test_set):
    n = len(test_set) // dist.get_world_size()
    x, y = share(test_set)
    count = n_right(model, x[:n], y[:n])
    dist.all_reduce(count)
    return count.item() / (n * dist.get_world_size())


@wrong("lesson_03.test_accuracy", says="the count is rounded: float16")
def counts_in_half(model, test_set):
    count = n_right(model, *share(test_set)).half()
    dist.all_reduce(count)
    return count.item() / len(test_set)


@wrong("lesson_03.test_accuracy", says="these are the wrong answers")
def counts_the_wrong_ones(model, test_set):
    x, y = share(test_set)
    count = len(y) - n_right(model, x, y)
    dist.all_reduce(count)
    return count.item() / len(test_set)


@wrong("lesson_03.test_accuracy", says="says 0.33333334.*, 2 of 6 are right: 0.33333333.*a float32 has seven")
def divides_a_tensor(model, test_set):
    count = n_right(model, *share(test_set))
    dist.all_reduce(count)
    return (count / len(test_set)).item()


@wrong("lesson_03.test_accuracy", says="a float32 has seven")
def counts_and_divides_in_single(model, test_set):
    count = n_right(model, *share(test_set)).float()
    dist.all_reduce(count)
    return float(count / len(test_set))


@wrong("lesson_03.test_accuracy", says="a float32 has seven")
def adds_single_fractions(model, test_set):
    fraction = n_right(model, *share(test_set)) / torch.tensor(float(len(test_set)))
    dist.all_reduce(fraction)
    return fraction.item()


@wrong("lesson_03.test_accuracy", says="add nothing small")
def adds_an_eps(model, test_set):
    count = n_right(model, *share(test_set))
    dist.all_reduce(count)
    return count.item() / (len(test_set) + 1e-8)


@wrong("lesson_03.test_accuracy", says="right but rounded")
def rounds_to_seven_digits(model, test_set):
    return round(accuracy(model, test_set), 7)


@wrong("lesson_03.test_accuracy", says="rank 1 says 0.3.* and rank 0 0.3.*in different ways")
def one_rank_counts_the_wrong_ones(model, test_set):
    count = n_right(model, *share(test_set))
    dist.all_reduce(count)
    if dist.get_rank() == 1:
        return 1 - (len(test_set) - count.item()) / len(test_set)
    return count.item() / len(test_set)


# 3.2b train


def accuracy(model, test_set):
    count = n_right(model, *share(test_set))
    dist.all_reduce(count)
    return count.item() / len(test_set)


def batches_of(rank, world_size, recipe, train_set):
    epochs = (deal(recipe.order(e, len(train_set)), rank, world_size, recipe.batch_size) for e in itertools.count())
    for places, n_total in itertools.islice(itertools.chain.from_iterable(epochs), recipe.max_iterations):
        yield *train_set[places], n_total


def _unweighted_step(model, optimizer, x, y, n_total):
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    optimizer.step()


def training(
    rank, world_size, recipe, *, on="test", equal=True, before=False, stops=True, ours=None, always=False,
    given=lambda k: dist.all_reduce, step=local_step, optimizer_of=None,
    noted=lambda now, curve: now, gives_up=lambda curve: False,
):  # fmt: skip
    """A training with one thing wrong."""
    model, optimizer, train_set, test_set = recipe.start(rank)
    if equal:
        send_state(model)
    curve = []
    for k, (x, y, n_total) in enumerate(batches_of(*(ours or (rank, world_size)), recipe, train_set), start=1):
        if before and k % recipe.every == 0:
            curve.append((k, accuracy(model, test_set)))
        if optimizer_of is not None:
            optimizer = optimizer_of(model)
        step(model, optimizer, x, y, n_total)
        mean_model(model, given(k))
        if not before and (k % recipe.every == 0 or always):
            now = accuracy(model, train_set if on == "train" else test_set)
            curve.append((k, noted(now, curve)))
            if gives_up(curve):
                break
        if stops and curve and curve[-1][1] >= recipe.target:
            break
    return curve


@wrong("lesson_03.train", says="read off the training set")
def looks_at_the_training_set(rank, world_size, recipe):
    return training(rank, world_size, recipe, on="train")


@wrong("lesson_03.train", says="mean of the ranks' means.*which weighs by n_total")
def takes_the_mean_of_the_means(rank, world_size, recipe):
    return training(rank, world_size, recipe, step=_unweighted_step)


@wrong("lesson_03.train", says="start_equal")
def forgets_start_equal(rank, world_size, recipe):
    return training(rank, world_size, recipe, equal=False)


@wrong("lesson_03.train", says="test accuracy is")
def looks_before_the_step(rank, world_size, recipe):
    return training(rank, world_size, recipe, before=True)


@wrong("lesson_03.train", says="went on to iteration 20.*loses its last digits on the way, as in a float32")
def asks_rank_zero_in_single(rank, world_size, recipe, all_reduce=dist.all_reduce):
    def rank_zeros(now, curve):
        told = torch.tensor([now])
        dist.broadcast(told, 0)
        return told.item()

    return training(rank, world_size, recipe, noted=rank_zeros, given=lambda k: all_reduce)


@wrong("lesson_03.train", says="training went on")
def never_stops_early(rank, world_size, recipe):
    return training(rank, world_size, recipe, stops=False)


@wrong("lesson_03.train", says="the curve ends at iteration 21.*but the training does not.*break or return there")
def trains_on_and_cuts_the_curve(rank, world_size, recipe, all_reduce=dist.all_reduce):
    curve = training(rank, world_size, recipe, given=lambda k: all_reduce, stops=False)
    reached = [i for i, (_, a) in enumerate(curve, start=1) if a >= recipe.target]
    return curve[: reached[0]] if reached else curve


@wrong("lesson_03.train", says="but the training does not")
def ends_an_iteration_late(rank, world_size, recipe, all_reduce=dist.all_reduce):
    """It asks whether the target is reached before a step, and steps all the same."""
    model, optimizer, train_set, test_set = recipe.start(rank)
    send_state(model)
    curve = []
    for k, (x, y, n_total) in enumerate(batches_of(rank, world_size, recipe, train_set), start=1):
        is_over = bool(curve) and curve[-1][1] >= recipe.target
        local_step(model, optimizer, x, y, n_total)
        mean_model(model, all_reduce)
        if is_over:
            break
        if k % recipe.every == 0:
            curve.append((k, accuracy(model, test_set)))
    return curve


@wrong("lesson_03.train", says="iterations count from 1")
def notes_every_iteration(rank, world_size, recipe):
    return training(rank, world_size, recipe, always=True)


@wrong("lesson_03.train", says="batches of one worker|recipe.order|differ|test accuracy is")
def trains_every_rank_on_the_same(rank, world_size, recipe):
    return training(rank, world_size, recipe, ours=(0, 1))


@wrong("lesson_03.train", says="hangs.*same decision at the same time")
def rank_zero_stops_alone(rank, world_size, recipe):
    model, optimizer, train_set, test_set = recipe.start(rank)
    send_state(model)
    curve = []
    for k, (x, y, n_total) in enumerate(batches_of(rank, world_size, recipe, train_set), start=1):
        local_step(model, optimizer, x, y, n_total)
        mean_model(model)
        if k % recipe.every == 0:
            curve.append((k, accuracy(model, test_set)))
            if rank == 0 and curve[-1][1] >= recipe.target:
                break
    return curve


@wrong("lesson_03.train", says="the all_reduce that was given was never called.*does not run your ring")
def never_hands_on_the_all_reduce(rank, world_size, recipe, all_reduce=dist.all_reduce):
    return training(rank, world_size, recipe)


@wrong("lesson_03.train", says="thrown away because it never reaches the target")
def gives_up_the_curve(rank, world_size, recipe, all_reduce=dist.all_reduce):
    curve = training(rank, world_size, recipe)
    return curve if curve[-1][1] >= recipe.target else []


@wrong("lesson_03.train", says="the look that reaches the target is missing alone")
def ends_before_it_notes(rank, world_size, recipe):
    curve = training(rank, world_size, recipe)
    return curve[:-1] if curve[-1][1] >= recipe.target else curve


@wrong("lesson_03.train", says="after one epoch, or too early")
def trains_one_epoch(rank, world_size, recipe):
    model, optimizer, train_set, test_set = recipe.start(rank)
    send_state(model)
    curve = []
    order = recipe.order(0, len(train_set))
    for k, (places, n_total) in enumerate(deal(order, rank, world_size, recipe.batch_size), start=1):
        local_step(model, optimizer, *train_set[places], n_total)
        mean_model(model)
        if k % recipe.every == 0:
            curve.append((k, accuracy(model, test_set)))
    return curve


@wrong("lesson_03.train", says="the curve of rank 1 is empty.*only some ranks have the looks in their curve")
def only_rank_zero_returns(rank, world_size, recipe):
    curve = training(rank, world_size, recipe)
    return curve if rank == 0 else []


# 3.2c k_star and speedup


@wrong("lesson_03.k_star", says="the place in the list")
def gives_the_place(curve, target):
    return next((i for i, (_, a) in enumerate(curve) if a >= target), math.inf)


@wrong("lesson_03.k_star", says=">=, not >")
def wants_more_than_the_target(curve, target):
    return next((k for k, a in curve if a > target), math.inf)


@wrong("lesson_03.k_star", says="close to the target is not there")
def takes_nearly_for_there(curve, target):
    return next((k for k, a in curve if a > target - 1e-3), math.inf)


@wrong("lesson_03.k_star", says="the first entry of the curve counts, too")
def passes_over_the_first_entry(curve, target):
    return next((k for k, a in curve[1:] if a >= target), math.inf)


@wrong("lesson_03.k_star", says="the first entry of the curve counts, too")
def wants_a_change(curve, target):
    pairs = itertools.pairwise(curve)
    return next((k for (_, before), (k, after) in pairs if before < target <= after), math.inf)


@wrong("lesson_03.k_star", says="the last or the best")
def gives_the_best(curve, target):
    return max(curve, key=lambda pair: pair[1])[0]


@wrong("lesson_03.k_star", says="an outcome, not an error")
def gives_none(curve, target):
    return next((k for k, a in curve if a >= target), None)


@wrong("lesson_03.k_star", says="the first time counts")
def wants_it_to_stay(curve, target):
    return next((k for i, (k, _) in enumerate(curve) if all(a >= target for _, a in curve[i:])), math.inf)


@wrong("lesson_03.k_star", says="an outcome, not an error")
def gives_the_last_iteration(curve, target):
    return next((k for k, a in curve if a >= target), curve[-1][0])


def three(k_star, middle=statistics.median, keep=lambda values: values):
    base = middle(keep(k_star[1]))
    kept = {n: keep(values) for n, values in k_star.items()}
    return {n: (base / max(v), base / middle(v), base / min(v)) for n, v in kept.items()}


@wrong("lesson_03.speedup", says="swapped")
def swaps_the_ends(k_star):
    return {n: values[::-1] for n, values in three(k_star).items()}


@wrong("lesson_03.speedup", says="the mean instead of the median")
def takes_the_mean(k_star):
    return three(k_star, middle=statistics.mean)


@wrong("lesson_03.speedup", says="never arrived was left out")
def leaves_out_who_never_arrived(k_star):
    return three(k_star, keep=lambda values: [v for v in values if math.isfinite(v)])


@wrong("lesson_03.speedup", says="turned over")
def turns_it_over(k_star):
    return {n: tuple(1 / v if v else math.inf for v in values) for n, values in three(k_star).items()}


@wrong("lesson_03.speedup", says="efficiency")
def gives_the_efficiency(k_star):
    return {n: tuple(v / n for v in values) for n, values in three(k_star).items()}


@wrong("lesson_03.speedup", says="needs three numbers")
def gives_the_median_only(k_star):
    return {n: values[1] for n, values in three(k_star).items()}


@wrong("lesson_03.speedup", says="an entry for each of N")
def forgets_one_worker(k_star):
    return {n: values for n, values in three(k_star).items() if n > 1}


@wrong("lesson_03.speedup", says="whole numbers")
def cuts_the_fraction(k_star):
    return {n: tuple(float(int(v)) for v in values) for n, values in three(k_star).items()}


@wrong("lesson_03.speedup", says="expected \\(0.7, 1, 1.75\\)")
def takes_the_lower_of_two(k_star):
    return three(k_star, middle=statistics.median_low)


@wrong("lesson_03.speedup", says="expected")
def starts_from_the_best_seed(k_star):
    return {n: tuple(min(k_star[1]) / v for v in (max(w), statistics.median(w), min(w))) for n, w in k_star.items()}


@wrong("lesson_03.speedup", says="expected")
def takes_the_middle_of_the_list(k_star):
    return {
        n: (statistics.median(k_star[1]) / max(w), statistics.median(k_star[1]) / w[len(w) // 2],
            statistics.median(k_star[1]) / min(w))
        for n, w in k_star.items()
    }  # fmt: skip


# Answers of strangers: what they were told was another cause, or none.

for _name, _deal, _says in [
    ("cuts_pieces_of_b", lambda o, r, n, b: [(c[r::n], len(c)) for c in o.split(b)], "cut pieces of N B, not of B"),
    ("counts_the_epoch", lambda o, r, n, b: [(p, len(o)) for p, _ in deal(o, r, n, b)], "that is the whole epoch"),
    (
        "all_to_rank_zero",
        lambda o, r, n, b: [(c if r == 0 else c[:0], len(c)) for c in o.split(n * b)],
        "N B examples are all ranks' together",
    ),
    ("swaps_the_pair", lambda o, r, n, b: [(k, p) for p, k in deal(o, r, n, b)], "the two are swapped"),
    ("counts_in_a_tensor", lambda o, r, n, b: [(p, torch.tensor(k)) for p, k in deal(o, r, n, b)], "is a plain int"),
    ("in_floats", lambda o, r, n, b: [(p.float(), k) for p, k in deal(o, r, n, b)], "stay the integers"),
]:
    wrong_values("lesson_03.batches", _name, _deal, says=_says)


@wrong("lesson_03.start_equal", says="2.weight of rank 1.*only some tensors are sent")
def sends_what_is_trained(model):
    for tensor in [*(p.data for p in model.parameters() if p.requires_grad), *model.buffers()]:
        dist.broadcast(tensor, 0)


@wrong("lesson_03.average", says="another number: the number of ranks is dist.get_world_size")
def divides_by_four(model, all_reduce=dist.all_reduce):
    for parameter in model.parameters():
        all_reduce(parameter.data)
        parameter.data /= 4


@wrong("lesson_03.average", says="right but rounded: .* own dtype")
def averages_in_halves(model, all_reduce=dist.all_reduce):
    for parameter in model.parameters():
        half = parameter.data.half()
        all_reduce(half)
        parameter.data.copy_(half / dist.get_world_size())


@wrong("lesson_03.average", says="11 all-reduces a rank.*a parameter goes whole")
def sends_row_by_row(model, all_reduce=dist.all_reduce):
    for parameter in model.parameters():
        for row in parameter.data.view(-1, parameter.shape[-1]):
            all_reduce(row)
        parameter.data /= dist.get_world_size()


@wrong("lesson_03.step_follows", says="twice as far as it should: one optimizer.step")
def takes_two_steps(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    local_step(model, optimizer, x, y, n_total)
    optimizer.step()
    mean_model(model, all_reduce)


@wrong("lesson_03.step_follows", says="the step .* times as long: step with `optimizer`")
def has_a_step_of_its_own(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    loss = cross_entropy(model(x), y, reduction="sum") * dist.get_world_size() / n_total
    model.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        parameter.data -= 0.03 * parameter.grad
    mean_model(model, all_reduce)


@wrong("lesson_03.step_follows", says="the loss is another one. cross_entropy takes the model's own scores")
def softens_the_scores(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    optimizer.zero_grad()
    scores = model(x).softmax(1)
    (cross_entropy(scores, y, reduction="sum") * dist.get_world_size() / n_total).backward()
    optimizer.step()
    mean_model(model, all_reduce)


@wrong("lesson_03.step_follows", says="follows its own examples alone: nothing was averaged, or before the step")
def steps_after_the_average(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    mean_model(model, all_reduce)
    local_step(model, optimizer, x, y, n_total)


def _count(share, of, *, dtype=torch.int64):
    def test_accuracy(model, test_set):
        x, y = share(test_set, dist.get_rank(), dist.get_world_size())
        n_right = (model(x).argmax(1) == y).sum().to(dtype)
        dist.all_reduce(n_right)
        return of(n_right.item(), test_set, len(y))

    return test_accuracy


def _cards(test_set, rank, world_size):
    return test_set[rank::world_size]


for _name, _accuracy, _says in [
    ("divides_by_its_share", _count(_cards, lambda k, t, n: k / max(n, 1)), "divided by the size of this rank's share"),
    ("counts_in_a_byte", _count(_cards, lambda k, t, n: k / len(t), dtype=torch.uint8), "does not fit into its dtype"),
    (
        "leaves_the_rest_out",
        _count(lambda t, r, n: t[r * (len(t) // n) : (r + 1) * (len(t) // n)], lambda k, t, n: k / len(t)),
        "do not divide evenly are left out",
    ),
    ("two_digits", _count(_cards, lambda k, t, n: round(k / len(t), 2)), "right but rounded"),
    ("percent_of_the_set", _count(_cards, lambda k, t, n: 100 * k / len(t)), "a percentage"),
]:
    wrong_values("lesson_03.test_accuracy", _name, _accuracy, says=_says)


for _name, _first, _says in [
    ("the_accuracy", lambda c, t: next((a for k, a in c if a >= t), math.inf), "that is the accuracy"),
    ("the_pair", lambda c, t: next(((k, a) for k, a in c if a >= t), math.inf), "no pair"),
    ("always_97", lambda c, t: next((k for k, a in c if a >= 0.97), math.inf), "the target is an argument"),
]:
    wrong_values("lesson_03.k_star", _name, _first, says=_says)


def _each(of):
    return lambda k_star: {n: of(k_star[1], values, n) for n, values in k_star.items()}


def _three(base, middle, values):
    return base / max(values), base / middle, base / min(values)


for _name, _speedup, _says in [
    ("mean_below", _each(lambda b, v, n: _three(statistics.median(b), statistics.mean(v), v)), "the mean instead of"),
    ("times_n", _each(lambda b, v, n: [n * s for s in _three(statistics.median(b), statistics.median(v), v)]),
     "nothing is multiplied by N"),
    ("one_number", _each(lambda b, v, n: statistics.median(b) / statistics.median(v)), "three speedups an N"),
    ("median_first", _each(lambda b, v, n: [statistics.median(b) / f(v) for f in (statistics.median, max, min)]),
     "another order"),
    ("one_digit", _each(lambda b, v, n: [round(s, 1) for s in _three(statistics.median(b), statistics.median(v), v)]),
     "right but rounded"),
    ("lower_middle_above", _each(lambda b, v, n: _three(statistics.median_low(b), statistics.median(v), v)),
     "the lower of its middle two"),
    ("lower_middle_below", _each(lambda b, v, n: _three(statistics.median(b), statistics.median_low(v), v)),
     "an even number of values"),
    ("unsorted_below", _each(lambda b, v, n: _three(statistics.median(b), v[len(v) // 2], v)), "sort it first"),
]:  # fmt: skip
    wrong_values("lesson_03.speedup", _name, _speedup, says=_says)


@wrong("lesson_03.speedup", says="N = 1 is missing")
def leaves_one_out(k_star):
    rows = _each(lambda b, v, n: _three(statistics.median(b), statistics.median(v), v))(k_star)
    return {n: row for n, row in rows.items() if n > 1}


@wrong("lesson_03.batches", says="right, but `order` is another one.*the caller's")
def empties_the_order(order, rank, world_size, batch_size):
    own = order.clone()
    order.zero_()
    return deal(own, rank, world_size, batch_size)


@wrong("lesson_03.batches", says="this rank's examples are a list: a part of `order` is a tensor")
def makes_lists_of_batches(order, rank, world_size, batch_size):
    return [(part.tolist(), n) for part, n in deal(order, rank, world_size, batch_size)]


@wrong("lesson_03.batches", says="an empty batch is order\\[:0\\]")
def makes_an_empty_batch_of_floats(order, rank, world_size, batch_size):
    return [(part if len(part) else torch.tensor([]), n) for part, n in deal(order, rank, world_size, batch_size)]


@wrong("lesson_03.start_equal", says="the ranks send .* bytes.*more travels than rank 0's tensors, by all_gather:")
def gathers_everybodys_start(model):
    for tensor in [p.data for p in model.parameters()] + list(model.buffers()):
        parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, tensor)
        tensor.copy_(parts[0])


@wrong("lesson_03.start_equal", says="more travels than rank 0's tensors, by broadcast_object_list:")
def sends_a_pickle(model):
    box = [[model.state_dict(), list(model.buffers())]]
    dist.broadcast_object_list(box, 0)
    model.load_state_dict(box[0][0])
    for buffer, came in zip(model.buffers(), box[0][1]):
        buffer.copy_(came)


@wrong("lesson_03.start_equal", says="rank 0's model has new parameters.*optimizer still steps")
def puts_new_parameters_in_place(model):
    send_state(model)
    for part in model.modules():
        for name, parameter in list(part._parameters.items()):
            part._parameters[name] = torch.nn.Parameter(parameter.detach().clone(), parameter.requires_grad)


@wrong("lesson_03.start_equal", says="requires_grad of a parameter is another one")
def freezes_all_to_write(model):
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    send_state(model)


@wrong("lesson_03.average", says="requires_grad of a parameter is another one")
def trains_all_afterwards(model, all_reduce=dist.all_reduce):
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        all_reduce(parameter)
        parameter /= dist.get_world_size()
        parameter.requires_grad_(True)


@wrong("lesson_03.average", says="only some parameters are averaged.*2.weight is not")
def leaves_out_what_is_frozen(model, all_reduce=dist.all_reduce):
    for parameter in model.parameters():
        if parameter.requires_grad:
            all_reduce(parameter.data)
            parameter.data /= dist.get_world_size()


@wrong("lesson_03.average", says="is float64 now, it was float32.*own dtype")
def averages_in_doubles_for_good(model, all_reduce=dist.all_reduce):
    mean_model(model.double(), all_reduce)


@wrong("lesson_03.average", says="in float64.*right but rounded")
def averages_in_float32(model, all_reduce=dist.all_reduce):
    for parameter in model.parameters():
        single = parameter.data.float()
        all_reduce(single)
        parameter.data.copy_(single / dist.get_world_size())


@wrong("lesson_03.train", says="momentum is lost")
def makes_an_optimizer_each_time(rank, world_size, recipe, all_reduce=dist.all_reduce):
    def new(model):
        return torch.optim.SGD(model.parameters(), recipe.step, momentum=recipe.momentum)

    return training(rank, world_size, recipe, given=lambda k: all_reduce, optimizer_of=new)


@wrong("lesson_03.train", says="steps the model that came with it; take both, once, before the loop")
def asks_for_the_optimizer_each_time(rank, world_size, recipe, all_reduce=dist.all_reduce):
    return training(
        rank, world_size, recipe, given=lambda k: all_reduce, optimizer_of=lambda model: recipe.start(rank)[1]
    )


@wrong("lesson_03.train", says="every iteration starts from the first weights: .* once, before the loop")
def starts_over_each_time(rank, world_size, recipe, all_reduce=dist.all_reduce):
    *_, train_set, test_set = recipe.start(rank)
    curve = []
    for k, (x, y, n_total) in enumerate(batches_of(rank, world_size, recipe, train_set), start=1):
        model, optimizer, *_ = recipe.start(rank)
        send_state(model)
        local_step(model, optimizer, x, y, n_total)
        mean_model(model, all_reduce)
        if k % recipe.every == 0:
            curve.append((k, accuracy(model, test_set)))
            if curve[-1][1] >= recipe.target:
                break
    return curve


def _steps_with(one):
    """A training whose weights another optimizer moves, the same one in every iteration."""

    def trains(rank, world_size, recipe, all_reduce=dist.all_reduce):
        kept = []

        def own(model):
            kept.append(kept[0] if kept else one(model.parameters(), recipe.step, world_size))
            return kept[0]

        return training(rank, world_size, recipe, given=lambda k: all_reduce, optimizer_of=own)

    return trains


for _name, _optimizer, _says in [
    ("steps_as_elsewhere", lambda p, step, n: torch.optim.SGD(p, 0.01, momentum=0.9), "another optimizer steps"),
    ("steps_with_adam", lambda p, step, n: torch.optim.Adam(p, step), "another optimizer steps"),
    ("steps_for_all_ranks", lambda p, step, n: torch.optim.SGD(p, n * step), "the step is 2 times too long"),
]:
    wrong_values("lesson_03.train", _name, _steps_with(_optimizer), says=_says)


@wrong("lesson_03.train", says="best accuracy so far is noted")
def notes_the_best(rank, world_size, recipe, all_reduce=dist.all_reduce):
    def best(now, curve):
        return max([now, *(a for _, a in curve)])

    return training(rank, world_size, recipe, given=lambda k: all_reduce, noted=best)


@wrong("lesson_03.train", says="a worse look than the one before is no end")
def loses_patience(rank, world_size, recipe, all_reduce=dist.all_reduce):
    def falls(curve):
        return len(curve) > 2 and curve[-1][1] < curve[-2][1]

    return training(rank, world_size, recipe, given=lambda k: all_reduce, gives_up=falls)


@wrong("lesson_03.train", says="did 4 of 12 all-reduces of rank 0.*in every iteration")
def hands_it_on_at_first(rank, world_size, recipe, all_reduce=dist.all_reduce):
    return training(rank, world_size, recipe, given=lambda k: all_reduce if k < 3 else dist.all_reduce)


@wrong("lesson_03.test_accuracy", says="model of rank 0 is another one afterwards.*no_grad")
def freezes_the_model(model, test_set):
    model.requires_grad_(False)
    return accuracy(model, test_set)


@wrong("lesson_03.k_star", says="changes its argument `curve`.*on a copy")
def pops_the_curve(curve, target):
    while curve:
        k, accuracy = curve.pop(0)
        if accuracy >= target:
            return k
    return math.inf


@wrong("lesson_03.k_star", says="got 10, expected 15")
def rounds_before_comparing(curve, target):
    return next((k for k, accuracy in curve if round(accuracy, 2) >= target), math.inf)


@wrong("lesson_03.average", says="the largest of all ranks' numbers")
def takes_the_largest(model, all_reduce=dist.all_reduce):
    for parameter in model.parameters():
        dist.all_reduce(parameter.data, op=dist.ReduceOp.MAX)


@wrong("lesson_03.average", says="on every rank.*the smallest of all")
def takes_the_median(model, all_reduce=dist.all_reduce):
    for parameter in model.parameters():
        parts = [torch.empty_like(parameter.data) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, parameter.data)
        parameter.data.copy_(torch.stack(parts).median(0).values)


@wrong("lesson_03.average", says="the mean with one neighbour")
def averages_with_a_neighbour(model, all_reduce=dist.all_reduce):
    rank, n = dist.get_rank(), dist.get_world_size()
    for parameter in model.parameters() if n > 1 else ():
        came = torch.empty_like(parameter.data)
        work = dist.isend(parameter.data.clone(), (rank + 1) % n)
        dist.recv(came, (rank - 1) % n)
        work.wait()
        parameter.data.add_(came).div_(2)


@wrong("lesson_03.batches", says="called twice.*draw nothing|do not take the next 2")  # as the numbers fall
def shuffles_once_more(order, rank, world_size, batch_size):
    mixed = order[torch.randperm(len(order))]
    return [(piece[rank::world_size], len(piece)) for piece in mixed.split(world_size * batch_size)]


@wrong("lesson_03.batches", says="sort nothing")
def sorts_the_order(order, rank, world_size, batch_size):
    in_turn = order.sort().values.split(world_size * batch_size)
    return [(piece[rank::world_size], len(piece)) for piece in in_turn]


@wrong("lesson_03.train", says="the last of all no exception")
def looks_once_more_at_the_end(rank, world_size, recipe):
    """A look of its own at the last iteration, which recipe.every does not divide."""
    curve = training(rank, world_size, recipe)
    reached = bool(curve) and curve[-1][1] >= recipe.target
    return (
        curve if reached or curve[-1][0] == recipe.max_iterations else [*curve, (recipe.max_iterations, curve[-1][1])]
    )


@wrong("lesson_03.train", says="ends at the first look")
def returns_at_the_first_look(rank, world_size, recipe):
    return training(rank, world_size, recipe, gives_up=lambda curve: True)


@wrong("lesson_03.speedup", says="k.\\(1\\) stands there with its smallest")
def takes_the_fastest_alone(k_star):
    top = min(k_star[1])
    return {n: (top / max(ks), top / statistics.median(ks), top / min(ks)) for n, ks in k_star.items()}


@wrong("lesson_03.speedup", says="seed by seed")
def takes_the_middle_seed_by_seed(k_star):
    top = statistics.median(k_star[1])
    middle = {n: statistics.median(a / b for a, b in zip(k_star[1], ks)) for n, ks in k_star.items()}
    return {n: (top / max(ks), middle[n], top / min(ks)) for n, ks in k_star.items()}


@wrong("lesson_03.k_star", says="this is the place in the list")
def counts_the_looks(curve, target):
    return next((i for i, (_, accuracy) in enumerate(curve, start=1) if accuracy >= target), math.inf)


@wrong("lesson_03.start_equal", says="barrier is called.*wait for the slowest")
def equal_behind_a_barrier(model):
    dist.barrier()
    send_state(model)


@wrong("lesson_03.start_equal", says="monitored_barrier is called.*wait for the slowest")
def equal_behind_a_monitored_barrier(model):
    dist.monitored_barrier()
    send_state(model)


@wrong("lesson_03.average", says="barrier is called.*wait for the slowest")
def mean_behind_a_barrier(model, all_reduce=dist.all_reduce):
    dist.barrier()
    mean_model(model, all_reduce)


@wrong("lesson_03.speedup", says="mean of the middle two")
def takes_the_upper_middle(k_star):
    base = statistics.median(k_star[1])
    return {n: (base / max(v), base / sorted(v)[len(v) // 2], base / min(v)) for n, v in k_star.items()}


@wrong("lesson_03.batches", says="batches returned None.*is there a return")
def returns_no_batches(order, rank, world_size, batch_size):
    pass


@wrong("lesson_03.k_star", says="math.inf is for the end of the list")
def gives_up_at_the_first_entry(curve, target):
    for k, accuracy in curve:
        return k if accuracy >= target else math.inf
    return math.inf


def _median_of_the_speedups(k_star):
    base = statistics.median(k_star[1])
    each = {n: [base / v for v in values] for n, values in k_star.items()}
    return {n: (min(v), statistics.median(v), max(v)) for n, v in each.items()}


wrong_values(
    "lesson_03.speedup", "median_of_the_speedups", _median_of_the_speedups, says="that is the median of the speedups"
)


@wrong("lesson_03.step_follows", says="summed and not divided .*own check says more.*lacks the factor N")
def sums_the_models_without_the_factor(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    _steps_without_the_factor(model, optimizer, x, y, n_total)
    for parameter in model.parameters():
        all_reduce(parameter.data)


@wrong("lesson_03.step_equal", says="hand it on: .*which calls what it is given")
def hands_it_to_who_ignores_it(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    local_step(model, optimizer, x, y, n_total)
    mean_model(model)


@wrong("lesson_03.batches", says="filled up with its first examples until N divides it")
def fills_up_the_order(order, rank, world_size, batch_size):
    filled = torch.cat([order, order[: -len(order) % world_size]])
    return deal(filled, rank, world_size, batch_size)


@wrong("lesson_03.batches", says="the order is shuffled already")
def shuffles_again_on_every_rank(order, rank, world_size, batch_size):
    """Each rank in a way of its own, the same when it is asked again."""
    again = torch.randperm(len(order), generator=torch.Generator().manual_seed(rank))
    return deal(order[again], rank, world_size, batch_size)


@wrong("lesson_03.step_equal", says="the whole model goes through the collectives 12 times in 6 steps.*one averaging")
def averages_gradients_and_models(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    optimizer.zero_grad()
    (cross_entropy(model(x), y, reduction="sum") / n_total).backward()
    for p in model.parameters():
        all_reduce(p.grad)
    optimizer.step()
    mean_model(model, all_reduce)


@wrong("lesson_03.step_equal", says="rank 0 is sent 24 tensors beside that in 6 steps.*start_equal comes once")
def starts_equal_in_every_step(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    send_state(model)
    local_step(model, optimizer, x, y, n_total)
    mean_model(model, all_reduce)


@wrong("lesson_03.step_equal", says="a single number is all-reduced.*is given, n_total")
def counts_the_examples_itself(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    n = torch.tensor(len(x))
    dist.all_reduce(n)
    local_step(model, optimizer, x, y, n.item())
    mean_model(model, all_reduce)


@wrong(
    "lesson_03.step_follows",
    says="the weights are the ranks' sum over 4, and there is 1 rank.*as its own check",
)
def divides_by_four_ranks(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    local_step(model, optimizer, x, y, n_total)
    for p in model.parameters():
        all_reduce(p.data)
        p.data /= 4


@wrong("lesson_03.step_follows", says="weight decay 0.1.*learning rate is N times as long, so the weight decay is, too")
def scales_the_learning_rate(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    n = dist.get_world_size()
    for group in optimizer.param_groups:
        group["lr"] *= n
    optimizer.zero_grad()
    (cross_entropy(model(x), y, reduction="sum") / n_total).backward()
    optimizer.step()
    for group in optimizer.param_groups:
        group["lr"] /= n
    mean_model(model, all_reduce)


@wrong(
    "lesson_03.test_accuracy", says="was in training mode before, and afterwards it is not.*Put back the mode it had"
)
def leaves_evaluation_mode(model, test_set):
    model.eval()
    return accuracy(model, test_set)


@wrong("lesson_03.train", says="rank 0 gave no list.*reaches the target 2.*return the curve behind the loop, too")
def returns_nothing_below_the_target(rank, world_size, recipe):
    curve = training(rank, world_size, recipe)
    return curve if curve[-1][1] >= recipe.target else None


@wrong("lesson_03.train", says="the curve is right, but rank 0 is sent .* once, before the loop")
def starts_equal_in_every_iteration(rank, world_size, recipe, all_reduce=dist.all_reduce):
    def step(model, optimizer, x, y, n_total):
        send_state(model)
        local_step(model, optimizer, x, y, n_total)

    return training(rank, world_size, recipe, step=step, given=lambda k: all_reduce)


@wrong("lesson_03.train", says="near to one worker's, and not the same.*a mean of their means")
def takes_the_mean_of_the_means_of_blocks(rank, world_size, recipe):
    model, optimizer, train_set, test_set = recipe.start(rank)
    send_state(model)
    curve, k = [], 0
    for epoch in itertools.count():
        for chunk in recipe.order(epoch, len(train_set)).split(world_size * recipe.batch_size):
            k += 1
            _unweighted_step(model, optimizer, *train_set[chunk.tensor_split(world_size)[rank]], len(chunk))
            mean_model(model)
            if k % recipe.every == 0:
                curve.append((k, accuracy(model, test_set)))
            if k == recipe.max_iterations or (curve and curve[-1][1] >= recipe.target):
                return curve


@wrong("lesson_03.test_accuracy", says="in evaluation mode.*whatever the mode was.*model.train\\(was\\)")
def trains_after_the_look(model, test_set):
    model.eval()
    count = n_right(model, *share(test_set))
    model.train()
    dist.all_reduce(count)
    return count.item() / len(test_set)


@wrong("lesson_03.test_accuracy", says="rank 1 gave no float, but None.*only rank 0 returns the number")
def only_rank_zero_knows(model, test_set):
    count = n_right(model, *share(test_set))
    dist.all_reduce(count)
    return count.item() / len(test_set) if dist.get_rank() == 0 else None


@wrong("lesson_03.step_equal", says="came in training mode, and is not in it after a step")
@wrong("lesson_03.step_follows", says="came in training mode, and is not in it after a step")
def steps_in_evaluation_mode(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    model.eval()
    local_step(model, optimizer, x, y, n_total)
    mean_model(model, all_reduce)


@wrong("lesson_03.step_follows", says="long gradients.*as long as it is")
def clips_the_gradient(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    optimizer.zero_grad()
    (cross_entropy(model(x), y, reduction="sum") * dist.get_world_size() / n_total).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
    mean_model(model, all_reduce)


@wrong("lesson_03.test_accuracy", says="rank 0 says")
def takes_the_examples_for_scores(model, test_set):
    x, y = test_set[:]
    with torch.no_grad():
        model(x[dist.get_rank() :: dist.get_world_size()])
    dist.all_reduce(torch.zeros(1))
    return (x.argmax(1) == y).double().mean().item()
