"""From an operator's assignment (which axes split which factor) to the layouts its operands must
have and its results get.

This is section 3 of the layout calculus: per axis exactly one factor is split, or the operator is
unsplit, or a pending sum passes through it. Which assignment an operator gets is decided elsewhere.
"""

from __future__ import annotations

import math
from weakref import WeakValueDictionary

from shardlang.frozen.records import dataclass
from shardlang.ops.rule import DimFactors, FactorRule, Split, shared_axes
from shardlang.plan.dim_factors import stranded_factor
from shardlang.types.layout import Layout
from shardlang.types.mesh import Mesh

AxisNames = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Assignment:
    """`factors[f]`: the axes that split factor f, major first. `through`: (axis, index into
    `rule.through`).

    `replicated`: the unsplit axes along which operands and results are R; along all axes named
    nowhere they are I. Equal assignments are one object (made by `assign`), so an assignment is its
    own key for memoising."""

    factors: tuple[AxisNames, ...]
    through: tuple[tuple[str, int], ...] = ()
    replicated: AxisNames = ()
    mesh: int = 0

    def split_axes(self) -> AxisNames:
        return tuple([a for axes in self.factors for a in axes])


_ASSIGNMENTS = WeakValueDictionary[object, Assignment]()


def assign(
    factors: tuple[AxisNames, ...], through: tuple[tuple[str, int], ...] = (), replicated: AxisNames = (),
    mesh: int = 0,
) -> Assignment:  # fmt: skip
    """The one Assignment with these parts."""
    key = (factors, through, replicated, mesh)
    known = _ASSIGNMENTS.get(key)
    if known is None:
        known = _ASSIGNMENTS[key] = Assignment(*key)
    return known


@dataclass(frozen=True, slots=True)
class OpLayouts:
    """The layouts that each operand must have, and that each result has."""

    operands: tuple[Layout, ...]
    results: tuple[Layout, ...]


class LayoutTable:
    """Layouts of assignments on given meshes, remembered: a model repeats its operators."""

    def __init__(self, meshes: tuple[Mesh, ...]) -> None:
        self.meshes = meshes
        self._order = [{axis.name: i for i, axis in enumerate(mesh.axes)} for mesh in meshes]
        self._known: dict[tuple[FactorRule, Assignment], OpLayouts] = {}
        self._interned: dict[Layout, Layout] = {}

    def layouts(self, rule: FactorRule, assignment: Assignment) -> OpLayouts:
        """Operand and result layouts of `rule` under `assignment`."""
        key = (rule, assignment)
        known = self._known.get(key)
        if known is None:
            operands = tuple(self._operand(rule, assignment, i) for i in range(len(rule.operands)))
            results = tuple(self._result(rule, assignment, dims) for dims in rule.results)
            known = self._known[key] = OpLayouts(operands, results)
        return known

    def intern(self, layout: Layout) -> Layout:
        return self._interned.setdefault(layout, layout)

    def _layout(self, dims: tuple[AxisNames, ...], pending: set[str], replicated: set[str], mesh: int) -> Layout:
        order = self._order[mesh].__getitem__
        layout = Layout(dims, tuple(sorted(pending, key=order)), tuple(sorted(replicated, key=order)), mesh)
        return self.intern(layout)

    def _operand(self, rule: FactorRule, assignment: Assignment, index: int) -> Layout:
        dims = rule.operands[index]
        mine = {f for dim in dims for f in dim}
        replicated = {*assignment.replicated, *assignment.split_axes()}
        # An axis may split two factors, where what the one has is exchanged.
        replicated.difference_update(axis for f in mine for axis in assignment.factors[f])
        pending: set[str] = set()
        for axis, which in assignment.through:
            (pending if index in rule.through[which] else replicated).add(axis)
        return self._layout(_cut(dims, assignment), pending, replicated, assignment.mesh)

    def _result(self, rule: FactorRule, assignment: Assignment, dims: tuple[DimFactors, ...]) -> Layout:
        mine = {f for dim in dims for f in dim}
        pending = {axis for axis, _ in assignment.through}
        for f, axes in enumerate(assignment.factors):
            if f not in mine and rule.factors[f].split is Split.FREE:
                pending.update(axes)
        pending.difference_update(shared_axes(rule, assignment.factors))
        return self._layout(_cut(dims, assignment), pending, set(assignment.replicated), assignment.mesh)


def _cut(dims: tuple[DimFactors, ...], assignment: Assignment) -> tuple[AxisNames, ...]:
    return tuple(tuple(a for f in dim for a in assignment.factors[f]) for dim in dims)


def legal_products(rule: FactorRule, assignment: Assignment, mesh: Mesh) -> bool:
    """Whether a minor factor is cut only if all factors before it are used up, in every dim."""
    return stranded_factor(rule, [mesh.degree(axes) for axes in assignment.factors]) is None


def local_size(type_shape: tuple[int, ...], layout: Layout, mesh: Mesh) -> int:
    """Elements of the largest local shard of a tensor of shape `type_shape`."""
    return math.prod(-(-size // mesh.degree(axes)) for size, axes in zip(type_shape, layout.dims, strict=True))
