"""The line of one call, between a trusted driver and the process with the student's answers."""

from __future__ import annotations

import socket
import struct
from json import dumps, loads  # our own: a student may replace json's
from typing import Any, ClassVar

MAX_BYTES = 256 * 2**20
_MOST_TEXT_BYTES = 32 * 2**20  # read as JSON they are some 40 times as many
_HEAD = struct.Struct("!II")
_SMALL_BYTES = 2**16  # are cheaper to copy than to send on their own


class Forged(Exception):
    """What came is nothing that our code on the other side sends: somebody else has written there."""

    seen: ClassVar[list[str]] = []  # by this process, whatever became of the error

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.seen.append(text)


class HungUp(EOFError):
    """The other side is gone: of a line, where an EOFError may as well be the student's own, from `input()`."""


class Line:
    """A blocking connection for parcels. It reads no clock: a driver's clock may be virtual."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._came = bytearray()  # and nobody has asked for yet

    def send(self, message: dict[str, Any], blob: bytes = b"") -> None:
        """Writes one message.

        Raises:
            HungUp: the other side is gone.
        """
        text = dumps(message).encode()
        start = _HEAD.pack(len(text), len(blob)) + text
        try:
            if len(blob) < _SMALL_BYTES:
                self.socket.sendall(start + blob)
            else:
                self.socket.sendall(start)
                self.socket.sendall(blob)
        except ConnectionError as error:
            raise HungUp(str(error)) from None

    def receive(self) -> tuple[dict[str, Any], memoryview]:
        """The next message.

        Raises:
            HungUp: the other side is gone.
            Forged: what came is not a message.
            ValueError: it is too large.
        """
        n_text, n_blob = _HEAD.unpack(self._exactly(_HEAD.size))
        if n_text > MAX_BYTES:  # as any letters are, read as a number
            raise Forged("what came begins like no message")
        if n_text > _MOST_TEXT_BYTES or n_text + n_blob > MAX_BYTES:
            raise ValueError(f"a parcel of {n_text + n_blob:,} bytes is over the limit")
        try:
            message = loads(self._exactly(n_text))
        except (ValueError, RecursionError):
            raise Forged("what came is not JSON") from None
        if not isinstance(message, dict):
            raise Forged("what came is not a JSON object")
        return message, memoryview(self._exactly(n_blob))

    def _exactly(self, n_bytes: int) -> bytearray:
        while len(self._came) < min(n_bytes, _SMALL_BYTES):
            self._came += self._read(bytearray(_SMALL_BYTES))
        data, self._came = self._came[:n_bytes], self._came[n_bytes:]
        if len(data) < n_bytes:  # many: each is copied once
            n_there = len(data)
            data.extend(bytes(n_bytes - n_there))
            rest = memoryview(data)[n_there:]
            while rest:
                rest = rest[len(self._read(rest)) :]
        return data

    def _read(self, room: bytearray | memoryview) -> memoryview:
        """What has been read into it."""
        try:
            n_read = self.socket.recv_into(room)
        except ConnectionError:
            n_read = 0
        if not n_read:
            raise HungUp("the answer's process has ended")
        return memoryview(room)[:n_read]

    def close(self) -> None:
        self.socket.close()
