"""The pictures of README.md, drawn from the reference solutions' own runs: `python -m tools.site.figures`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import torch

from hw_utils import Network, Run, plots, simulate
from hw_utils.material.job import Job
from tools.lesson import ROOT
from tools.solution import solution_namespace

LINK = Network(latency_s=50e-6, bandwidth_Bps=125e6)


def _reduce_once(rank, world_size, all_reduce):
    tensor = torch.full((100_000,), float(rank))
    all_reduce(tensor)
    return tensor


def ring_run() -> Run:
    """The ring all-reduce of lesson 02, four ranks."""
    all_reduce = solution_namespace("02_all_reduce")["ring_all_reduce"]
    return simulate(_reduce_once, 4, args=(all_reduce,), network=LINK, compute="free")


def ring(path: Path) -> None:
    """`ring_run` in space and time."""
    ax = plots.plot_space_time(ring_run().trace)
    ax.set_title("ring all-reduce of 0.4 MB: every rank sends one chunk a step", loc="left", fontsize="medium")
    _save(ax, path)


def player(path: Path) -> None:
    """`ring_run` in the player, half-way, as Debian's chromium shows it."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = ring_run().save(Path(folder) / "ring.html")
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": 1000, "height": 900}, color_scheme="light")
        page.goto(page_file.resolve().as_uri())
        figure = page.locator(".hw-player").first
        figure.locator("input[type=range]").fill("3")
        figure.screenshot(path=path)
        chromium.close()


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


FIGURES: dict[str, Callable[[Path], None]] = {"ring.png": ring, "overlap.png": overlap, "player.png": player}


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
