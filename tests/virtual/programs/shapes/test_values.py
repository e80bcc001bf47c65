"""What has values with shapes only, what has none, and what a program is told that asks for one."""

from __future__ import annotations

import copy
import io
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hw_utils import WorkerFailed, simulate
from tests.virtual.runs import run

ASK = {
    "if loss > 3": lambda loss, x: 1 if loss > 3 else 2,
    "while": lambda loss, x: [None for _ in range(int(loss))],
    "item": lambda loss, x: loss.item(),
    "float": lambda loss, x: f"{float(loss):.3f}",
    "format": lambda loss, x: f"{loss:.3f}",
    "tolist": lambda loss, x: x.tolist(),
    "numpy": lambda loss, x: x.detach().numpy(),
    "asarray": lambda loss, x: __import__("numpy").asarray(x.detach()),
    "mask": lambda loss, x: x[x > 0],
    "nonzero": lambda loss, x: x.nonzero(),
    "equal": lambda loss, x: torch.equal(x, x + 1),
    "list of tensors": lambda loss, x: torch.tensor([loss, loss]),
    "unique": lambda loss, x: x.unique(),
}


def asks(rank: int, world_size: int, how: str) -> None:
    x = torch.randn(3, 4)
    loss = (x * 2).sum()
    ASK[how](loss, x)


@pytest.mark.parametrize("how", ASK)
def test_who_asks_for_a_value_is_told_the_line_and_what_works_instead(how: str):
    with pytest.raises(WorkerFailed) as caught:
        run(asks, 2, how, values="shapes")
    text = str(caught.value)
    assert "needs the values of a" in text
    assert "What works: numbers of Python" in text
    assert 'values="real"' in text
    assert caught.value.failures[0].where.source.startswith(f'"{how}": lambda')


def knows(rank: int, world_size: int) -> list:
    count = torch.zeros((), dtype=torch.int64)
    count += torch.tensor([1, 2, 3]).sum()
    order = torch.randperm(8)
    numbers = torch.arange(6.0).view(2, 3).T.contiguous()
    uninitialised = torch.empty(3)
    uninitialised.copy_(torch.tensor([1.0, 2.0, 3.0]))
    return [count.item(), sorted(order.tolist()), numbers.tolist(), float(uninitialised.sum()), bool(count > 3)]


def test_what_comes_from_numbers_of_python_is_known():
    assert run(knows, 1, values="shapes")[0] == [
        6, list(range(8)), [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]], 6.0, True,
    ]  # fmt: skip


def sends_what_it_knows(rank: int, world_size: int) -> list:
    mine, got = torch.full((4,), 10.0**rank), torch.empty(4)
    sent = dist.isend(mine, (rank + 1) % world_size)
    dist.recv(got, (rank - 1) % world_size)
    sent.wait()
    total, parts = mine.clone(), [torch.empty(4) for _ in range(world_size)]
    dist.all_reduce(total)
    dist.all_gather(parts, mine)
    first, objects = torch.randn(4), [None] * world_size
    if rank == 0:
        first.copy_(mine)
    dist.broadcast(first, 0)
    dist.all_gather_object(objects, {"rank": rank})
    return [got.tolist(), total.tolist(), torch.stack(parts).sum(1).tolist(), first.tolist(), objects]


def test_known_values_travel_and_are_added_up():
    for rank, found in enumerate(run(sends_what_it_knows, 3, values="shapes")):
        assert found == [
            [10.0 ** ((rank - 1) % 3)] * 4, [111.0] * 4, [4.0, 40.0, 400.0], [1.0] * 4, [{"rank": r} for r in range(3)],
        ]  # fmt: skip


def forgets(rank: int, world_size: int, how: str) -> None:
    known, random = torch.ones(4), torch.randn(4)
    if how == "add":
        known.add_(random)
    elif how == "view":
        known[1:2].copy_(random[:1])
    elif how == "all_reduce":
        dist.all_reduce(known if rank else random)
    elif how == "recv":
        dist.send(random, 1) if rank == 0 else dist.recv(known, 0)
    elif how == "large":
        known = torch.ones(2**20)
    known.sum().item() if rank or how != "recv" else None


@pytest.mark.parametrize("how", ["add", "view", "all_reduce", "recv", "large"])
def test_what_is_mixed_with_unknown_numbers_or_is_large_is_unknown(how: str):
    with pytest.raises(WorkerFailed, match="needs the values of a float32 tensor"):
        run(forgets, 2, how, values="shapes")


def loads(rank: int, world_size: int) -> list:
    data = TensorDataset(torch.randn(40, 3), torch.arange(40))
    batches = [(len(x), y.tolist()) for x, y in DataLoader(data, batch_size=16, shuffle=True)]
    return [[n for n, _ in batches], sorted(place for _, places in batches for place in places)]


def test_a_data_loader_shuffles_and_batches():
    assert run(loads, 1, values="shapes")[0] == [[16, 16, 8], list(range(40))]


def keeps(rank: int, world_size: int) -> tuple:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    twin = copy.deepcopy(model)
    twin.load_state_dict(torch.load(io.BytesIO(file.getvalue()))["model"])
    steps = [state["step"].item() for state in optimizer.state.values()]
    print(model[0].bias, twin(torch.randn(5, 3)).sum())
    return model[0].weight, steps, len(file.getvalue())


def test_states_are_copied_saved_and_loaded_without_their_values():
    found = run(keeps, 1, values="shapes")
    weight, steps, n_bytes = found[0]
    assert weight.is_meta
    assert type(weight) is nn.Parameter
    assert weight.shape == (4, 3)
    assert steps == [1.0] * 4
    assert 0 < n_bytes < 10_000
    assert found.output[0] == (
        "Parameter containing:\ntensor(..., size=(4,), requires_grad=True) "
        "tensor(..., size=(), grad_fn=<SumBackward0>)\n"
    )


def wrong(rank: int, world_size: int) -> None:
    torch.randn(3, 4) @ torch.randn(3, 4)


def test_shapes_that_do_not_fit_are_the_error_that_they_are_with_values():
    texts = []
    for values in ("real", "shapes"):
        with pytest.raises(WorkerFailed) as caught:
            run(wrong, 1, values=values)
        texts.append(str(caught.value).splitlines()[0])
    assert "cannot be multiplied (3x4 and 3x4)" in texts[0]
    assert "must have same reduction dim" in texts[1] or "cannot be multiplied" in texts[1]


def no_rule(rank: int, world_size: int) -> None:
    torch.histogram(torch.randn(8), 4)


def test_an_operation_without_a_rule_for_shapes_is_named():
    with pytest.raises(WorkerFailed, match=r"no rule for the shapes that aten\.histogram"):
        run(no_rule, 1, values="shapes")


def test_nothing_is_left_behind():
    before = {name: vars(torch.Tensor).get(name) for name in ("tolist", "numpy", "__reduce_ex__", "__array__")}
    run(knows, 1, values="shapes")
    assert before == {name: vars(torch.Tensor).get(name) for name in before}
    assert torch.randn(2).tolist()
    assert run(lambda rank, world_size: torch.randn(2).tolist(), 1)[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [({"values": "meta"}, 'values must be "real" or "shapes"'), ({"values": "shapes"}, 'say compute="free"')],
)
def test_what_cannot_be_is_said(options: dict, said: str):
    with pytest.raises(ValueError, match=said):
        simulate(knows, 1, **options)


def _more_than_there_is(rank: int, world_size: int):
    x = torch.empty(2**40)
    y = torch.zeros_like(x, dtype=torch.bfloat16) + 1
    return x.nbytes, y.nbytes, tuple(y.view(2, -1).t().shape), (x * 2).sum().shape


def test_a_tensor_may_be_larger_than_this_machines_memory():
    assert run(_more_than_there_is, 1, values="shapes")[0] == (2**42, 2**41, (2**39, 2), ())


def _scripted(rank: int, world_size: int):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.optim import ZeroRedundancyOptimizer  # scripts functions that call torch.tensor
    model = nn.Linear(8, 8)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    return [p.shape for p in model.parameters()]


def test_torchscript_finds_its_builtins():
    assert run(_scripted, 2, values="shapes")[1] == [(8, 8), (8,)]
