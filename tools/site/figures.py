"""The pictures of README.md, drawn from the reference solutions' own runs: `python -m tools.site.figures`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import torch

from hw_utils import Network, plots, simulate
from hw_utils.material.job import Job
from tools.lesson import ROOT
from tools.solution import solution_namespace

LINK = Network(latency_s=50e-6, bandwidth_Bps=125e6)


def _reduce_once(rank, world_size, all_reduce):
    tensor = torch.full((100_000,), float(rank))
    all_reduce(tensor)
    return tensor


def ring(path: Path) -> None:
    """The ring all-reduce of lesson 02, four ranks."""
    all_reduce = solution_namespace("02_all_reduce")["ring_all_reduce"]
    run = simulate(_reduce_once, 4, args=(all_reduce,), network=LINK, compute="free")
    ax = plots.plot_space_time(run.trace)
    ax.set_title("ring all-reduce of 0.4 MB: every rank sends one chunk a step", loc="left", fontsize="medium")
    _save(ax, path)


def overlap(path: Path) -> None:
    """DistributedDataParallel of lesson 04: VGG-11 on four nodes with 1 Gb/s, on paper."""
    names = solution_namespace("04_data_parallel")
    names["ONE_NODE_S"] = 2.52
    job = Job("ddp", names["vgg11_on_paper"], names["blank_images"], total_batch=256, n_iterations=3)
    run = simulate(names["worker"], 4, args=(job,), network=LINK, compute="free", echo=False)
    ax = plots.plot_timeline(run.trace)
    ax.set_title(
        "VGG-11 under DistributedDataParallel: buckets travel while the ranks compute", loc="left", fontsize="medium"
    )
    _save(ax, path)


FIGURES: dict[str, Callable[[Path], None]] = {"ring.png": ring, "overlap.png": overlap}


def _save(ax, path: Path) -> None:
    text = " ".join(getattr(ax.figure, "alt_texts", []))
    ax.figure.savefig(path, dpi=110, metadata={"Software": None, "Description": text})


def main() -> None:
    folder = ROOT / "docs"
    folder.mkdir(exist_ok=True)
    for name, draw in FIGURES.items():
        draw(folder / name)
        print(folder.relative_to(ROOT) / name)


if __name__ == "__main__":
    main()
