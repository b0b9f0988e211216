"""A layout: how one value lies on a mesh. Along each axis it is split, pending, replicated, or
identical.

Pure values; the moves between layouts are in plan/."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from shardlang.frozen.records import dataclass
from shardlang.types.dim import Dim, TensorType, Term, term_size, term_text
from shardlang.types.mesh import Mesh

DimAxes = tuple[str, ...]
# Dims whose parts have sizes given by hand.
PartSizes = Mapping[Dim, tuple[int, ...]]
NO_PART_SIZES: PartSizes = {}


@dataclass(frozen=True, slots=True)
class Layout:
    """`dims[i]`: the axes that cut tensor dim i, major first. `pending`: P axes; `replicated`: R
    axes (`^`); else I.

    `pending` and `replicated` are in mesh order. `mesh` indexes the plan's meshes (0 but for
    unrelated factorings)."""

    dims: tuple[DimAxes, ...]
    pending: tuple[str, ...] = ()
    replicated: tuple[str, ...] = ()
    mesh: int = 0

    def split_axes(self) -> tuple[str, ...]:
        return tuple(a for axes in self.dims for a in axes)

    def state(self, axis: str) -> str:
        """`S`, `P`, `R` or `I` along an axis."""
        if axis in self.pending:
            return "P"
        if axis in self.replicated:
            return "R"
        return "S" if axis in self.split_axes() else "I"


def identical(rank: int, mesh: int = 0) -> Layout:
    """The layout of a value of `rank` dims that is whole and identical everywhere."""
    return Layout(((),) * rank, mesh=mesh)


@lru_cache(maxsize=256)
def chunk_sizes(size: int, parts: int) -> tuple[int, ...]:
    """torch.chunk's sizes: ceil(size / parts) each, the last smaller or 0; always `parts`."""
    each = max(1, -(-size // parts))
    full, rest = divmod(size, each)
    return ((each,) * full + (rest,) + (0,) * parts)[:parts]


def listed_sizes(size: int, parts: int, listed: tuple[int, ...] | None) -> tuple[int, ...]:
    """The sizes of the parts of `size` things: those listed for as many parts, else those of
    torch.chunk."""
    return listed if listed is not None and len(listed) == parts else chunk_sizes(size, parts)


def part_sizes(term: Term, parts: int, by_hand: PartSizes = NO_PART_SIZES) -> tuple[int, ...]:
    """The sizes of a tensor dim's parts: as given for as many parts, else torch.chunk's."""
    return listed_sizes(term_size(term) or 1, parts, by_hand.get(term[0]) if len(term) == 1 and by_hand else None)


def uneven_sizes(term: Term, parts: int, by_hand: PartSizes = NO_PART_SIZES) -> tuple[int, ...] | None:
    """The sizes of the parts where they differ; None where all are alike."""
    size = term_size(term) or 1
    if size % parts == 0 and not (by_hand and len(term) == 1 and term[0] in by_hand):
        return None
    sizes = part_sizes(term, parts, by_hand)
    return None if len(set(sizes)) == 1 else sizes


def local_shape(type: TensorType, layout: Layout, mesh: Mesh, by_hand: PartSizes = NO_PART_SIZES) -> tuple[int, ...]:
    """The largest local shape over the ranks (each rank's, where all dims divide)."""
    parts = zip(type.shape, [mesh.degree(axes) if axes else 1 for axes in layout.dims], strict=True)
    found = tuple([-(-size // degree) for size, degree in parts])
    if not by_hand:
        return found
    uneven = (uneven_sizes(t, mesh.degree(axes), by_hand) for t, axes in zip(type.dims, layout.dims, strict=True))
    return tuple(max(sizes or (size,)) for size, sizes in zip(found, uneven, strict=True))


def _axes_text(axes: DimAxes) -> str:
    return "" if not axes else f"@{axes[0]}" if len(axes) == 1 else f"@({', '.join(axes)})"


def _term_layout_text(term: tuple, axes: DimAxes, mesh: Mesh) -> str:
    """`heads@mp * head_dim`: axes are attributed to factors, major first, as each is used up."""
    if len(term) <= 1:
        return term_text(term) + _axes_text(axes)
    left, texts = list(axes), []
    for dim in term:
        mine: list[str] = []
        room = dim.size or 1
        while left and (mesh.axis_size(left[0]) <= room or dim is term[-1]):
            axis = left.pop(0)
            room //= mesh.axis_size(axis)
            mine.append(axis)
        texts.append(term_text((dim,)) + _axes_text(tuple(mine)))
    return " * ".join(texts)


def layout_text(type: TensorType, layout: Layout, mesh: Mesh) -> str:
    """The one notation of layouts: `[batch@a, hidden@b] +c ^d` (without type and microbatches)."""
    ranked = mesh.ranked
    dims = ", ".join(_term_layout_text(t, ranked(a), mesh) for t, a in zip(type.dims, layout.dims, strict=True))
    marks = "".join(
        f" {m}{axes[0] if len(axes) == 1 else '(' + ', '.join(axes) + ')'}"
        for m, axes in (("+", ranked(layout.pending)), ("^", ranked(layout.replicated)))
        if axes
    )
    return f"[{dims}]{marks}"
