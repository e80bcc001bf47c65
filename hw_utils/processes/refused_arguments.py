"""What `launch` and `simulate` are called with: refused before anything is started."""

from __future__ import annotations

import operator


def check_world_size(world_size: int) -> None:
    """Raises ValueError or TypeError unless it is a whole number of at least 1."""
    try:
        if isinstance(world_size, bool):
            raise TypeError
        operator.index(world_size)
    except TypeError:
        raise TypeError(
            f"world_size must be a whole number of at least 1, got {world_size!r} ({type(world_size).__name__})"
        ) from None
    if world_size < 1:
        raise ValueError(f"world_size must be at least 1, got {world_size}")


def check_capacity(capacity_bytes: int | None) -> None:
    """Raises ValueError unless it is None or a positive whole number of bytes."""
    is_number = isinstance(capacity_bytes, int) and not isinstance(capacity_bytes, bool)
    if capacity_bytes is not None and not (is_number and capacity_bytes > 0):
        raise ValueError(f"capacity_bytes must be a positive whole number or None, got {capacity_bytes!r}")
