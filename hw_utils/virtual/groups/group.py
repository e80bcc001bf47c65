"""torch.distributed's process group of one virtual rank."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import partial
from types import FunctionType, SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from hw_utils.core.calls.c10d_operations import Front, Kernels
from hw_utils.core.calls.fingerprint import fingerprint, not_all_came, require_alike
from hw_utils.core.calls.mismatch_text import amounts_text, call_text, closed_text, late_text
from hw_utils.core.calls.public_calls import OBJECT_OPS, caller, not_compiled
from hw_utils.core.calls.tensor_layout import TAKE_GAPS, asks_its_class
from hw_utils.core.source.students_files import is_students
from hw_utils.virtual.groups import signatures
from hw_utils.virtual.groups.group_members import Members
from hw_utils.virtual.groups.signatures import Collectives, limit_of
from hw_utils.virtual.ranks import dispatch_modes
from hw_utils.virtual.ranks.profiler import is_profiled, profiled
from hw_utils.virtual.traffic import reductions, several_tensors
from hw_utils.virtual.traffic.collectives import ROOTED, Post
from hw_utils.virtual.traffic.messages.requests import MessageWork
from hw_utils.virtual.traffic.tensor_bytes import address

OF_WORLD = "default_pg"  # how torch describes a default group
_register = torch._C._distributed_c10d._register_process_group
# Whose frames lie between a call and what it does here.
_OWN_FILES = (__file__, signatures.__file__, dispatch_modes.__file__, several_tensors.__file__)


_registered: list[str] = []  # names by which torch's C++ code knows groups of this process


def _forget(name: str) -> None:
    torch._C._distributed_c10d._unregister_process_group(name)
    _registered.remove(name)


def unregister(prefix: str = "") -> None:
    """C++ code forgets the groups whose names begin so."""
    for name in [name for name in _registered if name.startswith(prefix)]:
        _forget(name)


class VirtualGroup(Collectives):
    """One rank's view of a group."""

    create_device = getattr(getattr(c10d, "ProcessGroupGloo", None), "create_device", None)  # its backend is asked

    def __init__(self, members: Members, rank: int, name: str, desc: str = "undefined") -> None:
        place = members.place_of[rank]
        super().__init__(place, len(members.ranks))
        self.members, self.place, self.registered_as = members, place, name
        self.desc = OF_WORLD if members.number == 0 else desc
        self.engine = members.engine
        self.is_registered = False
        self.front: Front | None = None  # takes the calls with tensors whose class decides what becomes of them
        self.shown: dist.ProcessGroup | None = None  # what modes of torch see in its place, see dispatch_modes.py
        self.of_objects: VirtualGroup | None = None  # takes objects, if they have a backend of their own
        self.held: dict = {}  # works that C++ has and nobody has waited for yet
        self.n_compared, self.n_alike = -1, 0  # calls that members have compared, and that were alike; -1: they do not

    def __repr__(self) -> str:
        """As in texts of torch's errors."""
        return f"<torch.distributed.distributed_c10d.ProcessGroup object at {id(self):#x}>"

    def getBackendName(self) -> str:
        return "virtual"  # DDP's logger would ask a "gloo" for its threads

    def name(self) -> str:
        """The backend's, as on real processes."""
        return "gloo"

    def _get_backend_name(self) -> str:
        """The same, for Python."""
        return self.backend.lower()

    @property
    def backend(self) -> str:
        """Whose rules hold: NCCL's where a program has asked for it on virtual devices."""
        if self.engine.lines is None:
            return "Gloo"
        return "NCCL" if "nccl" in c10d._world.pg_backend_config.get(self, "") else "Gloo"

    def _get_backend(self, device) -> VirtualGroup:
        """Itself, for every kind of device: there is none in C++."""
        return self

    def size(self) -> int:
        return len(self.members.ranks)

    def rank(self) -> int:
        return self.place

    getSize, getRank = size, rank

    def boxed(self):
        """As an argument of torch's operations."""
        KERNELS.install()
        return super().boxed()

    @property
    def group_name(self) -> str:
        """The one by which torch's C++ code finds it.

        A program that asks for it itself, as for a key that members share, has a process a rank, and torch's own names.
        """
        if self.engine.ending.may_go_apart and is_students(sys._getframe(1).f_code.co_filename):
            self.engine.ending.need("processes", "the name of a group is the same on all its members")
        if not self.is_registered:  # C++ code looks groups up by name
            self.is_registered = True
            KERNELS.install()
            _register(self.registered_as, self)
            _registered.append(self.registered_as)
        return self.registered_as

    pg_name = group_name

    def be_known(self, yes: bool) -> None:
        """Whether torch's C++ code may find it by its name, which another group may have meanwhile."""
        if not yes and self.is_registered:
            _forget(self.registered_as)
            self.is_registered = False

    @property
    def group_desc(self) -> str:
        return self.desc

    @property
    def bound_device_id(self) -> None:
        return None

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def get_group_store(self):
        return c10d._world.pg_map[self][1]

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.members.limit_s = limit_of(timeout)
        if self.members.is_short:
            self.engine.queues.go_elsewhere(self.engine.rank)  # the short cuts know no limits

    @property
    def options(self) -> SimpleNamespace:
        """What gloo says of itself where it is asked for its timeout."""
        limit_s = self.members.limit_s
        timeout = c10d.default_pg_timeout if limit_s is None else timedelta(seconds=limit_s)
        return SimpleNamespace(_timeout=timeout, global_ranks_in_group=list(self.members.ranks))

    def shutdown(self) -> None: ...
    def abort(self) -> None: ...

    # Point to point: what does not take point_to_point.py's short cut.

    def send(self, tensors, dst: int, tag: int = 0):
        return self._post("send", tensors, dst, tag)

    def recv(self, tensors, src: int, tag: int = 0):
        return self._post("recv", tensors, src, tag)

    def recv_anysource(self, tensors, tag: int = 0):
        return self._post("recv_anysource", tensors, None, tag)

    def _post(self, method: str, tensors, peer: int | None, tag: int):
        engine, me, is_send = self.engine, self.engine.rank, method == "send"
        tensor = tensors[0]
        if not tensor.is_contiguous():
            raise RuntimeError("input tensor has to be contiguous")
        other = -1 if peer is None else self._global_rank(peer)
        if self.members.gave_up and (peer is None or {peer, self.place} & self.members.gave_up):
            raise RuntimeError(closed_text(self.place, self.members.gave_up))
        if other == me:
            raise RuntimeError(
                f"rank {me} sends to itself or receives from itself: {self.backend} connects different ranks only"
            )
        name, site, outer = self._caller(method)
        call = self, is_send, name, tensor, other, tag, site, name in ("send", "recv") and outer is not None, outer
        if is_profiled():
            with profiled(method, tensors):
                request = engine.message(*call)
        else:
            request = engine.message(*call)
        return request if outer is not None else self._hold(MessageWork(request))

    def _global_rank(self, place: int) -> int:
        ranks = self.members.ranks
        if not 0 <= place < len(ranks):
            raise ValueError(f"there is no rank {place} in a group of {len(ranks)}: ranks are 0 to {len(ranks) - 1}")
        return ranks[place]

    def _caller(self, method: str):
        """(the torch.distributed function that was called, the number of the student's line, that call's frame)."""
        frame = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename in _OWN_FILES:
            frame = frame.f_back  # None: of a thread that C++ code has begun
        name, outer, _, _ = caller(frame, method)
        if outer is None and self.engine.carrier.is_shared:
            self.engine.ending.need(
                "threads", "C++ code calls a collective"
            )  # C++ code called: a greenlet cannot leave its frames
        return name, self.engine.places.of(frame), outer

    # Collectives: what signatures.py hands on.

    def _call(
        self, method: str, kind: str, inputs, outputs, n_bytes: int, root: int = 0, reduce_op=None, limit_s=None,
        in_profile=None,
    ):  # fmt: skip
        """in_profile: the tensors whose shapes a profile shows, if they are not the inputs; empty for no range."""
        name, site, outer = self._caller(method)
        if (kind in ROOTED or kind == "reduce") and not 0 <= root < self.size():
            raise RuntimeError(f"ProcessGroup{self.backend}::{method}: invalid root rank: {root}")
        with dispatch_modes.unseen():
            if method in TAKE_GAPS:
                inputs = [t if t.is_contiguous() else t.detach().contiguous() for t in inputs]
            for tensor in inputs:
                reductions.require_carried(tensor, self.backend)
            for tensor in outputs:
                is_put = method in TAKE_GAPS and self.backend == "Gloo"
                reductions.require_carried(tensor, self.backend, is_put=is_put)
        for tensor in (*inputs, *outputs):
            if tensor.device.type == "cpu":  # "meta" has shapes, bytes and times, and no values
                address(tensor, tensor.nbytes)
        if reduce_op is not None:
            reductions.reducer(reduce_op, inputs[0].dtype, self.backend)  # raises if it cannot
        post = Post(name, site, kind, inputs, outputs, root, reduce_op, n_bytes)
        post.limit_s = self.members.limit_s if limit_s is None else limit_s
        group = self.of_objects if self.of_objects is not None and name in OBJECT_OPS else self
        if outer is not None and _is_async(outer):
            engine = self.engine
            text = partial(_text_of_call, engine.rank, name, n_bytes, partial(engine.places.where, site))
            post.watched = engine.in_flight.watch(engine.rank, (*inputs[:1], *outputs[:1]), text)
        with profiled(method, in_profile or inputs) if is_profiled() and in_profile != [] else nullcontext():
            work = self.engine.collective(group, post, outer)
        return work if outer is not None else self._hold(work)

    def compare_calls(self, helper: VirtualGroup | None = None) -> VirtualGroup:
        """Itself: from now on members compare what they call before each collective, for so long as `helper` waits."""
        limit_s = (helper or self).members.limit_s
        if self.n_compared < 0:
            self.n_compared = 0
            for name in SHOWN:
                setattr(self, name, self._after_comparing(name, limit_s))
        return self

    def _after_comparing(self, method: str, limit_s: float | None) -> Callable:
        def call(*arguments, **named):
            if not asks_its_class(arguments):
                name, site, _ = self._caller(method)
                where = self.engine.places.where(site)
                mine = fingerprint(method, (*arguments, *named.values()), number=self.n_alike, where=where)
                nth, self.n_compared = self.n_compared, self.n_compared + 1
                brought = self.engine.groups.exchange(self.members.number, nth, mine, name, site, limit_s)
                if len(brought) < len(self.members.running):
                    places = (self.members.place_of[rank] for rank in self.members.running)
                    late = [place for place in places if place not in brought]
                    raise not_all_came(mine, late_text(self.place, late, limit_s, names_all=True))
                require_alike(self.place, brought)
                self.n_alike += 1
            return getattr(type(self), method)(self, *arguments, **named)

        return not_compiled(call)

    def _set_sequence_number_for_group(self) -> None:
        """Torch's own groups agree on one: ours begin with 0."""

    def _hold(self, work):
        """C++ of torch 2.6 keeps no Python object alive, and would wait for ever."""
        for one in [one for one, its in self.held.items() if its.was_waited_for]:
            del self.held[one]
        self.held[id(work)], work.held_in = work, self.held
        return work

    def ask_classes(self, name: str, arguments: tuple, named: dict):
        """A call with a tensor that may have no memory, as torch's own groups make it: its class is asked."""
        KERNELS.install()
        self.front = self.front or Front(self)
        return getattr(self.front, name)(*arguments, **named)


def _text_of_call(rank: int, name: str, n_bytes: int, where: Callable[[], str], tensor: torch.Tensor) -> str:
    of = amounts_text([(tensor.numel(), str(tensor.dtype).removeprefix("torch."))], n_bytes)
    return call_text(rank, name, of, where=where())


def _is_async(outer) -> bool:
    """Whether torch.distributed's function, which `outer` may only lead to, is to give back a work."""
    frame = sys._getframe(2)
    while "async_op" not in frame.f_code.co_varnames:
        if frame is outer:
            return False
        frame = frame.f_back
    return bool(frame.f_locals.get("async_op"))


SHOWN = (
    "allreduce", "allreduce_coalesced", "reduce", "broadcast", "allgather", "allgather_coalesced", "_allgather_base",
    "all_gather_single", "allgather_into_tensor_coalesced", "all_gather_single_coalesced", "gather", "scatter",
    "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_tensor_coalesced",
    "reduce_scatter_single_coalesced", "alltoall", "alltoall_base", "all_to_all_single", "barrier",
)  # fmt: skip


def _asking(name: str, method: Callable) -> Callable:
    def call(self, *arguments, **named):
        if asks_its_class(arguments):
            return self.ask_classes(name, arguments, named)
        return method(self, *arguments, **named)

    return call


for _name in [*SHOWN[:-1], "send", "recv", "recv_anysource"]:
    setattr(VirtualGroup, _name, _asking(_name, getattr(VirtualGroup, _name)))

for _method in {**vars(Collectives), **vars(VirtualGroup)}.values():
    if isinstance(_method, FunctionType):
        not_compiled(_method)

KERNELS = Kernels(VirtualGroup)  # in place while a run has groups that C++ code can find


def shown_to_modes() -> AbstractContextManager:
    """While a simulation runs, a program's dispatch modes see its collectives."""
    return dispatch_modes.shown(VirtualGroup, SHOWN)
