"""Second thoughts on propagated layouts: each operator whose neighbours pay for conversions tries
its other assignments.

The pass in propagate.py cannot see an operand that is settled elsewhere; here every neighbour's
choice is known."""

from __future__ import annotations

from shardlang.frozen.records import dataclass
from shardlang.graph.graph import LEAF
from shardlang.plan.layouts.assignment import Assignment, LayoutTable, assign
from shardlang.plan.layouts.candidates import alternatives, own_cost
from shardlang.plan.layouts.op_classes import OpClass, Planning, ValueFacts
from shardlang.plan.layouts.propagate import REPEATED, Distances
from shardlang.types.layout import Layout

SWEEPS = 2
Users = tuple[tuple[int, Layout, tuple[str, ...], ValueFacts], ...]


def local_search(planning: Planning, chosen: list[Assignment], table: LayoutTable) -> list[Assignment]:
    """The assignments after sweeps from last operator to first; never dearer than before."""
    work = _Improving(planning, list(chosen), table)
    for _ in range(SWEEPS):
        if not work.sweep():
            break
    return work.chosen


@dataclass
class _Improving:
    planning: Planning
    chosen: list[Assignment]
    table: LayoutTable

    def __post_init__(self) -> None:
        shared = self.planning.shared
        self.distances = Distances(self.planning)
        self.known: dict[tuple[object, ...], Assignment] = shared(local_search, dict)
        self.ways: dict[tuple[OpClass, Assignment], tuple[Assignment, ...]] = shared(_Improving._ways, dict)
        self.unused: dict[tuple[OpClass, Assignment], tuple[str, ...]] = shared(_Improving._unused_axes, dict)

    def sweep(self) -> bool:
        """Whether anything changed."""
        changed, planning, chosen, table = False, self.planning, self.chosen, self.table
        unsettled, made = self._unsettled()
        for op in reversed(self.planning.graph.ops):
            if op.id not in unsettled:
                continue
            kind, now = self.planning.classes[op.id], self.chosen[op.id]
            inputs = tuple([made.get(v) for v in op.operands])
            users = tuple([
                (r, planning.operand(user, at, chosen, table), self._unused(user), planning.classes[user].operands[at])
                for r, v in enumerate(op.results) for user, at in planning.users[v]
            ])  # fmt: skip
            ids = [(r, id(need), id(others), id(tensor)) for r, need, others, tensor in users]
            key = (kind, now, *map(id, inputs), *ids)
            if key not in self.known:
                self.known[key] = self._best(kind, now, inputs, users)
            best = self.known[key]
            changed = changed or best is not now
            self.chosen[op.id] = best
        planning.layers.same(chosen)
        return changed

    def _unsettled(self) -> tuple[set[int], dict[int, Layout]]:
        """The operators around which something is converted, and the layouts in which operators
        make their values: only these operators have anything to gain."""
        found: set[int] = set()
        made: dict[int, Layout] = {}
        plain = self.distances.plain
        producers = self.planning.graph.producers
        for op in self.planning.graph.ops:
            kind = self.planning.classes[op.id]
            layouts = self.table.layouts(kind.rule, self.chosen[op.id])
            for value, need in zip(op.operands, layouts.operands, strict=True):
                layout = made.get(value)
                if layout is not None and layout is not need and plain(layout) != plain(need):
                    found.update((op.id, producers[value]))
            made.update(zip(op.results, layouts.results, strict=True))
            if kind.wanted is not None:
                made[op.results[0]] = kind.wanted
        return found, made

    def _ways(self, kind: OpClass, now: Assignment) -> tuple[Assignment, ...]:
        """The present assignment, then each that differs from it along one axis."""
        key = (kind, now)
        if key not in self.ways:
            found = [now]
            for axis in self.planning.meshes[now.mesh].timeless.axes:
                cleared = _without(kind, now, axis.name)
                if cleared is not None:
                    found += alternatives(kind, cleared, axis.name, self.planning.meshes[now.mesh])
            self.ways[key] = tuple(dict.fromkeys(found))
        return self.ways[key]

    def _unused(self, op: int) -> tuple[str, ...]:
        return self._unused_axes(self.planning.classes[op], self.chosen[op])

    def _unused_axes(self, kind: OpClass, now: Assignment) -> tuple[str, ...]:
        """The axes that an assignment leaves unused though another could use them."""
        key = (kind, now)
        if key not in self.unused:
            used = {*now.split_axes(), *(a for a, _ in now.through)}
            mesh = self.planning.meshes[now.mesh]
            free = [a.name for a in mesh.timeless.axes if a.name not in used]
            self.unused[key] = tuple(a for a in free if len(alternatives(kind, now, a, mesh)) > 1)
        return self.unused[key]

    def _best(self, kind: OpClass, now: Assignment, inputs: tuple[Layout | None, ...], users: Users) -> Assignment:
        ways = self._ways(kind, now)
        if len(ways) == 1:
            return now
        return min(ways, key=lambda a: self._cost(kind, a, inputs, users))

    def _cost(self, kind: OpClass, way: Assignment, inputs: tuple[Layout | None, ...], users: Users) -> int:
        layouts = self.table.layouts(kind.rule, way)
        unused = self._unused_axes(kind, way)
        cost = own_cost(kind, way, self.table)
        for layout, need, tensor in zip(inputs, layouts.operands, kind.operands, strict=True):
            if layout is not None and tensor.kind not in LEAF:
                cost += self.distances.between(layout, need, tensor) + _repeats(layout, unused)
        results = layouts.results
        if kind.wanted is not None:
            results = (kind.wanted, *results[1:])
        trained = {(r, need) for r, need, _, tensor in users if tensor.gradient}
        for r, need, others, tensor in dict.fromkeys(users):
            cost += _repeats(results[r], others)
            if tensor.gradient or (r, need) not in trained:  # else the form is there already
                cost += self.distances.handed(kind, results[r], need, tensor)
        return cost


def _repeats(layout: Layout, unused: tuple[str, ...]) -> int:
    return REPEATED * sum(layout.state(a) in "SP" for a in unused)


def _without(kind: OpClass, now: Assignment, axis: str) -> Assignment | None:
    """`now` with nothing done along `axis`; None where a rule settles the axis."""
    demand = kind.demand
    if demand is not None:
        settled = {a for axes in demand.factors if axes for a in axes} | set(demand.through)
        if demand.complete or axis in settled:
            return None
    factors = tuple(tuple(a for a in axes if a != axis) for axes in now.factors)
    replicated = tuple(a for a in now.replicated if a != axis)
    return assign(factors, tuple(t for t in now.through if t[0] != axis), replicated, now.mesh)
