"""How leaves lie: parameters and states as their uses want them, data in the layout that suits its
uses.

Turns the layouts that uses need into stored layouts and axes of gradient reduction; ZeRO's cut is
added by planner.py."""

from __future__ import annotations

from collections.abc import Sequence

from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Kind
from shardlang.plan.layouts.assignment import local_size
from shardlang.plan.layouts.inside import all_reduce_bytes
from shardlang.plan.layouts.op_classes import ValueFacts
from shardlang.plan.redistribute.mesh_factorings import translate
from shardlang.plan.redistribute.steiner_tree import Target, tree
from shardlang.types.layout import Layout
from shardlang.types.mesh import Mesh


@dataclass(frozen=True, slots=True)
class StorageLayout:
    """`layout`: S and I only. `root`: the same with R on the axes of the deferred reduction."""

    layout: Layout
    root: Layout


def bare(layout: Layout) -> Layout:
    """Splits only: P and R as I."""
    return Layout(layout.dims, mesh=layout.mesh)


def all_times(layout: Layout, meshes: tuple[Mesh, ...]) -> Layout:
    """The layout without cuts in time: what is stored is there in every microbatch."""
    return Layout(tuple(meshes[layout.mesh].ranked(axes) for axes in layout.dims), mesh=layout.mesh)


def choose(
    tensor: ValueFacts, uses: Sequence[Target], meshes: tuple[Mesh, ...], trained: bool, pinned: Layout | None = None
) -> StorageLayout:
    """The cheapest storage among the uses' layouts and whole; among equals the most split."""
    kept = [u.layout if tensor.kind is Kind.DATA else all_times(u.layout, meshes) for u in uses]
    distinct = list(dict.fromkeys(bare(layout) for layout in kept))
    if pinned is not None:
        distinct = [pinned]
    elif len(distinct) > 1 or not distinct:
        distinct.append(Layout(((),) * len(tensor.shape), mesh=distinct[0].mesh if distinct else 0))
    found = [rooted(layout, uses, meshes) if trained else StorageLayout(layout, layout) for layout in distinct]
    if len(found) == 1:
        return found[0]
    return min(
        found, key=lambda s: (cost(tensor, s, uses, meshes), local_size(tensor.shape, s.layout, meshes[s.layout.mesh]))
    )


def rooted(layout: Layout, uses: Sequence[Target], meshes: tuple[Mesh, ...]) -> StorageLayout:
    """R wherever some use with a gradient has R and the stored form is not split."""
    mesh = meshes[layout.mesh]
    cut = set(layout.split_axes())
    replicated = tuple(
        axis.name
        for axis in mesh.axes
        if axis.name not in cut
        and (
            axis.time  # gradients add up over the microbatches, whatever uses there are
            or any(axis.name in u.layout.replicated for u in uses if u.gradient and u.layout.mesh == layout.mesh)
        )
    )
    return StorageLayout(layout, Layout(layout.dims, (), replicated, layout.mesh))


def cost(tensor: ValueFacts, stored: StorageLayout, uses: Sequence[Target], meshes: tuple[Mesh, ...]) -> int:
    """Bytes each rank sends for all uses and the gradient's reduction."""
    targets = [Target(align(u.layout, stored.root, u.gradient), u.gradient) for u in uses]
    found = tree(stored.root, targets, tensor.routed, meshes)
    if found is None:
        return 1 << 200
    mesh = meshes[stored.root.mesh]
    local = local_size(tensor.shape, stored.layout, mesh) * tensor.itemsize
    return found.cost + all_reduce_bytes(mesh.degree(mesh.ranked(stored.root.replicated)), local)


def align(layout: Layout, source: Layout, gradient: bool) -> Layout:
    """A use without gradient takes I and R alike: with the marks of `source`, to save a step."""
    if gradient or layout.mesh != source.mesh:
        return layout
    taken = {*layout.split_axes(), *layout.pending}
    return Layout(layout.dims, layout.pending, tuple(a for a in source.replicated if a not in taken), layout.mesh)


def sharded(axes: tuple[str, ...], layout: Layout, meshes: tuple[Mesh, ...]) -> tuple[str, ...]:
    """The axes of `zero`, on the first mesh, over which a parameter stored as `layout` is sharded.

    It is not cut over them already; and where it lies on another factoring, that one has them,
    together or each alone."""
    if layout.mesh:
        there = meshes[layout.mesh]
        ways = [translate(Layout((), each), meshes[0], there, layout.mesh) for each in (axes, *[(a,) for a in axes])]
        found = ways[0].pending if ways[0] else tuple(a for way in ways[1:] if way for a in way.pending)
        axes = tuple(dict.fromkeys(found))
    cut = set(layout.split_axes())
    return tuple(a for a in axes if a not in cut)
