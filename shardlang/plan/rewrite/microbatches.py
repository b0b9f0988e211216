"""`microbatches M` -> what each operator does along the axis of time, or what needs the whole batch
at once.

The batch is cut over that axis first (most major), so one microbatch is laid out over the ranks as
any batch. The rest is forced, operator by operator: the batch factor is split, a sum over the batch
is pending until the step's end, everything else is repeated (R: its gradients add up). Layouts over
ranks are chosen later, by propagate.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

from shardlang.diagnostics.diagnostic import Sink
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Graph, Kind, Op
from shardlang.ops.declaration import written
from shardlang.ops.rule import DimFactors, Split
from shardlang.plan.demand import Demand
from shardlang.plan.dim_factors import dim_runs
from shardlang.plan.strategy.axis_sizes import divisors, either
from shardlang.plan.time_axis import PENDING, WHOLE, InTime, MicrobatchRule, TimeSplit
from shardlang.sources.source import Span
from shardlang.types.layout import Layout
from shardlang.types.mesh import Mesh


def times(graph: Graph, axis: str, count: int, span: Span, sink: Sink) -> TimeSplit:
    """The behaviour of every operator in time; SH410 for values that need all microbatches."""
    walk = _Walk(graph, axis, span, sink)
    return TimeSplit(axis, count, tuple([walk.visit(op) for op in graph.ops]), walk.states)


def check_divides(
    graph: Graph, found: TimeSplit, demands: Mapping[int, Demand], stored: Mapping[int, Layout],
    meshes: tuple[Mesh, ...], rule: MicrobatchRule, sink: Sink,
) -> None:  # fmt: skip
    """SH411 where what a rank has of a batch does not divide into the microbatches."""
    for size, span, mesh, axes in _cuts(graph, found, demands, stored):
        degree = meshes[mesh].degree(axes) if meshes else 1
        if size % (degree * rule.count):
            _report_count(size, degree, axes, rule, span, sink)
            return


def _cuts(
    graph: Graph, found: TimeSplit, demands: Mapping[int, Demand], stored: Mapping[int, Layout]
) -> Iterator[tuple[int, Span, int, tuple[str, ...]]]:
    """Sizes of the batch, where they are, the mesh and the axes over which a rule cuts them: as it
    is loaded, as it is computed, and as it is handed on at once."""
    for value, layout in stored.items():
        described, dim = graph.values[value], found.states[value]
        if dim >= 0:
            yield described.type.shape[dim], described.span, layout.mesh, layout.dims[dim]
    for op in graph.ops:
        f, dim, demand = found.ops[op.id].factor, found.states[op.results[0]], demands.get(op.id)
        if f < 0:
            continue
        size = op.rule.factors[f].size
        yield size, op.span, *((demand.mesh, demand.factors[f] or ()) if demand is not None else (0, ()))
        if demand is not None and demand.result is not None and dim >= 0:
            yield size, op.span, demand.result.mesh, demand.result.dims[dim]


def _report_count(size: int, degree: int, axes: tuple[str, ...], rule: MicrobatchRule, span: Span, sink: Sink) -> None:
    over = f" over {', '.join(axes)}" if degree > 1 else ""
    labels = [(span, f"{size} examples{over}")] if over else []
    multiple = f"the batch a multiple of {degree * rule.count}"
    if size % degree:
        fact = f"the batch of {size} is cut unevenly over {degree} ranks, and microbatches are all alike"
        return sink.report("SH411", fact, rule.span, labels=labels, help=f"make {multiple}")
    mine = size // degree
    what = f"the {mine} examples that a rank has of a batch of {size}{over}" if over else f"a batch of {size}"
    help = f"`microbatches` could be {either(divisors(mine))}, or {multiple}"
    sink.report("SH411", f"{rule.count} microbatches do not divide {what}", rule.span, labels=labels, help=help)


class _Whole(Exception):
    """An operator that needs the whole batch at once: its `args` are why, and what to do."""


@dataclass
class _Walk:
    """From inputs to outputs. late: values known only after the last microbatch; early: those of
    data alone; summed: of data alone, and made from a total; wrong: values of operators that were
    reported. known: the rule of an operator with a cut operand, and the states of its operands ->
    what it does, and the states of its results."""

    graph: Graph
    axis: str
    span: Span
    sink: Sink
    states: dict[int, int] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)
    summed: set[int] = field(default_factory=set)
    wrong: set[int] = field(default_factory=set)
    known: dict[tuple[object, ...], tuple[InTime, tuple[int, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.early = self.graph.made_of(Kind.DATA, Kind.CONSTANT)
        for value in (v for v in self.graph.values if v.kind is not Kind.RESULT):
            dims = value.type.dims if value.kind is Kind.DATA else ()
            cut = (d for d, term in enumerate(dims) if term[:1] == (self.graph.batch,))
            self.states[value.id] = next(cut, WHOLE)

    def visit(self, op: Op) -> InTime:
        for some in (self.wrong, self.late, self.summed):
            if not some.isdisjoint(op.operands):
                some.update(op.results)
        self.states.update(dict.fromkeys(op.results, WHOLE))
        if not self.wrong.isdisjoint(op.results):
            return InTime(self.axis)
        try:
            return self._visit(op)
        except _Whole as found:
            self.wrong.update(op.results)
            why, help = found.args
            self.sink.report(
                "SH410", f"`{self.graph.shown(op.results[0])}` needs all microbatches at once: {why}", op.span,
                "of the whole batch", labels=[(self.span, "cuts the batch in parts")], help=help,
            )  # fmt: skip
            return InTime(self.axis)

    def _visit(self, op: Op) -> InTime:
        states = [self.states[v] for v in op.operands]
        pending = [i for i, state in enumerate(states) if state == PENDING]
        settled = not pending and max(states, default=WHOLE) >= 0 and self.late.isdisjoint(op.operands)
        key = op.rule, *states
        if settled and key in self.known:
            made, results = self.known[key]
            self.states.update(zip(op.results, results, strict=True))
            return made
        factor = self._factor(op)
        if factor >= 0:
            self._split(op, factor, pending)
            made = InTime(self.axis, factor)
            if settled:
                self.known[key] = made, tuple([self.states[v] for v in op.results])
            return made
        if not pending:
            return InTime(self.axis)
        through = self._through(op, pending)
        if through < 0 or self.late.intersection(op.operands) or self._beside_known(op):
            self._total(op, pending)
            return InTime(self.axis)
        self.states.update(dict.fromkeys(op.results, PENDING))
        return InTime(self.axis, through=through)

    def _beside_known(self, op: Op) -> bool:
        """Whether sums of data meet what is known of such sums: then they are needed whole too, for
        what they make together is no part that each microbatch has."""
        return self.early.issuperset(op.operands) and not self.summed.isdisjoint(op.operands)

    def _through(self, op: Op, pending: list[int]) -> int:
        """Which of the operands are parts of a sum as the result is then; -1: all sums are needed
        whole. Beside them the loss may have sums of data alone, which are known before the first
        microbatch."""
        for which, may in enumerate(op.rule.through):
            beside = [op.operands[i] for i in pending if i not in may]
            if not beside:
                return which
            ahead = self.early.issuperset(beside) and not self.early.issuperset(op.operands[i] for i in pending)
            if op.section == "loss" and ahead:
                self._known_ahead(op, beside)
                return which
        return -1

    def _factor(self, op: Op) -> int:
        """The factor that is cut in time: that of a cut operand, else of the batch; -1: none."""
        found: dict[int, int] = {}
        for at, value in enumerate(op.operands):
            dim = self.states[value]
            if dim >= 0:
                factors = op.rule.operands[at][dim]
                if not factors:
                    name = self.graph.values[value].type.dims[dim][0].name
                    raise _Whole(f"`{written(op.called)}` needs the whole of `{name}`", _APART)
                found.setdefault(factors[0], at)
        if len(found) > 1:
            raise _Whole("it takes every example with every other", _APART)
        return next(iter(found)) if found else self._named(op)

    def _named(self, op: Op) -> int:
        values = self.graph.values
        types = tuple([values[v].type for v in (*op.operands, *op.results)])
        if not any(self.graph.batch in term for type in types for term in type.dims):
            return -1
        found = [run.factors[0] for run in dim_runs(op.rule, types) if run.dims[0] is self.graph.batch]
        return next((f for f in found if op.rule.factors[f].split is Split.FREE), -1)

    def _split(self, op: Op, factor: int, pending: list[int]) -> None:
        rule, name = op.rule, written(op.called)
        split = rule.factors[factor]
        if split.split is Split.INSIDE:
            raise _Whole(f"`{name}` takes statistics over `{split.name}`", _STATISTICS)
        if split.split is Split.WHOLE:
            raise _Whole(f"`{name}` needs the whole of `{split.name}`", _APART)
        self._known_ahead(op, [op.operands[i] for i in pending])
        if self.late.intersection(op.operands):
            raise _Whole("it uses single examples again once the whole batch is summed", _TOTAL)
        for dims in (*rule.operands, *rule.results):
            _first_and_once(dims, factor, split.name)
        for at, value in enumerate(op.operands):
            if self.states[value] >= 0 and not any(factor in d for d in rule.operands[at]):
                raise _Whole("it takes every example with every other", _APART)
        for value, dims in zip(op.results, rule.results, strict=True):
            self.states[value] = next((d for d, factors in enumerate(dims) if factor in factors), PENDING)

    def _known_ahead(self, op: Op, totals: list[int]) -> None:
        """Totals beside single examples: those of data alone come before the first microbatch."""
        for value in totals:
            if value not in self.early:
                total = self.graph.shown(value)
                raise _Whole(f"it uses `{total}`, a sum over the whole batch, with single examples", _TOTAL)
            if value in self.summed:
                raise _Whole("it needs a total of what depends on a total", _NESTED)
            self.summed.update(op.results)

    def _total(self, op: Op, pending: list[int]) -> None:
        """A function of totals: of data alone it is known before the first microbatch, in a metric
        after the last; so is, in a metric, a total of what depends on a total."""
        operands = [op.operands[i] for i in pending]
        last = op.section == "metric" and not self.summed.isdisjoint(operands)
        if self.early.issuperset(operands) and not last:
            self._known_ahead(op, operands)
            return
        if op.section != "metric":
            total = self.graph.shown(operands[0])
            raise _Whole(f"`{written(op.called)}` is no sum of parts, and `{total}` is a sum over the batch", _TOTAL)
        self.late.update(op.results)


_STATISTICS = "normalise each example by itself (`layer_norm`, `rms_norm`), or take `microbatches` out"
_APART = "let examples stay apart, or take `microbatches` out"
_NESTED = (
    "sum what each example has by itself, as `sum(square(x)) / n - square(sum(x) / n)` does for a variance, "
    "or take `microbatches` out"
)
_TOTAL = "let the loss be a sum or a mean over the examples, or take `microbatches` out"


def _first_and_once(dims: tuple[DimFactors, ...], factor: int, name: str) -> None:
    """The factor cut in time is major in its tensor dim, and in one dim of a tensor alone."""
    here = [factors for factors in dims if factor in factors]
    if len(here) > 1:
        raise _Whole(f"`{name}` is in it twice", _APART)
    if here and here[0][0] != factor:
        raise _Whole(f"`{name}` is a minor part of a dim", f"let `{name}` be the first factor of the product")
