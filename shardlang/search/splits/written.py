"""Assignments of operators -> rules that a person could have written: dims that are split over axes
as a whole, and pins for the values that lie otherwise.

Only values with names can be pinned; what lies between them follows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import field, replace

from shardlang.diagnostics.diagnostic import Sink
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import LEAF, Op
from shardlang.ops.rule import Split
from shardlang.paths.runs import unindexed
from shardlang.plan.layouts.assignment import Assignment
from shardlang.plan.plan import Plan
from shardlang.plan.planner import laid_out
from shardlang.search.fill_holes import filled
from shardlang.search.space import Cuts, Open, Point, Splits, splittable
from shardlang.search.splits.choices import Choices
from shardlang.types.dim import Dim
from shardlang.types.layout import Layout, layout_text

_PATH = re.compile(r"(?:\w+(?:\[[\d-]+\])?\.)+(\w+)")


@dataclass(frozen=True)
class Writing:
    """Writes assignments as rules. few: the strategy on few layers; point: with what else is filled
    in; axes: those that are open. plans: those that were made, by ranks and point."""

    few: Open
    point: Point
    axes: Collection[str]
    of: Choices
    plans: dict[tuple[int, Point], Plan | None] = field(default_factory=dict)

    def rules(self, chosen: Mapping[int, Assignment]) -> list[Cuts]:
        """Ways to write the assignments: without pins, with pins beside splits, with pins alone."""
        splits = self._splits(chosen)
        found = [Cuts(splits)] if splits else []
        for start in dict.fromkeys((splits, ())):
            plan = self.plan(Cuts(start)) if start else None
            pins = tuple(dict.fromkeys(self._pins(chosen, plan)))
            if pins:
                found.append(Cuts(start, pins))
        return found

    def plan(self, rules: Cuts) -> Plan | None:
        """The plan with some rules on few layers; None where they cannot be."""
        few, point = self.few, replace(self.point, splits=rules.splits, pins=rules.pins)
        key = few.ranks, point
        if key not in self.plans:
            plan = laid_out(few.program, filled(few, point, "few"), few.ranks, Sink(), known=few.known)
            self.plans[key] = plan
        return self.plans[key]

    def _splits(self, chosen: Mapping[int, Assignment]) -> Splits:
        """The dims that most of what has them is split along, and the axes over which."""
        cut, whole = Counter[tuple[Dim, str]](), Counter[tuple[Dim, str]]()
        for op, layouts in self._layouts(chosen):
            values = (*op.operands, *op.results)
            for value, layout in zip(values, layouts, strict=True):
                self._count(value, layout, cut, whole)
        found = []
        for group, name, ways in splittable(self.few, dict(self.point.sizes)):
            dims = self.few.dims[name]
            wanted = [axis for axis in self.axes if sum(cut[d, axis] for d in dims) > sum(whole[d, axis] for d in dims)]
            uses = [way for way in ways if {axis for axis, _ in way} == set(wanted)]
            yields = {axis for axis in wanted if any(self._elsewhere(chosen, d, axis) for d in dims)}
            mine = [way for way in uses if {axis for axis, may in way if may} == yields]
            if mine and group == 0:
                found.append((group, name, mine[0]))
        return tuple(found)

    def _layouts(self, chosen: Mapping[int, Assignment]) -> Iterator[tuple[Op, tuple[Layout, ...]]]:
        for op in self.of.planning.graph.ops:
            if op.section == "loss" and op.id in chosen:
                layouts = self.of.table.layouts(op.rule, chosen[op.id])
                yield op, (*layouts.operands, *layouts.results)

    def _count(
        self, value: int, layout: Layout, cut: Counter[tuple[Dim, str]], whole: Counter[tuple[Dim, str]]
    ) -> None:
        graph = self.of.planning.graph
        used = set(layout.split_axes())
        weight = 4 if graph.values[value].kind in LEAF else 1
        for term, axes in zip(graph.values[value].type.dims, layout.dims, strict=True):
            for axis in self.axes:
                for dim in term[:1]:
                    (cut if axis in axes else whole)[dim, axis] += weight * (axis in axes or axis not in used)

    def _elsewhere(self, chosen: Mapping[int, Assignment], dim: Dim, axis: str) -> bool:
        """Whether a value that has the dim is cut along another one over the axis."""
        graph = self.of.planning.graph
        for op, layouts in self._layouts(chosen):
            for value, layout in zip((*op.operands, *op.results), layouts, strict=True):
                terms = graph.values[value].type.dims
                has = any(dim in term for term in terms)
                if has and any(axis in a and dim not in t for t, a in zip(terms, layout.dims, strict=True)):
                    return True
        return False

    def _pins(self, chosen: Mapping[int, Assignment], plan: Plan | None) -> Iterator[tuple[str, str]]:
        """Pins for the operators whose assignment a plan has otherwise; for all without a plan."""
        planning, table = self.of.planning, self.of.table
        settled = planning.strategy.demands
        for op, layouts in self._layouts(chosen):
            value, kind = op.results[0], planning.classes[op.id]
            path = planning.graph.values[value].path
            demand = settled.get(op.id)
            named = not {":", "#"} & {*path} and path.rpartition(".")[2] != "return"
            if (demand is not None and demand.complete) or kind.wanted is not None or not named:
                continue
            if layouts[-1].pending and not _sums(op):
                continue
            if plan is None or not self._same(plan, op.id, chosen[op.id], layouts):
                text = _PATH.sub(r"\1", layout_text(planning.graph.values[value].type, layouts[-1], table.meshes[0]))
                yield unindexed(path).replace("[]", "[*]"), text

    def _same(self, plan: Plan, op: int, assignment: Assignment, layouts: tuple[Layout, ...]) -> bool:
        if op >= len(plan.ops) or plan.ops[op].op != op:
            return False
        planned = plan.ops[op]
        return planned.factor_axes == assignment.factors and planned.results == layouts[len(planned.operands) :]


def _sums(op: Op) -> bool:
    """Whether a pin can say that the result is pending: one factor is summed, or a sum goes
    through."""
    kept = {f for dims in op.rule.results for dim in dims for f in dim}
    summed = [f for f, x in enumerate(op.rule.factors) if f not in kept and x.split is Split.FREE and x.size > 1]
    return len(summed) == 1 or (not summed and bool(op.rule.through))
