"""The ledger of a virtual run: the engine's rows as the records of a trace."""

from __future__ import annotations

import numpy as np

from hw_utils.trace import RECORD, SENDS

COLUMNS = (
    "rank", "op", "peer", "n_bytes", "start_s", "end_s", "place", "tag", "group", "message", "order",
    "waited", "wait_start_s", "wait_end_s",
)  # fmt: skip
_SAME = tuple(name for name in COLUMNS if name in RECORD.names)


def records_of(engine) -> dict:
    """`records`, `names` and `groups` of the trace."""
    rows = np.frombuffer(engine.rows).reshape(-1, len(COLUMNS))
    column = {name: rows[:, i] for i, name in enumerate(COLUMNS)}
    records = np.zeros(len(rows), RECORD)
    for name in _SAME:
        records[name] = column[name]
    records["end_s"] = np.where(column["end_s"] < 0, column["start_s"], column["end_s"])
    names, sites = list(engine.names), engine.places.sites
    files = {file: i + len(names) for i, file in enumerate(dict.fromkeys(site[0] for site in sites))}
    place = column["place"].astype("i8")
    records["file"] = np.array([files[site[0]] for site in sites])[place]
    records["line"] = np.array([site[1] for site in sites])[place]
    _add_costs(engine, records)
    groups = [None, *(members.ranks for members in engine.groups[1:])]
    records = _merged(records, engine.parts)
    return {"records": records, "names": [*names, *files], "groups": groups}


def _add_costs(engine, records: np.ndarray) -> None:
    sends = [i for i, name in enumerate(engine.names) if name in SENDS]
    sent = np.isin(records["op"], sends) & (records["message"] >= 0)
    records["sent_bytes"], records["sent_messages"], records["rounds"] = np.where(sent, records["n_bytes"], 0), sent, 1
    if engine.costs:
        rows, *costs = np.array(engine.costs, "i8").T
        for name, values in zip(("sent_bytes", "sent_messages", "rounds"), costs):
            records[name][rows // len(COLUMNS)] = values


def _merged(records: np.ndarray, parts: list[tuple[int, int]]) -> np.ndarray:
    """Rows that are parts of one call become one: sizes and messages add up, times span all of them."""
    keep = np.ones(len(records), bool)
    for row, first in parts:
        part, whole = records[row // len(COLUMNS)], records[first // len(COLUMNS)]
        keep[row // len(COLUMNS)] = False
        for name in ("n_bytes", "sent_bytes", "sent_messages", "rounds"):
            whole[name] += part[name]
        for name in ("end_s", "wait_end_s", "waited"):
            whole[name] = max(whole[name], part[name])
    return records[keep]
