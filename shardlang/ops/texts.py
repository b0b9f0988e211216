"""A site -> pieces of Python that several families write: dims, groups, offsets, local sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from shardlang.facts.dtypes import DTYPES
from shardlang.ops.code import RT, TORCH, Code, infix, joined
from shardlang.ops.python_text import literal, tuple_text
from shardlang.ops.rule import DimFactors
from shardlang.ops.site import OpSite, Size

TORCH_DTYPES = {name: TORCH.has(facts.torch) for name, facts in DTYPES.items()}


def dims_text(dims: Sequence[int]) -> str:
    """`1`, or `(1, 2)`: the dims argument of a reduction."""
    return str(dims[0]) if len(dims) == 1 else tuple_text(dims)


def factors_of(dims: Iterable[DimFactors]) -> tuple[int, ...]:
    """All factors of some tensor dims, each once, in order."""
    return tuple(dict.fromkeys(f for factors in dims for f in factors))


def groups_of(site: OpSite, factors: Iterable[int]) -> list[str]:
    """The groups over the axes of each of `factors` that is split, each once."""
    return list(dict.fromkeys(site.groups[f] for f in factors if site.groups[f]))


def group_text(site: OpSite, factors: Iterable[int]) -> str:
    """The group over all axes of `factors`: `mesh.mp`; a tuple for several factors; "" for none."""
    groups = groups_of(site, factors)
    return "" if not groups else groups[0] if len(groups) == 1 else tuple_text(groups)


def cut(site: OpSite, at: int, dims: Iterable[int] | None = None) -> bool:
    """Whether operand `at` lacks a part of some of `dims` (default: all) on a rank or in a part."""
    chosen = range(len(site.operand_shapes[at])) if dims is None else dims
    shape = site.operand_types[at].shape
    return any(site.operand_shapes[at][d] != shape[d] for d in chosen)


def offset_text(site: OpSite, factors: DimFactors) -> str:
    """The global index of the first local element of a tensor dim of `factors`, major first."""
    parts: list[str] = []
    inner = 1
    for f in reversed(factors):
        offset = site.offsets[f]
        if offset is not None:
            parts.insert(0, offset.times(inner))
        inner *= site.rule.factors[f].size
    return joined(parts, " + ") if parts else "0"


def key_text(site: OpSite) -> Code:
    """The key of the operator's random numbers."""
    return RT("random.key", *["p"] * site.inside, literal(site.path), *[str(site.call)] * (site.call > 0))


def local_factor(site: OpSite, factor: int) -> Size:
    """The local size of one factor."""
    if not site.groups[factor] and not _seen_cut(site, factor):
        return site.rule.factors[factor].size
    found = list(_tensors(site))
    for dims, shape in found:
        if (factor,) in dims:
            return shape[dims.index((factor,))]
    for dims, shape in found:
        for factors, size in zip(dims, shape, strict=True):
            if factor in factors:
                return _divided(size, [local_factor(site, f) for f in factors if f != factor])
    return site.rule.factors[factor].size


def _seen_cut(site: OpSite, factor: int) -> bool:
    """Whether a tensor dim of only this factor is locally smaller (cut in time)."""
    whole = site.rule.factors[factor].size
    return any((factor,) in dims and shape[dims.index((factor,))] != whole for dims, shape in _tensors(site))


def _tensors(site: OpSite) -> Iterable[tuple[tuple[DimFactors, ...], tuple[Size, ...]]]:
    yield from zip(site.rule.operands, site.operand_shapes, strict=True)
    yield from zip(site.rule.results, site.result_shapes, strict=True)


def _divided(size: Size, parts: Sequence[Size]) -> Size:
    known = [part for part in parts if isinstance(part, int)]
    if isinstance(size, int) and len(known) == len(parts):
        return size // math.prod(known)
    return infix("//", size, *parts)
