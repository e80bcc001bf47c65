"""Planted mistakes of lesson 01."""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist

from tests.checks.wrong_answers import wrong, wrong_values

# 1.1 hello


@wrong("lesson_01.hello", says="rank 0 printed 'Rank 1.*ranks count from 0")
def counts_from_one(rank, world_size, name):
    print(f"Rank {rank + 1}: Hello, {name}!")


@wrong("lesson_01.hello", says="return gives a value back, print writes it")
def returns_the_text(rank, world_size, name):
    return f"Rank {rank}: Hello, {name}!"


@wrong("lesson_01.hello", says="each prints its own line")
def speaks_for_all(rank, world_size, name):
    for r in range(world_size):
        print(f"Rank {r}: Hello, {name}!")


@wrong("lesson_01.hello", says="only some ranks print")
def only_rank_zero_prints(rank, world_size, name):
    if rank == 0:
        print(f"Rank {rank}: Hello, {name}!")


@wrong("lesson_01.hello", says="third argument")
def name_is_written_in(rank, world_size, name):
    print(f"Rank {rank}: Hello, World!")


@wrong("lesson_01.hello", says="a letter, a space or a sign differs")
def forgets_the_mark(rank, world_size, name):
    print(f"Rank {rank}: Hello, {name}")


@wrong("lesson_01.hello", says="every rank prints the same number|a letter")
def prints_the_world_size(rank, world_size, name):
    print(f"Rank {world_size}: Hello, {name}!")


@wrong("lesson_01.hello", says="more than once: one line a rank")
def says_it_twice(rank, world_size, name):
    print(f"Rank {rank}: Hello, {name}!\n" * 2)


# 1.2 predictions and times

_RIGHT = {
    "both_send_first": "hangs",
    "one_sends_first": "finishes",
    "wait_comes_last": "finishes",
    "changed_too_early": "fails",
    "one_recv_too_many": "hangs",
}
for _program, _said, _says in [
    ("both_send_first", "finishes", "predicted that it finishes.*a partner that never comes"),
    ("one_sends_first", "hangs", "every call does meet its partner"),
    ("wait_comes_last", "hangs", "every call does meet its partner"),
    ("wait_comes_last", "fails", "nothing forbidden happens"),
    ("changed_too_early", "finishes", "must not be written before its wait"),
    ("changed_too_early", "hangs", "nobody waits for ever"),
    ("one_recv_too_many", "fails", "not an error by itself"),
    ("one_recv_too_many", "deadlock", "must be one of finishes, hangs, fails"),
]:
    wrong_values("lesson_01.predictions", f"{_program}_{_said}", {**_RIGHT, _program: _said}, says=_says)
wrong_values("lesson_01.predictions", "a_list_of_outcomes", list(_RIGHT.values()), says="there is no prediction")

for _name, _times, _says in [
    ("isend_waits", {"isend_s": 4.0, "wait_s": 4.0, "send_s": 6.0}, "isend only announces"),
    ("send_is_buffered", {"isend_s": 0.0, "wait_s": 0.0, "send_s": 0.0}, "when the bytes have arrived"),
    ("starts_when_sent", {"isend_s": 0.0, "wait_s": 2.0, "send_s": 4.0}, "both sides have called"),
    ("second_is_free", {"isend_s": 0.0, "wait_s": 4.0, "send_s": 4.0}, "takes its own time"),
    ("in_words", {"isend_s": "0", "wait_s": 4.0, "send_s": 6.0}, "must be a number of seconds"),
    ("not_a_number", {"isend_s": float("nan"), "wait_s": 4.0, "send_s": 6.0}, "isend only announces"),
]:
    wrong_values("lesson_01.times", _name, _times, says=_says)

# 1.3 ping-pong and relay


def _plays(ball, rank, n_rounds, *, second=1, receive="recv", adds=1):
    """The game as it should be, but for who the second player is, and what it receives with and adds."""
    for _ in range(n_rounds):
        if rank == 0:
            dist.send(ball.add_(1), second)
            dist.recv(ball, second)
        elif rank == second:
            getattr(dist, receive)(ball, 0)
            dist.send(ball.add_(adds), 0)
    return ball.flatten()[0].item()


@wrong("lesson_01.ping_pong", says="rank 0 must send first and rank 1 must receive first")
def both_serve(rank, world_size, n_rounds):
    ball = torch.zeros(1)
    for _ in range(n_rounds):
        if rank < 2:
            dist.send(ball, 1 - rank)
            dist.recv(ball, 1 - rank)
    return ball.item()


@wrong("lesson_01.ping_pong", says="only one of the two ranks adds")
def one_player_adds(rank, world_size, n_rounds):
    return _plays(torch.zeros(1), rank, n_rounds, adds=0)


@wrong("lesson_01.ping_pong", says="a round is there and back")
def one_way_a_round(rank, world_size, n_rounds):
    ball = torch.zeros(1)
    for k in range(n_rounds):
        if rank == k % 2:
            dist.send(ball.add_(1), 1 - rank)
        elif rank < 2:
            dist.recv(ball, 1 - rank)
    return ball.item() if rank < 2 else 0.0


@wrong("lesson_01.ping_pong", says="starts at 0 on rank 0, which adds 1 to it")
def serves_a_two(rank, world_size, n_rounds):
    return _plays(torch.ones(1), rank, n_rounds)


@wrong("lesson_01.ping_pong", says="add only before a send")
def adds_after_the_last(rank, world_size, n_rounds):
    ball = torch.zeros(1)
    for _ in range(n_rounds):
        if rank == 0:
            dist.send(ball + 1, 1)
            dist.recv(ball, 1)
            if _ == n_rounds - 1:
                ball += 1
        elif rank == 1:
            dist.recv(ball, 0)
            dist.send(ball.add_(1), 0)
    return ball.item()


@wrong("lesson_01.ping_pong", says="make it once, before the loop")
def a_new_ball_every_round(rank, world_size, n_rounds):
    return [_plays(torch.zeros(1), rank, 1) for _ in range(n_rounds)][-1] if n_rounds else 0.0


@wrong("lesson_01.ping_pong", says="the others return 0.0")
def spectators_count_too(rank, world_size, n_rounds):
    _plays(torch.zeros(1), rank, n_rounds)
    return 2.0 * n_rounds


@wrong("lesson_01.ping_pong", says="0 messages were sent; 2 are needed")
def only_the_formula(rank, world_size, n_rounds):
    return 2.0 * n_rounds if rank < 2 else 0.0


for _name, _ball, _says in [
    ("an_int64_ball", lambda: torch.tensor(0), "a message has 8 bytes; .* has 4.*torch.tensor\\(0\\) is an integer"),
    ("a_float64_ball", lambda: torch.zeros(1, dtype=torch.float64), "one int64 or float64 has 8 bytes"),
    ("a_ball_of_three", lambda: torch.zeros(3), "a message has 12 bytes.*the ball has one element"),
]:
    wrong_values("lesson_01.ping_pong", _name, lambda r, n, k, ball=_ball: _plays(ball(), r, k), says=_says)


@wrong("lesson_01.ping_pong", says="as a float: ball.item\\(\\)")
def gives_the_ball_itself(rank, world_size, n_rounds):
    return torch.full((1,), float(_plays(torch.zeros(1), rank, n_rounds)))


@wrong("lesson_01.ping_pong", says="called all_reduce")
def plays_by_all_reduce(rank, world_size, n_rounds):
    ball = torch.ones(1) if rank < 2 else torch.zeros(1)
    dist.all_reduce(ball)
    return ball.item() * n_rounds if rank < 2 else 0.0


def _relay(rank, world_size, numbers, close_ring, *, add=True, start=True):
    total = numbers[rank].clone()
    if rank > 0:
        dist.recv(total, rank - 1)
        if add:
            total += numbers[rank]
    if rank < world_size - 1:
        dist.send(total, rank + 1)
    return total


@wrong("lesson_01.relay", says="number of rank 1 is missing")
def forgets_its_own(rank, world_size, numbers, close_ring=False):
    total = _relay(rank, world_size, numbers, close_ring, add=False)
    return total if rank == world_size - 1 else None


@wrong("lesson_01.relay", says=r"numbers\[\d\] was changed")
def adds_into_the_input(rank, world_size, numbers, close_ring=False):
    if rank > 0:
        received = torch.empty_like(numbers[rank])
        dist.recv(received, rank - 1)
        numbers[rank] += received
    if rank < world_size - 1:
        dist.send(numbers[rank], rank + 1)
    return numbers[rank] if rank == world_size - 1 else None


@wrong("lesson_01.relay", says="as many elements, in another shape")
def flattens(rank, world_size, numbers, close_ring=False):
    total = _relay(rank, world_size, [n.flatten() for n in numbers], close_ring)
    return total if rank == world_size - 1 else None


@wrong("lesson_01.relay", says="returned None")
def returns_nothing(rank, world_size, numbers, close_ring=False):
    _relay(rank, world_size, numbers, close_ring)


@wrong("lesson_01.relay", says="messages were sent; 2 are enough|rank 0 sent 1 messages to rank 2")
def everybody_sends_to_the_last(rank, world_size, numbers, close_ring=False):
    last = world_size - 1
    if rank != last:
        dist.send(numbers[rank], last)
        return None
    total, received = numbers[rank].clone(), torch.empty_like(numbers[rank])
    for other in range(last):
        dist.recv(received, other)
        total += received
    return total


@wrong("lesson_01.relay", says="sends first; every other rank receives")
def all_receive_first(rank, world_size, numbers, close_ring=False):
    total = numbers[rank].clone()
    received = torch.empty_like(total)
    if world_size > 1:
        dist.recv(received, (rank - 1) % world_size)
        total += received
        dist.send(total, (rank + 1) % world_size)
    return total if rank == world_size - 1 else None


@wrong("lesson_01.relay", says="added 2 times")
def adds_twice(rank, world_size, numbers, close_ring=False):
    total = _relay(rank, world_size, numbers, close_ring)
    return total + numbers[rank] if rank == world_size - 1 else None


@wrong("lesson_01.relay", says="2 messages were sent; 1 are enough")
def always_closes(rank, world_size, numbers, close_ring=False):
    total = _relay(rank, world_size, numbers, close_ring)
    if world_size > 1:
        if rank == world_size - 1:
            dist.send(total, 0)
        elif rank == 0:
            dist.recv(total, world_size - 1)
    return total if rank == world_size - 1 else None


@wrong("lesson_01.relay", says="numbers of other ranks were read")
def sums_the_argument(rank, world_size, numbers, close_ring=False):
    return sum(numbers) if rank == (0 if close_ring else world_size - 1) else None


@wrong("lesson_01.relay", says="rank 0 returned a .*expected None.*only that rank has the sum")
def all_return_what_they_have(rank, world_size, numbers, close_ring=False):
    return _relay(rank, world_size, numbers, close_ring)


# 1.4 read a hang and repair it

for _name, _waits, _says in [
    ("thinks_they_receive", {r: ("recv", (r - 1) % 4) for r in range(4)}, "does not stand in 'recv'"),
    ("looks_to_the_left", {r: ("send", (r - 1) % 4) for r in range(4)}, "does not wait for rank 3"),
    ("left_open", {0: None, 1: None, 2: None, 3: None}, "must be a pair"),
    ("ranks_as_text", {r: ("send", str((r + 1) % 4)) for r in range(4)}, "does not wait for rank '1'"),
    ("one_row_only", {0: ("send", 1)}, r"waits\[1\] must be a pair"),
]:
    wrong_values("lesson_01.read_a_hang", _name, _waits, says=_says)


def _neighbours(rank, world_size, values):
    return (rank + 1) % world_size, (rank - 1) % world_size, torch.tensor([values[rank]]), torch.empty(1)


@wrong("lesson_01.shift_by_parity", says="all ranks call in the same order")
def still_sends_first(rank, world_size, values):
    right, left, mine, theirs = _neighbours(rank, world_size, values)
    dist.send(mine, right)
    dist.recv(theirs, left)
    return theirs.item()


@wrong("lesson_01.shift_by_parity", says="all ranks call in the same order")
def all_receive(rank, world_size, values):
    right, left, mine, theirs = _neighbours(rank, world_size, values)
    dist.recv(theirs, left)
    dist.send(mine, right)
    return theirs.item()


@wrong("lesson_01.shift_by_parity", says="the ranks go one after another")
def only_rank_zero_starts(rank, world_size, values):
    right, left, mine, theirs = _neighbours(rank, world_size, values)
    if rank == 0:
        dist.send(mine, right)
        dist.recv(theirs, left)
    else:
        dist.recv(theirs, left)
        dist.send(mine, right)
    return theirs.item()


@wrong("lesson_01.shift_by_parity", says="this repair needs send and recv only")
def parity_by_isend(rank, world_size, values):
    right, left, mine, theirs = _neighbours(rank, world_size, values)
    sending = dist.isend(mine, right)
    dist.recv(theirs, left)
    sending.wait()
    return theirs.item()


def _by_parity(rank, mine, right, theirs, left):
    if rank % 2 == 0:
        dist.send(mine, right)
        dist.recv(theirs, left)
    else:
        dist.recv(theirs, left)
        dist.send(mine, right)


@wrong("lesson_01.shift_by_parity", says="the number went to the left|returned")
def shifts_to_the_left(rank, world_size, values):
    left, right, mine, theirs = _neighbours(rank, world_size, values)
    _by_parity(rank, mine, right, theirs, left)
    return theirs.item()


@wrong("lesson_01.shift_by_parity", says="was read: a rank has its own number alone")
def reads_the_list(rank, world_size, values):
    return values[(rank - 1) % world_size]


@wrong("lesson_01.shift_by_parity", says="was read: a rank has its own number alone")
def sends_and_reads_the_list_all_the_same(rank, world_size, values):
    right, left, mine, theirs = _neighbours(rank, world_size, values)
    _by_parity(rank, mine, right, theirs, left)
    return values[(rank - 1) % world_size]


@wrong("lesson_01.shift_by_parity", says="not the whole list")
def sends_the_whole_list(rank, world_size, values):
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    theirs = torch.empty(world_size)
    _by_parity(rank, torch.tensor(values), right, theirs, left)
    return theirs[left].item()


@wrong("lesson_01.shift_at_once", says="not the whole list")
def sends_the_whole_list_at_once(rank, world_size, values):
    theirs = torch.empty(world_size)
    sending = dist.isend(torch.tensor(values), (rank + 1) % world_size)
    dist.recv(theirs, (rank - 1) % world_size)
    sending.wait()
    return theirs[rank - 1].item()


@wrong("lesson_01.shift_at_once", says="waited for before the other half is posted")
def waits_too_early(rank, world_size, values):
    right, left, mine, theirs = _neighbours(rank, world_size, values)
    dist.isend(mine, right).wait()
    dist.recv(theirs, left)
    return theirs.item()


@wrong("lesson_01.shift_at_once", says="waited for before the other half is posted")
def receives_before_it_sends(rank, world_size, values):
    right, left, mine, theirs = _neighbours(rank, world_size, values)
    dist.irecv(theirs, left).wait()
    dist.isend(mine, right).wait()
    return theirs.item()


@wrong("lesson_01.shift_at_once", says="only blocking calls")
def parity_again(rank, world_size, values):
    right, left, mine, theirs = _neighbours(rank, world_size, values)
    if rank % 2 == 0:
        dist.send(mine, right)
        dist.recv(theirs, left)
    else:
        dist.recv(theirs, left)
        dist.send(mine, right)
    return theirs.item()


@wrong("lesson_01.shift_at_once", says="1 are enough")
def parity_with_isend(rank, world_size, values):
    right, left, mine, theirs = _neighbours(rank, world_size, values)
    if rank % 2 == 0:
        dist.isend(mine, right).wait()
        dist.recv(theirs, left)
    else:
        dist.recv(theirs, left)
        dist.isend(mine, right).wait()
    return theirs.item()


def _at_once(rank, world_size, mine, theirs):
    calls = [dist.isend(mine, (rank + 1) % world_size), dist.irecv(theirs, (rank - 1) % world_size)]
    for call in calls:
        call.wait()
    return theirs.item()


@wrong("lesson_01.shift_at_once", says="the fraction is gone")
def sends_whole_numbers(rank, world_size, values):
    return _at_once(rank, world_size, torch.tensor([int(values[rank])]), torch.zeros(1, dtype=torch.int64))


@wrong("lesson_01.shift_at_once", says="changes the tensor between isend and wait.*another tensor is needed")
def one_tensor_for_both(rank, world_size, values):
    mine = torch.tensor([values[rank]])
    return _at_once(rank, world_size, mine, mine)


@wrong("lesson_01.shift_at_once", says="returned its own number")
def receives_into_its_own(rank, world_size, values):
    right, left, mine, theirs = _neighbours(rank, world_size, values)
    sending = dist.isend(mine, right)
    dist.recv(theirs, left)
    sending.wait()
    return mine.item()


@wrong("lesson_01.shift_at_once", says="never waits for its isend")
def never_waits(rank, world_size, values):
    right, left, mine, theirs = _neighbours(rank, world_size, values)
    dist.isend(mine, right)
    dist.recv(theirs, left)
    return theirs.item()


# 1.5 measure a link


def _timed(rank, n_bytes, repeats, dtype=torch.uint8):
    buffer = torch.zeros(n_bytes, dtype=dtype)
    start = time.perf_counter()
    for _ in range(repeats):
        if rank == 0:
            dist.send(buffer, 1)
            dist.recv(buffer, 1)
        else:
            dist.recv(buffer, 0)
            dist.send(buffer, 0)
    return time.perf_counter() - start


@wrong("lesson_01.time_message", says="a round trip is two messages")
def times_the_round_trip(rank, world_size, n_bytes, repeats):
    return _timed(rank, n_bytes, repeats) / repeats


@wrong("lesson_01.time_message", says="divide by the number of messages|two messages")
def forgets_to_divide(rank, world_size, n_bytes, repeats):
    return _timed(rank, n_bytes, repeats)


@wrong("lesson_01.time_message", says=r"messages of \[4\] bytes")
def counts_floats_as_bytes(rank, world_size, n_bytes, repeats):
    return _timed(rank, n_bytes, repeats, torch.float32) / (2 * repeats)


@wrong("lesson_01.time_message", says="nobody waits for takes no time")
def times_the_announcement(rank, world_size, n_bytes, repeats):
    buffer = torch.zeros(n_bytes, dtype=torch.uint8)
    seconds = 0.0
    for _ in range(repeats):
        if rank == 0:
            start = time.perf_counter()
            sending = dist.isend(buffer, 1)
            seconds += time.perf_counter() - start
            sending.wait()
            dist.recv(buffer, 1)
        else:
            dist.recv(buffer, 0)
            dist.send(buffer, 0)
    return seconds / repeats


@wrong("lesson_01.time_message", says="round trip 1 alone")
def times_the_first_trip(rank, world_size, n_bytes, repeats):
    seconds = _timed(rank, n_bytes, 1) / 2
    _timed(rank, n_bytes, repeats - 1)
    return seconds


@wrong("lesson_01.time_message", says="round trip 5 alone")
def times_the_last_trip(rank, world_size, n_bytes, repeats):
    _timed(rank, n_bytes, repeats - 1)
    return _timed(rank, n_bytes, 1) / 2


@wrong("lesson_01.time_message", says="round trips 2 to 5 alone are in it")
def leaves_out_the_first_trip(rank, world_size, n_bytes, repeats):
    _timed(rank, n_bytes, 1)
    return _timed(rank, n_bytes, repeats - 1) / 2 / (repeats - 1)


@wrong("lesson_01.time_message", says="a reading of the clock alone says nothing")
def takes_the_reading_itself(rank, world_size, n_bytes, repeats):
    _timed(rank, n_bytes, repeats)
    return time.perf_counter() / (2 * repeats)


@wrong("lesson_01.time_message", says="a reading of the clock alone says nothing")
def adds_the_readings(rank, world_size, n_bytes, repeats):
    start = time.perf_counter()
    seconds = _timed(rank, n_bytes, repeats)
    return (2 * start + seconds) / (2 * repeats)


@wrong("lesson_01.time_message", says="rounded")
def gives_whole_microseconds(rank, world_size, n_bytes, repeats):
    return round(_timed(rank, n_bytes, repeats) / (2 * repeats), 6)


@wrong("lesson_01.time_message", says="rank 0 sends then receives")
def both_receive(rank, world_size, n_bytes, repeats):
    buffer = torch.zeros(n_bytes, dtype=torch.uint8)
    dist.recv(buffer, 1 - rank)
    return 0.0


@wrong("lesson_01.time_message", says="seconds of one message as a float")
def keeps_the_time(rank, world_size, n_bytes, repeats):
    _timed(rank, n_bytes, repeats)


@wrong("lesson_01.time_message", says="process_time stands still while a rank waits")
def counts_processor_seconds(rank, world_size, n_bytes, repeats):
    start = time.process_time()
    _timed(rank, n_bytes, repeats)
    return (time.process_time() - start) / (2 * repeats)


@wrong("lesson_01.fit_link", says="one big message outweighs")
def plain_least_squares(sizes_bytes, seconds):
    n = len(sizes_bytes)
    mean_x, mean_y = sum(sizes_bytes) / n, sum(seconds) / n
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(sizes_bytes, seconds)) / sum(
        (x - mean_x) ** 2 for x in sizes_bytes
    )
    return mean_y - slope * mean_x, 1 / slope


def _two_points(sizes_bytes, seconds):
    slope = (seconds[-1] - seconds[0]) / (sizes_bytes[-1] - sizes_bytes[0])
    return seconds[0] - slope * sizes_bytes[0], 1 / slope


@wrong("lesson_01.fit_link", says="the time of one byte")
def takes_the_smallest_message_for_latency(sizes_bytes, seconds):
    return seconds[0], _two_points(sizes_bytes, seconds)[1]


@wrong("lesson_01.fit_link", says="rounded")
def rounds_the_latency(sizes_bytes, seconds):
    latency_s, bandwidth_Bps = _two_points(sizes_bytes, seconds)
    return round(latency_s, 6), bandwidth_Bps


@wrong("lesson_01.fit_link", says="swapped")
def swaps_the_two(sizes_bytes, seconds):
    return _two_points(sizes_bytes, seconds)[::-1]


@wrong("lesson_01.fit_link", says="slope; bandwidth is one over it")
def returns_the_slope(sizes_bytes, seconds):
    latency_s, bandwidth_Bps = _two_points(sizes_bytes, seconds)
    return latency_s, 1 / bandwidth_Bps


@wrong("lesson_01.fit_link", says="latency is the line's value at 0 bytes")
def leaves_latency_out(sizes_bytes, seconds):
    return 0.0, sizes_bytes[-1] / seconds[-1]


@wrong("lesson_01.fit_link", says="is a line in the number of bytes|bandwidth_Bps is")
def divides_the_largest(sizes_bytes, seconds):
    return seconds[0] - sizes_bytes[0] / 1e6, sizes_bytes[6] / seconds[6]


@wrong("lesson_01.fit_link", says="return the pair")
def returns_one_number(sizes_bytes, seconds):
    return [_two_points(sizes_bytes, seconds)[0]]


# Answers of strangers: what they were told was another cause, or none.

for _name, _line, _says in [
    ("forgets_the_f", lambda rank, n, name: "Rank {rank}: Hello, {name}!", "the f before the quotation mark"),
    ("tells_the_size", lambda rank, n, name: f"Rank {rank} of {n}: Hello, {name}!", "before the comma differs"),
    ("says_more", lambda rank, n, name: f"start\nRank {rank}: Hello, {name}!", "something else is printed too"),
    (
        "cuts_the_spaces_off",
        lambda rank, n, name: f"Rank {rank}: Hello, {name.strip()}!",
        "only the spaces of the name",
    ),
    (
        "joins_the_name",
        lambda rank, n, name: f"Rank {rank}: Hello, {' '.join(name.split())}!",
        "only the spaces of the",
    ),
    ("breaks_the_line", lambda rank, n, name: f"Rank {rank}:\nHello, {name}!", "the line is broken in two"),
]:
    wrong_values("lesson_01.hello", _name, lambda *given, line=_line: print(line(*given)), says=_says)


@wrong("lesson_01.ping_pong", says="both players return the last value")
def only_rank_zero_returns(rank, world_size, n_rounds):
    ball = _plays(torch.zeros(1), rank, n_rounds)
    return ball if rank == 0 else 0.0


@wrong("lesson_01.relay", says="numbers of other ranks were read")
def passes_on_what_it_read(rank, world_size, numbers, close_ring=False):
    total, end = sum(numbers[: rank + 1]), 0 if close_ring else world_size - 1
    if rank > 0:
        dist.recv(torch.empty_like(total), rank - 1)
    if rank < world_size - 1:
        dist.send(total, rank + 1)
    return total if rank == end else None


@wrong("lesson_01.relay", says="like.numbers.rank.*this rank's own tensor has them, another rank's need not")
def makes_a_buffer_like_rank_zeros(rank, world_size, numbers, close_ring=False):
    total = numbers[rank].clone()
    if rank > 0:
        incoming = torch.empty_like(numbers[0])
        dist.recv(incoming, rank - 1)
        total += incoming
    if rank < world_size - 1:
        dist.send(total, rank + 1)
    return total if rank == world_size - 1 else None


@wrong("lesson_01.relay", says="receive into a tensor of the sender's shape")
def receives_in_float32(rank, world_size, numbers, close_ring=False):
    total = numbers[rank].clone()
    if rank > 0:
        incoming = torch.empty(len(total))
        dist.recv(incoming, rank - 1)
        total += incoming
    if rank < world_size - 1:
        dist.send(total, rank + 1)
    return total if rank == world_size - 1 else None


@wrong("lesson_01.shift_by_parity", says="rounded: a message has 2 bytes")
def sends_halves(rank, world_size, values):
    right, left, mine, theirs = (t.half() if isinstance(t, torch.Tensor) else t for t in _neighbours(
        rank, world_size, values))  # fmt: skip
    calls = [lambda: dist.send(mine, right), lambda: dist.recv(theirs, left)]
    for call in calls if rank % 2 == 0 else calls[::-1]:
        call()
    return theirs.item()


@wrong("lesson_01.shift_by_parity", says="the fraction is gone")
def cuts_the_fraction(rank, world_size, values):
    right, left, mine, theirs = _neighbours(rank, world_size, values)
    calls = [lambda: dist.send(mine, right), lambda: dist.recv(theirs, left)]
    for call in calls if rank % 2 == 0 else calls[::-1]:
        call()
    return int(theirs.item())


@wrong("lesson_01.shift_at_once", says="read before the irecv is done")
def never_waits_for_its_irecv(rank, world_size, values):
    right, left, mine, theirs = _neighbours(rank, world_size, values)
    theirs.fill_(-1)
    dist.irecv(theirs, left)
    dist.send(mine, right)
    return theirs.item()


def _round_trips_s(rank, n_bytes, trips, *, barrier=False):
    buffer = torch.zeros(n_bytes, dtype=torch.uint8)
    start_s = time.perf_counter()
    for _ in range(trips):
        if rank == 0:
            dist.send(buffer, 1)
            dist.recv(buffer, 1)
        else:
            dist.recv(buffer, 0)
            dist.send(buffer, 0)
        if barrier:
            dist.barrier()
    return time.perf_counter() - start_s


for _name, _time, _says in [
    ("one_trip_more", lambda r, n, size, k: _round_trips_s(r, size, k + 1) / (2 * k), "4 round trips were timed"),
    (
        "times_a_barrier",
        lambda r, n, size, k: _round_trips_s(r, size, k, barrier=True) / (2 * k),
        "barrier is timed too",
    ),
    ("messages_a_second", lambda r, n, size, k: 2 * k / _round_trips_s(r, size, k), "upside down"),
    ("returns_it_on_rank_1", lambda r, n, size, k: r * _round_trips_s(r, size, k) / (2 * k), "0 came from rank 0"),
]:
    wrong_values("lesson_01.time_message", _name, _time, says=_says)


@wrong("lesson_01.ping_pong", says="rank 0 adds after it has sent")
def adds_what_came_back(rank, world_size, n_rounds):
    ball = torch.zeros(1)
    for _ in range(n_rounds if rank < 2 else 0):
        if rank == 0:
            dist.send(ball, 1)
            dist.recv(ball, 1)
            ball += 1
        else:
            dist.recv(ball, 0)
            ball += 1
            dist.send(ball, 0)
    return ball.item()


@wrong("lesson_01.shift_at_once", says="nobody's number.*wait.., then read")
def reads_before_it_waits(rank, world_size, values):
    came = torch.full((1,), -1.0, dtype=torch.float64)
    sending = dist.isend(torch.tensor([values[rank]], dtype=torch.float64), (rank + 1) % world_size)
    receiving = dist.irecv(came, (rank - 1) % world_size)
    value = came.item()
    sending.wait()
    receiving.wait()
    return value


@wrong("lesson_01.ping_pong", says="whole numbers; the ball is a float32")
def an_int32_ball(rank, world_size, n_rounds):
    return float(_plays(torch.zeros(1, dtype=torch.int32), rank, n_rounds))


@wrong("lesson_01.ping_pong", says="the second player is rank 1")
def the_last_rank_plays(rank, world_size, n_rounds):
    return _plays(torch.zeros(1), rank, n_rounds, second=world_size - 1)


@wrong("lesson_01.relay", says=r"numbers\[1\] was changed.*recv\(a\) change a")
def receives_into_its_own_number(rank, world_size, numbers, close_ring=False):
    total = numbers[rank]
    if rank > 0:
        dist.recv(total, rank - 1)
        total += numbers[rank]
    if rank < world_size - 1:
        dist.send(total, rank + 1)
    return total if rank == world_size - 1 else None


@wrong("lesson_01.ping_pong", says="read before its irecv is done")
def the_second_player_does_not_wait(rank, world_size, n_rounds):
    return _plays(torch.zeros(1), rank, n_rounds, receive="irecv")


def _open(start, add, receive=dist.recv):
    """One that is not closed."""

    def answer(rank, world_size, numbers, close_ring=False):
        total = start(numbers, rank)
        if rank > 0:
            receive(total, rank - 1)
            add(total, numbers, rank)
        if rank < world_size - 1:
            dist.send(total, rank + 1)
        return total if rank == world_size - 1 else None

    return answer


for _name, _answer, _says in (
    (
        "adds_the_first_of_the_list",
        _open(lambda n, r: n[r].clone(), lambda t, n, r: t.add_(n[0])),
        "of other ranks",
    ),
    ("starts_from_the_last", _open(lambda n, r: n[-1].clone(), lambda t, n, r: t.add_(n[r])), "of other ranks"),
    ("takes_away", _open(lambda n, r: n[r].clone(), lambda t, n, r: t.sub_(n[r])), "a number is taken away"),
    (
        "does_not_wait_for_its_irecv",
        _open(lambda n, r: n[r].clone(), lambda t, n, r: t.add_(n[r]), dist.irecv),
        "read before its irecv is done",
    ),
):
    wrong_values("lesson_01.relay", _name, _answer, says=_says)


@wrong("lesson_01.time_message", says="6 round trips were timed")
def times_two_trips_a_repeat(rank, world_size, n_bytes, repeats):
    return _timed(rank, n_bytes, 2 * repeats) / (2 * repeats)


@wrong("lesson_01.ping_pong", says="rank 1 sends one more than it returns")
def sends_one_more_than_the_ball(rank, world_size, n_rounds):
    ball = torch.zeros(1)
    for _ in range(n_rounds if rank < 2 else 0):
        if rank == 0:
            dist.send(ball + 1, 1)
        dist.recv(ball, 1 - rank)
        if rank == 1:
            dist.send(ball + 1, 0)
    return ball.item()


@wrong("lesson_01.shift_by_parity", says="it passes that on. Receive into a tensor of its own")
def receives_into_what_it_sends(rank, world_size, values):
    x = torch.tensor([values[rank]], dtype=torch.float64)
    calls = [lambda: dist.send(x, (rank + 1) % world_size), lambda: dist.recv(x, (rank - 1) % world_size)]
    for call in calls if rank % 2 == 0 else calls[::-1]:
        call()
    return x.item()


wrong_values(
    "lesson_01.times",
    "a_tensor_of_two",
    {"isend_s": torch.zeros(2), "wait_s": 4.0, "send_s": 6.0},
    says="got a tensor of 2 numbers.*one number is asked for",
)
wrong_values(
    "lesson_01.read_a_hang",
    "a_rank_too_many",
    {r: ("send", r + 1) for r in range(4)},
    says="there is no rank 4, the last is 3",
)


@wrong("lesson_01.time_message", says="one round trip, divided as if it were all of them")
def starts_the_clock_each_time(rank, world_size, n_bytes, repeats):
    for _ in range(repeats):
        start = time.perf_counter()
        _timed(rank, n_bytes, 1)
    return (time.perf_counter() - start) / repeats / 2


def _line(sizes_bytes, seconds, weights):
    w, x, t = (torch.tensor(v, dtype=torch.float64) for v in (weights, sizes_bytes, seconds))
    mean_x, mean_t = (w * x).sum() / w.sum(), (w * t).sum() / w.sum()
    slope = (w * (x - mean_x) * (t - mean_t)).sum() / (w * (x - mean_x) ** 2).sum()
    return (mean_t - slope * mean_x).item(), 1 / slope.item()


@wrong("lesson_01.fit_link", says="meets the small messages and misses the large ones")
def divides_by_the_bytes(sizes_bytes, seconds):
    return _line(sizes_bytes, seconds, [1 / s**2 for s in sizes_bytes])


@wrong("lesson_01.fit_link", says="a latency of 1 and bytes that take no time")
def divides_one_column(sizes_bytes, seconds):
    t = torch.tensor(seconds, dtype=torch.float64)
    ratio = torch.tensor(sizes_bytes, dtype=torch.float64) / t
    latency_s, slope = torch.linalg.lstsq(torch.stack([torch.ones_like(t), ratio], 1), torch.ones_like(t)).solution
    return latency_s.item(), 1 / slope.item()


@wrong("lesson_01.relay", says="shape \\(2, 2\\)|same number of bytes.*sender's shape and dtype")
def receives_as_many_as_there_are_rows(rank, world_size, numbers, close_ring=False):
    total = numbers[rank].clone()
    if rank > 0:
        received = torch.empty(len(total), dtype=total.dtype)
        dist.recv(received, rank - 1)
        total = total + received
    if rank < world_size - 1:
        dist.send(total, rank + 1)
    return total if rank == world_size - 1 else None


@wrong("lesson_01.relay", says="numbers may have any shape, several dimensions or none")
def receives_into_one_row(rank, world_size, numbers, close_ring=False):
    total = numbers[rank].clone()
    if rank > 0:
        received = torch.empty(total.numel(), dtype=total.dtype)
        dist.recv(received, rank - 1)
        total += received
    if rank < world_size - 1:
        dist.send(total, rank + 1)
    return total if rank == world_size - 1 else None


@wrong("lesson_01.shift_by_parity", says="nothing comes back, or no number: return the tensor's item")
def returns_its_tensor(rank, world_size, values):
    mine, theirs = torch.tensor([values[rank]]), torch.empty(1)
    for sends in (True, False) if rank % 2 == 0 else (False, True):
        if sends:
            dist.send(mine, (rank + 1) % world_size)
        else:
            dist.recv(theirs, (rank - 1) % world_size)
    return theirs


@wrong("lesson_01.time_message", says="both ranks send at once.*comes back once it has arrived")
def both_send_at_once(rank, world_size, n_bytes, repeats):
    mine, theirs = torch.zeros(n_bytes, dtype=torch.uint8), torch.zeros(n_bytes, dtype=torch.uint8)
    start = time.perf_counter()
    for _ in range(repeats):
        sending = dist.isend(mine, 1 - rank)
        dist.recv(theirs, 1 - rank)
        sending.wait()
    return (time.perf_counter() - start) / repeats


@wrong("lesson_01.time_message", says="as a float")
def gives_a_tensor_of_seconds(rank, world_size, n_bytes, repeats):
    data = torch.zeros(n_bytes, dtype=torch.uint8)
    start = time.perf_counter()
    for _ in range(repeats):
        for step in (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send):
            step(data, 1 - rank)
    return torch.tensor((time.perf_counter() - start) / repeats / 2, dtype=torch.float64)


@wrong("lesson_01.fit_link", says="two floats are asked for.*tensor.item")
def gives_a_pair_of_tensors(sizes_bytes, seconds):
    t = torch.tensor(seconds, dtype=torch.float64)
    columns = torch.stack([1 / t, torch.tensor(sizes_bytes, dtype=torch.float64) / t], dim=1)
    latency_s, slope = torch.linalg.lstsq(columns, torch.ones(len(t), 1, dtype=torch.float64)).solution
    return latency_s, 1 / slope


wrong_values(
    "lesson_01.read_a_hang",
    "the_rank_comes_first",
    {0: (1, "send"), 1: (2, "send"), 2: (3, "send"), 3: (0, "send")},
    says="the other way round: first the call",
)
wrong_values(
    "lesson_01.read_a_hang",
    "with_the_modules_name",
    {0: ("dist.send", 1), 1: ("dist.send", 2), 2: ("dist.send", 3), 3: ("dist.send", 0)},
    says="written as in the table.*no dist. before it",
)


@wrong("lesson_01.fit_link", says="1e\\+10 B/s.*what the same equations give in float32")
def fits_in_float32(sizes_bytes, seconds):
    t = torch.tensor(seconds)
    columns = torch.stack([1 / t, torch.tensor(sizes_bytes, dtype=torch.float32) / t], dim=1)
    latency_s, slope = torch.linalg.lstsq(columns, torch.ones(len(t), 1)).solution
    return latency_s.item(), 1 / slope.item()


@wrong("lesson_01.fit_link", says="right but for its last digits: a float32 has seven")
def solves_its_equations_in_float32(sizes_bytes, seconds):
    t, d = torch.tensor(seconds), torch.tensor(sizes_bytes, dtype=torch.float32)
    w = 1 / t**2
    left = torch.tensor([[w.sum(), (w * d).sum()], [(w * d).sum(), (w * d * d).sum()]])
    latency_s, slope = torch.linalg.solve(left, torch.tensor([(w * t).sum(), (w * d * t).sum()]))
    return latency_s.item(), 1 / slope.item()


@wrong("lesson_01.shift_at_once", says="rounded: return what item")
def rounds_to_three_digits(rank, world_size, values):
    right, left, mine, theirs = _neighbours(rank, world_size, values)
    sending = dist.isend(mine, right)
    dist.recv(theirs, left)
    sending.wait()
    return round(theirs.item(), 3)


@wrong("lesson_01.shift_by_parity", says="rounded: return what item")
def rounds_to_two_digits(rank, world_size, values):
    right, left, mine, theirs = _neighbours(rank, world_size, values)
    _by_parity(rank, mine, right, theirs, left)
    return round(theirs.item(), 2)


@wrong("lesson_01.shift_at_once", says="or a message has no other half: start one isend")
def sends_it_twice(rank, world_size, values):
    right, left, mine, theirs = _neighbours(rank, world_size, values)
    sending = [dist.isend(mine, right), dist.isend(mine, right)]
    dist.recv(theirs, left)
    for call in sending:
        call.wait()
    return theirs.item()


@wrong("lesson_01.shift_by_parity", says="stands in its first call until a neighbour is done")
def only_the_last_rank_receives_first(rank, world_size, values):
    right, left, mine, theirs = _neighbours(rank, world_size, values)
    _by_parity(int(rank == world_size - 1), mine, right, theirs, left)
    return theirs.item()


@wrong("lesson_01.hello", says="it was printed to stderr|nothing came on standard output")
def says_it_to_stderr(rank, world_size, name):
    print(f"Rank {rank}: Hello, {name}!", file=sys.stderr)


@wrong("lesson_01.hello", says="only spaces differ, there are too many: print puts one")
def puts_commas_between(rank, world_size, name):
    print("Rank", rank, ": Hello,", name, "!")


@wrong("lesson_01.hello", says="only spaces differ: there is one behind Rank")
def leaves_out_a_space(rank, world_size, name):
    print(f"Rank {rank}:Hello, {name}!")


@wrong("lesson_01.hello", says="only capital letters differ: 'rank' stands there, not 'Rank'")
def writes_rank_small(rank, world_size, name):
    print(f"rank {rank}: Hello, {name}!")


@wrong("lesson_01.hello", says="only capital letters differ: the name stays as it came")
def writes_the_name_large(rank, world_size, name):
    print(f"Rank {rank}: Hello, {name.title()}!")


@wrong("lesson_01.ping_pong", says="in 0 rounds nobody adds anything")
def holds_a_one_before_it_plays(rank, world_size, n_rounds):
    ball = torch.ones(1)
    for _ in range(n_rounds if rank < 2 else 0):
        if rank == 0:
            dist.send(ball, 1)
            dist.recv(ball, 1)
        else:
            dist.recv(ball, 0)
        ball += 1
        if rank == 1:
            dist.send(ball, 0)
    return ball.item() - (rank != 1)


@wrong("lesson_01.relay", says="rank 0 sent 1 messages to rank 2")
def all_send_to_the_end(rank, world_size, numbers, close_ring=False):
    end = 0 if close_ring else world_size - 1
    if rank != end:
        return dist.send(numbers[rank], end)
    total = numbers[rank]
    for other in set(range(world_size)) - {end}:
        came = torch.empty_like(total)
        dist.recv(came, other)
        total = total + came
    return total


@wrong("lesson_01.shift_at_once", says="rank 0 receives nothing: the ranks stand in a circle")
def a_row_and_no_circle(rank, world_size, values):
    mine, theirs = torch.tensor([values[rank]]), torch.zeros(1)
    works = [dist.isend(mine, rank + 1)] if rank + 1 < world_size else []
    works += [dist.irecv(theirs, rank - 1)] if rank else []
    for work in works:
        work.wait()
    return theirs.item()


@wrong("lesson_01.shift_by_parity", says="rank 0 receives nothing: the ranks stand in a circle")
def a_row_by_parity(rank, world_size, values):
    mine, theirs = torch.tensor([values[rank]]), torch.zeros(1)
    for sends in (rank % 2 == 0, rank % 2 == 1):
        if sends and rank + 1 < world_size:
            dist.send(mine, rank + 1)
        elif not sends and rank:
            dist.recv(theirs, rank - 1)
    return theirs.item()
