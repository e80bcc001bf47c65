"""One function of torch's or Python's own in the place of another, for a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """While it lasts, `owner.name` is `value`; afterwards the owner, a module or a class, is what it was.

    What `getattr` gives of a class is bound, or a plain function of C++ that would not be bound any more: so what
    comes back is what stood in the owner's own names, and nothing if it was a class above that had it.
    """
    own = vars(owner)
    is_own, before = name in own, own.get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)
