"""What crosses to a rank is there what it was here."""

from __future__ import annotations

import types

import cloudpickle
import pytest

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
