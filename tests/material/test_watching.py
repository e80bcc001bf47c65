"""Programs copy and pickle what is watched, in every way that they know, and nothing is freed twice."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest
import torch
from torch import nn

from hw_utils.material.kept.watching import Hook, MemoryRef


def _saved(thing: Any) -> Any:
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda thing: pickle.loads(pickle.dumps(thing)),
    "the first protocol of pickle": lambda thing: pickle.loads(pickle.dumps(thing, protocol=0)),
    "cloudpickle": lambda thing: cloudpickle.loads(cloudpickle.dumps(thing)),
    "torch.save": _saved,
}


def _ref(tensor: torch.Tensor) -> MemoryRef:
    return MemoryRef(tensor.untyped_storage())


@pytest.mark.parametrize("way", WAYS)
def test_a_reference_to_memory_knows_when_that_is_gone_however_it_was_copied(way: str):
    tensor = torch.ones(100)
    ref = _ref(tensor)
    other = WAYS[way]([ref])[0]
    assert not ref.expired()
    assert other is ref if way in ("copy", "deepcopy") else other.expired()
    del tensor
    assert ref.expired()


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_of_a_module_computes_the_same_and_only_a_pickled_one_is_seen_no_longer(way: str):
    seen: list[nn.Module] = []
    linear = nn.Linear(2, 1)
    linear.register_forward_hook(Hook(lambda module, args, output: seen.append(module)))
    other, x = WAYS[way](linear), torch.ones(3, 2)
    assert torch.equal(other(x), linear(x))
    assert seen == ([other, linear] if "copy" in way else [linear])


class Watcher:
    """Has a hook on a module, as checks have, and what must not be copied with it."""

    def __init__(self, module: nn.Module) -> None:
        self.refs: list[MemoryRef] = []
        self.lock = (number for number in range(3))  # can neither be copied nor be pickled
        module.register_forward_hook(Hook(self.made))

    def made(self, module: nn.Module, args: tuple, output: torch.Tensor) -> None:
        self.refs.append(_ref(output))


def copy_often(way: str) -> None:
    """As often as it takes for what is freed twice to end the process."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    watcher = Watcher(model)
    for _ in range(10):
        kept = model(torch.ones(2, 3))
        for _ in range(3):  # a reference too many is made up for by the memory's own: one more frees it under its owner
            others = WAYS[way]([model, watcher.refs])
            others[0](kept)
            del others
        assert not watcher.refs[0].expired()
        del kept
        assert all(ref.expired() for ref in watcher.refs)
        watcher.refs.clear()


def test_nothing_is_freed_twice_however_a_watched_module_is_copied():
    ways = "from tests.material import test_watching as t; [t.copy_often(way) for way in t.WAYS]; print('alive')"
    done = subprocess.run([sys.executable, "-c", ways], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
