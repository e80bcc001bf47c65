"""Runs simgrid.c under SimGrid's SMPI (Debian: libsimgrid-dev), with settings that add nothing to the model."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path

from hw_utils import Network

SOURCE = Path(__file__).with_suffix(".c")
# No factors and no thresholds: a message takes latency and bytes over bandwidth, and a send waits for its receive.
# SMPI still adds about 0.13 us to every message, whatever its size; and it lets messages that meet at a port share it.
NEUTRAL = (
    "network/model:CM02", "network/latency-factor:1", "network/bandwidth-factor:1", "network/weight-S:0",
    "network/crosstraffic:0", "network/TCP-gamma:1e18", "smpi/simulate-computation:no", "smpi/async-small-thresh:0",
    "smpi/send-is-detached-thresh:0", "smpi/wtime:0",
)  # fmt: skip
_PLATFORM = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="cluster" prefix="host-" suffix="" radical="0-{last}" speed="1Gf"
           bw="{bandwidth}Bps" lat="{latency}s" sharing_policy="SPLITDUPLEX"/>
</platform>
"""


def is_installed() -> bool:
    return bool(shutil.which("smpicc") and shutil.which("smpirun"))


def run(folder: Path, program: str, world_size: int, n_elements: int, network: Network) -> tuple[float, float]:
    """(virtual seconds of the slowest rank, wall seconds) of `program`: ring or tree, of float32."""
    binary, platform, hosts = folder / "simgrid", folder / "platform.xml", folder / "hosts"
    if not binary.exists():
        subprocess.run(["smpicc", "-O2", "-o", str(binary), str(SOURCE)], check=True, capture_output=True)
    # every host has a link of its own to the switch: a message takes two of them
    text = _PLATFORM.format(last=world_size - 1, bandwidth=network.bandwidth_Bps, latency=network.latency_s / 2)
    platform.write_text(text)
    hosts.write_text("".join(f"host-{r}\n" for r in range(world_size)))
    command = ["smpirun", "-np", str(world_size), "-platform", str(platform), "-hostfile", str(hosts)]
    command += [f"--cfg={setting}" for setting in NEUTRAL] + ["--log=root.thres:critical", str(binary)]
    before = time.perf_counter()
    done = subprocess.run([*command, program, str(n_elements)], check=True, capture_output=True, text=True)
    wall_s = time.perf_counter() - before
    return max(float(s) for s in re.findall(r"seconds (\S+)", done.stdout)), wall_s
