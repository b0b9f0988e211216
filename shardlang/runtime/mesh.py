"""Turns axis sizes into process groups: a `Mesh` names axes over the ranks, a `Group` is the ranks that differ along
some of them.

Communication itself is in collectives.py; who starts the ranks is in launch.py. A mesh can be written down before the
ranks are connected; its groups are bound when they are first asked for.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist

# A collective may wait for a peer that loads data or compiles; a dead peer is noticed by the launcher, not by this.
TIMEOUT = datetime.timedelta(minutes=30)


class World:
    """This process among all: `rank` of `size`, its `device`, and the process groups made so far by their sorted
    ranks.
    """

    def __init__(self) -> None:
        self.rank = 0
        self.size = 1
        self.device = torch.device("cpu")
        self.handles: dict[tuple[int, ...], dist.ProcessGroup] = {}

    def handle(self, ranks: Sequence[int]) -> dist.ProcessGroup:
        """The process group of `ranks`, made at first use by its members alone; torch orders its members by rank."""
        key = tuple(sorted(ranks))
        if key not in self.handles:
            everyone = len(key) == self.size
            self.handles[key] = (
                dist.group.WORLD
                if everyone
                else dist.new_group(list(key), timeout=TIMEOUT, use_local_synchronization=True)
            )
        return self.handles[key]


world = World()


def connect(rank: int, size: int, device: torch.device, store: dist.Store | None = None) -> None:
    """Joins `size` ranks as `rank`: gloo on the CPU, NCCL on CUDA; without a store by torchrun's environment variables.

    One rank alone joins nothing: all its groups are of size 1.
    """
    world.rank, world.size, world.device = rank, size, device
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if size == 1:
        return
    backend = "nccl" if device.type == "cuda" else "gloo"
    bound = {"device_id": device} if device.type == "cuda" else {}
    if store is None:
        dist.init_process_group(backend, timeout=TIMEOUT, **bound)
    else:
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT, **bound)


def disconnect() -> None:
    """Destroys all process groups of this process; its meshes may be connected again afterwards."""
    world.handles.clear()
    if dist.is_initialized():
        dist.destroy_process_group()
    world.rank, world.size = 0, 1


class Group:
    """The ranks that share this rank's coordinates but those along `axes`; members are numbered major axis first.

    size: members. index: this rank among them. ranks: their global ranks by index. handle: torch's process group,
    whose own numbering is by rank. slots: where that differs, the member's index -> its number in the handle (else
    None); order: the inverse.
    """

    def __init__(self, mesh: Mesh, axes: tuple[str, ...]) -> None:
        self.axes = axes
        self.size = math.prod(mesh._sizes[axis] for axis in axes)
        self._mesh = mesh
        self._bound_to: int | None = None
        self._ranks: tuple[int, ...] = ()
        self._index = 0
        self._slots: tuple[int, ...] | None = None
        self._order: tuple[int, ...] | None = None

    def __repr__(self) -> str:
        return f"Group({', '.join(self.axes)}: {self.size})"

    def _bind(self) -> None:
        """Works out the members for this process's rank, again when that has changed since (a test, a fork)."""
        if self._bound_to == world.rank:
            return
        self._ranks = self._mesh._members(self.axes, world.rank)
        self._index = self._ranks.index(world.rank) if self.size > 1 else 0
        by_rank = sorted(self._ranks)
        slots = tuple(by_rank.index(rank) for rank in self._ranks)
        in_order = slots == tuple(range(self.size))
        self._slots = None if in_order else slots
        self._order = None if in_order else tuple(slots.index(i) for i in range(self.size))
        self._bound_to = world.rank

    @property
    def index(self) -> int:
        self._bind()
        return self._index

    def chunk(self, size: int) -> int:
        """This rank's length of a dim of `size` in torch.chunk's sizes."""
        each = -(-size // self.size)
        return max(0, min(each, size - self.index * each))

    def start(self, size: int) -> int:
        """The global index of this rank's first element of a dim of `size` in torch.chunk's sizes."""
        return min(size, self.index * -(-size // self.size))

    @property
    def ranks(self) -> tuple[int, ...]:
        self._bind()
        return self._ranks

    @property
    def slots(self) -> tuple[int, ...] | None:
        self._bind()
        return self._slots

    @property
    def order(self) -> tuple[int, ...] | None:
        self._bind()
        return self._order

    @property
    def handle(self) -> dist.ProcessGroup:
        self._bind()
        return world.handle(self._ranks)


class Mesh:
    """Named axes over the ranks, row-major, outermost first: `Mesh(dp=2, mp=4)`.

    `mesh.dp` is the group along `dp`; `mesh["dp", "mp"]` the group over both, dp major; `mesh[()]` this rank alone.
    All own names begin with an underscore, since any other may be an axis.
    """

    def __init__(self, **sizes: int) -> None:
        self._sizes = sizes
        self._groups: dict[tuple[str, ...], Group] = {}

    def __repr__(self) -> str:
        return f"Mesh({', '.join(f'{name}={size}' for name, size in self._sizes.items())})"

    def __iter__(self) -> Iterator[str]:
        return iter(self._sizes)

    def __getattr__(self, name: str) -> Group:
        if name.startswith("_") or name not in self._sizes:
            raise AttributeError(f"{name!r} is no axis of the mesh")
        return self[name]

    def __getitem__(self, axes: str | tuple[str, ...]) -> Group:
        axes = (axes,) if isinstance(axes, str) else tuple(axes)
        if axes not in self._groups:
            self._groups[axes] = Group(self, axes)
        return self._groups[axes]

    def _stride(self, axis: str) -> int:
        """Distance in ranks between neighbours along an axis."""
        names = list(self._sizes)
        return math.prod(self._sizes[name] for name in names[names.index(axis) + 1 :])

    def _coordinate(self, axis: str, rank: int | None = None) -> int:
        rank = world.rank if rank is None else rank
        return rank // self._stride(axis) % self._sizes[axis]

    def _members(self, axes: tuple[str, ...], rank: int) -> tuple[int, ...]:
        """Global ranks that share `rank`'s other coordinates, by their index along `axes`, major first."""
        members = [rank - sum(self._coordinate(axis, rank) * self._stride(axis) for axis in axes)]
        for axis in axes:
            members = [m + i * self._stride(axis) for m in members for i in range(self._sizes[axis])]
        return tuple(members)
