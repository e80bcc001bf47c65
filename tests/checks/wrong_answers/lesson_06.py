"""Planted mistakes of lesson 06: races first, then data and tensor parallelism."""

from __future__ import annotations

import copy
import io
import optparse
import queue
import threading
import time
import zlib
from collections import UserDict, defaultdict
from fractions import Fraction
from functools import cache, partial

import numpy as np
import torch
from torch.nn.functional import mse_loss

from hw_utils.material.handwritten_layer import Handmade
from hw_utils.material.models import SimpleMLP
from tests.checks.wrong_answers import wrong, wrong_values

GATHER, REDUCE = "lesson_06.all_gather", "lesson_06.all_reduce"


class _Context:
    """What all planted communication layers start from."""

    def __init__(self, world_size):
        self.world_size = world_size
        self.barrier = threading.Barrier(world_size)
        self.lock = threading.Lock()
        self.buffers = {}

    def all_gather(self, tensor, rank, group_id):
        with self.lock:
            slots = self.buffers.setdefault(group_id, [None] * self.world_size)
            slots[rank] = tensor.clone()
        self.barrier.wait()
        gathered = [slot.clone() for slot in slots]
        self.barrier.wait()
        return gathered


class _ThroughABuffer(_Context):
    """Made by the ranks, one for all of them or not."""

    def through_the_buffer(self, tensor, rank, group_id):
        self.buffers[group_id][rank] = tensor.clone()
        self.barrier.wait()
        gathered = [slot.clone() for slot in self.buffers[group_id]]
        self.barrier.wait()
        return gathered


class _InSlots(_Context):
    """All-gather through `slots_of`, which may be interrupted between looking and making."""

    def all_gather(self, tensor, rank, group_id):
        self.slots_of(group_id)[rank] = tensor.clone()
        self.barrier.wait()
        gathered = [slot.clone() for slot in self.slots_of(group_id)]
        self.barrier.wait()
        return gathered


@wrong(GATHER, says="has its own tensor 2 times.*from the slot of its own rank")
class ReadsItsOwnSlot(_Context):
    def all_gather(self, tensor, rank, group_id):
        return [super().all_gather(tensor, rank, group_id)[rank]] * self.world_size


LOCK, ALL_SLOTS = threading.Lock(), {}


@wrong(GATHER, says="on two objects at a time, 2 ranks each.*make it in __init__, on self")
class SlotsOfTheClass(_InSlots):
    def slots_of(self, group_id):
        with LOCK:
            return ALL_SLOTS.setdefault((group_id, self.world_size), [None] * self.world_size)


_LOST = "lacks the tensor of|is not subscriptable|'NoneType' object|raises AttributeError"


@wrong(GATHER, says=_LOST)
class MakesSlotsInAFactory(_InSlots):
    """C code calls the factory, and then writes over what another rank has put there meanwhile."""

    def __init__(self, world_size):
        super().__init__(world_size)
        self.slots = defaultdict(lambda: [None] * world_size)

    def slots_of(self, group_id):
        return self.slots[group_id]


@wrong(GATHER, says=_LOST)
class RemembersSlotsByACache(_InSlots):
    def __init__(self, world_size):
        super().__init__(world_size)
        self.slots_of = cache(lambda group_id: [None] * world_size)


class _AtBarriersOfGroups(_Context):
    """All-gather with a barrier a group, which `barrier_of` makes at its first call: C code that calls a library's."""

    def all_gather(self, tensor, rank, group_id):
        barrier = self.barrier_of(group_id)
        slots = self.buffers.setdefault(group_id, [None] * self.world_size)
        slots[rank] = tensor.clone()
        barrier.wait()
        gathered = [slot.clone() for slot in slots]
        barrier.wait()
        return gathered


@wrong(GATHER, says="no rank can go on")
class MakesBarriersInAFactory(_AtBarriersOfGroups):
    def __init__(self, world_size):
        super().__init__(world_size)
        self.barriers = defaultdict(partial(threading.Barrier, world_size))

    def barrier_of(self, group_id):
        return self.barriers[group_id]


@wrong(GATHER, says="BrokenBarrierError")
class RemembersBarriersByACache(_AtBarriersOfGroups):
    def __init__(self, world_size):
        super().__init__(world_size)
        self.barrier_at = cache(partial(threading.Barrier, world_size, None))

    def barrier_of(self, group_id):
        return self.barrier_at(1e6 + len(group_id))  # a timeout, which tells the groups apart


@wrong(GATHER, says="no rank can go on")
class MakesMailboxesInAFactory(_Context):
    def __init__(self, world_size):
        super().__init__(world_size)
        self.boxes = defaultdict(queue.Queue)

    def all_gather(self, tensor, rank, group_id):
        for to in range(self.world_size):
            self.boxes[group_id, rank, to].put(tensor.clone())
        return [self.boxes[group_id, source, rank].get() for source in range(self.world_size)]


@wrong(GATHER, says=_LOST)
class MakesSlotsInAContainerOfPythons(_InSlots):
    def __init__(self, world_size):
        super().__init__(world_size)
        self.slots = UserDict()

    def slots_of(self, group_id):
        return self.slots.setdefault(group_id, [None] * self.world_size)


@wrong(GATHER, says=_LOST)
class MakesSlotsInALibrarysFunction(_InSlots):
    def __init__(self, world_size):
        super().__init__(world_size)
        self.slots = optparse.Values()

    def slots_of(self, group_id):
        return self.slots.ensure_value(group_id, [None] * self.world_size)


@wrong(GATHER, says=_LOST)
class MakesSlotsInAFunctionThatALibraryCalls(MakesSlotsInALibrarysFunction):
    def slots_of(self, group_id):
        return torch.no_grad()(self.slots.ensure_value)(group_id, [None] * self.world_size)


@wrong(GATHER, says="list modified during sort|lacks the tensor of|gives|IndexError")
class SortsWhatAllShare(_Context):
    """While a list is sorted with a key in Python, it is empty for the others."""

    def all_gather(self, tensor, rank, group_id):
        log = self.buffers.setdefault(group_id, [])
        log.append((rank, tensor.clone()))
        self.barrier.wait()
        log.sort(key=_rank_of)
        gathered = [log[r][1].clone() for r in range(self.world_size)]
        if self.barrier.wait() == 0:
            log.clear()
        self.barrier.wait()
        return gathered


def _rank_of(pair):
    rank, _ = pair
    return rank


class _ByTickets(_Context):
    """All-gather by numbers that ranks draw, without a lock, from `ticket`."""

    def all_gather(self, tensor, rank, group_id):
        self.buffers[self.ticket()] = rank, tensor.clone()
        self.barrier.wait()
        found = dict(list(self.buffers.values()))
        gathered = [found[r].clone() for r in range(self.world_size)]
        if self.barrier.wait() == 0:
            self.buffers.clear()
        self.barrier.wait()
        return gathered


@wrong(GATHER, says="generator already executing|lacks the tensor of")
class DrawsTicketsFromOneGenerator(_ByTickets):
    def __init__(self, world_size):
        super().__init__(world_size)
        self.ticket = partial(next, _tickets())


def _tickets():
    number = 0
    while True:
        yield number
        number += 1


@wrong(GATHER, says="lacks the tensor of|gives|IndexError|KeyError")
class CountsInAClosure(_ByTickets):
    def __init__(self, world_size):
        super().__init__(world_size)
        count = 0

        def ticket():
            nonlocal count
            count += 1
            return count

        self.ticket = ticket


@wrong(GATHER, says=r"removed the buffer .*while rank \d was still reading")
class ClearsTheBufferBeforeAllHaveRead(_Context):
    def all_gather(self, tensor, rank, group_id):
        with self.lock:
            self.buffers.setdefault(group_id, {})[rank] = tensor.clone()
        self.barrier.wait()
        gathered = [self.buffers[group_id][r].clone() for r in range(self.world_size)]
        self.buffers.pop(group_id, None)
        self.barrier.wait()
        return gathered


@wrong(GATHER, says="removed the buffer")
class LastRankClearsTheBuffer(_Context):
    def all_gather(self, tensor, rank, group_id):
        with self.lock:
            self.buffers.setdefault(group_id, {})[rank] = tensor.clone()
        self.barrier.wait()
        gathered = [self.buffers[group_id][r].clone() for r in range(self.world_size)]
        if rank == self.world_size - 1:
            self.buffers[group_id].clear()
        self.barrier.wait()
        return gathered


@wrong(GATHER, says="second barrier, after reading, is missing")
class HasOneBarrier(_Context):
    def all_gather(self, tensor, rank, group_id):
        with self.lock:
            slots = self.buffers.setdefault(group_id, [None] * self.world_size)
            slots[rank] = tensor.clone()
        self.barrier.wait()
        return [slot.clone() for slot in slots]


@wrong(GATHER, says="barrier is missing between writing and reading")
class ReadsBeforeAllHaveWritten(_Context):
    def all_gather(self, tensor, rank, group_id):
        with self.lock:
            slots = self.buffers.setdefault(group_id, [None] * self.world_size)
            slots[rank] = tensor.clone()
        gathered = [slot.clone() for slot in slots]
        self.barrier.wait()
        return gathered


class _TakesItsOwnForWhatIsNotThere(_Context):
    def all_gather(self, tensor, rank, group_id):
        with self.lock:
            slots = self.buffers.setdefault(group_id, [None] * self.world_size)
            slots[rank] = tensor.clone()
            gathered = [tensor.clone() if slot is None else slot.clone() for slot in slots]
        self.barrier.wait()
        return gathered

    def all_reduce(self, tensor, rank, group_id, op="sum"):
        if op not in ("sum", "mean"):
            raise ValueError(op)
        total = torch.stack(self.all_gather(tensor, rank, group_id)).sum(0)
        return total / self.world_size if op == "mean" else total


for _check in (GATHER, REDUCE):
    wrong_values(_check, "TakesItsOwnForWhatIsNotThere", _TakesItsOwnForWhatIsNotThere,
                 says="barrier is missing between writing and reading")  # fmt: skip


@wrong(GATHER, says="Look and make under one lock")
class MakesTheBufferWithoutALock(_ThroughABuffer):
    def all_gather(self, tensor, rank, group_id):
        if group_id not in self.buffers:
            self.buffers[group_id] = [None] * self.world_size
        return self.through_the_buffer(tensor, rank, group_id)


class _UnderAFlag(_ThroughABuffer):
    """Looks and makes between `enter` and `leave`, which two ranks can pass at a time after two unlucky switches."""

    busy = False

    def enter(self):
        while self.busy:
            time.sleep(0)
        self.busy = True

    def leave(self):
        self.busy = False

    def all_gather(self, tensor, rank, group_id):
        self.enter()
        if group_id not in self.buffers:
            self.buffers[group_id] = [None] * self.world_size
        self.leave()
        return self.through_the_buffer(tensor, rank, group_id)


@wrong(GATHER, says="Look and make under one lock")
class LooksAtAFlagAndThenSetsIt(_UnderAFlag):
    pass


@wrong(GATHER, says="Look and make under one lock")
class MakesItsLockWithoutALock(_ThroughABuffer):
    late = None

    def all_gather(self, tensor, rank, group_id):
        if self.late is None:
            self.late = threading.Lock()
        with self.late:
            if group_id not in self.buffers:
                self.buffers[group_id] = [None] * self.world_size
        return self.through_the_buffer(tensor, rank, group_id)


@wrong(GATHER, says="Look and make under one lock")
class TakesTheLockOnlyIfItIsFree(_UnderAFlag):
    def enter(self):
        while self.lock.locked():
            time.sleep(0)
        self.lock.acquire(blocking=False)

    def leave(self):
        if self.lock.locked():
            self.lock.release()


@wrong(GATHER, says="give each rank copies of its own")
class ReturnsOneListToAllRanks(_Context):
    def all_gather(self, tensor, rank, group_id):
        with self.lock:
            slots = self.buffers.setdefault(group_id, [None] * self.world_size)
            slots[rank] = tensor.clone()
        self.barrier.wait()
        gathered = list(slots)
        self.barrier.wait()
        return gathered


@wrong(GATHER, says="in the wrong order")
class AppendsInOrderOfArrival(_Context):
    def __init__(self, world_size):
        super().__init__(world_size)
        self.buffers = defaultdict(list)

    def all_gather(self, tensor, rank, group_id):
        with self.lock:
            self.buffers[group_id].append(tensor.clone())
        self.barrier.wait()
        gathered = [t.clone() for t in self.buffers[group_id]]
        if self.barrier.wait() == 0:
            self.buffers[group_id].clear()
        self.barrier.wait()
        return gathered


@wrong(GATHER, says=r"has \d tensors, not \d")
class NeverEmptiesTheBuffer(_Context):
    def all_gather(self, tensor, rank, group_id):
        with self.lock:
            self.buffers.setdefault(group_id, []).append(tensor.clone())
        self.barrier.wait()
        gathered = [t.clone() for t in self.buffers[group_id]]
        self.barrier.wait()
        return gathered


@wrong(REDUCE, says="Clear between two barriers")
@wrong(GATHER, says="Clear between two barriers")
class ClearsAfterTheLastBarrier(_Context):
    def all_gather(self, tensor, rank, group_id):
        with self.lock:
            self.buffers.setdefault(group_id, {})[rank] = tensor.clone()
        self.barrier.wait()
        gathered = [tensor.clone() for _, tensor in sorted(self.buffers[group_id].items())]
        self.barrier.wait()
        if rank == 0:
            del self.buffers[group_id]
        return gathered

    def all_reduce(self, tensor, rank, group_id, op="sum"):
        if op not in ("sum", "mean"):
            raise ValueError(op)
        gathered = self.all_gather(tensor, rank, group_id)
        return sum(gathered) / (len(gathered) if op == "mean" else 1)


@wrong(GATHER, says="no rank can go on")
class LetsOnlyRankZeroReachTheSecondBarrier(_Context):
    def all_gather(self, tensor, rank, group_id):
        with self.lock:
            slots = self.buffers.setdefault(group_id, [None] * self.world_size)
            slots[rank] = tensor.clone()
        self.barrier.wait()
        gathered = [slot.clone() for slot in slots]
        if rank == 0:
            self.barrier.wait()
        return gathered


@wrong(GATHER, says="no rank can go on")
class WaitsInsideTheLock(_Context):
    def all_gather(self, tensor, rank, group_id):
        with self.lock:
            slots = self.buffers.setdefault(group_id, [None] * self.world_size)
            slots[rank] = tensor.clone()
            self.barrier.wait()
        gathered = [slot.clone() for slot in slots]
        self.barrier.wait()
        return gathered


@wrong(GATHER, says="looking again and again")
class SpinsUntilAllHaveArrived(_Context):
    def all_gather(self, tensor, rank, group_id):
        slots = self.buffers.setdefault(group_id, [None] * self.world_size)
        slots[rank] = tensor.clone()
        while None in slots:
            pass
        return [slot.clone() for slot in slots]


@wrong(GATHER, says="lacks the tensor of|raises|of call")
class SleepsInPlaceOfABarrier(_Context):
    def all_gather(self, tensor, rank, group_id):
        with self.lock:
            slots = self.buffers.setdefault(group_id, [None] * self.world_size)
            slots[rank] = tensor.clone()
        time.sleep(0.05)
        gathered = [slot.clone() for slot in slots]
        time.sleep(0.05)
        return gathered


@wrong(GATHER, says="one tensor of shape .*not a list")
class GivesOneStackedTensor(_Context):
    def all_gather(self, tensor, rank, group_id):
        return torch.stack(super().all_gather(tensor, rank, group_id))


@wrong(GATHER, says="its own tensor first")
class PutsItsOwnTensorFirst(_Context):
    def all_gather(self, tensor, rank, group_id):
        gathered = super().all_gather(tensor, rank, group_id)
        return gathered[rank:] + gathered[:rank]


@wrong(GATHER, says="the list is turned, reversed or sorted")
class TurnsTheList(_Context):
    def all_gather(self, tensor, rank, group_id):
        gathered = super().all_gather(tensor, rank, group_id)
        return gathered[1:] + gathered[:1]


@wrong(GATHER, says="`KeepsItsBuffersOnTheClass.shared` keeps something from call to call")
class KeepsItsBuffersOnTheClass(_Context):
    shared = {}  # noqa: RUF012, the mistake is meant

    def all_gather(self, tensor, rank, group_id):
        self.buffers = self.shared
        return super().all_gather(tensor, rank, group_id)


class _Changed(_Context):
    """Gathers rightly, then changes what it gives."""

    def all_gather(self, tensor, rank, group_id):
        return [self.change(part) for part in super().all_gather(tensor, rank, group_id)]


@wrong(GATHER, says="one tensor of shape .3,. in its list.*the shape and the dtype of what was brought")
class FlattensTheTensors(_Changed):
    def change(self, part):
        return part.flatten()


@wrong(GATHER, says="gives .* was brought.*digits are lost on the way: a copy, or a buffer")
class GathersInABufferOfTheDefaultDtype(_Context):
    def all_gather(self, tensor, rank, group_id):
        with self.lock:
            room = self.buffers.setdefault(group_id, torch.zeros(self.world_size, *tensor.shape))
            room[rank] = tensor
        self.barrier.wait()
        gathered = [slot.to(tensor.dtype) for slot in room.clone()]
        self.barrier.wait()
        return gathered


@wrong(GATHER, says="shape .1, 3. and dtype float32 in its list.*the shape and the dtype of what was brought")
class GathersSinglePrecision(_Changed):
    def change(self, part):
        return part.float()


@wrong(GATHER, says="its own tensor changes")
class PutsItsOwnTensorIn(_Context):
    def all_gather(self, tensor, rank, group_id):
        gathered = super().all_gather(tensor, rank, group_id)
        gathered[rank] = tensor
        return gathered


@wrong(GATHER, says="BrokenBarrierError|barrier|no rank can go on|lacks|slot")
class MakesABarrierACall(_Context):
    def all_gather(self, tensor, rank, group_id):
        self.barrier = threading.Barrier(self.world_size)
        return super().all_gather(tensor, rank, group_id)


@wrong(GATHER, says="it counts fewer than world_size ranks")
class HasABarrierForOneLess(_Context):
    def __init__(self, world_size):
        super().__init__(world_size)
        self.barrier = threading.Barrier(max(world_size - 1, 1))


class _Reducing(_Context):
    def all_reduce(self, tensor, rank, group_id, op="sum"):
        if op not in ("sum", "mean"):
            raise ValueError(op)
        total = torch.stack(self.all_gather(tensor, rank, group_id)).sum(0)
        return total / self.world_size if op == "mean" else total


class _Totals(_Context):
    """All-reduce by a running total."""

    divisor = None

    def __init__(self, world_size):
        super().__init__(world_size)
        self.total, self.arrived = {}, {}

    def add(self, tensor, group_id):
        with self.lock:
            self.total[group_id] = self.total.get(group_id, 0) + tensor
            self.arrived[group_id] = self.arrived.get(group_id, 0) + 1

    def finish(self, group_id, rank):
        self.barrier.wait()
        if rank == 0:
            self.total.pop(group_id)
            self.arrived.pop(group_id)
        self.barrier.wait()

    def all_reduce(self, tensor, rank, group_id, op="sum"):
        if op not in ("sum", "mean"):
            raise ValueError(op)
        self.add(tensor, group_id)
        self.barrier.wait()
        result = self.total[group_id].clone()
        result = result / self.world_size if op == "mean" else result
        self.finish(group_id, rank)
        return result


@wrong(REDUCE, says="Read, add and write under one lock")
class AddsWithoutALock(_Totals):
    def add(self, tensor, group_id):
        self.total[group_id] = self.total.get(group_id, 0) + tensor
        self.arrived[group_id] = 1


@wrong(REDUCE, says="Read, add and write under one lock")
class AddsInPlaceWithoutALock(_Totals):
    def add(self, tensor, group_id):
        with self.lock:
            total = self.total.setdefault(group_id, torch.zeros_like(tensor))
            self.arrived[group_id] = self.arrived.get(group_id, 0) + 1
        total += tensor


@wrong(REDUCE, says="Read, add and write under one lock")
class AddsAtIndicesWithoutALock(_Totals):
    def add(self, tensor, group_id):
        with self.lock:
            total = self.total.setdefault(group_id, torch.zeros_like(tensor))
            self.arrived[group_id] = self.arrived.get(group_id, 0) + 1
        total.view(-1).index_add_(0, torch.arange(tensor.numel()), tensor.reshape(-1))


@wrong(REDUCE, says="Read, add and write under one lock")
class AddsListsOfTensorsWithoutALock(_Totals):
    def add(self, tensor, group_id):
        with self.lock:
            total = self.total.setdefault(group_id, torch.zeros_like(tensor))
            self.arrived[group_id] = self.arrived.get(group_id, 0) + 1
        torch._foreach_add_([total], [tensor])


@wrong(REDUCE, says="Read, add and write under one lock")
class AddsArraysWithoutALock(_Totals):
    def add(self, tensor, group_id):
        with self.lock:
            total = self.total.setdefault(group_id, torch.zeros_like(tensor)).numpy()
            self.arrived[group_id] = self.arrived.get(group_id, 0) + 1
        total += tensor.numpy()


@wrong(REDUCE, says="Read, add and write under one lock")
class AddsToAnArrayOfNumpys(_Totals):
    def add(self, tensor, group_id):
        with self.lock:
            if group_id not in self.total:
                self.array = np.zeros(tuple(tensor.shape), dtype=tensor.numpy().dtype)
                self.total[group_id] = torch.from_numpy(self.array)
            self.arrived[group_id] = self.arrived.get(group_id, 0) + 1
        np.add(self.array, tensor.numpy(), out=self.array)


@wrong(REDUCE, says="had arrived")
class DividesByTheRanksThatHaveArrived(_Totals):
    def all_reduce(self, tensor, rank, group_id, op="sum"):
        if op not in ("sum", "mean"):
            raise ValueError(op)
        self.add(tensor, group_id)
        n_arrived = self.arrived[group_id]
        self.barrier.wait()
        result = self.total[group_id].clone()
        result = result / n_arrived if op == "mean" else result
        self.finish(group_id, rank)
        return result


@wrong(REDUCE, says="share of ranks? .* missing")
class SumsBeforeAllHaveArrived(_Totals):
    def all_reduce(self, tensor, rank, group_id, op="sum"):
        if op not in ("sum", "mean"):
            raise ValueError(op)
        self.add(tensor, group_id)
        result = self.total[group_id].clone()
        result = result / self.world_size if op == "mean" else result
        self.barrier.wait()
        self.finish(group_id, rank)
        return result


@wrong(REDUCE, says="an earlier call's sum")
class NeverClearsTheTotal(_Totals):
    def finish(self, group_id, rank):
        self.barrier.wait()


@wrong(REDUCE, says="removed the buffer")
class ClearsTheTotalWhileOthersRead(_Totals):
    def finish(self, group_id, rank):
        self.total.pop(group_id, None)
        self.barrier.wait()


@wrong(REDUCE, says="give each rank copies of its own")
class SharesOneResult(_Totals):
    def all_reduce(self, tensor, rank, group_id, op="sum"):
        if op not in ("sum", "mean"):
            raise ValueError(op)
        self.add(tensor, group_id)
        self.barrier.wait()
        result = self.total[group_id]
        self.finish(group_id, rank)
        return result / self.world_size if op == "mean" else result


@wrong(REDUCE, says="next call")
class ReusesTheGroupAtOnce(_Context):
    def all_reduce(self, tensor, rank, group_id, op="sum"):
        if op not in ("sum", "mean"):
            raise ValueError(op)
        with self.lock:
            slots = self.buffers.setdefault(group_id, [None] * self.world_size)
            slots[rank] = tensor.clone()
        self.barrier.wait()
        total = torch.stack([slot.clone() for slot in slots]).sum(0)
        return total / self.world_size if op == "mean" else total


@wrong(REDUCE, says="the sum is divided by the number of ranks")
class ForgetsTheMean(_Reducing):
    def all_reduce(self, tensor, rank, group_id, op="sum"):
        if op not in ("sum", "mean"):
            raise ValueError(op)
        return torch.stack(self.all_gather(tensor, rank, group_id)).sum(0)


@wrong(REDUCE, says="digits are lost on the way.*divide with /")
class DividesWholeNumbers(_Reducing):
    def all_reduce(self, tensor, rank, group_id, op="sum"):
        if op not in ("sum", "mean"):
            raise ValueError(op)
        total = torch.stack(self.all_gather(tensor, rank, group_id)).sum(0)
        return total // self.world_size if op == "mean" else total


@wrong(REDUCE, says="ValueError, got nothing")
class TakesAnyOp(_Reducing):
    def all_reduce(self, tensor, rank, group_id, op="sum"):
        total = torch.stack(self.all_gather(tensor, rank, group_id)).sum(0)
        return total / self.world_size if op == "mean" else total


@wrong(REDUCE, says="changes the tensor that rank 0 brought.*work on a copy")
class AddsIntoTheCallersTensor(_Reducing):
    def all_reduce(self, tensor, rank, group_id, op="sum"):
        if op not in ("sum", "mean"):
            raise ValueError(op)
        for other, part in enumerate(self.all_gather(tensor, rank, group_id)):
            if other != rank:
                tensor += part
        return tensor / self.world_size if op == "mean" else tensor.clone()


@wrong(REDUCE, says="divided twice")
class DividesBeforeAndAfter(_Reducing):
    def all_reduce(self, tensor, rank, group_id, op="sum"):
        return super().all_reduce(tensor / self.world_size if op == "mean" else tensor, rank, group_id, op)


@wrong(REDUCE, says="not returned on every rank")
class GivesTheSumToRankZeroOnly(_Reducing):
    def all_reduce(self, tensor, rank, group_id, op="sum"):
        total = super().all_reduce(tensor, rank, group_id, op)
        return total if rank == 0 else tensor.clone()


@wrong(REDUCE, says="only the ranks are reduced")
class SumsToOneNumber(_Reducing):
    def all_reduce(self, tensor, rank, group_id, op="sum"):
        return super().all_reduce(tensor, rank, group_id, op).sum()


@wrong(REDUCE, says="the mean.*a call that names no op means the sum")
class AveragesIfNotTold(_Reducing):
    def all_reduce(self, tensor, rank, group_id, op="mean"):
        return super().all_reduce(tensor, rank, group_id, op)


@wrong(REDUCE, says="op='average', called on rank 0: expected a ValueError, got nothing")
class TakesTheAverageForTheMean(_Reducing):
    def all_reduce(self, tensor, rank, group_id, op="sum"):
        return super().all_reduce(tensor, rank, group_id, "mean" if op == "average" else op)


@wrong(REDUCE, says="op='MEAN'.*what is neither sum nor mean is taken for one of them")
class TakesCapitals(_Reducing):
    def all_reduce(self, tensor, rank, group_id, op="sum"):
        return super().all_reduce(tensor, rank, group_id, op.lower())


@wrong(REDUCE, says="op='me', called on rank 0: expected a ValueError, got nothing")
class LooksForTheOpInAText(_Reducing):
    def all_reduce(self, tensor, rank, group_id, op="sum"):
        return super().all_reduce(tensor, rank, group_id, "mean" if op in "mean" else op)


@wrong(REDUCE, says="and dtype float32.*the dtype of what was brought")
class ReducesSinglePrecision(_Reducing):
    def all_reduce(self, tensor, rank, group_id, op="sum"):
        return super().all_reduce(tensor.float(), rank, group_id, op)


@wrong(REDUCE, says="the result has the rank's own tensor in it|changes the tensor")
class GivesTheTensorBackAlone(_Reducing):
    def all_reduce(self, tensor, rank, group_id, op="sum"):
        if op not in ("sum", "mean"):
            raise ValueError(op)
        return tensor if self.world_size == 1 else super().all_reduce(tensor, rank, group_id, op)


class _AddsInAnOrder(_Reducing):
    """Rightly gathered; `order(parts, rank)` is that in which a rank adds them."""

    def all_reduce(self, tensor, rank, group_id, op="sum"):
        if op not in ("sum", "mean"):
            raise ValueError(op)
        first, *others = self.order(self.all_gather(tensor, rank, group_id), rank)
        for part in others:
            first = first + part
        return first / self.world_size if op == "mean" else first


@wrong(REDUCE, says="each rank adds in an order of its own")
class AddsItsOwnFirst(_AddsInAnOrder):
    def order(self, parts, rank):
        return parts[rank:] + parts[:rank]


@wrong(REDUCE, says="with 3 ranks: .*each rank adds in an order of its own")
class AddsTheOthersToItsOwn(_AddsInAnOrder):
    def order(self, parts, rank):
        return [parts[rank], *parts[:rank], *parts[rank + 1 :]]


@wrong(REDUCE, says="each rank adds in an order of its own")
class AddsItsOwnLast(_AddsInAnOrder):
    def order(self, parts, rank):
        return [*parts[:rank], *parts[rank + 1 :], parts[rank]]


@wrong(REDUCE, says="each rank adds in an order of its own")
class AddsBackwardsOnTheLastRank(_AddsInAnOrder):
    def order(self, parts, rank):
        return parts[::-1] if rank == self.world_size - 1 else parts


@wrong(REDUCE, says="call 2 gives .* on rank 1 .*or divides in a way of its own")
class MultipliesByTheReciprocalOnOneRank(_AddsInAnOrder):
    def order(self, parts, rank):
        return parts

    def all_reduce(self, tensor, rank, group_id, op="sum"):
        if op == "mean" and rank == 1:
            return super().all_reduce(tensor, rank, group_id) * (1 / self.world_size)
        return super().all_reduce(tensor, rank, group_id, op)


@wrong(REDUCE, says="digits are lost on the way")
class SumsInSinglePrecision(_Reducing):
    def all_reduce(self, tensor, rank, group_id, op="sum"):
        return super().all_reduce(tensor.float(), rank, group_id, op).to(tensor.dtype)


@wrong(REDUCE, says="called on rank 0 alone.*look first, before any rank waits")
class RefusesAfterTheGather(_Reducing):
    def all_reduce(self, tensor, rank, group_id, op="sum"):
        parts = torch.stack(self.all_gather(tensor, rank, group_id))
        if op not in ("sum", "mean"):
            raise ValueError(op)
        return parts.sum(0) if op == "sum" else parts.mean(0)


@wrong(REDUCE, says="called on rank 0 alone.*look first, before any rank waits")
class RefusesAfterABarrier(_Reducing):
    def all_reduce(self, tensor, rank, group_id, op="sum"):
        self.barrier.wait()
        return super().all_reduce(tensor, rank, group_id, op)


@wrong(REDUCE, says="called on rank 1 alone: .*it waits")
class RefusesOnRankZeroAndWaitsElsewhere(_Reducing):
    def all_reduce(self, tensor, rank, group_id, op="sum"):
        if rank == 0 and op not in ("sum", "mean"):
            raise ValueError(op)
        parts = torch.stack(self.all_gather(tensor, rank, group_id))
        return parts.mean(0) if op == "mean" else parts.sum(0)


@wrong(REDUCE, says="called on rank 1: .*every rank refuses the op")
class RefusesOnRankZeroOnly(_Reducing):
    def all_reduce(self, tensor, rank, group_id, op="sum"):
        if op not in ("sum", "mean"):
            if rank == 0:
                raise ValueError(op)
            return tensor
        return super().all_reduce(tensor, rank, group_id, op)


@wrong(REDUCE, says="got an AssertionError.*an assert can be switched off")
class AssertsTheOp(_Reducing):
    def all_reduce(self, tensor, rank, group_id, op="sum"):
        assert op in ("sum", "mean")
        return super().all_reduce(tensor, rank, group_id, op)


@wrong(REDUCE, says="got a KeyError")
class LooksTheOpUp(_Reducing):
    def all_reduce(self, tensor, rank, group_id, op="sum"):
        divisor = {"sum": 1, "mean": self.world_size}[op]
        return super().all_reduce(tensor, rank, group_id, "sum") / divisor


@wrong(REDUCE, says="changes later.*a buffer that is used again")
class WritesIntoOneBufferARank(_Reducing):
    def all_reduce(self, tensor, rank, group_id, op="sum"):
        self.mine = getattr(self, "mine", None) or [torch.empty_like(tensor) for _ in range(self.world_size)]
        return self.mine[rank].copy_(super().all_reduce(tensor, rank, group_id, op))


@wrong(REDUCE, says="ranks share one tensor|a buffer that is used again")
class WritesIntoOneBufferForAll(_Reducing):
    """Every rank writes the same sum into it, so each finds it right."""

    def __init__(self, world_size):
        super().__init__(world_size)
        self.result = None

    def all_reduce(self, tensor, rank, group_id, op="sum"):
        total = super().all_reduce(tensor, rank, group_id, op)
        with self.lock:
            self.result = total if self.result is None else self.result.copy_(total)
            return self.result


@wrong(GATHER, says="changes later.*a buffer that is used again")
class GathersIntoTheSameTensors(_Context):
    def __init__(self, world_size):
        super().__init__(world_size)
        self.kept = {}

    def all_gather(self, tensor, rank, group_id):
        gathered = super().all_gather(tensor, rank, group_id)
        kept = self.kept.setdefault((rank, group_id), gathered)
        for mine, new in zip(kept, gathered):
            mine.copy_(new)
        return kept


@wrong(GATHER, says="changes later.*a buffer that is used again")
class ReturnsOneListPerRank(_Context):
    """The list is emptied and filled again at the next call."""

    def __init__(self, world_size):
        super().__init__(world_size)
        self.lists = [[] for _ in range(world_size)]

    def all_gather(self, tensor, rank, group_id):
        self.lists[rank][:] = super().all_gather(tensor, rank, group_id)
        return self.lists[rank]


@wrong(GATHER, says="its own tensor changes")
class PutsTheCallersTensorsIn(_Context):
    def all_gather(self, tensor, rank, group_id):
        with self.lock:
            slots = self.buffers.setdefault(group_id, [None] * self.world_size)
            slots[rank] = tensor
        self.barrier.wait()
        gathered = list(slots)
        self.barrier.wait()
        return gathered


class _OneTensor(_Context):
    """One tensor with a row a rank, made at the first call."""

    def all_gather(self, tensor, rank, group_id):
        with self.lock:
            if group_id not in self.buffers:
                self.buffers[group_id] = tensor.new_empty((self.world_size, *tensor.shape))
        self.put(self.buffers[group_id], rank, tensor)
        self.barrier.wait()
        gathered = [row.clone() for row in self.buffers[group_id]]
        self.barrier.wait()
        return gathered


@wrong(GATHER, says="the next one on the same group_id, with shape.*kept in the shape of an earlier call")
class KeepsTheShapeOfTheFirstCall(_OneTensor):
    def put(self, buffer, rank, tensor):
        buffer[rank].copy_(tensor)


@wrong(GATHER, says="gives? .*kept in the shape|has one tensor of shape .1, 3. .*in its list.*kept in the shape")
class ReshapesToTheFirstCall(_OneTensor):
    def put(self, buffer, rank, tensor):
        buffer[rank] = tensor.reshape(buffer[rank].shape)


# 6.2 Data parallelism

SPLIT, STEP, WEIGHTED = "lesson_06.split_batch", "lesson_06.dp_step", "lesson_06.weighted_dp_step"


@wrong(SPLIT, says="remainder is dropped")
def drops_the_remainder(x, rank, world_size):
    size = len(x) // world_size
    return x[rank * size : (rank + 1) * size]


@wrong(SPLIT, says="whole remainder")
def gives_the_last_rank_the_remainder(x, rank, world_size):
    size = len(x) // world_size
    return x[rank * size :] if rank == world_size - 1 else x[rank * size : (rank + 1) * size]


@wrong(SPLIT, says="the part of rank 0 is float32, x is float64")
def splits_in_single_precision(x, rank, world_size):
    return x.float().tensor_split(world_size)[rank]


@wrong(SPLIT, says="one run of neighbours")
def takes_every_nth(x, rank, world_size):
    return x[rank::world_size]


@wrong(SPLIT, says="overlap")
def overlaps_by_one(x, rank, world_size):
    size = -(-len(x) // world_size)
    start = min(rank * size, max(len(x) - size, 0))
    return x[start : start + size]


@wrong(SPLIT, says="is not a tensor but ndarray")
def gives_numpy(x, rank, world_size):
    return x.tensor_split(world_size)[rank].numpy()


@wrong(SPLIT, says="sizes may differ by 1 at most.*rounded up")
def rounds_up(x, rank, world_size):
    size = -(-len(x) // world_size)
    return x[rank * size : (rank + 1) * size]


@wrong(SPLIT, says="loses 2 examples.*in the size and not in the start")
def forgets_to_shift_the_start(x, rank, world_size):
    size, rest = divmod(len(x), world_size)
    start = rank * size
    return x[start : start + size + (rank < rest)]


@wrong(SPLIT, says="in the start and not in the size")
def shifts_the_start_only(x, rank, world_size):
    size, rest = divmod(len(x), world_size)
    start = rank * size + min(rank, rest)
    return x[start : start + size]


@wrong(SPLIT, says="the ranks count from the end")
def begins_with_the_last_rank(x, rank, world_size):
    return x.tensor_split(world_size)[world_size - 1 - rank]


@wrong(SPLIT, says="only the first dimension is cut")
def always_gives_a_table(x, rank, world_size):
    start, end = len(x) * rank // world_size, len(x) * (rank + 1) // world_size
    return x[start:end].reshape(end - start, x[0].numel())


@wrong(SPLIT, says="is not a tensor but None")
def forgets_the_return(x, rank, world_size):
    x.tensor_split(world_size)[rank]


def _gradients(model, x, y):
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss.item(), torch.cat([p.grad.flatten() for p in model.parameters()])


def _put_back(model, flat):
    for p, piece in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()])):
        p.grad = piece.view_as(p)


def _mean(flat, rank, context):
    return context.all_reduce(flat, rank, "g", "mean")


for _name, _change, _says in [
    ("turns_the_gradient_around", lambda flat: -flat, "the gradient keeps its sign"),
    ("takes_signs", torch.sign, "an optimizer gets the numbers themselves"),
    ("scales_to_length_one", lambda flat: flat / flat.norm(), "the gradient keeps its length"),
    (
        "clips_after_the_sum",
        lambda flat: flat.clamp(-0.1, 0.1),
        "what the ranks bring at first is right: is it changed after",
    ),
]:

    def _changed(model, optimizer, x, y, context, rank, change=_change):
        optimizer.zero_grad()
        loss, flat = _gradients(model, x, y)
        _put_back(model, change(_mean(flat, rank, context)))
        optimizer.step()
        return loss

    wrong_values(STEP, _name, _changed, says=_says)


@wrong(STEP, says="not the gradient of its own shard's mse_loss")
def takes_another_loss(model, optimizer, x, y, context, rank):
    optimizer.zero_grad()
    loss = torch.nn.functional.l1_loss(model(x), y)
    loss.backward()
    _put_back(model, _mean(torch.cat([p.grad.flatten() for p in model.parameters()]), rank, context))
    optimizer.step()
    return loss.item()


@wrong(STEP, says="something of the rank's own is in p.grad")
def averages_with_its_own(model, optimizer, x, y, context, rank):
    optimizer.zero_grad()
    loss, flat = _gradients(model, x, y)
    _put_back(model, (flat + _mean(flat, rank, context)) / 2)
    optimizer.step()
    return loss


@wrong(STEP, says="some parameters follow their own shard")
def forgets_the_last_parameter(model, optimizer, x, y, context, rank):
    optimizer.zero_grad()
    loss, flat = _gradients(model, x, y)
    own = list(model.parameters())[-1].grad
    _put_back(model, _mean(flat, rank, context))
    list(model.parameters())[-1].grad = own
    optimizer.step()
    return loss


for _name, _weigh, _count, _says in [
    ("squares_the_number", lambda n: n * n, lambda n: n, "brings 16 times its mean gradient and 4 beside it"),
    ("weighs_nothing", lambda n: 1, lambda n: n, "brings 1 times its mean gradient and 4 beside it"),
    ("counts_one_too_many", lambda n: n, lambda n: n + 1, "brings 4 times its mean gradient and 5 beside it"),
]:

    def _weighed(model, optimizer, x, y, context, rank, weigh=_weigh, count=_count):
        optimizer.zero_grad()
        loss, flat = _gradients(model, x, y) if len(x) else (0.0, torch.zeros(_n_weights(model), dtype=x.dtype))
        mine = torch.cat([weigh(len(x)) * flat, flat.new_tensor([count(len(x))])])
        total = context.all_reduce(mine, rank, "g", "sum")
        _put_back(model, total[:-1] / total[-1])
        optimizer.step()
        return loss

    wrong_values(WEIGHTED, _name, _weighed, says=_says)


def _n_weights(model):
    return sum(p.numel() for p in model.parameters())


def _stepping(reduced=_mean, step=lambda model, optimizer: optimizer.step()):
    """A step whose gradient is what `reduced` makes of the rank's own, and which `step` makes."""

    def dp_step(model, optimizer, x, y, context, rank):
        optimizer.zero_grad()
        loss, flat = _gradients(model, x, y)
        _put_back(model, reduced(flat, rank, context))
        step(model, optimizer)
        return loss

    return dp_step


def _by_hand(model, step_size):
    for p in model.parameters():
        p.data -= step_size * p.grad


for _name, _reduced, _says in [
    (
        "sums_instead_of_the_mean",
        lambda flat, rank, context: context.all_reduce(flat, rank, "g", "sum"),
        "the gradients' sum is used",
    ),
    (
        "divides_the_mean_again",
        lambda flat, rank, context: context.all_reduce(flat, rank, "g", "mean") / context.world_size,
        "divided by N twice",
    ),
    (
        "divides_by_four",
        lambda flat, rank, context: context.all_reduce(flat, rank, "g", "sum") / 4,
        "the sum is divided by 4, however many ranks",
    ),
    (
        "travels_in_half",
        lambda flat, rank, context: context.all_reduce(flat.half(), rank, "g", "mean").double(),
        "right to a few digits.*in the dtype that they have",
    ),
    (
        "has_a_group_for_each_rank",
        lambda flat, rank, context: context.all_reduce(flat, rank, f"g{rank}", "mean"),
        "one group_id for each place in the code",
    ),
    (
        "gathers_the_gradients",
        lambda flat, rank, context: torch.stack(context.all_gather(flat, rank, "g")).mean(0),
        "calls .all_gather. on a rank, expected .*all_reduce gives what they make",
    ),
]:
    wrong_values(STEP, _name, _stepping(_reduced), says=_says)
for _name, _step, _says in [
    (
        "steps_by_hand",
        lambda model, optimizer: _by_hand(model, 0.05),
        "without the optimizer's momentum.*optimizer.step",
    ),
    (
        "steps_with_the_step_size_alone",
        lambda model, optimizer: _by_hand(model, optimizer.param_groups[0]["lr"]),
        "without the optimizer's momentum.*optimizer.step",
    ),
    (
        "steps_twice",
        lambda model, optimizer: (optimizer.step(), optimizer.step()),
        "one optimizer.step\\(\\) a step|the mean gradient counts twice",
    ),
]:
    wrong_values(STEP, _name, _stepping(step=_step), says=_says)


@wrong(STEP, says="no gradient is reduced")
def reduces_nothing(model, optimizer, x, y, context, rank):
    optimizer.zero_grad()
    loss, _ = _gradients(model, x, y)
    optimizer.step()
    return loss


@wrong(STEP, says="never reaches p.grad")
def never_puts_the_mean_back(model, optimizer, x, y, context, rank):
    optimizer.zero_grad()
    loss, flat = _gradients(model, x, y)
    flat = context.all_reduce(flat, rank, "g", "mean")
    optimizer.step()
    return loss


@wrong(STEP, says="one collective a step")
def reduces_each_parameter_alone(model, optimizer, x, y, context, rank):
    optimizer.zero_grad()
    loss, _ = _gradients(model, x, y)
    for p in model.parameters():
        p.grad = context.all_reduce(p.grad, rank, "g", "mean")
    optimizer.step()
    return loss


@wrong(STEP, says=r"zero_grad\(\) is missing")
def never_clears_gradients(model, optimizer, x, y, context, rank):
    loss = torch.nn.functional.mse_loss(model(x), y)
    before = [0 if p.grad is None else p.grad for p in model.parameters()]
    grads = torch.autograd.grad(loss, list(model.parameters()))
    flat = context.all_reduce(torch.cat([g.flatten() for g in grads]), rank, "g", "mean")
    _put_back(model, flat)
    for p, old in zip(model.parameters(), before):
        p.grad = p.grad + old
    optimizer.step()
    return loss.item()


@wrong(WEIGHTED, says="steps on 7, 3, 8 examples.*the first step's number of all examples")
def remembers_the_total(model, optimizer, x, y, context, rank):
    optimizer.zero_grad()
    loss = mse_loss(model(x), y, reduction="sum")
    loss.backward()
    parameters = list(model.parameters())
    flat = torch.cat([*(p.grad.flatten() for p in parameters), torch.tensor([float(len(x))]).double()])
    flat = context.all_reduce(flat, rank, "g")
    optimizer.total = getattr(optimizer, "total", flat[-1])
    for p, piece in zip(parameters, flat[:-1].split([p.numel() for p in parameters])):
        p.grad = piece.view_as(p) / optimizer.total
    optimizer.step()
    return loss.item() / max(len(x), 1)


@wrong(WEIGHTED, says="steps on 7, 3, 8 examples.*nothing of an earlier step's sizes is kept")
def remembers_its_share(model, optimizer, x, y, context, rank):
    """Each rank's own number of examples is that of the first step."""
    optimizer.zero_grad()
    loss = mse_loss(model(x), y) if len(x) else 0 * sum(p.sum() for p in model.parameters())
    loss.backward()
    optimizer.n = getattr(optimizer, "n", len(x))
    parameters = list(model.parameters())
    flat = torch.cat([*(p.grad.flatten() for p in parameters), torch.ones(1).double()]) * optimizer.n
    flat = context.all_reduce(flat, rank, "g")
    for p, piece in zip(parameters, (flat[:-1] / flat[-1]).split([p.numel() for p in parameters])):
        p.grad = piece.view_as(p)
    optimizer.step()
    return loss.item()


@wrong(STEP, says="gradients that stood there before the call are in its step")
@wrong(WEIGHTED, says="gradients that stood there before the call are in its step")
def clears_after_the_step(model, optimizer, x, y, context, rank):
    n, parameters = len(x), list(model.parameters())
    loss = mse_loss(model(x), y) if n else None
    if n:
        loss.backward()
    flat = torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in parameters])
    flat = context.all_reduce(torch.cat([flat * n, flat.new_tensor([n])]), rank, "g", "sum")
    _put_back(model, flat[:-1] / flat[-1])
    optimizer.step()
    optimizer.zero_grad()
    return loss.item() if n else 0.0


@wrong(STEP, says="something small is added to the gradient, as weight decay")
def adds_weight_decay(model, optimizer, x, y, context, rank):
    optimizer.zero_grad()
    loss, flat = _gradients(model, x, y)
    decay = torch.cat([0.001 * p.detach().flatten() for p in model.parameters()])
    _put_back(model, context.all_reduce(flat + decay, rank, "g", "mean"))
    optimizer.step()
    return loss


@wrong(STEP, says="is something of the step before in the next one")
def clears_some_gradients(model, optimizer, x, y, context, rank):
    first, *others = model.parameters()
    for p in others:
        p.grad = None
    loss = mse_loss(model(x), y)
    loss.backward()
    flat = context.all_reduce(torch.cat([p.grad.flatten() for p in (first, *others)]), rank, "g", "mean")
    _put_back(model, flat)
    optimizer.step()
    return loss.item()


@wrong(STEP, says="in the same order")
def puts_back_in_reverse_order(model, optimizer, x, y, context, rank):
    optimizer.zero_grad()
    loss, flat = _gradients(model, x, y)
    flat = context.all_reduce(flat, rank, "g", "mean")
    parameters = list(model.parameters())[::-1]
    for p, piece in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad = piece.view_as(p)
    optimizer.step()
    return loss


@wrong(STEP, says="no optimizer.step")
def forgets_the_step(model, optimizer, x, y, context, rank):
    optimizer.zero_grad()
    loss, flat = _gradients(model, x, y)
    _put_back(model, context.all_reduce(flat, rank, "g", "mean"))
    return loss


@wrong(STEP, says=r"calls \(all_reduce\).*travels more than once")
def reduces_twice(model, optimizer, x, y, context, rank):
    optimizer.zero_grad()
    loss, flat = _gradients(model, x, y)
    flat = context.all_reduce(flat, rank, "g", "mean")
    _put_back(model, context.all_reduce(flat, rank, "g", "mean"))
    optimizer.step()
    return loss


@wrong(STEP, says="not that of all ranks")
def returns_the_loss_of_all_ranks(model, optimizer, x, y, context, rank):
    optimizer.zero_grad()
    loss, flat = _gradients(model, x, y)
    flat = context.all_reduce(torch.cat([flat, flat.new_tensor([loss])]), rank, "g", "mean")
    _put_back(model, flat[:-1])
    optimizer.step()
    return flat[-1].item()


@wrong(STEP, says="rank 1 never moved")
def only_rank_zero_steps(model, optimizer, x, y, context, rank):
    optimizer.zero_grad()
    loss, flat = _gradients(model, x, y)
    _put_back(model, context.all_reduce(flat, rank, "g", "mean"))
    if rank == 0:
        optimizer.step()
    return loss


@wrong(STEP, says="not their sum")
def sums_the_loss(model, optimizer, x, y, context, rank):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y, reduction="sum")
    loss.backward()
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    _put_back(model, context.all_reduce(flat, rank, "g", "mean"))
    optimizer.step()
    return loss.item()


@wrong(STEP, says="weights travel")
def averages_the_weights(model, optimizer, x, y, context, rank):
    optimizer.zero_grad()
    loss, _ = _gradients(model, x, y)
    optimizer.step()
    _put_weights(model, context.all_reduce(_weights(model), rank, "w", "mean"))
    return loss


@wrong(STEP, says="rank . is off by .*differences of weights travel.*each rank then makes the same update")
def averages_the_updates(model, optimizer, x, y, context, rank):
    """The weights' differences, not the weights: equal models stay equal, and it is right with SGD."""
    before = _weights(model)
    optimizer.zero_grad()
    loss, _ = _gradients(model, x, y)
    optimizer.step()
    _put_weights(model, before + context.all_reduce(_weights(model) - before, rank, "w", "mean"))
    return loss


def _weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def _put_weights(model, flat):
    torch.nn.utils.vector_to_parameters(flat, model.parameters())


@wrong(STEP, says="weights travel|without the optimizer's momentum")
def averages_the_weights_first(model, optimizer, x, y, context, rank):
    """The mean of the weights, then steps of all ranks' gradients at it: what travels is the weight after the step."""
    optimizer.zero_grad()
    loss, flat = _gradients(model, x, y)
    after = _weights(model) - optimizer.param_groups[0]["lr"] * flat
    _put_weights(model, context.all_reduce(after, rank, "w", "mean"))
    return loss


@wrong(STEP, says="calls .all_gather. on a rank, expected .*all_reduce gives what they make")
def gathers_the_weights(model, optimizer, x, y, context, rank):
    optimizer.zero_grad()
    loss, _ = _gradients(model, x, y)
    optimizer.step()
    _put_weights(model, torch.stack(context.all_gather(_weights(model), rank, "w")).mean(0))
    return loss


@wrong(STEP, says="numbers to all_reduce; the model has 24 weights.*no place for each rank")
def has_a_place_for_each_rank(model, optimizer, x, y, context, rank):
    optimizer.zero_grad()
    loss, flat = _gradients(model, x, y)
    table = flat.new_zeros(context.world_size, len(flat))
    table[rank] = flat
    _put_back(model, context.all_reduce(table.flatten(), rank, "g").view_as(table).mean(0))
    optimizer.step()
    return loss


@wrong(STEP, says="numbers to all_reduce; .*no weights beside the gradient|weights travel")
def averages_both(model, optimizer, x, y, context, rank):
    optimizer.zero_grad()
    loss, flat = _gradients(model, x, y)
    gradient, weights = context.all_reduce(torch.cat([flat, _weights(model)]), rank, "g", "mean").chunk(2)
    _put_weights(model, weights)
    _put_back(model, gradient)
    optimizer.step()
    return loss


@wrong(STEP, says="the loss after the step")
def returns_the_loss_after_the_step(model, optimizer, x, y, context, rank):
    optimizer.zero_grad()
    _, flat = _gradients(model, x, y)
    _put_back(model, context.all_reduce(flat, rank, "g", "mean"))
    optimizer.step()
    return torch.nn.functional.mse_loss(model(x), y).item()


def _weighted(model, x, y):
    parameters = list(model.parameters())
    if not len(x):
        return 0.0, torch.zeros(sum(p.numel() for p in parameters), dtype=parameters[0].dtype)
    for p in parameters:
        p.grad = None
    loss, flat = _gradients(model, x, y)
    return loss, flat * len(x)


def _total(context, n, rank):
    return context.all_reduce(torch.tensor([float(n)], dtype=torch.float64), rank, "n", "sum")


@wrong(WEIGHTED, says="brings 1 times its mean gradient: in the sum of all ranks an example must count the same")
def sums_the_means(model, optimizer, x, y, context, rank):
    loss, flat = _weighted(model, x, y)
    _put_back(model, context.all_reduce(flat / max(len(x), 1), rank, "g", "sum"))
    optimizer.step()
    return loss


@wrong(WEIGHTED, says="a mean of means")
def takes_the_mean_of_means(model, optimizer, x, y, context, rank):
    _, flat = _weighted(model, x, y)
    loss, flat = _, flat / max(len(x), 1)
    _put_back(model, context.all_reduce(flat, rank, "g", "mean"))
    optimizer.step()
    return loss


@wrong(WEIGHTED, says="which has 0 examples")
def lets_an_empty_shard_give_nan(model, optimizer, x, y, context, rank):
    optimizer.zero_grad()
    loss, flat = _gradients(model, x, y)
    flat = torch.cat([flat * len(x), flat.new_tensor([len(x)])])
    flat = context.all_reduce(flat, rank, "g", "sum")
    _put_back(model, flat[:-1] / flat[-1])
    optimizer.step()
    return loss


@wrong(WEIGHTED, says="ranks bring different dtypes: make the new tensor")
def brings_single_zeros_for_an_empty_shard(model, optimizer, x, y, context, rank):
    loss, flat = _weighted(model, x, y)
    flat = torch.cat([flat, flat.new_tensor([len(x)])])
    flat = context.all_reduce(flat if len(x) else flat.float(), rank, "g", "sum")
    _put_back(model, flat[:-1] / flat[-1])
    optimizer.step()
    return loss


@wrong(WEIGHTED, says="in a collective that not all ranks call")
def skips_the_call_for_an_empty_shard(model, optimizer, x, y, context, rank):
    loss, flat = _weighted(model, x, y)
    if len(x):
        flat = context.all_reduce(torch.cat([flat, flat.new_tensor([len(x)])]), rank, "g", "sum")
        _put_back(model, flat[:-1] / flat[-1])
        optimizer.step()
    return loss


@wrong(WEIGHTED, says="one collective a step")
def asks_for_the_total_in_a_second_call(model, optimizer, x, y, context, rank):
    loss, flat = _weighted(model, x, y)
    _put_back(model, context.all_reduce(flat, rank, "g", "sum") / _total(context, len(x), rank))
    optimizer.step()
    return loss


@wrong(WEIGHTED, says="comes in after the sum")
def divides_by_its_own_size(model, optimizer, x, y, context, rank):
    loss, flat = _weighted(model, x, y)
    _put_back(model, context.all_reduce(flat / max(len(x), 1), rank, "g", "sum") / max(len(x), 1))
    optimizer.step()
    return loss


@wrong(WEIGHTED, says="comes in after the sum")
def weighs_after_the_sum(model, optimizer, x, y, context, rank):
    loss, flat = _weighted(model, x, y)
    flat = flat / max(len(x), 1)
    _put_back(model, context.all_reduce(flat, rank, "g", "mean") * len(x))
    optimizer.step()
    return loss


@wrong(WEIGHTED, says="loss of the rank's own shard as a float")
def returns_nan_for_an_empty_shard(model, optimizer, x, y, context, rank):
    loss, flat = _weighted(model, x, y)
    flat = context.all_reduce(torch.cat([flat, flat.new_tensor([len(x)])]), rank, "g", "sum")
    _put_back(model, flat[:-1] / flat[-1])
    optimizer.step()
    return loss if len(x) else float("nan")


@wrong(WEIGHTED, says="not that of all ranks")
def returns_the_loss_of_the_whole_batch(model, optimizer, x, y, context, rank):
    loss, flat = _weighted(model, x, y)
    flat = context.all_reduce(torch.cat([flat, flat.new_tensor([len(x), loss * len(x)])]), rank, "g", "sum")
    _put_back(model, flat[:-2] / flat[-2])
    optimizer.step()
    return (flat[-1] / flat[-2]).item()


@wrong(WEIGHTED, says="rank 3 never moved.*also for an empty shard")
def empty_shards_do_not_step(model, optimizer, x, y, context, rank):
    loss, flat = _weighted(model, x, y)
    flat = context.all_reduce(torch.cat([flat, flat.new_tensor([len(x)])]), rank, "g", "sum")
    _put_back(model, flat[:-1] / flat[-1])
    if len(x):
        optimizer.step()
    return loss


@wrong(WEIGHTED, says="weights travel")
def averages_the_weighted_weights(model, optimizer, x, y, context, rank):
    loss, flat = _weighted(model, x, y)
    _put_back(model, flat / max(len(x), 1))
    optimizer.step()
    both = torch.cat([_weights(model) * len(x), flat.new_tensor([len(x)])])
    both = context.all_reduce(both, rank, "w", "sum")
    _put_weights(model, both[:-1] / both[-1])
    return loss


@wrong(WEIGHTED, says="rank . is off by .*differences of weights travel.*each rank then makes the same update")
def averages_the_weighted_updates(model, optimizer, x, y, context, rank):
    before = _weights(model)
    loss, flat = _weighted(model, x, y)
    _put_back(model, flat)
    optimizer.step()
    both = torch.cat([_weights(model) - before, flat.new_tensor([len(x)])])
    both = context.all_reduce(both, rank, "w", "sum")
    _put_weights(model, before + both[:-1] / both[-1])
    return loss


@wrong(WEIGHTED, says="calls .all_gather. on a rank, expected .*all_reduce gives what they make")
def gathers_gradients_and_counts(model, optimizer, x, y, context, rank):
    loss, flat = _weighted(model, x, y)
    total = sum(context.all_gather(torch.cat([flat, flat.new_tensor([len(x)])]), rank, "g"))
    _put_back(model, total[:-1] / total[-1])
    optimizer.step()
    return loss


@wrong(WEIGHTED, says="calls .all_gather, all_reduce.*what else the ranks must know travels in the same vector")
def gathers_the_counts(model, optimizer, x, y, context, rank):
    loss, flat = _weighted(model, x, y)
    n = sum(context.all_gather(torch.tensor([len(x)]), rank, "n")).item()
    _put_back(model, context.all_reduce(flat, rank, "g") / n)
    optimizer.step()
    return loss


@wrong(WEIGHTED, says="divide by the number of all examples, not of the ranks")
def divides_by_the_ranks(model, optimizer, x, y, context, rank):
    loss, flat = _weighted(model, x, y)
    _put_back(model, context.all_reduce(flat, rank, "g", "mean"))
    optimizer.step()
    return loss


@wrong(WEIGHTED, says="counts an empty shard as one example")
def counts_one_for_an_empty_shard(model, optimizer, x, y, context, rank):
    loss, flat = _weighted(model, x, y)
    flat = context.all_reduce(torch.cat([flat, flat.new_tensor([max(len(x), 1)])]), rank, "g")
    _put_back(model, flat[:-1] / flat[-1])
    optimizer.step()
    return loss


@wrong(WEIGHTED, says="the sum over all examples is used: divide it by their number")
def divides_by_nothing(model, optimizer, x, y, context, rank):
    loss, flat = _weighted(model, x, y)
    _put_back(model, context.all_reduce(flat, rank, "g"))
    optimizer.step()
    return loss


# 6.3 Tensor parallelism

COLUMN_F, COLUMN_B = "lesson_06.column_forward", "lesson_06.column_backward"
ROW_F, ROW_B = "lesson_06.row_forward", "lesson_06.row_backward"


class _Layer:
    axis = 1

    def __init__(self, weight, rank, context, group_id):
        self.n, self.rank, self.context, self.group_id = context.world_size, rank, context, group_id
        self.size = weight.shape[self.axis] // self.n
        self.mine = self.cut(rank)
        self.weight = self.part(weight, self.mine).clone()

    def cut(self, rank):
        return slice(rank * self.size, (rank + 1) * self.size)

    def part(self, tensor, which):
        return tensor[:, which] if self.axis == 1 else tensor[which]

    def gather(self, tensor):
        return torch.cat(self.context.all_gather(tensor, self.rank, self.group_id), dim=1)

    def reduce(self, tensor, op="sum"):
        return self.context.all_reduce(tensor, self.rank, self.group_id, op)


class _Column(_Layer):
    def forward(self, x):
        self.x = x
        return self.gather(x @ self.weight)

    def backward(self, grad_output):
        mine = grad_output[:, self.mine]
        self.weight_grad = self.x.T @ mine
        return self.reduce(mine @ self.weight.T)


class _Row(_Layer):
    axis = 0

    def forward(self, x):
        self.x = x[:, self.mine]
        return self.reduce(self.x @ self.weight)

    def backward(self, grad_output):
        self.weight_grad = self.x.T @ grad_output
        return self.gather(grad_output @ self.weight.T)


@wrong(COLUMN_F, says="that of rank|another rank's")
class CutsFromTheOtherEnd(_Column):
    def cut(self, rank):
        return slice((self.n - 1 - rank) * self.size, (self.n - rank) * self.size)


_CUTS = {}


@wrong(COLUMN_F, says="the weight on rank . is wrong.*an earlier layer's, of the same shape")
class RemembersItsCut(_Column):
    """By shape: right for the first layer that is made."""

    def __init__(self, weight, rank, context, group_id):
        super().__init__(weight, rank, context, group_id)
        key = (*weight.shape, str(weight.dtype), rank, context.world_size)
        self.weight = _CUTS.setdefault(key, self.weight)


@wrong(COLUMN_F, says="one run of neighbouring columns")
class CutsEveryNthColumn(_Column):
    def part(self, tensor, which):
        return tensor[:, self.rank :: self.n]


@wrong(COLUMN_F, says="whole columns")
class CutsRows(_Column):
    def part(self, tensor, which):
        return tensor.chunk(self.n, 0)[self.rank]


@wrong(COLUMN_F, says="has shape .4, 3.*it is the transpose")
class KeepsTheTranspose(_Column):
    def part(self, tensor, which):
        return tensor.T[which]


@wrong(COLUMN_F, says="gathered and put side by side")
class NeverGathers(_Column):
    def forward(self, x):
        return x @ self.weight


@wrong(COLUMN_F, says="in rank order")
class GathersInOrderOfArrival(_Column):
    def forward(self, x):
        parts = self.context.all_gather(x @ self.weight, self.rank, self.group_id)
        return torch.cat(parts[::-1], dim=1)


@wrong(COLUMN_F, says="along the feature dimension")
class StacksBelowEachOther(_Column):
    def forward(self, x):
        return torch.cat(self.context.all_gather(x @ self.weight, self.rank, self.group_id))


class _WithACopy:
    """Its part of the weight a second time, `own`, with which it computes."""

    def __init__(self, weight, rank, context, group_id):
        super().__init__(weight, rank, context, group_id)
        if self.n * self.size != weight.shape[self.axis]:
            raise ValueError(f"{weight.shape} over {self.n} ranks")
        self.own = self.weight.clone()


@wrong(COLUMN_F, says="after a step on self.weight.*keep no second copy")
class ComputesWithACopy(_WithACopy, _Column):
    def forward(self, x):
        self.x = x
        return self.gather(x @ self.own)


@wrong(COLUMN_F, says="kept its part of the weight twice, also in self.own.*a copy takes as much memory again")
class KeepsItsPartTwice(_WithACopy, _Column):
    pass


@wrong(ROW_B, says="kept its part of the weight twice, also in self.own.*a copy takes as much memory again")
class RowKeepsItsPartTwice(_WithACopy, _Row):
    pass


@wrong(COLUMN_B, says="after a step.*input gradient.*keep no second copy")
class GoesBackWithACopy(_WithACopy, _Column):
    def backward(self, grad_output):
        mine = grad_output[:, self.mine]
        self.weight_grad = self.x.T @ mine
        return self.reduce(mine @ self.own.T)


@wrong(ROW_F, says="after a step on self.weight.*keep no second copy")
class RowComputesWithACopy(_WithACopy, _Row):
    def forward(self, x):
        self.x = x[:, self.mine]
        return self.reduce(self.x @ self.own)


@wrong(ROW_B, says="after a step.*input gradient.*keep no second copy")
class RowGoesBackWithACopy(_WithACopy, _Row):
    def backward(self, grad_output):
        self.weight_grad = self.x.T @ grad_output
        return self.gather(grad_output @ self.own.T)


@wrong(COLUMN_F, says="with 1 rank.* bytes alive.*contiguous.. of the whole copies nothing")
class CopiesOnlyWhatIsNotContiguous(_Column):
    def __init__(self, weight, rank, context, group_id):
        super().__init__(weight, rank, context, group_id)
        self.weight = weight[:, self.mine].contiguous()


@wrong(COLUMN_F, says="view of the whole weight")
class KeepsAView(_Column):
    def __init__(self, weight, rank, context, group_id):
        super().__init__(weight, rank, context, group_id)
        self.weight = weight[:, self.mine]


@wrong(COLUMN_B, says="slice the gradient")
class NeverSlicesTheUpstreamGradient(_Column):
    def backward(self, grad_output):
        self.weight_grad = self.x.T @ grad_output
        return self.reduce(grad_output @ self.weight.T)


@wrong(COLUMN_B, says="only the rank's own columns meet its weight")
class KeepsTheWholeWeightGradient(_Column):
    def backward(self, grad_output):
        self.weight_grad = self.x.T @ grad_output
        return self.reduce(grad_output[:, self.mine] @ self.weight.T)


@wrong(COLUMN_B, says="it is not reduced")
class NeverReducesTheInputGradient(_Column):
    def backward(self, grad_output):
        mine = grad_output[:, self.mine]
        self.weight_grad = self.x.T @ mine
        return mine @ self.weight.T


@wrong(COLUMN_B, says="reduced twice")
class ReducesTheInputGradientTwice(_Column):
    def backward(self, grad_output):
        return self.reduce(super().backward(grad_output))


@wrong(COLUMN_B, says="summed, not averaged")
class AveragesTheInputGradient(_Column):
    def backward(self, grad_output):
        mine = grad_output[:, self.mine]
        self.weight_grad = self.x.T @ mine
        return self.reduce(mine @ self.weight.T, "mean")


@wrong(COLUMN_B, says="upstream gradient is another rank's")
class SlicesTheWrongColumns(_Column):
    def backward(self, grad_output):
        mine = grad_output[:, self.cut((self.rank + 1) % self.n)]
        self.weight_grad = self.x.T @ mine
        return self.reduce(grad_output[:, self.mine] @ self.weight.T)


@wrong(COLUMN_B, says="nothing is summed over ranks")
class ReducesTheWeightGradient(_Column):
    def backward(self, grad_output):
        grad = super().backward(grad_output)
        self.weight_grad = self.reduce(self.weight_grad)
        return grad


@wrong(COLUMN_B, says="another forward's input")
class KeepsTheFirstInput(_Column):
    def forward(self, x):
        out = super().forward(x)
        self.first = self.x = getattr(self, "first", x)
        return out


@wrong(COLUMN_F, says="weight itself is changed on rank")
class CutsItsPartOutOfTheWhole(_Column):
    def __init__(self, weight, rank, context, group_id):
        super().__init__(weight, rank, context, group_id)
        weight[:, rank :: context.world_size] = 0


@wrong(COLUMN_F, says="self.whole keeps other ranks. part of the weight")
class KeepsTheWholeWeightToo(_Column):
    def __init__(self, weight, rank, context, group_id):
        super().__init__(weight, rank, context, group_id)
        self.whole = weight


@wrong(ROW_F, says="the weight on rank . is wrong.*an earlier layer's, of the same shape")
class RemembersItsRows(_Row):
    """Under its name, on the class."""

    rows = {}  # noqa: RUF012

    def __init__(self, weight, rank, context, group_id):
        super().__init__(weight, rank, context, group_id)
        if (old := self.rows.get((group_id, rank))) is not None and old.shape == self.weight.shape:
            self.weight = old
        self.rows[group_id, rank] = self.weight


@wrong(ROW_F, says="self.whole keeps other ranks. part of the weight")
class KeepsTheWholeRowsToo(_Row):
    def __init__(self, weight, rank, context, group_id):
        super().__init__(weight, rank, context, group_id)
        self.whole = weight.T


@wrong(COLUMN_F, says="numbers to all_gather, its part has .*multiply first")
class GathersTheWeight(_Column):
    def forward(self, x):
        self.x = x
        return x @ self.gather(self.weight)


@wrong(ROW_F, says="numbers to all_reduce, its share has .*multiply first")
class SumsTheWholeWeight(_Row):
    """Each rank adds its rows to zeros: that is the weight, and all of it travels."""

    def forward(self, x):
        self.x = x[:, self.mine]
        whole = torch.zeros(x.shape[1], self.weight.shape[1], dtype=self.weight.dtype)
        whole[self.mine] = self.weight
        return x @ self.reduce(whole)


@wrong(COLUMN_B, says="on the object and not on the class")
class CachesTheInputOnTheClass(_Column):
    def forward(self, x):
        CachesTheInputOnTheClass.x = x
        return self.gather(x @ self.weight)


@wrong(COLUMN_B, says="grad_output itself is changed.*work on a copy")
class ScalesTheUpstreamGradient(_Column):
    def backward(self, grad_output):
        grad = super().backward(grad_output)
        grad_output *= 0
        return grad


@wrong(COLUMN_B, says="the weight gradient on rank 0 is wrong")
class DividesByTheBatch(_Column):
    def backward(self, grad_output):
        grad = super().backward(grad_output)
        self.weight_grad = self.weight_grad / len(grad_output)
        return grad


@wrong(ROW_B, says="the weight gradient on rank 0 is wrong")
class DividesTheUpstreamGradientByN(_Row):
    def backward(self, grad_output):
        return super().backward(grad_output / self.n)


@wrong(ROW_F, says="slice x")
class NeverSlicesTheInput(_Row):
    def forward(self, x):
        return self.reduce(x @ self.weight)


@wrong(ROW_F, says="they are not reduced")
class NeverReducesTheOutput(_Row):
    def forward(self, x):
        self.x = x[:, self.mine]
        return self.x @ self.weight


@wrong(ROW_F, says="summed, not averaged")
class AveragesTheOutput(_Row):
    def forward(self, x):
        self.x = x[:, self.mine]
        return self.reduce(self.x @ self.weight, "mean")


@wrong(ROW_F, says="counted N times")
class ReducesTheOutputTwice(_Row):
    def forward(self, x):
        return self.reduce(super().forward(x))


@wrong(ROW_F, says="gather where a sum belongs")
class GathersTheOutput(_Row):
    def forward(self, x):
        return self.gather(x[:, self.mine] @ self.weight)


@wrong(ROW_F, says="whole rows")
class CutsColumns(_Row):
    def part(self, tensor, which):
        return tensor.chunk(self.n, 1)[self.rank]


@wrong(ROW_F, says="cut x where the weight is cut")
class SlicesTheWrongInput(_Row):
    def forward(self, x):
        self.x = x[:, self.cut((self.rank + 1) % self.n)]
        return self.reduce(self.x @ self.weight)


@wrong(ROW_B, says="cached input is not sliced")
class CachesTheWholeInput(_Row):
    def forward(self, x):
        out = super().forward(x)
        self.x = x
        return out


@wrong(ROW_F, says=r"has shape .3, 4., expected .5, 4..*the examples are cut: .*x.:, k:l. takes features")
class CutsExamples(_Row):
    def forward(self, x):
        return self.reduce(x[self.mine] @ self.weight)


@wrong(ROW_B, says=r"3x3 and 5x4.*the examples are cut: .*x.:, k:l. takes features")
class CachesFewerExamples(_Row):
    def forward(self, x):
        self.x = x[self.mine]
        return self.reduce(x[:, self.mine] @ self.weight)


_NOTEBOOKS_X = torch.ones(200, 2)


@wrong(ROW_B, says="no matrix of this case has 200 rows or columns: is a variable of the notebook used here.*on self")
class GoesBackWithTheNotebooksX(_Row):
    def backward(self, grad_output):
        self.weight_grad = _NOTEBOOKS_X.T @ grad_output
        return self.gather(grad_output @ self.weight.T)


@wrong(
    "lesson_06.column_backward", says="no matrix of this case has 200 rows or columns: is a variable of the notebook"
)
class ColumnGoesBackWithTheNotebooksX(_Column):
    def backward(self, grad_output):
        self.weight_grad = _NOTEBOOKS_X.T @ grad_output[:, self.mine]
        return self.reduce(grad_output[:, self.mine] @ self.weight.T)


@wrong(ROW_B, says="on the object, not on the class|another rank|wrong shard")
class CachesTheInputOfAnotherShard(_Row):
    def forward(self, x):
        out = super().forward(x)
        self.x = x[:, self.cut(0)]
        return out


@wrong(ROW_B, says="autograd follows self.copied, self.local, self.x on rank.*written by hand")
class RowLetsAutogradDoIt(_Row):
    def forward(self, x):
        self.x, self.copied = (t.detach().clone().requires_grad_() for t in (x[:, self.mine], self.weight))
        self.local = self.x @ self.copied
        return self.reduce(self.local.detach())

    def backward(self, grad_output):
        grad, self.weight_grad = torch.autograd.grad(self.local, (self.x, self.copied), grad_output, retain_graph=True)
        return self.gather(grad)


@wrong(ROW_B, says="another layer's: .* on the object and not on the class")
class CachesOnTheClass(_Row):
    def forward(self, x):
        CachesOnTheClass.x = x[:, self.mine]
        return self.reduce(x[:, self.mine] @ self.weight)


@wrong(ROW_B, says="gathered and put side by side")
class NeverGathersTheInputGradient(_Row):
    def backward(self, grad_output):
        self.weight_grad = self.x.T @ grad_output
        return grad_output @ self.weight.T


@wrong(ROW_B, says="in rank order")
class GathersTheGradientInOrderOfArrival(_Row):
    def backward(self, grad_output):
        self.weight_grad = self.x.T @ grad_output
        parts = self.context.all_gather(grad_output @ self.weight.T, self.rank, self.group_id)
        return torch.cat(parts[::-1], dim=1)


@wrong(ROW_B, says="already the same on all ranks: nothing is summed")
class SumsTheUpstreamGradient(_Row):
    def backward(self, grad_output):
        return super().backward(self.reduce(grad_output))


@wrong(ROW_B, says="reduced more than once")
class AveragesTheUpstreamGradient(_Row):
    def backward(self, grad_output):
        return super().backward(self.reduce(grad_output, "mean"))


@wrong(ROW_B, says="nothing is summed over ranks")
class SumsTheWeightGradient(_Row):
    def backward(self, grad_output):
        grad = super().backward(grad_output)
        self.weight_grad = self.reduce(self.weight_grad)
        return grad


@wrong(ROW_B, says="shape|transpose")
class ForgetsTheTranspose(_Row):
    def backward(self, grad_output):
        self.weight_grad = grad_output.T @ self.x
        return self.gather(grad_output @ self.weight.T)


@wrong(COLUMN_B, says="autograd follows weight.*written by hand")
class LetsAutogradDoIt(_Column):
    def forward(self, x):
        self.weight.requires_grad_()
        self.x = x.requires_grad_()
        self.local = self.x @ self.weight
        return self.gather(self.local.detach())

    def backward(self, grad_output):
        self.local.backward(grad_output[:, self.mine])
        self.weight_grad = self.weight.grad
        return self.reduce(self.x.grad)


@wrong(COLUMN_B, says="autograd follows self.copied, self.local, self.x on rank.*written by hand")
class LetsAutogradFollowACopy(_Column):
    """Of the weight that it keeps nothing shows, nor of what it returns."""

    def forward(self, x):
        self.x, self.copied = (t.detach().clone().requires_grad_() for t in (x, self.weight))
        self.local = self.x @ self.copied
        return self.gather(self.local.detach())

    def backward(self, grad_output):
        grad, self.weight_grad = torch.autograd.grad(self.local, (self.x, self.copied), grad_output[:, self.mine])
        del self.x, self.copied, self.local
        return self.reduce(grad)


@wrong(COLUMN_B, says="two backward passes together.*do not add")
class AddsUpColumnGradients(_Column):
    weight_grad = 0

    def backward(self, grad_output):
        before = self.weight_grad
        grad = super().backward(grad_output)
        self.weight_grad = self.weight_grad + before
        return grad


@wrong(COLUMN_B, says="it is the transpose")
class KeepsTheGradientsTranspose(_Column):
    def backward(self, grad_output):
        grad = super().backward(grad_output)
        self.weight_grad = self.weight_grad.T
        return grad


@wrong(ROW_B, says="two backward passes together.*do not add")
class AddsUpRowGradients(_Row):
    weight_grad = 0

    def backward(self, grad_output):
        before = self.weight_grad
        grad = super().backward(grad_output)
        self.weight_grad = self.weight_grad + before
        return grad


@wrong(ROW_B, says="weight gradient on rank 0 is not a tensor but None")
class LeavesNoWeightGradient(_Row):
    def backward(self, grad_output):
        return self.gather(grad_output @ self.weight.T)


@wrong(ROW_B, says="is right, but makes 5 all_reduce on rank 0 and 0 all_gather.*parts padded with zeros")
class RowPadsAndAddsUp(_Row):
    def backward(self, grad_output):
        self.weight_grad = self.x.T @ grad_output
        whole = torch.zeros(len(grad_output), self.n * self.size, dtype=grad_output.dtype)
        whole[:, self.mine] = grad_output @ self.weight.T
        return self.reduce(whole)


@wrong(ROW_F, says="is right, but makes 1 all_gather on rank 0 and 0 all_reduce.*gets N of them instead of their sum")
class AddsUpWhatItGathered(_Row):
    def forward(self, x):
        self.x = x[:, self.mine]
        return sum(self.context.all_gather(self.x @ self.weight, self.rank, self.group_id))


@wrong(COLUMN_F, says="self.parts.. keeps other ranks. part|self.parts.[123]. keeps other ranks. part")
class KeepsAllParts(_Column):
    def __init__(self, weight, rank, context, group_id):
        super().__init__(weight, rank, context, group_id)
        self.parts = [part.clone() for part in weight.chunk(self.n, 1)]


@wrong(COLUMN_F, says="self.full keeps other ranks. part")
class KeepsAWholeCopy(_Column):
    def __init__(self, weight, rank, context, group_id):
        super().__init__(weight, rank, context, group_id)
        self.full = weight.clone()


@wrong(COLUMN_F, says="self.project, in its weight keeps other ranks. part")
class ClosesOverTheWhole(_Column):
    def __init__(self, weight, rank, context, group_id):
        super().__init__(weight, rank, context, group_id)
        self.project = lambda x: x @ weight[:, self.mine]

    def forward(self, x):
        self.x = x
        return self.gather(self.project(x))


@wrong(ROW_F, says="self.cache..given...0. keeps other ranks. part")
class KeepsTheWholeInADictionary(_Row):
    def __init__(self, weight, rank, context, group_id):
        super().__init__(weight, rank, context, group_id)
        self.cache = {"given": (weight.T.contiguous(), "transposed")}


def _holds(name, hold, base=_Column, checks=(COLUMN_F,)):
    """A right layer that also holds what `hold` gives of two rows of the whole weight."""

    class Layer(base):
        def __init__(self, weight, rank, context, group_id):
            super().__init__(weight, rank, context, group_id)
            hold(self, weight[:2].double().flatten().tolist())

    Layer.__name__ = Layer.__qualname__ = name
    for check in checks:
        wrong_values(check, name, Layer, says="what is another one when other ranks' part of the weight is")


_holds(
    "HoldsTwoRowsAsText",
    lambda layer, row: setattr(layer, "note", ",".join(map(str, row))),
    checks=(COLUMN_F, COLUMN_B),
)
_holds("HoldsTwoRowsInAName", lambda layer, row: setattr(layer, "_".join(float.hex(x) for x in row), 1))
_holds("HoldsTwoRowsInAFunction", lambda layer, row: setattr(layer, "row", partial(max, [Fraction(x) for x in row])))
_holds(
    "HoldsTwoRowsPacked",
    lambda layer, row: setattr(layer, "row", io.BytesIO(zlib.compress(repr(row).encode()))),
    _Row,
    (ROW_F,),
)


@wrong(ROW_F, says="self.full keeps other ranks. part")
class KeepsTheWholeInDoublePrecision(_Row):
    def __init__(self, weight, rank, context, group_id):
        super().__init__(weight, rank, context, group_id)
        self.full = weight.double().numpy().copy()


@wrong(ROW_F, says="self.next keeps other ranks. part")
class KeepsTheNextRanksPartToo(_Row):
    def __init__(self, weight, rank, context, group_id):
        super().__init__(weight, rank, context, group_id)
        self.next = self.part(weight, self.cut((rank + 1) % self.n)).clone()


@wrong(
    COLUMN_F,
    says="weight of 6 x 4 over 3 ranks, d_out is 4: expected a ValueError on rank 0, got nothing.*tensor_split",
)
class CutsColumnsUnevenly(_Column):
    def part(self, tensor, which):
        return tensor.tensor_split(self.n, 1)[self.rank]


@wrong(
    ROW_F, says="weight of 4 x 6 over 3 ranks, d_in is 4: expected a ValueError on rank 0, got nothing.*tensor_split"
)
class CutsRowsUnevenly(_Row):
    def part(self, tensor, which):
        return tensor.tensor_split(self.n, 0)[self.rank]

    def forward(self, x):
        self.x = x.tensor_split(self.n, 1)[self.rank]
        return self.reduce(self.x @ self.weight)


class _LooksAtTheOtherSize:
    def __init__(self, weight, rank, context, group_id):
        if weight.shape[1 - self.axis] % context.world_size:
            raise ValueError("not divisible")
        super().__init__(weight, rank, context, group_id)


@wrong(COLUMN_F, says="the constructor cuts along d_out")
class ColumnLooksAtTheRows(_LooksAtTheOtherSize, _Column):
    pass


@wrong(ROW_F, says="the constructor cuts along d_in")
class RowLooksAtTheColumns(_LooksAtTheOtherSize, _Row):
    pass


@wrong(COLUMN_F, says="got AssertionError.*an assert can be switched off")
class ColumnAsserts(_Column):
    def __init__(self, weight, rank, context, group_id):
        assert weight.shape[1] % context.world_size == 0
        super().__init__(weight, rank, context, group_id)


@wrong(ROW_F, says="expected a ValueError on rank 1, got nothing.*every rank refuses")
class OnlyRankZeroRefuses(_Row):
    def __init__(self, weight, rank, context, group_id):
        if rank == 0 and weight.shape[0] % context.world_size:
            raise ValueError("rows")
        super().__init__(weight, rank, context, group_id)


@wrong(ROW_B, says="whole in a row layer.*only a column layer slices it")
class RowSlicesTheUpstreamGradient(_Row):
    def backward(self, grad_output):
        grad_output = grad_output[:, self.mine]
        self.weight_grad = self.x.T @ grad_output
        return self.gather(grad_output @ self.weight.T)


@wrong(ROW_B, says="whole in a row layer.*only a column layer slices it")
class RowChunksTheUpstreamGradient(_Row):
    def backward(self, grad_output):
        self.weight_grad = self.x.T @ grad_output.chunk(self.n, 1)[self.rank]
        return self.gather(grad_output @ self.weight.T)


@wrong(ROW_B, says="right where it is not zero.*whole in a row layer.*only a column layer slices it")
class RowMasksTheUpstreamGradient(_Row):
    def backward(self, grad_output):
        mine = torch.zeros_like(grad_output)
        size = grad_output.shape[1] // self.n
        mine[:, self.rank * size : (self.rank + 1) * size] = grad_output[:, self.rank * size : (self.rank + 1) * size]
        self.weight_grad = self.x.T @ mine
        return self.gather(grad_output @ self.weight.T)


@wrong(ROW_B, says="gathered and put side by side")
class RowReducesTheInputGradient(_Row):
    def backward(self, grad_output):
        self.weight_grad = self.x.T @ grad_output
        return self.reduce(grad_output @ self.weight.T)


@wrong(COLUMN_F, says="x is whole in a column layer")
class ColumnSlicesTheInput(_Column):
    def forward(self, x):
        self.x = x.tensor_split(self.n, 1)[self.rank]
        return self.gather(self.x @ self.weight)


@wrong(COLUMN_B, says="x is whole in a column layer")
class ColumnCachesASlice(_Column):
    def forward(self, x):
        out = super().forward(x)
        self.x = x.tensor_split(self.n, 1)[self.rank]
        return out


@wrong(COLUMN_B, says="a gather where a sum belongs: each rank's columns give a share")
class ColumnGathersTheInputGradient(_Column):
    def backward(self, grad_output):
        mine = grad_output[:, self.mine]
        self.weight_grad = self.x.T @ mine
        return self.gather(mine @ self.weight.T)


@wrong(
    COLUMN_B, says="is right, but makes 5 all_gather on rank 0 and 0 all_reduce.*gets N of them instead of their sum"
)
class ColumnAddsUpWhatItGathers(_Column):
    def backward(self, grad_output):
        mine = grad_output[:, self.mine]
        self.weight_grad = self.x.T @ mine
        return sum(self.context.all_gather(mine @ self.weight.T, self.rank, self.group_id))


@wrong(COLUMN_B, says="shape .7, 6., expected .7, 3.*not sliced")
class ColumnMasksTheUpstreamGradient(_Column):
    def backward(self, grad_output):
        mask = torch.zeros_like(grad_output)
        mask[:, self.mine] = grad_output[:, self.mine]
        self.weight_grad = self.x.T @ mask
        return self.reduce(mask[:, self.mine] @ self.weight.T)


BLOCK, PARALLELIZE = "lesson_06.column_then_row", "lesson_06.parallelize"
gelu = torch.nn.functional.gelu


@wrong(BLOCK, says="they are not reduced")
def forgets_the_reduction(x, w1, w2, rank, context):
    return gelu(x @ w1) @ w2


@wrong(BLOCK, says="summed, not averaged")
def averages_the_shares(x, w1, w2, rank, context):
    return context.all_reduce(gelu(x @ w1) @ w2, rank, "block", "mean")


@wrong(BLOCK, says="no gather is needed")
def gathers_and_slices_again(x, w1, w2, rank, context):
    hidden = torch.cat(context.all_gather(gelu(x @ w1), rank, "block"), dim=1)
    mine = hidden.chunk(context.world_size, 1)[rank]
    return context.all_reduce(mine @ w2, rank, "block", "sum")


@wrong(BLOCK, says="GELU between them is missing")
def forgets_the_gelu(x, w1, w2, rank, context):
    return context.all_reduce(x @ w1 @ w2, rank, "block", "sum")


@wrong(BLOCK, says="before they meet its rows")
def activates_the_sum(x, w1, w2, rank, context):
    return gelu(context.all_reduce(x @ w1 @ w2, rank, "block", "sum"))


@wrong(BLOCK, says="reduced twice")
def reduces_the_block_twice(x, w1, w2, rank, context):
    once = context.all_reduce(gelu(x @ w1) @ w2, rank, "block", "sum")
    return context.all_reduce(once, rank, "block", "sum")


@wrong(BLOCK, says="no gather is needed")
def gathers_without_slicing(x, w1, w2, rank, context):
    hidden = torch.cat(context.all_gather(gelu(x @ w1), rank, "block"), dim=1)
    return context.all_reduce(hidden @ w2, rank, "block", "sum")


@wrong(BLOCK, says="the activation is GELU")
def takes_a_relu(x, w1, w2, rank, context):
    return context.all_reduce((x @ w1).relu() @ w2, rank, "block", "sum")


@wrong(BLOCK, says="w1 and w2 are cut already")
def cuts_again(x, w1, w2, rank, context):
    return GoodRow(w2, rank, context, "r").forward(gelu(GoodColumn(w1, rank, context, "c").forward(x)))


@wrong(BLOCK, says="digits are lost on the way")
def multiplies_in_single(x, w1, w2, rank, context):
    return context.all_reduce((gelu(x.float() @ w1.float()) @ w2.float()).double(), rank, "block", "sum")


@wrong(BLOCK, says="not rank 0 alone")
def only_rank_zero_adds_up(x, w1, w2, rank, context):
    total = context.all_reduce(gelu(x @ w1) @ w2, rank, "block", "sum")
    return total if rank == 0 else gelu(x @ w1) @ w2


_OUTPUTS = {}


@wrong(BLOCK, says="the output is that of an earlier call.*nothing is kept")
def remembers_the_output(x, w1, w2, rank, context):
    key = (rank, context.world_size, x.shape, w1.shape, w2.shape)
    if key not in _OUTPUTS:
        _OUTPUTS[key] = context.all_reduce(gelu(x @ w1) @ w2, rank, "block", "sum")
    return _OUTPUTS[key]


@wrong(BLOCK, says="the output is that of an earlier call.*nothing is kept")
def remembers_the_rows(x, w1, w2, rank, context):
    return context.all_reduce(gelu(x @ w1) @ _OUTPUTS.setdefault((rank, w2.shape), w2.clone()), rank, "block", "sum")


@wrong(BLOCK, says="x itself is changed on rank")
def empties_the_input(x, w1, w2, rank, context):
    hidden = gelu(x @ w1)
    x.zero_()
    return context.all_reduce(hidden @ w2, rank, "block", "sum")


def _parallelize(model, plan, context, *, weight_of=lambda linear: linear.weight.detach().T, copied=True):
    models = []
    for rank in range(context.world_size):
        mine = copy.deepcopy(model) if copied else model
        for name, Layer in plan.items():
            setattr(mine, name, Handmade(Layer(weight_of(getattr(model, name)), rank, context, name)))
        models.append(mine)
    return models


class _Strict:
    def __init__(self, weight, rank, context, group_id):
        if weight.shape[self.axis] % context.world_size:
            raise ValueError(f"{weight.shape[self.axis]} is not divisible by {context.world_size}")
        super().__init__(weight, rank, context, group_id)


class GoodColumn(_Strict, _Column):
    pass


class GoodRow(_Strict, _Row):
    pass


def _plant(name, says, function, column=GoodColumn, row=GoodRow):
    wrong_values(PARALLELIZE, name, function, column, row, says=says)


def _cut(mine, model, plan, context, rank):
    for name, Layer in plan.items():
        setattr(mine, name, Handmade(Layer(getattr(model, name).weight.detach().T, rank, context, name)))
    return mine


def _one_model_for_all(model, plan, context):
    return _parallelize(model, plan, context)[:1] * context.world_size


def _cuts_one_copy_again(model, plan, context):
    mine = copy.deepcopy(model)
    return [_cut(mine, mine, plan, context, rank) for rank in range(context.world_size)]


def _rank_zero_everywhere(model, plan, context):
    models = _parallelize(model, plan, context)
    for rank, mine in enumerate(models):
        for name, Layer in plan.items():
            layer = Layer(getattr(model, name).weight.detach().T, 0, context, name)
            layer.rank = rank
            setattr(mine, name, Handmade(layer))
    return models


def _fresh_weights(model, plan, context):
    return _parallelize(model, plan, context, weight_of=lambda linear: torch.randn_like(linear.weight.T))


def _always_both(model, plan, context):
    return _parallelize(model, {"lin1": GoodColumn, "lin2": GoodRow}, context)


def _replaces_nothing(model, plan, context):
    return [copy.deepcopy(model) for _ in range(context.world_size)]


_plant("forgets_the_transpose", r"nn\.Linear stores its weight", lambda m, p, c: _parallelize(
    m, p, c, weight_of=lambda linear: linear.weight.detach()))  # fmt: skip
_plant("cuts_lin1_everywhere", r"output has shape \(20, 8\), expected .*lin2 is made with lin1's weight: getattr",
       lambda m, p, c: _parallelize(m, p, c, weight_of=lambda linear: m.lin1.weight.detach().T))  # fmt: skip
_plant("hands_over_half_a_weight", r"lin1's weight has shape \(2, 4\), expected \(2, 8\)",
       lambda m, p, c: _parallelize(m, p, c, weight_of=lambda linear: linear.weight.detach().T[:, :4]))  # fmt: skip
_plant("makes_one_model_for_all_ranks", "different models for 2 ranks", _one_model_for_all)
_plant("cuts_one_copy_again", "is cut again for the next. Copy the plain model anew for each", _cuts_one_copy_again)
_plant("gives_every_rank_the_first_slice", "slices are not those", _rank_zero_everywhere)
_plant("draws_fresh_weights", "slices are not those", _fresh_weights)
_plant(
    "ignores_the_map",
    "lin1 is made with another class than plan.*the plan says with which class a layer is cut",
    _always_both,
)
_plant("replaces_nothing", "layer of the plan is not replaced", _replaces_nothing)


def _hangs_the_whole(model, plan, context):
    models = _parallelize(model, plan, context)
    for mine in models:
        for name in plan:
            getattr(mine, name).full = getattr(model, name).weight.detach().clone()
    return models


_plant("hangs_the_whole", "lin1.full.* of rank 0's model keeps a whole weight alive", _hangs_the_whole)
_plant("takes_any_size", "refuse a size", _parallelize, _Column, _Row)
_plant(
    "takes_uneven_parts", "before any rank starts.*refuse a size", _parallelize, CutsColumnsUnevenly, CutsRowsUnevenly
)
_plant("gives_one_model", "0 different models for 1 rank", lambda m, p, c: _parallelize(m, p, c)[0])
_plant("cuts_the_model_itself", "the plain model itself is cut", lambda m, p, c: _parallelize(m, p, c, copied=False))


def _keeps_the_plain_one_for_rank_zero(model, plan, context):
    """Of the weights as they were: only that the plain model is no copy is wrong, and shapes do not fit."""
    weights = {name: getattr(model, name).weight.detach().T.clone() for name in plan}
    models = [copy.deepcopy(model) if rank else model for rank in range(context.world_size)]
    for rank, mine in enumerate(models):
        for name, Layer in plan.items():
            setattr(mine, name, Handmade(Layer(weights[name], rank, context, name)))
    return models


_plant("gives_rank_zero_the_model_itself", "the plain model itself is cut", _keeps_the_plain_one_for_rank_zero)
_plant("copies_shallowly", "copy.copy shares them", lambda m, p, c: [_cut(copy.copy(m), m, p, c, 0)])


class Asserts(GoodColumn):
    def __init__(self, weight, rank, context, group_id):
        assert weight.shape[1] % context.world_size == 0
        super().__init__(weight, rank, context, group_id)


_plant("asserts_the_size", "expected a ValueError, got an AssertionError", _parallelize, column=Asserts)


_MADE = {}


def _made_before(key, model, plan, context):
    """By what it was called with; the models are copied, so that each call gives its own."""
    found = _parallelize(model, plan, context)
    old = _MADE.setdefault(key, [[p.detach().clone() for p in mine.parameters()] for mine in found])
    for mine, weights in zip(found, old):
        for p, q in zip(mine.parameters(), weights):
            p.data.copy_(q)
    return found


_plant(
    "remembers_models_by_shape",
    "these are the weights of an earlier call",
    lambda m, p, c: _made_before((str(m), *p, c.world_size), m, p, c),
)
_plant(
    "remembers_models_by_id",
    "these are the weights of an earlier call",
    lambda m, p, c: _made_before((id(m), *p, c.world_size), m, p, c),
)
_plant("gives_the_models_one_by_one", "return a list", lambda m, p, c: (model for model in _parallelize(m, p, c)))
_plant(
    "cuts_layers_by_their_names",
    "a layer that the plan does not name is cut",
    lambda m, p, c: _parallelize(m, {"lin1": GoodRow if "lin1" not in p else GoodColumn, **p}, c),
)


def _shares_what_is_whole(model, plan, context):
    shell = copy.deepcopy(model)
    models = [copy.copy(shell) for _ in range(context.world_size)]
    for mine in models:
        mine._modules = dict(shell._modules)
    return [_cut(mine, model, plan, context, rank) for rank, mine in enumerate(models)]


_plant("shares_what_is_whole", r"lin1.weight is one parameter .*copy the whole plain one", _shares_what_is_whole)


@wrong(BLOCK, says="GELU acts on x @ w1, the activations")
def activates_the_weight(x, w1, w2, rank, context):
    return context.all_reduce(x @ w1 @ torch.nn.functional.gelu(w2), rank, "block")


@wrong(BLOCK, says="different columns, which nobody adds")
def reduces_the_hidden_columns(x, w1, w2, rank, context):
    return torch.nn.functional.gelu(context.all_reduce(x @ w1, rank, "block")) @ w2


@wrong(BLOCK, says="different columns, which nobody adds")
def reduces_the_hidden_columns_too(x, w1, w2, rank, context):
    hidden = torch.nn.functional.gelu(context.all_reduce(x @ w1, rank, "hidden"))
    return context.all_reduce(hidden @ w2, rank, "block")


@wrong(BLOCK, says="brings 40 numbers to all_reduce; its share of the output.*has 10.*the weights stay where they are")
def sends_the_weights(x, w1, w2, rank, context):
    """Whole, and every rank computes everything."""
    n, h = context.world_size, w1.shape[1]
    whole = torch.zeros(len(w1), n * h, dtype=x.dtype), torch.zeros(n * h, w2.shape[1], dtype=x.dtype)
    whole[0][:, rank * h : (rank + 1) * h], whole[1][rank * h : (rank + 1) * h] = w1, w2
    flat = context.all_reduce(torch.cat([w.flatten() for w in whole]), rank, "block")
    w1, w2 = (part.view_as(w) for part, w in zip(flat.split([w.numel() for w in whole]), whole))
    return torch.nn.functional.gelu(x @ w1) @ w2


@wrong(BLOCK, says="cut weights, not x")
def cuts_the_batch(x, w1, w2, rank, context):
    parts = [torch.zeros(len(part), w2.shape[1], dtype=x.dtype) for part in x.tensor_split(context.world_size)]
    parts[rank] = torch.nn.functional.gelu(x.tensor_split(context.world_size)[rank] @ w1) @ w2
    return context.all_reduce(torch.cat(parts), rank, "block")


@wrong(COLUMN_B, says="nothing is summed or averaged over ranks")
class AveragesTheWeightGradient(_Column):
    def backward(self, grad_output):
        returned = super().backward(grad_output)
        self.weight_grad = self.context.all_reduce(self.weight_grad, self.rank, "w", "mean")
        return returned


@wrong(ROW_B, says="the ranks' parts are gathered, side by side")
class FillsItsOwnFeatures(_Row):
    def gather(self, part):
        whole = torch.zeros(len(part), part.shape[1] * self.n, dtype=part.dtype)
        whole[:, self.mine] = part
        return whole


@wrong(GATHER, says="a wait with a short timeout is no barrier")
class WaitsALittle(_Context):
    def all_gather(self, tensor, rank, group_id):
        slots = self.buffers.setdefault(group_id, [None] * self.world_size)
        slots[rank] = tensor.clone()
        for _ in range(2):
            try:
                self.barrier.wait(timeout=0.01)
            except threading.BrokenBarrierError:
                continue
        return [slot.clone() for slot in slots]


@wrong(GATHER, says="not all into one list.*must be the same on all ranks")
class CountsTheCallsOfRankZero(_Context):
    def __init__(self, world_size):
        super().__init__(world_size)
        self.n_calls = [0] * world_size

    def all_gather(self, tensor, rank, group_id):
        key = group_id, self.n_calls[0]
        self.n_calls[rank] += 1
        with self.lock:
            self.buffers.setdefault(key, [None] * self.world_size)[rank] = tensor.clone()
        self.barrier.wait()
        return [slot.clone() for slot in self.buffers[key]]


@wrong(REDUCE, says="shape .3, 1. of float32, gives .*float64.*the dtype of its tensors")
class AnswersInDoublePrecision(_Context):
    def all_reduce(self, tensor, rank, group_id, op="sum"):
        if op not in ("sum", "mean"):
            raise ValueError(op)
        total = sum(part.double() for part in self.all_gather(tensor, rank, group_id))
        return total / self.world_size if op == "mean" else total


@wrong(GATHER, says="bring int64: rank 0 gets .*float32 in its list.*the dtype of its tensors")
class GathersWholeNumbersAsFloats(_Context):
    def all_gather(self, tensor, rank, group_id):
        gathered = super().all_gather(tensor, rank, group_id)
        return [part if part.is_floating_point() else part.float() for part in gathered]


@wrong(REDUCE, says="bring int64: rank 0 gets .*more digits than a float64: keep")
class AddsWholeNumbersAsFloats(_Context):
    def all_reduce(self, tensor, rank, group_id, op="sum"):
        if op not in ("sum", "mean"):
            raise ValueError(op)
        total = torch.stack(self.all_gather(tensor, rank, group_id)).double().sum(0)
        return (total / self.world_size if op == "mean" else total).to(tensor.dtype)


@wrong(REDUCE, says="the sum of all divided by 4.*divide by world_size, and by no number of your own")
class DividesByFour(_Context):
    def all_reduce(self, tensor, rank, group_id, op="sum"):
        if op not in ("sum", "mean"):
            raise ValueError(op)
        total = sum(self.all_gather(tensor, rank, group_id))
        return total / 4 if op == "mean" else total


@wrong(STEP, says="rows and columns do not fit")
def feeds_the_labels(model, optimizer, x, y, context, rank):
    mse_loss(model(y), y).backward()
    optimizer.step()
    return 0.0


_plant("gives_no_models", "0 different models", lambda model, plan, context: [copy] * context.world_size)


@wrong(REDUCE, says="is still the shared buffer, and no copy")
class ReadsTheSharedListBehindTheBarrier(_Context):
    def all_gather(self, tensor, rank, group_id):
        with self.lock:
            slots = self.buffers.setdefault(group_id, [None] * self.world_size)
        slots[rank] = tensor
        self.barrier.wait()
        gathered = self.buffers[group_id]
        self.barrier.wait()
        return gathered

    def all_reduce(self, tensor, rank, group_id, op="sum"):
        if op not in ("sum", "mean"):
            raise ValueError(op)
        total = sum(self.all_gather(tensor, rank, group_id))
        return total / self.world_size if op == "mean" else total


@wrong(ROW_B, says="is right, but makes 5 all_gather.*the calls of forward are among them, whose output is wrong")
class RowGathersItsOutput:
    def __init__(self, weight, rank, context, group_id):
        n = context.world_size
        if weight.shape[0] % n:
            raise ValueError("N does not divide d_in")
        self.mine = slice(rank * (weight.shape[0] // n), (rank + 1) * (weight.shape[0] // n))
        self.weight = weight[self.mine].clone()
        self.gather = lambda tensor: torch.cat(context.all_gather(tensor, rank, group_id), dim=1)

    def forward(self, x):
        self.x = x[:, self.mine].clone()
        return self.gather(self.x @ self.weight)

    def backward(self, grad_output):
        self.weight_grad = self.x.T @ grad_output
        return self.gather(grad_output @ self.weight.T)


@wrong(SPLIT, says="loses 1 example, the first is number 14.*the size is taken for a fraction.*// and %")
def cuts_at_fractions(x, rank, world_size):
    part = len(x) / world_size
    return x[int(rank * part) : int((rank + 1) * part)]


def _by_name(model, plan, context):
    classes = {"lin1": GoodColumn, "lin2": GoodRow}
    return _parallelize(model, {name: classes[name] for name in plan}, context)


def _copies_only_the_outside(model, plan, context):
    models = []
    for rank in range(context.world_size):
        mine = copy.copy(model)
        models.append(_cut(mine, mine, plan, context, rank))
    return models


_plant("takes_the_lessons_classes", "lin1 is made with another class than plan", _by_name)
_plant("copies_only_the_outside", "the plain model itself is cut.*copy.copy shares them", _copies_only_the_outside)


@wrong(SPLIT, says="the numbers in x are counted, not its examples")
def counts_numbers(x, rank, world_size):
    size, rest = divmod(x.numel(), world_size)
    start = rank * size + min(rank, rest)
    return x[start : start + size + (rank < rest)]


@wrong(ROW_B, says="is not sliced.*or the ranks' weight gradients are gathered")
class RowGathersItsWeightGradient(_Row):
    def backward(self, grad_output):
        grad_input = super().backward(grad_output)
        parts = self.context.all_gather(self.weight_grad, self.rank, self.group_id)
        self.weight_grad = torch.cat(parts, dim=0)
        return grad_input


def _weighted_step(model, optimizer, x, y, context, rank):
    loss, flat = _weighted(model, x, y)
    flat = context.all_reduce(torch.cat([flat, flat.new_tensor([len(x)])]), rank, "g")
    _put_back(model, flat[:-1] / flat[-1])
    optimizer.step()
    return loss


@wrong(WEIGHTED, says="the loss times the shard's examples, divided by N")
def returns_a_weighted_loss(model, optimizer, x, y, context, rank):
    return _weighted_step(model, optimizer, x, y, context, rank) * len(x) / context.world_size


@wrong(WEIGHTED, says="only what is returned is not")
def returns_a_root(model, optimizer, x, y, context, rank):
    return _weighted_step(model, optimizer, x, y, context, rank) ** 0.5


_plant(
    "takes_the_names_for_granted",
    "a layer that the plan does not name is cut",
    lambda m, p, c: _parallelize(m, dict(zip(("lin1", "lin2"), p.values())), c),
)


def _empties_the_plan(model, plan, context):
    models = _parallelize(model, plan, context)
    plan.clear()
    return models


_plant("empties_the_plan", "after the call the plan names nothing", _empties_the_plan)


@wrong(GATHER, says="no rank can go on.*two ranks looked whether the buffer is there, and each made one")
class MakesABarrierWithEachList(_Context):
    def __init__(self, world_size):
        super().__init__(world_size)
        self.barriers = {}

    def all_gather(self, tensor, rank, group_id):
        if group_id not in self.buffers:
            self.buffers[group_id] = [None] * self.world_size
            self.barriers[group_id] = threading.Barrier(self.world_size)
        slots, barrier = self.buffers[group_id], self.barriers[group_id]
        slots[rank] = tensor.clone()
        barrier.wait()
        gathered = [slot.clone() for slot in slots]
        barrier.wait()
        return gathered


@wrong(GATHER, says="no rank can go on.*removed the buffer .*each then waits in a barrier of its own")
class TidiesUpWithoutABarrier(_Context):
    def __init__(self, world_size):
        super().__init__(world_size)
        self.barriers = {}

    def all_gather(self, tensor, rank, group_id):
        with self.lock:
            if group_id not in self.buffers:
                self.buffers[group_id] = [None] * self.world_size
                self.barriers[group_id] = threading.Barrier(self.world_size)
            slots, barrier = self.buffers[group_id], self.barriers[group_id]
        slots[rank] = tensor.clone()
        barrier.wait()
        gathered = [slot.clone() for slot in slots]
        with self.lock:
            self.buffers.pop(group_id, None)
        return gathered


@wrong(ROW_B, says="makes 5 all_gather.*its 3 forward passes are others than they should be")
class RowAddsWhatItGathers(_Row):
    def forward(self, x):
        self.x = x[:, self.mine]
        return sum(self.context.all_gather(self.x @ self.weight, self.rank, self.group_id))


@wrong(ROW_B, says="makes 6 all_reduce.*its 3 forward passes are others than they should be")
class RowReducesTwiceForward(_Row):
    def forward(self, x):
        y = super().forward(x)
        return self.reduce(y / self.n)


@wrong(ROW_F, says="keeps its part of the weight as float64.*the dtype that it came in")
class RowKeepsFloat64(_Row):
    def __init__(self, weight, rank, context, group_id):
        if len(weight) % context.world_size:
            raise ValueError("d_in is not divisible")
        super().__init__(weight, rank, context, group_id)
        self.weight = self.weight.double()

    def forward(self, x):
        return super().forward(x.double())


@wrong("lesson_06.dp_step", says="a tensor that autograd still follows.*loss.item")
def gives_the_loss_with_its_graph(model, optimizer, x, y, context, rank):
    optimizer.zero_grad()
    loss = mse_loss(model(x), y)
    loss.backward()
    parameters = list(model.parameters())
    flat = torch.cat([p.grad.flatten() for p in parameters])
    flat = context.all_reduce(flat, rank, "gradients") / context.world_size
    for p, part in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad = part.view_as(p).clone()
    optimizer.step()
    return loss


_SIZES: dict = {}


@wrong(SPLIT, says="tried alone this case is right.*`_SIZES` keeps something from call to call")
def keeps_the_first_sizes(x, rank, world_size):
    sizes = _SIZES.setdefault(world_size, [len(part) for part in x.tensor_split(world_size)])
    return x[sum(sizes[:rank]) : sum(sizes[: rank + 1])]


_PARAMETERS: list = []


@wrong(STEP, says="`_PARAMETERS` is changed in a call, and all calls, objects and ranks share it")
def keeps_the_first_parameters(model, optimizer, x, y, context, rank):
    optimizer.zero_grad()
    loss = mse_loss(model(x), y)
    loss.backward()
    if not _PARAMETERS:
        _PARAMETERS.extend(model.parameters())
    flat = context.all_reduce(torch.cat([p.grad.flatten() for p in model.parameters()]), rank, "g", "mean")
    for p, piece in zip(_PARAMETERS, flat.split([p.numel() for p in _PARAMETERS])):
        p.grad = piece.view_as(p)
    optimizer.step()
    return loss.item()


@wrong(COLUMN_B, says="`KeepsItsGradientOnTheClass.weight_grad` is changed in a call, and all calls, objects and ranks")
class KeepsItsGradientOnTheClass(_Column):
    def backward(self, grad_output):
        mine = grad_output[:, self.mine]
        type(self).weight_grad = self.x.T @ mine
        return self.reduce(mine @ self.weight.T)


class _LooksAtTheOther:
    def __init__(self, weight, rank, context, group_id):
        if weight.shape[1 - self.axis] % context.world_size:
            raise ValueError("these do not fit")
        super().__init__(weight, rank, context, group_id)


@wrong(COLUMN_F, says="2 divides d_out, 6: the other dimension is looked at")
class ColumnRefusesByItsRows(_LooksAtTheOther, _Column):
    pass


@wrong(ROW_B, says="2 divides d_in, 6: the other dimension is looked at")
class RowRefusesByItsColumns(_LooksAtTheOther, _Row):
    pass


@wrong(COLUMN_B, says="a second forward changes what the first one returned on rank 0.*a tensor of its own")
class ReturnsOneBuffer(_Column):
    def forward(self, x):
        y = super().forward(x)
        self.y = getattr(self, "y", None) if y.shape == getattr(getattr(self, "y", None), "shape", None) else y.clone()
        return self.y.copy_(y)


class _Alone:
    """A context of one's own, which nobody else has."""

    def __init__(self, world_size):
        self.world_size = world_size
        self.barrier = threading.Barrier(world_size)

    def all_gather(self, tensor, rank, group_id):
        self.barrier.wait()
        return [tensor.clone()] * self.world_size

    def all_reduce(self, tensor, rank, group_id, op="sum"):
        return torch.stack(self.all_gather(tensor, rank, group_id)).sum(0)


_plant("makes_a_context", "no layer calls the context that parallelize was given.*make no context of your own",
       lambda m, p, c: _parallelize(m, p, _Alone(c.world_size)))  # fmt: skip


def _with_one_name(model, plan, context):
    return _parallelize(model, {name: lambda w, r, c, _, L=L: L(w, r, c, "tp") for name, L in plan.items()}, context)


_plant("gives_all_layers_one_name", "all layers have one group_id, 'tp'.*each layer has its own", _with_one_name)


def _goes_by_the_classes_names(model, plan, context):
    known = {name: GoodColumn if "Column" in Layer.__name__ else GoodRow for name, Layer in plan.items()}
    return _parallelize(model, known, context)


_plant("goes_by_the_classes_names", "lin1 is made with another class than plan", _goes_by_the_classes_names)
_plant(
    "cuts_only_the_first",
    "lin2 is the plain layer in the models.*a layer of the plan is not replaced",
    lambda m, p, c: _parallelize(m, dict(list(p.items())[:1]), c),
)


def _draws_the_lessons_model(model, plan, context):
    return _parallelize(SimpleMLP(2, 16, 1).double(), plan, context)


_plant("draws_the_lessons_model", "the model that is cut is not the given one", _draws_the_lessons_model)


def _copies_what_is_cut(model, plan, context):
    weights = {name: getattr(model, name).weight.detach().T.clone() for name in plan}
    copies = []
    for rank in range(context.world_size):
        for name, Layer in plan.items():
            setattr(model, name, Handmade(Layer(weights[name], rank, context, name)))
        copies.append(copy.deepcopy(model))
    return copies


_plant("copies_what_is_cut", "cannot pickle.*a model whose layers are cut already is copied", _copies_what_is_cut)


def _without_handmade(model, plan, context):
    models = [copy.deepcopy(model) for _ in range(context.world_size)]
    for rank, mine in enumerate(models):
        for name, Layer in plan.items():
            delattr(mine, name)
            object.__setattr__(mine, name, Layer(getattr(model, name).weight.detach().T, rank, context, name).forward)
    return models


_plant("leaves_layers_unwrapped", "empty parameter list.*Handmade.layer. makes one of it", _without_handmade)
