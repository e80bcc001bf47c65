"""Predicted beside measured: iteration times of GPT with 3.6 billion parameters on 64 A100.

    python -m tools.bench.predict [--rows 2,3]

The times are vTrain's (VIA-Research/vTrain, data/ground_truth_multi.csv: Megatron-DeepSpeed, A100 80 GB, eight in a
host, sequences of 2,048, 512 in a step, full recomputation, 1F1B). Fitted are two constants: what share of its peak a
bfloat16 product reaches, on the row of data parallelism only with micro-batches of 8; and the link inside a host, on
the same machine's all-reduces of eight devices (trace/a100), as `tests/virtual/programs/test_clusters.py` has them.
Their hosts have 800 Gb/s between them (vTrain/src/config), half of a DGX's: an equal share for each of eight devices.
All else stays the preset's, and all other rows are predicted, by one folded run of the training program each.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from tqdm import tqdm

from hw_utils import Fold, simulate
from hw_utils.core.hardware import Cluster, Network
from tests.virtual.programs.shapes import gpt
from tests.virtual.programs.shapes.megatron import Shape

BATCH, LAYERS, VOCABULARY = 512, 30, 51_200  # sequences in a step


@dataclass(frozen=True)
class Row:
    """One way to spread the model over 64 devices, and how long an iteration of it took."""

    tp: int
    dp: int
    pp: int
    micro_batch: int
    measured_s: float

    @property
    def plan(self) -> gpt.Plan:
        shape = Shape(
            width=3072, heads=32, layers=LAYERS // self.pp, micro_batch=self.micro_batch, recompute="full"
        )  # fmt: skip
        n_micro_batches = BATCH // self.dp // self.micro_batch
        return gpt.Plan(shape, VOCABULARY, (self.pp, self.dp, self.tp), n_micro_batches)

    def __str__(self) -> str:
        return f"tp {self.tp:2}  dp {self.dp:2}  pp {self.pp}  micro-batch {self.micro_batch:2}"


ROWS = [
    Row(*row)
    for row in (
        (1, 64, 1, 8, 3.5665), (1, 64, 1, 4, 3.6383), (1, 64, 1, 2, 3.7005), (2, 32, 1, 8, 3.9752),
        (2, 32, 1, 16, 3.9375), (2, 32, 1, 4, 4.0782), (2, 32, 1, 2, 4.2642), (4, 16, 1, 16, 4.4921),
        (4, 16, 1, 32, 4.5482), (4, 16, 1, 8, 4.6344), (4, 16, 1, 4, 4.7640), (4, 16, 1, 2, 6.2283),
        (1, 32, 2, 4, 4.3821), (1, 32, 2, 2, 4.0349), (1, 32, 2, 8, 5.0456), (8, 8, 1, 64, 9.8389),
        (8, 8, 1, 32, 4.9723), (8, 8, 1, 16, 5.0178), (8, 8, 1, 8, 5.1780), (8, 8, 1, 4, 5.6180),
        (8, 8, 1, 2, 8.8809), (16, 4, 1, 32, 10.5806), (16, 4, 1, 16, 10.7193), (16, 4, 1, 8, 10.8940),
        (16, 4, 1, 4, 11.9601), (16, 4, 1, 2, 13.4722),
    )
]  # fmt: skip
FITTED = ROWS[0]  # to the share of the peak
INSIDE = Network(5.5e-6, 228e9)  # of eight devices of a host, fitted to their all-reduces of 1 MiB to 1 GiB
HOSTS_BPS = 800e9 / 8  # between hosts, all cards of one


def cluster_of(share: float) -> Cluster:
    """64 A100 whose products reach `share` of the peak."""
    preset = Cluster.named("a100x64")
    achieved = {dtype: rate * share for dtype, rate in preset.device.peak_FLOPps.items()}
    between = replace(preset.between, bandwidth_Bps=HOSTS_BPS / preset.devices_per_host)
    return replace(preset, device=replace(preset.device, achieved_FLOPps=achieved), inside=INSIDE, between=between)


def predicted_s(row: Row, cluster: Cluster) -> float:
    """Virtual seconds of one iteration."""
    run = simulate(
        gpt.train, cluster.world_size, (row.plan,), cluster=cluster, compute="device", values="shapes",
        fold=Fold(row.plan.by_axis, ("dp", "tp")), echo=False, timeout_s=3600,
    )  # fmt: skip
    return max(end_s - begin_s for begin_s, end_s in run)


def fitted(rel_tol: float = 1e-3) -> float:
    """The share of the peak with which FITTED takes what was measured; by the secant over the time of a product.

    Raises:
        ValueError: no share from 0.2 to 1 gives that.
    """
    wanted_s = FITTED.measured_s
    ends = [(1 / share, predicted_s(FITTED, cluster_of(share))) for share in (0.2, 1.0)]
    if not ends[1][1] <= wanted_s <= ends[0][1]:
        raise ValueError(f"measured {wanted_s:g} s, modelled between {ends[1][1]:g} and {ends[0][1]:g} s")
    while True:
        (slow, slow_s), (fast, fast_s) = ends
        found = fast + (slow - fast) * (wanted_s - fast_s) / (slow_s - fast_s)
        found_s = predicted_s(FITTED, cluster_of(1 / found))
        if abs(found_s - wanted_s) <= rel_tol * wanted_s:
            return 1 / found
        ends = [(slow, slow_s), (found, found_s)] if found_s < wanted_s else [(found, found_s), (fast, fast_s)]


def report(rows: Sequence[Row], found_s: Sequence[float]) -> Iterator[str]:
    """A line a row, and the errors of those that were predicted: mean, median, worst, and the order of rows."""
    for row, found in zip(rows, found_s):
        why = "fitted" if row is FITTED else f"{found / row.measured_s - 1:+.1%}"
        yield f"{row}  measured {row.measured_s:7.3f} s  predicted {found:7.3f} s  {why}"
    kept = [(row, found) for row, found in zip(rows, found_s) if row is not FITTED]
    if len(kept) < 2:
        return
    errors = np.array([abs(found / row.measured_s - 1) for row, found in kept])
    ranks = [np.argsort(np.argsort(of)) for of in ([row.measured_s for row, _ in kept], [f for _, f in kept])]
    order = np.corrcoef(*ranks)[0, 1]
    yield (
        f"{len(kept)} rows predicted: error {errors.mean():.1%} in the mean, {np.median(errors):.1%} in the median, "
        f"{errors.max():.1%} at worst; correlation of ranks {order:.2f}"
    )


def main() -> int:
    """Fits, then predicts the rows."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    everything = ",".join(map(str, range(1, len(ROWS) + 1)))
    options.add_argument("--rows", default=everything, help="numbers of rows, from 1, as 1,4,12; by default all")
    chosen = options.parse_args().rows.split(",")
    if not set(chosen) <= set(everything.split(",")):
        options.error(f"rows are numbers from 1 to {len(ROWS)} with commas, got {','.join(chosen)}")
    share = fitted()
    print(
        f"fitted: products reach {share:.3f} of the peak; links in a host {INSIDE.bandwidth_Bps / 1e9:g} GB/s",
        flush=True,
    )
    cluster, rows = cluster_of(share), [ROWS[int(n) - 1] for n in chosen]
    found_s = [predicted_s(row, cluster) for row in tqdm(rows, unit="row", disable=not sys.stderr.isatty())]
    print(*report(rows, found_s), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
