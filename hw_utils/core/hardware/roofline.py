"""The model of a device: what an operation costs on it (a roofline), and how much it holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """A GPU or a CPU: an operation takes the larger of its FLOPs and its bytes over what the device achieves.

    Williams et al. 2009, "Roofline". Data types are named as torch names them, "bfloat16"; "tf32" is float32 where the
    program allows it, `torch.set_float32_matmul_precision("high")`. A data type that `achieved_FLOPps` lacks goes at
    float32's rate.

    peak_FLOPps: the datasheet's. achieved_FLOPps: what large matrix products reach. launch_s: seconds of the host's own
    time to enqueue one operation.

    Raises:
        ValueError: an amount that is not positive; a data type that achieves more than its peak; no float32.

    >>> device = Device("a toy", {"float32": 2e9}, {"float32": 1e9}, memory_Bps=1e8, memory_bytes=10**6, launch_s=0)
    >>> device.operation_s(n_flops=3e9, n_bytes=1000), device.operation_s(n_flops=0, n_bytes=5 * 10**7)
    (3.0, 0.5)
    """

    name: str
    peak_FLOPps: Mapping[str, float]
    achieved_FLOPps: Mapping[str, float]
    memory_Bps: float
    memory_bytes: int
    launch_s: float

    def __post_init__(self) -> None:
        if "float32" not in self.achieved_FLOPps:
            raise ValueError("achieved_FLOPps needs at least float32: other data types go at its rate")
        for dtype, rate in self.achieved_FLOPps.items():
            if not 0 < rate <= self.peak_FLOPps.get(dtype, 0):
                peak = self.peak_FLOPps.get(dtype)
                raise ValueError(f"achieved_FLOPps[{dtype!r}] must be above 0, at most its peak {peak}, got {rate}")
        for name in ("memory_Bps", "memory_bytes"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0, got {getattr(self, name)}")
        if not self.launch_s >= 0:
            raise ValueError(f"launch_s must be at least 0, got {self.launch_s}")

    def operation_s(self, n_flops: float, n_bytes: float, dtype: str = "float32") -> float:
        """Seconds that the device is busy with one operation."""
        rate_FLOPps = self.achieved_FLOPps.get(dtype) or self.achieved_FLOPps["float32"]
        return max(n_flops / rate_FLOPps, n_bytes / self.memory_Bps)
