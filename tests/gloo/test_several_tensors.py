"""What only a process group's own methods take: several tensors a rank, which gloo combines within the rank."""

import pytest
import torch
import torch.distributed as dist

from hw_utils import launch, simulate

both = pytest.mark.parametrize("engine", [launch, simulate], ids=["launch", "simulate"])


def pairs(rank, world_size):
    """Reduced, broadcast and gathered, two tensors a rank."""
    group = dist.group.WORLD
    found = {}
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MAX):
        tensors = [torch.full((3,), 2.0 * rank + k + 1) for k in range(2)]
        options = dist.AllreduceOptions()
        options.reduceOp = op
        group.allreduce(tensors, options).wait()
        found[str(op)] = torch.stack(tensors)
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = 1, 1
    tensors = [torch.full((2,), 10.0 * rank + k) for k in range(2)]
    group.broadcast(tensors, options).wait()
    found["broadcast"] = torch.stack(tensors)
    inputs = [torch.full((2, 3), 10.0 * rank + k).t() for k in range(2)]
    outputs = [[torch.empty(3, 2) for _ in range(2 * world_size)] for _ in range(2)]
    group.allgather(outputs, inputs).wait()
    found["allgather"] = torch.stack([torch.stack(parts) for parts in outputs])
    sparse = [torch.sparse_coo_tensor([[rank]], [float(k + 1)], (world_size,)) for k in range(2)]
    group.allreduce(sparse).wait()
    one = torch.full((2,), 1.0 * rank)
    group.broadcast(one, root=1).wait()
    found["root by name"] = one
    number = torch.tensor(rank + 1.0)
    group.allreduce(number).wait()
    found["number"] = number
    found["sparse"] = torch.stack([tensor.to_dense() for tensor in sparse])
    return found


@pytest.mark.parametrize("world_size", [2, 5])
def test_two_tensors_a_rank_are_the_same_on_both_engines_values_and_bytes(world_size):
    real, virtual = launch(pairs, world_size, echo=False), simulate(pairs, world_size, echo=False)
    for mine, theirs in zip(real.results, virtual.results):
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert real.results[0]["broadcast"].tolist() == [[11.0, 11.0]] * 2
    assert real.results[0]["sparse"].tolist() == [[3.0] * world_size] * 2
    assert [real.trace.bytes_sent(r) for r in range(world_size)] == [
        virtual.trace.bytes_sent(r) for r in range(world_size)
    ]


def rooted_at(root, kind=dist.GatherOptions):
    options = kind()
    options.rootRank = root
    return options


REFUSED = {
    "requires non-empty tensor list": lambda group, one: group.allreduce([], dist.AllreduceOptions()),
    "invalid tensor type": lambda group, one: group.allreduce([one, one.double()], dist.AllreduceOptions()),
    "invalid tensor size": lambda group, one: group.allreduce([one, torch.ones(2)], dist.AllreduceOptions()),
    "invalid tensor layout": lambda group, one: group.allreduce([one, one.to_sparse()], dist.AllreduceOptions()),
    "invalid root rank": lambda group, one: group.broadcast(one, root=7),
    "invalid root tensor": lambda group, one: group.broadcast([], dist.BroadcastOptions()),
    "requires a single-element tensor list": lambda group, one: group.reduce([one, one], dist.ReduceOptions()),
    "have the same length": lambda group, one: group.allgather([], [one]),
    "invalid output tensor list": lambda group, one: group.allgather([[one] * 3], [one]),
    "Incorrect output list size 1": lambda group, one: group.gather([[one]], [one], rooted_at(0)),
    "empty input on non-root": lambda group, one: group.scatter([one], [[one] * 2], rooted_at(0, dist.ScatterOptions)),
}


def refused(rank, world_size, words):
    try:
        REFUSED[words](dist.group.WORLD, torch.ones(1))
    except RuntimeError as error:
        return str(error)


@both
@pytest.mark.parametrize("words", REFUSED)
def test_what_gloo_refuses_both_engines_refuse_in_its_words(engine, words):
    said = engine(refused, 2, [words], echo=False).results  # of a root's own, only one of them
    assert any(words in (text or "") for text in said)
    assert "root" in words or "list size" in words or all(words in text for text in said)
