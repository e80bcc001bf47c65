"""The ledger of a virtual run: the engine's rows as the records of a trace."""

from __future__ import annotations

from array import array
from struct import Struct

import numpy as np

from hw_utils.trace import RECORD, SENDS

# A row: what is known when it is posted, then what comes later or is rare.
COLUMNS = (
    "rank", "op", "peer", "n_bytes", "start_s", "site", "order",
    "tag", "group", "end_s", "message", "waited", "wait_start_s", "wait_end_s",
)  # fmt: skip
WIDTH = len(COLUMNS)
OP, PEER, SITE, ORDER, TAG, GROUP, END, MESSAGE, WAITED, WAIT_START, WAIT_END = (
    COLUMNS.index(c)
    for c in (
        "op", "peer", "site", "order", "tag", "group", "end_s", "message", "waited", "wait_start_s", "wait_end_s",
    )
)  # fmt: skip
BLOCK = array("d", [-1.0] * 7 + [0.0] * 2 + [-1.0] * 5) * 4096
pack = Struct("7d").pack_into  # what is known when it is posted
_SAME = tuple(name for name in COLUMNS if name in RECORD.names)
_BLOCKING = ("send", "recv")  # they wait where they are called


def records_of(engine) -> dict:
    """`records`, `names` and `groups` of the trace."""
    rows = np.frombuffer(engine.rows)[: engine.n_values].reshape(-1, WIDTH)
    column = {name: rows[:, i] for i, name in enumerate(COLUMNS)}
    records = np.zeros(len(rows), RECORD)
    for name in _SAME:
        records[name] = column[name]
    _add_waits(engine, records)
    names, sites = list(engine.names), engine.places.sites
    files = {file: i + len(names) for i, file in enumerate(dict.fromkeys(site[0] for site in sites))}
    site = column["site"].astype("i8")
    records["file"] = np.array([files[s[0]] for s in sites])[site]
    records["line"] = np.array([s[1] for s in sites])[site]
    _add_costs(engine, records)
    groups = [None, *(members.ranks for members in engine.groups[1:])]
    records = _merged(records, engine.parts)
    return {"records": records, "names": [*names, *files], "groups": groups}


def _add_waits(engine, records: np.ndarray) -> None:
    """What a row leaves open: a blocking call waits at once, and what never came ended where it began."""
    never = records["end_s"] < 0
    records["end_s"][never] = records["start_s"][never]
    blocks = np.isin(records["op"], [i for i, name in enumerate(engine.names) if name in _BLOCKING])
    records["waited"][blocks] = records["order"][blocks]
    at_end = blocks & (records["wait_end_s"] < 0)
    records["wait_end_s"][at_end] = records["end_s"][at_end]
    for name, other in (("wait_start_s", "start_s"), ("wait_end_s", "start_s")):
        missing = records[name] < 0
        records[name][missing] = records[other][missing]


def _add_costs(engine, records: np.ndarray) -> None:
    sends = [i for i, name in enumerate(engine.names) if name in SENDS]
    sent = np.isin(records["op"], sends) & (records["message"] >= 0)
    records["sent_bytes"], records["sent_messages"], records["rounds"] = np.where(sent, records["n_bytes"], 0), sent, 1
    if engine.costs:
        rows, *costs = np.array(engine.costs, "i8").T
        for name, values in zip(("sent_bytes", "sent_messages", "rounds"), costs):
            records[name][rows // WIDTH] = values


def _merged(records: np.ndarray, parts: list[tuple[int, int]]) -> np.ndarray:
    """Rows that are parts of one call become one: sizes and messages add up, times span all of them."""
    keep = np.ones(len(records), bool)
    for row, first in parts:
        part, whole = records[row // WIDTH], records[first // WIDTH]
        keep[row // WIDTH] = False
        for name in ("n_bytes", "sent_bytes", "sent_messages", "rounds"):
            whole[name] += part[name]
        for name in ("end_s", "wait_end_s", "waited"):
            whole[name] = max(whole[name], part[name])
    return records[keep]
