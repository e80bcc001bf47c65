"""What a process has once is a virtual rank's own: globals, classes, defaults of torch, environment, folder."""

from __future__ import annotations

import functools
import itertools
import os
import sys
from typing import ClassVar

import pytest
import torch
import torch.distributed as dist

from hw_utils import WorkerFailed, simulate

NUMBER = None
ITEMS: list[int] = []
TABLE: dict[str, int] = {}
COUNT = itertools.count()
WEIGHTS = torch.zeros(2)


class Manager:
    rank = None
    seen: ClassVar[list[int]] = []

    def __init__(self) -> None:
        self.rank = -1


MANAGER = Manager()


class Lazy:
    """As tensorboard's flags, which read the command line as soon as anybody asks what they are."""

    @property
    def __class__(self):
        raise RuntimeError("it is loaded")

    def __getattr__(self, name: str):
        raise RuntimeError("it is loaded")


FLAGS = [Lazy()]


def module_global(rank: int, world_size: int) -> int:
    global NUMBER
    NUMBER = rank
    dist.barrier()
    return NUMBER


def global_for_a_while(rank: int, world_size: int) -> int:
    global NUMBER
    NUMBER = rank
    dist.barrier()
    seen, NUMBER = NUMBER, None
    return seen


def list_of_a_module(rank: int, world_size: int) -> list[int]:
    ITEMS.append(rank)
    dist.barrier()
    return ITEMS


def table_of_a_module(rank: int, world_size: int) -> dict[str, int]:
    TABLE["rank"] = rank
    dist.barrier()
    return TABLE


def class_attribute(rank: int, world_size: int) -> int:
    Manager.rank = rank
    dist.barrier()
    return Manager.rank


def list_of_a_class(rank: int, world_size: int) -> list[int]:
    Manager.seen.append(rank)
    dist.barrier()
    return Manager.seen


def object_of_a_module(rank: int, world_size: int) -> int:
    MANAGER.rank = rank
    dist.barrier()
    return MANAGER.rank


def tensor_of_a_module(rank: int, world_size: int) -> list[float]:
    WEIGHTS.add_(rank)
    dist.barrier()
    return WEIGHTS.tolist()


def iterator_of_a_module(rank: int, world_size: int) -> int:
    dist.barrier()
    return next(COUNT)


@functools.lru_cache
def my_rank() -> int:
    return dist.get_rank()


def cached_function(rank: int, world_size: int) -> int:
    dist.barrier()
    return my_rank()


def attribute_of_a_function(rank: int, world_size: int) -> int:
    my_function.rank = rank
    dist.barrier()
    return my_function.rank


def my_function() -> None: ...


def default_dtype(rank: int, world_size: int) -> str:
    if rank == 1:
        torch.set_default_dtype(torch.float64)
    dist.barrier()
    return str(torch.ones(1).dtype)


def deterministic(rank: int, world_size: int) -> bool:
    torch.use_deterministic_algorithms(rank == 1, warn_only=True)
    dist.barrier()
    return torch.are_deterministic_algorithms_enabled()


def autocast(rank: int, world_size: int) -> str:
    with torch.autocast("cpu", enabled=rank == 1):
        dist.barrier()
        return str((torch.ones(2, 2) @ torch.ones(2, 2)).dtype)


def environment(rank: int, world_size: int) -> tuple:
    os.environ["MINE"] = str(rank)
    dist.barrier()
    return os.environ["MINE"], os.getenv("RANK"), os.environ["WORLD_SIZE"], int(os.environ["LOCAL_RANK"])


def working_directory(rank: int, world_size: int, folder: str) -> str:
    os.makedirs(f"{folder}/{rank}")
    os.chdir(f"{folder}/{rank}")
    dist.barrier()
    return os.path.basename(os.getcwd())


def arguments(rank: int, world_size: int) -> str:
    sys.argv = ["train.py", str(rank)]
    dist.barrier()
    return sys.argv[1]


def hook_of_all_modules(rank: int, world_size: int) -> int:
    calls = []
    if rank == 1:
        torch.nn.modules.module.register_module_forward_hook(lambda *_: calls.append(1))
    dist.barrier()
    torch.nn.Linear(1, 1)(torch.ones(1))
    return len(calls)


def hook_of_all_optimizers(rank: int, world_size: int) -> int:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    calls, weight = [], torch.nn.Parameter(torch.ones(1))
    if rank == 1:
        register_optimizer_step_post_hook(lambda *_: calls.append(1))
    dist.barrier()
    torch.optim.SGD([weight], 0.1).step()
    dist.barrier()
    return len(calls)


def attribute_of_torch(rank: int, world_size: int) -> list[int]:
    torch.Tensor.owner = lambda self: rank
    torch.nn.functional.owner = lambda: rank
    torch.optim.SGD.step = lambda self: rank
    dist.barrier()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1)
    return [torch.ones(1).owner(), torch.nn.functional.owner(), optimizer.step()]


def operation_of_its_own(rank: int, world_size: int) -> list[float]:
    @torch.library.custom_op("hw_utils_tests::scaled", mutates_args=())
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * (rank + 2)

    scaled.register_autograd(lambda ctx, grad: grad * (rank + 2))
    x = torch.ones(2, requires_grad=True)
    dist.barrier()
    y = torch.ops.hw_utils_tests.scaled(x)
    y.sum().backward()
    return [y.sum().item(), x.grad.sum().item()]


def mode(rank: int, world_size: int) -> int:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.calls += 1
            return func(*args, **(kwargs or {}))

    with Counting() as counting:
        if rank == 1:
            torch.ones(1) + 1
        before = counting.calls
        dist.barrier()
        return before


def method_of_torch(rank: int, world_size: int) -> list[int]:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    calls = []
    before = FSDPParamGroup.unshard

    def counted(self, *arguments, **named):
        calls.append(rank)
        return before(self, *arguments, **named)

    model = torch.nn.Linear(4, 4)
    fully_shard(model)
    FSDPParamGroup.unshard = counted
    try:
        model(torch.ones(1, 4))
        dist.barrier()
    finally:
        FSDPParamGroup.unshard = before
    return calls


OWN = {
    module_global: [0, 1, 2],
    global_for_a_while: [0, 1, 2],
    list_of_a_module: [[0], [1], [2]],
    table_of_a_module: [{"rank": 0}, {"rank": 1}, {"rank": 2}],
    class_attribute: [0, 1, 2],
    list_of_a_class: [[0], [1], [2]],
    object_of_a_module: [0, 1, 2],
    tensor_of_a_module: [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]],
    iterator_of_a_module: [0, 0, 0],
    cached_function: [0, 1, 2],
    attribute_of_a_function: [0, 1, 2],
    default_dtype: ["torch.float32", "torch.float64", "torch.float32"],
    deterministic: [False, True, False],
    autocast: ["torch.float32", "torch.bfloat16", "torch.float32"],
    environment: [(str(r), str(r), "3", r) for r in range(3)],
    arguments: ["0", "1", "2"],
    hook_of_all_modules: [0, 1, 0],
    hook_of_all_optimizers: [0, 1, 0],
    attribute_of_torch: [[0] * 3, [1] * 3, [2] * 3],
    operation_of_its_own: [[4.0, 4.0], [6.0, 6.0], [8.0, 8.0]],
    mode: [0, 2, 0],
    method_of_torch: [[0], [1], [2]],
}


@pytest.mark.parametrize("worker", OWN, ids=lambda worker: worker.__name__)
def test_what_a_process_has_once_is_a_ranks_own(worker):
    assert simulate(worker, 3, compute="free", echo=False).results == OWN[worker]


def test_the_working_directory_is_a_ranks_own(tmp_path):
    assert simulate(working_directory, 3, (str(tmp_path),), compute="free", echo=False).results == ["0", "1", "2"]


def test_the_caller_keeps_its_own_state():
    simulate(environment, 2, compute="free", echo=False, isolate=False)
    assert "MINE" not in os.environ


def test_more_ranks_than_processes_is_an_error_that_names_what_they_share():
    with pytest.raises(WorkerFailed, match=r"a global of the module .*up to 128 ranks get a process each, got 200"):
        simulate(module_global, 200, compute="free", echo=False)
