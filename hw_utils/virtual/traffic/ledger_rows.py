"""The ledger of a virtual run: written row by row in the very form of a trace's records, and completed at the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count
from operator import length_hint
from struct import Struct

import numpy as np

from hw_utils.core.calls.public_calls import OBJECT_OPS
from hw_utils.core.trace import BLOCKING, RECORD, SENDS, joined

ROW = RECORD.itemsize  # bytes
_AT = {name: RECORD.fields[name][1] for name in RECORD.names}
OP, PEER, TAG, END, MESSAGE, SITE, WAITED = (
    _AT[c] for c in ("op", "peer", "tag", "end_s", "message", "file", "waited")
)
_LETTERS = {"i4": "i", "i8": "q", "f8": "d"}


def _struct(first: str, last: str) -> Struct:
    """The fields from `first` to `last` as bytes."""
    names = RECORD.names[RECORD.names.index(first) : RECORD.names.index(last) + 1]
    return Struct("=" + "".join(_LETTERS[RECORD[name].str[1:]] for name in names))


_known = _struct("rank", "waited")
# A new row: all fields up to `waited`, the number of the site in the place of the file; -1 is not known yet.
put_row = Struct(f"{_known.format}{ROW - _known.size}x").pack_into
# The same of a message without a tag in the group of all: line, tag and group are 0.
put_plain_row = Struct(_known.format.replace("iiqi", "i16x") + f"{ROW - _known.size}x").pack_into
put_end = _struct("end_s", "message").pack_into
put_wait = _struct("waited", "wait_end_s").pack_into
_int, _long, _start = Struct("=i"), Struct("=q"), Struct("=d")
put_int, put_message, put_time = _int.pack_into, _long.pack_into, _start.pack_into
_AT_ONCE = 4096  # rows: they stay in the processor's cache while one column after the other is completed
_ROOM = bytes(1024 * ROW)  # for new rows, that many at a time


def int_at(rows: bytearray, at: int) -> int:
    return _int.unpack_from(rows, at)[0]


def long_at(rows: bytearray, at: int) -> int:
    return _long.unpack_from(rows, at)[0]


def start_of(rows: bytearray, row: int) -> float:
    return _start.unpack_from(rows, row + _AT["start_s"])[0]


class Rows:
    """The ledger's rows in one array of bytes, and what they stand for: names, costs, parts of a call."""

    def __init__(self, world_size: int) -> None:
        self.data = bytearray()  # has room for more rows than there are
        self._room: Iterator[int] = iter(())  # where those begin that are still free
        self.next_row = chain.from_iterable(self._rooms()).__next__  # where a new row is to be put
        self.order = [-1] * world_size  # the place of a rank's last call or wait among its calls and waits
        self.names = ["send", "isend", "recv", "irecv"]  # of operations, by their numbers: the same, however ranks run
        self.costs: list[tuple[int, int, int, int]] = []  # row, sent bytes, sent messages, rounds of a collective
        self.parts: list[tuple[int, int]] = []  # row of a part, row of the whole
        self.next_message = count().__next__  # a number for one communication, the same on all its sides
        self._ops = {name: number for number, name in enumerate(self.names)}
        self._outer: dict[int, tuple] = {}  # who -> the object collective under way, how far it has got, its first row

    def _rooms(self) -> Iterator[Iterator[int]]:
        while True:
            first = len(self.data)
            self.data += _ROOM
            self._room = iter(range(first, len(self.data), ROW))
            yield self._room

    def __len__(self) -> int:
        return len(self.data) // ROW - length_hint(self._room)

    def op(self, name: str) -> int:
        """The number that stands for an operation's name."""
        number = self._ops.get(name)
        if number is None:
            number = self._ops[name] = len(self.names)
            self.names.append(name)
        return number

    def add(self, rank: int, name: str, n_bytes: int, start_s: float, site: int, group: int, message: int) -> int:
        """A new row for a collective that a rank calls; its place in `data`."""
        row, op = self.next_row(), self.op(name)
        self.order[rank] = place = self.order[rank] + 1
        put_row(self.data, row, rank, op, -1, n_bytes, start_s, -1.0, message, site, 0, 0, group, place, -1)
        return row

    def note_part(self, rank: int, row: int, name: str, outer) -> None:
        """An object collective sends sizes, then bytes: one row for both in the ledger.

        outer: the call's frame, or how far it has got. It is not kept, nor what it holds: a call that has got further
        is the same one still.
        """
        if name in OBJECT_OPS:
            who, at = getattr(rank, "place", rank), getattr(outer, "f_lasti", outer)
            last, got, first = self._outer.get(who, ("", -1, -1))
            if name == last and at > got:
                self.parts.append((row, first))
            else:
                first = row
            self._outer[who] = name, at, first

    def note_end(self, row: int, end_s: float) -> None:
        put_time(self.data, row + END, end_s)

    def has_ended(self, row: int) -> bool:
        return _start.unpack_from(self.data, row + END)[0] >= 0

    def note_wait(self, row: int, order: int, start_s: float, end_s: float) -> None:
        """The first wait of a row's communication."""
        if long_at(self.data, row + WAITED) < 0:
            put_wait(self.data, row + WAITED, order, start_s, end_s)

    def trace(self, sites: Sequence[tuple], world_size: int, groups: Iterable) -> dict:
        """`records`, `names` and `groups` of the trace; `sites` are the files and lines by their numbers."""
        records, names = np.frombuffer(self.data, RECORD, len(self)), self.names
        files = {file: i + len(names) for i, file in enumerate(dict.fromkeys(site[0] for site in sites))}
        file_of, line_of = np.array([files[s[0]] for s in sites]), np.array([s[1] for s in sites])
        kinds = [np.array([name in kind for name in names]) for kind in (BLOCKING, SENDS)]
        for first in range(0, len(records), _AT_ONCE):
            _complete(records[first : first + _AT_ONCE], file_of, line_of, *kinds)
        _add_costs(records, self.costs)
        everybody = tuple(range(world_size))
        ranks = [None if m.ranks == everybody else m.ranks for m in groups]
        records = joined(records, [(row // ROW, first // ROW) for row, first in self.parts])
        return {"records": records, "names": [*names, *files], "groups": ranks}


def _complete(records: np.ndarray, file_of, line_of, blocks, sends) -> None:
    """What a row leaves open: a blocking call waits at once, and what never came ended where it began."""
    op, site = records["op"], records["file"].copy()
    records["file"], records["line"] = file_of[site], line_of[site]
    start_s, end_s = records["start_s"], records["end_s"]
    np.copyto(end_s, start_s, where=end_s < 0)
    never = records["waited"] < 0
    at_once = never & blocks[op]
    np.copyto(records["waited"], records["order"], where=at_once)
    np.copyto(records["wait_start_s"], start_s, where=never)
    np.copyto(records["wait_end_s"], np.where(at_once, end_s, start_s), where=never)
    sent = sends[op] & (records["message"] >= 0)
    records["sent_bytes"], records["sent_messages"], records["rounds"] = np.where(sent, records["n_bytes"], 0), sent, 1


def _add_costs(records: np.ndarray, of_rows: list[tuple[int, int, int, int]]) -> None:
    if of_rows:
        rows, *costs = np.array(of_rows, "i8").T
        for name, values in zip(("sent_bytes", "sent_messages", "rounds"), costs):
            records[name][rows // ROW] = values
