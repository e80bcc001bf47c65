"""What kind of failure an exception in a rank is, or the end of its process, and the one line that says it."""

from __future__ import annotations

import os
import re
import signal
import sys
import traceback

from hw_utils.core import pickling
from hw_utils.core.source.lines import place_mark
from hw_utils.core.source.students_files import is_students

_MEMORY = re.compile(r"DefaultCPUAllocator: (can't allocate memory|not enough memory)")
_WIRE = re.compile(r"Connection (closed|reset) by peer|Socket closed|Broken pipe|gloo/transport|Connection refused")
_TIMED_OUT = re.compile(r"[Tt]imed out waiting|monitoredBarrier")


def lost_connection(text: str) -> bool:
    """Whether gloo says that another rank has gone; not if a time limit of the student's has passed."""
    return bool(_WIRE.search(text)) and not _TIMED_OUT.search(text)


def lost(line: str) -> str:
    """The reason of a rank that only lost a peer, from gloo's line."""
    return f"lost its connection to another rank ({line.strip()[:200]})"


_GPU = re.compile(
    r"not compiled with (CUDA|NCCL)|NCCL built in|No CUDA GPUs|NVIDIA driver|module 'torch._C' has no attribute '_cuda"
    r"|invalid device ordinal|accelerator device when none|SymmetricMemory|symmetric memory|ProcessGroupNCCL(?!::)"
)
NO_GPU = (
    'ranks have no GPU, and what needs one cannot run: device="cuda" if torch.cuda.is_available() else "cpu", '
    "with gloo for NCCL and ordinary tensors for symmetric memory, does; as it is it runs on virtual GPUs: "
    'simulate(..., cluster="h100x8", compute="device"), or run --simulate --cluster h100x8'
)
VIRTUAL_GPU = (
    'a virtual device is asked for by its name or number, as torch.device("cuda", 0), "cuda:0" or torch.device(0); '
    "what it does not do is in docs/virtual_gpus.md"
)


def kind_and_reason(error: BaseException) -> tuple[str, str]:
    """("exit", "called sys.exit(3) instead of returning"), ("exception", "ValueError: ..."), and so on."""
    if isinstance(error, SystemExit):
        shown = "" if error.code is None else repr(error.code)
        return "exit", f"called sys.exit({shown}) instead of returning"
    if isinstance(error, pickling.Unpicklable):
        return "unpicklable", str(error)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", "KeyboardInterrupt"
    if hasattr(error, "hw_utils_kind"):
        return error.hw_utils_kind, str(error.args[0])  # with the marks of its places
    if isinstance(error, RuntimeError) and lost_connection(str(error)):
        return "wire", lost(str(error).splitlines()[0])
    lines = "".join(traceback.format_exception_only(type(error), error)).strip()
    ran_out = isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _MEMORY.search(str(error)))
    if lines == "NotImplementedError":
        lines = "NotImplementedError: it is not written yet"
    if _GPU.search(str(error)):
        torch = sys.modules.get("torch")
        lines += f"\n    {VIRTUAL_GPU if torch is not None and torch.cuda.is_available() else NO_GPU}"
    module = type(error).__module__
    if module == "__main__" or getattr(error, "told_without_module", False):
        lines = lines.removeprefix(f"{module}.")
    return "out_of_memory" if ran_out else "exception", lines


_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def causes_of(error: BaseException) -> tuple[str, ...]:
    """What an exception comes of, nearest first: "IndexError: list index out of range, at " and the mark of a place.

    Those of each `__cause__`, or of a `__context__` that is not suppressed, as Python's tracebacks have them; not what
    this package has met on its own account.
    """
    return tuple(filter(None, (_cause_text(cause) for cause, _ in pickling.chain_of(error))))


def _cause_text(cause: BaseException) -> str:
    found = traceback.extract_tb(cause.__traceback__)
    place = next(((f.filename, f.lineno or 0) for f in reversed(found) if is_students(f.filename)), None)
    if place is None and found and found[-1].filename.startswith(_PACKAGE):
        return ""
    return kind_and_reason(cause)[1] + (f", at {place_mark(*place)}" if place else "")


PERHAPS = " before the worker returned (os._exit?)"


def ending(status: int, *, ran_out_of_memory: bool = False) -> tuple[str, str]:
    """("os_exit", ...) or ("signal", "killed by ..."): why a process ended without a result, by its exit status."""
    if status >= 0:
        return "os_exit", f"its process ended with exit code {status}{PERHAPS}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    if name == "SIGKILL" and ran_out_of_memory:
        return "out_of_memory", "the system ended it because memory ran out (SIGKILL): fewer ranks or smaller tensors"
    if name == "SIGKILL":
        return "signal", "killed by SIGKILL, as the system does when memory runs out"
    return "signal", f"killed by {name}" + (" (invalid memory access)" if name == "SIGSEGV" else "")
