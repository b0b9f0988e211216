"""Where ranks stand on a mesh, and which block of a value each holds under a layout."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from torch import Tensor

from shardlang.types.dim import TensorType
from shardlang.types.layout import Layout, PartSizes, chunk_sizes
from shardlang.types.mesh import Mesh

Block = tuple[tuple[int, int], ...]
SizesOfDims = Sequence[tuple[int, ...] | None]


@dataclass(frozen=True)
class Coordinates:
    """All ranks of one mesh, in row-major order of its axes."""

    mesh: Mesh

    @cached_property
    def at(self) -> tuple[dict[str, int], ...]:
        """Per rank its coordinate along each axis."""
        names = [a.name for a in self.mesh.axes]
        ranges = [range(a.size) for a in self.mesh.axes]
        return tuple(dict(zip(names, place, strict=True)) for place in itertools.product(*ranges))

    def index(self, rank: int, axes: Sequence[str]) -> int:
        """The number of a rank among those that differ only along `axes`; the first is major."""
        number = 0
        for axis in axes:
            number = number * self.mesh.axis_size(axis) + self.at[rank][axis]
        return number

    def groups(self, axes: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """The ranks that differ only along `axes`, group by group, members by index over `axes`."""
        return _groups(self.mesh, tuple(axes))

    def rest(self, axes: Sequence[str]) -> tuple[str, ...]:
        """The axes of the mesh that are not among `axes`."""
        return tuple(a.name for a in self.mesh.axes if a.name not in axes)

    def block(self, rank: int, shape: Sequence[int], layout: Layout, part_sizes: SizesOfDims = ()) -> Block:
        """(start, size) along each dim of a rank's part of a value of `shape`; part_sizes: per dim.
        """
        part_sizes = part_sizes or (None,) * len(shape)
        return tuple(self.part(rank, *dim) for dim in zip(shape, layout.dims, part_sizes, strict=True))

    def part(
        self, rank: int, size: int, axes: Sequence[str], part_sizes: tuple[int, ...] | None = None
    ) -> tuple[int, int]:  # fmt: skip
        """(start, size) of a rank's part of `size` things cut over `axes`: in the sizes listed for
        as many parts, else in torch.chunk's."""
        return _parts(self.mesh, size, tuple(axes), part_sizes)[rank]


@lru_cache(maxsize=4096)
def coordinates_of(mesh: Mesh) -> Coordinates:
    """One `Coordinates` a mesh, so that its tables are made once."""
    return Coordinates(mesh)


@lru_cache(maxsize=4096)
def _parts(mesh: Mesh, size: int, axes: tuple[str, ...], part_sizes: tuple[int, ...] | None) -> Block:
    """The (start, size) of each rank for `size` things cut over `axes`."""
    degree = mesh.degree(axes)
    sizes = part_sizes if part_sizes is not None and len(part_sizes) == degree else chunk_sizes(size, degree)
    starts = list(itertools.accumulate(sizes, initial=0))
    coordinates = coordinates_of(mesh)
    indices = [coordinates.index(rank, axes) for rank in range(mesh.size)]
    return tuple((starts[i], sizes[i]) for i in indices)


@lru_cache(maxsize=4096)
def _groups(mesh: Mesh, axes: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    coordinates = coordinates_of(mesh)
    rest = coordinates.rest(axes)
    found: dict[int, list[tuple[int, int]]] = {}
    for rank in range(mesh.size):
        found.setdefault(coordinates.index(rank, rest), []).append((coordinates.index(rank, axes), rank))
    return tuple(tuple(rank for _, rank in sorted(members)) for members in found.values())


def sizes_of_dims(type: TensorType, part_sizes: PartSizes) -> tuple[tuple[int, ...] | None, ...]:
    """Per dim of a value its listed part sizes; () without any."""
    return tuple(part_sizes.get(term[0]) if len(term) == 1 else None for term in type.dims) if part_sizes else ()


def cut_out(whole: Tensor, block: Block) -> Tensor:
    """The block of a whole tensor, a view."""
    for dim, (start, size) in enumerate(block):
        whole = whole.narrow(dim, start, size)
    return whole
