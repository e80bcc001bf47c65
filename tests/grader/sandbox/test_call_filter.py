"""The filter of system calls is one program that says what its parts say, whichever call with whichever arguments."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hw_grader.sandbox import call_filter

MACHINES = sorted(call_filter._DENIED)
ARGUMENTS = (0, 1, 2, 7, 8, 16, 20, 33, 38, 0x21, 0x80, 0x88, 0x400, 0x10000, 0x10100, 0x10400, 0x10000000, 0xFFFFFFFF)


def verdict(program: list[bytes], arch: int, number: int, arguments: tuple[int, ...]) -> int:
    """What a classic BPF machine gives for a call: https://www.kernel.org/doc/html/latest/networking/filter.html."""
    data = struct.pack("<IIQ6Q", number, arch, 0, *arguments)
    at = register = 0
    while True:
        code, if_true, if_false, k = struct.unpack("HBBI", program[at])
        at += 1
        if code == call_filter._GIVE:
            return k
        if code == call_filter._LOAD:
            register = struct.unpack_from("<I", data, k)[0]
        elif code == call_filter._AND:
            register &= k
        else:
            holds = {
                call_filter._EQUAL: register == k,
                call_filter._AT_LEAST: register >= k,
                call_filter._ANY_BIT: register & k != 0,
            }[code]
            at += if_true if holds else if_false


def one_by_one(machine: str, families: tuple[int, ...], *call) -> int:
    """What the first part says that does not allow it."""
    said = (verdict(part, *call) for part in call_filter._programs(machine, families))
    return next((one for one in said if one != call_filter._ALLOW), call_filter._ALLOW)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("families", [call_filter.FAMILIES, call_filter.ONLY_FILES])
@given(st.data())
def test_one_program_says_what_its_parts_say(machine, families, data):
    arch, denied, clone = call_filter._DENIED[machine]
    named = [*call_filter._NUMBERS[machine].values(), *denied.values(), clone, 435, 436, 0, 500, 0x40000001]
    number = data.draw(st.sampled_from(named) | st.integers(0, 600))
    arguments = data.draw(st.tuples(*[st.sampled_from(ARGUMENTS) | st.integers(0, 2**64 - 1)] * 6))
    call = (data.draw(st.sampled_from([arch, arch, arch, 3])), number, arguments)
    whole = call_filter._in_turn(*call_filter._programs(machine, families))
    assert verdict(whole, *call) == one_by_one(machine, families, *call)


@pytest.mark.parametrize("machine", MACHINES)
def test_what_each_part_refuses_is_refused(machine):
    whole = call_filter._in_turn(*call_filter._programs(machine, call_filter.FAMILIES))
    arch, denied, clone = call_filter._DENIED[machine]
    numbers = call_filter._NUMBERS[machine]

    def refuses(number: int, *arguments: int, arch: int = arch) -> bool:
        return verdict(whole, arch, number, (*arguments, *[0] * (6 - len(arguments)))) != call_filter._ALLOW

    assert all(refuses(number) for number in denied.values())
    assert all(refuses(number) for number in call_filter._DENIED_EVERYWHERE.values())
    assert refuses(0, arch=3)  # 32 bits
    assert refuses(numbers["socket"], 40)
    assert not refuses(numbers["socket"], 1)
    assert refuses(numbers["mmap"], 0, 4096, 3, 0x21)
    assert not refuses(numbers["mmap"], 0, 4096, 3, 0x22)
    assert refuses(clone, 0x10000000 | 17)
    assert refuses(clone, 0x10000)
    assert not refuses(clone, 0x10400)
    assert refuses(435)
    for numbered, bits in itertools.product([numbers["preadv2"]], [0x8, 0x80, 0x88]):
        assert refuses(numbered, 0, 0, 0, 0, 0, bits)


def test_a_program_that_ends_otherwise_is_not_taken_in():
    with pytest.raises(AssertionError):
        call_filter._in_turn([call_filter._op(call_filter._GIVE, 0)])
