"""The seconds of operators under assignments, and of conversions, by the prices of their items.

An operator is priced as if nothing overlapped it; the sum of a parameter's gradient and its update
count as parts of large buckets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field

from shardlang.check.program import CheckedProgram
from shardlang.cost.hardware import Hardware
from shardlang.cost.items import Steps, per
from shardlang.cost.prices import Prices
from shardlang.cost.work import FORWARD, INPUTS, Collective, MemoryBound, Place, Update, Workload
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Kind
from shardlang.plan.layouts.assignment import Assignment, LayoutTable, local_size
from shardlang.plan.layouts.inside import all_reduce_bytes, inside_bytes
from shardlang.plan.layouts.op_classes import Planning, ValueFacts
from shardlang.plan.plan import MoveKind, OperandUse, Plan, PlannedOp, Step
from shardlang.plan.redistribute.cheapest import TooManyLayouts, router
from shardlang.types.layout import Layout
from shardlang.types.mesh import Mesh

# The bytes of a bucket, of which a gradient is a part.
_BUCKET = 25_000_000
_NOWHERE = Place("", "", "")


@dataclass
class SplitPrices:
    """Prices on some meshes. own: of operators; conversion: of values."""

    hardware: Hardware
    meshes: tuple[Mesh, ...]
    ranks: int
    _known: dict[tuple[object, ...], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        timeless = tuple(mesh.timeless for mesh in self.meshes)
        self.prices = Prices(Workload(self.ranks, timeless, 1, (), (), ()), self.hardware)
        self.count = next((mesh.time.size for mesh in self.meshes if mesh.time), 1)

    def own(
        self, program: CheckedProgram, planning: Planning, table: LayoutTable, ops: Sequence[int],
        options: Sequence[Sequence[Assignment]],
    ) -> list[list[float]]:  # fmt: skip
        """The seconds of each operator under each of its options, in a microbatch."""
        found: list[list[float]] = [[] for _ in ops]
        for at in range(max(map(len, options), default=0)):
            here = [n for n, each in enumerate(options) if at < len(each)]
            plan = alone(program, planning, table, [(ops[n], options[n][at]) for n in here])
            steps = Steps(plan)
            for place, n in enumerate(here):
                step = Step("op", place)
                items = (*steps.forward(step), *steps.backward(step))
                found[n].append(sum(map(self.prices.item, items)) + self._once(planning, table, ops[n], options[n][at]))
        return found

    def _once(self, planning: Planning, table: LayoutTable, op: int, assignment: Assignment) -> float:
        """The sums of gradients of its parameters and their update, once a step."""
        kind, mesh, total = planning.classes[op], table.meshes[assignment.mesh], 0.0
        values, layouts = planning.graph.ops[op].operands, table.layouts(kind.rule, assignment).operands
        for tensor, layout, value in zip(kind.operands, layouts, values, strict=True):
            first = planning.users[value][0][0] == op
            if tensor.kind is not Kind.PARAM or not tensor.gradient or not first:
                continue
            local = local_size(tensor.shape, layout, mesh)
            total += self.prices.update(Update("adamw", "f32", local, 0))
            axes = mesh.ranked(layout.replicated)
            if axes:
                size = all_reduce_bytes(mesh.degree(axes), local * tensor.itemsize)
                whole = self.prices.collective("all_reduce", assignment.mesh, axes, _BUCKET)
                total += whole * size / _BUCKET
        return total / self.count

    def conversion(self, tensor: ValueFacts, source: Layout, target: Layout) -> float:
        """The seconds of a conversion and of its dual, in a microbatch; inf where there is none."""
        if source == target:
            return 0.0
        key = tensor, source, target
        if key not in self._known:
            self._known[key] = self._conversion(tensor, source, target)
        return self._known[key]

    def _conversion(self, tensor: ValueFacts, source: Layout, target: Layout) -> float:
        routes = router(self.meshes)
        try:
            route = routes.route(source, target, tensor.routed, tensor.gradient)
        except TooManyLayouts:
            return math.inf
        if route is None:
            return math.inf
        total, before = 0.0, source
        for move, after in route.moves:
            mesh = self.meshes[after.mesh]
            axes = mesh.ranked(move.axes)
            by = move.kind.collectives
            if axes:
                ways = ((by[0], move.forward_bytes, FORWARD), (by[1], move.backward_bytes * tensor.gradient, INPUTS))
                for kind, size, phase in ways:
                    if kind and size:
                        sent = Collective(_NOWHERE, phase, "f32", kind, after.mesh, axes, per(size, self.count))
                        total += self.prices.item(sent) + self._copied(
                            tensor, before, after, move.kind, move.dim, phase
                        )
            before = after
        return total

    def _copied(self, tensor: ValueFacts, before: Layout, after: Layout, kind: MoveKind, dim: int, phase: str) -> float:
        """Blocks along a dim that are no rows of memory are copied (cost/items.py, `_moved`)."""
        sizes = [local_size(tensor.shape, each, self.meshes[each.mesh]) * tensor.itemsize for each in (before, after)]
        if dim <= 0 or kind is MoveKind.PERMUTE or math.prod(tensor.shape[:dim]) == 1:
            return 0.0
        moved = max(sizes)
        return self.prices.item(MemoryBound(_NOWHERE, phase, "f32", moved, moved, moved // tensor.itemsize))


def alone(
    program: CheckedProgram, planning: Planning, table: LayoutTable, some: Sequence[tuple[int, Assignment]]
) -> Plan:
    """A plan of some operators, each of which is given what it reads in the form that it needs."""
    produced: dict[int, Layout] = {}
    ops, graph = [], planning.graph
    for op, assignment in some:
        kind, mesh = planning.classes[op], planning.meshes[assignment.mesh]
        layouts, it = table.layouts(kind.rule, assignment), graph.ops[op]
        uses = tuple(OperandUse(v, -1, layout) for v, layout in zip(it.operands, layouts.operands, strict=True))
        inside = tuple(inside_bytes(kind, assignment, mesh))
        ops.append(PlannedOp(op, assignment.factors, uses, layouts.results, inside, "", assignment.mesh))
        produced.update(zip(it.results, layouts.results, strict=True))
    for planned in ops:
        for use in planned.operands:
            produced.setdefault(use.value, use.layout)
    if graph.loss is not None:
        produced.setdefault(graph.loss, Layout(()))
    strategy = planning.strategy
    return Plan(
        program, graph, strategy.name, ranks=strategy.ranks or 1, meshes=planning.meshes, produced=produced,
        ops=tuple(ops), conversions=(), params={},
        steps=tuple(Step("op", at) for at in range(len(ops))), sizes=strategy.sizes, memory_of=strategy.hosted,
        microbatches=strategy.times.count if strategy.times else 1,
    )  # fmt: skip
