"""What crosses to a rank is there what it was here."""

from __future__ import annotations

import email.header
import email.mime.text
import os
import types

import cloudpickle
import pytest
import torch

from hw_utils.core import pickling


@pytest.fixture(params=["as it is", "as from cloudpickle 3.1.3 on"])
def cloudpickles(request, monkeypatch):
    """cloudpickle, and one that writes no file's name, as it has done since 3.1.3."""
    table = cloudpickle.Pickler.dispatch_table
    reduce = table[types.CodeType]
    if request.param != "as it is":
        monkeypatch.setitem(
            table, types.CodeType, lambda code: reduce(code.replace(co_filename="".join(["<dynamic", "-code>"])))
        )


@pytest.mark.usefixtures("cloudpickles")
def test_a_function_keeps_the_name_of_its_file():
    def outer():
        return lambda: 1

    there = pickling.load(pickling.dump(outer, "outer"))
    assert [there.__code__.co_filename, there().__code__.co_filename] == [__file__, __file__]
    assert (there.__code__.co_name, there.__code__.co_firstlineno) == ("outer", outer.__code__.co_firstlineno)
    assert there()() == 1


FUNCTIONS = {
    "none": lambda: torch.ones(1),
    "two levels": lambda: torch.nn.functional.relu(torch.ones(1)),
    "a name that is no module": lambda: torch.distributed.is_available() or types.SimpleNamespace().rpc,
    "several packages": lambda: [torch.optim.SGD, email.mime.text.MIMEText, email.header, os.path.join],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_submodules_that_a_function_mentions_are_those_that_cloudpickle_finds(name):
    code, packages = FUNCTIONS[name].__code__, [torch, os, email, types, "no module"]
    found = pickling._imported_submodules(code, packages)
    expected = cloudpickle.cloudpickle._find_imported_submodules(code, packages)
    assert sorted(m.__name__ for m in found) == sorted(m.__name__ for m in expected)
    assert bool(found) is (name != "none")


def test_a_function_may_name_modules_that_have_properties():
    def worker():
        return torch.backends.cudnn.benchmark, torch.utils.deterministic.fill_uninitialized_memory

    assert pickling.load(pickling.dump(worker, "worker"))() == worker()
