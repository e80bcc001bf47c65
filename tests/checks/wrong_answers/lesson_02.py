"""Planted mistakes of lesson 02: what students write, each to be told apart by the message of its check."""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives

from hw_utils import Network
from tests.checks.wrong_answers import wrong, wrong_values


def _here() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()


# 2.1a tree_steps ---------------------------------------------------------------------------------------------

wrong_values("lesson_02.tree_steps", "one_phase", lambda n: (n - 1).bit_length(), says="has to come back")
wrong_values("lesson_02.tree_steps", "float", lambda n: 2 * math.log2(n), says=r"is 6\.0, expected an int.*whole num")
wrong_values("lesson_02.tree_steps", "rounded_down", lambda n: 2 * int(math.log2(n)), says="rounded down")
wrong_values("lesson_02.tree_steps", "one_after_another", lambda n: 2 * (n - 1), says="one rank after the other")
wrong_values("lesson_02.tree_steps", "one_too_many", lambda n: 2 * n.bit_length(), says="one step a phase too many")
wrong_values("lesson_02.tree_steps", "half", lambda n: n // 2, says=r"tree_steps\(8\) is 4, expected 6")
wrong_values(
    "lesson_02.tree_steps", "float_log", lambda n: 2 * math.ceil(float(f"{math.log2(n):.6f}")),
    says="536870913.*a logarithm of floats is not exact",
)  # fmt: skip
wrong_values(
    "lesson_02.tree_steps", "rounds_up_too_late", lambda n: math.ceil(2 * math.log2(n)), says="round up one phase"
)
wrong_values("lesson_02.tree_steps", "nothing", lambda n: None, says="is None, expected an int")
wrong_values("lesson_02.tree_steps", "always_true", lambda n: True, says="is True, expected an int")


# 2.1b tree_partner -------------------------------------------------------------------------------------------


@wrong("lesson_02.tree_partner", says=r"tree_partner\(1, 1\) is None, but rank 1 has to hand")
def counts_steps_from_0(rank, step):
    distance = 2**step
    return rank - distance if rank % (2 * distance) == distance else None


@wrong("lesson_02.tree_partner", says="None for every one of 8 ranks, at every step.*is there a return")
def returns_nobody(rank, step):
    rank - 2 ** (step - 1) if rank % 2**step == 2 ** (step - 1) else None


@wrong("lesson_02.tree_partner", says="expected None: rank 0 is still there")
def sends_up(rank, step):
    return rank + 2 ** (step - 1) if rank % 2**step == 0 else None


@wrong("lesson_02.tree_partner", says=r"tree_partner\(2, 1\) is 0, expected None: rank 2 is still there")
def everybody_sends_always(rank, step):
    return rank - 2 ** (step - 1) if (rank >> (step - 1)) & 1 else (0 if rank else None)


@wrong("lesson_02.tree_partner", says="sent at an earlier step: expected None")
def tests_one_bit(rank, step):
    return rank - 2 ** (step - 1) if (rank >> (step - 1)) & 1 else None


@wrong("lesson_02.tree_partner", says="rank 0 receives from rank 1 at that step already")
def everybody_to_the_root(rank, step):
    return 0 if rank % 2**step == 2 ** (step - 1) else None


@wrong("lesson_02.tree_partner", says=r"tree_partner\(0, 1\) is -1, expected None")
def gives_minus_one(rank, step):
    distance = 2 ** (step - 1)
    return rank - distance if rank % (2 * distance) == distance else -1


@wrong("lesson_02.tree_partner", says=r"is 0\.0, expected an int")
def divides_with_a_slash(rank, step):
    distance = 2**step / 2
    return rank - distance if rank % (2 * distance) == distance else None


@wrong("lesson_02.tree_partner", says="towards rank 0, so the partner is a lower rank")
def wrong_direction(rank, step):
    distance = 2 ** (step - 1)
    return rank + distance if rank % (2 * distance) == distance else None


@wrong("lesson_02.tree_partner", says=r"tree_partner\(0, 1\) is False, expected None")
def gives_false(rank, step):
    return rank - 2 ** (step - 1) if rank % 2**step == 2 ** (step - 1) else False


# 2.1c tree_all_reduce ----------------------------------------------------------------------------------------


def _levels(world_size: int) -> range:
    return range((world_size - 1).bit_length())


def _reduce(tensor, rank, world_size):
    buffer = torch.empty_like(tensor)
    for level in _levels(world_size):
        distance = 2**level
        if rank % (2 * distance) == distance:
            dist.send(tensor, rank - distance)
        elif rank % (2 * distance) == 0 and rank + distance < world_size:
            dist.recv(buffer, rank + distance)
            tensor += buffer


def _broadcast(tensor, rank, world_size):
    for level in reversed(_levels(world_size)):
        distance = 2**level
        if rank % (2 * distance) == distance:
            dist.recv(tensor, rank - distance)
        elif rank % (2 * distance) == 0 and rank + distance < world_size:
            dist.send(tensor, rank + distance)


def _right_tree(tensor):
    data = tensor.contiguous()
    _reduce(data, *_here())
    _broadcast(data, *_here())
    tensor.copy_(data)


_BUFFERS: dict = {}


@wrong("lesson_02.tree_all_reduce", says="then float64, fails: .* dtype.*kept from one call to the next: a buffer")
def tree_keeps_buffers_by_shape(tensor):
    _tree(
        tensor, range(1, _steps() + 1), lambda t: _BUFFERS.setdefault((dist.get_rank(), t.shape), torch.empty_like(t))
    )


@wrong("lesson_02.tree_all_reduce", says="18 ranks")
def tree_of_four_steps(tensor):
    _tree(tensor, range(1, min(4, _steps()) + 1), torch.empty_like)


def _steps():
    return (dist.get_world_size() - 1).bit_length()


def _tree(tensor, steps, buffer_for):
    """The right one, but for its steps and its buffers."""
    rank, n = dist.get_rank(), dist.get_world_size()
    own = tensor.contiguous()
    for step in (*steps, *reversed([-step for step in steps])):
        half = 2 ** (abs(step) - 1)
        if rank % (2 * half) == half:
            (dist.send if step > 0 else dist.recv)(own, rank - half)
        elif rank % (2 * half) == 0 and rank + half < n and step > 0:
            incoming = buffer_for(own)
            dist.recv(incoming, rank + half)
            own += incoming
        elif rank % (2 * half) == 0 and rank + half < n:
            dist.send(own, rank + half)
    tensor.copy_(own)


@wrong("lesson_02.tree_all_reduce", says="the second phase, the broadcast, is missing")
def tree_without_broadcast(tensor):
    _reduce(tensor, *_here())


@wrong("lesson_02.tree_sum", says="the second phase, the broadcast, is missing")
def tree_sum_without_broadcast(tensor):
    _reduce(tensor, *_here())


@wrong("lesson_02.tree_all_reduce", says="3 is not a power of two")
def tree_for_powers_of_two(tensor):
    rank, world_size = _here()
    buffer = torch.empty_like(tensor)
    n_levels = world_size.bit_length() - 1
    for level in range(n_levels):
        if rank % 2 ** (level + 1) == 2**level:
            dist.send(tensor, rank - 2**level)
        elif rank % 2 ** (level + 1) == 0 and rank + 2**level < world_size:
            dist.recv(buffer, rank + 2**level)
            tensor += buffer
    for level in reversed(range(n_levels)):
        if rank % 2 ** (level + 1) == 2**level:
            dist.recv(tensor, rank - 2**level)
        elif rank % 2 ** (level + 1) == 0 and rank + 2**level < world_size:
            dist.send(tensor, rank + 2**level)


@wrong("lesson_02.tree_all_reduce", says="3 is not a power of two.*partners that do not exist")
def tree_with_a_partner_that_does_not_exist(tensor):
    rank, world_size = _here()
    buffer = torch.empty_like(tensor)
    for level in _levels(world_size):
        if rank % 2 ** (level + 1) == 2**level:
            dist.send(tensor, rank - 2**level)
        elif rank % 2 ** (level + 1) == 0:
            dist.recv(buffer, rank + 2**level)
            tensor += buffer
    _broadcast(tensor, rank, world_size)


@wrong("lesson_02.tree_all_reduce", says="a rank has itself as its partner")
def tree_sends_to_itself(tensor):
    rank, world_size = _here()
    if world_size > 1 and rank % 2:
        dist.isend(tensor, rank).wait()


@wrong("lesson_02.tree_all_reduce", says="that partner does not exist: it comes from tree_partner")
def tree_with_a_partner_before_the_first(tensor):
    rank, world_size = _here()
    if world_size > 1:
        dist.send(tensor, -1) if rank % 2 else dist.recv(tensor, rank + 1)


@wrong("lesson_02.tree_all_reduce", says="6 rounds; a tree takes 4.*gather and send back")
def tree_gathers_to_the_root(tensor):
    rank, world_size = _here()
    if rank:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)
        return
    buffer = torch.empty_like(tensor)
    for other in range(1, world_size):
        dist.recv(buffer, other)
        tensor += buffer
    for other in range(1, world_size):
        dist.send(tensor, other)


@wrong("lesson_02.tree_all_reduce", says="a tree takes 4.*a chain")
def tree_is_a_chain(tensor):
    rank, world_size = _here()
    buffer = torch.empty_like(tensor)
    if rank + 1 < world_size:
        dist.recv(buffer, rank + 1)
        tensor += buffer
    if rank:
        dist.send(tensor, rank - 1)
        dist.recv(tensor, rank - 1)
    if rank + 1 < world_size:
        dist.send(tensor, rank + 1)


@wrong("lesson_02.tree_all_reduce", says="rank 0 sends to everybody itself")
def tree_with_a_flat_broadcast(tensor):
    rank, world_size = _here()
    _reduce(tensor, rank, world_size)
    if rank:
        dist.recv(tensor, 0)
    else:
        for other in range(1, world_size):
            dist.send(tensor, other)


@wrong("lesson_02.tree_all_reduce", says="calls all_reduce.*that is a collective")
def tree_calls_the_collective(tensor):
    dist.all_reduce(tensor)


@wrong("lesson_02.tree_all_reduce", says="calls broadcast, reduce")
def tree_calls_reduce_and_broadcast(tensor):
    dist.reduce(tensor, 0)
    dist.broadcast(tensor, 0)


@wrong("lesson_02.tree_all_reduce", says="both partners send")
def tree_is_recursive_doubling(tensor):
    rank, world_size = _here()
    if world_size & (world_size - 1):
        return _right_tree(tensor)
    buffer = torch.empty_like(tensor)
    for level in _levels(world_size):
        sending = dist.isend(tensor, rank ^ 2**level)
        dist.recv(buffer, rank ^ 2**level)
        sending.wait()
        tensor += buffer


@wrong("lesson_02.tree_all_reduce", says="that is the mean")
def tree_takes_the_mean(tensor):
    _right_tree(tensor)
    tensor /= dist.get_world_size()


@wrong("lesson_02.tree_all_reduce", says="the sum is returned, but the tensor that came in is as it was")
def tree_returns_the_sum(tensor):
    copy = tensor.clone()
    _right_tree(copy)
    return copy


@wrong("lesson_02.tree_all_reduce", says="the sum is made in another tensor")
def tree_rebinds_its_argument(tensor):
    tensor = tensor.clone()
    _right_tree(tensor)


@wrong("lesson_02.tree_all_reduce", says="Copy the result back into the tensor")
def tree_forgets_to_copy_back(tensor):
    data = tensor.contiguous()
    _reduce(data, *_here())
    _broadcast(data, *_here())


@wrong("lesson_02.tree_all_reduce", says="must be contiguous|has to be contiguous")
def tree_sends_what_is_not_contiguous(tensor):
    _reduce(tensor, *_here())
    _broadcast(tensor, *_here())


@wrong("lesson_02.tree_all_reduce", says="in the second phase a rank replaces its value, it does not add")
def tree_adds_in_the_second_phase(tensor):
    rank, world_size = _here()
    _reduce(tensor, rank, world_size)
    came = tensor.clone()
    _broadcast(came, rank, world_size)
    if rank:
        tensor += came


@wrong("lesson_02.tree_all_reduce", says="hangs.*every rank stands in recv")
def tree_everybody_receives_first(tensor):
    rank, world_size = _here()
    if world_size > 1:
        dist.recv(torch.empty_like(tensor), rank ^ 1 if rank ^ 1 < world_size else 0)
    _right_tree(tensor)


@wrong("lesson_02.tree_all_reduce", says="hangs.*some rank is done while another still waits")
def tree_tells_too_many(tensor):
    _right_tree(tensor)
    if dist.get_world_size() > 2 and not dist.get_rank():
        dist.send(tensor, 1)


@wrong("lesson_02.tree_all_reduce", says="lands on what was there already: receive into a buffer of its own")
def tree_receives_into_itself(tensor):
    rank, world_size = _here()
    distance = 1
    while distance < world_size:
        if rank % (2 * distance) == distance:
            dist.send(tensor, rank - distance)
        elif rank % (2 * distance) == 0 and rank + distance < world_size:
            dist.recv(tensor, rank + distance)
            tensor += tensor
        distance *= 2
    _broadcast(tensor, rank, world_size)


@wrong("lesson_02.tree_all_reduce", says="in its second call.*kept from one call to the next")
def tree_keeps_the_last_sum(tensor, last={}):  # noqa: B006, the mistake is meant
    rank = dist.get_rank()
    _right_tree(tensor)
    if rank in last and last[rank].shape == tensor.shape:
        tensor += last[rank]
    last[rank] = tensor.clone()


@wrong("lesson_02.tree_sum", says="nothing is sent at all")
def tree_does_nothing(tensor):
    pass


@wrong("lesson_02.tree_sum", says="is 1, expected 1111: it lacks the share of ranks 1 to 3.*nothing is ever added")
def tree_sends_and_forgets_to_add(tensor):
    rank, world_size = _here()
    buffer = torch.empty_like(tensor)
    if rank % 2:
        dist.send(tensor, rank - 1)
    elif rank + 1 < world_size:
        dist.recv(buffer, rank + 1)
    _broadcast(tensor, rank, world_size)


@wrong("lesson_02.tree_all_reduce", says="RuntimeError: view size is not compatible")
def tree_takes_a_view(tensor):
    _right_tree(tensor.view(-1))


@wrong("lesson_02.tree_all_reduce", says="rank 1 never waits for its isend")
def tree_never_waits(tensor):
    rank, world_size = _here()
    data = tensor.contiguous()
    buffer = torch.empty_like(data)
    for level in _levels(world_size):
        if rank % 2 ** (level + 1) == 2**level:
            dist.isend(data, rank - 2**level)
        elif rank % 2 ** (level + 1) == 0 and rank + 2**level < world_size:
            dist.recv(buffer, rank + 2**level)
            data += buffer
    _broadcast(data, rank, world_size)
    tensor.copy_(data)


@wrong("lesson_02.tree_all_reduce", says="float64 is sent and float32 received")
def tree_has_a_float32_buffer(tensor):
    rank, world_size = _here()
    data = tensor.contiguous()
    buffer = torch.empty(data.shape)
    for level in _levels(world_size):
        if rank % 2 ** (level + 1) == 2**level:
            dist.send(data, rank - 2**level)
        elif rank % 2 ** (level + 1) == 0 and rank + 2**level < world_size:
            dist.recv(buffer, rank + 2**level)
            data += buffer
    _broadcast(data, rank, world_size)
    tensor.copy_(data)


def _in(dtype, all_reduce):
    def answer(tensor):
        data = tensor.to(dtype).contiguous()
        all_reduce(data)
        tensor.copy_(data)

    return answer


for _check, _way in (("tree", _right_tree), ("ring", lambda tensor: _ring(tensor))):
    for _dtype in ("float16", "bfloat16"):
        wrong_values(f"lesson_02.{_check}_sum", f"{_check}_in_{_dtype}", _in(getattr(torch, _dtype), _way),
                     says=rf"expected \d+\.\n.* right but for its last digits: .* travels, in {_dtype}")  # fmt: skip


@wrong("lesson_02.ring_sum", says="right but for its last digits: .* travels, in float16")
def ring_sends_float16(tensor):
    def exchange(leaving, to, arriving, from_):
        buffer = torch.empty_like(arriving, dtype=torch.float16)
        _exchange(leaving.half(), to, buffer, from_)
        arriving.copy_(buffer)

    _ring(tensor, exchange=exchange)


@wrong("lesson_02.tree_all_reduce", says="lies in other memory.*write into its own")
def tree_changes_the_data_pointer(tensor):
    data = tensor.clone(memory_format=torch.contiguous_format)
    _right_tree(data)
    tensor.data = data


@wrong("lesson_02.tree_all_reduce", says="7 messages .*sends again after it has handed its sum over")
def tree_sends_at_every_step(tensor):
    rank, world_size = _here()
    buffer = torch.empty_like(tensor)
    for level in _levels(world_size):
        if rank // 2**level % 2:
            dist.send(tensor, rank - 2**level)
        elif rank + 2**level < world_size:
            dist.recv(buffer, rank + 2**level)
            tensor += buffer
    _broadcast(tensor, rank, world_size)


# 2.2a chunk_to_send, chunk_owned -----------------------------------------------------------------------------

wrong_values(
    "lesson_02.chunk_to_send", "own_chunk", lambda r, i, n: (r - 1 + i) % n, says="chunk n - 1.*its own number"
)
wrong_values("lesson_02.chunk_to_send", "no_modulo", lambda r, i, n: r - 2 + i, says="is -1; chunks are numbered")
wrong_values("lesson_02.chunk_to_send", "backwards", lambda r, i, n: (r - i) % n, says="the chunk numbers go down")
wrong_values("lesson_02.chunk_to_send", "constant", lambda r, i, n: (r - 1) % n, says="off by one|passes on")
wrong_values("lesson_02.chunk_to_send", "two_at_once", lambda r, i, n: (r - 3 + 2 * i) % n, says="off by one|passes on")
wrong_values("lesson_02.chunk_to_send", "float", lambda r, i, n: (r - 2.0 + i) % n, says="expected an int")
wrong_values("lesson_02.chunk_to_send", "of_sixteen_at_most", lambda r, i, n: (r + i - 2) % min(n, 16),
             says=r"chunk_to_send\(0, 1, 18\) is 15, expected 17")  # fmt: skip
wrong_values("lesson_02.chunk_owned", "of_sixteen_at_most", lambda r, n: (r - 2) % min(n, 16),
             says=r"chunk_owned\(.*, 70\) is")  # fmt: skip
wrong_values("lesson_02.chunk_owned", "plus_two", lambda r, n: (r + 2) % n, says="for 4 ranks n - 2 and n \\+ 2")
wrong_values("lesson_02.chunk_owned", "last_sent", lambda r, n: (r - 3) % n, says="off by one")
wrong_values("lesson_02.chunk_owned", "first_sent", lambda r, n: (r - 1) % n, says="off by one")
wrong_values("lesson_02.chunk_owned", "own", lambda r, n: r, says="follow one chunk")
wrong_values("lesson_02.chunk_owned", "no_modulo", lambda r, n: r - 2, says="take it modulo")
wrong_values("lesson_02.chunk_owned", "none", lambda r, n: None, says="is None, expected an int")


# 2.2b ring_all_reduce ----------------------------------------------------------------------------------------


def _exchange(leaving, to, arriving, from_):
    sending = dist.isend(leaving, to)
    dist.recv(arriving, from_)
    sending.wait()


def _ring(tensor, *, shift=0, phases=2, steps=None, exchange=_exchange, add_always=False, split=None, to_right=False):
    """A ring with one thing different."""
    rank, world_size = _here()
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    me, to, from_ = (-rank % world_size, right, left) if to_right else (rank, left, right)
    data = tensor.contiguous()
    chunks = (split or (lambda t, n: t.tensor_split(n)))(data.view(-1), world_size)
    steps = world_size - 1 if steps is None else steps
    for phase in range(phases):
        for step in range(steps):
            leaving = chunks[(me - 1 + phase * (world_size - 1) + step) % world_size]
            arriving = chunks[(me + phase * (world_size - 1) + step + shift * (phase == 0)) % world_size]
            buffer = torch.empty_like(arriving)
            exchange(leaving, to, buffer, from_)
            if phase == 0 or add_always:
                arriving += buffer
            else:
                arriving.copy_(buffer)
    tensor.copy_(data)


@wrong("lesson_02.ring_sum", says=r"\(float16\): .*nothing is sent of dtype float16: numbers of any")
@wrong("lesson_02.ring_all_reduce", says=r"\(float16\): .*nothing is sent of dtype float16: numbers of any")
def ring_knows_three_dtypes(tensor):
    if tensor.dtype in (torch.float32, torch.float64, torch.int64):
        _ring(tensor)


@wrong("lesson_02.tree_sum", says=r"\(int32\): .*nothing is sent of dtype int32: numbers of any")
@wrong("lesson_02.tree_all_reduce", says=r"\(int32\): .*nothing is sent of dtype int32: numbers of any")
def tree_knows_no_short_whole_numbers(tensor):
    if tensor.is_floating_point() or tensor.dtype == torch.int64:
        _right_tree(tensor)


@wrong("lesson_02.ring_all_reduce", says=r"\(float16\): .*twice as many bytes as the tensor's own travel")
def ring_sends_halves_as_float32(tensor):
    data = tensor.float() if tensor.dtype == torch.float16 else tensor.contiguous()
    _ring(data)
    tensor.copy_(data)


@wrong("lesson_02.ring_sum", says="first phase is right, and nothing that comes in the second phase reaches the tensor")
def ring_gathers_into_its_list(tensor):
    rank, n = _here()
    chunks = list(tensor.contiguous().view(-1).tensor_split(n))
    for step in range(2 * (n - 1)):
        leaving, place = chunks[(rank - 1 + step) % n], (rank + step) % n
        buffer = torch.empty_like(chunks[place])
        _exchange(leaving, (rank - 1) % n, buffer, (rank + 1) % n)
        if step < n - 1:
            chunks[place] += buffer
        else:
            chunks[place] = buffer
    tensor = torch.cat(chunks)


@wrong("lesson_02.ring_all_reduce", says=r"rank 0 sent 3.0 times the tensor.*a ring sends 1.5.*whole tensors travel")
def ring_passes_whole_tensors(tensor):
    rank, world_size = _here()
    passing, buffer = tensor.clone(), torch.empty_like(tensor)
    for _ in range(world_size - 1):
        _exchange(passing, (rank - 1) % world_size, buffer, (rank + 1) % world_size)
        tensor += buffer
        passing = buffer.clone()


@wrong("lesson_02.ring_all_reduce", says=r"rank 0 sent 6.0 times the tensor.*a ring sends 1.5.*whole tensors travel")
def ring_passes_whole_tensors_twice(tensor):
    rank, world_size = _here()
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    passing, buffer = tensor.clone(), torch.empty_like(tensor)
    for step in range(2 * (world_size - 1)):
        _exchange(passing, left, buffer, right)
        if step < world_size - 1:
            tensor += buffer
        passing = buffer.clone()


def _receive_first_on_0(leaving, to, arriving, from_):
    if dist.get_rank() == 0:
        dist.recv(arriving, from_)
        dist.send(leaving, to)
    else:
        dist.send(leaving, to)
        dist.recv(arriving, from_)


@wrong("lesson_02.ring_all_reduce", says="rounds; a ring takes .*one rank receives before it sends")
def ring_is_serial(tensor):
    _ring(tensor, exchange=_receive_first_on_0)


def _by_parity(leaving, to, arriving, from_):
    if dist.get_rank() % 2:
        dist.recv(arriving, from_)
        dist.send(leaving, to)
    else:
        dist.send(leaving, to)
        dist.recv(arriving, from_)


@wrong("lesson_02.ring_all_reduce", says="rounds; a ring takes .*every other one")
def ring_goes_by_parity(tensor):
    _ring(tensor, exchange=_by_parity)


def _all_send(leaving, to, arriving, from_):
    dist.send(leaving, to)
    dist.recv(arriving, from_)


@wrong("lesson_02.ring_all_reduce", says="hangs.*every rank stands in send")
def ring_of_blocking_sends(tensor):
    _ring(tensor, exchange=_all_send)


def _all_receive(leaving, to, arriving, from_):
    dist.recv(arriving, from_)
    dist.send(leaving, to)


@wrong("lesson_02.ring_all_reduce", says="hangs.*every rank stands in recv")
def ring_of_blocking_receives(tensor):
    _ring(tensor, exchange=_all_receive)


def _wait_too_soon(leaving, to, arriving, from_):
    dist.isend(leaving, to).wait()
    dist.recv(arriving, from_)


@wrong("lesson_02.ring_all_reduce", says="hangs.*every rank stands in send")
def ring_waits_for_its_send_at_once(tensor):
    _ring(tensor, exchange=_wait_too_soon)


@wrong("lesson_02.ring_all_reduce", says="the chunk index is off")
def ring_adds_to_the_next_chunk(tensor):
    _ring(tensor, shift=1)


@wrong("lesson_02.ring_all_reduce", says="the chunk index is off")
def ring_adds_to_the_chunk_before(tensor):
    _ring(tensor, shift=-1)


@wrong("lesson_02.ring_sum", says="the chunk index is off")
def ring_sum_adds_to_the_chunk_before(tensor):
    _ring(tensor, shift=-1)


@wrong("lesson_02.ring_all_reduce", says="rank 0 sent to rank 1; in this ring it sends to rank 3.*the right neighbour")
def ring_goes_to_the_right(tensor):
    _ring(tensor, to_right=True)


@wrong("lesson_02.ring_all_reduce", says="the second phase, the all-gather, is missing")
def ring_without_all_gather(tensor):
    _ring(tensor, phases=1)


@wrong("lesson_02.ring_all_reduce", says="in the second phase a rank replaces, it does not add")
def ring_adds_in_the_second_phase(tensor):
    _ring(tensor, add_always=True)


@wrong("lesson_02.ring_all_reduce", says="some step is missing|one fewer step")
def ring_is_one_step_short(tensor):
    _ring(tensor, steps=dist.get_world_size() - 2)


@wrong("lesson_02.ring_all_reduce", says="1 rank of 3 elements fails.*N - 1 steps, which is none")
def ring_has_one_step_too_many(tensor):
    _ring(tensor, steps=dist.get_world_size())


@wrong("lesson_02.ring_all_reduce", says="rank 0 sent 3.0 times the tensor.*gather and send back, not a ring")
def ring_gathers_to_rank_0(tensor):
    tree_gathers_to_the_root(tensor)


@wrong("lesson_02.ring_all_reduce", says="calls all_reduce.*that is a collective")
def ring_calls_the_collective(tensor):
    dist.all_reduce(tensor)


@wrong("lesson_02.ring_all_reduce", says="calls all_gather, reduce_scatter")
def ring_calls_reduce_scatter_and_all_gather(tensor):
    world_size = dist.get_world_size()
    padded = torch.zeros(-(-tensor.numel() // world_size) * world_size, dtype=tensor.dtype)
    padded[: tensor.numel()] = tensor.reshape(-1)
    mine = torch.empty_like(padded.chunk(world_size)[0])
    dist.reduce_scatter(mine, list(padded.chunk(world_size)))
    parts = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(parts, mine)
    tensor.copy_(torch.cat(parts)[: tensor.numel()].view(tensor.shape))


@wrong("lesson_02.ring_all_reduce", says="a receive buffer is read before the receive has finished")
def ring_adds_before_the_wait(tensor):
    rank, world_size = _here()
    data = tensor.contiguous()
    chunks = data.view(-1).tensor_split(world_size)
    for step in range(2 * world_size - 2):
        leaving, arriving = chunks[(rank - 1 + step) % world_size], chunks[(rank + step) % world_size]
        buffer = torch.empty_like(arriving)
        sending = dist.isend(leaving, (rank - 1) % world_size)
        receiving = dist.irecv(buffer, (rank + 1) % world_size)
        if step < world_size - 1:
            arriving += buffer
        else:
            arriving.copy_(buffer)
        sending.wait()
        receiving.wait()
    tensor.copy_(data)


@wrong("lesson_02.ring_all_reduce", says="a receive buffer is read before the receive has finished")
def ring_adds_zeros_before_the_wait(tensor):
    rank, world_size = _here()
    data = tensor.contiguous()
    chunks = data.view(-1).tensor_split(world_size)
    for step in range(2 * world_size - 2):
        leaving, arriving = chunks[(rank - 1 + step) % world_size], chunks[(rank + step) % world_size]
        buffer = torch.zeros_like(arriving)
        sending = dist.isend(leaving, (rank - 1) % world_size)
        receiving = dist.irecv(buffer if step < world_size - 1 else arriving, (rank + 1) % world_size)
        if step < world_size - 1:
            arriving += buffer
        sending.wait()
        receiving.wait()
    tensor.copy_(data)


@wrong("lesson_02.ring_all_reduce", says="the buffer of an isend is written before its wait")
def ring_receives_into_what_it_sends(tensor):
    rank, world_size = _here()
    passing = tensor.contiguous().view(-1).clone()
    total = passing.clone()
    for _ in range(world_size - 1):
        sending = dist.isend(passing, (rank - 1) % world_size)
        dist.recv(passing, (rank + 1) % world_size)
        total += passing
        sending.wait()
    tensor.copy_(total.view(tensor.shape))


@wrong("lesson_02.ring_all_reduce", says="that is the mean")
def ring_takes_the_mean(tensor):
    _ring(tensor)
    tensor /= dist.get_world_size()


@wrong("lesson_02.ring_all_reduce", says="that is the mean")
def ring_takes_the_whole_mean(tensor):
    _ring(tensor)
    tensor.copy_(tensor // dist.get_world_size())


@wrong("lesson_02.ring_all_reduce", says="padded to a multiple")
def ring_pads_the_tensor(tensor):
    world_size = dist.get_world_size()
    padded = torch.zeros(-(-tensor.numel() // world_size) * world_size, dtype=tensor.dtype)
    padded[: tensor.numel()] = tensor.reshape(-1)
    _ring(padded)
    tensor.copy_(padded[: tensor.numel()].view(tensor.shape))


@wrong("lesson_02.ring_all_reduce", says="whole rows travel: cut elements")
def ring_cuts_rows(tensor):
    _ring(tensor, split=lambda flat, n: [rows.reshape(-1) for rows in flat.view(tensor.shape).tensor_split(n)])


@wrong("lesson_02.ring_all_reduce", says="IndexError.*fewer chunks than ranks.*only tensor_split")
def ring_cuts_with_chunk(tensor):
    _ring(tensor, split=lambda t, n: t.chunk(n))


@wrong("lesson_02.ring_all_reduce", says="10 elements.*element 8 is 9, expected 9999: it lacks the share")
def ring_drops_the_remainder(tensor):
    n = tensor.numel() // dist.get_world_size() * dist.get_world_size()
    if tensor.dim() == 1:
        head = tensor[:n].clone()
        _ring(head)
        tensor[:n] = head
    else:
        _ring(tensor)


def _long_last(t, n):
    size = t.numel() // n
    return [t[i * size : (i + 1) * size if i < n - 1 else None] for i in range(n)]


@wrong("lesson_02.ring_all_reduce", says="chunk of 16 bytes; 12 are enough.*longer than they need be")
def ring_puts_the_remainder_in_the_last_chunk(tensor):
    _ring(tensor, split=_long_last)


@wrong("lesson_02.ring_all_reduce", says="Copy the result back into the tensor")
def ring_works_on_a_flat_copy(tensor):
    _ring(tensor.reshape(-1))


@wrong("lesson_02.ring_all_reduce", says="on rank 0 the tensor became")
def ring_resizes_its_tensor(tensor):
    _ring(tensor)
    tensor.resize_(max(tensor.numel() - 1, 0))


@wrong("lesson_02.ring_all_reduce", says="beside its tensor")
def ring_writes_beside_its_tensor(tensor):
    _ring(tensor)
    if tensor.numel() and tensor.storage_offset():
        torch.as_strided(tensor, (1,), (1,), tensor.storage_offset() - 1).fill_(0)


@wrong("lesson_02.ring_all_reduce", says="rank 0 sent 2.0 times the tensor .*a ring sends 1.5")
def ring_is_a_tree(tensor):
    _right_tree(tensor)


@wrong("lesson_02.ring_sum", says="is nan, expected 1111")
def ring_fills_with_nan(tensor):
    _ring(tensor)
    if dist.get_world_size() > 1:
        tensor.fill_(float("nan"))


@wrong("lesson_02.ring_sum", says="calls barrier")
def ring_has_a_barrier(tensor):
    dist.barrier()
    _ring(tensor)


@wrong("lesson_02.ring_sum", says="nothing is sent at all")
def ring_does_nothing(tensor):
    return None


@wrong("lesson_02.ring_sum", says="the sum is made in another tensor")
def ring_rebinds_its_argument(tensor):
    tensor = tensor.clone()
    _ring(tensor)


@wrong("lesson_02.ring_all_reduce", says="never waits for its isend")
def ring_never_waits(tensor):
    def exchange(leaving, to, arriving, from_):
        dist.isend(leaving, to)
        dist.recv(arriving, from_)

    _ring(tensor, exchange=exchange)


@wrong("lesson_02.ring_all_reduce", says="counted around the ring, modulo")
def ring_forgets_the_modulo(tensor):
    rank = dist.get_rank()
    _ring(tensor, exchange=lambda leaving, to, arriving, from_: _exchange(leaving, rank - 1, arriving, rank + 1))


@wrong("lesson_02.ring_all_reduce", says="no chunk ends with more than one.*added, not copied")
def ring_copies_in_both_phases(tensor):
    rank, world_size = _here()
    data = tensor.contiguous()
    chunks = data.view(-1).tensor_split(world_size)
    for step in range(2 * world_size - 2):
        arriving = chunks[(rank + step) % world_size]
        buffer = torch.empty_like(arriving)
        _exchange(chunks[(rank - 1 + step) % world_size], (rank - 1) % world_size, buffer, (rank + 1) % world_size)
        arriving.copy_(buffer)
    tensor.copy_(data)


@wrong("lesson_02.ring_all_reduce", says="the second phase starts its numbers again")
def ring_starts_its_numbers_again(tensor):
    rank, world_size = _here()
    data = tensor.contiguous()
    chunks = data.view(-1).tensor_split(world_size)
    for phase in range(2):
        for step in range(world_size - 1):
            arriving = chunks[(rank + step) % world_size]
            buffer = torch.empty_like(arriving)
            _exchange(chunks[(rank - 1 + step) % world_size], (rank - 1) % world_size, buffer, (rank + 1) % world_size)
            arriving.copy_(arriving + buffer if phase == 0 else buffer)
    tensor.copy_(data)


@wrong("lesson_02.ring_all_reduce", says="as long as the chunk that comes in")
def ring_has_one_buffer_length(tensor):
    rank, world_size = _here()
    data = tensor.contiguous()
    chunks = data.view(-1).tensor_split(world_size)
    buffer = torch.empty_like(chunks[0])
    for step in range(2 * world_size - 2):
        arriving = chunks[(rank + step) % world_size]
        _exchange(chunks[(rank - 1 + step) % world_size], (rank - 1) % world_size, buffer, (rank + 1) % world_size)
        arriving.copy_(arriving + buffer if step < world_size - 1 else buffer)
    tensor.copy_(data)


@wrong("lesson_02.ring_all_reduce", says="to the right neighbour, the chunk numbers are for the left one")
def ring_goes_right_with_the_left_ones_chunks(tensor):
    _ring(tensor, exchange=lambda leaving, to, arriving, from_: _exchange(leaving, from_, arriving, to))


@wrong("lesson_02.ring_sum", says="transposed.* in its second call: .*kept from one call to the next")
def ring_keeps_its_chunks(tensor, parts={}):  # noqa: B006, the mistake is meant
    rank, n = _here()
    data = tensor.contiguous().view(-1)
    chunks = parts.setdefault((rank, tensor.data_ptr(), n), data.tensor_split(n))
    for step in range(2 * n - 2):
        arriving = chunks[(rank + step) % n]
        buffer = torch.empty_like(arriving)
        _exchange(chunks[(rank - 1 + step) % n], (rank - 1) % n, buffer, (rank + 1) % n)
        arriving.copy_(arriving + buffer if step < n - 1 else buffer)
    tensor.copy_(data.view(tensor.shape))


for _check, _flat_copy in (("tree", tree_forgets_to_copy_back), ("ring", ring_works_on_a_flat_copy)):
    wrong_values(
        f"lesson_02.{_check}_sum", f"{_check}_sum_of_a_copy", _flat_copy, says="transposed.*flatten, reshape and"
    )


@wrong("lesson_02.ring_all_reduce", says="the chunks are cut unevenly: their lengths differ by one")
def ring_cuts_short_at_the_end(tensor):
    _ring(tensor, split=lambda t, n: [t[k * -(-len(t) // n) : (k + 1) * -(-len(t) // n)] for k in range(n)])


@wrong("lesson_02.tree_all_reduce", says="never waits for its isend")
def tree_never_waits_on_the_way_back(tensor):
    rank, world_size = _here()
    data = tensor.contiguous()
    _reduce(data, rank, world_size)
    for level in reversed(_levels(world_size)):
        distance = 2**level
        if rank % (2 * distance) == distance:
            dist.recv(data, rank - distance)
        elif rank % (2 * distance) == 0 and rank + distance < world_size:
            dist.isend(data, rank + distance)
    tensor.copy_(data)


# 2.3 costs ---------------------------------------------------------------------------------------------------

wrong_values(
    "lesson_02.point_to_point_s", "bits", lambda m, net: net.latency_s + 8 * m / net.bandwidth_Bps, says="bits"
)
wrong_values("lesson_02.point_to_point_s", "no_latency", lambda m, net: m / net.bandwidth_Bps, says="the latency")
wrong_values("lesson_02.point_to_point_s", "no_bytes", lambda m, net: net.latency_s, says="the bytes")
wrong_values(
    "lesson_02.point_to_point_s",
    "times",
    lambda m, net: net.latency_s + m * net.bandwidth_Bps,
    says="are divided by bytes a second",
)
wrong_values(
    "lesson_02.point_to_point_s", "larger", lambda m, n: max(n.latency_s, m / n.bandwidth_Bps), says="both parts"
)
wrong_values("lesson_02.point_to_point_s", "nothing_for_no_bytes", lambda m, n: _hop_s(m, n) if m else 0.0,
             says="an empty message waits for the latency, too")  # fmt: skip
wrong_values("lesson_02.point_to_point_s", "whole_bytes", lambda m, net: _hop_s(int(m), net),
             says="may be a fraction on paper: nothing is rounded")  # fmt: skip
wrong_values("lesson_02.tree_all_reduce_s", "nothing_for_no_bytes",
             lambda n, m, net: 2 * (n - 1).bit_length() * _hop_s(m, net) if m else 0.0,
             says="an empty message waits for the latency, too")  # fmt: skip
wrong_values("lesson_02.ring_all_reduce_s", "nothing_for_no_bytes",
             lambda n, m, net: 2 * (n - 1) * _hop_s(m / n, net) if m else 0.0,
             says="an empty message waits for the latency, too")  # fmt: skip
wrong_values("lesson_02.ring_all_reduce_s", "four_bytes_at_least",
             lambda n, m, net: 2 * (n - 1) * _hop_s(max(4, m / n), net) if m else 2 * (n - 1) * net.latency_s,
             says="also where that is less than one number: no smallest one")  # fmt: skip
wrong_values("lesson_02.point_to_point_s", "text", lambda m, net: "1 s", says="is '1 s', expected a number")
wrong_values("lesson_02.point_to_point_s", "nan", lambda m, net: math.nan, says="is nan, expected a number")


def _hop_s(n_bytes: float, network: Network) -> float:
    return network.latency_s + n_bytes / network.bandwidth_Bps


def _up(n: int) -> int:
    return (n - 1).bit_length()


_TREES = {
    "one_phase": (lambda n, m, net: _up(n) * _hop_s(m, net), "one phase"),
    "rounded_down": (lambda n, m, net: 2 * int(math.log2(n)) * _hop_s(m, net), "rounded up"),
    "natural_log": (lambda n, m, net: 2 * math.log(n) * _hop_s(m, net), "base 2"),
    "not_rounded": (lambda n, m, net: 2 * math.log2(n) * _hop_s(m, net), "rounded up"),
    "chunks": (lambda n, m, net: 2 * _up(n) * _hop_s(m / n, net), "the whole tensor"),
    "serial": (lambda n, m, net: 2 * (n - 1) * _hop_s(m, net), "the steps of a ring"),
    "latency_once": (lambda n, m, net: net.latency_s + 2 * _up(n) * m / net.bandwidth_Bps, "paid once in all"),
}
_RING = lambda n, m, net: 2 * (n - 1) * _hop_s(m / n, net)  # noqa: E731, one of many formulas
_RINGS = {
    "one_phase": (lambda n, m, net: (n - 1) * _hop_s(m / n, net), "one phase"),
    "n_minus_one_chunks": (lambda n, m, net: 2 * (n - 1) * _hop_s(m / max(n - 1, 1), net), "cut into N chunks"),
    "n_steps": (lambda n, m, net: 2 * n * _hop_s(m / n, net), "N - 1 steps, not N"),
    "half_of_the_bytes": (lambda n, m, net: 2 * (n - 1) * _hop_s(m / n / 2, net), "half of the bytes"),
    "a_chunk_less": (
        lambda n, m, net: 2 * (n - 1) * (net.latency_s + m * (n - 1) / n**2 / net.bandwidth_Bps),
        "look at the bytes",
    ),
    "whole": (lambda n, m, net: 2 * (n - 1) * _hop_s(m, net), "one chunk, not the whole tensor"),
    "divided": (lambda n, m, net: 2 * (n - 1) * _hop_s(m, net) / n, "only the bytes are divided"),
    "bytes_only": (lambda n, m, net: 2 * (n - 1) / n * m / net.bandwidth_Bps, "look at the latency"),
    "tree": (lambda n, m, net: 2 * _up(n) * _hop_s(m, net), "the steps of a tree"),
}
for _formulas in (_TREES, _RINGS):
    _right = (lambda n, m, net: 2 * _up(n) * _hop_s(m, net)) if _formulas is _TREES else _RING
    _formulas["six_decimals"] = (lambda n, m, net, right=_right: round(right(n, m, net), 6), "right but rounded")
    _formulas["in_float32"] = (
        lambda n, m, net, right=_right: torch.tensor(right(n, m, net)).item(), "right to six digits"
    )  # fmt: skip
wrong_values(
    "lesson_02.point_to_point_s", "six_decimals", lambda m, net: round(_hop_s(m, net), 6), says="right but rounded"
)
_CALLED = "A function that is called here, as point_to_point_s, has to be right first"
_DIVIDED = "bytes are divided by bytes a second, here and in every function that is called here"
_OTHER_PLACES = "world_size and n_bytes have changed places"
wrong_values("lesson_02.tree_all_reduce_s", "calls_a_product", lambda n, m, net: 2 * _up(n) * m * net.bandwidth_Bps,
             says=_DIVIDED)  # fmt: skip
wrong_values("lesson_02.ring_all_reduce_s", "calls_a_product", lambda n, m, net: 2 * (n - 1) * m * net.bandwidth_Bps,
             says=_DIVIDED)  # fmt: skip
wrong_values("lesson_02.tree_all_reduce_s", "swaps_its_arguments", lambda n, m, net: 2 * _up(m) * _hop_s(n, net),
             says=_OTHER_PLACES)  # fmt: skip
wrong_values("lesson_02.ring_all_reduce_s", "swaps_its_arguments", lambda n, m, net: 2 * (m - 1) * _hop_s(n / m, net),
             says=_OTHER_PLACES)  # fmt: skip
wrong_values("lesson_02.tree_all_reduce_s", "calls_two_latencies",
             lambda n, m, net: 2 * _up(n) * (_hop_s(m, net) + net.latency_s), says=_CALLED)  # fmt: skip
wrong_values("lesson_02.ring_all_reduce_s", "calls_two_latencies",
             lambda n, m, net: 2 * (n - 1) * (_hop_s(m / n, net) + net.latency_s), says=_CALLED)  # fmt: skip

for _name, (_formula, _says) in _TREES.items():
    wrong_values("lesson_02.tree_all_reduce_s", _name, _formula, says=_says)
for _name, (_formula, _says) in _RINGS.items():
    wrong_values("lesson_02.ring_all_reduce_s", _name, _formula, says=_says)


def _crossing(n: int, network: Network, *, levels: float) -> float:
    tb = network.latency_s * network.bandwidth_Bps
    return tb * (n - 1 - levels) / (levels - (n - 1) / n)


_CROSSINGS = {
    "negative": (lambda n, net: -_crossing(n, net, levels=_up(n)), "the sign"),
    "elements": (lambda n, net: _crossing(n, net, levels=_up(n)) / 4, "not the same"),
    "times_n": (lambda n, net: _crossing(n, net, levels=_up(n)) * n, "N times too much"),
    "bits": (lambda n, net: _crossing(n, net, levels=_up(n)) * 8, "bits instead of bytes|N times"),
    "not_rounded": (lambda n, net: _crossing(n, net, levels=math.log2(n)), "is never slower: 0|not a power of two"),
    "not_rounded_up_from_5": (
        lambda n, net: _crossing(n, net, levels=math.log2(n) if n > 3 else _up(n)),
        r"rounded up\.\n",
    ),
    "rounded_down_from_5": (
        lambda n, net: _crossing(n, net, levels=int(math.log2(n)) if n > 3 else _up(n)),
        "rounded up, not down",
    ),
    "one_decimal": (lambda n, net: round(_crossing(n, net, levels=_up(n)), 1), "right but rounded"),
    "by_log2_of_n": (
        lambda n, net: _crossing(n, net, levels=_up(n)) / math.log2(n),
        "not the same.*set both times equal",
    ),
    "constant": (lambda n, net: 6250.0, "not the same"),
    "infinite": (lambda n, net: math.inf, "expected a number"),
    "none_for_never": (lambda n, net: _crossing(n, net, levels=_up(n)) or None, "is None, expected 0.*never slower"),
    "whole_bytes": (lambda n, net: int(_crossing(n, net, levels=_up(n))), "leave it a float"),
}
for _name, (_formula, _says) in _CROSSINGS.items():
    wrong_values("lesson_02.crossover_bytes", _name, _formula, says=_says)


# Bonus -------------------------------------------------------------------------------------------------------


@wrong("lesson_02.halving_doubling_all_reduce", says="rounds; halving and doubling takes 4.*this is a ring")
def halving_is_a_ring(tensor):
    _ring(tensor)


@wrong("lesson_02.halving_doubling_all_reduce", says="rank 0 sent 2.0 times the tensor.*both partners send")
def halving_is_a_tree(tensor):
    _right_tree(tensor)


@wrong("lesson_02.halving_doubling_all_reduce", says="whole tensors are exchanged")
def halving_exchanges_whole_tensors(tensor):
    rank, world_size = _here()
    data = tensor.contiguous()
    buffer = torch.empty_like(data)
    for level in _levels(world_size):
        _exchange(data, rank ^ 2**level, buffer, rank ^ 2**level)
        data += buffer
    tensor.copy_(data)


def _halving(tensor, *, exchange=_exchange, back=True, both_keep_low=False):
    rank, world_size = _here()
    data = tensor.contiguous()
    kept, given, distance = data.view(-1), [], world_size // 2
    while distance:
        low, high = kept.tensor_split(2)
        kept, away = (low, high) if both_keep_low or rank < rank ^ distance else (high, low)
        buffer = torch.empty_like(kept)
        exchange(away, rank ^ distance, buffer, rank ^ distance)
        kept += buffer
        given.append((kept, away, rank ^ distance))
        distance //= 2
    for kept, away, partner in reversed(given) if back else ():
        exchange(kept, partner, away, partner)
    tensor.copy_(data)


@wrong("lesson_02.halving_doubling_all_reduce", says="the second phase, the doubling, is missing")
def halving_without_doubling(tensor):
    _halving(tensor, back=False)


@wrong("lesson_02.halving_doubling_all_reduce", says="both partners of a step keep the same half")
def halving_keeps_the_low_half_twice(tensor):
    _halving(tensor, both_keep_low=True)


def _lower_sends_first(leaving, to, arriving, from_):
    if dist.get_rank() < to:
        dist.send(leaving, to)
        dist.recv(arriving, from_)
    else:
        dist.recv(arriving, from_)
        dist.send(leaving, to)


@wrong("lesson_02.halving_doubling_all_reduce", says="the two partners of a step wait for one another")
def halving_takes_turns(tensor):
    _halving(tensor, exchange=_lower_sends_first)


@wrong("lesson_02.halving_doubling_all_reduce", says="hangs.*every rank stands in send")
def halving_with_blocking_sends(tensor):
    _halving(tensor, exchange=_all_send)


# Answers of strangers: what they were told was another cause, or none.


def _a_tree(tensor, *, add="in place", back="last first", wait=True, into_tensor=True, isend=False):
    """A right tree, of which each mistake changes one part."""
    rank, n = dist.get_rank(), dist.get_world_size()
    data, incoming = tensor.contiguous(), torch.empty_like(tensor.contiguous())
    distances = [2**k for k in range((n - 1).bit_length())]
    for d in distances:
        if rank % (2 * d) == d:
            sending = dist.isend(data, rank - d) if isend else dist.send(data, rank - d)
            if isend and wait:
                sending.wait()
        elif rank % (2 * d) == 0 and rank + d < n:
            if wait:
                dist.recv(incoming, rank + d)
            else:
                dist.irecv(incoming, rank + d)
            data = data.add_(incoming) if add == "in place" else data + incoming
    for d in distances[::-1] if back == "last first" else distances:
        if rank % (2 * d) == d:
            dist.recv(data if into_tensor else incoming, rank - d)
        elif rank % (2 * d) == 0 and rank + d < n:
            dist.send(data, rank + d)
    if data is not tensor and add == "in place":
        tensor.copy_(data)


for _name, _change, _says in [
    ("tree_adds_into_another_tensor", {"add": "anew"}, "rank 0's tensor is as it was"),
    ("tree_goes_back_first_step_first", {"back": "first first"}, "runs the same steps backwards"),
    ("tree_receives_beside_its_tensor", {"into_tensor": False}, "none writes it into its tensor"),
    ("tree_reads_before_it_waits", {"wait": False}, "read before the receive has finished"),
    ("tree_never_waits_for_its_isend", {"isend": True, "wait": False}, "never waits|read before the receive"),
]:
    wrong_values("lesson_02.tree_sum", _name, partial(_a_tree, **_change), says=_says)


@wrong("lesson_02.tree_sum", says="rank 1 never waits for its isend.*until wait")
def tree_leaves_its_isends(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    for other in range(1, n):
        if rank == other:
            dist.isend(tensor.clone(), 0)
            dist.recv(tensor, 0)
        elif rank == 0:
            part = torch.empty_like(tensor)
            dist.recv(part, other)
            tensor += part
            if other == n - 1:
                for to in range(1, n):
                    dist.send(tensor, to)


def _a_ring(tensor, *, dtype=None, wait=True, header=False):
    rank, n = dist.get_rank(), dist.get_world_size()
    data = tensor.to(dtype or tensor.dtype).contiguous()
    chunks, left, right = data.view(-1).tensor_split(n), (rank - 1) % n, (rank + 1) % n
    if header and n > 1:
        telling = dist.isend(torch.tensor([len(chunks[0])]), left)
        dist.recv(torch.empty(1, dtype=torch.int64), right)
        telling.wait()
    for step in range(1, 2 * n - 1):
        leaving, arriving = chunks[(rank - 2 + step) % n], chunks[(rank - 1 + step) % n]
        incoming = torch.empty_like(arriving)
        sending = dist.isend(leaving, left)
        dist.recv(incoming, right)
        if wait:
            sending.wait()
        arriving.copy_(arriving + incoming if step < n else incoming)
    if data is not tensor:
        tensor.copy_(data)


def _whole_numbers_as_floats(all_reduce):
    def answer(tensor):
        if tensor.is_floating_point():
            return all_reduce(tensor)
        data = tensor.double()
        all_reduce(data)
        tensor.copy_(data)

    return answer


for _check, _right in (("tree", _a_tree), ("ring", _a_ring)):
    for _kind in ("sum", "all_reduce"):
        wrong_values(
            f"lesson_02.{_check}_{_kind}", f"{_check}_adds_whole_numbers_as_floats", _whole_numbers_as_floats(_right),
            says=r"int64.*last digits.*float64",
        )  # fmt: skip

wrong_values(
    "lesson_02.ring_sum", "ring_leaves_its_isends", partial(_a_ring, wait=False), says="never waits for its isend"
)
wrong_values(
    "lesson_02.ring_sum", "ring_adds_in_float32", partial(_a_ring, dtype=torch.float32), says="added up in float32"
)
wrong_values(
    "lesson_02.ring_all_reduce", "ring_in_float64", partial(_a_ring, dtype=torch.float64), says="goes in another dtype"
)
wrong_values(
    "lesson_02.ring_all_reduce",
    "ring_tells_the_length",
    partial(_a_ring, header=True),
    says="travels beside the chunks",
)


@wrong("lesson_02.tree_partner", says="its own number is a rank like any other")
def gives_itself(rank, step):
    return rank - 2 ** (step - 1) if rank % 2**step == 2 ** (step - 1) else rank


def _meeting(tree=(1, 1), ring=(1, 1), times=lambda network: 1.0, done=lambda bytes_: bytes_):
    """A crossover of lines whose rounds and bytes are that many times the right ones."""

    def crossover(world_size, network):
        steps, around = 2 * (world_size - 1).bit_length(), 2 * (world_size - 1)
        more = (ring[0] * around - tree[0] * steps) * network.latency_s * network.bandwidth_Bps
        return done(more / (tree[1] * steps - ring[1] * around / world_size) * times(network))

    return crossover


for _name, _crossover, _says in [
    ("one_phase_of_the_tree", _meeting(tree=(0.5, 0.5)), "one phase of the tree, both of the ring"),
    ("whole_tensors_around", lambda n, net: _meeting(ring=(1, n))(n, net), "a ring's step moves a chunk"),
    ("two_tensors_around", lambda n, net: _meeting(ring=(1, n / (n - 1)))(n, net), "less than two tensors"),
    ("n_steps_around", lambda n, net: _meeting(ring=(n / (n - 1), 1))(n, net), "N - 1 steps, not N"),
    ("in_seconds", _meeting(times=lambda net: 1 / net.bandwidth_Bps), "times bytes a second it is bytes"),
    ("three_digits", _meeting(done=lambda b: float(f"{b:.3g}")), "right but rounded"),
]:
    wrong_values("lesson_02.crossover_bytes", _name, _crossover, says=_says)


for _name, _seconds, _says in [
    ("pays_latency_once", lambda n, m, net: net.latency_s + 2 * (n - 1) * m / n / net.bandwidth_Bps, "once in all"),
    ("one_step_more", lambda n, m, net: (2 * n - 1) * net.message_s(m / n) * (n > 1), "one step too many"),
    ("chunks_rounded_up", lambda n, m, net: 2 * (n - 1) * net.message_s(math.ceil(m / n)), "nothing is rounded"),
]:
    wrong_values("lesson_02.ring_all_reduce_s", _name, _seconds, says=_says)
wrong_values(
    "lesson_02.point_to_point_s", "counts_bytes_as_numbers", lambda m, net: net.message_s(4 * m), says="bytes already"
)


@wrong("lesson_02.crossover_bytes", says="w counts both ways")
def counts_the_way_up_alone(world_size, network):
    rounds = 2 * (world_size - 1) - 2 * (world_size - 1).bit_length()
    tensors = (world_size - 1).bit_length() - 2 * (world_size - 1) / world_size
    return rounds * network.latency_s * network.bandwidth_Bps / tensors


@wrong("lesson_02.tree_sum", says="tag 1.*likely cause: a message meets the receive that has its tag")
def tags_on_one_side(tensor):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if world_size == 1:
        return
    for other in range(1, world_size):
        if rank == other:
            dist.send(tensor, 0, tag=other)
        elif rank == 0:
            dist.recv(tensor, other)


wrong_values(
    "lesson_02.point_to_point_s", "floors", lambda m, net: net.latency_s + m // net.bandwidth_Bps, says="// leaves"
)


@wrong("lesson_02.tree_all_reduce_s", says="half of the bytes: every message is the whole tensor")
def half_of_the_bytes(world_size, n_bytes, network):
    return 2 * (world_size - 1).bit_length() * network.message_s(n_bytes / 2)


@wrong("lesson_02.ring_all_reduce", says="calls all_reduce.*that is a collective")
def reduces_functionally(tensor):
    tensor.copy_(_functional_collectives.all_reduce(tensor.contiguous(), "sum", dist.group.WORLD))


@wrong("lesson_02.tree_all_reduce", says="A step is left out: range.1, steps. ends")
def ends_a_step_early(tensor):
    rank, n, work = dist.get_rank(), dist.get_world_size(), tensor.clone()
    steps = (n - 1).bit_length()
    pairs = [(2 ** (s - 1), rank % 2**s) for s in range(1, steps)]
    for d, place in pairs:
        if place == d:
            dist.send(work, rank - d)
        elif place == 0 and rank + d < n:
            dist.recv(came := torch.empty_like(work), rank + d)
            work += came
    for d, place in reversed(pairs):
        if place == d:
            dist.recv(work, rank - d)
        elif place == 0 and rank + d < n:
            dist.send(work, rank + d)
    tensor.copy_(work)


@wrong("lesson_02.ring_all_reduce", says="no chunk is ever whole.*is what was sent added")
def adds_what_it_sent(tensor):
    n, r, flat = dist.get_world_size(), dist.get_rank(), tensor.contiguous().view(-1)
    chunks = flat.tensor_split(n)
    for s in range(1, 2 * n - 1):
        out, into = chunks[(r - 2 + s) % n], chunks[(r - 1 + s) % n]
        work = dist.isend(out, (r - 1) % n)
        dist.recv(into, (r + 1) % n)
        work.wait()
        if s < n:
            into += out
    tensor.copy_(flat.view_as(tensor))


wrong_values(
    "lesson_02.chunk_owned",
    "of_a_ring_to_the_right",
    lambda r, n: (r + 1) % n,
    says="from a ring that sends to the right",
)


def _crossover(tree_bytes):
    def crossover_bytes(world_size, network):
        r_tree, r_ring = 2 * (world_size - 1).bit_length(), 2 * (world_size - 1)
        more = tree_bytes - r_ring / world_size
        return (r_ring - r_tree) * network.latency_s * network.bandwidth_Bps / more

    return crossover_bytes


for _n in (1, 2):
    _says = f"a tree's tensors are whole in every round.*not {_n}"
    wrong_values("lesson_02.crossover_bytes", f"tree_pays_{_n}_tensors_in_all", _crossover(_n), says=_says)


def _a_ring(tensor, *, change=1, further=1, in_place=False):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = tensor.tensor_split(n)
    for step in range(1, 2 * n - 1):
        k = (rank + change * step - 2) % n
        into = chunks[(k + further) % n]
        buffer = into if in_place else torch.empty_like(into)
        out, incoming = dist.isend(chunks[k].clone(), (rank - 1) % n), dist.irecv(buffer, (rank + 1) % n)
        incoming.wait()
        out.wait()
        into.copy_(into + buffer if step < n else buffer)


for _check in ("lesson_02.ring_sum", "lesson_02.ring_all_reduce"):
    for _name, _change, _says in (
        ("numbers_go_down", {"change": -1, "further": -1}, "go down from step to step.*the next one down"),
        ("adds_to_what_it_sends", {"further": 0}, "the chunk index is off|no chunk is ever whole"),
        ("receives_into_the_chunk", {"in_place": True}, "lands on what was there already, and is added to itself"),
    ):
        wrong_values(_check, _name, partial(_a_ring, **_change), says=_says)


@wrong("lesson_02.tree_sum", says="a single number without dimensions, as a loss is")
def tree_writes_back_by_a_slice(tensor):
    total = tensor.clone(memory_format=torch.contiguous_format)
    _right_tree(total)
    tensor[:] = total


@wrong("lesson_02.tree_all_reduce", says="numpy has no bfloat16")
def tree_goes_through_numpy(tensor):
    total = torch.from_numpy(tensor.numpy().copy())
    _right_tree(total)
    tensor.copy_(total)


@wrong("lesson_02.ring_all_reduce", says="numpy has no bfloat16")
def ring_goes_through_numpy(tensor):
    total = torch.from_numpy(tensor.numpy().copy())
    _ring(total)
    tensor.copy_(total)


@wrong("lesson_02.ring_sum", says="a single number without dimensions, as a loss is")
def ring_writes_back_by_a_slice(tensor):
    total = tensor.clone(memory_format=torch.contiguous_format)
    _ring(total)
    tensor[:] = total


@wrong("lesson_02.tree_partner", says="the sends to rank 0 are missing alone.*counts as false")
def loses_the_root(rank, step):
    bit = 2 ** (step - 1)
    return (rank % (2 * bit) == bit and rank - bit) or None


@wrong("lesson_02.point_to_point_s", says="the numbers of the notebook's cluster, whatever network is given")
def knows_one_network(n_bytes, network):
    return 50e-6 + n_bytes / 125e6


@wrong("lesson_02.crossover_bytes", says="the numbers of the notebook's cluster, whatever network is given")
def meets_on_one_network(world_size, network):
    steps = 2 * (world_size - 1).bit_length()
    more = 2 * (world_size - 1) - steps
    return more * 50e-6 * 125e6 / (steps - 2 * (world_size - 1) / world_size)


@wrong("lesson_02.ring_all_reduce", says="a chunk goes in several messages.*one message a rank")
def ring_sends_element_by_element(tensor):
    def exchange(leaving, to, buffer, from_):
        works = [dist.isend(part, to) for part in leaving.split(1) if len(leaving)]
        for part in buffer.split(1) if len(buffer) else ():
            dist.recv(part, from_)
        for work in works:
            work.wait()

    _ring(tensor, exchange=exchange)


@wrong("lesson_02.tree_partner", says="None says that a rank does not send; 0 is a rank like any other")
def gives_zero(rank, step):
    distance = 2 ** (step - 1)
    return rank - distance if rank % (2 * distance) == distance else 0


@wrong("lesson_02.crossover_bytes", says="is 1e.09; .*does a search stop at the largest size that it tries")
def searches_below_a_gigabyte(world_size, network):
    rounds, around = 2 * (world_size - 1).bit_length(), 2 * (world_size - 1)
    low, high = 0.0, 1e9
    for _ in range(100):
        size = (low + high) / 2
        tree_s = rounds * (network.latency_s + size / network.bandwidth_Bps)
        ring_s = around * (network.latency_s + size / world_size / network.bandwidth_Bps)
        low, high = (size, high) if tree_s < ring_s else (low, size)
    return high


def _changed_tree(tensor, *, buffer=torch.empty_like, flat=torch.Tensor.contiguous, more=False):
    """The tree, of which a mistake changes one part."""
    (rank, world_size), data, distance, below = _here(), flat(tensor), 1, []
    while rank % (2 * distance) == 0 and distance < world_size:
        below += [rank + distance] if rank + distance < world_size else []
        distance *= 2
    for child in below:
        incoming = buffer(data)
        dist.recv(incoming, child)
        data += incoming.view_as(data)
    if rank:
        dist.send(data, rank - distance)
        dist.recv(data, rank - distance)
    for child in below[::-1]:
        dist.send(data, child)
    if more and rank < 2 <= world_size:
        (dist.send if rank == 0 else dist.recv)(data.flatten()[:0], 1 - rank)
    tensor.copy_(data.view_as(tensor))


@wrong("lesson_02.tree_all_reduce", says="15 elements are sent, and the buffer has room for 3: len.tensor. counts rows")
def tree_has_a_buffer_of_rows(tensor):
    _changed_tree(tensor, buffer=lambda data: torch.empty(len(data) if data.dim() else 1, dtype=data.dtype))


@wrong("lesson_02.tree_all_reduce", says="some messages carry nothing: whoever has nothing to send is silent")
def tree_sends_an_empty_message(tensor):
    _changed_tree(tensor, more=True)


@wrong("lesson_02.tree_all_reduce", says="view size is not compatible.*do not lie side by side in memory")
def tree_takes_a_flat_view(tensor):
    _changed_tree(tensor, flat=lambda tensor: tensor.view(-1).contiguous())
