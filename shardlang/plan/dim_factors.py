"""The dims of an operator's tensors against the factors of its rule: which factors a dim's axes
fall to.

A rule knows dims as its own model does; the graph's types hold the dims that strategies name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Graph, Op
from shardlang.ops.rule import DimFactors, FactorRule
from shardlang.types.dim import Dim, TensorType, Term
from shardlang.types.layout import PartSizes


@dataclass(frozen=True, slots=True)
class DimRun:
    """Neighbouring dims of a tensor dim and their factors: equal products, both major first."""

    dims: Term
    factors: DimFactors


def runs(rule: FactorRule, term: Term, factors: DimFactors) -> Iterator[DimRun]:
    """The shortest pieces of a tensor dim on which dims and factors agree; none if never."""
    if len(term) == len(factors):
        sizes_agree = all(d.size == rule.factors[f].size for d, f in zip(term, factors, strict=True))
        if sizes_agree:
            yield from (DimRun((d,), (f,)) for d, f in zip(term, factors, strict=True))
            return
    dims: list[Dim] = []
    mine: list[int] = []
    left, right, waiting = 1, 1, list(factors)
    for dim in term:
        dims.append(dim)
        left *= dim.size or 1
        while waiting and right < left:
            f = waiting.pop(0)
            mine.append(f)
            right *= rule.factors[f].size
        if left == right and mine:
            yield DimRun(tuple(dims), tuple(mine))
            dims, mine, left, right = [], [], 1, 1


def dim_runs(rule: FactorRule, types: tuple[TensorType, ...]) -> Iterator[DimRun]:
    """All runs of an operator's operands, then results."""
    for dims, type in zip((*rule.operands, *rule.results), types, strict=True):
        for factors, term in zip(dims, type.dims, strict=True):
            yield from runs(rule, term, factors) if factors else ()


def spread(
    rule: FactorRule, factors: DimFactors, axes: tuple[str, ...], sizes: Mapping[str, int | None]
) -> dict[int, tuple[str, ...]]:
    """Axes of a run, major first, over its factors: each to the first factor with room for it."""
    found: dict[int, list[str]] = {f: [] for f in factors}
    room = {f: rule.factors[f].size for f in factors}
    at = 0
    for axis in axes:
        size = sizes.get(axis) or 1
        while at < len(factors) - 1 and room[factors[at]] % size:
            at += 1
        f = factors[at]
        found[f].append(axis)
        room[f] = max(1, room[f] // size)
        if room[f] == 1 and at < len(factors) - 1:
            at += 1
    return {f: tuple(a) for f, a in found.items()}


def stranded_factor(rule: FactorRule, degrees: Sequence[int | None]) -> tuple[int, DimFactors] | None:
    """A factor cut within a tensor dim where the factors before it are not used up, and that dim's
    factors; None where none is. `degrees`: pieces of each factor, None where not known yet (then
    nothing is said)."""
    for dims in (*rule.operands, *rule.results):
        for dim in dims:
            used_up = True
            for f in dim:
                degree = degrees[f]
                if degree is None:
                    break
                if degree > 1 and not used_up:
                    return f, dim
                used_up = used_up and degree == rule.factors[f].size
    return None


def uneven_dims(dims: Iterable[Dim], graph: Graph) -> tuple[Dim, ...]:
    """The dims that rules may cut unevenly, with all that operators take for the same: `relabel`
    makes one of another, and what is cut so after it is cut so before. In the order of rules and
    operators, which mistakes are told in."""
    found = dict.fromkeys(dims)
    waiting = bool(found)
    same = _same(graph) if waiting else []
    while waiting:
        more = [d for group in same if group.keys() & found.keys() for d in group if d not in found]
        found.update(dict.fromkeys(more))
        waiting = bool(more)
    return tuple(found)


def _same(graph: Graph) -> list[dict[Dim, None]]:
    """Several dims that are one factor of some operator."""
    groups: list[dict[Dim, None]] = []
    for op in graph.ops:
        of: dict[int, dict[Dim, None]] = {}
        for term, factors in _dims(op, graph):
            if len(term) == 1 and len(factors) == 1:
                of.setdefault(factors[0], {})[term[0]] = None
        groups += [dims for dims in of.values() if len(dims) > 1 and dims not in groups]
    return groups


def of_factors(op: Op, graph: Graph, by_hand: PartSizes) -> dict[int, tuple[int, ...]]:
    """The sizes given for an operator's factors."""
    found: dict[int, tuple[int, ...]] = {}
    for term, factors in _dims(op, graph) if by_hand else ():
        if len(term) == 1 and len(factors) == 1 and term[0] in by_hand:
            found[factors[0]] = by_hand[term[0]]
    return found


def _dims(op: Op, graph: Graph) -> Iterator[tuple[Term, DimFactors]]:
    """The dims of an operator's tensors, each with its factors."""
    values = zip((*op.operands, *op.results), (*op.rule.operands, *op.rule.results), strict=True)
    for value, numbers in values:
        yield from zip(graph.values[value].type.dims, numbers, strict=True)


def in_products(op: Op, graph: Graph, by_hand: PartSizes) -> frozenset[int]:
    """Factors with listed sizes that are also in a product, where parts would not be one piece."""
    mine = of_factors(op, graph, by_hand)
    products = (factors for term, factors in _dims(op, graph) if len(factors) > 1 or len(term) > 1)
    return frozenset(f for factors in products for f in factors if f in mine) if mine else frozenset()
