"""From chosen assignments to conversions: per value one cheapest tree from its produced layout to
every form its users read.

Storage of leaves comes from storage.py; the order of steps is planner.py's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from shardlang.diagnostics.diagnostic import InternalError
from shardlang.graph.graph import Kind
from shardlang.plan.layouts.assignment import Assignment, LayoutTable
from shardlang.plan.layouts.op_classes import Planning, Tensor
from shardlang.plan.layouts.storage import Stored, align, bare, choose
from shardlang.plan.plan import Conversion, OperandUse
from shardlang.plan.redistribute import along_time
from shardlang.plan.redistribute.steiner_tree import Edge, Target, tree
from shardlang.records import dataclass
from shardlang.types.layout import Layout


@dataclass(frozen=True, slots=True)
class ValueTree:
    """A value's tree as edges, and the edge (-1: as produced) and layout that each target reads."""

    edges: tuple[Edge, ...]
    ends: tuple[tuple[int, Layout], ...]


@dataclass
class Conversions:
    """The readers of each value: produced layouts, all conversions, and each operand's use."""

    produced: dict[int, Layout] = field(default_factory=dict)
    stored: dict[int, Stored] = field(default_factory=dict)
    conversions: list[Conversion] = field(default_factory=list)
    uses: dict[tuple[int, int], OperandUse] = field(default_factory=dict)


def place_conversions(planning: Planning, chosen: list[Assignment], table: LayoutTable) -> Conversions:
    """The conversions of each value from its produced layout to the forms that its users read."""
    return _Walk(planning, chosen, table).run()


@dataclass
class _Walk:
    """One walk over all values. Trees are remembered by tensor, produced layout and targets, each
    of which is one object (`LayoutTable`, `Planning.tensor`) and so known by its id."""

    planning: Planning
    chosen: list[Assignment]
    table: LayoutTable
    placed: Conversions = field(default_factory=Conversions)
    known: dict[tuple[object, ...], ValueTree] = field(default_factory=dict)
    storage: dict[tuple[object, ...], Stored] = field(default_factory=dict)

    def run(self) -> Conversions:
        for value in self.planning.graph.values:
            self._place(value.id)
        return self.placed

    def _place(self, value: int) -> None:
        planning = self.planning
        users = planning.users[value]
        targets = tuple([self._target(op, at) for op, at in users])
        tensor = planning.tensors[value]
        source, through = self._source(value, tensor, targets)
        if value == planning.graph.loss:
            targets = (*targets, *self._summed(through or source))
        self.placed.produced[value] = source
        forms = self._forms(source, through, targets, tensor)
        first = len(self.placed.conversions)
        for i, edge in enumerate(forms.edges):
            parent = edge.parent + first if edge.parent >= 0 else -1
            self.placed.conversions.append(Conversion(first + i, value, parent, edge.move, edge.to, edge.gradient))
        for user, (end, layout) in zip(users, forms.ends, strict=False):
            self.placed.uses[user] = OperandUse(value, end + first if end >= 0 else -1, layout)

    def _summed(self, loss: Layout) -> list[Target]:
        """The loss as the runtime takes it: with microbatches, pending over time."""
        time = self.planning.meshes[loss.mesh].time
        if time is None or loss.state(time.name) == "P":
            return []
        bare = along_time.without(loss, time.name)
        return [Target(self.table.intern(Layout(bare.dims, (*bare.pending, time.name), bare.replicated, bare.mesh)))]

    def _target(self, op: int, at: int) -> Target:
        layout = self.planning.operand(op, at, self.chosen, self.table)
        return Target(layout, self.planning.classes[op].operands[at].gradient)

    def _source(self, value: int, tensor: Tensor, targets: tuple[Target, ...]) -> tuple[Layout, Layout | None]:
        """The produced layout, and the layout that a rule has it converted to at once."""
        graph = self.planning.graph
        producer = graph.producers.get(value)
        if producer is not None:
            kind = self.planning.classes[producer]
            results = self.table.layouts(kind.rule, self.chosen[producer]).results
            at = graph.ops[producer].results.index(value)
            return results[at], kind.wanted if at == 0 else None
        trained = tensor.kind is Kind.PARAM and tensor.gradient
        pinned = self.planning.strategy.stored.get(value)
        ids = [(id(t.layout), t.gradient) for t in targets]
        key = (id(tensor), trained, id(pinned), *ids)
        stored = self.storage.get(key)
        if stored is None:
            stored = self.storage[key] = choose(tensor, targets, self.planning.meshes, trained, pinned)
        self.placed.stored[value] = stored
        return stored.root, None

    def _forms(self, source: Layout, wanted: Layout | None, targets: tuple[Target, ...], tensor: Tensor) -> ValueTree:
        ids = [(id(t.layout), t.gradient) for t in targets]
        key = (id(source), id(wanted), id(tensor), *ids)
        known = self.known.get(key)
        if known is None:
            known = self.known[key] = self._grow(source, wanted, targets, tensor)
        return known

    def _grow(self, source: Layout, wanted: Layout | None, targets: tuple[Target, ...], tensor: Tensor) -> ValueTree:
        edges: list[Edge] = []
        start, at = source, -1
        if wanted is not None:
            edges += self._tree(source, [Target(wanted, tensor.gradient)], tensor)[0]
            start, at = wanted, len(edges) - 1
        wants = [_shared(t, targets, start) for t in targets]
        more, ends = self._tree(start, wants, tensor)
        offset = len(edges)
        edges += [Edge(e.parent + offset if e.parent >= 0 else at, e.move, e.to, e.gradient) for e in more]
        moved = [end + offset if end >= 0 else at for end in ends]
        return ValueTree(tuple(edges), tuple((e, t.layout) for e, t in zip(moved, wants, strict=True)))

    def _tree(
        self, source: Layout, targets: Sequence[Target], tensor: Tensor
    ) -> tuple[tuple[Edge, ...], tuple[int, ...]]:
        if all(t.layout == source for t in targets):
            return (), (-1,) * len(targets)
        found = tree(source, targets, tensor.shape, tensor.itemsize, self.planning.meshes, tensor.uneven)
        if found is None:
            raise InternalError(f"no conversions lead from {source} to {targets}")
        return found.edges, found.ends


def _shared(target: Target, targets: tuple[Target, ...], source: Layout) -> Target:
    """A use without gradient reads a form of a use with one, if they differ in I and R alone."""
    if target.gradient:
        return target
    for other in targets:
        if (
            other.gradient
            and bare(other.layout) == bare(target.layout)
            and other.layout.pending == target.layout.pending
        ):
            return Target(other.layout, False)
    return Target(align(target.layout, source, False), False)
