"""The GPU of this machine, which virtual ranks without virtual devices don't see: as on a laptop, as in `launch`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from hw_utils.core.calls.patched import patched


@contextmanager
def real_gpus_hidden() -> Iterator[None]:
    """While it lasts, this process has no accelerator, for whoever asks before he uses one (fully_shard does)."""
    with ExitStack() as stack:
        if torch._C._accelerator_getAccelerator() is not None or torch.cuda.is_available():
            for place, name, answer in _names():
                stack.enter_context(patched(place, name, lambda *_, answer=answer, **__: answer))
        yield


def _names() -> list[tuple[Any, str, Any]]:
    kinds = (torch.cuda, torch.xpu, torch.accelerator)
    return [
        *((kind, "is_available", False) for kind in kinds),
        *((kind, "device_count", 0) for kind in kinds),
        (torch.backends.mps, "is_available", False),
        (torch.accelerator, "current_accelerator", None),
        (torch._C, "_accelerator_getAccelerator", None),
        (torch._C, "_get_accelerator", torch.device("cpu")),
    ]
