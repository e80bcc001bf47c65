"""How an operation on DTensors is sharded, worked out once for all ranks.

torch keeps what it works out about an operation (`OutputSharding`: how each result is sharded, which arguments must be
redistributed first) in tables whose keys hold the rank's own `DeviceMesh`. Ranks of one process would each fill a
table: FSDP2's optimizer step on 64 ranks spends two thirds of its time there. The answer is the same for every rank of
equal meshes, because each rank must decide alike; only the mesh object in it is the rank's own. Left to torch are

- operations whose arguments are sizes: the answer has this rank's local sizes (`op_to_shape_and_stride_idx`),
- placements with a state of their own, as the mask of a sharded embedding,
- arguments on two meshes, and arguments of other types than those of `_PLAIN`.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_PLAIN = (int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_A_RANKS_OWN = ("mesh", "_hash")  # of a DTensorSpec; the rest is the same on every rank
_DTENSOR = "torch.distributed.tensor._api"


_attempts = itertools.count()  # to run something in this process


class _NotAlike(Exception):
    """This operation is left to torch."""


@contextmanager
def meshes_of_their_own(engine) -> Iterator[None]:
    """Two ranks' meshes are not equal, nor are those of two attempts: torch keeps what it finds for one in tables."""
    from torch.distributed.device_mesh import DeviceMesh

    original, attempt = DeviceMesh.__init__, next(_attempts)

    def make(self, *arguments, **options) -> None:
        original(self, *arguments, **options)
        self._thread_id, self._hash = (attempt, engine.rank), None
        share_shardings()

    with _worked_out_once() as share_shardings:
        DeviceMesh.__init__ = make
        try:
            yield
        finally:
            DeviceMesh.__init__ = original


@contextmanager
def _worked_out_once() -> Iterator[Callable[[], None]]:
    """A function that makes torch's table of shardings one for all ranks, once torch has loaded it."""
    shared: list[_Shardings] = []

    def share() -> None:
        if not shared and _DTENSOR in sys.modules:
            shared.append(_Shardings(sys.modules[_DTENSOR].DTensor._op_dispatcher.sharding_propagator))

    try:
        yield share
    finally:
        for shardings in shared:
            shardings.give_back()


class _Shardings:
    """One table for all ranks, which torch's `ShardingPropagator` asks first."""

    def __init__(self, propagator) -> None:
        from torch.distributed.tensor._dtensor_spec import DTensorSpec
        from torch.distributed.tensor._op_schema import OpSchema, OutputSharding
        from torch.distributed.tensor.placement_types import Partial, Replicate, Shard

        self.Spec, self.moves, self.plain = DTensorSpec, (OutputSharding, OpSchema), (Shard, Replicate, Partial)
        self.propagator, self.known = propagator, {}
        self.works_out, self.before = propagator.propagate_op_sharding_non_cached, propagator.propagate_op_sharding
        propagator.propagate_op_sharding_non_cached = self.propagate
        propagator.propagate_op_sharding = type(self.before)(self.propagate)  # torch's table a thread, in front of ours

    def give_back(self) -> None:
        del self.propagator.propagate_op_sharding_non_cached
        self.propagator.propagate_op_sharding = self.before

    def propagate(self, schema):
        """The OutputSharding of the operation `schema`, an OpSchema, on this rank's mesh."""
        try:
            mesh, key = self._mesh_and_key(schema)
        except _NotAlike:
            return self.works_out(schema)
        if key in self.known:
            its_mesh, sharding = self.known[key]
            return sharding if its_mesh is mesh else self._moved(sharding, mesh)
        sharding = self.works_out(schema)
        if self._is_on(sharding, mesh):
            self.known[key] = mesh, sharding
        return sharding

    def _mesh_and_key(self, schema) -> tuple[Any, tuple]:
        """The one mesh of the arguments, and what every rank with such a mesh says of this operation."""
        if schema.op in self.propagator.op_to_shape_and_stride_idx:
            raise _NotAlike
        meshes: list = []
        arguments = self._key((schema.args_schema, schema.kwargs_schema), meshes)
        if not meshes or any(mesh is not meshes[0] for mesh in meshes):
            raise _NotAlike
        return meshes[0], (schema.op, arguments, _layout(meshes[0]), torch.get_default_dtype())

    def _key(self, value: Any, meshes: list) -> Any:
        if isinstance(value, _PLAIN):
            return type(value), value  # 1, 1.0 and True are equal, and not the same argument
        if isinstance(value, (tuple, list)):
            return type(value), tuple(self._key(item, meshes) for item in value)
        if isinstance(value, dict):
            return tuple((name, self._key(item, meshes)) for name, item in value.items())
        if isinstance(value, self.Spec):
            meshes.append(value.mesh)
            of_all = {name: part for name, part in vars(value).items() if name not in _A_RANKS_OWN}
            return self._key(of_all, meshes)
        if type(value) in self.plain:
            return value
        raise _NotAlike

    def _is_on(self, sharding, mesh) -> bool:
        """Whether `mesh` is the only one in `sharding`, which can then be moved to another rank's."""
        schema, meshes = sharding.redistribute_schema, []
        try:
            self._key(sharding.output_spec, meshes)
            if schema is not None:
                self._key((schema.args_schema, schema.kwargs_schema), meshes)
        except _NotAlike:
            return False
        return all(other is mesh for other in meshes)

    def _moved(self, value: Any, mesh) -> Any:
        """`value`, an OutputSharding or a part of one, on `mesh`."""
        if isinstance(value, self.Spec):
            spec = copy.copy(value)
            spec.mesh, spec._hash = mesh, None
            return spec
        if isinstance(value, self.moves):
            parts = ("output_spec", "redistribute_schema", "args_schema", "kwargs_schema")
            has = [part for part in parts if hasattr(value, part)]
            return dataclasses.replace(value, **{part: self._moved(getattr(value, part), mesh) for part in has})
        if type(value) in (tuple, list):
            return type(value)(self._moved(item, mesh) for item in value)
        if type(value) is dict:
            return {name: self._moved(item, mesh) for name, item in value.items()}
        return value


def _layout(mesh) -> tuple:
    return mesh.device_type, tuple(mesh.mesh.shape), tuple(mesh.mesh.flatten().tolist()), mesh.mesh_dim_names
