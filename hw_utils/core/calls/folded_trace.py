"""The ledger of a folded run: it has the calls of the ranks that ran, and answers for all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property

import numpy as np

from hw_utils.core.collective_algorithms import Cost
from hw_utils.core.hardware.fold import Fold
from hw_utils.core.trace import Trace


class FoldedTrace(Trace):
    """A `Trace` of all ranks, kept as that of the representatives of `fold`; what asks for one rank stays small.

    own: the events of the ranks that ran. uneven: message -> what each place of its group sent, where that differs.
    `records`, iteration and `streams` write out those of all ranks when they are first asked for.
    """

    def __init__(self, own: Trace, fold: Fold, uneven: Mapping[int, Cost]) -> None:
        self.own, self.fold, self.uneven = own, fold, uneven
        self.names, self.world_size = own.names, own.world_size
        groups: dict = {(i, group): i for i, group in enumerate(own.groups)}
        self._group_at = np.zeros((fold.size, len(own.groups)), "i8")  # (nth place, group) -> the group there
        for i, group in enumerate(own.groups):
            images = [group] * fold.size if group is None else fold.images(group)
            self._group_at[:, i] = [groups.setdefault((i, image), len(groups)) for image in images]
        self.groups = tuple(image for _, image in groups)
        self._n_messages = int(own.records["message"].max(initial=-1)) + 1

    def summed(self) -> tuple[np.ndarray, np.ndarray]:
        """(the records of the ranks that ran, bytes that all of their classes sent for each)."""
        records = self.own.records
        totals = records["sent_bytes"] * self.fold.size
        for i in self._uneven_rows(records):
            totals[i] = sum(self._sent_at(records[i], nth)[0] for nth in range(self.fold.size))
        return records, totals

    def of_rank(self, rank: int) -> Trace:
        first = self.fold.representative(rank)
        nth = self.fold.alike(rank).index(rank)
        streams = self.own.streams[self.own.streams["rank"] == first].copy()
        streams["rank"] = rank
        records = self._at(self.own.records[self.own.records["rank"] == first], nth)
        return Trace(records, self.names, self.groups, self.world_size, streams)

    @cached_property
    def records(self) -> np.ndarray:
        found = np.concatenate([self._at(self.own.records, nth) for nth in range(self.fold.size)])
        return found[np.argsort(found["start_s"], kind="stable")]

    @cached_property
    def streams(self) -> np.ndarray:
        parts = []
        for nth in range(self.fold.size):
            part = self.own.streams.copy()
            part["rank"] = self._ranks_at(nth)[part["rank"]]
            parts.append(part)
        return np.concatenate(parts)

    def _ranks_at(self, nth: int) -> np.ndarray:
        return np.array(self.fold.moved(range(self.world_size), nth))

    def _at(self, records: np.ndarray, nth: int) -> np.ndarray:
        """The calls of those who do the same at the nth place along the folded axes."""
        moved, ranks = records.copy(), self._ranks_at(nth)
        moved["rank"] = ranks[records["rank"]]
        moved["peer"] = np.where(records["peer"] < 0, -1, ranks[records["peer"]])
        moved["group"] = self._group_at[nth][records["group"]]
        # One number a communication: a group's image has the number of the first place at which it is met.
        first_met = np.array([self._group_at[:, g].tolist().index(at) for g, at in enumerate(self._group_at[nth])])
        is_call = (records["peer"] < 0) & (records["message"] >= 0)
        met = np.where(is_call, first_met[records["group"]], nth)
        moved["message"] = np.where(records["message"] < 0, -1, records["message"] + met * self._n_messages)
        for i in self._uneven_rows(records):
            moved["sent_bytes"][i], moved["sent_messages"][i] = self._sent_at(records[i], nth)
        return moved

    def _uneven_rows(self, records: np.ndarray) -> Iterable[int]:
        return np.flatnonzero(np.isin(records["message"], list(self.uneven))).tolist() if self.uneven else ()

    def _sent_at(self, record: np.void, nth: int) -> tuple[int, int]:
        """(bytes, messages) that the member there sent."""
        cost = self.uneven[int(record["message"])]
        rank = int(self._ranks_at(nth)[record["rank"]])
        group = self.groups[self._group_at[nth][record["group"]]]
        place = rank if group is None else group.index(rank)
        return cost.sent_bytes[place], cost.sent_messages[place]

    @cached_property
    def ops(self) -> frozenset[str]:
        return self.own.ops

    @cached_property
    def calls(self) -> Counter[str]:
        return Counter({name: n * self.fold.size for name, n in self.own.calls.items()})

    @cached_property
    def _sent(self) -> tuple[np.ndarray, np.ndarray]:
        sent = np.array([self.own.bytes_sent(r) for r in range(self.world_size)])
        messages = np.array([self.own.messages_sent(r) for r in range(self.world_size)])
        first = np.array([self.fold.representative(r) for r in range(self.world_size)])
        found = sent[first], messages[first]
        own = self.own.records
        for i in self._uneven_rows(own):
            for nth, rank in enumerate(self.fold.alike(int(own[i]["rank"]))):
                for total, here, there in zip(found, self._sent_at(own[i], nth), self._sent_at(own[i], 0)):
                    total[rank] += here - there
        return found

    def __len__(self) -> int:
        return len(self.own) * self.fold.size
