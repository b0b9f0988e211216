"""The assignments an operator may take along one mesh axis, and what each costs by itself.

Legality is section 3 of the layout calculus (specs/layouts.md); which one is taken is
propagate.py's."""

from __future__ import annotations

import math
from collections.abc import Iterator

from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Kind
from shardlang.ops.rule import FactorRule, Split, shared_axes
from shardlang.plan.layouts.assignment import Assignment, LayoutTable, assign, legal_products, local_size
from shardlang.plan.layouts.inside import all_reduce_bytes, inside_bytes
from shardlang.plan.layouts.op_classes import OpClass
from shardlang.types.layout import Layout
from shardlang.types.mesh import Mesh

# A cost is bytes * BYTE + local work: among equal bytes the assignment with least work and memory
# wins.
BYTE = 1 << 96


@dataclass(frozen=True, eq=False, slots=True)
class Candidates:
    """Assignments of one operator class along one axis, in order of preference among equals.

    operands[i], results[i]: the layouts under each assignment (one tuple for the operand or
    result). own: costs. unused_axis: the one that leaves the axis unused though another could use
    it, or -1."""

    kind: OpClass
    assignments: tuple[Assignment, ...]
    operands: tuple[tuple[Layout, ...], ...]
    results: tuple[tuple[Layout, ...], ...]
    own: tuple[int, ...]
    unused_axis: int


def initial(kind: OpClass) -> Assignment:
    """The states that the demand fixes, and time; nothing else split."""
    rule, demand, time = kind.rule, kind.demand, kind.time
    factors = tuple(axes or () for axes in demand.factors) if demand else ((),) * len(rule.factors)
    through = tuple((axis, 0) for axis in demand.through) if demand else ()
    replicated = demand.replicated if demand else ()
    if time is not None:
        if time.factor >= 0:
            factors = tuple((time.axis, *axes) if f == time.factor else axes for f, axes in enumerate(factors))
        elif time.through >= 0:
            through = (*through, (time.axis, time.through))
        else:
            replicated = (*replicated, time.axis)
    return assign(factors, through, replicated, demand.mesh if demand else kind.mesh)


def alternatives(kind: OpClass, given: Assignment, axis: str, mesh: Mesh) -> tuple[Assignment, ...]:
    """Every legal way to use `axis`, the others staying as in `given`; `given` alone where a rule
    has settled it.

    `given` is not among them where it cuts a minor factor of a product alone: then `axis` was taken
    from the major one."""
    return tuple(a for a in _ways(kind, given, axis, mesh) if legal_products(kind.rule, a, mesh))


def _ways(kind: OpClass, given: Assignment, axis: str, mesh: Mesh) -> Iterator[Assignment]:
    demand = kind.demand
    settled = axis in (*given.split_axes(), *given.replicated) or any(a == axis for a, _ in given.through)
    if settled or (demand is not None and demand.complete):
        yield given
        yield from _masked(kind.rule, given, axis)
        return
    yield from _splits(kind, given, axis, mesh)
    yield given
    for i in range(len(kind.rule.through)):
        yield assign(given.factors, (*given.through, (axis, i)), given.replicated, given.mesh)
    yield from _repeated(kind, given, axis)


def _masked(rule: FactorRule, given: Assignment, axis: str) -> list[Assignment]:
    """In the place of an exchange of rows: all ranks look up everything among the rows that they
    have, and the sum is pending."""
    shared = shared_axes(rule, given.factors)
    if axis not in shared or not any(factor.exchanged and factor.exchanged.asked for factor in rule.factors):
        return []
    factors = [axes if rule.factors[f].exchanged else _less(axes, shared) for f, axes in enumerate(given.factors)]
    return [assign(tuple(factors), given.through, given.replicated, given.mesh)]


def _less(axes: tuple[str, ...], without: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(axis for axis in axes if axis not in without)


def _repeated(kind: OpClass, given: Assignment, axis: str) -> list[Assignment]:
    """With microbatches, what is made of parameters alone may be R from the start: then their
    gradients are reduced once a step, where a conversion of the result would run with every
    microbatch. (Else replication.py decides.)"""
    time = kind.time
    alone = time is not None and time.factor < 0 and time.through < 0 and any(t.gradient for t in kind.results)
    return [assign(given.factors, given.through, (*given.replicated, axis), given.mesh)] if alone else []


def _splits(kind: OpClass, given: Assignment, axis: str, mesh: Mesh) -> Iterator[Assignment]:
    size = mesh.axis_size(axis)
    # Among equals a dim that is not cut yet comes first.
    for f, factor in sorted(enumerate(kind.rule.factors), key=lambda x: bool(given.factors[x[0]])):
        fixed = kind.demand is not None and kind.demand.factors[f] is not None
        mine = given.factors[f]
        pieces = factor.exchanged.pieces if factor.exchanged is not None else 1
        whole = factor.split is Split.WHOLE or factor.size % (mesh.degree(mine) * size * pieces)
        if fixed or whole or f in kind.uneven_in_product:
            continue
        first = int(kind.time is not None and kind.time.factor == f)  # the axis of time stays major
        for at in range(len(mine), first - 1, -1):
            factors = (*given.factors[:f], (*mine[:at], axis, *mine[at:]), *given.factors[f + 1 :])
            yield assign(factors, given.through, given.replicated, given.mesh)


def candidates(kind: OpClass, assignments: tuple[Assignment, ...], table: LayoutTable, unused_axis: int) -> Candidates:
    """Assignments with their layouts and own costs."""
    layouts = [table.layouts(kind.rule, a) for a in assignments]
    results = [(kind.wanted, *x.results[1:]) if kind.wanted else x.results for x in layouts]
    return Candidates(
        kind, assignments, tuple(tuple(x.operands[i] for x in layouts) for i in range(len(kind.operands))),
        tuple(tuple(x[i] for x in results) for i in range(len(kind.results))),
        tuple(own_cost(kind, a, table) for a in assignments), unused_axis,
    )  # fmt: skip


def own_cost(kind: OpClass, assignment: Assignment, table: LayoutTable) -> int:
    """The cost of an assignment whatever its neighbours do: statistics, its parameters' gradients,
    what a transfer sends, and work."""
    mesh = table.meshes[assignment.mesh]
    operands = table.layouts(kind.rule, assignment).operands
    cost = sum(sum(x[2:]) for x in inside_bytes(kind, assignment, mesh)) * BYTE
    for tensor, layout in zip(kind.operands, operands, strict=True):
        reduced = mesh.ranked(layout.replicated)
        if tensor.kind is Kind.PARAM and tensor.gradient and reduced:
            local = local_size(tensor.shape, layout, mesh) * tensor.itemsize
            cost += all_reduce_bytes(mesh.degree(reduced), local) * BYTE
    if kind.crosses_stage:
        times = mesh.time.size if mesh.time else 1
        local = local_size(kind.operands[0].shape, operands[0], mesh) * kind.operands[0].itemsize
        return cost + local * times * (1 + kind.operands[0].gradient) * BYTE
    return cost + work(kind.rule, assignment, mesh)


def work(rule: FactorRule, assignment: Assignment, mesh: Mesh) -> int:
    """Points of the operator's iteration space on one rank."""
    pairs = zip(rule.factors, assignment.factors, strict=True)
    return math.prod([-(-f.size // mesh.degree(axes)) if axes else f.size for f, axes in pairs])
