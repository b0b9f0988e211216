"""From chosen assignments to conversions: per value one cheapest tree from its produced layout to
every form its users read.

Storage of leaves comes from storage.py; the order of steps is planner.py's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

from shardlang.diagnostics.diagnostic import InternalError
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Kind
from shardlang.plan.layouts.assignment import Assignment, LayoutTable
from shardlang.plan.layouts.op_classes import Planning, ValueFacts
from shardlang.plan.layouts.storage import StorageLayout, align, bare, choose
from shardlang.plan.plan import Conversion, MoveKind, OperandUse
from shardlang.plan.redistribute import along_time
from shardlang.plan.redistribute.cheapest import VIEW
from shardlang.plan.redistribute.steiner_tree import Edge, Target, tree
from shardlang.types.layout import Layout

# Moves whose forward does nothing.
_SAME = (MoveKind.I_TO_R, MoveKind.R_TO_I)


@dataclass(frozen=True, slots=True)
class ValueTree:
    """The layout that a value is produced in (`stored`, where no operator makes it), its tree as
    edges, and the edge (-1: as produced) and layout that each target reads."""

    source: Layout
    stored: StorageLayout | None
    edges: tuple[Edge, ...]
    ends: tuple[tuple[int, Layout], ...]


@dataclass
class Conversions:
    """The readers of each value: produced layouts, all conversions, and each operand's use."""

    produced: dict[int, Layout] = field(default_factory=dict)
    stored: dict[int, StorageLayout] = field(default_factory=dict)
    conversions: list[Conversion] = field(default_factory=list)
    uses: dict[tuple[int, int], OperandUse] = field(default_factory=dict)


def place_conversions(planning: Planning, chosen: list[Assignment], table: LayoutTable) -> Conversions:
    """The conversions of each value from its produced layout to the forms that its users read."""
    return _ConversionWalk(planning, chosen, table).run()


@dataclass
class _ConversionWalk:
    """One walk over all values. Trees are remembered by tensor and by the classes and assignments
    of producer and users, each of which is one object."""

    planning: Planning
    chosen: list[Assignment]
    table: LayoutTable
    placed: Conversions = field(default_factory=Conversions)

    def __post_init__(self) -> None:
        self.known: dict[tuple[object, ...], ValueTree] = self.planning.shared(ValueTree, dict)

    def run(self) -> Conversions:
        for value in self.planning.graph.values:
            self._place(value.id)
        return self.placed

    def _place(self, value: int) -> None:
        placed, users, first = self.placed, self.planning.users[value], len(self.placed.conversions)
        tree = self._tree_of(value, users)
        placed.produced[value] = tree.source
        if tree.stored is not None:
            placed.stored[value] = tree.stored
        for i, edge in enumerate(tree.edges):
            parent = edge.parent + first if edge.parent >= 0 else -1
            placed.conversions.append(Conversion(first + i, value, parent, edge.move, edge.to, edge.gradient))
        for user, (end, layout) in zip(users, tree.ends, strict=False):
            placed.uses[user] = OperandUse(value, end + first if end >= 0 else -1, layout)

    def _tree_of(self, value: int, users: Sequence[tuple[int, int]]) -> ValueTree:
        planning, chosen, classes = self.planning, self.chosen, self.planning.classes
        tensor, producer = planning.tensors[value], planning.graph.producers.get(value)
        made: tuple[object, ...] = (planning.strategy.stored.get(value),)
        if producer is not None:
            made = classes[producer], chosen[producer], planning.graph.ops[producer].results.index(value)
        used = [part for op, at in users for part in (classes[op], chosen[op], at)]
        key = (id(tensor), value == planning.graph.loss, *made, *used)
        known = self.known.get(key)
        if known is None:
            known = self.known[key] = self._grown(value, users)
        return known

    def _grown(self, value: int, users: Sequence[tuple[int, int]]) -> ValueTree:
        """The tree of a value: it is made or stored in some layout, and where a rule says so at
        once converted to another."""
        planning, classes, graph = self.planning, self.planning.classes, self.planning.graph
        tensor, producer = planning.tensors[value], graph.producers.get(value)
        layouts = [planning.operand(op, at, self.chosen, self.table) for op, at in users]
        targets = [Target(x, classes[op].operands[at].gradient) for x, (op, at) in zip(layouts, users, strict=True)]
        stored, wanted = None, None
        if producer is None:
            trained, pinned = tensor.kind is Kind.PARAM and tensor.gradient, planning.strategy.stored.get(value)
            stored = choose(tensor, targets, planning.meshes, trained, pinned)
            source = stored.root
        else:
            kind, result = classes[producer], graph.ops[producer].results.index(value)
            source = self.table.layouts(kind.rule, self.chosen[producer]).results[result]
            wanted = kind.wanted if result == 0 else None
        edges: list[Edge] = []
        start, at = source, -1
        if wanted is not None:
            edges += self._tree(source, [Target(wanted, tensor.gradient)], tensor)[0]
            start, at = wanted, len(edges) - 1
        targets += self._summed(start) if value == graph.loss else []
        wants = [_shared(t, targets, start) for t in targets]
        more, ends = self._tree(start, wants, tensor)
        offset = len(edges)
        edges += [Edge(e.parent + offset if e.parent >= 0 else at, e.move, e.to, e.gradient) for e in more]
        reads = [(end + offset if end >= 0 else at, t.layout) for end, t in zip(ends, wants, strict=True)]
        return ValueTree(source, stored, tuple(edges), tuple(reads))

    def _summed(self, loss: Layout) -> list[Target]:
        """The loss as the runtime takes it: with microbatches, pending over time."""
        time = self.planning.meshes[loss.mesh].time
        if time is None or loss.state(time.name) == "P":
            return []
        bare = along_time.without(loss, time.name)
        return [Target(self.table.intern(Layout(bare.dims, (*bare.pending, time.name), bare.replicated, bare.mesh)))]

    def _tree(
        self, source: Layout, targets: Sequence[Target], tensor: ValueFacts
    ) -> tuple[tuple[Edge, ...], tuple[int, ...]]:
        if all(t.layout == source for t in targets):
            return (), (-1,) * len(targets)
        found = tree(source, targets, tensor.routed, self.planning.meshes)
        if found is None:
            raise InternalError(f"no conversions lead from {source} to {targets}")
        if tensor.kind is not Kind.CONSTANT:
            return found.edges, found.ends
        # A number has no gradient to sum: identical or replicated, it stands where it is read.
        return tuple(replace(e, move=VIEW) if e.move.kind in _SAME else e for e in found.edges), found.ends


def _shared(target: Target, targets: Sequence[Target], source: Layout) -> Target:
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
