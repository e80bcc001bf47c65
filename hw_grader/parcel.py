"""What crosses between a trusted driver and the process with the student's answers: plain values and tensors.

A value becomes a JSON tree and one blob of tensor bytes. Nothing is pickled; what is not plain is a TypeError.
"""

from __future__ import annotations

import dataclasses
import math
import socket
import struct
from json import dumps, loads  # our own: a student may replace json's
from typing import Any

import numpy as np
import torch

from hw_utils.network import Network

MAX_BYTES = 256 * 2**20
DTYPES = {
    str(d): d
    for d in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
              torch.int8, torch.uint8, torch.bool)
}  # fmt: skip
_HEAD = struct.Struct("!II")


class Parcel:
    """Packs values; remembers the tensors in them, in order."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []

    def pack(self, value: Any) -> Any:
        """The value's JSON tree.

        Raises:
            TypeError: something in it is neither plain nor a tensor without gradient.
        """
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if kind is list:
            return [self.pack(v) for v in value]
        if kind in (tuple, torch.Size):
            return {"tuple": [self.pack(v) for v in value]}
        if kind is dict:
            return {"dict": [[self.pack(k), self.pack(v)] for k, v in value.items()]}
        if kind is Network:
            return {"network": [self.pack(v) for v in dataclasses.astuple(value)[:3]] + [self.pack(value.inside)]}
        if kind is torch.Tensor and not value.requires_grad and str(value.dtype) in DTYPES:
            self.tensors.append(value)
            return {"tensor": [str(value.dtype), list(value.shape)]}
        if kind is np.ndarray or isinstance(value, np.generic):
            return {"numpy": self.pack(torch.from_numpy(np.array(value)))}
        raise TypeError(f"a {kind.__name__} does not cross")

    def blob(self) -> bytes:
        """The bytes of all tensors packed so far."""
        return b"".join(tensor_bytes(t) for t in self.tensors)


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """A tensor's elements, as they lie in memory when contiguous."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if flat.stride() != (1,):  # one element of a wider stride counts as contiguous
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


class Unpacker:
    """Builds values from a tree and a blob; remembers the tensors, in order."""

    def __init__(self, blob: bytes) -> None:
        self.blob, self.at = blob, 0
        self.tensors: list[torch.Tensor] = []

    def unpack(self, tree: Any, depth: int = 0) -> Any:
        """The value.

        Raises:
            ValueError: the tree or the blob is not what `pack` makes.
        """
        if depth > 100:
            raise ValueError("nested too deeply")
        if tree is None or type(tree) in (bool, int, float, str):
            return tree
        if type(tree) is list:
            return [self.unpack(v, depth + 1) for v in tree]
        if type(tree) is not dict or len(tree) != 1:
            raise ValueError("not a packed value")
        ((kind, content),) = tree.items()
        if kind == "float" and content in ("nan", "inf", "-inf"):
            return float(content)
        if kind == "tuple" and type(content) is list:
            return tuple(self.unpack(v, depth + 1) for v in content)
        if kind == "dict" and type(content) is list:
            return {self.unpack(k, depth + 1): self.unpack(v, depth + 1) for k, v in content}
        if kind == "tensor":
            return self._tensor(*content)
        if kind == "network":
            return _network(*(self.unpack(v, depth + 1) for v in content))
        if kind == "numpy":
            return self.unpack(content, depth + 1).numpy()
        raise ValueError(f"not a packed value: {kind!r}"[:100])

    def _tensor(self, dtype: str, shape: list[int]) -> torch.Tensor:
        kind = DTYPES[dtype]
        if not all(type(n) is int and 0 <= n < 2**32 for n in shape) or len(shape) > 16:
            raise ValueError("not a tensor's shape")
        n_bytes = math.prod(shape) * kind.itemsize
        part = self.blob[self.at : self.at + n_bytes]
        if len(part) != n_bytes:
            raise ValueError("a tensor's bytes are missing")
        self.at += n_bytes
        flat = torch.frombuffer(bytearray(part), dtype=torch.uint8) if n_bytes else torch.empty(0, dtype=torch.uint8)
        self.tensors.append(flat.view(kind).reshape(shape))
        return self.tensors[-1]


def _network(latency_s: float, bandwidth_Bps: float, ranks_per_host: int | None, inside: Network | None) -> Network:
    """A network from its parts, which are what they must be."""
    if {type(latency_s), type(bandwidth_Bps)} - {int, float} or type(ranks_per_host) not in (int, type(None)):
        raise ValueError("not a network")
    if type(inside) not in (Network, type(None)):
        raise ValueError("not a network")
    return Network(latency_s, bandwidth_Bps, ranks_per_host, inside)


class Line:
    """A blocking connection for parcels. It reads no clock: a driver's clock may be virtual."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    def send(self, message: dict[str, Any], blob: bytes = b"") -> None:
        """Writes one message."""
        text = dumps(message).encode()
        self.socket.sendall(_HEAD.pack(len(text), len(blob)) + text + blob)

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """The next message.

        Raises:
            EOFError: the other side is gone.
            ValueError: what came is not a message.
        """
        n_text, n_blob = _HEAD.unpack(self._exactly(_HEAD.size))
        if n_text + n_blob > MAX_BYTES:
            raise ValueError(f"a parcel of {n_text + n_blob:,} bytes is over the limit")
        message = loads(self._exactly(n_text))
        if not isinstance(message, dict):
            raise ValueError("not a message")
        return message, bytes(self._exactly(n_blob))

    def _exactly(self, n_bytes: int) -> bytearray:
        data = bytearray()
        while len(data) < n_bytes:
            part = self.socket.recv(min(n_bytes - len(data), 2**20))
            if not part:
                raise EOFError("the answer's process has ended")
            data += part
        return data

    def close(self) -> None:
        self.socket.close()
