"""Right answers to lesson 06 that are not the reference's."""

from __future__ import annotations

import copy
import itertools
import queue
import threading
import time
import uuid
from collections import defaultdict, namedtuple
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn.functional import gelu, mse_loss
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from hw_utils.material.handwritten_layer import Handmade
from tests.checks.right_answers import right, right_values

# 6.1 the communication layer

GATHER, REDUCE = "lesson_06.all_gather", "lesson_06.all_reduce"


class _Reduces:
    """All-reduce from the class's all_gather, by a running sum."""

    def all_reduce(self, tensor, rank, group_id, op="sum"):
        if op not in {"sum", "mean"}:
            raise ValueError(f"unknown op: {op}")
        first, *others = self.all_gather(tensor, rank, group_id)
        for other in others:
            first += other
        if op == "mean":
            first /= self.world_size
        return first


@right(GATHER)
class SlotsInADictionary(_Reduces):
    def __init__(self, world_size):
        self.world_size = world_size
        self.barrier = threading.Barrier(world_size)
        self.buffers = {}

    def all_gather(self, tensor, rank, group_id):
        self.buffers[group_id, rank] = tensor.clone()
        self.barrier.wait()
        gathered = [self.buffers[group_id, r].clone() for r in range(self.world_size)]
        self.barrier.wait()
        return gathered


class _MakesRoom(_Reduces):
    """One rank at a time looks for the group's slots, and makes them if there are none."""

    def __init__(self, world_size):
        self.world_size = world_size
        self.barrier = threading.Barrier(world_size)
        self.slots = {}

    def all_gather(self, tensor, rank, group_id):
        with self.guard():
            if group_id not in self.slots:
                self.slots[group_id] = [None] * self.world_size
        self.slots[group_id][rank] = tensor.clone()
        self.barrier.wait()
        gathered = [slot.clone() for slot in self.slots[group_id]]
        self.barrier.wait()
        return gathered


@right(GATHER)
class KeepsItsLockOnTheClass(_MakesRoom):
    LOCK = threading.Lock()

    def guard(self):
        return self.LOCK


@right(GATHER)
class KeepsItsConditionOnTheClass(_MakesRoom):
    CONDITION = threading.Condition()

    def guard(self):
        return self.CONDITION


_AT_MOST_ONE = threading.BoundedSemaphore(1)


@right(GATHER)
class KeepsItsSemaphoreInAGlobal(_MakesRoom):
    def guard(self):
        return _AT_MOST_ONE


@right(GATHER, REDUCE)
class WaitsOnAConditionForAGeneration(_Reduces):
    def __init__(self, world_size):
        self.world_size = world_size
        self.condition = threading.Condition()
        self.groups = {}

    def all_gather(self, tensor, rank, group_id):
        with self.condition:
            group = self.groups.setdefault(group_id, {"parts": {}, "generation": 0, "done": None})
            generation = group["generation"]
            group["parts"][rank] = tensor.clone()
            if len(group["parts"]) == self.world_size:
                group["done"] = [group["parts"][r] for r in range(self.world_size)]
                group["parts"] = {}
                group["generation"] += 1
                self.condition.notify_all()
            else:
                self.condition.wait_for(lambda: group["generation"] > generation)
            return [part.clone() for part in group["done"]]


@right(GATHER)
class NumbersItsCalls(_Reduces):
    """A buffer of its own for every call: one wait is enough, because the next call writes elsewhere."""

    def __init__(self, world_size):
        self.world_size = world_size
        self.barrier = threading.Barrier(world_size)
        self.lock = threading.Lock()
        self.n_calls = [defaultdict(int) for _ in range(world_size)]
        self.buffers = {}

    def all_gather(self, tensor, rank, group_id):
        key = (group_id, self.n_calls[rank][group_id])
        self.n_calls[rank][group_id] += 1
        with self.lock:
            slots = self.buffers.setdefault(key, [None] * self.world_size)
        slots[rank] = tensor.clone()
        self.barrier.wait()
        return [slot.clone() for slot in slots]


@right(GATHER)
class AQueueFromEachToEach(_Reduces):
    """Mailboxes: a rank's tensor goes to every other one, and queues keep their order from call to call."""

    def __init__(self, world_size):
        self.world_size = world_size
        self.boxes = [[queue.Queue() for _ in range(world_size)] for _ in range(world_size)]

    def all_gather(self, tensor, rank, group_id):
        for to in range(self.world_size):
            self.boxes[rank][to].put(tensor.clone())
        return [self.boxes[from_][rank].get() for from_ in range(self.world_size)]


@right(GATHER)
class SimpleQueues(AQueueFromEachToEach):
    """The queue that waits in C."""

    def __init__(self, world_size):
        self.world_size = world_size
        self.boxes = [[queue.SimpleQueue() for _ in range(world_size)] for _ in range(world_size)]


@dataclass
class _Room:
    parts: dict = field(default_factory=dict)
    n_read: int = 0


_Place = namedtuple("_Place", "group call")


@right(GATHER)
class RoomsAreDataclasses(_Reduces):
    def __init__(self, world_size):
        self.world_size, self.rooms, self.n_calls = world_size, {}, {}
        self.condition = threading.Condition()

    def all_gather(self, tensor, rank, group_id):
        with self.condition:
            number = self.n_calls[rank, group_id] = self.n_calls.get((rank, group_id), 0) + 1
            place = _Place(group_id, number)
            if place not in self.rooms:
                self.rooms[place] = _Room()
            room = self.rooms[place]
            room.parts[rank] = tensor.clone()
            self.condition.notify_all()
            self.condition.wait_for(lambda: len(room.parts) == self.world_size)
            room.n_read += 1
            if room.n_read == self.world_size:
                del self.rooms[place]
            return [room.parts[r].clone() for r in range(self.world_size)]


@right(REDUCE)
class RankZeroAddsForAll:
    """Mailboxes to rank 0 and back: one sum, a copy for each."""

    def __init__(self, world_size):
        self.world_size = world_size
        self.to_zero = [queue.SimpleQueue() for _ in range(world_size)]
        self.back = [queue.Queue() for _ in range(world_size)]

    def all_reduce(self, tensor, rank, group_id, op="sum"):
        if op not in ["sum", "mean"]:
            raise ValueError(op)
        self.to_zero[rank].put(tensor.clone())
        if rank == 0:
            total = sum(box.get() for box in self.to_zero)
            total = total / self.world_size if op == "mean" else total
            for box in self.back:
                box.put(total.clone())
        return self.back[rank].get()


@right(GATHER)
class TwoSetsOfSlots:
    """One wait a call: calls write into the first and the second set by turns."""

    def __init__(self, world_size):
        self.n, self.wait = world_size, threading.Barrier(world_size).wait
        self.sets, self.turn = ([None] * world_size, [None] * world_size), [0] * world_size

    def all_gather(self, tensor, rank, group_id):
        slots = self.sets[self.turn[rank]]
        self.turn[rank] = 1 - self.turn[rank]
        slots[rank] = tensor.clone()
        self.wait()
        return [torch.clone(slot) for slot in slots]


@right(GATHER)
class ASemaphoreForEachReader:
    """Whoever writes tells every reader; whoever has read tells every writer."""

    def __init__(self, world_size):
        self.n = range(world_size)
        self.written = [[threading.Semaphore(0) for _ in self.n] for _ in self.n]
        self.read = [[threading.Semaphore(1) for _ in self.n] for _ in self.n]
        self.slots = [[None for _ in self.n] for _ in self.n]

    def all_gather(self, tensor, rank, group_id):
        for to in self.n:
            self.read[rank][to].acquire()
            self.slots[rank][to] = tensor.clone()
            self.written[rank][to].release()
        gathered = []
        for sender in self.n:
            self.written[sender][rank].acquire()
            gathered.append(self.slots[sender][rank])
            self.read[sender][rank].release()
        return gathered


@right(REDUCE)
class AddsInRankOrderInPlace(_Reduces):
    """A sum that starts from zeros, in rank order on every rank."""

    def __init__(self, world_size):
        self.world_size = world_size
        self.enter, self.leave = threading.Barrier(world_size), threading.Barrier(world_size)
        self.parts = {}

    def all_reduce(self, tensor, rank, group_id, op="sum"):
        if op != "sum" and op != "mean":
            raise ValueError(f"op is {op}")
        self.parts[rank] = tensor
        self.enter.wait()
        total = torch.zeros_like(tensor)
        for r in sorted(self.parts):
            total.add_(self.parts[r])
        self.leave.wait()
        return total.div_(self.world_size) if op == "mean" else total


@right(GATHER)
class WaitsBeforeItWritesAndBeforeItReads(SlotsInADictionary):
    """The barrier after reading stands at the start of the next call."""

    def all_gather(self, tensor, rank, group_id):
        self.barrier.wait()
        self.buffers[group_id, rank] = tensor.detach().clone()
        self.barrier.wait()
        return [self.buffers[group_id, r].clone() for r in range(self.world_size)]


@right(GATHER, REDUCE)
class OneBufferForAllGroups(SlotsInADictionary):
    """All ranks are in the same call, whatever it is called; a tuple of copies."""

    def all_gather(self, tensor, rank, group_id):
        return tuple(super().all_gather(tensor, rank, "one"))

    def all_reduce(self, tensor, rank, group_id, op="sum"):
        reduce = {"sum": torch.sum, "mean": torch.mean}.get(op)
        if reduce is None:
            raise ValueError(f"no such op: {op}")
        return reduce(torch.stack(self.all_gather(tensor, rank, group_id)), dim=0)


@right(REDUCE)
class BarriersActionAddsUp:
    """The sum is made once, by the barrier's action."""

    def __init__(self, world_size: int):
        self.world_size = world_size
        self.slots: list = [None] * world_size
        self.total = None
        self.barrier = threading.Barrier(world_size, action=self._add)
        self.done = threading.Barrier(world_size)

    def _add(self):
        self.total = sum(self.slots)

    def all_gather(self, tensor, rank, group_id):
        raise RuntimeError("not this one")

    def all_reduce(self, tensor: torch.Tensor, rank: int, group_id: str, op: str = "sum") -> torch.Tensor:
        scale = {"sum": 1, "mean": self.world_size}.get(op)
        if scale is None:
            raise ValueError(op)
        self.slots[rank] = tensor
        self.barrier.wait()
        result = self.total / scale
        self.done.wait()
        return result


@right(REDUCE)
class RunningTotalUnderALock:
    def __init__(self, world_size):
        self.world_size = world_size
        self.lock, self.barrier = threading.Lock(), threading.Barrier(world_size)
        self.totals = {}

    def all_reduce(self, tensor, rank, group_id, op="sum"):
        if op == "sum":
            divisor = 1
        elif op == "mean":
            divisor = self.world_size
        else:
            raise ValueError(f"no such op {op!r}")
        with self.lock:
            if group_id not in self.totals:
                self.totals[group_id] = torch.zeros_like(tensor)
            self.totals[group_id] += tensor
        self.barrier.wait()
        result = self.totals[group_id] / divisor
        self.barrier.wait()
        if rank == 0:
            del self.totals[group_id]
        self.barrier.wait()
        return result


@right(REDUCE)
class RunningTotalInAnArray(RunningTotalUnderALock):
    """Of numpy's, under the lock; each rank has its own slot of what is gathered, where none is needed."""

    def all_reduce(self, tensor, rank, group_id, op="sum"):
        if op not in ("sum", "mean"):
            raise ValueError(f"no such op {op!r}")
        mine = tensor.detach().numpy()
        with self.lock:
            if group_id not in self.totals:
                self.totals[group_id] = np.zeros_like(mine)
            np.add(self.totals[group_id], mine, out=self.totals[group_id])
        self.barrier.wait()
        result = np.array(self.totals[group_id])
        self.barrier.wait()
        with self.lock:
            self.totals.pop(group_id, None)
        result /= self.world_size if op == "mean" else 1
        self.barrier.wait()
        return torch.from_numpy(result)


@right(REDUCE)
class TakesTheMeanWithTorch(SlotsInADictionary):
    def all_reduce(self, tensor, rank, group_id, op="sum"):
        match op:
            case "sum":
                return torch.stack(self.all_gather(tensor, rank, group_id)).sum(dim=0)
            case "mean":
                return torch.stack(self.all_gather(tensor, rank, group_id)).mean(dim=0)
        raise ValueError(op)


# 6.2 data parallelism

SPLIT, STEP, WEIGHTED = "lesson_06.split_batch", "lesson_06.dp_step", "lesson_06.weighted_dp_step"

right_values(SPLIT, "tensor_split", lambda x, rank, world_size: x.tensor_split(world_size)[rank])
right_values(SPLIT, "array_split", lambda x, r, n: torch.from_numpy(np.array_split(x.numpy(), n)[r]))
right_values(SPLIT, "rounds_each_border", lambda x, r, n: x[len(x) * r // n : len(x) * (r + 1) // n])


@right(SPLIT)
def gives_the_last_ranks_one_more(x, rank, world_size):
    sizes = [(len(x) + r) // world_size for r in range(world_size)]
    return torch.split(x, sizes)[rank]


@right(SPLIT)
def walks_from_rank_to_rank(x, rank, world_size):
    start = 0
    for r in range(world_size):
        end = start + len(x) // world_size + (1 if r < len(x) % world_size else 0)
        if r == rank:
            return x.narrow(0, start, end - start).clone()
        start = end


@right(SPLIT)
def indexes_a_list(x, rank, world_size):
    sizes = [len(x) // world_size + (r < len(x) % world_size) for r in range(world_size)]
    starts = [0, *itertools.accumulate(sizes)]
    return x[list(range(starts[rank], starts[rank + 1]))]


def _grads(model):
    return torch.cat([p.grad.reshape(-1) for p in model.parameters()])


@right(STEP)
def steps_with_torchs_own_helpers(model, optimizer, x, y, context, rank):
    model.zero_grad()
    loss = nn.MSELoss()(model(x), y)
    loss.backward()
    flat = context.all_reduce(parameters_to_vector([p.grad for p in model.parameters()]), rank, "dp", "mean")
    vector_to_parameters(flat, [p.grad for p in model.parameters()])
    optimizer.step()
    return float(loss.detach())


@right(STEP)
def copies_into_grad_and_gives_a_tensor(model, optimizer, x, y, context, rank):
    optimizer.zero_grad(set_to_none=False)
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    mean, start = context.all_reduce(_grads(model), rank, group_id="g", op="mean"), 0
    for p in model.parameters():
        p.grad.copy_(mean[start : start + p.numel()].view_as(p))
        start += p.numel()
    optimizer.step()
    return loss.detach()


@right(STEP)
def divides_the_sum_by_hand(model, optimizer, x, y, context, rank):
    loss = mse_loss(model(x), y)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    flat = torch.hstack([g.ravel() for g in gradients]) / context.world_size
    flat = context.all_reduce(flat, rank, f"step of {len(flat)}")
    for p in model.parameters():
        p.grad, flat = flat[: p.numel()].reshape(p.shape), flat[p.numel() :]
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


@right(STEP)
def sends_the_loss_along(model, optimizer, x, y, context, rank):
    """One number more in the vector is still one collective."""
    optimizer.zero_grad()
    loss = mse_loss(model(x), y)
    loss.backward()
    flat = torch.cat([_grads(model), loss.detach()[None]])
    mean = context.all_reduce(flat, rank, "g", "mean")[:-1]
    with torch.no_grad():
        for p, piece in zip(model.parameters(), torch.split(mean, [p.numel() for p in model.parameters()])):
            p.grad[...] = piece.reshape(p.shape)
    optimizer.step()
    return loss.tolist()


@right(STEP)
def reduces_the_update(model, optimizer, x, y, context, rank):
    """What travels is the gradient times the negative step, and is turned back."""
    optimizer.zero_grad()
    loss = mse_loss(model(x), y)
    loss.backward()
    lr = optimizer.param_groups[0]["lr"]
    mean = context.all_reduce(-lr * _grads(model), rank, "g", "mean") / -lr
    vector_to_parameters(mean, [p.grad for p in model.parameters()])
    optimizer.step()
    return loss.item()


@right(STEP)
def reads_its_parameters_from_the_optimizer(model, optimizer, x, y, context, rank):
    """The order of the numbers in the vector is the author's own."""
    ps = [p for group in optimizer.param_groups for p in group["params"]][::-1]
    loss = mse_loss(model(x), y)
    flat = torch.cat([g.T.flatten() for g in torch.autograd.grad(loss, ps)])
    for p, piece in zip(ps, context.all_reduce(flat, rank, "g", "mean").split([p.numel() for p in ps])):
        p.grad = piece.reshape(p.shape[::-1]).T.contiguous()
    optimizer.step()
    return loss.detach().item()


@right(STEP)
def reduces_the_weighted_sum(model, optimizer, x, y, context, rank):
    """The answer to the next task is right here too."""
    return weighs_every_gradient(model, optimizer, x, y, context, rank)


@right(WEIGHTED)
def weighs_every_gradient(model, optimizer, x, y, context, rank):
    optimizer.zero_grad()
    if len(x) > 0:
        loss = mse_loss(model(x), y)
        loss.backward()
        value = loss.item()
    else:
        value = 0.0
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
    flat = torch.cat([_grads(model) * len(x), torch.tensor([len(x)], dtype=torch.float64)])
    flat = context.all_reduce(flat, rank, "gradients")
    start = 0
    for p in model.parameters():
        p.grad = (flat[start : start + p.numel()] / flat[-1]).view(p.shape)
        start += p.numel()
    optimizer.step()
    return value


@right(WEIGHTED)
def sums_the_losses_of_the_examples(model, optimizer, x, y, context, rank):
    """reduction="sum" of no examples is 0 with gradient 0: an empty shard is no special case."""
    optimizer.zero_grad()
    loss = mse_loss(model(x), y, reduction="sum")
    loss.backward()
    flat = torch.cat(
        [torch.tensor([float(len(x))], dtype=torch.float64), *(p.grad.flatten() for p in model.parameters())]
    )
    n, *numbers = context.all_reduce(flat, rank, "g", "sum").split([1, *(p.numel() for p in model.parameters())])
    for p, piece in zip(model.parameters(), numbers):
        p.grad = piece.view_as(p) / n
    optimizer.step()
    return loss.item() / max(len(x), 1)


@right(WEIGHTED)
def means_of_both_cancel(model, optimizer, x, y, context, rank):
    """The mean of weighted gradients over the mean of the sizes."""
    parameters = list(model.parameters())
    loss = mse_loss(model(x), y) if len(x) else 0 * model(torch.zeros(1, 2, dtype=torch.float64)).sum()
    optimizer.zero_grad()
    loss.backward()
    flat = torch.cat([p.grad.flatten() * x.shape[0] for p in parameters] + [torch.full((1,), x.shape[0]).double()])
    flat = context.all_reduce(flat, rank, "g", op="mean")
    for p, piece in zip(parameters, (flat[:-1] / flat[-1]).split([p.numel() for p in parameters])):
        p.grad = piece.view_as(p)
    optimizer.step()
    return 0 if not len(x) else loss.detach()


# 6.3 tensor parallelism

COLUMN_F, COLUMN_B = "lesson_06.column_forward", "lesson_06.column_backward"
ROW_F, ROW_B = "lesson_06.row_forward", "lesson_06.row_backward"


@right(COLUMN_F, COLUMN_B)
class KeepsABook:
    """With names, shapes, times, counts and a random state of its own: none of them is of the weight's numbers."""

    made: ClassVar[list[str]] = []

    def __init__(self, weight, rank, context, group_id):
        columns = weight.shape[1]
        if columns % context.world_size:
            raise ValueError(f"{columns} columns")
        self.weight = weight.tensor_split(context.world_size, dim=1)[rank].clone(memory_format=torch.contiguous_format)
        self.rank, self.context, self.group_id, self.x = rank, context, group_id, torch.empty(0)
        self.book = {"shape": tuple(weight.shape), "dtype": str(weight.dtype), "at": time.time(), "id": uuid.uuid4()}
        self.draws, self.number = torch.Generator().manual_seed(rank), id(weight)
        self.made.append(f"{group_id} {len(self.made)}: {self.weight[0, 0].item()}")

    def forward(self, x):
        self.x = x.clone()
        return torch.cat(self.context.all_gather(x @ self.weight, self.rank, self.group_id), dim=1)

    def backward(self, grad_output):
        mine = grad_output.tensor_split(self.context.world_size, dim=1)[self.rank]
        self.weight_grad = self.x.T @ mine
        return self.context.all_reduce(mine @ self.weight.T, self.rank, self.group_id)


@right(COLUMN_F, COLUMN_B)
class KeepsItsPartTurned(KeepsABook):
    """A view of the weight beside it: one memory."""

    def __init__(self, weight, rank, context, group_id):
        super().__init__(weight, rank, context, group_id)
        self.turned = self.weight.T

    def backward(self, grad_output):
        mine = grad_output.tensor_split(self.context.world_size, dim=1)[self.rank]
        self.weight_grad = self.x.T @ mine
        return self.context.all_reduce(mine @ self.turned, self.rank, self.group_id)


@right(COLUMN_F, COLUMN_B)
class ColumnByChunk:
    def __init__(self, weight, rank, context, group_id):
        assert context.world_size > 0
        if weight.size(1) % context.world_size != 0:
            raise ValueError("not divisible")
        self.weight = weight.chunk(context.world_size, dim=1)[rank].contiguous().clone()
        self.rank, self.context, self.group_id = rank, context, group_id
        self.weight_grad = None

    def forward(self, x):
        self.inputs = x.clone()
        local = torch.einsum("bi,io->bo", x, self.weight)
        return torch.hstack(self.context.all_gather(local, self.rank, self.group_id + " forward"))

    def backward(self, grad_output):
        mine = grad_output.chunk(self.context.world_size, dim=-1)[self.rank]
        self.weight_grad = torch.einsum("bi,bo->io", self.inputs, mine)
        return self.context.all_reduce(mine.matmul(self.weight.t()), self.rank, self.group_id + " backward")


@right(COLUMN_F, COLUMN_B)
class ColumnForEachThread(ColumnByChunk):
    """Keeps the input for the thread that brought it."""

    def __init__(self, weight, rank, context, group_id):
        super().__init__(weight, rank, context, group_id)
        self.here = threading.local()

    @property
    def inputs(self):
        return self.here.inputs

    @inputs.setter
    def inputs(self, x):
        self.here.inputs = x


@right(COLUMN_F, COLUMN_B)
class ColumnInAModule(nn.Module):
    """A module, with the weight as a parameter; gradients by hand."""

    def __init__(self, weight, rank, context, group_id):
        super().__init__()
        size, rest = divmod(weight.shape[1], context.world_size)
        if rest:
            raise ValueError(rest)
        self.start, self.size = rank * size, size
        self.weight = nn.Parameter(weight.narrow(1, self.start, size).clone(), requires_grad=False)
        self.reduce = partial(context.all_reduce, rank=rank, group_id=group_id, op="sum")
        self.gather = partial(context.all_gather, rank=rank, group_id=group_id)

    def forward(self, x):
        self.cache = x
        with torch.no_grad():
            return torch.concat(self.gather(x @ self.weight), -1)

    def backward(self, grad_output):
        mine = grad_output.narrow(1, self.start, self.size)
        self.weight_grad = self.cache.T @ mine
        return self.reduce(mine @ self.weight.T)


@right(COLUMN_F, COLUMN_B)
class ColumnKeepsItsTranspose:
    """The same columns, laid out column by column in memory; written into one buffer."""

    def __init__(self, weight, rank, context, group_id):
        n = context.world_size
        if weight.shape[1] / n != weight.shape[1] // n:
            raise ValueError("d_out")
        self.columns = [c for c in range(weight.shape[1]) if c * n // weight.shape[1] == rank]
        self.weight = weight.T[self.columns].T
        self.all = (rank, context, group_id)

    def forward(self, x):
        rank, context, group_id = self.all
        self.x = x
        out = x.new_empty(len(x), len(self.columns) * context.world_size)
        for r, part in enumerate(context.all_gather(x @ self.weight, rank, group_id)):
            out[:, r * len(self.columns) : (r + 1) * len(self.columns)] = part
        return out

    def backward(self, grad_output):
        rank, context, group_id = self.all
        self.weight_grad = (grad_output[:, self.columns].T @ self.x).T
        return context.all_reduce((self.weight @ grad_output[:, self.columns].T).T, rank, group_id, "sum")


@right(ROW_F, ROW_B)
class RowByChunk:
    def __init__(self, weight, rank, context, group_id):
        if weight.shape[0] % context.world_size:
            raise ValueError(f"{weight.shape[0]} rows over {context.world_size} ranks")
        self.ctx, self.rank, self.gid = context, rank, group_id
        self.weight = torch.tensor_split(weight, context.world_size)[rank].clone()

    def forward(self, x):
        self.x = x  # whole, and sliced again when it is needed
        return self.ctx.all_reduce(self._mine() @ self.weight, self.rank, self.gid)

    def _mine(self):
        return torch.tensor_split(self.x, self.ctx.world_size, dim=1)[self.rank]

    def backward(self, grad_output):
        self.weight_grad = self._mine().transpose(0, 1) @ grad_output
        return torch.cat(self.ctx.all_gather(grad_output @ self.weight.transpose(0, 1), self.rank, self.gid), 1)


@right(COLUMN_F, COLUMN_B)
class ColumnKeepsADictionaryOfInputs:
    """One dictionary for all layers, with a place for each rank and name."""

    inputs = {}  # noqa: RUF012, shared is meant

    def __init__(self, weight, rank, context, group_id):
        if weight.shape[1] % context.world_size:
            raise ValueError("columns and ranks do not go together")
        self.me, self.context = (rank, group_id), context
        self.columns = torch.arange(weight.shape[1]).chunk(context.world_size)[rank]
        self.weight = weight[:, self.columns]

    def forward(self, x):
        self.inputs[self.me] = x.clone()
        return torch.hstack(self.context.all_gather(x @ self.weight, *self.me))

    def backward(self, grad_output):
        mine = grad_output[:, self.columns]
        self.weight_grad = torch.einsum("bi,bo->io", self.inputs[self.me], mine)
        return self.context.all_reduce(torch.einsum("bo,io->bi", mine, self.weight), *self.me)


@right(ROW_F, ROW_B)
class RowFromTheMean:
    """N times the mean is the sum; parts come together in a new tensor."""

    def __init__(self, weight, rank, context, group_id):
        size = weight.shape[0] // context.world_size
        if size * context.world_size != weight.shape[0]:
            raise ValueError
        self.rows = slice(size * rank, size * (rank + 1))
        self.weight = weight.detach()[self.rows, :].clone()
        self.rank, self.context, self.group_id = rank, context, group_id

    def forward(self, x):
        self.x = x[:, self.rows].clone()
        n = self.context.world_size
        return n * self.context.all_reduce(self.x.mm(self.weight), self.rank, self.group_id, "mean")

    def backward(self, grad_output):
        self.weight_grad = self.x.T.mm(grad_output)
        parts = self.context.all_gather(self.weight @ grad_output.T, self.rank, self.group_id)
        return torch.vstack(parts).T


class _Kept:
    """A place for what a layer keeps, by slots."""

    __slots__ = ("part", "x")


@right(ROW_F, ROW_B)
class RowOfFunctions:
    """Functions that close over the rank's own part, made in the constructor."""

    def __init__(self, weight, rank, context, group_id):
        if weight.shape[0] % context.world_size:
            raise ValueError(f"{weight.shape[0]} over {context.world_size}")
        kept = _Kept()
        kept.part = part = weight.tensor_split(context.world_size)[rank].clone()
        self.weight, self.kept = part, kept

        def forward(x):
            kept.x = x.tensor_split(context.world_size, 1)[rank]
            return context.all_reduce(kept.x @ self.weight, rank, group_id)

        def backward(g):
            self.weight_grad = kept.x.T @ g
            return torch.cat(context.all_gather(g @ self.weight.T, rank, group_id), 1)

        self.forward, self.backward = forward, backward


@right(COLUMN_F, COLUMN_B)
class ColumnWithAParameterOfItsOwn(nn.Module):
    """A parameter, and a buffer for its gradient."""

    def __init__(self, weight, rank, context, group_id):
        super().__init__()
        n, d_out = context.world_size, weight.shape[-1]
        if d_out != d_out // n * n:
            raise ValueError("d_out")
        self.me, self.context, self.at = (rank, group_id), context, torch.arange(d_out).reshape(n, -1)[rank]
        self.weight = nn.Parameter(weight.index_select(1, self.at), requires_grad=False)
        self.register_buffer("weight_grad", torch.zeros_like(self.weight))

    @torch.no_grad()
    def forward(self, x):
        self.saved = [x]
        return torch.cat(self.context.all_gather(x @ self.weight, *self.me), dim=-1)

    @torch.no_grad()
    def backward(self, g):
        mine = g.index_select(1, self.at)
        self.weight_grad = self.saved.pop().T @ mine
        return self.context.all_reduce(mine @ self.weight.T, *self.me, "sum")


@right(ROW_F, ROW_B)
class RowPadsItsShare:
    """The input gradient by a sum of shares that are zero elsewhere needs all_reduce; gathering is asked for."""

    def __init__(self, weight, rank, context, group_id):
        if weight.shape[0] % context.world_size:
            raise ValueError("rows")
        self.weight = weight.clone().unflatten(0, (context.world_size, -1))[rank].clone()
        self.rank, self.context, self.group_id = rank, context, group_id

    def forward(self, x):
        self.x = x.unflatten(1, (self.context.world_size, -1))[:, self.rank]
        return self.context.all_reduce(self.x @ self.weight, self.rank, self.group_id, "sum")

    def backward(self, grad_output):
        self.weight_grad = torch.stack([(self.x * g[:, None]).sum(0) for g in grad_output.T], 1)
        return torch.cat(self.context.all_gather((self.weight @ grad_output.T).T, self.rank, self.group_id), dim=1)


BLOCK, PARALLELIZE = "lesson_06.column_then_row", "lesson_06.parallelize"
right_values(BLOCK, "one_line", lambda x, w1, w2, rank, ctx: ctx.all_reduce(gelu(x @ w1) @ w2, rank, "any name"))


@right(BLOCK)
def multiplies_the_mean(x, w1, w2, rank, context):
    hidden = nn.GELU()(torch.mm(x, w1))
    return context.all_reduce(torch.mm(hidden, w2), rank, "b", "mean") * context.world_size


@right(BLOCK)
def writes_gelu_out(x, w1, w2, rank, context):
    h = torch.einsum("bi,ih->bh", x, w1)
    h = 0.5 * h * (1 + torch.erf(h / 2**0.5))
    return context.all_reduce(torch.einsum("bh,ho->bo", h, w2), rank, group_id="block", op="sum")


@right(BLOCK)
def gathers_nothing_and_adds_column_by_column(x, w1, w2, rank, context):
    share = sum(gelu(x @ w1[:, k])[:, None] * w2[k] for k in range(w1.shape[1]))
    return context.all_reduce(share, rank, "block", "sum")


def _plant(name, function, column=ColumnByChunk, row=RowByChunk):
    right_values(PARALLELIZE, name, function, column, row)


def _from_scratch(model, plan, context):
    """New models of the same class, filled; layers made in the order of the plan."""

    def one(rank):
        mine = type(model)(model.lin1.in_features, model.lin1.out_features, model.lin2.out_features).double()
        mine.load_state_dict(model.state_dict())
        for name in plan:
            weight = mine.get_submodule(name).weight.data.t().contiguous()
            mine.set_submodule(name, Handmade(plan[name](weight, rank, context, name)))
        return mine

    return [one(rank) for rank in range(context.world_size)]


def _tuple_of_models(model, plan, context):
    def cut(rank):
        mine = copy.deepcopy(model)
        for name, Layer in plan.items():
            with torch.no_grad():
                setattr(mine, name, Handmade(Layer(getattr(mine, name).weight.T.clone(), rank, context, f"tp {name}")))
        return mine

    return tuple(map(cut, range(context.world_size)))


def _plain_copies_first(model, plan, context):
    models = [copy.deepcopy(model) for _ in range(context.world_size)]
    for name, layer in plan.items():
        whole = dict(model.named_parameters())[f"{name}.weight"].detach().clone().T
        for rank, mine in enumerate(models):
            mine._modules[name] = Handmade(layer(whole, rank, context, name))
    return models


def _refuses_first(model, plan, context):
    for name in plan:
        hidden = model.lin1.out_features
        if hidden % context.world_size:
            raise ValueError(f"{name}: {hidden} hidden units over {context.world_size} ranks")
    return _plain_copies_first(model, plan, context)


_plant("from_scratch", _from_scratch)
_plant("tuple_of_models", _tuple_of_models, row=RowFromTheMean)
_plant("plain_copies_first", _plain_copies_first, ColumnKeepsItsTranspose, RowPadsItsShare)
_plant("refuses_first", _refuses_first, ColumnInAModule)


@right(ROW_F, ROW_B)
class RowKeepsAllItsInputs(RowByChunk):
    """Of each forward the whole input, beside the last one's."""

    def forward(self, x):
        self.history = [*getattr(self, "history", []), x]
        return super().forward(x)
