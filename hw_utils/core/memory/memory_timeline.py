"""The books of a run's memory: what each rank allocated and freed, when, for whom, and sums over it."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hw_utils.core.hardware.fold import Fold
from hw_utils.core.memory.owners import OWNERS
from hw_utils.core.source.lines import Where, locate

RECORD = np.dtype([("rank", "i4"), ("time_s", "f8"), ("n_bytes", "i8"), ("owner", "i1"), ("site", "i4")])
_SHOWN_RANKS = 16


@dataclass(frozen=True)
class Peak:
    """The most that a rank held at once: how much, when, whose, and the line that asked for the last of it."""

    rank: int
    n_bytes: int
    time_s: float
    by_owner: dict[str, int]  # only owners that held something
    where: Where | None  # None: no line of the program's own, as while its arguments were unpacked


class Memory:
    """Bytes of the storages that each rank holds, by owner, over the run's time; `run.memory`.

    parameters: of modules, with what is left of them after sharding. gradients: what `.grad` holds. optimizer: the
    state of a `torch.optim.Optimizer`. activations: computed from something that needs a gradient, and still there
    when a backward pass begins, or computed in one, by recomputation. gathered: what an all-gather wrote, and FSDP2's
    whole parameters. buffers: of modules, and what other collectives read and write. other: the rest, such as batches
    of data and temporaries. A storage has one owner, from its first byte to its last.

    Counted are whole storages, `tensor.untyped_storage().nbytes()`, as torch allocates and frees them. Not counted are
    an operation's own work space, what gloo or the virtual network hold of a message, what a package makes for itself
    while it is imported, and an allocator's rounding.

    records: of dtype RECORD, each rank's in the order in which they happened; n_bytes is negative where memory is
    freed. sites: (file, line) of each `site`; 0 is none. fold: of a folded run, whose records are those of the ranks
    that ran; each stands for the others of its class.
    """

    def __init__(
        self,
        records: np.ndarray,
        sites: Sequence[tuple[str, int]],
        world_size: int,
        capacity_bytes: int | None = None,
        fold: Fold | None = None,
    ) -> None:
        self.fold = fold
        self.records, self.sites, self.world_size = records, tuple(sites), world_size
        self.capacity_bytes = capacity_bytes

    @classmethod
    def of(
        cls,
        parts: Sequence[dict[str, Any]],
        world_size: int,
        capacity_bytes: int | None = None,
        fold: Fold | None = None,
    ) -> Memory:
        """The books of a run from those of its ranks: {"rank", "records", "sites": what their numbers stand for}."""
        sites: dict[tuple[str, int], int] = {("", 0): 0}
        found = [np.zeros(0, RECORD)]
        for part in parts:
            numbers = np.array([sites.setdefault(tuple(site), len(sites)) for site in part["sites"]], "i4")
            records = part["records"].copy()
            records["rank"], records["site"] = part["rank"], numbers[records["site"]]
            found.append(records)
        return cls(np.concatenate(found), list(sites), world_size, capacity_bytes, fold)

    def of_rank(self, rank: int) -> np.ndarray:
        """The records of one rank, in order.

        Raises:
            ValueError: there is no such rank.
        """
        if not 0 <= rank < self.world_size:
            raise ValueError(f"there is no rank {rank}: ranks are 0 to {self.world_size - 1}")
        first = rank if self.fold is None else self.fold.representative(rank)
        records = self.records[self.records["rank"] == first]
        records["rank"] = rank
        return records

    @property
    def ranks(self) -> Sequence[int]:
        """Those whose books differ: all, or the representatives of a fold."""
        return range(self.world_size) if self.fold is None else self.fold.representatives

    def series(self, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """(seconds, shape (k,); bytes held after each of the rank's k records, shape (k, 7), a column an owner)."""
        records = self.of_rank(rank)
        changes = np.zeros((len(records), len(OWNERS)), "i8")
        changes[np.arange(len(records)), records["owner"]] = records["n_bytes"]
        return records["time_s"], np.cumsum(changes, axis=0)

    def peak(self, rank: int) -> Peak:
        """The most that a rank held; of equal moments the first."""
        records = self.of_rank(rank)
        if not len(records):
            return Peak(rank, 0, 0.0, {}, None)
        times_s, held = self.series(rank)
        k = int(np.argmax(held.sum(axis=1)))
        file, line = self.sites[records["site"][k]]
        return Peak(rank, int(held[k].sum()), float(times_s[k]), _named(held[k]), locate(file, line) if file else None)

    def peak_bytes(self, rank: int, owner: str | None = None) -> int:
        """The most bytes that a rank held, or that one owner held there; their peaks need not be at one time.

        Raises:
            ValueError: there is no such owner or rank.
        """
        _, held = self.series(rank)
        amounts = held.sum(axis=1) if owner is None else held[:, _column(owner)]
        return int(amounts.max(initial=0))

    def held_bytes(self, rank: int, time_s: float | None = None) -> dict[str, int]:
        """Owner -> the bytes that a rank held after all that it did until `time_s`; None is the end of its worker."""
        times_s, held = self.series(rank)
        k = len(times_s) if time_s is None else int(np.searchsorted(times_s, time_s, side="right"))
        return _named(held[k - 1]) if k else {}

    @property
    def owners(self) -> tuple[str, ...]:
        """Those that held something on some rank, in the order of OWNERS."""
        return tuple(OWNERS[i] for i in np.unique(self.records["owner"]))

    def _rows(self) -> list[tuple[str, ...]]:
        peaks = [self.peak(rank) for rank in range(min(self.world_size, _SHOWN_RANKS))]
        return [
            (
                str(p.rank),
                f"{p.n_bytes:,}",
                *(f"{p.by_owner.get(owner, 0):,}" for owner in self.owners),
                f"{p.time_s:.6g}",
                str(p.where or ""),
            )
            for p in peaks
        ]

    def _head(self) -> tuple[str, ...]:
        return "rank", "peak [bytes]", *self.owners, "at [s]", "line"

    def _more(self) -> list[str]:
        left = self.world_size - _SHOWN_RANKS
        return [f"... and {left} more ranks"] if left > 0 else []

    def __repr__(self) -> str:
        rows = [self._head(), *self._rows()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in rows]
        return "\n".join(["what each rank held at its peak", *lines, *self._more()])

    def _repr_html_(self) -> str:
        head = "".join(f'<th scope="col" style="text-align:left">{name}</th>' for name in self._head())
        rows = "".join(
            f'<tr><th scope="row">{row[0]}</th>'
            + "".join(f'<td style="text-align:left">{html.escape(cell)}</td>' for cell in row[1:])
            + "</tr>"
            for row in self._rows()
        )
        more = "".join(f"<p>{line}</p>" for line in self._more())
        return (
            "<table><caption>what each rank held at its peak</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{more}"
        )


def _column(owner: str) -> int:
    if owner not in OWNERS:
        raise ValueError(f"owner must be one of {', '.join(OWNERS)}, got {owner!r}")
    return OWNERS.index(owner)


def _named(held: np.ndarray) -> dict[str, int]:
    return {name: int(n) for name, n in zip(OWNERS, held) if n}
