"""Buffers that operators write: each is stored as its writers have it, for what is written to a
converted copy is lost.

Completes demands: writers of one state cut it alike, by a pin of the state or by their own rules,
else not at all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from shardlang.diagnostics.diagnostic import Sink
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Graph, Op
from shardlang.ops.declaration import REGISTRY
from shardlang.plan.demand import Demand
from shardlang.plan.dim_factors import spread
from shardlang.plan.strategy.dims_over_axes import majors_used_up
from shardlang.sources.source import Span
from shardlang.types.layout import Layout

Cut = tuple[tuple[str, ...], ...]


@dataclass
class Buffers:
    """`demands` are completed. `pinned`: state -> layout and its rule's place; `sizes`: of the
    meshes' axes."""

    graph: Graph
    demands: dict[int, Demand]
    sink: Sink
    pinned: Mapping[int, tuple[Layout, Span]]
    sizes: Mapping[str, int]

    def settle(self) -> None:
        # Pinned ones first: an operator's other states follow the one that a rule speaks of.
        for state, writers in sorted(self._writers().items(), key=lambda x: x[0] not in self.pinned):
            if state in self.pinned or len(writers) > 1:
                self._agree(state, writers)

    def _writers(self) -> dict[int, list[tuple[Op, int]]]:
        """State -> the operators that write it, and as which operand."""
        found: dict[int, list[tuple[Op, int]]] = {}
        for op in self.graph.ops if self.graph.states else ():
            for at in REGISTRY[op.operator].updates:
                found.setdefault(op.operands[at], []).append((op, at))
        return found

    def _agree(self, state: int, writers: list[tuple[Op, int]]) -> None:
        wanted: tuple[int, Cut] | None = None
        by: Span | None = None
        if state in self.pinned:
            layout, by = self.pinned[state]
            wanted = layout.mesh, layout.dims
        for op, at in writers:
            own = self._own(op, at)
            if own is None:
                continue
            if wanted is not None and own != wanted:
                return self._report(state, by, self.demands[op.id].span)
            wanted, by = own, by or self.demands[op.id].span
        mesh, cut = wanted or (0, ((),) * len(self.graph.values[state].type.dims))
        for op, at in writers:
            self._demand(state, op, at, mesh, cut, by)

    def _own(self, op: Op, at: int) -> tuple[int, Cut] | None:
        """How rules have an operator cut its operand; None where none speaks of it."""
        demand = self.demands.get(op.id)
        if demand is None:
            return None
        given = [demand.factors[f] for dim in op.rule.operands[at] for f in dim]
        unspoken = not given or any(axes is None for axes in given)
        return None if unspoken else (demand.mesh, demand.cut(op.rule.operands[at]))

    def _demand(self, state: int, op: Op, at: int, mesh: int, cut: Cut, by: Span | None) -> None:
        """The operator's demand with its operand cut so; reports an axis in use elsewhere."""
        none = Demand((None,) * len(op.rule.factors), by or op.span, mesh=mesh, chosen="pin")
        former = self.demands.get(op.id, none)
        factors = list(former.factors)
        if state in self.pinned and former.chosen == "split":  # which a pin outranks
            taken = {a for axes in cut for a in axes}
            factors = [axes if axes is None else tuple(a for a in axes if a not in taken) for axes in factors]
        for dim, axes in zip(op.rule.operands[at], cut, strict=True):
            for f, mine in spread(op.rule, dim, axes, self.sizes).items():
                factors[f] = mine
        used = [a for axes in factors if axes for a in axes] + [*former.through, *former.replicated]
        if former.mesh != mesh or len(used) != len(set(used)):
            return self._report(state, by, op.span if former is none else former.span)
        degrees = [math.prod(self.sizes.get(a, 1) for a in axes or ()) for axes in factors]
        label = f"{op.operator} writes `{self.graph.values[state].path}`, whose layout comes first"
        if majors_used_up(op.rule, degrees, by or op.span, self.sink, label):
            self.demands[op.id] = replace(former, factors=tuple(factors))

    def _report(self, state: int, one: Span | None, two: Span) -> None:
        value = self.graph.values[state]
        labels = [(value.span, "declared here")]
        if one is not None and one != two:
            labels.insert(0, (one, "cut one way by this rule"))
        self.sink.report(
            "SH323", f"state `{value.path}` would be stored one way and written another", two, "cut another way here",
            labels=labels, help="what writes a state decides its layout: leave out the state's own, or write the same",
        )  # fmt: skip
