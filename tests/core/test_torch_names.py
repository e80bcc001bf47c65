"""The packages reach for names of torch that no documentation promises: a version that lacks one must be known before
students have it. torch_names_newest.txt is what the newest tried version has, torch_names_oldest.txt the oldest;
`make newest` runs this on the real ones.
"""

from __future__ import annotations

import pytest

from hw_utils.core.versions import TORCH_NEWEST, TORCH_OLDEST, torch_version
from tests.core.torch_names import FILES, missing, names_of, uses


def noted(tried: tuple[int, int] = TORCH_NEWEST) -> tuple[str, dict[str, set[str]]]:
    """The version that a list is of, and each module's names."""
    version, *rows = FILES[tried].read_text(encoding="utf-8").splitlines()
    return version, {module: set(names.split()) for module, _, names in (row.partition(": ") for row in rows)}


def test_the_installed_torch_has_every_name_that_is_needed():
    modules = {use.module: names_of(use.module) for use in uses()}
    assert len(uses()) > 500
    assert missing({module: names for module, names in modules.items() if names is not None}) == []


@pytest.mark.parametrize("tried", [TORCH_OLDEST, TORCH_NEWEST])
def test_the_oldest_and_the_newest_torch_have_every_name_that_is_needed(tried):
    version, have = noted(tried)
    assert torch_version(version) == tried
    assert missing(have) == []


@pytest.mark.parametrize("tried", [TORCH_OLDEST, TORCH_NEWEST])
def test_every_module_that_is_needed_is_known_of_the_oldest_and_the_newest_torch(tried):
    _, have = noted(tried)
    unknown = {use.module for use in uses() if use.module not in have and names_of(use.module) is not None}
    assert unknown == set(), "run `python -m tests.core.torch_names` with that torch (tests/newest.py makes one)"


def test_a_name_of_a_class_is_asked_for_as_well():
    assert names_of("torch.Tag") >= {"pointwise"}
    assert any(use.module == "torch.Tag" for use in uses())


def test_a_name_that_a_torch_lacks_is_told_with_its_place():
    have = noted()[1]
    have["torch.distributed"] = have["torch.distributed"] - {"PrefixStore"}
    assert any(
        "stores/torch_stores.py" in place and "torch.distributed.PrefixStore" in place for place in missing(have)
    )
