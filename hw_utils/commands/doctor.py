"""What is wrong with this installation, in plain words: a line a part, good or what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from hw_utils.core import versions

OLDEST, NEWEST = (3, 10), (3, 13)
MEMORY_GB, DISK_GB = 4, 1
_PROBE_S = 60
# On Linux, pip by itself takes the build for CUDA, 2.7 GB; uv knows where PyTorch keeps the small one.
_SMALL_TORCH = "uv, then: uv pip install --torch-backend=cpu torch torchvision"


@dataclass(frozen=True)
class Finding:
    """One line: is it good, what was found, what to do if it is not; aside: what the lessons do not miss."""

    part: str
    good: bool
    found: str
    todo: str = ""
    aside: str = ""

    def __str__(self) -> str:
        line = f"{'good' if self.good else 'FIX '}  {self.part:<16}{self.found}"
        more = [self.aside] if self.aside else []
        more += [f"-> {self.todo}"] if self.todo and (self.aside or not self.good) else []
        return "\n".join([line, *(f"      {'':<16}{text}" for text in more)])


def add_arguments(parser: ArgumentParser) -> None:
    del parser  # it has none


def main(arguments: Namespace) -> int:
    """Prints a line a part as soon as it is known; 1 if any of them needs fixing."""
    del arguments
    findings = []
    for part, probe in PROBES.items():
        findings.append(examine(part, probe))
        print(findings[-1], flush=True)
    bad = [f.part for f in findings if not f.good]
    aside = [f.part for f in findings if f.aside]
    well = f"All is well for the lessons, not for all programs: {', '.join(aside)}." if aside else "All is well."
    print(f"\nTo fix: {', '.join(bad)}." if bad else f"\n{well}")
    return 1 if bad else 0


def examine(part: str, probe: Callable[[], tuple]) -> Finding:
    """The finding of one probe; a probe that itself breaks is a finding, too."""
    try:
        return Finding(part, *probe())
    except Exception as error:
        text = str(error).strip() or "no message"
        return Finding(part, False, f"{type(error).__name__}: {text.splitlines()[0]}", _todo(part))


def _todo(part: str) -> str:
    return {
        "torch": f"python -m pip install {_SMALL_TORCH}",
        "torchvision": "install the torchvision that belongs to your torch: same day's release, same CPU or CUDA build",
    }.get(
        part, "run the set-up cell again after a restart of the kernel; if it stays, show this line to your instructor"
    )


def _python() -> tuple[bool, str, str]:
    version = sys.version_info[:2]
    found = f"{sys.version.split()[0]} in {sys.prefix}"
    course = _environment_nearby()
    if course is not None and course != Path(sys.prefix).resolve():
        found += f"; the course's own is {course}: choose it as the kernel, unless this one is meant"
    wanted = f"Python {'.'.join(map(str, OLDEST))} to {'.'.join(map(str, NEWEST))}"
    return OLDEST <= version <= NEWEST, found, f"make an environment with {wanted}"


def _environment_nearby() -> Path | None:
    """The .venv of the course's folder, seen from here or from one of its folders."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / ".venv" / "pyvenv.cfg").is_file():
            return (folder / ".venv").resolve()
    return None


def _torch() -> tuple[bool, str, str]:
    import torch
    import torch.distributed as dist

    cuda = f"built for CUDA {torch.version.cuda}: fine, the course uses the CPU (a build without CUDA is 2 GB, not 6)"
    kind = cuda if torch.version.cuda else "built for the CPU"
    if not dist.is_available() or not dist.is_gloo_available():
        return False, f"{torch.__version__} has no torch.distributed with gloo", _todo("torch")
    recent = versions.torch_version(torch.__version__) >= versions.TORCH_OLDEST
    newer = versions.untried(torch.__version__)
    todo = f"torch {versions.tried()} was tried: python -m pip install -U torch"
    return recent, f"{torch.__version__}, {kind}" + (f"; {newer}" if newer else ""), todo


def _torchvision() -> tuple[bool, str, str, str]:
    from hw_utils.material.images.torchvision_downloads import torchvision

    module = torchvision()
    found = f"{module.__version__} (only lessons 3 and 4 use it, for MNIST and CIFAR-10)"
    why = why_not_imported("torchvision")
    if not why:
        return True, found, "", ""
    aside = f"`import torchvision` fails in programs of your own, and so does what needs it ({why})"
    return True, found, f"{_todo('torchvision')}: python -m pip install {_SMALL_TORCH}", aside


def why_not_imported(name: str) -> str:
    """The last line of what a fresh Python says that cannot import a module; empty if it can."""
    command = [sys.executable, "-c", f"import {name}"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PROBE_S)
    except subprocess.TimeoutExpired:
        return f"not done after {_PROBE_S} s"
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1][:200]


def _cores() -> tuple[bool, str, str]:
    n = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    note = "" if n >= 2 else "; real ranks take turns, `simulate` still has a core for each"
    return True, f"{n}{note}", ""


def _memory() -> tuple[bool, str, str]:
    import psutil

    free = psutil.virtual_memory().available / 1e9
    return free >= MEMORY_GB, f"{free:.1f} GB free", f"close other programs: the lessons want {MEMORY_GB} GB"


def _disk() -> tuple[bool, str, str]:
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free / 1e9
    return (
        free >= DISK_GB,
        f"{free:.1f} GB free in {folder}",
        f"free {DISK_GB} GB there, or set TMPDIR to another folder",
    )


def _file_store() -> tuple[bool, str, str]:
    import torch.distributed as dist

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        first, second = dist.FileStore(str(path), 2), dist.FileStore(str(path), 2)
        second.set_timeout(timedelta(seconds=10))
        first.set("key", "value")
        same = second.get("key") == b"value"
    return same, "ranks can meet through a file", "set TMPDIR to a folder on a local disk that you can write to"


def _start() -> tuple[bool, str, str]:
    from hw_utils.processes import start_by_fork

    if start_by_fork.available():
        return True, "fork server: new ranks start in a fraction of a second", ""
    return True, "spawned processes: a launch waits until its Python processes are warm; `simulate` needs only one", ""


def _gloo() -> tuple[bool, str, str]:
    from hw_utils.launch import launch

    run = launch(_meet, 2, timeout_s=_PROBE_S, echo=False)
    todo = "let Python use the loopback interface: a firewall or a VPN may forbid it; try HW_UTILS_START=spawn"
    return list(run) == [3.0, 3.0], f"2 ranks met over gloo in {run.seconds:.2f} s", todo


def _meet(rank: int, world_size: int) -> float:
    import torch
    import torch.distributed as dist

    tensor = torch.tensor([rank + 1.0])
    dist.all_reduce(tensor)
    return tensor.item()


def _simulate() -> tuple[bool, str, str]:
    from hw_utils.simulate import simulate

    run = simulate(_meet, 16, compute="free", timeout_s=_PROBE_S, echo=False)
    return list(run) == [136.0] * 16, "16 virtual ranks met", ""


PROBES: dict[str, Callable[[], tuple]] = {
    "Python": _python,
    "torch": _torch,
    "torchvision": _torchvision,
    "cores": _cores,
    "memory": _memory,
    "disk": _disk,
    "file store": _file_store,
    "start": _start,
    "launch": _gloo,
    "simulate": _simulate,
}
