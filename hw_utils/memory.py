"""Bytes of dense tensors, copied as gloo copies them: beside autograd, whatever the shape."""

from __future__ import annotations

import ctypes

# Both keep the interpreter's lock, which ctypes.memmove gives up and takes back.
bytes_at = ctypes.pythonapi.PyBytes_FromStringAndSize
bytes_at.argtypes, bytes_at.restype = (ctypes.c_void_p, ctypes.c_ssize_t), ctypes.py_object
move = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
    ctypes.cast(ctypes.memmove, ctypes.c_void_p).value
)


def contents(tensor, n_bytes: int) -> bytes:
    """The bytes of a contiguous tensor."""
    return bytes_at(tensor.data_ptr(), n_bytes) if n_bytes else b""
