"""Tables of names are seen to change by the number that the interpreter gives each change, and where it gives none."""

from __future__ import annotations

import types

import numpy as np
import pytest

from hw_utils.virtual.ranks.per_rank_state import dict_versions
from hw_utils.virtual.ranks.per_rank_state.dict_versions import Tables


class Thing:
    name = 1


@pytest.fixture(params=["numbered", "compared"])
def tables(request, monkeypatch):
    assert dict_versions.IS_NUMBERED  # CPython 3.10 to 3.13
    if request.param == "compared":
        monkeypatch.setattr(dict_versions, "IS_NUMBERED", False)
    module = types.ModuleType("module")
    module.name = 1
    monkeypatch.setattr(Thing, "name", 1)
    tables = Tables()
    tables.add("module", vars(module))
    tables.add("class", vars(Thing))
    tables.add("class", {})  # known by its name
    return tables, module


CHANGES = {
    "another value": lambda thing: setattr(thing, "name", 2),
    "a new name": lambda thing: setattr(thing, "new", 1),
    "a name that is gone": lambda thing: delattr(thing, "name"),
    "an array, which is equal to nothing": lambda thing: setattr(thing, "name", np.ones(2)),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("place", ["module", "class"])
def test_a_change_is_told_once_with_the_names_before(tables, name, place):
    tables, module = tables
    assert list(tables.differing()) == []
    CHANGES[name](module if place == "module" else Thing)
    ((what, now, before),) = tables.differing()
    assert (what, before["name"]) == (place, 1)
    assert now == vars(module if place == "module" else Thing)
    assert list(tables.differing()) == []
    if hasattr(Thing, "new"):
        del Thing.new


def test_what_has_changed_and_back_does_not_differ_nor_what_was_renewed(tables):
    tables, module = tables
    module.name = 2
    module.name = 1
    assert list(tables.differing()) == []
    module.name = 2
    tables.renew()
    assert list(tables.differing()) == []
    del module.name
    assert [before["name"] for _, _, before in tables.differing()] == [2]
