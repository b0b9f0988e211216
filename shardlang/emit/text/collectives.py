"""A conversion -> the call of the runtime that makes it. plan/ decides which there are."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from shardlang.diagnostics.diagnostic import InternalError
from shardlang.emit.text.sizes import LocalSizes
from shardlang.graph.graph import Kind
from shardlang.ops.code import RT, Code, around
from shardlang.plan.plan import Conversion, MoveKind, Plan
from shardlang.types.layout import Layout
from shardlang.types.mesh import Mesh

Part = tuple[tuple[str, ...], tuple[str, ...]]


def source_layout(plan: Plan, conversion: Conversion) -> Layout:
    """The layout that a conversion starts from."""
    if conversion.parent < 0:
        return plan.produced[conversion.value]
    return plan.conversions[conversion.parent].to


def move_text(plan: Plan, conversion: Conversion, source: str, sizes: LocalSizes) -> Code:
    """The expression of a conversion of the form named `source`. VIEW has none: it is a rename."""
    move, layout = conversion.move, source_layout(plan, conversion)
    name = move.kind.value
    if plan.graph.values[conversion.value].kind is Kind.CONSTANT:
        return _number(conversion, source, sizes.groups.text(move.axes, layout.mesh))
    match move.kind:
        case MoveKind.VIEW:
            raise InternalError(f"a view of value {conversion.value} is a rename and has no text")
        case MoveKind.PERMUTE:
            mesh = plan.meshes[layout.mesh]
            axes = moved_axes(layout, conversion.to, mesh)
            sources = permute_sources(layout, conversion.to, axes, mesh)
            return RT(name, source, sizes.groups.text(axes, layout.mesh), sources)
        case MoveKind.S_TO_S:
            group = sizes.groups.text(move.axes, layout.mesh)
            gather = _sizes(plan, conversion, move.from_dim, sizes, "gather_sizes")
            split = _sizes(plan, conversion, move.dim, sizes, "split_sizes")
            return RT(name, source, move.from_dim, move.dim, group, **gather, **split)
        case _ if move.dim >= 0:
            group = sizes.groups.text(move.axes, layout.mesh)
            return RT(name, source, move.dim, group, **_sizes(plan, conversion, move.dim, sizes, "sizes"))
        case _:
            return RT(name, source, sizes.groups.text(move.axes, layout.mesh))


def _number(conversion: Conversion, source: str, group: str) -> Code:
    """The text for a number literal, which is no tensor: in a pending sum the first rank alone has
    it."""
    match conversion.move.kind:
        case MoveKind.I_TO_P | MoveKind.R_TO_P:
            return around("", source, f" if {group}.index == 0 else 0")
        case kind:
            raise InternalError(f"a number is not moved by {kind.value}")


def _sizes(plan: Plan, conversion: Conversion, dim: int, sizes: LocalSizes, keyword: str) -> dict[str, tuple[int, ...]]:
    """`sizes=(4, 4, 2)` where the shards along `dim` differ, else nothing."""
    layout = source_layout(plan, conversion)
    term = plan.graph.values[conversion.value].type.dims[dim]
    kept = [a for a in layout.dims[dim] if a not in conversion.move.axes]
    shards = sizes.uneven(term, (*kept, *conversion.move.axes), layout.mesh)
    if shards is None:
        return {}
    if kept:
        raise InternalError(f"dim {dim} of value {conversion.value} is cut unevenly over several axes")
    return {keyword: shards}


def moved_axes(source: Layout, target: Layout, mesh: Mesh) -> tuple[str, ...]:
    """The axes of a permutation's group, in mesh order: those of each dim and of each state that
    the target changes, but for that of the microbatches, along which nothing moves."""
    changed = {axis for before, after in _pairs(source, target) if before != after for axis in (*before, *after)}
    return mesh.ranked(tuple(axis.name for axis in mesh.axes if axis.name in changed))


def permute_sources(source: Layout, target: Layout, axes: tuple[str, ...], mesh: Mesh) -> tuple[int, ...]:
    """Per member of the group over `axes` (first is major): the member that holds its block before
    the permutation.

    A block of a dim is numbered by the coordinates on the axes that cut it, major first; the same
    number on the axes that cut it before gives the member. Pending, replicated and identical axes
    are matched likewise, part by part."""
    parts = _parts(source, target, axes)
    ranges = [range(mesh.axis_size(axis)) for axis in axes]
    members = [dict(zip(axes, place, strict=True)) for place in itertools.product(*ranges)]
    sources = tuple(_index(_holder(member, parts, mesh), axes, mesh) for member in members)
    if sorted(sources) != list(range(len(members))):
        raise InternalError(f"a permutation over {axes} does not reach each rank once: {sources}")
    return sources


def _parts(source: Layout, target: Layout, axes: tuple[str, ...]) -> list[Part]:
    """Axes (before, after) of each dim and state, limited to the group; the identical axes last."""
    limited = [(_within(before, axes), _within(after, axes)) for before, after in _pairs(source, target)]
    used_before = {a for before, _ in limited for a in before}
    used_after = {a for _, after in limited for a in after}
    rest = (tuple(a for a in axes if a not in used_before), tuple(a for a in axes if a not in used_after))
    return [*limited, rest]


def _pairs(source: Layout, target: Layout) -> list[Part]:
    """Axes (before, after) of each dim, of the pending sums and of the replicated axes."""
    dims = zip(source.dims, target.dims, strict=True)
    return [*dims, (source.pending, target.pending), (source.replicated, target.replicated)]


def _within(some: tuple[str, ...], axes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(a for a in some if a in axes)


def _holder(member: Mapping[str, int], parts: list[Part], mesh: Mesh) -> dict[str, int]:
    """Coordinates of the member that holds, before, the block that `member` holds after."""
    coordinates: dict[str, int] = {}
    for before, after in parts:
        number = _index(member, after, mesh)
        for axis in reversed(before):
            number, coordinates[axis] = divmod(number, mesh.axis_size(axis))
    return coordinates


def _index(coordinates: Mapping[str, int], axes: tuple[str, ...], mesh: Mesh) -> int:
    number = 0
    for axis in axes:
        number = number * mesh.axis_size(axis) + coordinates[axis]
    return number
