"""`at h: shard ((2, 4), (4, 1))` -> the device matrix and the demand on the operator that computes
the value.

The matrix lists the operator's dims in order of first appearance, row-major over the ranks; what is
left over repeats the computation, on the fastest-varying axis. Matrices become meshes in
mesh_factorings.py."""

from __future__ import annotations

import math
from dataclasses import field

from shardlang.diagnostics.diagnostic import Sink
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Graph, GraphValue, Kind, Op
from shardlang.ops.families.losses import KEPT_COUNT
from shardlang.ops.python_text import tuple_text
from shardlang.ops.rule import DimFactors, FactorRule, Split
from shardlang.plan.strategy.axis_sizes import divisors, either
from shardlang.plan.strategy.dims_over_axes import Axes, majors_used_up
from shardlang.plan.strategy.rules import Rules
from shardlang.sources.source import Span
from shardlang.syntax import ast
from shardlang.types.dim import term_text


@dataclass(frozen=True, slots=True)
class Positional:
    """A rule read and checked. cuts: factor -> pieces, in order of first appearance; matrix: cuts
    and what is left.

    named: factor -> axes, where the rule names axes. output: the dims' cuts of `-> (..)`, or axis
    names, or None."""

    value: int
    op: int
    span: Span
    cuts: dict[int, int]
    named: dict[int, tuple[str, ...]]
    output: tuple[int | tuple[str, ...], ...] | None

    def matrix(self, ranks: int) -> tuple[int, ...]:
        return (*self.cuts.values(), ranks // math.prod(self.cuts.values()))

    def output_matrix(self, ranks: int) -> tuple[int, ...]:
        cuts = [c if isinstance(c, int) else 1 for c in self.output or ()]
        return (*cuts, ranks // math.prod(cuts))

    @property
    def by_name(self) -> bool:
        return bool(self.named)


@dataclass
class _ShardReading:
    """One rule on its operator while it is read."""

    rule: FactorRule
    cuts: dict[int, int] = field(default_factory=dict)
    named: dict[int, tuple[str, ...]] = field(default_factory=dict)
    first: dict[int, ast.ShardEntry] = field(default_factory=dict)
    undivided: set[tuple[DimFactors, int]] = field(default_factory=set)


@dataclass
class PositionalRules:
    """Reads positional rules one by one; every mistake is reported with what to type."""

    graph: Graph
    rules: Rules
    axes: Axes
    sink: Sink

    def read(self, value: GraphValue, shard: ast.Shard) -> Positional | None:
        """None after reporting."""
        producer = self.graph.producers.get(value.id)
        if producer is None or value.statement != 1:
            self._not_one_operator(value, shard)
            return None
        op = self.graph.ops[producer]
        inputs = [i for i, v in enumerate(op.operands) if self._given(v)]
        if len(shard.inputs) != len(inputs):
            self._wrong_count(op, inputs, shard)
            return None
        reading = _ShardReading(op.rule)
        each = zip(inputs, shard.inputs, _offers(op, inputs, shard), strict=True)
        good = all([self._input(op, i, entries, offer, reading) for i, entries, offer in each])
        if good and reading.named and any(c > 1 for c in reading.cuts.values()):
            help = "write axis names, and `_` for dims that stay whole"
            self.sink.report("SH316", "a rule has numbers of cuts or names of axes, not both", shard.span, help=help)
            good = False
        good = good and self._fits(reading, shard)
        output = self._output(value, shard) if good and shard.outputs is not None else None
        if not good or (shard.outputs is not None and output is None):
            return None
        return Positional(value.id, op.id, shard.span, reading.cuts, reading.named, output)

    def _given(self, value: int) -> bool:
        """Whether an operand is an input for rules: no number, no count that microbatches added."""
        producer = self.graph.producers.get(value)
        added = producer is not None and self.graph.ops[producer].operator == KEPT_COUNT
        return self.graph.values[value].kind is not Kind.CONSTANT and not added

    # --- shape of the rule ---

    def _not_one_operator(self, value: GraphValue, shard: ast.Shard) -> None:
        what = f"`{value.path}` is not computed by an operator"
        help = f"pin its layout: `at {value.path}: [dim@axis, ...]`"
        if value.id in self.graph.producers:
            what = f"the statement of `{value.path}` has {value.statement} operators"
            help = "give each operator a name of its own"
        fact = f"`shard` is for a statement of one operator, and {what}"
        self.sink.report("SH312", fact, shard.span, labels=[(value.span, "here")], help=help)

    def _wrong_count(self, op: Op, inputs: list[int], shard: ast.Shard) -> None:
        values = [self.graph.values[op.operands[i]] for i in inputs]
        names = " and ".join(f"`{v.name}`" for v in values)
        inner = ", ".join(_offers(op, inputs, shard))
        self.sink.report(
            "SH313", f"`{op.called}` has {_count(len(inputs), 'input')}, {names}, and the rule has "
            f"{_count(len(shard.inputs), 'tuple')}",
            shard.span, "", labels=[(op.span, "the operator")], help=f"one tuple for each input: `shard ({inner})`",
        )  # fmt: skip

    def _input(self, op: Op, i: int, entries: ast.ShardTuple, offer: str, reading: _ShardReading) -> bool:
        value = self.graph.values[op.operands[i]]
        factors = op.rule.operands[i]
        return self._entry_count(value, entries, offer) and all(
            [self._entry(value, d, factors[d], entry, reading) for d, entry in enumerate(entries.entries)]
        )

    def _entry_count(self, value: GraphValue, entries: ast.ShardTuple, offer: str) -> bool:
        dims = value.type.dims
        if len(entries.entries) == len(dims):
            return True
        shown = f"[{', '.join(term_text(t) for t in dims)}]"
        self.sink.report(
            "SH314", f"`{value.name}` is {shown}: {_count(len(dims), 'dim')}, and its tuple has "
            f"{_count(len(entries.entries), 'entry')}",
            entries.span, "", help=f"one entry for each dim, 1 for a whole one: `{offer}`",
        )  # fmt: skip
        return False

    # --- one entry ---

    def _entry(
        self, value: GraphValue, d: int, factors: DimFactors, entry: ast.ShardEntry, reading: _ShardReading
    ) -> bool:
        term = value.type.dims[d]
        name, size = term_text(term), value.type.shape[d]
        axes, degree = self._cut(entry)
        if degree is None:
            return False
        if not isinstance(degree, int) or degree < 1:
            fact = f"`{name}` cannot be cut in {entry.span.text}"
            self.sink.report("SH316", fact, entry.span, help="1 for a whole dim")
            return False
        if size % degree:
            if (factors, degree) in reading.undivided:  # the same dim of another input
                return False
            reading.undivided.add((factors, degree))
            fact, help = f"dim `{name}` does not divide in {degree}", f"it can be cut in {either(divisors(size))}"
            self.sink.report("SH304", fact, entry.span, f"`{name}` is {size}", help=help)
            return False
        return self._record(value, name, factors, entry, degree, axes, reading)

    def _cut(self, entry: ast.ShardEntry) -> tuple[tuple[str, ...], int | float | None]:
        """The axes that an entry names, and in how many parts it cuts; None after reporting an
        axis."""
        axes = tuple(a.text for a in entry.axes)
        if not all([self.rules.axis(a) for a in entry.axes]):
            return axes, None
        return axes, entry.cuts.value if entry.cuts is not None else self.axes.degree(axes) or 1

    def _record(self, value: GraphValue, name: str, factors: DimFactors, entry: ast.ShardEntry, degree: int,
                axes: tuple[str, ...], reading: _ShardReading) -> bool:  # fmt: skip
        whole = not factors or any(reading.rule.factors[f].split is Split.WHOLE for f in factors)
        if whole and degree > 1:
            fact = f"the operator needs `{name}` of `{value.name}` whole"
            self.sink.report("SH320", fact, entry.span, help="write 1 here")
            return False
        cuts = {factors[0]: degree} if axes and factors else _over_factors(reading.rule, factors, degree)
        for f, mine in cuts.items():
            counted, named = (1, axes) if axes else (mine, ())
            if f in reading.first and (reading.cuts[f], reading.named.get(f, ())) != (counted, named):
                self._disagree(name, f, entry, reading)
                return False
            reading.cuts[f] = counted
            if named:
                reading.named[f] = named
            reading.first.setdefault(f, entry)
        return True

    def _disagree(self, name: str, f: int, entry: ast.ShardEntry, reading: _ShardReading) -> None:
        before = reading.first[f]
        first, second = _text(before), _text(entry)
        self.sink.report(
            "SH315", f"`{name}` is cut {first} in one input and {second} in another", entry.span, second,
            labels=[(before.span, first)],
            help=f"a dim of one operator is cut one way: write {before.span.text} in both places, or {entry.span.text}",
        )  # fmt: skip

    # --- against the ranks ---

    def _fits(self, reading: _ShardReading, shard: ast.Shard) -> bool:
        used = [a for axes in reading.named.values() for a in axes]
        twice = next((a for a in used if used.count(a) > 1), None)
        if twice is not None:
            help = "an axis cuts one dim of an operator"
            self.sink.report("SH310", f"axis `{twice}` cuts two dims", shard.span, help=help)
            return False
        named, cuts = reading.named, reading.cuts
        factors = range(len(reading.rule.factors))
        degrees = [self.axes.degree(named[f]) if f in named else cuts.get(f, 1) for f in factors]
        whole = majors_used_up(reading.rule, degrees, shard.span, self.sink)
        return whole and self._product(list(reading.cuts.values()), shard.span)

    def _product(self, cuts: list[int], span: Span) -> bool:
        ranks, total = self.axes.within, math.prod(cuts)
        if ranks is None or ranks % total == 0:
            return True
        product = " * ".join(str(c) for c in cuts if c > 1)
        shown = f"{product} = {total}" if "*" in product else str(total)
        message = f"the rule cuts in {shown} pieces, more than there are ranks ({ranks})"
        if total <= ranks:
            message = f"the rule cuts in {shown} pieces, which {ranks} ranks cannot share out evenly"
        fits = [d for d in divisors(ranks) if d > 1] or [1]
        self.sink.report("SH316", message, span, help=f"cuts whose product is {either(fits)}, or run on {total} ranks")
        return False

    def _output(self, value: GraphValue, shard: ast.Shard) -> tuple[int | tuple[str, ...], ...] | None:
        assert shard.outputs is not None
        ones = tuple_text("1" * len(value.type.dims))
        if len(shard.outputs) != 1:
            fact = f"the operator has 1 result, and the rule has {len(shard.outputs)} tuples for it"
            span = shard.outputs[1].span if shard.outputs[1:] else shard.span
            self.sink.report("SH313", fact, span, help=f"write one: `-> ({ones})`")
            return None
        entries = shard.outputs[0]
        if not self._entry_count(value, entries, ones):
            return None
        found: list[int | tuple[str, ...]] = []
        for size, term, entry in zip(value.type.shape, value.type.dims, entries.entries, strict=True):
            axes, degree = self._cut(entry)
            if degree is None:
                return None
            if not isinstance(degree, int) or degree < 1 or size % degree:
                fact = f"dim `{term_text(term)}` does not divide in {degree}"
                help = f"it can be cut in {either(divisors(size))}"
                self.sink.report("SH304", fact, entry.span, f"it is {size}", help=help)
                return None
            found.append(axes if entry.cuts is None else degree)
        numbers = [c for c in found if isinstance(c, int)]
        return tuple(found) if self._product(numbers, entries.span) else None


def _offers(op: Op, inputs: list[int], shard: ast.Shard) -> list[str]:
    """A tuple for each input, as written if it fits, else as other inputs say of the same dim."""
    rows = [op.rule.operands[i] for i in inputs]
    texts = [[e.span.text for e in t.entries] for t in shard.inputs]
    seen: dict[DimFactors, str] = {}
    for row, written in zip(rows, texts, strict=False):
        seen.update((f, t) for f, t in zip(row, written, strict=False) if len(row) == len(written))
    whole = "_" if any(e.axes for t in shard.inputs for e in t.entries) else "1"
    found = []
    for n, row in enumerate(rows):
        kept = texts[n][: len(row)] if n < len(texts) else []
        found.append(tuple_text(kept + [seen.get(f, whole) for f in row[len(kept) :]]))
    return found


def _over_factors(rule: FactorRule, factors: DimFactors, degree: int) -> dict[int, int]:
    """The cuts of a product dim, major factors first."""
    found: dict[int, int] = {}
    for f in factors:
        mine = math.gcd(degree, rule.factors[f].size)
        found[f] = mine
        degree //= mine
    return found


def _text(entry: ast.ShardEntry) -> str:
    if entry.cuts is not None:
        return f"in {entry.span.text}"
    return f"over {entry.span.text}" if entry.axes else "not at all"


def _count(n: int, noun: str) -> str:
    plural = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{n} {noun if n == 1 else plural}"
