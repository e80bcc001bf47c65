"""Judge of lesson 04's batches: which examples a rank sees, and in which iteration."""

from __future__ import annotations

from typing import Any

from hw_utils.checks.common_mistakes import came
from hw_utils.core.errors import CheckFailed

LABEL_OF_0 = 1000  # example k has the label k more than that


def judge_batches(data: Any, n_examples: int, world_size: int, total_batch: int) -> None:
    for batch in (batch for parts in data["epochs"] for part in parts for batch in part):
        if isinstance(batch, str):
            raise CheckFailed(f"batches: a batch is a {batch}, expected a pair (x, y) of tensors.",
                              cause="a DataLoader on the data set gives such pairs: return the loader.")  # fmt: skip
        if batch[1] != [LABEL_OF_0 + k for k in batch[0]]:
            cause = "x and y have changed places." if batch[0] == [LABEL_OF_0 + k for k in batch[1]] else _APART
            raise CheckFailed(f"batches: examples {came(batch[0])} come with labels {came(batch[1])}.", cause=cause)
    epochs = [[[x for x, _ in part] for part in parts] for parts in data["epochs"]]
    again, other_seed = ([[x for x, _ in part] for part in data[name]] for name in ("again", "other_seed"))
    size = total_batch // world_size
    for rank, part in enumerate(epochs[0]):
        wrong = [len(batch) for batch in part[:-1] if len(batch) != size]
        if not part or wrong or len(part[-1]) > size:
            got = wrong[0] if wrong else len(part[-1]) if part else 0
            cause = f"no batch is as small as total_batch / world_size = {size}, on every rank."
            cause = "total_batch counts all ranks: each takes total_batch / world_size." if got > size else cause
            raise CheckFailed(
                f"batches: rank {rank} of {world_size} gets {got} examples a batch; a total batch of {total_batch}"
                f" is {size} on each.",
                cause=cause,
            )
    _judge_cover(epochs[0], n_examples, world_size)
    counts = [sum(map(len, part)) for part in epochs[0]]
    if len(set(counts)) > 1:
        many, few = counts.index(max(counts)), counts.index(min(counts))
        raise CheckFailed(
            f"batches: rank {many} has {counts[many]} examples, rank {few} only {counts[few]}.",
            cause="the last round is not filled up: the ranks' last batches differ, a rank may have one less, and all "
            "others wait for it in their next call. DistributedSampler repeats a few examples: all have as many.",
        )
    _judge_mixed(epochs, again, other_seed, n_examples, world_size)
    _judge_dealt(epochs[0], [x for x, _ in data["alone"]], world_size)


_APART = "x and y of an example stay together: mix examples, not tensors."


def _judge_mixed(epochs: list, again: list, other_seed: list, n_examples: int, world_size: int) -> None:
    if epochs[0] == epochs[1]:
        cause = "sampler.set_epoch(epoch) tells the sampler which order to use; without it every epoch is the same."
        if [i for batch in epochs[0][0] for i in batch] == list(range(0, n_examples, world_size)):
            cause = "nothing is mixed, the order is that of the data set: shuffle=True is the sampler's."
        elif other_seed == epochs[0]:
            cause = (
                "another seed changes nothing either: is the sampler the loader's? DataLoader(..., sampler=sampler), "
                "without shuffle=True, takes its order; the seed is the sampler's, and set_epoch(epoch) tells it the "
                "epoch."
            )
        raise CheckFailed("batches: epoch 1 has the same order as epoch 0.", cause=cause)
    same = [(a, b) for b in range(len(epochs)) for a in range(b) if epochs[a] == epochs[b]]
    if same and n_examples > 8:  # of so few examples two epochs may be alike by chance
        raise CheckFailed(f"batches: epoch {same[0][1]} has the same order as epoch {same[0][0]}.",
                          cause="every epoch has an order of its own: sampler.set_epoch(epoch), as it is.")  # fmt: skip
    if again != epochs[0]:
        raise CheckFailed(
            "batches: the same epoch and seed give another order the second time.",
            cause="torch's common generator mixes them (DataLoader with shuffle=True, randperm without a generator):"
            " the sampler, with the seed, is what mixes.",
        )
    if other_seed == epochs[0]:
        raise CheckFailed(
            "batches: another seed gives the same order.",
            cause="pass seed to the sampler, or every run of a course sees the examples in one order.",
        )


def _judge_dealt(parts: list, alone: list, world_size: int) -> None:
    """Iteration k of all ranks together is batch k of one rank; the last ones may be filled up."""
    for k, whole in enumerate(alone[:-1]):
        together = sorted(int(i) for part in parts if k < len(part) for i in part[k])
        if together != sorted(map(int, whole)):
            raise CheckFailed(
                f"batches: in iteration {k + 1} the {world_size} ranks together see the examples {came(together)}; one"
                f" rank with the whole batch sees {came(sorted(map(int, whole)))}.",
                cause="the shuffled examples are dealt out like cards: rank r takes every N-th one, from the r-th on.",
            )


def _judge_cover(parts: list, n_examples: int, world_size: int) -> None:
    seen = [int(i) for part in parts for batch in part for i in batch]
    missing = sorted(set(range(n_examples)) - set(seen))
    repeated = len(seen) - len(set(seen))
    if missing:
        raise CheckFailed(
            f"batches: {len(missing)} of {n_examples} examples are in no rank's part, such as number {missing[0]}.",
            cause=_why_missing(parts, repeated, world_size),
        )
    if repeated >= world_size:
        whole = all(len({int(i) for b in part for i in b}) == n_examples for part in parts)
        cause = (
            "every rank goes through the whole set: give the DataLoader the sampler."
            if whole
            else "ranks must share one order: the same seed on all of them."
        )
        raise CheckFailed(
            f"batches: {repeated} examples are handed out more than once; parts are disjoint, but for up to"
            f" {world_size - 1} that fill up the last round.",
            cause=cause,
        )


def _why_missing(parts: list, repeated: int, world_size: int) -> str:
    if world_size > 1 and all(part == parts[0] for part in parts):
        return "every rank takes the same part: pass rank to the sampler."
    if repeated >= world_size:
        return "ranks must share one order: the same seed on all of them."
    return (
        "the last examples are dropped: no drop_last, neither in the sampler nor in the loader; shards cut by position"
        " (len // N) lose them too."
    )
