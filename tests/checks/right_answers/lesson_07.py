"""Right answers to lesson 07 that are not the reference's."""

from __future__ import annotations

import itertools
from decimal import Decimal
from fractions import Fraction

import numpy as np
import torch
import torch.distributed as dist

from tests.checks.right_answers import right, right_values

# 7.1

right_values(
    "lesson_07.state_bytes",
    "sums_a_list",
    lambda n, s, k: sum(b * n / (s if k > i else 1) for i, b in enumerate((12, 2, 2))),
)
right_values("lesson_07.state_bytes", "a_fraction", lambda n, s, k: sum(
    Fraction(b * n, s if k > i else 1) for i, b in enumerate((12, 2, 2))))  # fmt: skip
right_values("lesson_07.state_bytes", "a_decimal", lambda n, s, k: sum(
    Decimal(b * n) / (s if k > i else 1) for i, b in enumerate((12, 2, 2))))  # fmt: skip
right_values("lesson_07.state_bytes", "a_table", lambda n, s, k: n * (16, 4 + 12 / s, 2 + 14 / s, 16 / s)[k])
right_values("lesson_07.state_bytes", "numpy", lambda n, s, k: np.float64(n) * np.array(
    [16, 4 + 12 / s, 2 + 14 / s, 16 / s])[k])  # fmt: skip
right_values(
    "lesson_07.state_bytes",
    "a_tensor",
    lambda n, s, k: torch.tensor(n * (16 - (0, 12, 14, 16)[k] * (1 - 1 / s)), dtype=torch.float64),
)
right_values(
    "lesson_07.activation_bytes", "as_published", lambda s, b, h, a, r: s * b * h * (34 + (0 if r else 5 * a * s / h))
)


def _row_by_row(s, b, h, a, r):
    attention, square = 6 * 2 * b * s * h, 0 if r else (2 + 1 + 2) * b * a * s * s
    return attention + square + 2 * 2 * b * s * h + 2 * 2 * b * s * 4 * h + 2 * b * s * h


right_values("lesson_07.activation_bytes", "row_by_row", _row_by_row)
right_values(
    "lesson_07.activation_bytes", "a_float", lambda s, b, h, a, r: 34.0 * s * b * h + 5.0 * (1 - r) * a * b * s**2
)
right_values("lesson_07.activation_bytes", "of_tensors", lambda s, b, h, a, r: sum(
    torch.empty(shape, dtype=kind, device="meta").nbytes
    for shape, kind, n in (((b, s, h), torch.half, 8), ((b, s, 4 * h), torch.half, 2), ((b, s, h), torch.bool, 2),
                           ((b, a, s, s), torch.half, 0 if r else 2), ((b, a, s, s), torch.bool, 0 if r else 1))
    for _ in range(n)))  # fmt: skip
right_values("lesson_07.activation_bytes", "numpy", lambda s, b, h, a, r: np.dot(
    [34, 0 if r else 5], [float(s * b * h), float(a * b * s * s)]))  # fmt: skip

# 7.2


@right("lesson_07.recomputed")
class KeepsEverySegmentsStart:
    """Of the last segment too, though it needs none."""

    def __init__(self, layers, n_segments):
        self.layers = list(layers)
        size = -(-len(layers) // n_segments)
        self.borders = [*range(0, len(layers), size), len(layers)]

    def forward(self, x):
        self.kept = {}
        for k, layer in enumerate(self.layers):
            if k in self.borders:
                self.kept[k] = x.clone(), torch.random.get_rng_state()
            x = layer.forward(x, k >= self.borders[-2])
        return x

    def backward(self, gradient):
        for start, stop in reversed(list(itertools.pairwise(self.borders))):
            x, state = self.kept.pop(start)
            if stop < len(self.layers):
                with torch.random.fork_rng(devices=[]):
                    torch.random.set_rng_state(state)
                    for layer in self.layers[start:stop]:
                        x = layer.forward(x, keep=True)
            for layer in self.layers[start:stop][::-1]:
                gradient = layer.backward(gradient)
        return gradient


@right("lesson_07.recomputed")
class CutsByQuotas:
    """Sizes that differ by at most one, and one tensor for all that is kept."""

    def __init__(self, layers, n_segments):
        self.parts = [
            [layers[i] for i in range(k * len(layers) // n_segments, (k + 1) * len(layers) // n_segments)]
            for k in range(n_segments)
        ]

    def forward(self, x):
        self.kept, self.states = x.new_empty(len(self.parts) - 1, *x.shape), []
        for k, part in enumerate(self.parts[:-1]):
            self.kept[k] = x
            self.states.append(torch.get_rng_state())
            for layer in part:
                x = layer.forward(x, keep=False)
        for layer in self.parts[-1]:
            x = layer.forward(x, keep=True)
        return x

    def backward(self, gradient):
        gradient = self.back(self.parts[-1], gradient)
        for k in range(len(self.parts) - 2, -1, -1):
            before = torch.get_rng_state()
            torch.set_rng_state(self.states[k])
            x = self.kept[k]
            for layer in self.parts[k]:
                x = layer.forward(x)
            torch.set_rng_state(before)
            gradient = self.back(self.parts[k], gradient)
        return gradient

    def back(self, part, gradient):
        for layer in reversed(part):
            gradient = layer.backward(gradient)
        return gradient


class _Segment:
    def __init__(self, layers, is_last):
        self.layers, self.is_last = layers, is_last

    def forward(self, x):
        if not self.is_last:
            self.x, self.state = x, torch.get_rng_state()
        for layer in self.layers:
            x = layer.forward(x, keep=self.is_last)
        return x

    def backward(self, gradient):
        if not self.is_last:
            now, x = torch.get_rng_state(), self.x
            del self.x
            torch.set_rng_state(self.state)
            for layer in self.layers:
                x = layer.forward(x)
            torch.set_rng_state(now)
        for layer in self.layers[::-1]:
            gradient = layer.backward(gradient)
        return gradient


@right("lesson_07.recomputed")
class HasAnObjectASegment:
    def __init__(self, layers, n_segments):
        size = -(-len(layers) // n_segments)
        self.segments = [_Segment(layers[k : k + size], k + size >= len(layers)) for k in range(0, len(layers), size)]

    def forward(self, x):
        for segment in self.segments:
            x = segment.forward(x)
        return x

    def backward(self, gradient):
        for segment in self.segments[::-1]:
            gradient = segment.backward(gradient)
        return gradient


@right("lesson_07.recomputed")
class IsRecursive:
    def __init__(self, layers, n_segments):
        self.layers, self.size, self.stack = layers, -(-len(layers) // n_segments), []

    def forward(self, x, k=0):
        if k == 0:
            self.stack = []
        is_last = k + self.size >= len(self.layers)
        if not is_last:
            self.stack.append((k, x, torch.get_rng_state()))
        for layer in self.layers[k : k + self.size]:
            x = layer.forward(x, keep=is_last)
        return x if is_last else self.forward(x, k + self.size)

    def backward(self, gradient, k=None):
        k = (len(self.layers) - 1) // self.size * self.size if k is None else k
        for layer in reversed(self.layers[k : k + self.size]):
            gradient = layer.backward(gradient)
        if not self.stack:
            return gradient
        k, x, state = self.stack.pop()
        with torch.random.fork_rng(devices=()):
            torch.set_rng_state(state)
            for layer in self.layers[k : k + self.size]:
                x = layer.forward(x)
        return self.backward(gradient, k)


@right("lesson_07.recomputed")
class PutsTheLongSegmentLast:
    """The last segment is the longest, so that as few layers as possible run twice."""

    def __init__(self, layers, n_segments):
        size, borders = -(-len(layers) // n_segments), [len(layers)]
        while borders[0] > 0:
            borders.insert(0, max(0, borders[0] - size))
        self.parts = [layers[a:b] for a, b in itertools.pairwise(borders)]

    def forward(self, x):
        self.memory = []
        for k, part in enumerate(self.parts):
            if k + 1 < len(self.parts):
                self.memory += [x, torch.get_rng_state()]
            for layer in part:
                x = layer.forward(x, k + 1 == len(self.parts))
        return x

    def backward(self, gradient):
        for k, part in reversed(list(enumerate(self.parts))):
            if k + 1 < len(self.parts):
                state, x, now = self.memory.pop(), self.memory.pop(), torch.get_rng_state()
                torch.set_rng_state(state)
                for layer in part:
                    x = layer.forward(x)
                torch.set_rng_state(now)
            for layer in reversed(part):
                gradient = layer.backward(gradient)
        return gradient


# 7.3


def _padded(tensors, n):
    flat = torch.zeros(n, dtype=tensors[0].dtype)
    place = 0
    for t in tensors:
        flat[place : place + t.numel()] = t.detach().reshape(-1)
        place += t.numel()
    return flat


def _unpack(flat, tensors):
    with torch.no_grad():
        for t, part in zip(tensors, flat.split([t.numel() for t in tensors])):
            t.copy_(part.view(t.shape))


class _Sharded:
    def __init__(self, model, lr):
        self.model, self.lr, self.t = model, lr, 0
        self.n = sum(p.numel() for p in model.parameters())
        self.size = -(-self.n // dist.get_world_size())
        self.dtype = next(model.parameters()).dtype

    @property
    def own(self):
        return slice(dist.get_rank() * self.size, (dist.get_rank() + 1) * self.size)

    def flat(self, tensors):
        return _padded(list(tensors), self.size * dist.get_world_size())


@right("lesson_07.sharded_adam")
class HasTheModelInOneFlatVector(_Sharded):
    """As DeepSpeed has it: parameters are views, and what is gathered is theirs at once."""

    def __init__(self, model, lr):
        super().__init__(model, lr)
        parameters = list(model.parameters())
        self.whole = self.flat(parameters)
        for p, part in zip(parameters, self.whole[: self.n].split([p.numel() for p in parameters])):
            p.data = part.view(p.shape)
        self.m = torch.zeros(self.size, dtype=self.dtype)
        self.v = self.m.clone()

    def step(self):
        g = torch.empty_like(self.m)
        dist.reduce_scatter_tensor(g, self.flat(p.grad for p in self.model.parameters()))
        g /= dist.get_world_size()
        self.t += 1
        self.m.lerp_(g, 0.1)
        self.v.mul_(0.999).addcmul_(g, g, value=0.001)
        mine = self.whole[self.own].clone()
        mine -= self.lr * self.m / (1 - 0.9**self.t) / ((self.v / (1 - 0.999**self.t)).sqrt() + 1e-8)
        dist.all_gather_into_tensor(self.whole, mine)


@right("lesson_07.sharded_adam")
class HasTorchsAdamOnItsShard(_Sharded):
    def __init__(self, model, lr):
        super().__init__(model, lr)
        self.shard = torch.nn.Parameter(self.flat(model.parameters())[self.own].clone())
        self.inner = torch.optim.Adam([self.shard], lr=lr)

    def step(self):
        flat = self.flat(p.grad for p in self.model.parameters())
        self.shard.grad = torch.empty_like(self.shard)
        dist.reduce_scatter_tensor(self.shard.grad, flat)
        self.shard.grad /= dist.get_world_size()
        self.inner.step()
        self.shard.grad = None
        dist.all_gather_into_tensor(flat, self.shard.detach())
        _unpack(flat[: self.n], list(self.model.parameters()))


@right("lesson_07.sharded_adam")
class HasOneTableForItsState(_Sharded):
    """m and v are two rows; asynchronous calls; the division before the sum."""

    def __init__(self, model, lr):
        super().__init__(model, lr)
        self.state = torch.zeros(2, self.size, dtype=self.dtype)

    def step(self):
        parameters = list(self.model.parameters())
        flat, g = self.flat(p.grad for p in parameters) / dist.get_world_size(), torch.zeros_like(self.state[0])
        dist.reduce_scatter(g, list(flat.chunk(dist.get_world_size())), async_op=True).wait()
        self.t += 1
        self.state[0].lerp_(g, 0.1)
        self.state[1].lerp_(g * g, 0.001)
        step = self.lr * self.state[0] / (1 - 0.9**self.t)
        step /= torch.sqrt(self.state[1] / (1 - 0.999**self.t)) + 1e-8
        w = self.flat(parameters)
        pieces = [torch.empty_like(g) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, w[self.own] - step, async_op=True).wait()
        _unpack(torch.cat(pieces)[: self.n], parameters)


@right("lesson_07.sharded_adam")
class CutsUnevenly(_Sharded):
    """Shards that differ by one element, exchanged by all_to_all: sums are made at home."""

    def __init__(self, model, lr):
        super().__init__(model, lr)
        places = torch.arange(self.n).tensor_split(dist.get_world_size())
        self.sizes = [len(p) for p in places]
        self.m, self.v = torch.zeros(2, self.sizes[dist.get_rank()], dtype=self.dtype).unbind()

    def step(self):
        parameters, rank, size = list(self.model.parameters()), dist.get_rank(), dist.get_world_size()
        flat = torch.cat([p.grad.flatten() for p in parameters])
        got = flat.new_empty(size * self.sizes[rank])
        dist.all_to_all_single(got, flat, [self.sizes[rank]] * size, self.sizes)
        g = got.view(size, self.sizes[rank]).mean(0)
        self.t += 1
        self.m.mul_(0.9).add_(0.1 * g)
        self.v.mul_(0.999).add_(0.001 * g * g)
        w = torch.cat([p.detach().flatten() for p in parameters]).split(self.sizes)[rank]
        w = w - self.lr * self.m / (1 - 0.9**self.t) / ((self.v / (1 - 0.999**self.t)) ** 0.5 + 1e-8)
        whole = flat.new_empty(self.n)
        dist.all_to_all_single(whole, w.repeat(size), self.sizes, [self.sizes[rank]] * size)
        _unpack(whole, parameters)


@right("lesson_07.sharded_adam")
class GoesAroundARing(_Sharded):
    """Lesson 02's ring from send and receive."""

    def __init__(self, model, lr):
        super().__init__(model, lr)
        self.m, self.v = torch.zeros(self.size, dtype=self.dtype), torch.zeros(self.size, dtype=self.dtype)

    def around(self, pieces, first, *, adds):
        rank, size = dist.get_rank(), dist.get_world_size()
        for step in range(size - 1):
            out, into = (first - step) % size, (first - step - 1) % size
            room = torch.empty_like(pieces[into])
            work = dist.isend(pieces[out].clone(), (rank + 1) % size)
            dist.recv(room, (rank - 1) % size)
            work.wait()
            pieces[into].copy_(pieces[into] + room if adds else room)

    def step(self):
        parameters, rank, size = list(self.model.parameters()), dist.get_rank(), dist.get_world_size()
        pieces = list(self.flat(p.grad for p in parameters).split(self.size))
        self.around(pieces, rank - 1, adds=True)
        g = pieces[rank] / size
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * g
        self.v = 0.999 * self.v + 0.001 * g**2
        flat = self.flat(parameters)
        flat[self.own] -= self.lr * self.m / (1 - 0.9**self.t) / ((self.v / (1 - 0.999**self.t)).sqrt() + 1e-8)
        self.around(list(flat.split(self.size)), rank, adds=False)
        _unpack(flat[: self.n], parameters)


@right("lesson_07.sharded_adam")
class KeepsItsOwnWeights(_Sharded):
    def __init__(self, model, lr):
        super().__init__(model, lr)
        self.kept = {"w": self.flat(model.parameters())[self.own].clone()}
        self.kept |= {"m": torch.zeros_like(self.kept["w"]), "v": torch.zeros_like(self.kept["w"])}

    @torch.no_grad()
    def step(self):
        parameters, size = list(self.model.parameters()), dist.get_world_size()
        flat = self.flat(p.grad for p in parameters)
        scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
        gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
        g = torch.zeros(self.size, dtype=self.dtype)
        scatter(g, flat, op=dist.ReduceOp.SUM)
        g.div_(size)
        self.t += 1
        self.kept["m"] += 0.1 * (g - self.kept["m"])
        self.kept["v"] += 0.001 * (g.square() - self.kept["v"])
        scale = (1 - 0.999**self.t) ** 0.5 / (1 - 0.9**self.t)
        eps = 1e-8 * (1 - 0.999**self.t) ** 0.5
        self.kept["w"].addcdiv_(self.kept["m"], self.kept["v"].sqrt() + eps, value=-self.lr * scale)
        gather(flat, self.kept["w"])
        _unpack(flat[: self.n], parameters)


@right("lesson_07.sharded_adam")
class StepsTorchsOwnOnAShard(_Sharded):
    """torch.optim.Adam on one parameter, which is this rank's shard."""

    def __init__(self, model, lr):
        super().__init__(model, lr)
        mine = _padded(list(model.parameters()), self.size * dist.get_world_size()).split(self.size)[dist.get_rank()]
        self.w = torch.nn.Parameter(mine.clone())
        self.adam = torch.optim.Adam([self.w], lr=lr)

    def step(self):
        world_size, parameters = dist.get_world_size(), list(self.model.parameters())
        g = torch.empty_like(self.w.data)
        flat = _padded([p.grad for p in parameters], self.size * world_size)
        dist.reduce_scatter(g, list(flat.split(self.size)))
        self.w.grad = g / world_size
        self.adam.step()
        self.w.grad = None
        dist.all_gather(list(flat.split(self.size)), self.w.data)
        _unpack(flat[: self.n], parameters)


@right("lesson_07.sharded_adam")
class ExchangesWithAllToAll(_Sharded):
    """Everybody's piece comes as it is, and each rank takes the mean; betas are constants."""

    def __init__(self, model, lr):
        super().__init__(model, lr)
        self.mv = torch.zeros(2, self.size, dtype=self.dtype)

    @torch.no_grad()
    def step(self):
        world_size, parameters = dist.get_world_size(), list(self.model.parameters())
        n = self.size * world_size
        self.t += 1
        flat = torch.empty(n, dtype=self.dtype)
        dist.all_to_all_single(flat, _padded([p.grad for p in parameters], n))
        g = flat.view(world_size, -1).mean(0)
        self.mv[0].lerp_(g, 0.1)
        self.mv[1].lerp_(g * g, 0.001)
        m, v = self.mv[0] / (1 - 0.9**self.t), self.mv[1] / (1 - 0.999**self.t)
        w = _padded(parameters, n).view(world_size, -1)[dist.get_rank()] - self.lr * m / (v.sqrt() + 1e-8)
        dist.all_gather_into_tensor(flat, w)
        _unpack(flat[: self.n], parameters)


# 7.4


def _in_buckets(parameters, bucket_bytes):
    buckets, room = [], -1
    for p in parameters:
        n_bytes = p.numel() * p.element_size()
        if n_bytes > room:
            buckets, room = [*buckets, []], bucket_bytes
        buckets[-1].append(p)
        room -= n_bytes
    return buckets


class _Buckets:
    def __init__(self, model, bucket_bytes):
        self.buckets = _in_buckets(list(model.parameters())[::-1], bucket_bytes)
        self.begin()
        for k, bucket in enumerate(self.buckets):
            for p in bucket:
                p.register_post_accumulate_grad_hook(self.hook(k))

    def hook(self, k):
        def one_more(p):
            self.there[k] += 1
            self.go()

        return one_more

    def begin(self):
        self.there, self.next, self.shards, self.work = [0] * len(self.buckets), 0, [], None

    def go(self, everything=False):
        while self.next < len(self.buckets) and (everything or self.there[self.next] == len(self.buckets[self.next])):
            self.send(self.buckets[self.next])
            self.next += 1

    def flat(self, bucket):
        size = -(-sum(p.numel() for p in bucket) // dist.get_world_size())
        flat = _padded(
            [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket], size * dist.get_world_size()
        )
        for p in bucket:
            p.grad = None
        return flat, size

    def finish(self):
        if self.work is not None:
            self.work.wait()

    def wait(self):
        self.go(everything=True)
        self.finish()
        shards = self.shards
        self.begin()
        return shards


_TIMED = "lesson_07.sharded_gradients", "lesson_07.sharded_gradients_in_time"


@right(*_TIMED)
class DividesBeforeItSends(_Buckets):
    def send(self, bucket):
        self.finish()
        flat, size = self.flat(bucket)
        self.shards.append(torch.empty(size, dtype=bucket[0].dtype))
        self.work = dist.reduce_scatter_tensor(self.shards[-1], flat / dist.get_world_size(), async_op=True)


@right(*_TIMED)
class ScattersLists(_Buckets):
    """Divides a shard as it arrives."""

    def send(self, bucket):
        self.finish()
        flat, size = self.flat(bucket)
        shard = torch.zeros(size, dtype=flat.dtype)
        self.work = dist.reduce_scatter(
            shard, [piece.clone() for piece in flat.chunk(dist.get_world_size())], async_op=True
        )
        self.last = shard

    def finish(self):
        if self.work is not None:
            self.work.wait()
            self.shards.append(self.last / dist.get_world_size())
            self.work = None


@right(*_TIMED)
class CopiesThenDrops(_Buckets):
    """Gradients are copied as they come; the flat vector is the bucket that fills."""

    def begin(self):
        super().begin()
        self.flats = {}

    def send(self, bucket):
        self.finish()
        flat, size = self.flat(bucket)
        self.shards.append(flat.new_zeros(size))
        self.flats = {self.next: flat}
        self.work = dist.reduce_scatter(self.shards[-1], list(flat.split(size)), async_op=True)

    def wait(self):
        return [shard / dist.get_world_size() for shard in super().wait()]


@right(*_TIMED)
class LeavesOneRankAlone(_Buckets):
    """No message with one rank."""

    def send(self, bucket):
        self.finish()
        flat, size = self.flat(bucket)
        if dist.get_world_size() == 1:
            self.shards.append(flat)
            return
        shard = flat.new_empty(size)
        self.work = dist.reduce_scatter_tensor(shard, flat.div_(dist.get_world_size()), async_op=True)
        self.shards.append(shard)


@right(*_TIMED)
class KeepsAQueue(_Buckets):
    def begin(self):
        super().begin()
        self.queue = []

    def send(self, bucket):
        flat, size = self.flat(bucket)
        while self.queue:
            self.queue.pop()[0].wait()
        self.shards.append(torch.empty_like(flat[:size]))
        self.queue.append((dist.reduce_scatter_tensor(self.shards[-1], flat, async_op=True), flat))

    def finish(self):
        for work, _ in self.queue:
            work.wait()
        self.shards = [shard.div(dist.get_world_size()) for shard in self.shards]


# 7.5


class _Layers:
    def __init__(self, layers):
        self.layers, self.under_way = layers, {}

    def start(self, k):
        shard = self.layers[k].shard
        full = torch.empty(dist.get_world_size(), len(shard), dtype=shard.dtype)
        self.under_way[k] = full, dist.all_gather_into_tensor(full.view(-1), shard, async_op=True)

    def put(self, k):
        full, work = self.under_way.pop(k)
        work.wait()
        self.layers[k].fill(full.flatten()[: self.layers[k].n_elements])

    def in_pieces(self, whole, k):
        return list(
            _padded([whole], len(self.layers[k].shard) * dist.get_world_size()).split(len(self.layers[k].shard))
        )


_BOTH = "lesson_07.fully_sharded", "lesson_07.fully_sharded_in_time"


@right(*_BOTH)
class GathersTensors(_Layers):
    def forward(self, x):
        order = list(range(len(self.layers)))
        self.start(order[0])
        for k, after in itertools.zip_longest(order, order[1:]):
            self.put(k)
            if after is not None:
                self.start(after)
            x = self.layers[k].forward(x)
            self.layers[k].clear()
        return x

    def backward(self, gradient):
        order, works, shards = list(range(len(self.layers)))[::-1], [], {}
        self.start(order[0])
        for k, after in itertools.zip_longest(order, order[1:]):
            self.put(k)
            if after is not None:
                self.start(after)
            gradient, whole = self.layers[k].backward(gradient)
            self.layers[k].clear()
            shards[k] = torch.empty_like(self.layers[k].shard)
            flat = torch.cat(self.in_pieces(whole / dist.get_world_size(), k))
            works.append(dist.reduce_scatter_tensor(shards[k], flat, async_op=True))
        [work.wait() for work in works]
        return [shards[k] for k in range(len(self.layers))]


@right(*_BOTH)
class KeepsTheLastLayer(GathersTensors):
    """The last layer of forward is the first of backward: it stays."""

    def forward(self, x):
        last = len(self.layers) - 1
        self.start(0)
        for k, layer in enumerate(self.layers):
            self.put(k)
            if k < last:
                self.start(k + 1)
            x = layer.forward(x)
            if k < last:
                layer.clear()
        return x

    def start(self, k):
        if k != len(self.layers) - 1 or k not in self.under_way:
            super().start(k)

    def backward(self, gradient):
        last, works = len(self.layers) - 1, []
        shards = [torch.empty_like(layer.shard) for layer in self.layers]
        for k in range(last, -1, -1):
            if k < last:
                self.put(k)
            if k:
                self.start(k - 1)
            gradient, whole = self.layers[k].backward(gradient)
            self.layers[k].clear()
            works.append(dist.reduce_scatter(shards[k], self.in_pieces(whole, k), async_op=True))
        for work in works:
            work.wait()
        return [shard.div_(dist.get_world_size()) for shard in shards]


@right(*_BOTH)
class StartsBackwardsFirstGatherEarly(_Layers):
    """As soon as the last forward pass is over."""

    def run(self, order, step):
        if order[0] not in self.under_way:
            self.start(order[0])
        for place, k in enumerate(order):
            self.put(k)
            if place + 1 < len(order):
                self.start(order[place + 1])
            step(k)
            self.layers[k].clear()

    def forward(self, x):
        self.x = x

        def step(k):
            self.x = self.layers[k].forward(self.x)

        self.run(range(len(self.layers)), step)
        self.start(len(self.layers) - 1)
        x, self.x = self.x, None
        return x

    def backward(self, gradient):
        self.gradient, self.works = gradient, {}

        def step(k):
            self.gradient, whole = self.layers[k].backward(self.gradient)
            shard = torch.empty_like(self.layers[k].shard)
            self.works[k] = shard, dist.reduce_scatter(shard, self.in_pieces(whole, k), async_op=True)

        self.run(range(len(self.layers))[::-1], step)
        shards = []
        for k in range(len(self.layers)):
            shard, work = self.works.pop(k)
            work.wait()
            shards.append(shard / dist.get_world_size())
        self.gradient = None
        return shards


@right(*_BOTH)
class AsksIterators(_Layers):
    """A generator that yields layers ready to be used."""

    def ready(self, order):
        order = list(order)
        self.start(order[0])
        for place, k in enumerate(order):
            self.put(k)
            for after in order[place + 1 : place + 2]:
                self.start(after)
            yield k, self.layers[k]
            self.layers[k].clear()

    def forward(self, x):
        for _, layer in self.ready(range(len(self.layers))):
            x = layer.forward(x)
        return x

    def backward(self, gradient):
        found = []
        for k, layer in self.ready(reversed(range(len(self.layers)))):
            gradient, whole = layer.backward(gradient)
            shard = layer.shard.clone()
            found.insert(0, (shard, dist.reduce_scatter(shard, self.in_pieces(whole, k), async_op=True)))
        return [shard / dist.get_world_size() for shard, work in found if work.wait() or True]


@right(*_BOTH)
class GathersBeforeItReduces(GathersTensors):
    """The next layer's gather goes off before the last layer's gradients."""

    def backward(self, gradient):
        shards, works, held = [torch.empty_like(layer.shard) for layer in self.layers], [], None
        self.start(len(self.layers) - 1)
        for k in reversed(range(len(self.layers))):
            self.put(k)
            if k:
                self.start(k - 1)
            if held is not None:
                works.append(dist.reduce_scatter(shards[k + 1], self.in_pieces(held, k + 1), async_op=True))
            gradient, held = self.layers[k].backward(gradient)
            self.layers[k].clear()
        works.append(dist.reduce_scatter(shards[0], self.in_pieces(held, 0), async_op=True))
        for work in works:
            work.wait()
        return [shard / dist.get_world_size() for shard in shards]


@right(*_BOTH)
class GathersIntoOneBuffer(GathersTensors):
    """What is filled is a copy, so the buffer is free when the next gather starts."""

    def __init__(self, layers):
        super().__init__(layers)
        most = max(len(layer.shard) for layer in layers) * dist.get_world_size()
        self.buffer = torch.empty(most, dtype=layers[0].shard.dtype)

    def start(self, k):
        shard = self.layers[k].shard
        full = self.buffer[: len(shard) * dist.get_world_size()]
        self.under_way[k] = full, dist.all_gather_into_tensor(full, shard, async_op=True)


@right(*_BOTH)
class WaitsForOneScatterAPass(GathersTensors):
    """Each reduce_scatter is waited for after the next layer's pass, when it has had that long."""

    def backward(self, gradient):
        found, shards = None, {}
        self.start(len(self.layers) - 1)
        for k in reversed(range(len(self.layers))):
            self.put(k)
            if k:
                self.start(k - 1)
            gradient, whole = self.layers[k].backward(gradient)
            self.layers[k].clear()
            if found is not None:
                found.wait()
            shards[k] = torch.empty_like(self.layers[k].shard)
            found = dist.reduce_scatter(shards[k], self.in_pieces(whole, k), async_op=True)
        found.wait()
        return [shards[k] / dist.get_world_size() for k in range(len(self.layers))]


# 7.6


def _saves(store, step, shard, n_elements):
    store.write(f"{step}/{dist.get_rank()}", shard)
    dist.barrier()
    if dist.get_rank() == dist.get_world_size() - 1:
        store.write("head", torch.tensor([step, dist.get_world_size(), n_elements], dtype=torch.int64))


def _head(store):
    return [int(v) for v in store.read("head")]


def _element_by_element(store):
    step, n_saved, n = _head(store)
    old, new = -(-n // n_saved), -(-n // dist.get_world_size())
    shard = torch.zeros(new, dtype=store.read(f"{step}/0", 0, 0).dtype)
    for k in range(new):
        place = dist.get_rank() * new + k
        if place < n:
            shard[k] = store.read(f"{step}/{place // old}", place % old, place % old + 1)[0]
    return shard


def _fills_zeros(store):
    step, n_saved, n = _head(store)
    old, new = -(-n // n_saved), -(-n // dist.get_world_size())
    begin = dist.get_rank() * new
    shard = store.read(f"{step}/0", 0, 0).new_zeros(new)
    place = begin
    while place < min(begin + new, n):
        j, offset = divmod(place, old)
        length = min(old - offset, min(begin + new, n) - place)
        shard[place - begin : place - begin + length] = store.read(f"{step}/{j}", offset, offset + length)
        place += length
    return shard


def _lists_steps(store, step, shard, n_elements):
    """A file a step says that it is whole; nothing is ever replaced."""
    store.write(f"{step}/{dist.get_rank()}", shard)
    dist.barrier()
    if not dist.get_rank():
        store.write(f"whole/{step:08}", torch.tensor([step, dist.get_world_size(), n_elements]))


def _newest_of_the_list(store):
    name = max(name for name in store.names() if name.startswith("whole/"))

    class Renamed:
        def read(self, asked, *places):
            return store.read(name if asked == "head" else asked, *places)

    return _fills_zeros(Renamed())


def _counts_by_reduction(store, step, shard, n_elements):
    """An all_reduce in place of the barrier."""
    store.write(f"{step}/{dist.get_rank()}", shard)
    there = torch.ones(1)
    dist.all_reduce(there)
    if dist.get_rank() == 0:
        store.write("head", torch.tensor([step, int(there), n_elements]))


def _all_say_it(store, step, shard, n_elements):
    """Every rank writes the same head, after all have written."""
    store.write(f"{step}/{dist.get_rank()}", shard.clone())
    dist.barrier()
    store.write("head", torch.tensor([step, dist.get_world_size(), n_elements]))
    dist.barrier()


right_values("lesson_07.shards", "element_by_element", _saves, _element_by_element)
right_values("lesson_07.shards", "fills_zeros", _saves, _fills_zeros)
right_values("lesson_07.shards", "lists_its_steps", _lists_steps, _newest_of_the_list)
right_values("lesson_07.shards", "counts_by_reduction", _counts_by_reduction, _fills_zeros)
right_values("lesson_07.shards", "all_say_it", _all_say_it, _fills_zeros)


def _names_say_it(store, step, shard, n_elements):
    """No note: a step is whole if there are as many of its shards as each of their names says."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = shard[: max(0, n_elements - rank * len(shard))]  # the padding need not be kept
    store.write(f"{step:09d}/{world_size}/{n_elements}/{rank}", mine)
    dist.barrier()


def _newest_by_names(store):
    parts = [tuple(map(int, name.split("/"))) for name in store.names()]
    step, n_saved, n, _ = max(p for p in parts if sum(q[0] == p[0] for q in parts) == p[1])

    class Named:
        def read(self, name, *places):
            if name == "head":
                return torch.tensor([step, n_saved, n])
            return store.read(f"{step:09d}/{n_saved}/{n}/{name.split('/')[1]}", *places)

    return _fills_zeros(Named())


right_values("lesson_07.shards", "names_say_it", _names_say_it, _newest_by_names)


def _notes_a_fraction(store, step, shard, n_elements):
    """Beside the shards a float32, which another dtype than the shards' is made of on the way."""
    if dist.get_rank() == 0:
        store.write("done", torch.zeros(1))
    _saves(store, step, shard, n_elements)


right_values("lesson_07.shards", "notes_a_fraction", _notes_a_fraction, _fills_zeros)


@right("lesson_07.recomputed")
class KeepsAllByObjectOnItsClass:
    """What belongs to each object lies on the class, under the object."""

    own = {}  # noqa: RUF012

    def __init__(self, layers, n_segments):
        size = -(-len(layers) // n_segments)
        self.own[id(self)] = {"segments": [layers[k : k + size] for k in range(0, len(layers), size)], "starts": []}

    def forward(self, x):
        *early, last = self.own[id(self)]["segments"]
        self.own[id(self)]["starts"] = []
        for segment in early:
            self.own[id(self)]["starts"].append((x, torch.get_rng_state()))
            for layer in segment:
                x = layer.forward(x, keep=False)
        for layer in last:
            x = layer.forward(x)
        return x

    def backward(self, gradient):
        *early, last = self.own[id(self)]["segments"]
        for layer in reversed(last):
            gradient = layer.backward(gradient)
        for segment, (x, state) in reversed(list(zip(early, self.own[id(self)].pop("starts")))):
            now = torch.get_rng_state()
            torch.set_rng_state(state)
            for layer in segment:
                x = layer.forward(x)
            torch.set_rng_state(now)
            for layer in reversed(segment):
                gradient = layer.backward(gradient)
        return gradient
