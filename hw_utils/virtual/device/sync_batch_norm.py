"""torch's SyncBatchNorm on virtual devices: it asks for a GPU, and for five operations that only GPUs have.

Its own code runs, with its own communication; the two modules that it stands in find these operations in `torch`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.modules import _functions, batchnorm

MODULES = (batchnorm, _functions)


class _Torch:
    """`torch`, but for the names that it is given."""

    def __init__(self, beneath: Any, **instead: Any) -> None:
        vars(self).update(instead, beneath=beneath)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.beneath, name)


def torch_of_devices(has_values: bool) -> Any:
    """What the modules find as `torch`; without values, ranks with empty batches cannot be left out."""
    names = vars(torch._C)
    return _Torch(
        torch,
        _C=SimpleNamespace(**{**names, "_get_privateuse1_backend_name": lambda: "cpu"}),
        cuda=torch.cuda if has_values else _Torch(torch.cuda, is_current_stream_capturing=lambda: True),
        batch_norm_stats=_stats,
        batch_norm_gather_stats_with_counts=_gathered_stats,
        batch_norm_elemt=_normalised,
        batch_norm_backward_reduce=_sums_of_gradients,
        batch_norm_backward_elemt=_gradient,
    )


def _others(x: torch.Tensor) -> list[int]:
    """All dimensions but the channels'."""
    return [0, *range(2, x.dim())]


def _along(x: torch.Tensor, channels: torch.Tensor) -> torch.Tensor:
    """Numbers of the channels, shaped to be broadcast over `x` (batch, channels, ...)."""
    return channels.view(1, -1, *[1] * (x.dim() - 2))


def _exact(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _stats(x: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    variance, mean = torch.var_mean(_exact(x), _others(x), correction=0)
    return mean, torch.rsqrt(variance + eps)


def _gathered_stats(
    x: torch.Tensor, means: torch.Tensor, invstds: torch.Tensor, running_mean: Any, running_var: Any, momentum: float,
    eps: float, counts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """means, invstds: (ranks, channels); counts: (ranks,)."""
    shares = (counts / counts.sum()).unsqueeze(1).to(means.dtype)
    mean = (means * shares).sum(0)
    variance = ((invstds**-2 - eps + (means - mean) ** 2) * shares).sum(0)
    if running_mean is not None:
        n = counts.sum()
        running_mean.mul_(1 - momentum).add_(momentum * mean)
        running_var.mul_(1 - momentum).add_(momentum * variance * n / (n - 1))
    return mean, torch.rsqrt(variance + eps)


def _normalised(
    x: torch.Tensor, weight: Any, bias: Any, mean: torch.Tensor, invstd: torch.Tensor, eps: float
) -> torch.Tensor:
    scale = invstd if weight is None else invstd * weight
    y = (_exact(x) - _along(x, mean)) * _along(x, scale)
    return (y if bias is None else y + _along(x, bias)).to(x.dtype)


def _sums_of_gradients(
    gradient: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor, weight: Any, *asked: bool
) -> tuple[torch.Tensor, ...]:
    exact = _exact(gradient)
    total = exact.sum(_others(x))
    with_x = (exact * (_exact(x) - _along(x, mean))).sum(_others(x))
    dtype = mean.dtype if weight is None else weight.dtype
    return total, with_x, (with_x * invstd).to(dtype), total.to(dtype)


def _gradient(
    gradient: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor, weight: Any,
    total: torch.Tensor, with_x: torch.Tensor, counts: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    n = counts.sum()
    centred = _exact(gradient) - _along(x, total / n)
    centred = centred - (_exact(x) - _along(x, mean)) * _along(x, invstd**2 * with_x / n)
    return (centred * _along(x, invstd if weight is None else invstd * weight)).to(gradient.dtype)
