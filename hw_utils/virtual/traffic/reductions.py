"""What each member holds after a collective. Sums are added in gloo's order: they equal `launch`'s to the bit.

gloo's ring: the tensor is cut into one chunk a member (segments of at most 1 MiB, at least two a member), and chunk c
starts at member c - 1 and is added to on its way down to member c.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from hw_utils.core.calls.tensor_layout import require_dense

_REDUCE = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PREMUL_SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
_SEGMENT_BYTES = 1 << 20  # gloo's kMaxSegmentSize
_MANY_ELEMENTS = 1 << 25  # of all members, that are put into one table
_DTYPES = {
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64,
    torch.bool, torch.complex64, torch.complex128,
}  # fmt: skip


def reduce_name(op) -> str:
    """`SUM` for ReduceOp.SUM in any of its wrappings."""
    return "" if op is None else getattr(op, "op", op).name


def reducer(op, dtype: torch.dtype, backend: str = "Gloo") -> Callable:
    """The elementwise function of a ReduceOp on a dtype.

    Raises:
        RuntimeError: the backend cannot do it.
    """
    name = reduce_name(op) or "SUM"
    if dtype not in _DTYPES:
        raise RuntimeError(f"Invalid scalar type: {backend} cannot reduce {dtype}")
    if name not in _REDUCE or (name == "PREMUL_SUM" and backend.lower() != "nccl"):
        raise RuntimeError(f"Cannot use ReduceOp.{name} with {backend}")
    is_fraction = dtype.is_floating_point or dtype.is_complex
    if name == "PREMUL_SUM" and math.isnan(factor_of(op)):
        raise RuntimeError("torch's dispatcher hands PREMUL_SUM on without its factor: call torch.distributed itself")
    if name == "PREMUL_SUM" and not dtype.is_floating_point:
        raise RuntimeError(f"Cannot use ReduceOp.PREMUL_SUM on {dtype}: PreMulSum is for half, float and double")
    if dtype.is_complex and name not in ("SUM", "AVG"):
        raise RuntimeError(f"Cannot use ReduceOp.{name} on complex tensors")
    if name in ("BAND", "BOR", "BXOR") and is_fraction:
        raise RuntimeError(f"Cannot use ReduceOp.{name} with non-integral dtype")
    if name == "AVG" and not is_fraction and (backend.lower() != "nccl" or dtype is torch.bool):
        raise RuntimeError(f"Cannot use ReduceOp.AVG with {backend} on {dtype}: sum, then divide")
    return _REDUCE[name]


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's elements in the order of memory, beside autograd; writing to it writes to the tensor.

    Raises:
        RuntimeError: there are gaps between them.
    """
    tensor = tensor.data
    if tensor.is_contiguous():
        return tensor.view(-1)
    require_dense(tensor)
    return tensor.as_strided((tensor.numel(),), (1,))


def put(tensor: torch.Tensor, elements: torch.Tensor) -> None:
    """Writes elements in the order of the tensor's shape, whatever its memory is like, beside autograd."""
    tensor = tensor.data
    if tensor.is_contiguous():
        tensor.view(-1).copy_(elements)
    else:
        tensor.copy_(elements.view(tensor.shape))


def require_carried(tensor: torch.Tensor, backend: str, *, is_put: bool = False) -> None:
    """Raises a RuntimeError where gloo's collectives would, or would go wrong without a word: by gaps, by type.

    is_put: it is an output that may have gaps, see `put`.
    """
    if not is_put:
        flat(tensor)
    if backend == "Gloo" and tensor.dtype not in _DTYPES:
        raise RuntimeError(f"Invalid scalar type: {backend}'s collectives do not carry {tensor.dtype}")


def kept(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of what a member sends: it may be gone before others take it."""
    return flat(tensor).clone()


def chunk_bounds(n_elements: int, itemsize: int, n: int) -> list[tuple[int, int]]:
    """Where each member's chunk begins and ends in gloo's ring."""
    n_bytes = n_elements * itemsize
    most = itemsize * max(1, _SEGMENT_BYTES // itemsize)
    segments = max(math.ceil(n_bytes / (most * n)), 2)
    per_segment = math.ceil(math.ceil(n_bytes / (segments * n)) / itemsize)
    length = per_segment * segments
    return [(min(c * length, n_elements), min((c + 1) * length, n_elements)) for c in range(n)]


def ring_sum(tensors: Sequence[torch.Tensor], combine, *, partial: Sequence[torch.Tensor] = ()) -> torch.Tensor:
    """The reduction of flat tensors; `partial[i]` gets what member i holds on the way."""
    n = len(tensors)
    total = torch.empty_like(tensors[0])
    bounds = [(c, *ends) for c, ends in enumerate(chunk_bounds(total.numel(), total.element_size(), n))]
    if not partial and n > 4:
        length = bounds[0][2]
        n_whole = total.numel() // length if length else 0
        at_once = max(_MANY_ELEMENTS // (n * length), 1) if length else 1
        if at_once > 1:
            for first in range(0, n_whole, at_once):
                _sum_chunks(tensors, combine, total, first, min(first + at_once, n_whole), length)
            bounds = bounds[n_whole:]
    for c, start, end in bounds:
        if start < end:
            _sum_chunk(tensors, combine, total, c, start, end, partial)
    return total


def _sum_chunk(tensors, combine, total, c: int, start: int, end: int, partial) -> None:
    n = len(tensors)
    running = tensors[c - 1][start:end].clone()
    for k in range(2, n + 1):
        member = (c - k) % n
        running = combine(tensors[member][start:end], running)
        if partial:
            partial[member][start:end] = running
    total[start:end] = running


def _sum_chunks(tensors, combine, total, first: int, last: int, length: int) -> None:
    """Chunks `first` to `last` of equal length together: a table with a row a member, read along its diagonals."""
    n, n_chunks = len(tensors), last - first
    columns = slice(first * length, last * length)
    table = torch.stack([tensor[columns] for tensor in tensors])
    running = total[columns].view(n_chunks, length)
    for k in range(1, n + 1):
        # chunk c takes the row of member c - k; where that is below 0, counted from the end
        wrapped = min(max(k - first, 0), n_chunks)
        for low, high, row in ((0, wrapped, first - k + n), (wrapped, n_chunks, first + wrapped - k)):
            if low < high:
                width = n_chunks * length
                start = row * width + low * length
                part = table.as_strided((high - low, length), (width + length, 1), start)
                if k == 1:
                    running[low:high] = part
                else:
                    combine(part, running[low:high], out=running[low:high])


def _divide(total: torch.Tensor, n: int) -> torch.Tensor:
    """A sum becomes a mean in place; of whole numbers as NCCL has it, cut towards zero."""
    is_fraction = total.is_floating_point() or total.is_complex()
    return total.div_(n, rounding_mode=None if is_fraction else "trunc")


def factor_of(op) -> float | None:
    """What PREMUL_SUM multiplies a member's tensor by before it is added; None for another ReduceOp."""
    return float(op.__getstate__()[1]) if reduce_name(op) == "PREMUL_SUM" else None


def _brought(post, i: int | slice) -> torch.Tensor:
    """A member's tensor, or several as one vector."""
    several = [flat(t) for t in post.inputs[i]] if isinstance(i, slice) else [flat(post.inputs[i])]
    tensor, factor = several[0] if len(several) == 1 else torch.cat(several), factor_of(post.reduce_op)
    return tensor if factor is None else tensor * factor


def _reduced(posts, i: int | slice, **options) -> torch.Tensor:
    tensors = [_brought(post, i) for post in posts]
    op = posts[0].reduce_op
    if len(tensors) == 1:
        return tensors[0].clone()
    name = reduce_name(op) or "SUM"
    total = ring_sum(tensors, _REDUCE[name], **options)
    return _divide(total, len(tensors)) if name == "AVG" else total


def all_reduce(posts) -> None:
    """Several tensors of one dtype are reduced as one vector, as gloo does: that is the order of its sums."""
    outputs = posts[0].outputs
    if len(outputs) > 1 and len({t.dtype for t in outputs}) == 1:
        totals = _reduced(posts, slice(None)).split([t.numel() for t in outputs])
    else:
        totals = [_reduced(posts, i) for i in range(len(outputs))]
    for post in posts:
        for output, total in zip(post.outputs, totals):
            flat(output).copy_(total)


def reduce(posts) -> None:
    """The others' tensors are left with what passed through them, as with gloo."""
    for i in range(len(posts[0].inputs)):
        partial = [flat(post.inputs[i]).clone() for post in posts]
        total = _reduced(posts, i, partial=partial)
        for place, post in enumerate(posts):
            if reduce_name(post.reduce_op) == "AVG":
                _divide(partial[place], len(posts))
            flat(post.outputs[i]).copy_(total if place == posts[0].root else partial[place])


def reduce_scatter(posts) -> None:
    for place, post in enumerate(posts):
        put(post.outputs[0], _reduced(posts, place))


def reduce_scatter_tensor(posts) -> None:
    total = _reduced(posts, 0)
    n = posts[0].outputs[0].numel()
    for place, post in enumerate(posts):
        put(post.outputs[0], total[place * n : (place + 1) * n])


def all_gather(posts) -> None:
    parts = [flat(post.inputs[0]).clone() for post in posts]
    for post in posts:
        for output, part in zip(post.outputs, parts):
            put(output, part)


def all_to_all(posts) -> None:
    parts = [[flat(t).clone() for t in post.inputs] for post in posts]
    for place, post in enumerate(posts):
        for output, part in zip(post.outputs, parts):
            put(output, part[place])


def sparse_all_reduce(posts) -> None:
    """Everybody gets everybody's entries; each adds them up, see sparse.py."""
    parts = [post.inputs[0].clone() for post in posts]
    for post in posts:
        post.outputs[:] = parts


def nothing(posts) -> None:
    """Nobody gets anything."""


BY_SHAPE = frozenset({"reduce_scatter", "reduce_scatter_tensor", "all_gather", "all_to_all", "gather"})  # they `put`
# What is worked out when the last member has called.
TOGETHER = {
    "all_reduce": all_reduce,
    "reduce": reduce,
    "reduce_scatter": reduce_scatter,
    "reduce_scatter_tensor": reduce_scatter_tensor,
    "all_gather": all_gather,
    "all_to_all": all_to_all,
    "barrier": nothing,
    "sparse_all_reduce": sparse_all_reduce,
}


def deliver(kind: str, post, place: int, root_post) -> None:
    """What a member of a rooted collective gets when its own part is done."""
    if kind == "broadcast" and post is not root_post:
        for mine, source in zip(post.outputs, root_post.kept):
            flat(mine).copy_(source)
    elif kind == "scatter":
        flat(post.outputs[0]).copy_(root_post.kept[place])


def deliver_gathered(root_post, posts) -> None:
    for place, output in enumerate(root_post.outputs):
        put(output, posts[place].kept[0])
