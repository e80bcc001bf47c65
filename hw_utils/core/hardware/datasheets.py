"""Devices, links and clusters that exist, with where their figures are from.

Peaks, memory and links are the manufacturers' datasheets: "NVIDIA A100 Tensor Core GPU" (June 2021), "NVIDIA H100
Tensor Core GPU" (2023), "NVIDIA H200 Tensor Core GPU" (2024), dense rates, SXM boards; memory in bytes as nvidia-smi
shows it.
Achieved bfloat16 is the largest matrix product that was measured, 271 of 312 and 795 of 989 TFLOP/s ("Maximum
Achievable Matmul FLOPS", stas00/ml-engineering, compute/accelerator); the other data types, and the H200, whose cores
are the H100's, are taken to reach the same share of their peak, which nobody measured here. `launch_s` is the 3.8 us
that a launch costs the host (A. Gray, "Getting Started with CUDA Graphs", NVIDIA 2019), rounded up for torch's share.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hw_utils.core.hardware.cluster import Cluster
from hw_utils.core.hardware.link import Network
from hw_utils.core.hardware.roofline import Device

GiB, MiB = 2**30, 2**20


def _device(name: str, achieved_share: float, peak_TFLOPps: dict[str, float], **amounts) -> Device:
    peak_FLOPps = {dtype: rate * 1e12 for dtype, rate in peak_TFLOPps.items()}
    achieved_FLOPps = {dtype: rate * achieved_share for dtype, rate in peak_FLOPps.items()}
    return Device(name, peak_FLOPps, achieved_FLOPps, **amounts)


A100 = _device(
    "A100 80 GB", 271 / 312,
    {"float64": 19.5, "float32": 19.5, "tf32": 156, "bfloat16": 312, "float16": 312, "int8": 624},
    memory_Bps=2.039e12, memory_bytes=81_920 * MiB, launch_s=5e-6,
)  # fmt: skip
_HOPPER = {
    "float64": 67, "float32": 67, "tf32": 494.7, "bfloat16": 989.4, "float16": 989.4, "int8": 1978.9,
    "float8_e4m3fn": 1978.9, "float8_e5m2": 1978.9,
}  # fmt: skip
H100 = _device("H100 80 GB", 795 / 989, _HOPPER, memory_Bps=3.35e12, memory_bytes=81_559 * MiB, launch_s=5e-6)
H200 = _device("H200 141 GB", 795 / 989, _HOPPER, memory_Bps=4.8e12, memory_bytes=143_771 * MiB, launch_s=5e-6)
# Four cores of 2.4 GHz with two AVX2 multiply-adds of 8 float32 a cycle, two channels of DDR4-3200 (Intel, Core
# i5-1135G7); the share of the peak and the cost of a call are assumed.
LAPTOP = _device(
    "laptop", 0.7, {"float64": 0.1536, "float32": 0.3072}, memory_Bps=51.2e9, memory_bytes=16 * GiB, launch_s=5e-6
)

# A direction of a device's NVLinks (twelve of 25 GB/s, eighteen of 25 GB/s) and NCCL's latency of a step over them;
# InfiniBand HDR and NDR and NCCL's latency of a step over a network (NCCL 2.19, src/graph/tuning.cc, protocol Simple).
NVLINK_3 = Network(3.4e-6, 300e9)
NVLINK_4 = Network(3.4e-6, 450e9)
INFINIBAND_200 = Network(14e-6, 200e9 / 8)
INFINIBAND_400 = Network(14e-6, 400e9 / 8)
ETHERNET_1 = Network()  # 1 Gb/s


def _nodes(device: Device, inside: Network, between: Network, n_devices: int, name: str) -> Cluster:
    """Hosts of eight devices with a card each, as a DGX; one host may have fewer."""
    per_host = min(n_devices, 8)
    if n_devices < 1 or n_devices % per_host:
        raise ValueError(f"hosts of 8 devices are full, or there is one: 1 to 8, 16, 24, ... devices, got {n_devices}")
    return Cluster(name, n_devices // per_host, per_host, device, inside, between, cards_per_host=per_host)


def _laptops(n_devices: int, name: str) -> Cluster:
    if n_devices < 1:
        raise ValueError(f"there is at least 1 laptop, got {n_devices}")
    return Cluster(name, n_devices, 1, LAPTOP, ETHERNET_1, ETHERNET_1, cards_per_host=1)


PRESETS: dict[str, Callable[[int, str], Cluster]] = {
    "a100": partial(_nodes, A100, NVLINK_3, INFINIBAND_200),
    "h100": partial(_nodes, H100, NVLINK_4, INFINIBAND_400),
    "h200": partial(_nodes, H200, NVLINK_4, INFINIBAND_400),
    "laptop": _laptops,
}
