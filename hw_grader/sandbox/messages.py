"""Messages over a socket to a process that is not trusted: a small JSON object and a blob, both with a size limit.

Nothing is unpickled on the grader's side; a blob is passed on unread or decoded by `hw_utils.core.plain_data`.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from json import dumps, loads  # our own: a student may replace json's
from typing import Any

MAX_TEXT_BYTES = 8 * 2**20
MAX_BLOB_BYTES = 64 * 2**20
_HEAD = struct.Struct("!II")


class WireError(Exception):
    """The other side broke the rules: too long, not JSON, not an object."""


class Wire:
    """One end of a socket pair; every wait has a deadline."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        end.setblocking(False)

    def send(self, message: dict[str, Any], blob: bytes = b"", timeout_s: float = 60) -> None:
        """Writes one message.

        Raises:
            TimeoutError: the other side does not read.
            EOFError: the other side is gone.
        """
        text = dumps(message).encode()
        deadline = time.monotonic() + timeout_s
        for part in (_HEAD.pack(len(text), len(blob)) + text, blob):
            view = memoryview(part)
            while view:
                try:
                    view = view[self.socket.send(view) :]
                except BlockingIOError:
                    self._wait(select.POLLOUT, deadline)
                except OSError as error:
                    raise EOFError(f"the other side is gone: {error}") from None

    def receive(self, timeout_s: float) -> tuple[dict[str, Any], bytes]:
        """The next message and its blob.

        Raises:
            TimeoutError: nothing complete came in time.
            EOFError: the other side is gone.
            WireError: what came is not a message within the limits.
        """
        deadline = time.monotonic() + timeout_s
        n_text, n_blob = _HEAD.unpack(self._exactly(_HEAD.size, deadline))
        if n_text > MAX_TEXT_BYTES or n_blob > MAX_BLOB_BYTES:
            raise WireError(f"a message of {n_text + n_blob:,} bytes is over the limit")
        text = self._exactly(n_text, deadline)
        blob = self._exactly(n_blob, deadline)
        try:
            message = loads(text)
        except (ValueError, RecursionError):
            raise WireError("a message is not JSON") from None
        if not isinstance(message, dict):
            raise WireError("a message is not a JSON object")
        return message, bytes(blob)

    def _exactly(self, n_bytes: int, deadline: float) -> bytearray:
        data = bytearray()
        while len(data) < n_bytes:
            try:
                part = self.socket.recv(min(n_bytes - len(data), 2**20))
            except BlockingIOError:
                self._wait(select.POLLIN, deadline)
                continue
            except OSError:
                part = b""
            if not part:
                raise EOFError("the other side is gone")
            data += part
        return data

    def _wait(self, what: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(self.socket, what)
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not poll.poll(left_s * 1000):
            raise TimeoutError("no complete message in time")

    def close(self) -> None:
        self.socket.close()
