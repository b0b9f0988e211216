"""A plan -> the lines of its functions that communicate, from layouts and conversions alone.

Lines are in the order of the plan's steps by calls of layers. The emitted text is read without
this, by read_back/."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from itertools import groupby

from shardlang.emit.emit import Emission
from shardlang.emit.evaluate import Evaluate
from shardlang.emit.forward import Forward
from shardlang.emit.functions import FunctionBody
from shardlang.emit.once import once_names
from shardlang.emit.recomputed_regions import Region, arranged
from shardlang.emit.scene import Item, Loop
from shardlang.emit.statements import StatementWriter, operator
from shardlang.emit.text.collectives import moved_axes, permute_sources, source_layout
from shardlang.emit.text.sizes import Groups, LocalSizes
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Kind, Op
from shardlang.matched.lines import Again, AxisGroup, Items, Line, Local, Repeated, Size, Uneven
from shardlang.matched.table import CONVERSIONS, KEEPING, STATISTICS
from shardlang.ops.declaration import Operator
from shardlang.ops.site import maybe_empty
from shardlang.plan.plan import Conversion, MoveKind, Plan, PlannedOp, Step
from shardlang.plan.reads import final_form, layout_of, summed_first
from shardlang.sources.source import Span
from shardlang.step.blocks.call import BlockCall
from shardlang.step.phases import summed_in_time
from shardlang.step.saved_activations import owners
from shardlang.types.dim import term_size
from shardlang.types.layout import Layout, uneven_sizes


@dataclass
class Planned:
    """The functions of a program as the plan has them. made: the lines of a block, in training or
    in an evaluation; locals: of types that were seen."""

    emission: Emission
    made: dict[tuple[int, bool], Items] = field(default_factory=dict)
    locals: dict[object, Local] = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        return self.emission.plan

    @property
    def stages(self) -> AxisGroup:
        """The group of ranks of all stages."""
        return AxisGroup(0, () if self.plan.pipeline is None else (self.plan.pipeline.axis,))

    def functions(self, at: int) -> dict[str, Items]:
        """Name -> lines of the functions of a file: `forward`, `evaluate` and those of once a
        step."""
        parts, test = self.emission.forwards[at], self.emission.tests[at]
        found = {"forward": self._forward(parts)}
        if test is not None:
            found["evaluate"] = self._evaluate(test)
        phases = parts.scope.phases
        each = {"before_microbatch": phases.ahead, "before_step": phases.known, "conclude": phases.after}
        for name in once_names(phases):
            last = [v for v in parts.scope.metrics.values() if v in phases.last] if name == "conclude" else []
            found[name] = (*self._steps(self._writer(parts.trained), each[name]), *self._summed(last))
        return found

    def _forward(self, parts: Forward) -> Items:
        scope = parts.scope
        shown = [value for value in scope.metrics.values() if value not in scope.phases.last]
        ends = [] if scope.loss is None else [scope.loss]
        return (
            *self._body(parts.trained), *self._body(parts.shown), *self._summed(ends), *self._summed(shown),
        )  # fmt: skip

    def _evaluate(self, test: Evaluate) -> Items:
        found = list(self._body(test.body))
        for planned in (self.plan.ops[total.op] for total in test.totals if total.op >= 0):
            for use in planned.operands:
                if axes := use.layout.pending:
                    found.append(self._sum(use.value, axes, use.layout.mesh, self.local(use.value, use.layout)))
            found += self._within(planned, False)
        pair = Local("f64", (2,))
        return *found, *(self._sum(t.value, t.summed_first, t.mesh, pair) for t in test.totals if t.summed_first)

    def _summed(self, values: Iterable[int]) -> Iterator[Line]:
        """The sums over a further mesh of numbers that a function returns."""
        for value in values:
            if axes := summed_first(self.plan, value):
                layout = layout_of(self.plan, final_form(self.plan, value))
                yield self._sum(value, axes, layout.mesh, self.local(value, layout))

    def _sum(self, value: int, axes: tuple[str, ...], mesh: int, local: Local) -> Line:
        return Line("all_reduce", AxisGroup(mesh, axes), (), local, local, span=self._span(value))

    def _writer(self, body: FunctionBody) -> StatementWriter:
        return body.writer({}, LocalSizes(self.plan, Groups(self.plan.meshes)))

    def _body(self, body: FunctionBody) -> Items:
        items = arranged(body.scene, body.call, body.items, body.ends)
        return tuple(self._items(body, self._writer(body), items))

    def _items(
        self, body: FunctionBody, writer: StatementWriter, items: Sequence[Item | Region]
    ) -> Iterator[Line | Repeated | Again]:
        for is_step, group in groupby(items, lambda item: isinstance(item, Step)):
            if is_step:
                yield from self._steps(writer, [item for item in group if isinstance(item, Step)])
                continue
            for item in group:
                match item:
                    case Region():
                        inner = tuple(self._items(body, writer, item.items))
                        yield from self._again(inner, item.group) if inner else ()
                    case BlockCall():
                        yield from self._call(body, item)
                    case Loop():
                        inner = self._call(body, item.calls[0])
                        yield from [Repeated(len(item.layers), inner)] if inner else []

    def _call(self, body: FunctionBody, call: BlockCall) -> Items:
        training = body.scene.training
        key = call.block, training
        if key not in self.made:
            self.made[key] = self._body(body.functions.bodies[key])
        inner = self.made[key]
        return self._again(inner, call.region) if inner and call.region >= 0 and training else inner

    def _again(self, items: Items, group: int) -> Items:
        return items if owners(self.plan).to_host(group) else (Again(items),)

    def _steps(self, writer: StatementWriter, steps: Sequence[Step]) -> Iterator[Line]:
        for _, mine in writer.statements(steps):
            for step in mine:
                yield from self._of_step(step, writer.training)

    def _of_step(self, step: Step, training: bool) -> Iterator[Line]:
        if step.kind == "conversion":
            return self._conversion(self.plan.conversions[step.index])
        return self._within(self.plan.ops[step.index], training)

    def _conversion(self, c: Conversion) -> Iterator[Line]:
        plan, move = self.plan, c.move
        constant = plan.graph.values[c.value].kind is Kind.CONSTANT
        if move.kind.value not in CONVERSIONS or constant or summed_in_time(plan, c):
            return
        source = source_layout(plan, c)
        axes, dims = move.axes, tuple([move.dim] if move.dim >= 0 else [])
        parts: tuple[tuple[int, ...] | None, ...] = ()
        if move.kind is MoveKind.PERMUTE:
            mesh = plan.meshes[source.mesh]
            axes = moved_axes(source, c.to, mesh)
            dims = permute_sources(source, c.to, axes, mesh)
        elif move.kind is MoveKind.S_TO_S:
            dims = move.from_dim, move.dim
        if move.kind is not MoveKind.PERMUTE:
            parts = tuple(self._parts(c, dim, source) for dim in dims)
        yield Line(
            move.kind.value, AxisGroup(source.mesh, axes), dims, self.local(c.value, source), self.local(c.value, c.to),
            parts if any(parts) else (), span=self._span(c.value),
        )  # fmt: skip

    def _span(self, value: int) -> Span:
        return self.plan.graph.values[value].span

    def _parts(self, c: Conversion, dim: int, source: Layout) -> tuple[int, ...] | None:
        """Sizes of the parts that a conversion joins or makes along a dim, where they differ."""
        term, mesh = self.plan.graph.values[c.value].type.dims[dim], self.plan.meshes[source.mesh]
        kept = [axis for axis in source.dims[dim] if axis not in c.move.axes]
        return uneven_sizes(term, mesh.degree((*kept, *c.move.axes)), self.plan.sizes)

    def _within(self, planned: PlannedOp, training: bool) -> Iterator[Line]:
        """The exchanges of an operator itself, by the names of its groups."""
        op, declared = self.plan.graph.ops[planned.op], operator(self.plan, planned)
        if training or not declared.updates:  # else it takes the statistics that are kept
            yield from self._exchanged(planned, op, training)
        if training:
            yield from self._kept(planned, op, declared)

    def _kept(self, planned: PlannedOp, op: Op, declared: Operator) -> Iterator[Line]:
        """The operands that an operator keeps for backward where a rank may have no part of it.
        Without the line that rank could leave out what the others compute again, collectives
        included."""
        forms = [*[(use.value, use.layout) for use in planned.operands], *zip(op.results, planned.results, strict=True)]
        parts = [self.local(value, layout) for value, layout in forms]
        if maybe_empty(part.sizes for part in parts):
            for at in declared.keeps(op.rule, op.attrs, planned.factor_axes):
                if self.plan.graph.values[op.operands[at]].type.floating:
                    yield Line(KEEPING, AxisGroup(0, ()), given=parts[at], span=op.span)

    def _exchanged(self, planned: PlannedOp, op: Op, training: bool) -> Iterator[Line]:
        made = ((op.rule.factors[f].exchanged, axes) for f, axes, _, _ in planned.inside)
        within = sorted({(how.name if how is not None else STATISTICS, axes) for how, axes in made})
        if op.attrs.get("ignore_index") is not None and len(op.operands) == 2 and training:  # it is counted
            factors = {f for dim in op.rule.operands[1] for f in dim}
            within += [(STATISTICS, axes) for axes in sorted(planned.factor_axes[f] for f in factors) if axes]
        for what, axes in within:
            yield Line(what, AxisGroup(planned.mesh, axes), span=op.span)

    def local(self, value: int, layout: Layout) -> Local:
        type = self.plan.graph.values[value].type
        key = id(type), id(layout)
        if key not in self.locals:
            sizes = (self._size(t, axes, layout.mesh) for t, axes in zip(type.dims, layout.dims, strict=True))
            self.locals[key] = Local(type.dtype, tuple(sizes))
        return self.locals[key]

    def _size(self, term: tuple, axes: tuple[str, ...], mesh: int) -> Size:
        degree = self.plan.meshes[mesh].degree(axes)
        uneven = uneven_sizes(term, degree, self.plan.sizes)
        return (term_size(term) or 1) // degree if uneven is None else Uneven(uneven, AxisGroup(mesh, axes))
