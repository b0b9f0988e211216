"""Turns axis sizes into process groups: a `RankMesh` names axes over the ranks, a `Group` is the
ranks that differ along some of them.

Communication itself is in collectives.py; who starts the ranks is in launcher.py. A mesh can be
written down before the ranks are connected; its groups are bound when they are first asked for. The
microbatches of a step are an axis too, in time: it counts in indexes and sizes, and nothing is ever
sent over it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from shardlang.runtime.comm.allocator import keep_freed_memory
from shardlang.runtime.device import HOST, KINDS, Cpu, kind_of
from shardlang.runtime.untraced import as_it_is


class World:
    """This process among all: `rank` of `size`, its `device`, the microbatch that it works on now,
    and the process groups made so far by their sorted ranks. marked: that microbatch as a tensor,
    for what is compiled, which is not to be compiled anew for each. parting: what else is to be
    given up with the groups."""

    def __init__(self) -> None:
        self.rank = 0
        self.size = 1
        self.microbatch = 0
        self.marked = torch.tensor(0)
        self._marks: dict[int, Tensor] = {}
        self.device = HOST
        self.store: dist.Store | None = None
        # The process group of the user's that was joined, and how often one was.
        self.joined: Any = None
        self._joins = 0
        self.handles: dict[str, tuple[Cpu, Any]] = {}
        self._made_so_far: Counter[str] = Counter()
        self._by_ranks: dict[tuple[tuple[int, ...], str], Any] = {}
        self.parting: list[Callable[[], None]] = []

    def mark_microbatch(self) -> None:
        """Sets `marked` to the microbatch of this moment: a tensor of its own for each, since
        backward may read it later."""
        if self.microbatch not in self._marks:
            self._marks[self.microbatch] = torch.tensor(self.microbatch, device=self.device)
        self.marked = self._marks[self.microbatch]

    def handle(self, ranks: tuple[int, ...], device: str) -> Any:
        """The process group of `ranks` for tensors on a kind of device, made at first use by its
        members alone; torch orders its members by rank."""
        if (ranks, device) not in self._by_ranks:
            members = sorted(ranks)
            if len(members) == self.size and device == self.device.type and self.joined is None:
                self._by_ranks[ranks, device] = KINDS[device].everyone()
            else:
                self._by_ranks[ranks, device] = self._made(members, "-".join(map(str, members)), device)
        return self._by_ranks[ranks, device]

    def channel(self, source: int, target: int) -> tuple[Any, int]:
        """The process group for messages between two ranks, one of them this, and a number."""
        other = target if source == self.rank else source
        if kind_of(self.device).tags:
            return self.handle(everyone().ranks, self.device.type), other
        return self._made(sorted((source, target)), f"{source}>{target}", self.device.type), int(other > self.rank)

    @contextmanager
    def lent(self, source: int, target: int) -> Iterator[None]:
        """A channel between two ranks that is made meanwhile is given up at the end, for a device
        keeps memory for each. Both ranks enter."""
        name = f"{source}>{target} {self.device.type}"
        before = name in self.handles
        yield
        if name in self.handles and not before:
            kind, handle = self.handles.pop(name)
            kind.between(kind.moment(), kind.moment())  # all that was sent is there
            kind.leave(handle)

    def open(self, groups: Iterable[Group], channels: Iterable[tuple[int, int]] = (), host: bool = False) -> None:
        """Makes what this rank will use, before it does: in the middle of a step a rank that makes
        a group could wait for one that waits for its message. All ranks go in one order. host:
        groups are for the host's tensors too."""
        kinds = dict.fromkeys([self.device.type, *(["cpu"] if host else [])])
        for ranks in sorted({group.ranks for group in groups if group.size > 1}, key=sorted):
            for kind in kinds:
                self.handle(ranks, kind)
        for source, target in sorted(channels):
            handle, number = self.channel(source, target)
            # NCCL connects two ranks in their first message, and both hosts wait there: in a step
            # perhaps for a device that expects a message which the other host would send next.
            if not kind_of(self.device).tags:
                begin = handle.send if source == self.rank else handle.recv
                begin([torch.zeros(1, device=self.device)], number, 0).wait()

    def _made(self, members: list[int], name: str, device: str) -> Any:
        """A process group under a name of its own.

        torch.distributed.new_group would name it by how many groups this process has, and members
        that are in different numbers of groups, as those of pipeline stages are, would wait for
        each other for ever."""
        name = f"{name} {device}"
        if name not in self.handles:
            # One that is made again finds nothing of the earlier one in the store.
            self._made_so_far[name] += 1
            kind, store = KINDS[device], dist.PrefixStore(f"group {name} {self._made_so_far[name]}/", self.store)
            self.handles[name] = kind, kind.group(store, members, members.index(self.rank), name)
        return self.handles[name][1]

    def leave(self) -> None:
        """Gives up all groups."""
        for kind, handle in self.handles.values():
            kind.leave(handle)
        for give_up in self.parting:
            give_up()
        self.handles.clear()
        self._by_ranks.clear()
        self.parting.clear()


world = World()


def connect(rank: int, size: int, device: torch.device, store: dist.Store | None = None) -> None:
    """Joins `size` ranks as `rank`, each with a device of one kind, by the store of all.

    One rank alone joins nothing: all its groups are of size 1."""
    kind, bound = _begin(rank, size, device)
    if size == 1:
        return
    world.store = store
    kind.meet(store, rank, size, bound)


def join(group: Any, device: torch.device) -> None:
    """Takes a process group of torch.distributed for all ranks of the run, numbered as in it.

    Its own connections stay its user's: what is sent here goes over further ones."""
    _begin(dist.get_rank(group), dist.get_world_size(group), device)
    world.joined, world._joins = group, world._joins + 1
    theirs = dist.distributed_c10d._get_process_group_store(group)
    world.store = dist.PrefixStore(f"shardlang {world._joins}/", theirs)
    if world.size > 1:
        world.handle(everyone().ranks, device.type)


def _begin(rank: int, size: int, device: torch.device) -> tuple[Cpu, dict[str, Any]]:
    """Makes this process a rank; the kind of its device, and what torch.distributed is to be told
    of it."""
    world.rank, world.size, world.device = rank, size, device
    keep_freed_memory()
    # Backward has a thread for each device, and which of them comes first differs from rank to
    # rank; collectives have one order on all. So all of it runs in this thread.
    torch.autograd.set_multithreading_enabled(False)
    kind = kind_of(device)
    return kind, kind.take(device)


def microbatches(count: int) -> Iterator[int]:
    """0 to count - 1, each the current microbatch until the next one is asked for."""
    try:
        for number in range(count):
            world.microbatch = number
            yield number
    finally:
        world.microbatch = 0


def everyone() -> Group:
    """All ranks of the run, in order."""
    return _all_of(world.size)


@cache
def _all_of(size: int) -> Group:
    return RankMesh(rank=size)["rank"]


def disconnect() -> None:
    """Destroys all process groups of this process; its meshes may be connected again afterwards."""
    world.leave()
    if dist.is_initialized() and world.joined is None:
        dist.destroy_process_group()
    world.rank, world.size, world.microbatch, world.joined = 0, 1, 0, None


@dataclass(frozen=True)
class Time:
    """The size of an axis of microbatches: the parts of a batch that a rank computes in turn."""

    parts: int


class Group:
    """The ranks that share this rank's coordinates but those along `axes`; members are numbered
    major axis first.

    size: members. index: this rank among them. ranks: their global ranks by index. handle: torch's
    process group, whose own numbering is by rank. slots: a member's index -> its number in the
    handle; order: the inverse; in_order: both numberings are the same. Over an axis in time,
    members are ranks at a microbatch, index that of the current one: such a group says which part
    of a whole is meant, and has no process group."""

    def __init__(self, mesh: RankMesh, axes: tuple[str, ...]) -> None:
        self.axes = axes
        self.size = math.prod(mesh._sizes[axis] for axis in axes)
        self._mesh = mesh
        # One step of the microbatch is so many members; 0 without an axis in time.
        self._per_part = 0
        if mesh._time in axes:
            self._per_part = math.prod(mesh._sizes[axis] for axis in axes[axes.index(mesh._time) + 1 :])
        self._bound_to: int | None = None
        self._ranks: tuple[int, ...] = ()
        self._index = 0
        self._slots: tuple[int, ...] = ()
        self._order: tuple[int, ...] = ()
        self._in_order = True

    def __repr__(self) -> str:
        return f"Group({', '.join(self.axes)}: {self.size})"

    def _members(self) -> tuple[int, ...]:
        return self._mesh._members(self.axes, world.rank)

    @as_it_is
    def _bind(self) -> None:
        """Works out the members for this process's rank, again if that has changed (a fork)."""
        if self._bound_to == world.rank:
            return
        self._ranks = self._members()
        # Over time a rank comes several times: first at microbatch 0.
        self._index = self._ranks.index(world.rank) if self.size > 1 else 0
        if not self._per_part:
            by_rank = {rank: slot for slot, rank in enumerate(sorted(self._ranks))}
            self._slots = tuple(by_rank[rank] for rank in self._ranks)
            self._order = tuple(sorted(range(self.size), key=self._slots.__getitem__))
            self._in_order = self._slots == tuple(range(self.size))
        self._bound_to = world.rank

    @property
    def index(self) -> int:
        self._bind()
        if not self._per_part:
            return self._index
        if torch.compiler.is_compiling():
            return self._index + world.marked * self._per_part  # type: ignore[no-any-return]
        return self._index + world.microbatch * self._per_part

    def chunk(self, size: int) -> int:
        """This rank's length of a dim of `size` in torch.chunk's sizes."""
        each = -(-size // self.size)
        return max(0, min(each, size - self.index * each))

    def start(self, size: int) -> int:
        """The global index of this rank's first element of a dim of `size` in torch's chunks."""
        return min(size, self.index * -(-size // self.size))

    @property
    def ranks(self) -> tuple[int, ...]:
        self._bind()
        return self._ranks

    @property
    def slots(self) -> tuple[int, ...]:
        self._bind()
        return self._slots

    @property
    def order(self) -> tuple[int, ...]:
        self._bind()
        return self._order

    @property
    def in_order(self) -> bool:
        self._bind()
        return self._in_order

    def handle(self, x: Tensor) -> Any:
        """torch's process group for tensors on the device of `x`."""
        self._bind()
        if self._per_part:
            raise ValueError(f"{self!r} is over microbatches, between which nothing is sent")
        return world.handle(self._ranks, x.device.type)

    @property
    def slot(self) -> int:
        """This rank's number in the handle."""
        return self.slots[self.index]


class TiedGroup(Group):
    """The members of `group` in each of several stages: at `coordinates` of `axis` of `whole`."""

    def __init__(self, group: Group, whole: RankMesh, axis: str, coordinates: tuple[int, ...]) -> None:
        super().__init__(group._mesh, group.axes)
        self.size = group.size * len(coordinates)
        self._whole, self._axis, self._coordinates = whole, axis, coordinates

    def _members(self) -> tuple[int, ...]:
        stride, here = self._whole._stride(self._axis), self._whole._coordinate(self._axis)
        inside = super()._members()
        return tuple(rank + (at - here) * stride for at in self._coordinates for rank in inside)


class RankMesh:
    """Named axes over the ranks, row-major, outermost first: `rt.Mesh(dp=2, mp=4)`;
    `rt.Mesh(dp=2, microbatch=Time(4))`.

    `mesh.dp` is the group along `dp`; `mesh["dp", "mp"]` the group over both, dp major; `mesh[()]`
    this rank alone. `rt.Mesh((mesh, "pp"), a=2, b=4)` is a further factoring of the ranks that
    share this one's coordinate along `pp`. All own names begin with an underscore, since any other
    may be an axis."""

    def __init__(self, stage: tuple[RankMesh, str] | None = None, /, **sizes: int | Time) -> None:
        self._sizes = {name: size.parts if isinstance(size, Time) else size for name, size in sizes.items()}
        self._time = next((name for name, size in sizes.items() if isinstance(size, Time)), "")
        self._whole = stage[0] if stage is not None else None
        self._stage_axis = stage[1] if stage is not None else ""
        self.__dict__.update({name: self[name] for name in self._sizes})

    def __repr__(self) -> str:
        return f"Mesh({', '.join(f'{name}={size}' for name, size in self._sizes.items())})"

    def __iter__(self) -> Iterator[str]:
        """The axes over ranks."""
        return (name for name in self._sizes if name != self._time)

    def __getattr__(self, name: str) -> Group:
        raise AttributeError(f"{name!r} is no axis of the mesh")

    def __getitem__(self, axes: str | tuple[str, ...]) -> Group:
        axes = (axes,) if isinstance(axes, str) else tuple(axes)
        name = f"_over {', '.join(axes)}"
        self._make(name, axes)
        group: Group = getattr(self, name)
        return group

    @as_it_is
    def _make(self, name: str, axes: tuple[str, ...]) -> None:
        if name not in self.__dict__:
            self.__dict__[name] = Group(self, axes)

    @property
    def _microbatches(self) -> int:
        return self._sizes.get(self._time, 1)

    def _stride(self, axis: str) -> int:
        """Distance in ranks (of the stage) between neighbours along an axis; 0 in time."""
        if axis == self._time:
            return 0
        names = list(self)
        return math.prod(self._sizes[name] for name in names[names.index(axis) + 1 :])

    def _coordinate(self, axis: str, rank: int | None = None) -> int:
        rank = self._local(world.rank if rank is None else rank)
        return rank // self._stride(axis) % self._sizes[axis]

    def _leads(self, apart: Container[str]) -> bool:
        """Whether this rank is the first along all axes over ranks but those of `apart`."""
        return not any(self._coordinate(axis) for axis in self if axis not in apart)

    def _members(self, axes: tuple[str, ...], rank: int) -> tuple[int, ...]:
        """Global ranks that share `rank`'s other coordinates, by index along `axes`."""
        along = [axis for axis in axes if axis != self._time]
        members = [self._local(rank) - sum(self._coordinate(axis, rank) * self._stride(axis) for axis in along)]
        for axis in axes:
            members = [m + i * self._stride(axis) for m in members for i in range(self._sizes[axis])]
        return tuple(self._global(member, rank) for member in members)

    def rank_at(self, coordinates: Mapping[str, int], stage_axis: str, stage: int) -> int:
        """The rank at coordinates, 0 along axes that are left out, in a stage."""
        local = sum(self._stride(axis) * at for axis, at in coordinates.items())
        if self._whole is not None:
            return self._global(local, stage * self._whole._stride(self._stage_axis))
        return local + stage * self._stride(stage_axis) if stage_axis else local

    def _local(self, rank: int) -> int:
        """A rank's number within its stage, where this is a mesh of one stage's ranks."""
        if self._whole is None:
            return rank
        whole, inner = self._whole, self._whole._stride(self._stage_axis)
        return rank // (inner * whole._sizes[self._stage_axis]) * inner + rank % inner

    def _global(self, local: int, rank: int) -> int:
        """The rank that has the number `local` within `rank`'s stage."""
        if self._whole is None:
            return local
        whole, inner = self._whole, self._whole._stride(self._stage_axis)
        outer, rest = divmod(local, inner)
        at = whole._coordinate(self._stage_axis, rank)
        return (outer * whole._sizes[self._stage_axis] + at) * inner + rest
