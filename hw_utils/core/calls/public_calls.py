"""Which torch.distributed function was called, from which line of the student's code.

Shared by the two rooms that keep ledgers, gloo (real ranks) and virtual.

    def allreduce(self, tensors, opts=None):  # a method of a dist.ProcessGroup subclass
        op, outer, file, line = caller(sys._getframe(1))

`op` is the public name ("all_reduce", "isend", "all_gather_object"), `outer` the frame of that call: two inner calls
with the same `outer` belong to one call of the student's (an object collective sends sizes first, then bytes).
"""

from __future__ import annotations

import os
from types import CodeType, FrameType, FunctionType

import torch
import torch.distributed.distributed_c10d as c10d

from hw_utils.core.source.students_files import students_line

_C10D = c10d.__file__
_LOGGER = os.path.join(os.path.dirname(c10d.__file__), "c10d_logger.py")
_BETWEEN = (_LOGGER, torch.overrides.__file__)  # what stands between two functions of torch.distributed

# What a method of ProcessGroup is called in torch.distributed, for callers that are not Python (DDP's reducer).
PUBLIC_NAMES = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather",
    "_allgather_base": "all_gather_into_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor",
    "all_gather_single_coalesced": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "recv_anysource": "recv",
}
# Newer torch calls its public functions by other names inside.
_RENAMED = {
    "all_gather_single": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "_all_gather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "all_reduce_coalesced": "all_reduce",
    "_coalescing_manager": "",  # what it calls says it
}
_BATCHES = frozenset({"batch_isend_irecv"})  # the calls inside say what they are
# One call of these is several inner calls.
OBJECT_OPS = frozenset(
    {
        "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list",
        "send_object_list", "recv_object_list",
    }
)  # fmt: skip
# The methods of ProcessGroup that this torch knows under either of two names.
ALIASES = {
    "all_gather_single": "_allgather_base",
    "reduce_scatter_single": "_reduce_scatter_base",
    "all_to_all_single": "alltoall_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
}
_dtypes = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
DTYPES = tuple(_dtypes)
DTYPE_CODES = {dtype: code for code, dtype in enumerate(_dtypes.values())}


def caller(frame: FrameType | None, method: str = "") -> tuple[str, FrameType | None, str, int]:
    """(public name, its frame, student's file, line) of the call that reached a process group.

    `frame` is the process group method's caller. If torch.distributed's Python functions were not asked, the frame is
    None, the name comes from `method`, and the caller may be C++: it needs a real `dist.Work` back.
    """
    name, outer = "", None
    while frame is not None:
        code = frame.f_code
        file = code.co_filename
        if file == _C10D:
            name, outer = name if code.co_name in _BATCHES else code.co_name, frame
        elif file not in _BETWEEN and code.co_name != "__torch_function__":
            break
        frame = frame.f_back
    file, line = students_line(frame)
    return _RENAMED.get(name, name) or PUBLIC_NAMES.get(method, method), outer, file, line


def not_compiled(function: FunctionType) -> FunctionType:
    """The function; torch.compile calls it, and whatever it calls, as it is."""
    function._torchdynamo_disable = True  # where it would be inlined
    frames = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    return function


def _entry(function) -> tuple[CodeType, int]:
    """The code of a function of torch.distributed under its wrappers, and how many frames up its caller is."""
    n_frames = 1
    while hasattr(function, "__wrapped__"):
        function, n_frames = function.__wrapped__, n_frames + 1
    return function.__code__, n_frames


# The usual ways from the student's line to a method of a process group. For send and recv the code is the blocking
# function's, which calls isend or irecv first.
ENTRIES = {
    method: _entry(getattr(c10d, name))
    for method, name in {
        "send": "send", "recv": "recv", "allreduce": "all_reduce", "broadcast": "broadcast", "reduce": "reduce",
        "allgather": "all_gather", "gather": "gather", "scatter": "scatter", "reduce_scatter": "reduce_scatter",
        "alltoall": "all_to_all", "barrier": "barrier",
    }.items()
}  # fmt: skip
