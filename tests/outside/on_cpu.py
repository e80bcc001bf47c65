"""A test's source with the GPU taken out: what is left is the same program on the CPU.

`x.cuda(rank)` is `x`, `device_ids=[rank]` is `device_ids=None`, a device by number or called "cuda" is the CPU,
`torch.cuda.set_device` and its like do nothing, and a decorator that counts GPUs is gone. Everything else, line numbers
included, is as it was.
"""

from __future__ import annotations

import ast
import contextlib
from typing import Any

import torch

COUNTS_GPUS = {
    "skip_if_lt_x_gpu", "skip_if_no_gpu", "nccl_skip_if_lt_x_gpu", "require_n_gpus_for_nccl_backend",
    "skip_if_rocm_multiprocess",
}  # fmt: skip
MESHES = {"init_device_mesh", "DeviceMesh"}  # their first argument is a device
NO_DEVICES = {"device_ids", "output_device"}  # arguments of DistributedDataParallel


def on_cpu(source: str, file: str) -> Any:
    """The compiled module `source` without its GPU; it finds `_cpu` and `_no_gpu` among its globals (`NAMES`)."""
    tree = ast.parse(source, file)
    return compile(ast.fix_missing_locations(_WithoutGpu().visit(tree)), file, "exec", dont_inherit=True)


class _WithoutGpu(ast.NodeTransformer):
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.decorator_list = [d for d in node.decorator_list if _name(d) not in COUNTS_GPUS]
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        function = node.func
        if _name(function) in MESHES and node.args:
            node.args[0] = _call("_cpu", node.args[0])
        if not isinstance(function, ast.Attribute):
            return self._with_keywords(node)
        if function.attr == "cuda" and _name(function.value) != "_no_gpu":
            return function.value
        if function.attr in ("to", "device") and node.args and not isinstance(node.args[0], ast.Starred):
            node.args[0] = _call("_cpu", node.args[0])
        return self._with_keywords(node)

    def _with_keywords(self, node: ast.Call) -> ast.Call:
        for keyword in node.keywords:
            if keyword.arg in NO_DEVICES:
                keyword.value = ast.copy_location(ast.Constant(None), keyword.value)
            elif keyword.arg == "device":
                keyword.value = _call("_cpu", keyword.value)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr == "cuda" and isinstance(node.value, ast.Name) and node.value.id == "torch":
            return ast.copy_location(ast.Name("_no_gpu", ast.Load()), node)
        return node


def _name(node: ast.AST) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def _call(function: str, argument: ast.expr) -> ast.Call:
    return ast.copy_location(ast.Call(ast.Name(function, ast.Load()), [argument], []), argument)


def _cpu(device: Any) -> Any:
    """The CPU for a GPU's number, name or device; what else stands there, a dtype or a tensor, is left alone."""
    is_number = isinstance(device, int) and not isinstance(device, bool)
    if is_number or (isinstance(device, str) and device.startswith("cuda")):
        return "cpu"
    return torch.device("cpu") if isinstance(device, torch.device) and device.type == "cuda" else device


class _NoGpu:
    """torch.cuda of a machine whose ranks all have a GPU that is the CPU."""

    Stream, Event, stream, current_stream = torch.cpu.Stream, None, torch.cpu.stream, torch.cpu.current_stream
    amp = torch.cuda.amp

    def is_available(self) -> bool:
        return False

    def device_count(self) -> int:
        return 64

    def current_device(self) -> int:
        return 0

    def set_device(self, device: Any) -> None: ...

    def synchronize(self, device: Any = None) -> None: ...

    def manual_seed(self, seed: int) -> None: ...

    def device(self, device: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def one_gpu_a_rank(world_size: int, backend: str) -> dict[int, list[int]]:
    """What `init_multigpu_helper` of torch's tests gives where every rank has one."""
    return {rank: [rank] for rank in range(int(world_size))}


NAMES = {"_cpu": _cpu, "_no_gpu": _NoGpu()}
