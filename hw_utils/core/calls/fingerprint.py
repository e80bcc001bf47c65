"""What a member of a group calls, as all members compare it before they go on: torch's `_ProcessGroupWrapper`.

torch puts it around every group at the debug level DETAIL, and programs do so by hand. Before a collective all members
meet, and tell each other the operation, and the tensors' shapes, dtypes and devices. Every one of them raises if they
differ, and the group goes on afterwards.

    mine = fingerprint("allreduce", ([tensor],), number=3, where="train.py, line 7")
    require_alike(0, {0: mine, 1: theirs})

The words are torch's own, with the student's line added. (Where numbers of dimensions differ, torch names an operation
that nobody has called: it takes the length of what the other one has sent for a code.)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.distributed import distributed_c10d as c10d

from hw_utils.core.calls.public_calls import ALIASES
from hw_utils.core.errors import CollectiveMismatch

_ITS_OWN = {"broadcast": 0, "allreduce": 0, "reduce": 0, "scatter": 0, "gather": 1, "_allgather_base": 1}
_UNLESS_UNEVEN = {"allgather": (1, 0), "reduce_scatter": (0, 1)}  # where they are, and where those that may be uneven
_DTYPES = {"float32": "Float", "float64": "Double", "float16": "Half", "int64": "Long", "int32": "Int",
           "int16": "Short", "int8": "Char", "uint8": "Byte", "complex64": "ComplexFloat",
           "complex128": "ComplexDouble", "bfloat16": "BFloat16"}  # fmt: skip


@dataclass(frozen=True)
class FingerPrint:
    """One member's call: the number of collectives before it, the operation, the tensors that must be alike."""

    number: int
    operation: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    devices: tuple[str, ...]
    where: str = field(default="", compare=False)

    def __str__(self) -> str:
        if not self.shapes:
            return f"CollectiveFingerPrint(SequenceNumber={self.number}OpType={self.operation})"
        return (
            f"CollectiveFingerPrint(SequenceNumber={self.number}, OpType={self.operation}, "
            f"TensorShape=[{', '.join(self._sizes())}], TensorDtypes={' '.join(self.dtypes)}, "
            f"TensorDeviceTypes={' '.join(self.devices)})"
        )

    def _sizes(self) -> tuple[str, ...]:
        return tuple(map(str, self.shapes[0])) if self.shapes else ()

    def differences(self, other: FingerPrint) -> list[str]:
        """In which aspects, in torch's words."""
        aspects = (
            ("\t Sequence number: ", (str(self.number),), (str(other.number),)),
            ("  Op type: ", (self.operation,), (other.operation,)),
            ("  Tensor Tensor shapes: ", self._sizes(), other._sizes()),
            ("  Tensor Tensor dtypes: ", self.dtypes, other.dtypes),
            ("  Tensor Tensor devices: ", self.devices, other.devices),
        )
        return [f"{name}{' '.join(mine)}vs {' '.join(theirs)}" for name, mine, theirs in aspects if mine != theirs]


def fingerprint(method: str, arguments: tuple, *, number: int, where: object = "") -> FingerPrint:
    """That of a call of a process group's method."""
    method = ALIASES.get(method, method)
    tensors = _compared(method, arguments)
    dtypes = [str(t.dtype).removeprefix("torch.") for t in tensors]
    return FingerPrint(
        number,
        method.upper(),
        tuple(tuple(t.shape) for t in tensors),
        tuple(_DTYPES.get(dtype, dtype.capitalize()) for dtype in dtypes),
        tuple(t.device.type for t in tensors),
        str(where),
    )


def _compared(method: str, arguments: tuple) -> list[torch.Tensor]:
    """The tensors that must be alike on all members."""
    if method == "_reduce_scatter_base":
        return [arguments[1], arguments[0]]
    if method in _ITS_OWN:
        return _tensors(arguments[_ITS_OWN[method]])
    if method in _UNLESS_UNEVEN:
        own, parts = (_tensors(arguments[place]) for place in _UNLESS_UNEVEN[method])
        return own if len({part.shape for part in parts}) < 2 else []
    return []


def _tensors(given) -> list[torch.Tensor]:
    """Tensors in lists, or one alone."""
    if isinstance(given, torch.Tensor):
        return [given]
    return [tensor for part in given for tensor in _tensors(part)]


def require_alike(place: int, brought: dict[int, FingerPrint]) -> None:
    """Raises CollectiveMismatch on the member at `place` if another one, first the lowest, calls something else."""
    mine = brought[place]
    for other, theirs in sorted(brought.items()):
        if theirs != mine:
            raise CollectiveMismatch(
                f"Detected mismatch between collectives on ranks. Rank {place} is running collective: {mine}"
                f"{_at(mine)}, but Rank {other} is running collective: {theirs}{_at(theirs)}."
                f"Collectives differ in the following aspects: {''.join(mine.differences(theirs))}"
            )


def not_all_came(mine: FingerPrint, why: object) -> RuntimeError:
    """The error of a member that has waited for the others' fingerprints in vain."""
    return RuntimeError(
        f"ProcessGroupWrapper: Monitored Barrier encountered error running collective: {mine}{_at(mine)}. "
        f"Error: \n{why}"
    )


def _at(call: FingerPrint) -> str:
    return f" at {call.where}" if call.where else ""


def around(own: type) -> type:
    """What stands in place of torch's `_ProcessGroupWrapper`: around a group of class `own` it is that very group."""

    class Wrapper(c10d._ProcessGroupWrapper):
        def __new__(cls, group, helper):
            return group.compare_calls(helper) if isinstance(group, own) else super().__new__(cls, group, helper)

    return Wrapper
