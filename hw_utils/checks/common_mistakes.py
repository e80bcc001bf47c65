"""Slips that happen in every lesson: a right number in another dress, and what an exception of Python's or torch's is.

A check names its own known mistakes first; these are asked where it has none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from hw_utils.core.errors import CheckFailed

_FACTORS = (
    (1e3, "it is 1,000 times the right number: mind the unit, milli or kilo."),
    (1e-3, "it is a thousandth of the right number: mind the unit, milli or kilo."),
    (1e6, "it is a million times the right number: mind the unit, micro or mega."),
    (1e-6, "it is a millionth of the right number: mind the unit, micro or mega."),
    (1e9, "it is 10**9 times the right number: mind the unit, nanoseconds or gigabytes."),
    (100.0, "it is 100 times the right number: a percentage? 1 means 100 %."),
    (8.0, "it is 8 times the right number: bits for bytes, or 8 bytes a number counted again?"),
    (0.125, "it is an eighth of the right number: bits for bytes, or numbers for bytes?"),
    (4.0, "it is 4 times the right number: are bytes taken for numbers of 4 bytes each?"),
    (0.25, "it is a quarter of the right number: are numbers of 4 bytes counted instead of bytes?"),
    (2.0, "it is twice the right number: something is counted twice, or both ways."),
    (0.5, "it is half the right number: something is counted once that happens twice."),
    (-1.0, "right but for its sign: what is taken from what?"),
)


_LAZY = {"generator", "map", "filter", "zip", "range", "enumerate", "reversed", "dict_values", "dict_keys", "set"}


def came(value: Any) -> str:
    """What an answer gave, as plain data, in words.

    >>> came({"unknown": "generator"}), came([1, 2]), came(np.zeros(3))
    ('a generator', '[1, 2]', 'a tensor of 3 numbers')
    """
    if isinstance(value, dict) and "unknown" in value:
        kind = str(value["unknown"])
        article = "" if kind.startswith("one ") else "an " if kind[:1].lower() in tuple("aeiou") else "a "
        return article + kind
    if isinstance(value, np.ndarray):
        return f"a tensor of {value.size} numbers" if value.size != 1 else f"a tensor of one number, {value.item()!r}"
    text = repr(value)
    return text if len(text) < 80 else text[:77] + "..."


def no_list(value: Any, asked: str) -> str:
    """The cause where a list was asked for: what it is a list of, and what makes one of what came."""
    if isinstance(value, dict) and value.get("unknown") in _LAZY:
        return f"list(...) makes a list of {came(value)}: return {asked}."
    if value is None:
        return f"nothing comes back: is there a return? It gives {asked}."
    return f"return {asked}."


def something(returned: Any, who: str) -> Any:
    """What an answer returned, to go through; raises CheckFailed if that is nothing."""
    if returned is None:
        raise CheckFailed(f"{who} returned None.", cause="nothing comes back: is there a return?")
    return returned


def slip(got: Any, expected: float) -> str:
    """How a wrong answer follows from the right number: its kind, a unit, a rounding; "" if nothing is known.

    >>> slip("0.5", 0.5)
    'that is text: return the number itself.'
    >>> slip(0.333, 1 / 3)
    'right but rounded: leave the number as it is.'
    """
    kinds = {str: "text", bool: "True or False", list: "a list or a tuple", dict: "a dictionary"}
    if got is None:
        return "nothing comes back: is there a return?"
    if isinstance(got, dict) and "unknown" in got:
        return f"that is {came(got)}: return the number itself, an int or a float."
    if type(got) in kinds:
        return f"that is {kinds[type(got)]}: return the number itself."
    if isinstance(got, np.ndarray) and got.size != 1:
        return f"that is {came(got)}: one number is asked."
    if isinstance(got, np.ndarray):
        is_right = math.isclose(got.item(), expected, rel_tol=1e-5)
        return "that is a tensor: return its number, .item()." if is_right else slip(got.item(), expected)
    if type(got) not in (int, float):
        return ""
    if math.isnan(got) or math.isinf(got):
        return f"{got} is no result: is something divided by zero, or never filled in?"
    whole = float(expected).is_integer()
    if not whole and got in (math.floor(expected), math.ceil(expected)):
        return "right but for its fraction: / and not //, and nothing rounded."
    if math.isclose(got, expected, rel_tol=0.02) and any(got == round(expected, n) for n in range(1, 13)):
        return "right but rounded: leave the number as it is."
    if expected and math.isclose(got, expected, rel_tol=1e-6):
        return (
            "it loses its last digits on the way: a float32 has seven (a tensor divided by a number is one), Python's "
            "numbers have sixteen. Divide those, tensor.item(), and add nothing small."
        )
    for factor, text in _FACTORS:
        if expected and math.isclose(got, factor * expected, rel_tol=1e-6):
            return text
    if expected and got and math.isclose(got, 1 / expected, rel_tol=1e-6):
        return "that is upside down: one over the right number."
    if whole and abs(got - expected) == 1:
        return f"one too {'many' if got > expected else 'few'}: try the smallest case by hand."
    return ""


# What an exception says -> what it comes from, in the words of the course.
_ERRORS = {
    r"still busy after.*while .*(?:perf_counter|monotonic|time)\(": "a loop looks at the clock until it is late "
    "enough, but where computing is free only time.sleep takes time.",
    r"still busy after": "its line is never left: a loop whose end never comes (print what its condition looks at), or "
    "one call that takes so long.",
    r"called sys\.exit": "return ends the function; exit() and SystemExit end the rank itself.",
    r"Expected parameter .tensor. of type torch\.Tensor\s+but got <class 'int'>": "recv and irecv fill the tensor that "
    "they are given; what recv gives back is the sender's rank: go on with the tensor.",
    r"Expected parameter .tensor. of type torch\.Tensor\s+but got <class 'float'>": "a tensor is sent, no number: "
    "torch.tensor([number]), if that number is what the other rank needs.",
    r"Default process group has not been initialized": "that call asks the process group how many ranks there are, and "
    "outside a run there is none: hand it world_size and rank yourself.",
    r"gather_list|scatter_list": "rank 0 is the root: it alone passes the list, and every rank asks dist.get_rank() "
    "whether it is the root.",
    r"can't be cast to the desired output type (?:Long|Int|Short|Char|Byte)": "a tensor of whole numbers is divided in "
    "place: a mean needs floats (a counter among a model's buffers has no mean).",
    r"floor_divide": "// rounds down, so nothing goes back through it: divide with /.",
    r"the slot of layer \d+ takes": "the last shard is padded: without what stands behind n_elements the vector fits.",
    r"does not hold micro-batch": "a backward pass comes before its own forward pass, or has another's number: what "
    "went forward first comes back first.",
    r"Mismatch in shape: grad_output": "the gradient meets the output of another forward pass: print the number of the "
    "micro-batch beside both shapes.",
    r"NoneType": "something is None there: what works in place returns nothing, a function may lack its return, "
    "a .grad may not be there yet.",
    r"index out of range|out of bounds for dimension": "an index goes past the end: count from 0, to one less than the "
    "length.",
    r"the store has no": "nobody has written under that name: print what both functions make of it, and mind that what "
    "is noted beside the shards keeps whole numbers as they are, large ones too.",
    r"has elements 0 to": "what is read lies in that shard alone, and is counted from its beginning; its length "
    "depends on how many ranks have saved, not on how many load. Where it was cut when it was written: a zero may be a "
    "number like any other, and n_elements alone says what is padding.",
    r"cannot pickle '(?:generator|map|filter|zip|dict_values|dict_keys)": "what a function gives back crosses to this "
    "process: a generator (yield, or for in parentheses), map or zip has its values only when asked, so return "
    "list(...) of it, or the tensor itself.",
    r"non-empty list": "there is nothing to join: for some ranks the list is empty, because no part falls to them.",
    r"^.*?KeyError": "a dictionary has no such key: print its keys just before; where one may be missing, "
    ".get(key, what then).",
    r"0-dim tensor|zero-dimensional tensor": "a tensor may be one number, without dimensions: it has no [:] and joins "
    "no others. flatten() gives it one, and copy_ writes into it.",
    r"view size is not compatible": "the tensor's elements do not lie side by side in memory: work on "
    "tensor.contiguous(), and copy the result back into the tensor at the end.",
    r"shape '\[[^\]]*-1[^\]]*\]' is invalid": "that number does not divide the length: tensor_split cuts any length.",
    r"ZeroDivisionError|division by zero": "something is divided by 0: try one rank, or nothing left over.",
    r"split_with_sizes|split_sizes": "the pieces' sizes do not add up to the length of what is cut.",
    r"must match the (?:existing )?size|must have one shape|shape mismatch|shape '\[.*?\]' is invalid|must be the same "
    r"as|same number of elements": "two tensors of different shapes meet: print both shapes just before.",
    r"cannot be multiplied|size mismatch": "rows and columns do not fit: print both shapes just before the product.",
    r"grad_dtype|same dtype|different dtypes|expected (?:scalar type|m1)|found dtype|can't be cast": "two "
    "dtypes meet: make the new tensor with the dtype of the one that it goes with (torch.zeros_like, .to(x.dtype)).",
    r"leaf Variable that requires grad|leaf variable": "weights are changed in place outside torch.no_grad(): "
    "autograd forbids that.",
    r"does not require grad": "there is nothing to go back through: the loss was made without the model's weights, or "
    "under no_grad.",
    r"second time": "backward runs twice through one graph: make a new forward pass before each backward.",
    r"assign a gradient of size|assigned grad has data": "a gradient has the shape of its parameter: view_as(p).",
    r"modified by an inplace operation": "a tensor that backward needs was changed in place after the forward pass.",
    r"positional arguments? but|unexpected keyword|missing \d+ required|got multiple values|"
    r"takes \w+ (?:\w+ )?argument": "the arguments of a call are not those of the function: compare them "
    "with its signature.",
    r"NameError|UnboundLocalError|is not defined": "a name is used that has no value there: is it misspelt, or set on "
    "some ranks only?",
    r"has no attribute": "the object has no such attribute: is it of the type that you think? Print type() of it.",
    r"must have the same (?:number of bytes|dtype)": "the two ends of a message differ: receive into a tensor of the "
    "sender's shape and dtype (torch.empty_like), in the order in which it sends.",
    r"between isend and wait": "another tensor is needed to receive into: the one under way is not yours until wait().",
    r"between the call and its wait": "it was written to while it was under way: after async_op=True a tensor is not "
    "yours until wait(): no p.grad, and no buffer that is used again.",
    r"was given rank .* on rank": "every rank passes its own rank: whatever is made for a rank has that one in it.",
    r"with (\([^)]*\)) of (\w+) while rank \d+ calls [^\n]*? with \1 of (?!\2\b)": "ranks bring different dtypes: make "
    "the new tensor with the dtype of the one that it goes with (torch.zeros_like, x.new_zeros).",
    r"rank 0 calls .* while rank \d+ calls": "all ranks make the same calls in one order, with one group_id for each "
    "place in the code and tensors of one shape.",
    r"rank should not be the same|to itself": "a rank sends to itself: print rank beside whom it sends to; with "
    "one rank there is nobody.",
    r"there is no rank": "a neighbour that does not exist: ranks are 0 to world_size - 1. In a ring they are "
    "counted modulo world_size.",
    r"with root (\d+)\b[^\n]* but rank \d+ calls [^\n]*? with root (?!\1\b)": "one rank is the root of "
    "a call, the same for all: each rank's own number in that place makes every rank a root.",
    r"same collective calls in one order": "ranks make different calls, or in another order: a collective is called by "
    "all ranks alike, so under no `if rank`.",
    r"interpreted as an integer|indices must be integers": "a float stands where a whole number is needed: a tensor of "
    "floats gives floats, and so does a division with /.",
    r"Invalid rank \d+, rank should be in the interval": "a rank and the number of ranks have changed places, or ranks "
    "are counted from 1: name what you hand on (num_replicas=world_size, rank=rank).",
    r"maximum recursion": "the function calls itself for ever.",
    r"'Interface' object is not callable": "a layer here is no torch module: call its methods, layer.forward(x).",
    r"StopIteration": "next() finds nothing more: a for loop ends by itself where the last one was.",
    r"not callable": "something is called that is no function: are there parentheses too many?",
    r"only one element tensors|a Tensor with \d+ elements": "one number is expected there and a whole tensor came: sum "
    "or index it first.",
    r"unsupported operand|can't convert|must be Tensor|expected Tensor": "a value of the wrong type stands there: "
    "print type() of both sides.",
}


def cause_of_error(text: str, own: Mapping[str, str] | None = None) -> str:
    """What an exception's message comes from, as a cause; "" if it is none that everybody meets.

    own: an exercise's own words, by what the message says; they come first.
    """
    known = (*(own or {}).items(), *_ERRORS.items())
    return next((cause for says, cause in known if re.search(says, text, re.S)), "")
