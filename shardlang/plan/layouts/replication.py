"""I or R for operators that are not split along an axis: the labels with which fewest bytes move,
by a minimum cut per axis.

Turns assignments into assignments; min_cut.py solves, this module says what the cut is about.
Splits stay as they are."""

from __future__ import annotations

from dataclasses import field

from shardlang.frozen.records import dataclass
from shardlang.graph.graph import LEAF, Kind, Op
from shardlang.plan.layouts.assignment import Assignment, LayoutTable, assign, local_size
from shardlang.plan.layouts.inside import all_reduce_bytes
from shardlang.plan.layouts.min_cut import CutValue, decide
from shardlang.plan.layouts.op_classes import OpClass, Planning, ValueFacts
from shardlang.plan.redistribute.steiner_tree import Target, tree
from shardlang.types.layout import Layout


def replication(planning: Planning, chosen: list[Assignment], table: LayoutTable) -> list[Assignment]:
    """The assignments with `replicated` decided; axes outermost first."""
    for mesh, layout in enumerate(planning.meshes):
        for axis in layout.timeless.axes:
            chosen = _Axis(planning, chosen, table, mesh, axis.name).run()
    return chosen


@dataclass
class _Axis:
    """One axis: which operators have a choice, and what each label costs."""

    planning: Planning
    chosen: list[Assignment]
    table: LayoutTable
    mesh: int
    axis: str
    costs: dict[tuple[object, ...], int] = field(default_factory=dict)
    free: dict[tuple[OpClass, Assignment], bool] = field(default_factory=dict)

    def run(self) -> list[Assignment]:
        free = [self._undecided(op) for op in self.planning.graph.ops]
        worth = self._worth(free)
        if not worth:
            return self.chosen
        self.planning.layers.outside(worth)
        number = {op: i for i, op in enumerate(sorted(worth))}
        choices = [c for v in range(len(self.planning.tensors)) if (c := self._choice(v, number)) is not None]
        _, replicated = decide(len(number), choices)
        chosen = list(self.chosen)
        for op, i in number.items():
            if replicated[i]:
                old = chosen[op]
                chosen[op] = assign(old.factors, old.through, (*old.replicated, self.axis), old.mesh)
        return chosen

    def _undecided(self, op: Op) -> bool:
        """Whether the operator is unsplit along the axis, and no pin nor the loss decides."""
        if op.section != "loss" or self.planning.graph.loss in op.results:
            return False
        key = self.planning.classes[op.id], self.chosen[op.id]
        if key not in self.free:
            self.free[key] = self._free(*key)
        return self.free[key]

    def _free(self, kind: OpClass, assignment: Assignment) -> bool:
        if assignment.mesh != self.mesh or not any(t.gradient for t in kind.results):
            return False
        if kind.demand is not None and (kind.demand.chosen == "pin" or kind.wanted is not None):
            return False
        used = (*assignment.split_axes(), *assignment.replicated)
        return self.axis not in used and all(a != self.axis for a, _ in assignment.through)

    def _worth(self, free: list[bool]) -> set[int]:
        """The undecided operators from which a fixed use of R is reachable: others take I."""
        graph, users = self.planning.graph, self.planning.users
        found: set[int] = set()
        for op in reversed(graph.ops):
            if not free[op.id]:
                continue
            later = [u for v in op.results for u in users[v]]
            if any(u in found or self._needs_replica(u, at, free) for u, at in later):
                found.add(op.id)
        return found

    def _needs_replica(self, op: int, at: int, free: list[bool]) -> bool:
        return not free[op] and self.axis in self._operand(op, at).replicated and self._tensor(op, at).gradient

    def _operand(self, op: int, at: int) -> Layout:
        return self.planning.operand(op, at, self.chosen, self.table)

    def _tensor(self, op: int, at: int) -> ValueFacts:
        return self.planning.classes[op].operands[at]

    def _choice(self, value: int, number: dict[int, int]) -> CutValue | None:
        planning = self.planning
        tensor = planning.tensors[value]
        users = [(op, at) for op, at in planning.users[value] if self._tensor(op, at).gradient]
        consumers = tuple(number[op] for op, _ in users if op in number)
        producer = planning.graph.producers.get(value)
        decided = producer is None or producer not in number
        if not tensor.gradient or (decided and not consumers):
            return None
        fixed = [self._operand(op, at) for op, at in users if op not in number]
        free = [self._operand(op, at) for op, at in users if op in number]
        if tensor.kind in LEAF:
            more = 2 * self._reduction(tensor, fixed, free)
            # Of equal bytes the sum once a step, in a bucket with others, before one of its own.
            alone = all(planning.classes[op].batch_free for op, _ in users if op in number)
            return CutValue(-1, consumers, 0, more - 1 if more and alone else more)
        source = planning.result(value, self.chosen, self.table)
        assert producer is not None and source is not None
        marked = [self._marked(x) for x in free]
        low, high = self._cost(source, (*fixed, *free), tensor), self._cost(source, (*fixed, *marked), tensor)
        base = 0 if decided else self._cost(self._marked(source), (*fixed, *marked), tensor)
        low, high = 2 * max(0, low - base), 2 * max(0, high - base)
        return CutValue(-1 if decided else number[producer], consumers, low, max(low, high))

    def _marked(self, layout: Layout) -> Layout:
        """The layout as R along this axis."""
        order = [a.name for a in self.planning.meshes[self.mesh].axes]
        marks = tuple(sorted({*layout.replicated, self.axis}, key=order.index))
        return Layout(layout.dims, layout.pending, marks, layout.mesh)

    def _reduction(self, tensor: ValueFacts, fixed: list[Layout], free: list[Layout]) -> int:
        """The extra cost of a parameter's gradient if its free users are R: nothing where it is
        reduced or split anyway."""
        settled = any(self.axis in x.replicated or self.axis in x.split_axes() for x in fixed)
        if tensor.kind is not Kind.PARAM or settled or not free:
            return 0
        mesh = self.planning.meshes[self.mesh]
        local = local_size(tensor.shape, free[0], mesh) * tensor.itemsize
        return all_reduce_bytes(mesh.axis_size(self.axis), local)

    def _cost(self, source: Layout, targets: tuple[Layout, ...], tensor: ValueFacts) -> int:
        distinct = tuple(dict.fromkeys(t for t in targets if t != source))
        if not distinct:
            return 0
        key = (source, distinct, tensor)
        if key not in self.costs:
            wanted = [Target(t) for t in distinct]
            found = tree(source, wanted, tensor.routed, self.planning.meshes)
            self.costs[key] = 1 << 100 if found is None else found.cost
        return self.costs[key]
