"""One trace from what each rank wrote down: matches messages, adds what collectives put on the wire.

A rank keeps rows, plain lists in the order of COLUMNS; the virtual cluster may use the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hw_utils.core import collective_algorithms as algorithms
from hw_utils.core.trace import BLOCKING, RECORD, Trace, joined

# What a rank's columns are; `site` is a number into its ops, files and lines, `group` into its groups. `root` of a
# message says which side it is (1 sends, 0 receives), of an all_to_all how many bytes stay here; `part` numbers the
# calls that belong to one object collective.
COLUMNS = (
    "site", "peer", "n_bytes", "start_s", "end_s", "tag", "group", "seq", "order", "waited",
    "wait_start_s", "wait_end_s", "root", "itemsize", "part", "kind",
)  # fmt: skip


_KINDS = ("", *sorted(algorithms.ALGORITHM))  # of a part of an object collective; "": what its op says


def kind_of(op: str) -> int:
    """The number for `kind` of a torch.distributed function."""
    return _KINDS.index(op) if op in algorithms.ALGORITHM else 0


def ordered(columns: dict[str, np.ndarray], ops: Sequence[str]) -> dict[str, np.ndarray]:
    """The columns with the places of each call and wait among the rank's calls and waits, from their times.

    ops: of each site.
    """
    n = len(columns["start_s"])
    blocks = np.array([op in BLOCKING for op in ops], bool)[columns["site"]]
    was_waited = columns["wait_end_s"] >= 0
    waits = np.flatnonzero(was_waited & ~blocks)
    times = np.concatenate([columns["start_s"], columns["wait_start_s"][waits]])
    place = np.empty(len(times), "i8")
    place[np.argsort(times, kind="stable")] = np.arange(len(times))
    waited = np.where(was_waited, place[:n], -1)
    waited[waits] = place[n:]
    times = {name: np.where(waited < 0, columns["start_s"], columns[name]) for name in ("wait_start_s", "wait_end_s")}
    return {**columns, **times, "order": place[:n], "waited": waited}


def merge(ledgers: Sequence[dict[str, Any] | None], start_s: float, world_size: int) -> Trace:
    """The trace of a run from the ranks' ledgers (None for a rank that left none).

    A ledger is {"columns": of COLUMNS, "ops", "files", "lines": of each site, "groups": [(name, global ranks)]};
    the ranks are None if it is all of them.
    """
    names: dict[str, int] = {}
    groups: dict[tuple, int] = {}
    tables = []
    for rank, ledger in enumerate(ledgers):
        if ledger is not None and len(ledger["columns"]["site"]):
            tables.append(_table(rank, ledger, names, groups))
    if not tables:
        return Trace(np.zeros(0, RECORD), [], [None], world_size)
    table = {name: np.concatenate([t[name] for t in tables]) for name in tables[0]}
    ranks = [None if known is None else tuple(known) for _, known in groups]
    members = [tuple(range(world_size)) if known is None else known for known in ranks]
    is_collective = table["peer"] < 0
    table["message"] = _messages(table, is_collective)
    _add_costs(table, is_collective, list(names), members)
    return Trace(_records(table, start_s), list(names), ranks, world_size)


def _table(rank: int, ledger: dict[str, Any], names: dict, groups: dict) -> dict[str, np.ndarray]:
    """One rank's columns with the numbers of the run's tables."""
    table = dict(ledger["columns"])
    site = table.pop("site")

    def renumbered(values: Sequence, numbers: np.ndarray, into: dict) -> np.ndarray:
        return np.array([into.setdefault(v, len(into)) for v in values], "i8")[numbers]

    table["op"] = renumbered(ledger["ops"], site, names)
    table["file"] = renumbered(ledger["files"], site, names)
    table["line"] = np.array(ledger["lines"], "i8")[site]
    table["group"] = renumbered(ledger["groups"], table["group"], groups)
    table["rank"] = np.full(len(site), rank, "i8")
    return table


def _messages(table: dict[str, np.ndarray], is_collective: np.ndarray) -> np.ndarray:
    """A number for each communication, the same on every side; -1 where a message was never received or sent."""
    peer, rank = table["peer"], table["rank"]
    sends = table["root"] == 1  # of a point-to-point row: 1 sends, 0 receives
    src = np.where(is_collective, -1, np.where(sends, rank, peer))
    dst = np.where(is_collective, -1, np.where(sends, peer, rank))
    tag = np.where(is_collective, 0, table["tag"])
    keys = np.stack([table["group"], src, dst, tag, table["seq"]])
    _, message, counts = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
    message = message.reshape(-1)
    return np.where(~is_collective & (counts[message] < 2), -1, message)


def _add_costs(table: dict[str, np.ndarray], is_collective: np.ndarray, names: list[str], members: list) -> None:
    sends = ~is_collective & (table["root"] == 1)
    table["sent_bytes"] = np.where(sends, table["n_bytes"], 0)
    table["sent_messages"] = np.where(sends, 1, 0)
    table["rounds"] = np.ones(len(sends), "i8")
    where = np.flatnonzero(is_collective)
    order = where[np.argsort(table["message"][where], kind="stable")]
    for rows in np.split(order, np.flatnonzero(np.diff(table["message"][order])) + 1):
        if len(rows):
            _add_cost(table, rows, names, members)


def _add_cost(table: dict[str, np.ndarray], rows: np.ndarray, names: list[str], members: list) -> None:
    """One collective's messages, spread over the rows of its members."""
    first = rows[0]
    op = _KINDS[table["kind"][first]] or names[table["op"][first]]
    group = members[table["group"][first]]
    if op not in algorithms.ALGORITHM:
        return
    places = [group.index(r) for r in table["rank"][rows].tolist()]
    sizes = np.zeros(len(group), "i8")
    sizes[places] = table["n_bytes"][rows]
    uniform = bool((sizes == sizes[0]).all())
    varies = algorithms.ALGORITHM[op] in ("gather", "all_gather") and not uniform
    root = max(int(table["root"][first]), 0)
    n_bytes = sizes if varies else int(sizes.max())
    cost = algorithms.cost(op, n_bytes, len(group), root, max(int(table["itemsize"][first]), 1))
    is_pairwise = algorithms.ALGORITHM[op] == "all_to_all"  # there `root` is what each keeps of its own
    sent = table["n_bytes"][rows] - table["root"][rows] if is_pairwise else np.array(cost.sent_bytes)[places]
    table["sent_bytes"][rows] = sent
    table["sent_messages"][rows] = np.array(cost.sent_messages)[places]
    table["rounds"][rows] = cost.rounds


def _records(table: dict[str, np.ndarray], start_s: float) -> np.ndarray:
    records = np.zeros(len(table["op"]), RECORD)
    for name in RECORD.names:
        records[name] = table[name]
    for name in ("start_s", "end_s", "wait_start_s", "wait_end_s"):
        records[name] -= start_s
    return joined(records, _parts(records["rank"], table["part"]))


def _parts(rank: np.ndarray, part: np.ndarray) -> list[tuple[int, int]]:
    """(place of a row, place of the first one that is a part of the same call)."""
    first: dict[tuple[int, int], int] = {}
    found = [(int(i), first.setdefault((int(rank[i]), int(part[i])), int(i))) for i in np.flatnonzero(part)]
    return [(i, whole) for i, whole in found if i != whole]
