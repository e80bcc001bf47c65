"""Frames over a socket: one byte that says what, eight that say how long, then the bytes."""

from __future__ import annotations

import socket
import struct

_HEAD = struct.Struct(">cQ")
_AT_ONCE = 1 << 20


def send_frame(sock: socket.socket, kind: bytes, data=b"") -> None:
    """Sends one frame; blocks until it is out."""
    sock.sendall(_HEAD.pack(kind, len(data)))
    if len(data):
        sock.sendall(data)


def receive_frame(sock: socket.socket) -> tuple[bytes, bytearray]:
    """The next frame; blocks.

    Raises:
        EOFError: the other side is gone.
    """
    kind, size = _HEAD.unpack(_receive(sock, _HEAD.size))
    return kind, _receive(sock, size)


def _receive(sock: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view, got = memoryview(data), 0
    while got < size:
        n = sock.recv_into(view[got : got + _AT_ONCE])
        if not n:
            raise EOFError("the other side has closed the connection")
        got += n
    return data


class Mailbox:
    """One end of a non-blocking socket: frames queued to go out, frames that have come in whole."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.closed = False
        self._out: list[memoryview] = []
        self._head = bytearray()
        self._body: bytearray | None = None
        self._kind, self._got = b"", 0

    def queue(self, kind: bytes, data=b"") -> None:
        self._out += [memoryview(_HEAD.pack(kind, len(data)))] + ([memoryview(data)] if len(data) else [])

    @property
    def wants_to_send(self) -> bool:
        return bool(self._out)

    def send_some(self) -> None:
        """Sends what the socket takes now."""
        try:
            while self._out:
                n = self.sock.send(self._out[0][:_AT_ONCE])
                if n == len(self._out[0]):
                    self._out.pop(0)
                else:
                    self._out[0] = self._out[0][n:]
        except BlockingIOError:
            return
        except OSError:
            self._out.clear()
            self.closed = True

    def receive_some(self) -> list[tuple[bytes, bytearray]]:
        """The frames that are complete by now."""
        frames = []
        try:
            while True:
                if self._body is None:
                    if not self._fill_head():
                        break
                elif self._got < len(self._body):
                    n = self.sock.recv_into(memoryview(self._body)[self._got : self._got + _AT_ONCE])
                    if not n:
                        self.closed = True
                        break
                    self._got += n
                if self._body is not None and self._got == len(self._body):
                    frames.append((self._kind, self._body))
                    self._body = None
        except BlockingIOError:
            return frames
        except OSError:
            self.closed = True
        return frames

    def _fill_head(self) -> bool:
        data = self.sock.recv(_HEAD.size - len(self._head))
        if not data:
            self.closed = True
            return False
        self._head += data
        if len(self._head) == _HEAD.size:
            self._kind, size = _HEAD.unpack(self._head)
            self._head, self._body, self._got = bytearray(), bytearray(size), 0
        return True
