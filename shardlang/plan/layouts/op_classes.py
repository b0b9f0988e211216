"""A graph as the planner sees it: operators in classes of equals, values with shapes, users and
what a gradient costs them.

Turns Graph and demands into flat tables; decides nothing. Equal operators share one `OpClass`,
which is what makes planning a deep model cost what planning one of its layers does."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field, replace

from shardlang.frozen.records import dataclass
from shardlang.graph.graph import LEAF, Graph, Kind
from shardlang.ops.families.internal import SENT
from shardlang.ops.rule import FactorRule
from shardlang.plan.demand import Demand, ResolvedStrategy
from shardlang.plan.dim_factors import in_products
from shardlang.plan.layouts.assignment import Assignment, LayoutTable
from shardlang.plan.layouts.equal_layers import EqualLayers
from shardlang.plan.layouts.known import Found, LayoutTables
from shardlang.plan.redistribute.collective_bytes import RoutedValue
from shardlang.plan.time_axis import InTime, TimeSplit, in_time
from shardlang.types.dim import BYTES, TensorType
from shardlang.types.layout import Layout
from shardlang.types.mesh import Mesh


@dataclass(frozen=True, slots=True)
class ValueFacts:
    """The facts that conversions of a value depend on. `gradient`: a gradient comes back along this
    use of it.

    Equal ones are one object (made by `Planning.tensor`)."""

    routed: RoutedValue
    kind: Kind
    gradient: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return self.routed.shape

    @property
    def itemsize(self) -> int:
        return self.routed.itemsize


@dataclass(frozen=True, eq=False, slots=True)
class OpClass:
    """Operators that plan alike: same rule, tensors and demand.

    crosses_stage: hands a value to the next stage, which costs what is sent.
    uneven_in_product: factors that only rules may cut, as sizes given by hand are not those of the
    products they are part of.
    batch_free: made of parameters and numbers alone, the same for every part of a batch."""

    rule: FactorRule
    operands: tuple[ValueFacts, ...]
    results: tuple[ValueFacts, ...]
    demand: Demand | None
    mesh: int
    time: InTime | None = None
    crosses_stage: bool = False
    uneven_in_product: frozenset[int] = frozenset()
    batch_free: bool = False

    @property
    def wanted(self) -> Layout | None:
        """The layout that a rule has the first result converted to at once, if one does."""
        return self.demand.result if self.demand is not None else None


@dataclass
class Planning:
    """users[v]: (op, operand position). classes[op]. fixed meshes. All indexed by graph ids.
    known: what other plans have found out, too; classes and tensors are one object in all."""

    graph: Graph
    meshes: tuple[Mesh, ...]
    strategy: ResolvedStrategy
    layers: EqualLayers
    known: LayoutTables
    classes: list[OpClass] = field(default_factory=list)
    users: list[list[tuple[int, int]]] = field(default_factory=list)
    tensors: list[ValueFacts] = field(default_factory=list)
    _known: dict[tuple[int, int, bool], ValueFacts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.table: LayoutTable = self.shared(LayoutTable, lambda: LayoutTable(self.meshes))
        self._equal: dict[ValueFacts, ValueFacts] = self.shared(ValueFacts, dict)

    def shared(self, about: Hashable, make: Callable[[], Found]) -> Found:
        """A table that all plans on these meshes share."""
        return self.known.table((about, self.meshes), make)

    def tensor(self, type: TensorType, kind: Kind, gradient: bool) -> ValueFacts:
        """The one `ValueFacts` with these parts. Types are the graph's: one is known by its id."""
        key = id(type), id(kind), gradient
        known = self._known.get(key)
        if known is None:
            dims = self.strategy.uneven
            uneven = frozenset([i for i, t in enumerate(type.dims) if dims and len(t) == 1 and t[0] in dims])
            made = ValueFacts(RoutedValue(type.shape, BYTES[type.dtype], uneven), kind, gradient)
            known = self._known[key] = self._equal.setdefault(made, made)
        return known

    def operand(self, op: int, at: int, chosen: Sequence[Assignment], table: LayoutTable) -> Layout:
        """The layout that an operator needs of an operand."""
        return table.layouts(self.classes[op].rule, chosen[op]).operands[at]

    def result(self, value: int, chosen: Sequence[Assignment], table: LayoutTable) -> Layout | None:
        """The layout in which users see a value; None for what no operator makes."""
        producer = self.graph.producers.get(value)
        if producer is None:
            return None
        kind, at = self.classes[producer], self.graph.ops[producer].results.index(value)
        return (kind.wanted if at == 0 else None) or table.layouts(kind.rule, chosen[producer]).results[at]


def build(graph: Graph, strategy: ResolvedStrategy, known: LayoutTables | None = None) -> Planning:
    """The tables of `graph` under `strategy`, whose meshes must be known. known: tables that plans
    share."""
    if strategy.times is not None:
        strategy = _with_time(strategy, strategy.times, graph)
    planning = Planning(graph, strategy.meshes, strategy, EqualLayers(graph), known or LayoutTables())
    planning.users = [[] for _ in graph.values]
    planning.tensors = [planning.tensor(v.type, v.kind, v.gradient) for v in graph.values]
    _classify(planning, _mesh_of_ops(graph, strategy.demands) if len(strategy.meshes) > 1 else {})
    planning.layers.same(planning.classes)
    return planning


def _with_time(strategy: ResolvedStrategy, times: TimeSplit, graph: Graph) -> ResolvedStrategy:
    """The layouts that rules write, without time, with what is forced along its axis."""
    demands = {
        op: demand
        if demand.result is None
        else replace(demand, result=in_time(demand.result, times.states[graph.ops[op].results[0]], times.axis))
        for op, demand in strategy.demands.items()
    }
    stored = {
        v: in_time(layout, times.states[v], times.axis) if graph.values[v].kind is Kind.DATA else layout
        for v, layout in strategy.stored.items()
    }
    return replace(strategy, demands=demands, stored=stored)


def _classify(planning: Planning, mesh_of: Mapping[int, int]) -> None:
    known: dict[tuple[object, ...], OpClass] = planning.shared(OpClass, dict)
    graph, tensors, users, sizes = planning.graph, planning.tensors, planning.users, planning.strategy.sizes
    demands, times = planning.strategy.demands, planning.strategy.times
    same: dict[Demand, Demand] = planning.shared(Demand, dict)
    one = {id(d): same.setdefault(d, d) for d in demands.values()}
    batch_free = graph.made_of(*LEAF - {Kind.DATA})
    for op in graph.ops:
        for at, value in enumerate(op.operands):
            users[value].append((op.id, at))
        mine = [tensors[v] for v in (*op.operands, *op.results)]
        if op.section != "loss":
            values = [graph.values[v] for v in (*op.operands, *op.results)]
            mine = [planning.tensor(v.type, v.kind, False) for v in values]
        demand, mesh = demands.get(op.id), mesh_of.get(op.id, 0)
        demand = one[id(demand)] if demand is not None else None
        time = times.ops[op.id] if times is not None else None
        in_time = (time.factor, time.through) if time is not None else None
        uneven = in_products(op, graph, sizes) if sizes else frozenset()
        crosses, own = op.operator in SENT, batch_free.issuperset(op.operands)
        key = (op.rule, *map(id, mine), id(demand), mesh, in_time, crosses, uneven, own)
        found = known.get(key)
        if found is None:
            operands, results = tuple(mine[: len(op.operands)]), tuple(mine[len(op.operands) :])
            found = known[key] = OpClass(
                op.rule, operands, results, demand=demand, mesh=mesh, time=time, crosses_stage=crosses,
                uneven_in_product=uneven, batch_free=own,
            )  # fmt: skip
        planning.classes.append(found)


def _mesh_of_ops(graph: Graph, demands: Mapping[int, Demand]) -> dict[int, int]:
    """Where rules put operators on several meshes: each other operator is on its first input's,
    else its first user's."""
    mesh_of = {op: demand.mesh for op, demand in demands.items()}
    visible = {op: d.result.mesh if d.result else d.mesh for op, d in demands.items()}
    for op in graph.ops:
        if op.id not in mesh_of:
            near = [visible[graph.producers[v]] for v in op.operands if graph.producers.get(v) in visible]
            if near:
                mesh_of[op.id] = visible[op.id] = near[0]
    for op in reversed(graph.ops):
        for value in op.operands:
            producer = graph.producers.get(value)
            if producer is not None and producer not in mesh_of and op.id in mesh_of:
                mesh_of[producer] = mesh_of[op.id]
    return mesh_of
