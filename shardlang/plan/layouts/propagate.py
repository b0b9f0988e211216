"""Layouts for all operators: what rules demand stays, the rest is chosen so that fewest bytes move,
forward and backward.

One mesh axis after another, outermost first: costs are passed up from users to producers, then
choices are made from inputs to outputs. Labels I and R of unsplit operators are replication.py's;
conversions are written down by conversions.py."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import field

from shardlang.frozen.records import dataclass
from shardlang.graph.graph import LEAF
from shardlang.paths.patterns import SingleLayers
from shardlang.plan.layouts.assignment import Assignment
from shardlang.plan.layouts.candidates import BYTE, Candidates, alternatives, candidates, initial
from shardlang.plan.layouts.equal_layers import LayerRun
from shardlang.plan.layouts.op_classes import OpClass, Planning, ValueFacts
from shardlang.plan.redistribute.cheapest import Router, router
from shardlang.types.layout import Layout

# More than any plan costs: where no chain of conversions leads.
IMPOSSIBLE = 1 << 200
# Repeating on every rank what arrives divided sends fewest bytes of all, and is never meant: bytes
# decide among the rest.
REPEATED = 1 << 160
# Of equal bytes: a parameter that is whole, its gradient summed with others once a step, before one
# whose parts are gathered each time. More than any work, less than a byte.
GATHERED = BYTE >> 1


class Distances:
    """Conversion costs as choices see them. Without gradient I and R are one state."""

    def __init__(self, planning: Planning) -> None:
        self.router: Router = router(planning.meshes)
        self._plain: dict[Layout, Layout] = {}

    def plain(self, layout: Layout) -> Layout:
        """The layout with R as I."""
        if not layout.replicated:
            return layout
        known = self._plain.get(layout)
        if known is None:
            known = self._plain[layout] = Layout(layout.dims, layout.pending, (), layout.mesh)
        return known

    def between(self, source: Layout, target: Layout, tensor: ValueFacts) -> int:
        """Cost of one conversion; 0 for parameters and data, which take the layout of their use."""
        if source is target or tensor.kind in LEAF:
            return 0
        if not tensor.gradient:
            source, target = self.plain(source), self.plain(target)
        cost = self.router.distance(source, target, tensor.routed, tensor.gradient)
        return IMPOSSIBLE if cost is None else cost * BYTE

    def handed(self, maker: OpClass, source: Layout, target: Layout, tensor: ValueFacts) -> int:
        """The cost of one conversion of what `maker` makes."""
        cost = self.between(source, target, tensor)
        gathered = maker.batch_free and cost >= BYTE and not set(source.split_axes()) <= set(target.split_axes())
        return cost + GATHERED if gathered else cost


@dataclass(frozen=True, eq=False, slots=True)
class Situation:
    """An operator's candidates with the cost of each from here on (least is 0); equal ones once."""

    options: Candidates
    ahead: tuple[int, ...]
    share: int  # operands that are not leaves, among which `ahead` is shared


@dataclass
class PassTables:
    """Tables of what passes along one axis have found out, so that repeated layers, and operators
    of other plans, cost a look-up."""

    options: dict[tuple[OpClass, Assignment], Candidates] = field(default_factory=dict)
    situations: dict[tuple[object, ...], Situation] = field(default_factory=dict)
    before: dict[tuple[object, ...], Situation] = field(default_factory=dict)
    choices: dict[tuple[object, ...], int] = field(default_factory=dict)
    arrivals: dict[tuple[int, int, int], list[int]] = field(default_factory=dict)


@dataclass
class Sweep:
    """One pass along one axis. in_runs: operator of a run of layers -> its situations in these."""

    planning: Planning
    distances: Distances
    mesh: int
    axis: str
    in_runs: dict[int, Counter[Situation]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.known = self.planning.shared((Sweep, self.mesh, self.axis), PassTables)

    def run(self, given: list[Assignment], layouts: list[Layout | None]) -> list[Assignment]:
        """The assignments with this axis decided; `layouts` gets the layout of each value."""
        ahead = self._backward(given)
        chosen = list(given)
        for op, situation in zip(self.planning.graph.ops, ahead, strict=True):
            options = situation.options
            inputs = tuple([layouts[v] for v in op.operands])
            at = self._chosen(situation, inputs)
            for further in self.in_runs.get(op.id, ()):
                if self._chosen(further, inputs) != at:
                    raise SingleLayers
            chosen[op.id] = options.assignments[at]
            for value, forms in zip(op.results, options.results, strict=True):
                layouts[value] = forms[at]
        self.planning.layers.same(chosen)
        return chosen

    def _chosen(self, situation: Situation, inputs: tuple[Layout | None, ...]) -> int:
        key = (situation, *map(id, inputs))
        at = self.known.choices.get(key)
        if at is None:
            at = self.known.choices[key] = self._choose(situation, inputs)
        return at

    def _backward(self, given: list[Assignment]) -> list[Situation]:
        """Per operator its situation, from the last to the first; in a run that of its first
        layer."""
        runs = self.planning.layers.runs
        found: list[Situation] = [None] * len(self.planning.graph.ops)  # type: ignore[list-item]
        at = len(found) - 1
        while at >= 0:
            if at in runs:
                self._through(runs[at], given, found)
                at -= len(runs[at].ops)
            else:
                found[at] = self._behind(at, given, found, {})
                at -= 1
        return found

    def _through(self, run: LayerRun, given: list[Assignment], found: list[Situation]) -> None:
        """The situations in each layer of a run, from the last layer to the first."""
        ops = [op for op, _, _ in reversed(run.ops)]
        readers = {op: self._readers(op) for op in ops}
        passed = [self.in_runs.setdefault(op, Counter()) for op in ops]
        following: dict[int, Situation] = {}
        for layer in range(run.times):
            before, known = [found[op] for op in ops], following
            following = {after: found[op] for after, op in run.after.items()} if layer else {}
            # What no changed situation is behind stays as in the layer before.
            changed = {after for after, situation in following.items() if known.get(after) is not situation}
            for op in ops:
                if layer and changed.isdisjoint(readers[op]):
                    continue
                situation = self._behind(op, given, found, following)
                if found[op] is not situation:
                    changed.add(op)
                    found[op] = situation
            more = run.times - layer if before == [found[op] for op in ops] else 1
            for op, layers in zip(ops, passed, strict=True):
                layers[found[op]] += more
            if more > 1:
                break

    def _readers(self, op: int) -> set[int]:
        """The operators that read what one makes."""
        return {user for value in self.planning.graph.ops[op].results for user, _ in self.planning.users[value]}

    def _behind(
        self, at: int, given: list[Assignment], found: list[Situation], following: Mapping[int, Situation]
    ) -> Situation:
        """The situation of an operator, by those of the operators that read what it makes.
        following: in the next layer of a run, by the operators of the layer after the run."""
        planning, shared = self.planning, self.planning.layers.shared
        options, later = self._options(planning.classes[at], given[at]), list[tuple[Situation, int, int]]()
        for r, value in enumerate(planning.graph.ops[at].results):
            for user in planning.users[value]:
                if user in shared:
                    later += [(each, user[1], r) for each in self.in_runs[user[0]].elements()]
                else:
                    later.append((following.get(user[0]) or found[user[0]], user[1], r))
        key = (options, *later)
        known = self.known.before.get(key)
        if known is None:
            known = self.known.before[key] = self._situation(options, later)
        return known

    def _options(self, kind: OpClass, given: Assignment) -> Candidates:
        key = (kind, given)
        known = self.known.options.get(key)
        if known is None:
            mesh = self.planning.meshes[self.mesh]
            ways = alternatives(kind, given, self.axis, mesh) if given.mesh == self.mesh else (given,)
            unused_axis = ways.index(given) if len(ways) > 1 else -1
            known = self.known.options[key] = candidates(kind, ways, self.planning.table, unused_axis)
        return known

    def _situation(self, options: Candidates, later: list[tuple[Situation, int, int]]) -> Situation:
        total = list(options.own)
        for user, at, result in later:
            for i, more in enumerate(self._message(user, at, options, result)):
                total[i] += more
        _limit_idle(total, options)
        least = min(total)
        ahead = tuple([x - least for x in total])
        key = (options, ahead)
        known = self.known.situations.get(key)
        if known is None:
            kinds = [t.kind for t in options.kind.operands]
            share = sum(k not in LEAF for k in kinds) or 1
            known = self.known.situations[key] = Situation(options, ahead, share)
        return known

    def _message(self, user: Situation, at: int, producer: Candidates, result: int) -> tuple[int, ...]:
        """Per candidate of a producer: the least a user adds, by converting and from there on."""
        share = user.share
        made: dict[Layout, int] = {}
        for layout in producer.results[result]:
            if layout not in made:
                costs = self._arrive(layout, user.options, at)
                if producer.kind.batch_free:
                    costs = self._handed(producer.kind, layout, user.options, at, costs)
                made[layout] = min([cost + later // share for cost, later in zip(costs, user.ahead, strict=True)])
        return tuple([made[x] for x in producer.results[result]])

    def _handed(self, maker: OpClass, layout: Layout, options: Candidates, at: int, costs: list[int]) -> list[int]:
        tensor, distances = options.kind.operands[at], self.distances
        more = [
            distances.handed(maker, layout, need, tensor) - distances.between(layout, need, tensor)
            for need in options.operands[at]
        ]
        return [cost + extra for cost, extra in zip(costs, more, strict=True)]

    def _arrive(self, layout: Layout, options: Candidates, at: int) -> list[int]:
        """Per candidate the cost of taking an operand that is laid out so. Layouts are one object
        each (`LayoutTable`)."""
        key = (id(layout), id(options), at)
        known = self.known.arrivals.get(key)
        if known is None:
            known = self.known.arrivals[key] = self._arrivals(layout, options, at)
        return known

    def _arrivals(self, layout: Layout, options: Candidates, at: int) -> list[int]:
        tensor, between = options.kind.operands[at], self.distances.between
        costs = [between(layout, need, tensor) for need in options.operands[at]]
        if options.unused_axis >= 0 and tensor.kind not in LEAF and layout.state(self.axis) in "SP":
            costs[options.unused_axis] += REPEATED
        return costs

    def _choose(self, situation: Situation, inputs: tuple[Layout | None, ...]) -> int:
        """The first of the cheapest candidates, operands being laid out as they are."""
        options, kind = situation.options, situation.options.kind
        totals = list(situation.ahead)
        moved = [0] * len(totals)
        for at in range(len(kind.operands)):
            layout = inputs[at]
            if layout is None:
                continue
            for i, cost in enumerate(self._arrive(layout, options, at)):
                totals[i] += cost
                moved[i] += cost
        return min(range(len(totals)), key=lambda i: (totals[i], moved[i], i))


def _limit_idle(total: list[int], options: Candidates) -> None:
    """Repeating work looks cheaper with every layer to come; more than some conversions' worth
    decides nothing, so it is cut.

    Without that the costs of equal layers would differ without end, and none of them could be
    shared."""
    if options.unused_axis < 0:
        return
    kind = options.kind
    largest = max([math.prod(t.shape) * t.itemsize for t in (*kind.operands, *kind.results)])
    others = min([cost for i, cost in enumerate(total) if i != options.unused_axis])
    total[options.unused_axis] = max(total[options.unused_axis], others - 8 * largest * BYTE)


def propagate(planning: Planning, open: Collection[str] = ()) -> list[Assignment]:
    """An assignment for every operator of the graph, by operator id; axes that are open stay so."""
    distances = Distances(planning)
    start = {kind: initial(kind) for kind in dict.fromkeys(planning.classes)}
    chosen = [start[kind] for kind in planning.classes]
    for mesh, layout in enumerate(planning.meshes):
        for axis in layout.timeless.axes:
            if axis.size > 1 and axis.name not in open:
                seen: list[Layout | None] = [None] * len(planning.graph.values)
                chosen = Sweep(planning, distances, mesh, axis.name).run(chosen, seen)
    return chosen
