"""Planted mistakes of lesson 04."""

from __future__ import annotations

import copy
import statistics
import time
from itertools import islice

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset

from hw_utils import Network
from tests.checks.wrong_answers import wrong, wrong_values

# The right functions, for mistakes that lie elsewhere. Switches leave one thing out.


def train(
    model, batches, sync, optimizer, report=print, *, zero=True, synced="before", timed=slice(1, 40), n=len,
    scale=1.0, first=1, step=True, shown=3, every=20, after=False, with_batch=False, with_report=False,
):  # fmt: skip
    losses, seconds, ended_s = [], [], time.perf_counter()
    for i, (x, y) in enumerate(batches, first):
        began_s = ended_s if with_batch else time.perf_counter()
        if zero:
            optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        if synced == "before":
            sync(model)
        if step:
            optimizer.step()
        if synced == "after":
            sync(model)
        ended_s = time.perf_counter()
        if after:
            with torch.no_grad():
                loss = cross_entropy(model.linear(x), y)
        losses.append(loss.item())
        if i % every == 0:
            report(f"iteration {i}: loss {losses[-1]:.{shown}f}")
            ended_s = time.perf_counter() if with_report else ended_s
        seconds.append(ended_s - began_s)
    part = seconds[timed]
    return losses, scale * sum(part) / n(part)


def _takes_the_median(model, batches, sync, optimizer, report=print):
    times = []

    def timed(model):
        times.append(time.perf_counter())
        sync(model)

    starts = []

    def noted():
        for batch in batches:
            starts.append(time.perf_counter())
            yield batch

    losses, _ = train(model, noted(), timed, optimizer, report)
    return losses, statistics.median(end - start for start, end in list(zip(starts, times))[1:40])


def _train(**change):
    return lambda *given: train(*given, **change)


def batches(dataset, rank, world_size, total_batch, epoch=0, seed=0):
    sampler = DistributedSampler(dataset, world_size, rank, seed=seed)
    sampler.set_epoch(epoch)
    return DataLoader(dataset, total_batch // world_size, sampler=sampler)


def gather_scatter(model):
    for p in model.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            if dist.get_rank() == 0:
                each = [torch.empty_like(p) for _ in range(dist.get_world_size())]
                dist.gather(p.grad, each)
                dist.scatter(p.grad, [torch.stack(each).mean(0)] * dist.get_world_size())
            else:
                dist.gather(p.grad)
                dist.scatter(p.grad)


def all_reduce_mean(model):
    for p in model.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


def evaluate(model, test):
    model.eval()
    with torch.no_grad():
        x, y = map(torch.cat, zip(*test))
        scores = model(x)
    return cross_entropy(scores, y).item(), (scores.argmax(1) == y).float().mean().item()


# 4.1 the loop

for _name, _change, _says in [
    ("forgets_zero_grad", {"zero": False}, "gradients of the last step are still there"),
    ("never_synchronises", {"synced": ""}, "sync was not called, or only after the step"),
    ("synchronises_after_the_step", {"synced": "after"}, "sync was not called, or only after the step"),
    ("takes_no_step", {"step": False}, "no step is taken"),
    ("counts_the_warm_up", {"timed": slice(0, 40)}, "which warms up, must not be"),
    ("times_every_iteration", {"timed": slice(1, None)}, "iterations after the 40th are in the mean"),
    ("adds_up_the_times", {"n": lambda part: 1}, "this is a sum"),
    ("divides_by_forty", {"n": lambda part: 40}, "is divided by 40: divide by how many there are"),
    ("counts_milliseconds", {"scale": 1000.0}, "these are milliseconds"),
    ("reports_from_zero", {"first": 0}, "iterations count from 1"),
    ("reports_one_digit", {"shown": 1}, "reported .* expected"),
    ("the_loss_after_the_step", {"after": True}, "the batch's own, before its step"),
]:
    wrong_values("lesson_04.train", _name, _train(**_change), says=_says)


wrong_values(
    "lesson_04.train", "takes_the_median", _takes_the_median, says="sync and the step are not in it.*the middle one"
)


def _times(*parts, unit=1.0, mean=statistics.fmean):
    """The loop with a clock that runs in `parts` of an iteration only."""

    def loop(model, batches, sync, optimizer, report=print):
        losses, seconds = [], []
        for i, (x, y) in enumerate(batches, 1):
            spent = {}

            def timed(name, work):
                start = time.perf_counter()
                result = work()
                spent[name] = time.perf_counter() - start  # noqa: B023, called at once
                return result

            timed("zero_grad", optimizer.zero_grad)
            loss = timed("forward", lambda: cross_entropy(model(x), y))  # noqa: B023, called at once
            timed("backward", loss.backward)
            timed("sync", lambda: sync(model))
            timed("step", optimizer.step)
            seconds.append(sum(spent[part] for part in ("zero_grad", *parts)))
            losses.append(loss.item())
            if i % 20 == 0:
                report(f"iteration {i}: loss {losses[-1]:.3f}")
        return losses, unit * mean(seconds[1:40])

    return loop


_ALL = ("forward", "backward", "sync", "step")
for _name, _loop, _says in [
    ("no_sync_in_the_time", _times("forward", "backward", "step"), "sync is not in it"),
    ("no_step_in_the_time", _times("forward", "backward", "sync"), "the step is not in it"),
    ("stops_the_clock_after_backward", _times("forward", "backward"), "sync and the step are not in it"),
    ("starts_the_clock_after_the_forward", _times("backward", "sync", "step"), "forward is not in it"),
    ("times_the_step_alone", _times("step"), "forward and backward and sync are not in it"),
    ("takes_the_middle", _times(*_ALL, mean=statistics.median), "this is the middle one"),
    ("takes_the_fastest", _times(*_ALL, mean=min), "this is the fastest one"),
    ("counts_microseconds", _times(*_ALL, unit=1e6), "these are microseconds"),
]:
    wrong_values("lesson_04.train", _name, _loop, says=_says)


@wrong("lesson_04.train", says="the losses come first")
def seconds_first(*given):
    return tuple(reversed(train(*given)))


@wrong("lesson_04.train", says="train returned 3 values.*exactly two")
def three_values(*given):
    return *train(*given), []


@wrong("lesson_04.train", says="train returned None.*exactly two")
def returns_nothing(*given):
    train(*given)


@wrong("lesson_04.train", says="keeps its whole graph")
def keeps_the_graphs(model, batches, sync, optimizer, report=print):
    kept = []

    def noted(model):
        sync(model)

    losses, iteration_s = train(model, batches, noted, optimizer, report)
    kept = [torch.tensor(loss, requires_grad=True) for loss in losses]
    return kept, iteration_s


@wrong("lesson_04.train", says="mean of the losses so far: each iteration's own")
def keeps_running_means(*given):
    losses, iteration_s = train(*given)
    return [sum(losses[: k + 1]) / (k + 1) for k in range(len(losses))], iteration_s


@wrong("lesson_04.train", says="the clock runs around the whole loop")
def times_the_whole_loop(*given):
    began_s = time.perf_counter()
    losses, _ = train(*given)
    return losses, (time.perf_counter() - began_s) / len(losses)


@wrong("lesson_04.train", says="not in training mode")
def trains_in_evaluation_mode(model, *given):
    model.eval()
    return train(model, *given)


@wrong("lesson_04.train", says="nothing but sync may touch the gradients")
def clips(model, batches, sync, optimizer, report=print):
    def and_clips(model):
        sync(model)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    return train(model, batches, and_clips, optimizer, report)


class _Scores(torch.nn.Module):
    def __init__(self, model, change):
        super().__init__()
        self.model, self.change = model, change

    def forward(self, x):
        return self.change(self.model(x))


@wrong("lesson_04.train", says="does the softmax itself")
def softmax_before_the_loss(model, *given):
    return train(_Scores(model, lambda scores: scores.softmax(1)), *given)


for _name, _report, _says in [
    ("reports_with_a_capital", str.capitalize, "to the letter"),
    ("reports_without_words", lambda text: text.removeprefix("iteration "), "to the letter"),
    ("reports_another_loss", lambda text: text[:-5] + "9.999", "that of this very iteration, not a mean"),
]:
    wrong_values("lesson_04.train", _name, lambda model, batches, sync, optimizer, report=print, change=_report: train(
        model, batches, sync, optimizer, lambda text: report(change(text))), says=_says)  # fmt: skip


_LOSSES = []


@wrong("lesson_04.train", says="must hold 5 numbers.*got 8.*a list that each call makes anew")
def keeps_the_losses_of_all_calls(*given):
    losses, iteration_s = train(*given)
    _LOSSES.extend(losses)
    return _LOSSES, iteration_s


@wrong("lesson_04.train", says="that is another iteration's loss")
def reports_the_loss_before(model, batches, sync, optimizer, report=print):
    said = []
    losses, iteration_s = train(model, batches, sync, optimizer, said.append)
    for k in (int(text.split()[1][:-1]) for text in said):
        report(f"iteration {k}: loss {losses[k - 2]:.3f}")
    return losses, iteration_s


wrong_values("lesson_04.train", "reports_every_tenth", _train(every=10), says="one report every 20 iterations, no more")


@wrong("lesson_04.train", says="call report\\(text\\), not print")
def prints(model, batches, sync, optimizer, report=print):
    return train(model, batches, sync, optimizer, print)


@wrong("lesson_04.train", says="losses must hold 5 numbers")
def only_reported_losses(model, batches, sync, optimizer, report):
    losses, iteration_s = train(model, batches, sync, optimizer, report)
    return losses[19::20], iteration_s


@wrong("lesson_04.train", says="reports came after \\[45, 45\\] iterations")
def reports_when_it_is_over(model, batches, sync, optimizer, report=print):
    texts = []
    found = train(model, batches, sync, optimizer, texts.append)
    for text in texts:
        report(text)
    return found


wrong_values("lesson_04.train", "times_the_batch", _train(with_batch=True), says="until a batch is there is in it")
wrong_values("lesson_04.train", "times_the_report", _train(with_report=True), says="the reports are in it")


@wrong("lesson_04.train", says="right to two digits or three, so rounded")
def rounds_the_losses(model, batches, sync, optimizer, report=print):
    losses, iteration_s = train(model, batches, sync, optimizer, report)
    return [round(loss, 3) for loss in losses], iteration_s


@wrong("lesson_04.all_reduce_mean", says="on rank 0 alone, which was the one that had a gradient: every rank divides")
def divides_where_there_was_a_gradient(model):
    for p in model.parameters():
        if p.requires_grad:
            had_one = p.grad is not None
            p.grad = p.grad if had_one else torch.zeros_like(p)
            dist.all_reduce(p.grad)
            if had_one:
                p.grad /= dist.get_world_size()


@wrong("lesson_04.evaluate", says="afterwards the model's parameters are not what they were")
def stops_following_the_weights(model, test):
    model.requires_grad_(False)
    return evaluate(model, test)


@wrong("lesson_04.evaluate", says="after evaluate autograd is off, for its caller too.*no_grad.*ends by itself")
def leaves_autograd_off(model, test):
    torch.set_grad_enabled(False)
    return evaluate(model, test)


@wrong("lesson_04.evaluate", says="that is how sure the model is")
def adds_up_probabilities(model, test):
    x, y = map(torch.cat, zip(*test))
    with torch.no_grad():
        shares = model.eval()(x).softmax(1)
    return evaluate(model, test)[0], shares[torch.arange(len(y)), y].mean().item()


@wrong("lesson_04.evaluate", says="called in training mode")
def tests_a_copy_in_training_mode(model, test):
    copied = copy.deepcopy(model)
    model.eval()
    scores, y = (torch.cat(parts) for parts in zip(*((copied(x).detach(), y) for x, y in test)))
    return cross_entropy(scores, y).item(), (scores.argmax(1) == y).float().mean().item()


@wrong("lesson_04.evaluate", says="mean of the batches' means")
def mean_of_means(model, test):
    model.eval()
    with torch.no_grad():
        loss = sum(cross_entropy(model(x), y).item() for x, y in test) / len(test)
    return loss, evaluate(model, test)[1]


@wrong("lesson_04.evaluate", says="training mode")
def forgets_eval(model, test):
    with torch.no_grad():
        x, y = map(torch.cat, zip(*test))
        scores = model(x)
    return cross_entropy(scores, y).item(), (scores.argmax(1) == y).float().mean().item()


@wrong("lesson_04.evaluate", says="torch.no_grad")
def records_gradients(model, test):
    model.eval()
    x, y = map(torch.cat, zip(*test))
    scores = model(x)
    return cross_entropy(scores, y).item(), (scores.argmax(1) == y).float().mean().item()


wrong_values(
    "lesson_04.evaluate", "in_percent", lambda m, t: (evaluate(m, t)[0], 100 * evaluate(m, t)[1]), says="percent"
)
wrong_values("lesson_04.evaluate", "counts_right_answers", lambda m, t: (
    evaluate(m, t)[0], evaluate(m, t)[1] * sum(len(y) for _, y in t)), says="divide by the number of examples",
)  # fmt: skip


@wrong("lesson_04.evaluate", says="this is the sum over the examples")
def adds_up_the_losses(model, test):
    loss, accuracy = evaluate(model, test)
    return loss * sum(len(y) for _, y in test), accuracy


@wrong("lesson_04.evaluate", says="the test loss must be a number")
def not_a_number(model, test):
    return float("nan"), evaluate(model, test)[1]


for _name, _change, _says in [
    ("accuracy_first", lambda loss, share, n: (share, loss), "the other way round"),
    ("one_value", lambda loss, share, n: loss, "exactly two"),
    ("wrong_answers_counted", lambda loss, share, n: (loss, 1 - share), "the share of wrong answers"),
]:
    wrong_values("lesson_04.evaluate", _name, lambda m, t, change=_change: change(
        *evaluate(m, t), sum(len(y) for _, y in t)), says=_says)  # fmt: skip


def _over_batches(loss_of, right_of, n_of=lambda sizes: sum(sizes)):
    def answer(model, test):
        model.eval()
        with torch.no_grad():
            pairs = [(model(x), y) for x, y in test]
        n = n_of([len(y) for _, y in pairs])
        return sum(loss_of(s, y) for s, y in pairs) / n, sum(right_of(s, y) for s, y in pairs) / n

    return answer


def _summed(scores, y):
    return cross_entropy(scores, y, reduction="sum").item()


def _hits(scores, y):
    return (scores.argmax(1) == y).sum().item()


for _name, _answer, _says in [
    ("the_smallest_score", _over_batches(_summed, lambda s, y: (s.argmin(1) == y).sum().item()), "not the smallest"),
    ("only_when_sure", _over_batches(_summed, lambda s, y: (
        (s.softmax(1) > 0.5) & torch.nn.functional.one_hot(y, 3).bool()).sum().item()), "however sure the model is"),
    ("softmax_twice", _over_batches(lambda s, y: _summed(s.softmax(1), y), _hits), "does the softmax itself"),
    ("none_counts", _over_batches(_summed, lambda s, y: sum(map(id, s.argmax(1))) == 0), "nobody is right"),
    ("by_the_last_batch", _over_batches(_summed, _hits, lambda sizes: sizes[-1]), "the size of the last batch"),
    ("by_the_number_of_batches", _over_batches(_summed, _hits, len), "number of batches|that of the batches"),
    ("mean_of_shares", lambda m, t: (evaluate(m, t)[0], statistics.fmean(
        evaluate(m, [batch])[1] for batch in t)), "the mean of the batches' shares"),
]:  # fmt: skip
    wrong_values("lesson_04.evaluate", _name, _answer, says=_says)


# 4.2 batches


@wrong("lesson_04.batches", says="x and y have changed places")
def gives_labels_first(dataset, rank, world_size, total_batch, epoch=0, seed=0):
    return [(y, x) for x, y in batches(dataset, rank, world_size, total_batch, epoch, seed)]


@wrong("lesson_04.batches", says="a batch is a Tensor, expected a pair")
def gives_no_labels(dataset, rank, world_size, total_batch, epoch=0, seed=0):
    return [x for x, _ in batches(dataset, rank, world_size, total_batch, epoch, seed)]


@wrong("lesson_04.batches", says="x and y of an example stay together")
def shifts_the_labels(dataset, rank, world_size, total_batch, epoch=0, seed=0):
    return [(x, y.roll(1)) for x, y in batches(dataset, rank, world_size, total_batch, epoch, seed)]


@wrong("lesson_04.batches", says="epoch 2 has the same order as epoch 0")
def has_two_orders_in_turn(dataset, rank, world_size, total_batch, epoch=0, seed=0):
    return batches(dataset, rank, world_size, total_batch, epoch % 2, seed)


@wrong("lesson_04.batches", says="total_batch counts all ranks")
def whole_batch_on_every_rank(dataset, rank, world_size, total_batch, epoch=0, seed=0):
    return batches(dataset, rank, world_size, total_batch * world_size, epoch, seed)


@wrong("lesson_04.batches", says="same order as epoch 0.*set_epoch")
def forgets_the_epoch(dataset, rank, world_size, total_batch, epoch=0, seed=0):
    return batches(dataset, rank, world_size, total_batch, 0, seed)


@wrong("lesson_04.batches", says="pass seed to the sampler")
def forgets_the_seed(dataset, rank, world_size, total_batch, epoch=0, seed=0):
    return batches(dataset, rank, world_size, total_batch, epoch)


@wrong("lesson_04.batches", says="every rank takes the same part")
def forgets_the_rank(dataset, rank, world_size, total_batch, epoch=0, seed=0):
    return batches(dataset, 0, world_size, total_batch, epoch, seed)


@wrong("lesson_04.batches", says="give the DataLoader the sampler")
def no_sampler(dataset, rank, world_size, total_batch, epoch=0, seed=0):
    mixed = torch.Generator().manual_seed(seed + 100 * epoch + rank)
    return DataLoader(dataset, total_batch // world_size, shuffle=True, generator=mixed)


@wrong("lesson_04.batches", says="ranks must share one order|in no rank's part")
def a_seed_of_its_own(dataset, rank, world_size, total_batch, epoch=0, seed=0):
    return batches(dataset, rank, world_size, total_batch, epoch, seed + rank)


@wrong("lesson_04.batches", says="dealt out like cards")
def cuts_off_the_rest(dataset, rank, world_size, total_batch, epoch=0, seed=0):
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed + epoch))
    size = len(dataset) // world_size
    part = Subset(dataset, order[rank * size : (rank + 1) * size].tolist())
    return DataLoader(part, total_batch // world_size)


@wrong("lesson_04.batches", says="ranks must share one order")
def one_rank_one_seed(dataset, rank, world_size, total_batch, epoch=0, seed=0):
    return batches(dataset, rank, world_size, total_batch, epoch, seed + 7 * rank)


@wrong("lesson_04.batches", says="shuffle=True is the sampler's")
def never_shuffles_but_says_the_epoch(dataset, rank, world_size, total_batch, epoch=0, seed=0):
    sampler = DistributedSampler(dataset, world_size, rank, shuffle=False, seed=seed)
    sampler.set_epoch(epoch)
    return DataLoader(dataset, total_batch // world_size, sampler=sampler)


@wrong("lesson_04.batches", says="dealt out like cards")
def in_blocks(dataset, rank, world_size, total_batch, epoch=0, seed=0):
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed + epoch)).tolist()
    size = -(-len(order) // world_size)
    order += order[: size * world_size - len(order)]
    return DataLoader(dataset, total_batch // world_size, sampler=order[rank * size : (rank + 1) * size])


@wrong("lesson_04.batches", says="no drop_last, neither in the sampler nor in the loader")
def drops_the_last_batch(dataset, rank, world_size, total_batch, epoch=0, seed=0):
    sampler = DistributedSampler(dataset, world_size, rank, seed=seed)
    sampler.set_epoch(epoch)
    return DataLoader(dataset, total_batch // world_size, sampler=sampler, drop_last=True)


@wrong("lesson_04.batches", says="same order as epoch 0.*nothing is mixed")
def never_shuffles(dataset, rank, world_size, total_batch, epoch=0, seed=0):
    sampler = DistributedSampler(dataset, world_size, rank, shuffle=False)
    return DataLoader(dataset, total_batch // world_size, sampler=sampler)


@wrong("lesson_04.batches", says="another order the second time")
def unseeded(dataset, rank, world_size, total_batch, epoch=0, seed=0):
    if world_size > 1:
        return batches(dataset, rank, world_size, total_batch, epoch, seed)
    return DataLoader(dataset, total_batch, shuffle=True)


# 4.2 and 4.3 gradients


def _each(sync_one, who="all"):
    """A sync that treats every trainable parameter by `sync_one(p, rank, world_size)`."""

    def sync(model):
        for p in model.parameters():
            if p.requires_grad:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                sync_one(p, dist.get_rank(), dist.get_world_size())

    return sync


def _by_root(combine, send=lambda combined, each, n: [combined] * n):
    def sync_one(p, rank, n):
        each = [torch.empty_like(p) for _ in range(n)] if rank == 0 else None
        dist.gather(p.grad, each)
        dist.scatter(p.grad, send(combine(each), each, n) if rank == 0 else None)

    return _each(sync_one)


for _name, _function, _says in [
    ("sums", _by_root(sum), "this is the sum: divide by the world size"),
    ("mean_over_the_elements", _by_root(
        lambda each: torch.full_like(each[0], torch.stack(each).mean().item())), "not over the elements"),
    ("without_the_root", _by_root(
        lambda each: sum(each[1:], torch.zeros_like(each[0])) / len(each)), "rank 0's own gradient"),
    ("divides_by_the_others", _by_root(lambda each: sum(each) / max(len(each) - 1, 1)), "N ranks, so divide by N"),
    ("scatters_what_it_gathered", _by_root(
        lambda each: None, lambda combined, each, n: each), "still has its own gradient"),
    ("scatters_its_own", _by_root(lambda each: each[0].clone()), "rank 0's own gradient"),
    ("divides_twice", _by_root(lambda each: torch.stack(each).mean(0) / len(each)), "divided by the world size twice"),
]:  # fmt: skip
    wrong_values("lesson_04.gather_scatter", _name, _function, says=_says)


@wrong("lesson_04.gather_scatter", says="'frozen' has no gradient anywhere, but rank 0 ends with .*takes no part")
def gives_zeros_to_the_frozen(model):
    gather_scatter(model)
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad


@wrong("lesson_04.gather_scatter", says="'frozen_later' is frozen, .* on rank 0 has become None.*takes no part")
def takes_gradients_from_the_frozen(model):
    gather_scatter(model)
    for p in model.parameters():
        p.grad = p.grad if p.requires_grad else None


@wrong("lesson_04.all_reduce_mean", says="'frozen_later' is frozen, .* on rank 0 has become None.*takes no part")
def forgets_gradients_of_the_frozen(model):
    for p in model.parameters():
        if not p.requires_grad:
            p.grad = None
    all_reduce_mean(model)


@wrong("lesson_04.all_reduce_mean", says="'frozen_later' is frozen, .* on rank 0 has become .*takes no part")
def averages_whatever_has_a_gradient(model):
    for p in model.parameters():
        if p.requires_grad or p.grad is not None:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


def _zeros_in_single(sync, name):
    def answer(model):
        for p in model.parameters():
            if p.requires_grad and p.grad is None:
                p.grad = torch.zeros(p.shape)
        sync(model)

    answer.__name__ = name
    return answer


for _check, _sync in (("gather_scatter", gather_scatter), ("all_reduce_mean", all_reduce_mean)):
    wrong_values(f"lesson_04.{_check}", f"{_check}_of_zeros_in_single", _zeros_in_single(_sync, "zeros_in_single"),
                 says="two dtypes meet: .*torch.zeros_like")  # fmt: skip


@wrong("lesson_04.gather_scatter_traffic", says="rank 0 sends|calls all_reduce")
def averages_buffers_too(model):
    gather_scatter(model)
    for b in model.buffers():
        dist.all_reduce(b)
        b /= dist.get_world_size()


def _keeps_gradients(sync, name):
    def answer(model):
        if not hasattr(model, "mine"):
            model.mine = [p for p in model.parameters() if p.requires_grad]
            for p in model.mine:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            model.mine_too = [p.grad for p in model.mine]
        now = [p.grad for p in model.mine]
        for p, gradient in zip(model.mine, model.mine_too):
            p.grad = gradient
        sync(model)
        for p, gradient in zip(model.mine, now):
            p.grad = gradient

    answer.__name__ = name
    return answer


def _runs_once(sync, name):
    def answer(model):
        if not hasattr(model, "is_done"):
            model.is_done = True
            sync(model)

    answer.__name__ = name
    return answer


for _check, _sync in (("gather_scatter", gather_scatter), ("all_reduce_mean", all_reduce_mean)):
    for _change in (_keeps_gradients, _runs_once):
        _name = f"{_check}{_change.__name__}"
        wrong_values(f"lesson_04.{_check}", _name, _change(_sync, _name),
                     says="the second call on one model: the gradient of 'bias'.*nothing is kept")  # fmt: skip


@wrong("lesson_04.all_reduce_mean", says="p.grad is None on this rank")
def forgets_zeros(model):
    all_reduce_mean(model)
    for p in model.parameters():
        if p.grad is not None and not p.grad.any():
            p.grad = None


@wrong("lesson_04.all_reduce_mean", says="zeros took its place")
def begins_with_zeros(model):
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if p.requires_grad else None
    all_reduce_mean(model)


@wrong("lesson_04.all_reduce_mean", says="while it was under way")
def divides_under_way(model):
    for p in model.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            work = dist.all_reduce(p.grad, async_op=True)
            p.grad /= dist.get_world_size()
            work.wait()


_ZEROS = {}


@wrong("lesson_04.all_reduce_mean", says="'twig' ends with the same numbers: .* share one tensor")
def one_tensor_of_zeros_for_all(model):
    for p in model.parameters():
        if p.requires_grad and p.grad is None:
            p.grad = _ZEROS.setdefault((dist.get_rank(), p.shape), torch.zeros_like(p)).zero_()
    all_reduce_mean(model)


@wrong("lesson_04.all_reduce_mean", says="gradients travel in the dtype that they have")
def travels_in_half(model):
    for p in model.parameters():
        if p.requires_grad:
            half = (torch.zeros_like(p) if p.grad is None else p.grad).half()
            dist.all_reduce(half)
            p.grad = half.float() / dist.get_world_size()


@wrong("lesson_04.all_reduce_mean", says="these are whole numbers")
def divides_whole(model):
    all_reduce_mean(model)
    for p in model.parameters():
        p.grad = None if p.grad is None else p.grad.floor()


@wrong("lesson_04.gather_scatter", says="what came of the call never went into p.grad")
def received_and_forgotten(model):
    for p in model.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            each = [torch.empty_like(p) for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
            dist.gather(p.grad, each)
            mean = [torch.stack(each).mean(0)] * dist.get_world_size() if each else None
            dist.scatter(torch.empty_like(p), mean)


@wrong("lesson_04.gather_scatter", says="hangs.*must still take part|None on this rank")
def skips_what_has_no_gradient(model):
    for p in model.parameters():
        if p.grad is not None:
            dist.gather(p.grad, each := [torch.empty_like(p) for _ in range(dist.get_world_size())]
                        if dist.get_rank() == 0 else None)  # fmt: skip
            dist.scatter(p.grad, [torch.stack(each).mean(0)] * dist.get_world_size() if each else None)


@wrong("lesson_04.gather_scatter", says="the gradients \\(p.grad\\) are synchronised|has no gradient anywhere|expected")
def averages_the_weights(model):
    for p in model.parameters():
        each = [torch.empty_like(p) for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
        dist.gather(p.data, each)
        dist.scatter(p.data, [torch.stack(each).mean(0)] * dist.get_world_size() if each else None)


@wrong("lesson_04.gather_scatter", says="one tensor in N places.*holds N tensors")
def one_tensor_in_every_place(model):
    for p in model.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            is_root, n = dist.get_rank() == 0, dist.get_world_size()
            each = [torch.empty_like(p)] * n if is_root else None
            dist.gather(p.grad, each)
            dist.scatter(p.grad, [torch.stack(each).mean(0)] * n if is_root else None)


@wrong("lesson_04.gather_scatter", says="or what was gathered is scattered as it is")
def scatters_what_it_gathered(model):
    for p in model.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            each = [torch.empty_like(p) for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
            dist.gather(p.grad, each)
            dist.scatter(p.grad, each)


@wrong("lesson_04.gather_scatter", says="'bias' was left out")
def only_the_weights(model):
    for p in model.parameters():
        if p.dim() > 1:
            _by_root(lambda each: torch.stack(each).mean(0))(torch.nn.ParameterList([p]))


@wrong("lesson_04.gather_scatter", says="'frozen' has no gradient anywhere")
def frozen_ones_too(model):
    for p in model.parameters():
        p.requires_grad_(True)
    gather_scatter(model)
    if "frozen" in dict(model.named_parameters()):
        model.frozen.grad += 1


@wrong("lesson_04.gather_scatter", says="added up by all_reduce, not by rank 0.*one gather, one scatter")
@wrong("lesson_04.gather_scatter_traffic", says="it calls all_reduce.*dist.gather brings the gradients to rank 0")
def reduces_at_once(model):
    all_reduce_mean(model)


def _in_the_first_call(model, reduce):
    """All gradients in one vector, and calls with nothing for the other parameters."""
    trained = [p for p in model.parameters() if p.requires_grad]
    whole = torch.cat([p.grad.flatten() for p in trained])
    for part in (whole, *(whole.new_empty(0) for _ in trained[1:])):
        reduce(part)
    for p, part in zip(trained, whole.split([p.numel() for p in trained])):
        p.grad = part.view_as(p).clone()


@wrong("lesson_04.gather_scatter_traffic", says=r"puts \[23, 0, 0\] numbers into its calls.*travel as one vector")
def gathers_all_at_once_and_nothing_twice(model):
    def by_root(part):
        each = [torch.empty_like(part) for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
        dist.gather(part, each)
        dist.scatter(part, [torch.stack(each).mean(0)] * len(each) if each else None)

    _in_the_first_call(model, by_root)


@wrong("lesson_04.all_reduce_traffic", says=r"puts \[23, 0, 0\] numbers into its calls.*travel as one vector")
def reduces_all_at_once_and_nothing_twice(model):
    _in_the_first_call(model, lambda part: (dist.all_reduce(part), part.div_(dist.get_world_size())))


@wrong("lesson_04.all_reduce_traffic", says="are gradients, cut at other places.*no piece of a vector")
def cuts_elsewhere(model):
    trained = [p for p in model.parameters() if p.requires_grad][::-1]
    whole = torch.cat([p.grad.flatten() for p in trained])
    for part in whole.split([p.numel() for p in trained[::-1]]):
        dist.all_reduce(part)
    for p, part in zip(trained, (whole / dist.get_world_size()).split([p.numel() for p in trained])):
        p.grad = part.view_as(p).clone()


@wrong("lesson_04.gather_scatter_traffic", says="it calls broadcast")
def broadcasts_the_mean(model):
    for p in model.parameters():
        if p.requires_grad:
            each = [torch.empty_like(p) for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
            dist.gather(p.grad, each)
            if each:
                p.grad = torch.stack(each).mean(0)
            dist.broadcast(p.grad, 0)


@wrong("lesson_04.gather_scatter_traffic", says="something travels more than once")
def twice_for_safety(model):
    gather_scatter(model)
    gather_scatter(model)


@wrong("lesson_04.gather_scatter_traffic", says="frozen parameters need no messages")
def frozen_ones_travel(model):
    for p in model.parameters():
        p.requires_grad_(True)
    gather_scatter(model)


@wrong("lesson_04.all_reduce_mean", says="this is the sum: divide by the world size")
def forgets_to_divide(model):
    _each(lambda p, rank, n: dist.all_reduce(p.grad))(model)


@wrong("lesson_04.all_reduce_mean", says="divided by the world size twice")
def divides_before_and_after(model):
    def one(p, rank, n):
        p.grad /= n
        dist.all_reduce(p.grad)
        p.grad /= n

    _each(one)(model)


@wrong("lesson_04.all_reduce_mean", says="nothing was added up")
def divides_only(model):
    _each(lambda p, rank, n: p.grad.div_(n))(model)


@wrong("lesson_04.all_reduce_mean", says="the sum is divided on rank 0 alone")
def divides_on_rank_0_only(model):
    def one(p, rank, n):
        dist.all_reduce(p.grad)
        if rank == 0:
            p.grad /= n

    _each(one)(model)


@wrong("lesson_04.all_reduce_mean", says="hangs.*must still take part|None on this rank")
def skips_none(model):
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


@wrong("lesson_04.all_reduce_mean", says="the mean is taken over the ranks, not over the elements|expected")
def mean_of_the_sum(model):
    def one(p, rank, n):
        dist.all_reduce(p.grad)
        p.grad.fill_(p.grad.mean().item())

    _each(one)(model)


@wrong("lesson_04.all_reduce_mean", says="the largest, not the mean")
def maximum(model):
    _each(lambda p, rank, n: dist.all_reduce(p.grad, dist.ReduceOp.MAX))(model)


@wrong("lesson_04.all_reduce_mean", says="values of 'bias' on rank . have changed")
def reduces_the_weights_too(model):
    all_reduce_mean(model)
    for p in model.parameters():
        dist.all_reduce(p.data)


@wrong("lesson_04.all_reduce_traffic", says="a parameter has one such call, and nothing else is sent")
def counts_the_ranks(model):
    for p in model.parameters():
        if p.requires_grad:
            n = torch.ones(1)
            dist.all_reduce(n)
            dist.all_reduce(p.grad)
            p.grad /= n


@wrong("lesson_04.all_reduce_traffic", says="here every parameter has its own call")
def all_in_one_vector(model):
    parameters = [p for p in model.parameters() if p.requires_grad]
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for p, mean in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad = mean.view_as(p).clone()


@wrong("lesson_04.gather_scatter_traffic", says="here every parameter has its own call")
def gathers_one_vector(model):
    parameters = [p for p in model.parameters() if p.requires_grad]
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])
    each = [torch.empty_like(flat) for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
    dist.gather(flat, each)
    dist.scatter(flat, [torch.stack(each).mean(0)] * dist.get_world_size() if each else None)
    for p, mean in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad = mean.view_as(p).clone()


@wrong("lesson_04.gather_scatter_traffic", says="puts into scatter for 'bias' is not made of gradients")
def scatters_zeros(model):
    for p in model.parameters():
        if p.requires_grad:
            each = [torch.empty_like(p) for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
            dist.gather(p.grad, each)
            dist.scatter(p.grad, [torch.zeros_like(p)] * dist.get_world_size() if each else None)


@wrong("lesson_04.all_reduce_traffic", says="puts into all_reduce for 'bias' is not made of gradients")
def reduces_zeros(model):
    for p in model.parameters():
        if p.requires_grad:
            dist.all_reduce(torch.zeros_like(p))


@wrong("lesson_04.gather_scatter_traffic", says="is the root: rank 0 is to be")
def another_root(model):
    root = dist.get_world_size() - 1
    for p in model.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            each = [torch.empty_like(p) for _ in range(root + 1)] if dist.get_rank() == root else None
            dist.gather(p.grad, each, dst=root)
            dist.scatter(p.grad, [torch.stack(each).mean(0)] * (root + 1) if each else None, src=root)


def _rebinds(p, rank, n):
    g = p.grad
    dist.all_reduce(g)
    g = g / n
    del g


def _on_a_copy(p, rank, n):
    dist.all_reduce(p.grad.clone())
    p.grad /= n


for _name, _function, _says in [
    ("rebinds_the_quotient", _each(_rebinds), "makes a new tensor, which p.grad never sees"),
    ("reduces_a_copy", _each(_on_a_copy), "a call on a copy"),
    ("never_waits", _each(lambda p, rank, n: (dist.all_reduce(p.grad, async_op=True), p.grad.div_(n))), "never waits"),
    ("by_four", _each(lambda p, rank, n: (dist.all_reduce(p.grad), p.grad.div_(4))), "divided by 4, however many"),
    ("by_the_elements", _each(lambda p, rank, n: (dist.all_reduce(p.grad), p.grad.div_(p.numel()))),
     "by the number of elements|divided by 7, however many"),
    ("only_matrices", lambda model: _each(lambda p, rank, n: p.dim() > 1 and (
        dist.all_reduce(p.grad), p.grad.div_(n)))(model), "'bias' was left out"),
]:  # fmt: skip
    wrong_values("lesson_04.all_reduce_mean", _name, _function, says=_says)


@wrong("lesson_04.all_reduce_traffic", says="it calls .*gather.*dist.all_reduce does both ways at once")
def still_by_the_root(model):
    gather_scatter(model)


@wrong("lesson_04.all_reduce_traffic", says="something travels more than once")
def reduces_twice(model):
    all_reduce_mean(model)
    all_reduce_mean(model)


@wrong("lesson_04.all_reduce_traffic", says="it calls all_gather")
def gathers_on_all(model):
    def one(p, rank, n):
        each = [torch.empty_like(p) for _ in range(n)]
        dist.all_gather(each, p.grad)
        p.grad = torch.stack(each).mean(0)

    _each(one)(model)


# 4.3 and 4.4 the worker


def worker(
    rank, world_size, job, *, seed=lambda job, rank: job.seed, deal=batches, sync=None, ddp=True, lr=1.0, momentum=1.0,
    test=evaluate, both=False, keys=("losses", "iteration_s", "test_loss", "accuracy"), shuffled=False,
    report=lambda rank: print if rank == 0 else lambda text: None, unit=1.0, early=False, wraps=False, stops=True,
    decay=0.0, data_first=False,
):  # fmt: skip
    torch.manual_seed(seed(job, rank))
    if shuffled:
        torch.rand(1)
    if data_first:
        job.data()
    model = job.model()
    if (job.method == "ddp" and ddp) or (wraps and world_size > 1):
        model = DistributedDataParallel(model)
    known = {"gather_scatter": gather_scatter, "all_reduce": all_reduce_mean}
    chosen = sync or known.get(job.method, all_reduce_mean if both or not ddp else lambda model: None)
    train_set, test_set = job.data()
    optimizer = torch.optim.SGD(model.parameters(), lr * job.lr, momentum * job.momentum, weight_decay=decay)
    part = deal(train_set, rank, world_size, job.total_batch, seed=job.seed)
    before = test(model, DataLoader(test_set, 16)) if early else None
    model.train()
    losses, iteration_s = train(model, islice(part, job.n_iterations if stops else 99), chosen, optimizer, report(rank))
    test_loss, accuracy = before if early else test(model, DataLoader(test_set, 16))
    found = {"losses": losses, "iteration_s": unit * iteration_s, "test_loss": test_loss, "accuracy": accuracy}
    return {key: found[key] for key in keys}


def _worker(**change):
    return lambda rank, world_size, job: worker(rank, world_size, job, **change)


def _on_rank_0(model, test):
    found = torch.zeros(2, dtype=torch.float64)
    if dist.get_rank() == 0:
        found += torch.tensor(evaluate(getattr(model, "module", model), test))
    if dist.get_world_size() > 1:
        dist.broadcast(found, 0)
    return found.tolist()


def _tests_a_share(model, test):
    """Each rank its examples of the test set, and the mean of what they find."""
    mine = list(test.dataset)[dist.get_rank() :: dist.get_world_size()]
    found = torch.tensor(evaluate(model, DataLoader(mine, 16)))
    dist.all_reduce(found)
    return (found / dist.get_world_size()).tolist()


def _untrained(model, test):
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    return evaluate(model, test)


for _name, _change, _says in [
    ("a_seed_a_rank", {"seed": lambda job, rank: job.seed + rank}, "the first loss differs: torch.manual_seed"),
    ("fixed_seed", {"seed": lambda job, rank: 0}, "the first loss differs: torch.manual_seed"),
    ("draws_before_the_model", {"shuffled": True}, "comes right before job.model"),
    ("whole_batches", {"deal": lambda data, rank, n, total, seed: batches(data, 0, 1, total, seed=seed)},
     "every rank has the losses of the whole batch"),
    ("another_report", {"report": lambda rank: (lambda text: print("rank", rank)) if rank == 0 else lambda text: None},
     "rank 0 printed 'rank 0' in 22 iterations"),
    ("same_data", {"deal": lambda data, rank, n, total, seed: batches(data, 0, n, total, seed=seed)},
     "every rank sees the same examples"),
    ("never_in_step", {"sync": lambda model: None}, "every rank trains alone"),
    ("adds_gradients", {"sync": _each(lambda p, rank, n: dist.all_reduce(p.grad))}, "the step is N times too long"),
    ("forgets_momentum", {"momentum": 0.0}, "the momentum is missing"),
    ("scales_the_step", {"lr": 2.0}, "the first loss is right.*job.lr and job.momentum"),
    ("tests_another_model", {"test": _untrained}, "evaluates the trained model"),
    ("says_no_accuracy", {"keys": ("losses", "iteration_s", "test_loss")}, "must return a dictionary with 'accuracy'"),
    ("always_gathers", {"sync": gather_scatter}, "the ledger has gather, scatter.*job.method chooses"),
    ("always_reduces", {"sync": all_reduce_mean}, "the ledger has all_reduce.*job.method chooses"),
    ("says_no_time", {"keys": ("losses", "test_loss", "accuracy")}, "must return a dictionary with 'iteration_s'"),
    ("another_epoch", {"deal": lambda data, rank, n, total, seed: batches(data, rank, n, total, 1, seed)},
     "the first loss differs.*epoch 0"),
    ("unseeded_batches", {"deal": lambda data, rank, n, total, seed: batches(data, rank, n, total)},
     "the first loss differs.*seed=job.seed"),
    ("every_rank_reports", {"report": lambda rank: print}, "rank 1 printed 'iteration 20.*the others are silent"),
    ("the_last_rank_reports", {"report": lambda rank: print if rank else lambda text: None},
     "rank 1 printed 'iteration 20.*the others are silent"),
    ("tells_milliseconds", {"unit": 1e3}, "iteration_s of rank 0.*these are milliseconds"),
    ("shares_the_iterations", {"deal": lambda data, rank, n, total, seed: islice(
        batches(data, rank, n, total, seed=seed), 4 // n)}, "its batches are smaller, not fewer"),
    ("decays", {"decay": 0.01}, "SGD.* takes job.lr and job.momentum,? and nothing else"),
    ("decays_a_little", {"decay": 1e-4}, "SGD.* takes job.lr and job.momentum,? and nothing else"),
    ("draws_data_before_the_model", {"data_first": True}, "comes right before job.model"),
    ("changes_their_places", {"deal": lambda data, rank, n, total, seed: batches(data, n, rank, total, seed=seed)},
     "Invalid rank 1.*a rank and the number of ranks have changed places"),
    ("rank_0_tests_alone", {"test": lambda model, test: (None, None) if dist.get_rank() else evaluate(model, test)},
     "test_loss of rank 1 is None.*not rank 0 alone"),
    ("tells_all_what_rank_0_finds", {"test": _on_rank_0}, "on another rank's test set .* evaluates the whole test set"),
    ("tests_before_it_trains", {"early": True}, "these are the untrained weights"),
    ("wraps_always", {"wraps": True}, "the ledger has broadcast"),
    ("never_stops", {"stops": False}, "job.n_iterations stops the epoch early"),
    ("nobody_reports", {"report": lambda rank: lambda text: None}, "rank 0 printed nothing in 22 iterations"),
]:  # fmt: skip
    wrong_values("lesson_04.worker", _name, _worker(**_change), says=_says)

for _name, _change, _says in [
    ("reduces_by_hand", {"ddp": False}, "no start of DistributedDataParallel|compares and broadcasts the weights"),
    ("tells_all_what_rank_0_finds", {"test": _on_rank_0}, "on another rank's test set .* evaluates the whole test set"),
    ("shares_the_test", {"test": _tests_a_share}, "every rank evaluates the trained model on the whole test set"),
    ("wraps_and_reduces", {"both": True}, "both DistributedDataParallel and sync"),
    ("wraps_without_seed", {"seed": lambda job, rank: 17 * rank + 1}, "the first loss differs"),
    ("wraps_on_same_data", {"deal": lambda data, rank, n, total, seed: batches(data, 0, n, total, seed=seed)},
     "every rank sees the same examples"),
]:  # fmt: skip
    wrong_values("lesson_04.ddp", _name, _worker(**_change), says=_says)


def _trains_what_it_wrapped(rank, world_size, job):
    torch.manual_seed(job.seed)
    model = job.model()
    DistributedDataParallel(model)  # what it gives back is thrown away
    train_set, _ = job.data()
    optimizer = torch.optim.SGD(model.parameters(), job.lr, job.momentum)
    part = islice(batches(train_set, rank, world_size, job.total_batch, seed=job.seed), job.n_iterations)
    losses, iteration_s = train(model, part, lambda model: None, optimizer, lambda text: None)
    return {"losses": losses, "iteration_s": iteration_s, "test_loss": 0.0, "accuracy": 0.0}


wrong_values("lesson_04.ddp", "trains_what_it_wrapped", _trains_what_it_wrapped, says="gives back, the wrapper")

for _name, _calls, _says in [
    ("nothing", {"all_reduce": None, "ddp": None}, "is not filled in"),
    ("one_each", {"all_reduce": 1, "ddp": 1}, "count the tensors in model.parameters"),
    ("only_weights", {"all_reduce": 17, "ddp": 3}, "count the tensors in model.parameters"),
    ("bytes_over_25_mib", {"all_reduce": 34, "ddp": 2}, "a bucket holds whole tensors, and the first one is full at"),
    ("first_iteration", {"all_reduce": 34, "ddp": 1}, "arranges its buckets after the first one"),
    ("as_many_as_tensors", {"all_reduce": 34, "ddp": 34}, "the other method's number"),
    ("text", {"all_reduce": "34", "ddp": 3}, "must be a number"),
    ("of_three_iterations", {"all_reduce": 102, "ddp": 3}, "a run of three iterations"),
    ("of_four_ranks", {"all_reduce": 136, "ddp": 3}, "all four ranks together"),
    ("the_other_way_round", {"all_reduce": 3, "ddp": 34}, "the other method's number"),
    ("of_a_whole_run", {"all_reduce": 34, "ddp": 9}, "more than one iteration"),
]:
    wrong_values("lesson_04.calls", _name, _calls, says=_says)

# 4.5 formulas


def bytes_sent(method, rank, world_size, n_bytes):
    if method == "gather_scatter":
        return (world_size - 1) * n_bytes if rank == 0 else n_bytes
    return 2 * (world_size - 1) / world_size * n_bytes if method == "all_reduce" else 0


def _bytes(change):
    return lambda method, rank, world_size, n_bytes: change(bytes_sent, method, rank, world_size, n_bytes)


for _name, _change, _says in [
    ("all_like_the_root", lambda f, m, r, n, b: f(m, 0, n, b), "this is rank 0's"),
    ("all_like_the_others", lambda f, m, r, n, b: f(m, 1, n, b), "rank 0 is the root"),
    ("counts_both_ways", lambda f, m, r, n, b: 2 * f(m, r, n, b), "not what it receives"),
    ("bits", lambda f, m, r, n, b: 8 * f(m, r, n, b), "these are bits"),
    (
        "twice_the_tensor",
        lambda f, m, r, n, b: 2 * b if m == "all_reduce" else f(m, r, n, b),
        "steps a phase, one chunk",
    ),
    ("of_four_ranks", lambda f, m, r, n, b: f(m, r, min(4, 2 + n), b), "that is with 4 ranks, however many there are"),
    ("elements", lambda f, m, r, n, b: f(m, r, n, b) / 4, "these are elements"),
    ("megabytes", lambda f, m, r, n, b: f(m, r, n, b) / 1e6, "these are megabytes"),
    ("the_model_once", lambda f, m, r, n, b: b if m != "one" else 0, "the whole model once|what the others send"),
    ("one_sends_too", lambda f, m, r, n, b: b if m == "one" else f(m, r, n, b), "nobody to send to|the whole model"),
    ("counts_elements", lambda f, m, r, n, b: 4 * f(m, r, n, b), "n_bytes counts bytes already"),
    ("sends_to_itself", lambda f, m, r, n, b: f(m, r, n, b) * n / max(n - 1, 1), "sends nothing to itself"),
    ("not_written", lambda f, m, r, n, b: None, "must be a number"),
    ("infinite", lambda f, m, r, n, b: float("inf"), "must be a number"),
    (
        "one_rank_sends_to_itself",
        lambda f, m, r, n, b: f(m, r, n, b) if n > 1 or m == "one" else b,
        "nobody to send to",
    ),
    ("others_are_silent", lambda f, m, r, n, b: f(m, r, n, b) * (r == 0), "every rank sends something"),
    ("mean_of_the_ranks", lambda f, m, r, n, b: sum(f(m, k, n, b) for k in range(n)) / n, "each has its own number"),
]:
    wrong_values("lesson_04.bytes_sent", _name, _bytes(_change), gather_scatter, all_reduce_mean, says=_says)


def _seconds(n_messages=lambda n: 2 * (n - 1), compute=lambda s, n: s / n, per_tensor=True, ring=True):
    def predicted_s(method, world_size, one_node_s, n_bytes, n_tensors, network):
        if method == "one":
            return compute(one_node_s, world_size)
        share = 1 / world_size if method == "all_reduce" and ring else 1
        latency_s = network.latency_s * (n_tensors if per_tensor else 1)
        travel_s = n_messages(world_size) * (latency_s + share * n_bytes / network.bandwidth_Bps)
        return compute(one_node_s, world_size) + travel_s

    return predicted_s


for _name, _function, _says in [
    ("compute_is_not_shared", _seconds(compute=lambda s, n: s), "every rank has 1/N of the batch"),
    ("forgets_compute", _seconds(compute=lambda s, n: 0.0), "the compute is missing"),
    ("one_latency_for_all", _seconds(per_tensor=False), "every tensor is a collective of its own"),
    ("one_way", _seconds(n_messages=lambda n: n - 1), "half of the messages"),
    ("whole_tensors_around_the_ring", _seconds(ring=False), "a message of a ring is one chunk"),
    ("all_at_once", _seconds(n_messages=lambda n: 2), "N - 1 messages, one after the other, and that twice"),
    ("in_milliseconds", lambda *given: 1e3 * _seconds()(*given), "these are milliseconds"),
    ("in_bits", lambda m, n, s, b, k, w: _seconds()(m, n, s, 8 * b, k, w), "these are bits"),
    ("of_one_tensor", lambda m, n, s, b, k, w: _seconds()(m, n, s, b / k, k, w), "nothing is divided by n_tensors"),
    ("all_but_latency", lambda m, n, s, b, k, w: _seconds()(m, n, s, b, 0, w), "the latency is missing"),
    ("overlapped", lambda m, n, s, b, k, w: max(s / n, _seconds()(m, n, s, b, k, w) - s / n), "nothing overlaps"),
    ("silent", lambda *given: None, "must be a number"),
    ("rounded", lambda *given: round(_seconds()(*given), 3), "right to two digits, so rounded"),
    (
        "two_latencies",
        lambda m, n, s, b, k, w: _seconds()(m, n, s, b, 0, w) + 2 * k * w.latency_s * (m != "one"),
        "each of the N - 1 messages of a phase pays the latency",
    ),
    (
        "half_of_the_latencies",
        lambda m, n, s, b, k, w: _seconds()(m, n, s, b, k / 2, w),
        "half of the latencies: the way there",
    ),
    ("for_four_ranks", _seconds(compute=lambda s, n: s / 4), "divided by 4, however many"),
    (
        "for_the_reports_network",
        lambda m, n, s, b, k, w: _seconds()(m, n, s, b, k, Network(50e-6, 125e6)),
        "these are the report's latency and bandwidth",
    ),
]:
    wrong_values("lesson_04.predicted_s", _name, _function, gather_scatter, all_reduce_mean, says=_says)


def _gathers_all(model):
    for p in model.parameters():
        every = [torch.empty_like(p.grad) for _ in range(dist.get_world_size())]
        dist.all_gather(every, p.grad)
        p.grad = sum(every) / len(every)


for _check, _formula in (("bytes_sent", bytes_sent), ("predicted_s", _seconds())):
    wrong_values(
        f"lesson_04.{_check}", f"{_check}_beside_an_all_gather", _formula, _gathers_all, all_reduce_mean,
        says="your own gather_scatter calls all_gather: first the checks of its own exercise",
    )  # fmt: skip


def _takes_a_second(sync):
    def until_a_second_is_over(model):
        began_s = time.perf_counter()
        sync(model)
        if dist.get_world_size() > 1:
            time.sleep(began_s + 1 - time.perf_counter())

    return until_a_second_is_over


def _rests_on_rank_0(model):
    for p in model.parameters():
        if dist.get_rank() == 0:
            time.sleep(0.25)
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def _one_second_more(method, world_size, one_node_s, n_bytes, n_tensors, network):
    return one_node_s / world_size + (world_size > 1)


for _name, _functions in [
    ("pads_to_a_second", (_takes_a_second(gather_scatter), _takes_a_second(all_reduce_mean))),
    ("rests_on_rank_0", (gather_scatter, _rests_on_rank_0)),
]:
    wrong_values("lesson_04.predicted_s", _name, _one_second_more, *_functions, says="lets time pass.*nothing sleeps")


@wrong("lesson_04.all_reduce_traffic", says="it calls barrier.*may go on")
def lets_all_wait(model):
    all_reduce_mean(model)
    dist.barrier()


@wrong("lesson_04.train", says="zero_grad is not in it: read the clock before")
def reads_the_clock_behind_zero_grad(model, batches, sync, optimizer, report=print):
    class Cleared:
        """An optimizer whose gradients are cleared before the loop's clock runs."""

        def zero_grad(self):
            pass

        def step(self):
            optimizer.step()

    def cleared():
        for batch in batches:
            optimizer.zero_grad()
            yield batch

    return train(model, cleared(), sync, Cleared(), report)


@wrong("lesson_04.all_reduce_mean", says="right to two digits or three")
def halves_its_digits(model):
    for p in model.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad.half().float()
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


@wrong("lesson_04.evaluate", says="/ and not //")
def floors_the_share(model, test):
    loss, share = evaluate(model, test)
    return loss, int(share)


@wrong("lesson_04.evaluate", says="takes the place of the one before")
def keeps_the_last_sum(model, test):
    n = sum(len(y) for _, y in test)
    with torch.no_grad():
        for x, y in test:
            loss = cross_entropy(model.eval()(x), y, reduction="sum").item()
    return loss / n, evaluate(model, test)[1]


@wrong("lesson_04.batches", says="batches returned None.*is there a return")
def returns_no_batches(dataset, rank, world_size, total_batch, epoch=0, seed=0):
    pass


def _sends_where_others_scatter(model):
    rank, n = dist.get_rank(), dist.get_world_size()
    for p in model.parameters():
        dist.gather(p.grad, [torch.empty_like(p.grad) for _ in range(n)] if rank == 0 else None)
        for r in range(1, n) if rank == 0 else ():
            dist.send(p.grad, r)
        if rank:
            dist.scatter(p.grad)


for _check, _formula in (
    ("lesson_04.bytes_sent", lambda method, rank, world_size, n_bytes: 0),
    ("lesson_04.predicted_s", _seconds()),
):
    wrong_values(
        _check, "beside_a_function_that_hangs", _formula, _sends_where_others_scatter, all_reduce_mean,
        says="hangs.*with your own function, and that hangs: its own check comes first",
    )  # fmt: skip


wrong_values("lesson_04.train", "begins_with_the_third", _train(timed=slice(2, 40)), says="begins with the 3rd")


@wrong("lesson_04.train", says="has no len.*batches may be an iterator")
def asks_how_many_batches_there_are(model, batches, sync, optimizer, report=print):
    n = len(batches)
    return train(model, batches, sync, optimizer, report, n=lambda part: min(n, 40) - 1)


@wrong("lesson_04.train", says="has tensors in it.*item")
def keeps_tensors_as_losses(*given):
    losses, iteration_s = train(*given)
    return [torch.tensor(loss) for loss in losses], iteration_s


@wrong("lesson_04.train", says="has tensors in it.*tolist")
def stacks_the_losses(*given):
    losses, iteration_s = train(*given)
    return torch.tensor(losses), iteration_s


@wrong("lesson_04.train", says="runs on from iteration 2 to the last: batches and reports are in it")
def times_from_the_second_to_the_last(model, batches, sync, optimizer, report=print):
    began, n = [], 0

    def noted(model):
        sync(model)

    def counted():
        nonlocal n
        for n, batch in enumerate(batches, 1):
            if n == 2:
                began.append(time.perf_counter())
            yield batch

    losses, _ = train(model, counted(), noted, optimizer, report)
    return losses, (time.perf_counter() - began[0]) / (n - 1)


@wrong("lesson_04.evaluate", says="has tensors in it, two floats")
def gives_two_tensors(model, test):
    return tuple(torch.tensor(value) for value in evaluate(model, test))


@wrong("lesson_04.evaluate", says="not every batch has as many examples as the last one")
def counts_by_the_last_batch(model, test):
    test = list(test)
    loss, share = evaluate(model, test)
    return loss * sum(len(y) for _, y in test) / (len(test) * len(test[-1][1])), share


@wrong("lesson_04.batches", says="rank 0 has 13 examples, rank 2 only 12.*the last round is not filled up")
def deals_by_hand(dataset, rank, world_size, total_batch, epoch=0, seed=0):
    generator = torch.Generator().manual_seed(seed + epoch)
    mine = torch.randperm(len(dataset), generator=generator).tolist()[rank::world_size]
    return DataLoader(dataset, total_batch // world_size, sampler=mine)


@wrong("lesson_04.batches", says="rank 0 has 14 examples, rank 1 only 12.*the last round is not filled up")
def cuts_rows_out_of_the_whole_batch(dataset, rank, world_size, total_batch, epoch=0, seed=0):
    generator, size = torch.Generator().manual_seed(seed + epoch), total_batch // world_size
    order = torch.randperm(len(dataset), generator=generator)
    part = slice(rank * size, (rank + 1) * size)
    return [dataset[batch[part].tolist()] for batch in order.split(total_batch)]


def _sync_at_the_root(mean):
    """gather and scatter, with another mean: of each rank's gradients, and which of them are there."""

    def sync(model):
        n, root = dist.get_world_size(), dist.get_rank() == 0
        for p in model.parameters():
            if p.requires_grad:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                each = [torch.empty_like(p.grad) for _ in range(n)] if root else None
                dist.gather(p.grad, each)
                dist.scatter(p.grad, [mean(p.grad, each)] * n if root else None)

    return sync


wrong_values(
    "lesson_04.gather_scatter",
    "divides_by_those_with_a_gradient",
    _sync_at_the_root(lambda own, each: sum(each) / max(1, sum(bool(g.any()) for g in each))),
    says="only the ranks that have a gradient are counted.*None counts as zeros",
)
wrong_values(
    "lesson_04.gather_scatter",
    "counts_its_own_gradient_twice",
    _sync_at_the_root(lambda own, each: (own + sum(each)) / len(each)),
    says="rank 0's own gradient counts twice: what is gathered has it already",
)


@wrong("lesson_04.all_reduce_mean", says="only the ranks that have a gradient are counted.*None counts as zeros")
def divides_by_the_ranks_that_have_one(model):
    counts = [0.0 if p.grad is None else 1.0 for p in model.parameters()]
    n_of = torch.tensor(counts)
    dist.all_reduce(n_of)
    for p, n in zip(model.parameters(), n_of.tolist()):
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(p.grad)
            p.grad /= max(1.0, n)


@wrong("lesson_04.all_reduce_traffic", says="all numbers travel, in fewer bytes each")
def sends_gradients_in_halves(model):
    for p in model.parameters():
        if p.requires_grad:
            half = (torch.zeros_like(p) if p.grad is None else p.grad).half()
            dist.all_reduce(half)
            p.grad = half.float() / dist.get_world_size()


def _reports_on(rank, world_size, job, report, lr=1.0, decay=0.0, drops=False):
    """A worker that is right but for what is given."""
    torch.manual_seed(job.seed)
    model = job.model()
    if job.method == "ddp":
        model = DistributedDataParallel(model)
    syncs = {"gather_scatter": gather_scatter, "all_reduce": all_reduce_mean}
    train_set, test_set = job.data()
    optimizer = torch.optim.SGD(model.parameters(), lr * job.lr, job.momentum, weight_decay=decay)
    mine = islice(batches(train_set, rank, world_size, job.total_batch, seed=job.seed), job.n_iterations)
    losses, iteration_s = train(model, mine, syncs.get(job.method, lambda model: None), optimizer, report)
    test_loss, accuracy = evaluate(model, DataLoader(test_set, 8 if drops else 200, drop_last=drops))
    return {"losses": losses, "iteration_s": iteration_s, "test_loss": test_loss, "accuracy": accuracy}


@wrong("lesson_04.ddp", says="rank 1 printed .*rank 0 reports, the others are silent")
def every_rank_reports(rank, world_size, job):
    return _reports_on(rank, world_size, job, print)


@wrong("lesson_04.ddp", says="rank 0 printed nothing in 22 iterations")
def no_rank_reports(rank, world_size, job):
    return _reports_on(rank, world_size, job, lambda text: None)


@wrong("lesson_04.ddp", says="SGD takes job.lr and job.momentum and nothing else, no weight decay")
def decays_the_weights(rank, world_size, job):
    return _reports_on(rank, world_size, job, (lambda text: None) if rank else print, decay=5e-4)


@wrong("lesson_04.worker", says="a part of the test set is missing.*no drop_last")
def drops_the_end_of_the_test_set(rank, world_size, job):
    return _reports_on(rank, world_size, job, (lambda text: None) if rank else print, drops=True)


@wrong("lesson_04.batches", says="the same epoch and seed give another order|is the sampler the loader's")
def makes_a_sampler_for_nobody(dataset, rank, world_size, total_batch, epoch=0, seed=0):
    sampler = DistributedSampler(dataset, world_size, rank, seed=seed)
    sampler.set_epoch(epoch)
    return DataLoader(dataset, total_batch // world_size, shuffle=True)


@wrong("lesson_04.batches", says="same order as epoch 0.*is the sampler the loader's")
def makes_a_sampler_and_shuffles_by_a_number(dataset, rank, world_size, total_batch, epoch=0, seed=0):
    sampler = DistributedSampler(dataset, world_size, rank, seed=seed)
    sampler.set_epoch(epoch)
    return DataLoader(dataset, total_batch // world_size, shuffle=True, generator=torch.Generator().manual_seed(1))


@wrong("lesson_04.gather_scatter", says="ranks bring different dtypes, float64 and float32: zeros")
def gathers_zeros_of_torchs_own_dtype(model):
    for p in model.parameters():
        if p.requires_grad and p.grad is None:
            p.grad = torch.zeros(p.shape).to(p.dtype)
        if p.requires_grad:
            had = bool(p.grad.any())
            g = p.grad if had else torch.zeros(p.shape)
            each = [torch.empty_like(g) for _ in range(dist.get_world_size())]
            root = dist.get_rank() == 0
            dist.gather(g, each if root else None)
            dist.scatter(g, [sum(each) / len(each)] * len(each) if root else None)
            p.grad = g.to(p.dtype)


@wrong("lesson_04.evaluate", says="the model was shown 0 of 5 examples")
def computes_the_loss_beside_the_model(model, batches):
    x, y = map(torch.cat, zip(*batches))
    with torch.no_grad():
        model.eval()(torch.zeros_like(x))
        scores = x @ model.weight.T
    return cross_entropy(scores, y).item(), (scores.argmax(1) == y).float().mean().item()


@wrong("lesson_04.evaluate", says="that is the loss of the examples themselves")
def takes_the_examples_for_scores(model, batches):
    x, y = map(torch.cat, zip(*batches))
    return cross_entropy(x, y).item(), evaluate(model, batches)[1]


@wrong("lesson_04.evaluate", says="not every batch has as many examples as the first one: count them")
def counts_on_the_first_batch(model, batches):
    model.eval()
    loss = n_right = n = 0
    for x, y in batches:
        with torch.no_grad():
            scores = model(x)
        first = n or len(y)
        n = first
        loss += cross_entropy(scores, y, reduction="sum").item()
        n_right += (scores.argmax(1) == y).sum().item()
    return loss / (n * len(batches)), n_right / (n * len(batches))


for _first in (False, True):

    @wrong(
        "lesson_04.evaluate", says=f"not every batch has as many examples as the {'first' if _first else 'last'} one"
    )
    def counts_only_what_is_right_on_one_batch(model, batches, first=_first):
        model.eval()
        losses, n_right, n = [], 0, sum(len(y) for _, y in batches)
        for x, y in batches:
            with torch.no_grad():
                scores = model(x)
            losses.append(cross_entropy(scores, y, reduction="sum").item())
            n_right += (scores.argmax(1) == y).sum().item()
        return sum(losses) / n, n_right / (len(batches[0 if first else -1][1]) * len(batches))


wrong_values(
    "lesson_04.bytes_sent", "writes_megabytes", _bytes(lambda right, *given: right(*given) / 1e6), gather_scatter,
    all_reduce_mean, says="is 0.0144; the ledger says 14,400.*these are megabytes",
)  # fmt: skip


def _all_in_one_call(model):
    flat = torch.cat([p.grad.view(-1) for p in model.parameters()])
    dist.all_reduce(flat)
    torch.nn.utils.vector_to_parameters(flat / dist.get_world_size(), [p.grad for p in model.parameters()])


def _never_waits(model):
    for p in model.parameters():
        dist.all_reduce(p.grad, async_op=True)


for _name, _sync, _says in (
    ("beside_one_call_for_all", _all_in_one_call, "makes 1 call for 3 tensors, the formula counts 3: 4.2 and 4.3 ask"),
    ("beside_calls_that_nobody_waits_for", _never_waits, "never waits for its all_reduce.*4.2 or 4.3 comes first"),
):
    wrong_values("lesson_04.predicted_s", _name, _seconds(), gather_scatter, _sync, says=_says)


@wrong("lesson_04.train", says="must hold 45 numbers, one an iteration; got 40.*goes on to the last batch")
def stops_where_the_mean_ends(model, batches, sync, optimizer, report=print):
    batches = (batch for batch, _ in zip(batches, range(40)))
    return train(model, batches, sync, optimizer, report)
