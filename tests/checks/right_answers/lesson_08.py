"""Right answers to lesson 08 that are not the reference's."""

from __future__ import annotations

import copy
import itertools
import uuid
from collections import OrderedDict, deque, namedtuple
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

import numpy as np
import torch
import torch.distributed as dist

from tests.checks.right_answers import right, right_values

# 8.1

for _of, _shift in (("total", 1), ("ideal", 0)):
    _check = f"lesson_08.bubble_of_{_of}"
    right_values(_check, "a_fraction", lambda p, m, s=_shift: float(Fraction(p - 1, m + s * (p - 1))))
    right_values(_check, "numpy", lambda p, m, s=_shift: np.float64(p - 1) / (m + s * (p - 1)))
    right_values(
        _check, "a_tensor", lambda p, m, s=_shift: torch.tensor((p - 1) / (m + s * (p - 1)), dtype=torch.float64)
    )
    right_values(
        _check, "of_slots", lambda p, m, s=_shift: (lambda idle, busy: idle / (busy + s * idle))(2 * (p - 1), 2 * m)
    )
    right_values(_check, "of_seconds", lambda p, m, s=_shift: (
        (3 * (m + p - 1) - 3 * m) / (3 * (m + p - 1) if s else 3 * m)))  # fmt: skip
    right_values(_check, "as_a_fraction", lambda p, m, s=_shift: Fraction(p - 1, m + s * (p - 1)))
    right_values(_check, "as_a_decimal", lambda p, m, s=_shift: Decimal(p - 1) / Decimal(m + s * (p - 1)))
right_values("lesson_08.bubble_of_total", "what_is_missing", lambda p, m: 1 - m / (m + p - 1))
right_values("lesson_08.bubble_of_ideal", "what_it_is_longer_by", lambda p, m: (m + p - 1) / m - 1)

# 8.2


@right("lesson_08.stage", "lesson_08.stage_lets_go")
class KeepsWhatGoesBack:
    """With torch.func.vjp, on a model whose weights are arguments: no graph is seen, a function goes back."""

    def __init__(self, module):
        self.module, self.back = module, {}

    def forward(self, k, x):
        weights = {n: p for n, p in self.module.named_parameters() if p.requires_grad}
        call = lambda weights, *args: torch.func.functional_call(self.module, weights, args or (x,))  # noqa: E731
        y, self.back[k] = torch.func.vjp(call, weights, *([x] if x.is_floating_point() else []))
        return y.detach()

    def backward(self, k, gradient):
        of_weights, *of_x = self.back.pop(k)(gradient)
        for name, p in self.module.named_parameters():
            if name in of_weights:
                p.grad = of_weights[name].detach() + (0 if p.grad is None else p.grad)
        return of_x[0].detach() if of_x else None


@right("lesson_08.stage", "lesson_08.stage_lets_go")
class CopiesItsModule:
    """Each micro-batch has a copy of the module, whose gradients are added to the module's own."""

    def __init__(self, module):
        self.module, self.kept = module, {}

    def forward(self, k, x):
        module = copy.deepcopy(self.module)
        for p in module.parameters():
            p.grad = None
        leaf = x.detach().requires_grad_(x.is_floating_point())
        y = module(leaf)
        self.kept[k] = leaf, y, module
        return y.detach()

    def backward(self, k, gradient):
        leaf, y, module = self.kept.pop(k)
        y.backward(gradient)
        for p, q in zip(self.module.parameters(), module.parameters()):
            if q.grad is not None:
                p.grad = q.grad if p.grad is None else p.grad + q.grad
        return leaf.grad


@right("lesson_08.stage", "lesson_08.stage_lets_go")
class TakesItsHookAway:
    """The output comes by a hook, which goes with the pass."""

    def __init__(self, module):
        self.module, self.kept = module, {}

    def forward(self, k, x):
        leaf = x.detach()
        if x.is_floating_point():
            leaf.requires_grad_()
        handle = self.module.register_forward_hook(lambda module, args, y: self.kept.update({k: (leaf, y)}))
        try:
            return self.module(leaf).detach()
        finally:
            handle.remove()

    def backward(self, k, gradient):
        leaf, y = self.kept.pop(k)
        y.backward(gradient)
        return leaf.grad


@right("lesson_08.stage", "lesson_08.stage_lets_go")
class KeepsADiary:
    """Of numbers of micro-batches, shapes, kinds and times; a generator that hands out names."""

    def __init__(self, module):
        self.module, self.kept, self.diary = module, {}, []
        self.names, self.n_passes = (f"pass {n}" for n in itertools.count()), 0

    def forward(self, k, x):
        leaf = x.detach()
        if x.is_floating_point():
            leaf.requires_grad_()
        y = self.module(leaf)
        self.kept[k] = leaf, y
        self.diary.append(("F", k, next(self.names), tuple(y.shape), str(y.dtype), id(x)))
        return y.detach()

    def backward(self, k, gradient):
        leaf, y = self.kept.pop(k)
        y.backward(gradient)
        self.n_passes += 1
        self.diary.append(("B", k, next(self.names), tuple(gradient.shape), uuid.uuid4()))
        return leaf.grad


@right("lesson_08.stage", "lesson_08.stage_lets_go")
class AsksAutogradForGradients:
    """With torch.autograd.backward, a graph that begins at a clone, and two dictionaries."""

    def __init__(self, module):
        self.module, self.inputs, self.outputs = module, {}, {}

    def forward(self, k, x):
        with torch.enable_grad():
            leaf = x.clone().detach()
            if torch.is_floating_point(leaf):
                leaf.requires_grad = True
                leaf.retain_grad()
            self.inputs[k], self.outputs[k] = leaf, self.module(leaf)
        return self.outputs[k].data

    def backward(self, k, gradient):
        torch.autograd.backward([self.outputs.pop(k)], [gradient])
        return self.inputs.pop(k).grad


@right("lesson_08.stage", "lesson_08.stage_lets_go")
class SumsAProduct:
    """The gradient of (y * gradient).sum(), and a list of places that are filled again."""

    def __init__(self, module):
        self.module, self.places = module, []

    def forward(self, k, x):
        x = x.detach() if not x.is_floating_point() else x.detach().requires_grad_(True)
        y = self.module(x)
        self.places.append((k, x, y))
        return y.detach().clone()

    def backward(self, k, gradient):
        place = next(n for n, (other, _, _) in enumerate(self.places) if other == k)
        _, x, y = self.places.pop(place)
        (y * gradient).sum().backward()
        return torch.zeros(()) if x.grad is None else x.grad


@right("lesson_08.stage", "lesson_08.stage_lets_go")
class RecomputesItsGraph:
    """Keeps inputs, and what the dice were, and computes again when the gradient is there."""

    def __init__(self, module):
        self.net, self.kept = module, OrderedDict()

    def forward(self, k, x):
        self.kept[k] = x.detach(), torch.get_rng_state()
        with torch.no_grad():
            return self.net(x)

    def backward(self, k, gradient):
        x, dice = self.kept.pop(k)
        if x.is_floating_point():
            x = x.clone().requires_grad_()
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(dice)
            self.net(x).backward(gradient=gradient)
        return x.grad


@right("lesson_08.stage", "lesson_08.stage_lets_go")
class AddsGradientsItself:
    """With torch.autograd.grad for the input and every parameter."""

    def __init__(self, module):
        self.module, self.kept = module, {}

    def forward(self, k, x):
        leaves = [x.detach().requires_grad_()] if x.dtype.is_floating_point else []
        y = self.module(leaves[0] if leaves else x)
        self.kept.update({k: (leaves, y)})
        return y.detach()

    def backward(self, k, gradient):
        leaves, y = self.kept.pop(k)
        parameters = [p for p in self.module.parameters() if p.requires_grad]
        found = torch.autograd.grad(y, leaves + parameters, gradient, allow_unused=True)
        for p, g in zip(parameters, found[len(leaves) :]):
            if g is not None:
                p.grad = g if p.grad is None else p.grad + g
        return found[0] if leaves else None


@right("lesson_08.stage", "lesson_08.stage_lets_go")
class AddsZerosToTheUnused(AddsGradientsItself):
    """Zeros for what no pass uses, and for what is frozen nothing."""

    def backward(self, k, gradient):
        leaves, y = self.kept.pop(k)
        asked = leaves + [p for p in self.module.parameters() if p.requires_grad]
        found = torch.autograd.grad(y, asked, gradient, allow_unused=True, materialize_grads=True)
        for p, g in list(zip(asked, found))[len(leaves) :]:
            p.grad = g if p.grad is None else p.grad + g
        return found[0] if leaves else None


@right("lesson_08.stage", "lesson_08.stage_lets_go")
class KeepsAClosure:
    def __init__(self, module):
        self.module, self.backs = module, {}

    def forward(self, k, x):
        x = x.detach()
        x.requires_grad = x.is_floating_point()
        y = self.module(x)

        def back(gradient):
            y.backward(gradient)
            return x.grad

        self.backs[k] = back
        return y.detach()

    def backward(self, k, gradient):
        return self.backs.pop(k)(gradient)


@right("lesson_08.stage", "lesson_08.stage_lets_go")
class KeepsAllOnItsClass:
    """What is in flight lies in one dictionary of all stages, under the stage and the number."""

    kept = {}  # noqa: RUF012

    def __init__(self, module):
        self.module = module

    def forward(self, k, x):
        leaf = x.detach().requires_grad_(x.is_floating_point())
        self.kept[id(self), k] = leaf, self.module(leaf)
        return self.kept[id(self), k][1].detach()

    def backward(self, k, gradient):
        leaf, y = self.kept.pop((id(self), k))
        y.backward(gradient)
        return leaf.grad


@right("lesson_08.stage", "lesson_08.stage_lets_go")
class NotesWhatIsDone:
    """The numbers of finished micro-batches are none of their tensors'."""

    def __init__(self, module):
        self.module, self.kept, self.done = module, {}, []

    def forward(self, k, x):
        leaf = x.clone().detach()
        leaf.requires_grad_(leaf.is_floating_point())
        y = self.module(leaf)

        def back(gradient):
            torch.autograd.backward([y], [gradient])
            return leaf.grad

        self.kept[k] = back
        return y.detach()

    def backward(self, k, gradient):
        self.done.append(k)
        return self.kept.pop(k)(gradient)


# 8.3


@right("lesson_08.gpipe", "lesson_08.gpipe_in_time")
def gpipe_with_handles(stage, batches, rank, world_size):
    """Everything asked for at the start, everything waited for at the end."""
    n, m = sum(x.shape[0] for x in batches), len(batches)
    xs, gs = [torch.zeros_like(x) for x in batches], [torch.zeros_like(x) for x in batches]
    into = [dist.irecv(x, src=rank - 1, tag=1) for x in xs] if rank else []
    back = [dist.irecv(g, src=rank + 1, tag=2) for g in gs] if rank + 1 < world_size else []
    out, total = [], 0
    for k in range(m):
        if into:
            into[k].wait()
        y = stage.forward(k, xs[k] if rank else batches[k])
        if rank + 1 < world_size:
            out.append((dist.isend(y, dst=rank + 1, tag=1), y))
        else:
            total = total + y * (batches[k].shape[0] / n)
    for k in range(m):
        if back:
            back[k].wait()
        g = stage.backward(k, gs[k] if back else torch.tensor(len(batches[k]) / n, dtype=torch.float64))
        if rank:
            out.append((dist.isend(g, dst=rank - 1, tag=2), g))
    for handle, _ in out:
        handle.wait()
    return total


@right("lesson_08.gpipe", "lesson_08.gpipe_in_time")
def gpipe_back_in_reverse(stage, batches, rank, world_size):
    """The last micro-batch goes back first, on all ranks."""
    n = sum(map(len, batches))
    loss = torch.zeros((), dtype=torch.float64)
    for k, x in enumerate(batches):
        if rank != 0:
            x = x.new_empty(x.shape)
            dist.recv(tensor=x, src=rank - 1)
        y = stage.forward(k, x)
        if rank != world_size - 1:
            dist.send(tensor=y, dst=rank + 1)
        else:
            loss += y * len(x)
    for k, x in reversed(list(enumerate(batches))):
        gradient = torch.full((), len(x) / n, dtype=torch.float64)
        if rank != world_size - 1:
            gradient = x.new_empty(x.shape)
            dist.recv(tensor=gradient, src=rank + 1)
        gradient = stage.backward(k, gradient)
        if rank != 0:
            dist.send(tensor=gradient, dst=rank - 1)
    return (loss / n).item() if rank == world_size - 1 else None


@right("lesson_08.gpipe", "lesson_08.gpipe_in_time")
def gpipe_in_batches_of_operations(stage, batches, rank, world_size):
    """Each message by batch_isend_irecv; every rank returns a number."""
    n, losses = sum(map(len, batches)), []

    def exchange(operation, tensor, peer):
        if 0 <= peer < world_size:
            for handle in dist.batch_isend_irecv([dist.P2POp(operation, tensor, peer)]):
                handle.wait()
        return tensor

    for k, x in enumerate(batches):
        y = stage.forward(k, exchange(dist.irecv, x.clone(), rank - 1))
        if rank == world_size - 1:
            losses.append(float(y) * len(x) / n)
        else:
            exchange(dist.isend, y, rank + 1)
    for k, x in enumerate(batches):
        share = len(x) / n
        g = share if rank == world_size - 1 else exchange(dist.irecv, x.clone(), rank + 1)
        exchange(dist.isend, stage.backward(k, g), rank - 1)
    return sum(losses)


@right("lesson_08.gpipe", "lesson_08.gpipe_in_time")
def gpipe_recursive(stage, batches, rank, world_size):
    """Forward on the way down, backward on the way up: the last micro-batch goes back first."""
    n, last = sum(map(len, batches)), world_size - 1

    def go(k):
        if k == len(batches):
            return 0.0
        x = batches[k].clone()
        if rank:
            dist.recv(x, rank - 1)
        y = stage.forward(k, x)
        if rank < last:
            dist.send(y, rank + 1)
        share = len(x) / n
        loss = go(k + 1) + (y.item() * share if rank == last else 0.0)
        g = share if rank == last else torch.empty_like(x)
        if rank < last:
            dist.recv(g, rank + 1)
        g = stage.backward(k, g)
        if rank:
            dist.send(g, rank - 1)
        return loss

    return go(0)


class _Link:
    def __init__(self, rank, world_size):
        self.before = rank - 1 if rank else None
        self.after = rank + 1 if rank + 1 < world_size else None
        self.sent = deque()

    def get(self, like, peer):
        tensor = torch.empty(like.shape, dtype=like.dtype)
        dist.irecv(tensor, peer).wait()
        return tensor

    def put(self, tensor, peer):
        if peer is not None:
            self.sent.append(dist.isend(tensor.contiguous(), peer))

    def close(self):
        while self.sent:
            self.sent.popleft().wait()


@right("lesson_08.gpipe", "lesson_08.gpipe_in_time")
class GPipeObject:
    """A class whose making is the step; it is a number in the end."""

    def __new__(cls, stage, batches, rank, world_size):
        link, rows = _Link(rank, world_size), [len(x) for x in batches]
        outputs = []
        for k, x in enumerate(batches):
            outputs.append(stage.forward(k, x if link.before is None else link.get(x, link.before)))
            link.put(outputs[-1], link.after)
        for k, x in enumerate(batches):
            g = rows[k] / sum(rows) if link.after is None else link.get(x, link.after)
            link.put(stage.backward(k, g), link.before)
        link.close()
        return np.average([y.item() for y in outputs], weights=rows) if link.after is None else float("nan")


# 8.4

_1F1B = ("lesson_08.one_f_one_b", "lesson_08.one_f_one_b_in_flight", "lesson_08.one_f_one_b_in_time")


@right(*_1F1B)
def with_one_exchange_a_turn(stage, batches, rank, world_size):
    """A send and a receive of each cut in one batch_isend_irecv, as Megatron has it."""
    m, n, loss = len(batches), sum(map(len, batches)), 0.0
    first, last = rank == 0, rank == world_size - 1

    def exchange(*operations):
        made = [dist.P2POp(*o) for o in operations if o]
        for handle in dist.batch_isend_irecv(made) if made else []:
            handle.wait()

    warm_up = min(m, world_size - rank - 1)

    def next_x(k):
        x = batches[k].clone()
        exchange(None if first else (dist.irecv, x, rank - 1))
        return x

    for k in range(warm_up):
        exchange((dist.isend, stage.forward(k, next_x(k)), rank + 1))
    x = next_x(warm_up) if warm_up < m else None
    for k in range(m - warm_up):
        y = stage.forward(warm_up + k, x)
        g = len(batches[k]) / n if last else torch.empty_like(batches[k])
        if last:
            loss += y.item() * g
        else:
            exchange((dist.isend, y, rank + 1), (dist.irecv, g, rank + 1))
        g = stage.backward(k, g)
        more = warm_up + k + 1 < m
        x = batches[warm_up + k + 1].clone() if more else None
        exchange(
            None if first else (dist.isend, g, rank - 1), (dist.irecv, x, rank - 1) if more and not first else None
        )
    for k in range(max(0, m - warm_up), m):
        g = len(batches[k]) / n if last else torch.empty_like(batches[k])
        exchange(None if last else (dist.irecv, g, rank + 1))
        g = stage.backward(k, g)
        exchange(None if first else (dist.isend, g, rank - 1))
    return loss


def _turns(m, warm_up):
    """Numbers of forward and backward passes, one after another."""
    yield from (("F", k) for k in range(min(m, warm_up)))
    for k in range(m):
        if warm_up + k < m:
            yield "F", warm_up + k
        yield "B", k


@right(*_1F1B)
def from_a_generator(stage, batches, rank, world_size):
    """What to do next comes from a generator; the send before is waited for first."""
    link, rows, loss = _Link(rank, world_size), [len(x) for x in batches], Fraction(0)
    for kind, k in _turns(len(batches), world_size - 1 - rank):
        if kind == "F":
            y = stage.forward(k, batches[k] if link.before is None else link.get(batches[k], link.before))
            link.put(y, link.after)
            loss += Fraction(y.item()) * rows[k] if link.after is None else 0
        else:
            g = rows[k] / sum(rows) if link.after is None else link.get(batches[k], link.after)
            link.put(stage.backward(k, g), link.before)
    link.close()
    return float(loss / sum(rows))


@right(*_1F1B)
def by_room(stage, batches, rank, world_size):
    """Forward while there is room for one more, else backward."""
    n, room = sum(map(len, batches)), world_size - rank
    todo, flying, sends, loss = deque(enumerate(batches)), deque(), [], 0.0
    while todo or flying:
        if todo and len(flying) < room:
            k, like = todo.popleft()
            x = like
            if rank:
                x = torch.empty_like(like)
                dist.recv(x, rank - 1)
            flying.append((k, like))
            y = stage.forward(k, x)
            if rank + 1 == world_size:
                loss += y.item() * len(like)
            else:
                sends.append(dist.isend(y, rank + 1))
        else:
            k, like = flying.popleft()
            g = len(like) / n
            if rank + 1 < world_size:
                g = torch.empty_like(like)
                dist.recv(g, rank + 1)
            g = stage.backward(k, g)
            if rank:
                sends.append(dist.isend(g, rank - 1))
    [send.wait() for send in sends]
    return loss / n


@right(*_1F1B)
def asks_one_ahead(stage, batches, rank, world_size):
    """The next activation is asked for before this one is computed with."""
    m, n = len(batches), sum(map(len, batches))
    asked, sends, losses = {}, [], []

    def ask(k):
        if rank and k < m:
            x = torch.empty_like(batches[k])
            asked[k] = dist.irecv(x, rank - 1), x

    ask(0)
    for kind, k in _turns(m, world_size - 1 - rank):
        if kind == "F":
            x = batches[k]
            if rank:
                handle, x = asked.pop(k)
                handle.wait()
                ask(k + 1)
            y = stage.forward(k, x)
            if rank < world_size - 1:
                sends.append(dist.isend(y, rank + 1))
            else:
                losses.append(y * len(x) / n)
        else:
            g = torch.tensor(len(batches[k]) / n, dtype=torch.double)
            if rank < world_size - 1:
                g = torch.empty_like(batches[k])
                dist.recv(g, rank + 1)
            g = stage.backward(k, g)
            if rank:
                sends.append(dist.isend(g, rank - 1))
    for send in sends:
        send.wait()
    return torch.stack(losses).sum() if losses else None


@right(*_1F1B)
class OneFOneBObject:
    """Warm-up, turns and cool-down as methods; at most one send in each direction is under way."""

    def __new__(cls, stage, batches, rank, world_size):
        self = object.__new__(cls)
        self.stage, self.batches, self.rank, self.last = stage, batches, rank, world_size - 1
        self.under_way, self.loss = {}, 0.0
        self.rows = torch.tensor([float(len(x)) for x in batches], dtype=torch.float64)
        n_warm = min(self.last - rank, len(batches))
        front, rear = iter(range(len(batches))), iter(range(len(batches)))
        for k in itertools.islice(front, n_warm):
            self.down(k)
        for k in front:
            self.down(k)
            self.up(next(rear))
        for k in rear:
            self.up(k)
        for handle in self.under_way.values():
            handle.wait()
        return self.loss

    def down(self, k):
        x = self.batches[k].clone()
        if self.rank > 0:
            dist.recv(x, self.rank - 1)
        y = self.stage.forward(k, x)
        if self.rank < self.last:
            self.put(y, self.rank + 1)
        else:
            self.loss += (y * self.rows[k] / self.rows.sum()).item()

    def up(self, k):
        g = self.rows[k] / self.rows.sum()
        if self.rank < self.last:
            g = torch.empty_like(self.batches[k])
            dist.recv(g, self.rank + 1)
        g = self.stage.backward(k, g)
        if self.rank > 0:
            self.put(g, self.rank - 1)

    def put(self, tensor, peer):
        if peer in self.under_way:
            self.under_way[peer].wait()
        self.under_way[peer] = dist.isend(tensor, peer)


@right(*_1F1B)
def last_batch_first(stage, batches, rank, world_size):
    """All ranks count micro-batches backwards."""
    m = len(batches)

    class Mirror:
        def forward(self, k, x):
            return stage.forward(m - 1 - k, x)

        def backward(self, k, gradient):
            return stage.backward(m - 1 - k, gradient)

    return from_a_generator(Mirror(), batches[::-1], rank, world_size)


@right(*_1F1B)
def keeps_copies_while_in_flight(stage, batches, rank, world_size):
    """A copy of each input lies beside the stage until its micro-batch goes back."""
    link, rows, kept, loss = _Link(rank, world_size), [len(x) for x in batches], {}, 0.0

    def forward(k):
        x = batches[k] if link.before is None else link.get(batches[k], link.before)
        kept[k] = x.clone()
        y = stage.forward(k, x)
        link.put(y, link.after)
        return 0.0 if link.after is not None else y.item() * rows[k] / sum(rows)

    warm_up = min(len(batches), world_size - rank - 1)
    for k in range(warm_up):
        loss += forward(k)
    for k in range(len(batches)):
        if warm_up + k < len(batches):
            loss += forward(warm_up + k)
        g = rows[k] / sum(rows) if link.after is None else link.get(batches[k], link.after)
        del kept[k]
        link.put(stage.backward(k, g), link.before)
    link.close()
    return loss if link.after is None else None


@right(*_1F1B)
def receives_in_a_ring_of_buffers(stage, batches, rank, world_size):
    """As many places in one tensor as are in flight, and one more."""
    link, rows, loss = _Link(rank, world_size), [len(x) for x in batches], 0.0
    warm_up = min(len(batches), world_size - rank - 1)
    places = torch.zeros(warm_up + 2, max(rows), batches[0].shape[1], dtype=batches[0].dtype)

    def forward(k):
        x = batches[k]
        if link.before is not None:
            x = places[k % len(places)][: rows[k]]
            dist.recv(x, link.before)
        y = stage.forward(k, x)
        link.put(y, link.after)
        return 0.0 if link.after is not None else y.item() * rows[k] / sum(rows)

    for k in range(warm_up):
        loss += forward(k)
    for k in range(len(batches)):
        if warm_up + k < len(batches):
            loss += forward(warm_up + k)
        g = rows[k] / sum(rows) if link.after is None else link.get(batches[k], link.after)
        link.put(stage.backward(k, g), link.before)
    link.close()
    return loss if link.after is None else None


# 8.5


@right("lesson_08.balance")
def by_bisection(layer_s, n_stages):
    """The least limit for which greedily filled stages are enough; then stages without a layer get one."""

    def filled(limit):
        counts, total = [0], 0.0
        for s in layer_s:
            if total + s > limit + 1e-12:
                counts.append(0)
                total = 0.0
            counts[-1] += 1
            total += s
        return counts

    limits = sorted({sum(layer_s[a:b]) for a in range(len(layer_s)) for b in range(a + 1, len(layer_s) + 1)})
    counts = next(filled(x) for x in limits if x >= max(layer_s) and len(filled(x)) <= n_stages)
    while len(counts) < n_stages:
        k = next(k for k, n in enumerate(counts) if n > 1)
        counts[k : k + 1] = [1, counts[k] - 1]
    return counts


@right("lesson_08.balance")
def by_dynamic_programming(layer_s, n_stages):
    @lru_cache(None)
    def best(stop, p):
        if p == 1:
            return sum(layer_s[:stop]), (stop,)
        return min(
            (max(slowest, sum(layer_s[cut:stop])), (*counts, stop - cut))
            for cut in range(p - 1, stop)
            for slowest, counts in [best(cut, p - 1)]
        )

    return best(len(layer_s), n_stages)[1]


@right("lesson_08.balance")
def recursive_from_the_front(layer_s, n_stages):
    if n_stages == 1:
        return [len(layer_s)]
    ways = ([n, *recursive_from_the_front(layer_s[n:], n_stages - 1)] for n in range(1, len(layer_s) - n_stages + 2))

    def slowest(counts):
        ends = list(itertools.accumulate(counts, initial=0))
        return max(sum(layer_s[a:b]) for a, b in itertools.pairwise(ends))

    return min(ways, key=slowest)


@right("lesson_08.balance")
def with_numpy(layer_s, n_stages):
    sums = np.concatenate([[0.0], np.cumsum(layer_s)])
    cuts = np.array(list(itertools.combinations(range(1, len(layer_s)), n_stages - 1)), dtype=int)
    edges = np.column_stack([np.zeros(len(cuts), int), cuts.reshape(len(cuts), -1), np.full(len(cuts), len(layer_s))])
    return np.diff(edges[np.diff(sums[edges], axis=1).max(axis=1).argmin()])


@right("lesson_08.balance")
def last_of_all_ties(layer_s, n_stages):
    """A tuple, of the last best cut; times as fractions."""
    times = [Fraction(s) for s in layer_s]
    best, found = None, None
    for cuts in itertools.combinations(range(1, len(times)), n_stages - 1):
        edges = (0, *cuts, len(times))
        slowest = max(sum(times[a:b], Fraction(0)) for a, b in itertools.pairwise(edges))
        if best is None or slowest <= best:
            best, found = slowest, tuple(b - a for a, b in itertools.pairwise(edges))
    return found


# 8.6

Step = namedtuple("Step", "kind chunk batch")


def _forward(p, m, v):
    return [("F", c, g * p + k) for g in range(m // p) for c in range(v) for k in range(p)]


def _backward(p, m, v):
    return [("B", c, g * p + k) for g in range(m // p) for c in reversed(range(v)) for k in range(p)]


def _woven(p, m, v, rank):
    forward, backward = _forward(p, m, v), _backward(p, m, v)
    warm = 2 * (p - rank - 1) + (v - 1) * p
    yield from forward[:warm]
    for f, b in itertools.zip_longest(forward[warm:], backward):
        if f is not None:
            yield f
        yield b


right_values("lesson_08.interleaved_order", "a_generator", _woven)
right_values("lesson_08.interleaved_order", "a_tuple", lambda p, m, v, r: tuple(_woven(p, m, v, r)))
right_values("lesson_08.interleaved_order", "lists", lambda p, m, v, r: [list(step) for step in _woven(p, m, v, r)])
right_values("lesson_08.interleaved_order", "named", lambda p, m, v, r: [Step(*step) for step in _woven(p, m, v, r)])
right_values(
    "lesson_08.interleaved_order", "numpy_numbers",
    lambda p, m, v, r: [(kind, np.int64(c), np.int64(k)) for kind, c, k in _woven(p, m, v, r)],
)  # fmt: skip


@right("lesson_08.interleaved_order")
def by_room_for_chunks(p, m, v, rank):
    """Forward while there is room, else backward."""
    forward, backward, order, flying = deque(_forward(p, m, v)), deque(_backward(p, m, v)), [], 0
    room = 2 * (p - rank - 1) + (v - 1) * p + 1
    while backward:
        if forward and flying < room:
            order.append(forward.popleft())
            flying += 1
        else:
            order.append(backward.popleft())
            flying -= 1
    return order


# 8.7


def _zero(p, m, rank):
    turns = []
    for kind, k in _turns(m, p - rank - 1):
        turns.append((kind, k))
        if kind == "B" and k >= rank:
            turns.append(("W", k - rank))
    return turns + [("W", k) for k in range(max(0, m - rank), m)]


right_values("lesson_08.zero_bubble_order", "a_generator", lambda p, m, r: (step for step in _zero(p, m, r)))
right_values("lesson_08.zero_bubble_order", "lists", lambda p, m, r: [[*step] for step in _zero(p, m, r)])
right_values("lesson_08.zero_bubble_order", "a_deque", lambda p, m, r: deque(_zero(p, m, r)))
right_values(
    "lesson_08.zero_bubble_order", "tensors",
    lambda p, m, r: [(kind, torch.tensor(k)) for kind, k in _zero(p, m, r)],
)  # fmt: skip
right_values(
    "lesson_08.zero_bubble_order",
    "the_last_w_in_another_order",
    lambda p, m, r: _zero(p, m, r)[: 3 * m - min(r, m)] + [("W", k) for k in range(m - 1, max(-1, m - r - 1), -1)],
)


@right(*_1F1B)
def keeps_what_it_sends(stage, batches, rank, world_size):
    """Each tensor beside its handle, until that has been waited for."""
    n, sends, losses = sum(map(len, batches)), [], []
    for kind, k in _turns(len(batches), world_size - 1 - rank):
        peer = rank + 1 if kind == "F" else rank - 1
        if kind == "F":
            x = batches[k]
            if rank:
                x = torch.empty_like(x)
                dist.recv(x, rank - 1)
            y = stage.forward(k, x)
            losses += [y.item() * len(x) / n] if rank + 1 == world_size else []
        else:
            g = len(batches[k]) / n
            if rank + 1 < world_size:
                g = torch.empty_like(batches[k])
                dist.recv(g, rank + 1)
            y = stage.backward(k, g)
        if 0 <= peer < world_size:
            sends.append((dist.isend(y, peer), y))
    for handle, _ in sends:
        handle.wait()
    return sum(losses) if losses else None
