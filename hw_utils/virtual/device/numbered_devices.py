"""`torch.device` while ranks run: a number alone, as in `torch.device(local_rank)`, is the GPU of that number.

Torch's own class asks C++ which accelerator there is, and there is none. What is made is always torch's own.
"""

from __future__ import annotations

from typing import Any

import torch

TorchsOwn = torch.device


class _AsTorchs(type):
    """Takes torch's own devices for its own, and itself for torch's class."""

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.device:
        if len(args) == 1 and type(args[0]) is int and not kwargs:
            args = ("cuda", *args)
        return TorchsOwn(*args, **kwargs)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, TorchsOwn)

    def __subclasscheck__(cls, other: type) -> bool:
        return other is cls or issubclass(other, TorchsOwn)

    def __eq__(cls, other: Any) -> bool:
        return other is cls or other is TorchsOwn

    def __hash__(cls) -> int:
        return hash(TorchsOwn)  # tables of types that torch has made before find it

    def __getattr__(cls, name: str) -> Any:
        return getattr(TorchsOwn, name)


Device = _AsTorchs("device", (), {"__module__": "torch", "__doc__": TorchsOwn.__doc__})  # pickled by torch's name
