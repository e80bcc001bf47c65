"""Plain data: what a driver hands to a judge, and what may cross a sandbox's wall.

Plain means None, bool, int, float, str, lists, dictionaries with string keys, and numpy arrays of numbers.
`encode` writes it as JSON with arrays as base64 of their bytes; `decode` reads it within limits and never runs code.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections import Counter, OrderedDict, defaultdict
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

MAX_BYTES = 64 * 2**20
MAX_BITS = 10_000  # of a whole number: Python writes no longer ones, as JSON or otherwise
DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
_NAMES = {np.dtype(name): name for name in DTYPES}  # an array asks for its name in Python, which takes long
# Of what is not plain, what is told: a type's name, or a size. An answer may return such a dictionary itself.
_UNKNOWN = re.compile(
    r"[A-Za-z_]\w{0,39}|nested too deeply|whole number of [\d,]+ bits|\w{1,20} of [\d,]+ bytes"
    r"|one tensor of shape \([\d, ]*\)( and dtype \w{1,20})?|a value of type \w{1,40}",
    re.ASCII,
)
EXACT = (Fraction, Decimal)  # numbers that formulas are computed with


def plain(value: Any, *, depth: int = 0) -> Any:
    """The value as plain data: tensors become arrays, tuples lists, exact numbers floats.

    Anything else becomes a `{"unknown": type name}`.
    Only exact built-in types are taken at their word: a subclass with an `__eq__` of its own never crosses.
    """
    import torch

    kind = type(value)
    if depth > 50:
        return {"unknown": "nested too deeply"}
    if kind is int and value.bit_length() > MAX_BITS:
        return {"unknown": f"whole number of {value.bit_length():,} bits"}
    if value is None or kind in (bool, int, float, str):
        return value
    if kind in (list, tuple):
        return [plain(v, depth=depth + 1) for v in value]
    if kind in (dict, OrderedDict, defaultdict, Counter):
        return {str(k): plain(v, depth=depth + 1) for k, v in dict.items(value)}
    is_tensor = kind in (torch.Tensor, torch.nn.Parameter)
    if is_tensor and (value.layout != torch.strided or value.is_meta):
        return _unknown(value)
    if (is_tensor or kind is np.ndarray) and value.nbytes > MAX_BYTES:
        return {"unknown": f"{kind.__name__} of {value.nbytes:,} bytes"}
    if is_tensor:
        tensor = value.detach().cpu()
        if tensor.dtype == torch.bfloat16:
            tensor = tensor.float()
        return np.array(tensor.resolve_conj().contiguous().numpy()) if not tensor.is_complex() else _unknown(value)
    if kind is np.ndarray:
        native = value.dtype.newbyteorder("=")
        return np.array(value, dtype=native) if native in _NAMES else _unknown(value)
    if isinstance(value, np.generic) and value.dtype in _NAMES:
        return value.item()
    return as_float(value) if kind in EXACT else _unknown(value)


def as_float(value: Fraction | Decimal) -> float:
    """The nearest float, infinite where there is none."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _unknown(value: Any) -> dict[str, str]:
    return {"unknown": type(value).__name__}


def encode(value: Any) -> bytes:
    """JSON text of plain data.

    Raises:
        TypeError: something in it is not plain.
    """
    return json.dumps(_to_json(value)).encode()


def _to_json(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype not in _NAMES:
            raise TypeError(f"an array of {value.dtype} is not plain data")
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"__array__": [_NAMES[value.dtype], list(value.shape), data]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"__float__": repr(value)}
    if isinstance(value, list | tuple):
        return [_to_json(v) for v in value]
    if isinstance(value, dict):
        return {str(k): _to_json(v) for k, v in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} is not plain data")


def decode(data: bytes, *, max_bytes: int = MAX_BYTES) -> Any:
    """Plain data from what `encode` wrote.

    Raises:
        ValueError: longer than `max_bytes`, not JSON, an array whose bytes do not fit its shape or dtype.
    """
    if len(data) > max_bytes:
        raise ValueError(f"plain data of {len(data):,} bytes is over the limit of {max_bytes:,}")
    try:
        return _from_json(json.loads(data))
    except RecursionError:
        raise ValueError("plain data is nested too deeply") from None


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(v) for v in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"__array__"}:
        return _array(value["__array__"])
    if value.keys() == {"__float__"} and value["__float__"] in ("nan", "inf", "-inf"):
        return float(value["__float__"])
    if "unknown" in value:
        told = value["unknown"] if len(value) == 1 else None
        return {"unknown": told if isinstance(told, str) and _UNKNOWN.fullmatch(told) else "dict"}
    return {k: _from_json(v) for k, v in value.items()}


def _array(parts: Any) -> np.ndarray:
    if not (isinstance(parts, list) and len(parts) == 3):
        raise ValueError("an array is [dtype, shape, data]")
    dtype, shape, data = parts
    if dtype not in DTYPES:
        raise ValueError(f"an array of dtype {str(dtype)[:20]!r} is not plain data")
    if not (isinstance(shape, list) and len(shape) <= 16 and all(type(n) is int and 0 <= n < 2**40 for n in shape)):
        raise ValueError("an array's shape is a short list of sizes")
    raw = base64.b64decode(data, validate=True) if isinstance(data, str) else b""
    if len(raw) != math.prod(shape) * np.dtype(dtype).itemsize:
        raise ValueError(f"an array of shape {shape} and dtype {dtype} does not have {len(raw)} bytes")
    return np.frombuffer(raw, dtype).reshape(shape).copy()
