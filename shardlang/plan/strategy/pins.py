"""A pinned layout, `at h: [batch@dp, hidden@mp] +cp` -> the demand on the operator that computes
the value, or how a leaf lies."""

from __future__ import annotations

import math

from shardlang.diagnostics.diagnostic import Sink
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Graph, GraphValue, Op
from shardlang.ops.rule import FactorRule, Split
from shardlang.plan.demand import Demand
from shardlang.plan.dim_factors import runs, spread
from shardlang.plan.strategy.dims_over_axes import Axes, majors_used_up
from shardlang.plan.strategy.rules import Rules
from shardlang.syntax import ast
from shardlang.types.dim import Term, term_text
from shardlang.types.layout import Layout


@dataclass(frozen=True, slots=True)
class PinnedDim:
    """One dim of a pin: axes in order, and the place of the first, for messages."""

    axes: tuple[str, ...]
    term: Term
    node: ast.DimTerm


@dataclass
class Pins:
    """Reads pins one by one. `axes` knows sizes (where ranks are known) and the mesh's own axes."""

    graph: Graph
    rules: Rules
    axes: Axes
    sink: Sink

    def demand(self, value: GraphValue, pin: ast.Pin) -> Demand | None:
        """The demand of a pin on the operator that computes `value`; None after reporting."""
        op = self.graph.ops[self.graph.producers[value.id]]
        at = op.results.index(value.id)
        dims = self._dims(value, pin)
        marks = self._marks(pin)
        if dims is None or marks is None or not self._once(value, pin, dims, marks):
            return None
        factors: list[tuple[str, ...]] = [()] * len(op.rule.factors)
        for dim, numbers in zip(dims, op.rule.results[at], strict=True):
            for f, axes in self._spread(op.rule, dim, numbers).items():
                factors[f] = axes
        through = self._sum(op, pin, factors)
        degrees = [self.axes.degree(axes) for axes in factors]
        label = f"an input of {op.called} has them as one dim"
        if through is None or not majors_used_up(op.rule, degrees, pin.span, self.sink, label):
            return None
        refined = tuple(self.axes.refined(a) for a in factors)
        return Demand(refined, pin.span, True, self.axes.refined(through), self.axes.refined(marks[1]), chosen="pin")

    def stored(self, value: GraphValue, pin: ast.Pin) -> Layout | None:
        """How a pinned parameter, state or field lies; None after reporting."""
        dims, marks = self._dims(value, pin), self._marks(pin)
        if dims is None or marks is None or not self._once(value, pin, dims, marks):
            return None
        if marks[0] or marks[1]:
            fact = f"`{value.path}` is stored, so it cannot be pending or replicated"
            self.sink.report("SH317", fact, pin.span, help="write only the axes that cut its dims")
            return None
        return Layout(tuple(self.axes.refined(d.axes) for d in dims))

    def _dims(self, value: GraphValue, pin: ast.Pin) -> list[PinnedDim] | None:
        if pin.type.dtype is not None and pin.type.dtype.text != value.type.dtype:
            fact = f"`{value.path}` is {value.type.dtype}, and the rule is for {pin.type.dtype.text}"
            help = f"leave it out, or write `{value.type.dtype}`: a layout changes no value"
            self.sink.report("SH317", fact, pin.type.dtype.span, help=help)
            return None
        terms, types = pin.type.dims, value.type.dims
        rest = [t for t in terms if not t.ellipsis]
        lead = len(types) - len(rest)
        fits = lead >= 0 and terms[0].ellipsis if len(rest) != len(terms) else lead == 0
        if not fits or not all(_same(n, t) for n, t in zip(rest, types[lead:], strict=True)):
            shown = f"[{', '.join(term_text(t) for t in types)}]"
            self.sink.report(
                "SH317", f"`{value.path}` is {shown}, and the rule is for {_bare(pin.type)}", pin.type.span, "",
                labels=[(value.span, "made here")], help=f"name its dims in order: `at {value.path}: {shown}`",
            )  # fmt: skip
            return None
        named = [[a for f in node.factors for a in f.axes] for node in rest]
        dims = zip(named, types[lead:], rest, strict=True)
        found = [PinnedDim(tuple(a.text for a in axes), term, node) for axes, term, node in dims]
        if any(not self.rules.axis(a) for axes in named for a in axes) or not all([self._fits(d) for d in found]):
            return None
        return [*(PinnedDim((), term, terms[0]) for term in types[:lead]), *found]

    def _fits(self, dim: PinnedDim) -> bool:
        """Each factor divides, and a minor one is cut only where those before it are used up."""
        used_up = True
        for node, own in zip(dim.node.factors, dim.term or (None,), strict=False):
            axes = tuple(a.text for a in node.axes)
            degree = self.axes.degree(axes) if axes else 1
            size = own.size if own is not None else 1
            if degree is None or size is None:
                continue
            name = own.name if own is not None else "1"
            if not (self.axes.divides(own, degree) if own is not None else size % degree == 0):
                self.axes.report(name, size, axes, node.span, self.sink)
                return False
            if degree > 1 and not used_up:
                fact = f"`{name}` is a minor factor of `{term_text(dim.term)}` and cannot be cut alone"
                help = "cut the factors before it, to their whole sizes, first"
                self.sink.report("SH305", fact, node.span, help=help)
                return False
            used_up = used_up and degree == size
        return True

    def _marks(self, pin: ast.Pin) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        names = (*pin.type.pending, *pin.type.replicated)
        if not all([self.rules.axis(n) for n in names]):
            return None
        return tuple(n.text for n in pin.type.pending), tuple(n.text for n in pin.type.replicated)

    def _once(self, value: GraphValue, pin: ast.Pin, dims: list[PinnedDim], marks: tuple[tuple[str, ...], ...]) -> bool:
        given = [a for d in dims for a in d.axes] + [a for m in marks for a in m]
        twice = next((a for a in given if given.count(a) > 1), None)
        if twice is not None:
            help = "along one axis a value is cut, pending or whole: keep one use"
            self.sink.report("SH310", f"axis `{twice}` is used twice on `{value.path}`", pin.span, help=help)
        return twice is None

    def _spread(self, rule: FactorRule, dim: PinnedDim, numbers: tuple[int, ...]) -> dict[int, tuple[str, ...]]:
        found: dict[int, tuple[str, ...]] = {}
        axes = list(dim.axes)
        pieces = list(runs(rule, dim.term, numbers))
        for piece in pieces:
            mine: list[str] = []
            room = math.prod(d.size or 1 for d in piece.dims)
            while axes and (piece is pieces[-1] or (room % (self.axes.sizes.get(axes[0]) or 1) == 0 and room > 1)):
                room //= self.axes.sizes.get(axes[0]) or 1
                mine.append(axes.pop(0))
            found.update(spread(rule, piece.factors, tuple(mine), self.axes.sizes))
        if any(axes and rule.factors[f].split is Split.WHOLE for f, axes in found.items()):
            fact = f"this operator needs `{term_text(dim.term)}` whole, so its result cannot be made split along it"
            help = "leave the axis out; what reads the value may still be split"
            self.sink.report("SH320", fact, dim.node.span, help=help)
        return found

    def _sum(self, op: Op, pin: ast.Pin, factors: list[tuple[str, ...]]) -> tuple[str, ...] | None:
        """`+axis`: splits the contraction where there is one, else passes pending operands through.
        None after reporting."""
        pending = tuple(n.text for n in pin.type.pending)
        if not pending:
            return ()
        kept = {f for dims in op.rule.results for d in dims for f in d}
        summed = [f for f, x in enumerate(op.rule.factors) if f not in kept and x.split is Split.FREE and x.size > 1]
        if len(summed) == 1:
            factor = op.rule.factors[summed[0]]
            degree = self.axes.degree(pending)
            if degree is not None and factor.size % degree:
                self.axes.report(factor.name, factor.size, pending, pin.span, self.sink)
                return None
            factors[summed[0]] = pending
            return ()
        if not summed and op.rule.through:
            return pending
        why, help = "the operator sums nothing", f"leave `+{pending[0]}` out"
        if summed:
            why = f"there are {', '.join(f'`{op.rule.factors[f].name}`' for f in summed)}"
            help = "use `shard` to say which dim is cut"
        self.sink.report("SH317", f"`+{pending[0]}` names no contraction: {why}", pin.span, help=help)
        return None


def _same(node: ast.DimTerm, term: Term) -> bool:
    """Whether the written dim names this one: by name (the path's last part), a number by size."""
    if not term:
        return len(node.factors) == 1 and isinstance(node.factors[0].dim, ast.Number) and node.factors[0].dim.value == 1
    if len(node.factors) != len(term):
        return False
    return all(
        f.dim.value == d.size if isinstance(f.dim, ast.Number) else d.name.rpartition(".")[2] == f.dim.text
        for f, d in zip(node.factors, term, strict=True)
    )


def _bare(type: ast.TensorType) -> str:
    texts = ["..." if t.ellipsis else " * ".join(f.dim.text for f in t.factors) for t in type.dims]
    return f"[{', '.join(texts)}]"
