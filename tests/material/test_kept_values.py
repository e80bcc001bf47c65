"""What an object holds, as texts: a number shows wherever it is kept."""

from __future__ import annotations

import ctypes
import datetime
import re

import pytest

from hw_utils.material.kept.values import kept_values


class Keeper:
    """An object of a notebook's class."""


Keeper.__module__ = "hw_mine"  # says that it is the course's

KEEPS = {
    "a range": lambda n: range(n),
    "a duration": lambda n: datetime.timedelta(seconds=n),
    "a pattern": lambda n: re.compile(str(n)),
    "a number of C": lambda n: ctypes.c_double(n),
    "a slice in a tuple": lambda n: (slice(n),),
}


@pytest.mark.parametrize("kind", KEEPS)
def test_a_number_is_found_in_whatever_holds_it(kind):
    found = []
    for number in (98_765_431, 98_765_432):
        keeper = Keeper()
        keeper.it = KEEPS[kind](number)
        found.append(kept_values(keeper, [], [])[0])
    assert set(found[0]) != set(found[1])
