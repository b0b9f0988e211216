"""A deep program and the axes that have ranks -> the split of transformers, as a way to fill
`split auto` beside those that take least time: it keeps least on each rank.

Dims of parameters that layers do not hand on (heads, ffn, vocab) go over the innermost axis. Dims
that layers hand on and no parameter has (seq) go over all axes, where the innermost yields."""

from __future__ import annotations

from collections.abc import Sequence

from shardlang.graph.graph import Kind
from shardlang.search.layers import ArrayOfLayers
from shardlang.search.space import Cuts, Open, Uses, splittable
from shardlang.types.dim import Dim


def usual(of: Open, array: ArrayOfLayers, degrees: dict[str, int]) -> Sequence[Cuts]:
    """That way on axes of such sizes; none where the innermost of those that are open has one rank,
    for one axis more outward would only be another name of it."""
    last = next((axis for axis in reversed(degrees) if axis in of.open_axes), "")
    if degrees.get(last, 1) == 1:
        return ()
    legal = {(group, name): ways for group, name, ways in splittable(of, degrees)}
    axes = list(dict.fromkeys(axis for axis in degrees for ways in legal.values() if _alone(axis, ways)))
    if not axes:
        return ()
    inner: Uses = ((axes[-1], False),)
    along: Uses = tuple((axis, axis == axes[-1] and len(legal) > 1) for axis in axes)
    handed, params = of.found.table((usual, array), lambda: (_handed(of, array), _params(of)))
    splits, taken = [], set[Dim]()
    for (group, name), ways in legal.items():
        dims = set(of.dims[name])
        if dims & handed and not any(dims & mine for mine in params):
            uses = next((uses for uses in (along, along[:-1]) if uses in ways), None)
            splits += [(group, name, uses)] if uses else []
        elif not dims & handed and inner in ways and not any(dims & mine and taken & mine for mine in params):
            splits.append((group, name, inner))
            taken |= dims
    return [Cuts(tuple(splits))] if splits else ()


def _alone(axis: str, ways: Sequence[Uses]) -> bool:
    return ((axis, False),) in ways


def _handed(of: Open, array: ArrayOfLayers) -> set[Dim]:
    """The dims of what a layer hands to the next."""
    return {dim for v in array.handed(of.program.graph) for term in v.type.dims for dim in term}


def _params(of: Open) -> list[frozenset[Dim]]:
    """The dims of each kind of parameter."""
    graph = of.program.graph
    every = (frozenset(dim for term in v.type.dims for dim in term) for v in graph.values if v.kind is Kind.PARAM)
    return list(dict.fromkeys(every))
