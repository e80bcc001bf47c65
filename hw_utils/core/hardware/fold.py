"""A fold: how ranks lie on a mesh, and along which of its axes all of them do the same, so that one stands for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from hw_utils.core.hardware.cluster import Cluster


@dataclass(frozen=True)
class Fold:
    """Ranks on a mesh; those that differ only in their places along `axes` do the same, and the first is run for all.

    mesh: axis -> size; the last one varies fastest, as with `init_device_mesh`.

    Raises:
        ValueError: a size below 1, an axis that the mesh does not have.

    >>> fold = Fold({"pp": 2, "dp": 2, "tp": 2}, ("dp", "tp"))
    >>> fold.representatives, fold.alike(5)
    ((0, 4), (4, 5, 6, 7))
    """

    mesh: Mapping[str, int]
    axes: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", tuple(self.axes))
        for axis, size in self.mesh.items():
            if not isinstance(size, int) or size < 1:
                raise ValueError(f"a size of the mesh is a whole number of at least 1, got {axis}={size!r}")
        unknown = [axis for axis in self.axes if axis not in self.mesh]
        if unknown:
            known = ", ".join(self.mesh)
            raise ValueError(f"axes must be some of the mesh's, {known}, got {', '.join(unknown)}: name them there")

    def __str__(self) -> str:
        mesh = ",".join(f"{axis}={size}" for axis, size in self.mesh.items())
        return f"mesh {mesh} folded along {','.join(self.axes) or 'no axis'}"

    @property
    def world_size(self) -> int:
        return prod(self.mesh.values())

    @property
    def size(self) -> int:
        """How many ranks each representative stands for, itself included."""
        return prod(self.mesh[axis] for axis in self.axes)

    @cached_property
    def _first(self) -> np.ndarray:
        """Rank -> the one that is run for it."""
        places = np.indices(tuple(self.mesh.values())).reshape(len(self.mesh), -1)
        for k, axis in enumerate(self.mesh):
            if axis in self.axes:
                places[k] = 0
        return np.ravel_multi_index(tuple(places), tuple(self.mesh.values()))

    @cached_property
    def representatives(self) -> tuple[int, ...]:
        """The ranks that are run."""
        return tuple(np.unique(self._first).tolist())

    @cached_property
    def _classes(self) -> dict[int, tuple[int, ...]]:
        found: dict[int, list[int]] = {}
        for rank, first in enumerate(self._first.tolist()):
            found.setdefault(first, []).append(rank)
        return {first: tuple(ranks) for first, ranks in found.items()}

    @cached_property
    def _moves(self) -> tuple[int, ...]:
        return self.alike(0)

    def representative(self, rank: int) -> int:
        """The rank that is run for this one."""
        return int(self._first[rank])

    def alike(self, rank: int) -> tuple[int, ...]:
        """The ranks that do what this one does, itself included."""
        return self._classes[int(self._first[rank])]

    def moved(self, ranks: Sequence[int], nth: int) -> tuple[int, ...]:
        """Each rank as many places further along the folded axes as the nth of `alike(0)` is from rank 0.

        Axes are taken as rings, so all classes are moved alike.

        >>> Fold({"dp": 2, "tp": 4}, ("tp",)).moved((0, 3, 4), 1)
        (1, 0, 5)
        """
        sizes = tuple(self.mesh.values())
        step = np.array(np.unravel_index(self._moves[nth], sizes))
        places = (np.array(np.unravel_index(np.asarray(ranks, "i8"), sizes)).T + step) % sizes
        return tuple(np.ravel_multi_index(tuple(places.T), sizes).tolist())

    def images(self, ranks: Sequence[int]) -> list[tuple[int, ...]]:
        """The group of these ranks, moved to each place along the folded axes: one image a place, in their order.

        Raises:
            ValueError: an image has some of the group's ranks and not all: then not all of them can do the same.
        """
        if len(ranks) == self.world_size:
            return [tuple(ranks)] * self.size
        found: dict[frozenset, tuple[int, ...]] = {}  # its ranks -> in the order in which they were met first
        is_sorted, images, met = list(ranks) == sorted(ranks), [], set()
        for nth in range(self.size):
            image = self.moved(ranks, nth)
            members = frozenset(image)
            if members not in found:
                if not met.isdisjoint(members):
                    raise ValueError(self._uneven(ranks, f"moved by {nth} it has some of its ranks, and not all"))
                met |= members
                found[members] = tuple(sorted(image)) if is_sorted else image
            images.append(found[members])
        return images

    def check_group(self, ranks: Sequence[int]) -> None:
        """Raises ValueError unless ranks that do the same, each in its own such group, can stand for each other."""
        self.images(ranks)
        mine = set(ranks)
        strangers = [r for r in ranks if self.representative(r) not in mine]
        if strangers:
            raise ValueError(
                self._uneven(ranks, f"it has rank {strangers[0]} and not {self.representative(strangers[0])}")
            )

    def _uneven(self, ranks: Sequence[int], what: str) -> str:
        shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
        return (
            "a folded group joins ranks along whole axes, or ranks at one place along the folded ones, got "
            f"[{shown}] in a {self}: {what}. Next step: give the mesh an axis for this group, or leave it unfolded"
        )


def check_fold(fold: Fold | str, world_size: int, cluster: Cluster) -> Fold:
    """The fold that a user gave, "all" for ranks that all do the same.

    Raises:
        ValueError: it is none, of another number of ranks, or the cluster treats ranks differently that do the same.
    """
    if fold == "all":
        fold = Fold({"all": world_size}, ("all",))
    if not isinstance(fold, Fold):
        raise ValueError(f'fold must be a Fold, as Fold({{"dp": 4, "tp": 8}}, ("tp",)), or "all", got {fold!r}')
    if fold.world_size != world_size:
        raise ValueError(f"the mesh must have {world_size} ranks, got {fold.world_size}: {fold}")
    for first, rank in _cards_torn(fold, cluster):
        raise ValueError(
            f"ranks that do the same must have equal shares of network cards, got ranks {first} and {rank} of {fold}: "
            f"one shares a card of {cluster.name} where the other does not. Next step: a cluster with a card for each "
            "device, or fold fewer axes"
        )
    return fold


def _cards_torn(fold: Fold, cluster: Cluster) -> Iterator[tuple[int, int]]:
    """(a rank, where it is moved to) where ranks that share a card no longer do once they are moved."""
    if cluster.cards_per_host == cluster.devices_per_host:
        return
    everybody = tuple(range(fold.world_size))
    for nth in range(1, fold.size):
        moved_card: dict[int, int] = {}
        for rank, other in zip(everybody, fold.moved(everybody, nth)):
            if moved_card.setdefault(cluster.card_of(rank), cluster.card_of(other)) != cluster.card_of(other):
                yield rank, other
                return
