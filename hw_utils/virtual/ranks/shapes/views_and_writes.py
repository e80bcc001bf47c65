"""What an operation does to its tensors, as its schema says: makes new ones, views old ones, writes, reads numbers."""

from __future__ import annotations

from enum import Enum, auto

import torch
from torch._ops import OpOverload


class Rule(Enum):
    AS_IT_IS = auto()  # it looks at no element: views, sizes, storages
    UNINITIALISED = auto()  # new tensors whose elements are whatever was there
    COMPUTED = auto()  # new tensors
    WRITTEN = auto()  # into its own arguments
    CHECKED = auto()  # raises for some elements, and gives nothing
    READ = auto()  # the result's shape or Python value depends on elements
    COMMUNICATED = auto()  # a process group is asked
    TAKEN_APART = auto()  # not torch's own: what it calls is


_Tag = torch.Tag
_READS = (_Tag.data_dependent_output, _Tag.dynamic_output_shape)
_FACTORIES = frozenset({"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "empty_permuted"})
_VIEWS = frozenset({"_unsafe_view", "unsafe_split", "unsafe_split_with_sizes"})  # though their schemas do not say so
_STORAGES = frozenset({"set_", "resize_", "resize_as_"})
# Their elements do not depend on those of the tensor that they are like.
LIKE = frozenset({"zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"})
OVERWRITES = frozenset({"copy_", "fill_", "zero_", "_foreach_copy_", "_foreach_zero_"})
# Write to running means and variances, though their schemas do not say so: at these places.
ALSO_WRITTEN = {"native_batch_norm": (3, 4)}


def rule_of(func) -> Rule:
    """The rule of an operation of torch's dispatcher."""
    schema, name = func._schema, func._opname
    if func.namespace == "c10d":
        return Rule.COMMUNICATED
    if func.namespace != "aten":
        with_tensors = any("Tensor" in str(argument.type) for argument in schema.arguments)
        return Rule.TAKEN_APART if with_tensors and type(func) is OpOverload else Rule.AS_IT_IS
    if name in _FACTORIES and not schema.is_mutable:
        return Rule.UNINITIALISED
    if any(tag in func.tags for tag in _READS) and not schema.is_mutable:
        return Rule.READ
    if name in _VIEWS or name in _STORAGES or _Tag.inplace_view in func.tags:
        return Rule.AS_IT_IS
    if schema.is_mutable:
        return Rule.WRITTEN
    if not schema.returns:
        return Rule.CHECKED
    if not any("Tensor" in str(value.type) for value in schema.returns):
        return Rule.AS_IT_IS
    is_view = any(value.alias_info is not None for value in schema.returns)
    return Rule.AS_IT_IS if is_view else Rule.COMPUTED


def written_by(func) -> tuple[tuple[int, str], ...]:
    """(place, name) of each argument that an operation writes to."""
    return tuple(
        (i, argument.name)
        for i, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def returned_by(func) -> tuple[tuple[int, str] | None, ...]:
    """For each value that an operation returns the (place, name) of the argument that it is; None is a new tensor."""
    names = {
        alias: (i, argument.name)
        for i, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None
        for alias in argument.alias_info.before_set
    }
    aliases = [value.alias_info for value in func._schema.returns]
    return tuple(None if alias is None else names[next(iter(alias.before_set))] for alias in aliases)


# Where torch's kernels for the CPU give something else than torch's rules for shapes say.

# Their single number lies in a storage that had room for one a pair of elements.
_REDUCED_IN_PLACE = frozenset({"mse_loss", "smooth_l1_loss", "soft_margin_loss", "binary_cross_entropy"})
# Their statistics have the dtype of the weights, at this place.
_NORMS = {"native_layer_norm": 2, "native_batch_norm": 1, "_native_batch_norm_legit": 1, "_batch_norm_with_update": 1}
_ARE_TRAINED = {"native_batch_norm": 5, "_native_batch_norm_legit": 5}  # the place of `training`: else there are none


def corrected(func, args: tuple, result):
    """What an operation gives on the device "meta", as it is on the CPU."""
    name = func._opname
    if name in _REDUCED_IN_PLACE and result.dim() == 0:
        n_elements = torch.broadcast_shapes(args[0].shape, args[1].shape).numel()
        return result.new_empty(n_elements).resize_(())
    if name in _NORMS:
        weight = args[_NORMS[name]]
        dtype, (out, *statistics), more = (args[0] if weight is None else weight).dtype, result[:3], result[3:]
        if name in _ARE_TRAINED and not args[_ARE_TRAINED[name]]:
            statistics = [statistic.new_empty(0) for statistic in statistics]
        return out, *(statistic.to(dtype) for statistic in statistics), *more
    return result
