"""The packages reach for names of torch that no documentation promises: a version that lacks one must be known before
students have it. torch_names.txt is what the newest tried version has; `make newest` runs this on the real one.
"""

from __future__ import annotations

from hw_utils.core.versions import TORCH_NEWEST, torch_version
from tests.core.torch_names import FILE, missing, names_of, uses


def noted() -> tuple[str, dict[str, set[str]]]:
    """The version of torch_names.txt, and each module's names."""
    version, *rows = FILE.read_text(encoding="utf-8").splitlines()
    return version, {module: set(names.split()) for module, _, names in (row.partition(": ") for row in rows)}


def test_the_installed_torch_has_every_name_that_is_needed():
    modules = {use.module: names_of(use.module) for use in uses()}
    assert len(uses()) > 500
    assert missing({module: names for module, names in modules.items() if names is not None}) == []


def test_the_newest_torch_has_every_name_that_is_needed():
    version, have = noted()
    assert torch_version(version) == TORCH_NEWEST
    assert missing(have) == []


def test_every_module_that_is_needed_is_known_of_the_newest_torch():
    _, have = noted()
    unknown = {use.module for use in uses() if use.module not in have and names_of(use.module) is not None}
    assert unknown == set(), "run `python -m tests.core.torch_names` with the newest torch (tests/newest.py makes one)"


def test_a_name_that_a_torch_lacks_is_told_with_its_place():
    have = noted()[1]
    have["torch.distributed"] = have["torch.distributed"] - {"PrefixStore"}
    assert any("stores/handles.py" in place and "torch.distributed.PrefixStore" in place for place in missing(have))
