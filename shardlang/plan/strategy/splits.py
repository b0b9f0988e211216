"""`split` rules -> what they demand of each operator: the most specific rule decides per dim, an
axis cuts a tensor once.

Pins and positional rules come from pins.py and positional.py and outrank what is found here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from itertools import combinations, pairwise

from shardlang.check.selectors import Specificity
from shardlang.diagnostics.diagnostic import Sink
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import LEAF, Graph, Op
from shardlang.ops.rule import FactorRule
from shardlang.plan.demand import Demand
from shardlang.plan.dim_factors import DimRun, dim_runs, spread, stranded_factor
from shardlang.plan.strategy.axis_sizes import divisors, either
from shardlang.plan.strategy.dims_over_axes import Axes
from shardlang.plan.strategy.rules import SplitRule
from shardlang.sources.source import Span
from shardlang.types.dim import Dim, TensorType, term_text


@dataclass(frozen=True, eq=False, slots=True)
class WinningRule:
    """The rule that decides a dim's axes at one operator."""

    rule: SplitRule
    dim: Dim
    rank: Specificity

    @property
    def span(self) -> Span:
        return self.rule.dims[self.dim]


@dataclass(eq=False, slots=True)
class FactorSplit:
    """A run of factors and the rules that win on its dims; `axes[i]`: what rule i keeps."""

    run: DimRun
    winners: list[WinningRule | None]
    axes: list[tuple[str, ...]]


@dataclass
class SplitRules:
    """Asks every operator; remembers answers by rule, types and covering rules. Dims that no rule
    names tell nothing but their sizes: each layer may have dims of its own."""

    graph: Graph
    splits: list[SplitRule]
    axes: Axes
    sink: Sink
    by_dim: dict[Dim, list[SplitRule]] = field(default_factory=dict)
    _known: dict[tuple[object, ...], Demand | None] = field(default_factory=dict)
    _seen: dict[int, tuple[bool, int]] = field(default_factory=dict)
    _alike: dict[object, int] = field(default_factory=dict)
    _scoped: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for rule in self.splits:
            for dim in rule.dims:
                self.by_dim.setdefault(dim, []).append(rule)
        ranks: dict[int, list[tuple[int, Specificity]]] = {}
        for number, rule in enumerate(self.splits):
            for value, rank in rule.scope.values.items() if rule.scope is not None else ():
                ranks.setdefault(value, []).append((number, rank))
        # One number for all values that the same rules cover as specifically.
        numbers: dict[object, int] = {}
        self._scoped = {value: numbers.setdefault(tuple(found), len(numbers)) for value, found in ranks.items()}

    def demand(self, op: Op) -> Demand | None:
        """The demand of `split` rules on an operator."""
        values = self.graph.values
        types = tuple([values[v].type for v in (*op.operands, *op.results)])
        seen = [self._seen.get(id(t)) or self._as_seen(t) for t in types]
        if not any([named for named, _ in seen]):
            return None
        there = [v for v in (*op.results, *op.operands) if v in self._scoped] if self._scoped else ()
        covered = tuple([v for v in there if v in op.results or values[v].kind in LEAF])
        key = (op.rule, *[number for _, number in seen], tuple([self._scoped[v] for v in covered]))
        if key not in self._known:
            self._known[key] = self._decide(op, types, covered)
        return self._known[key]

    def _as_seen(self, type: TensorType) -> tuple[bool, int]:
        """Whether rules name a dim of a type, and one number for all types alike to them."""
        by_dim = self.by_dim
        named = any([d in by_dim for term in type.dims for d in term])
        dims = tuple([tuple([d if d in by_dim else d.size for d in term]) for term in type.dims])
        found = self._seen[id(type)] = named, self._alike.setdefault(dims, len(self._alike))
        return found

    def _decide(self, op: Op, types: tuple[TensorType, ...], covered: tuple[int, ...]) -> Demand | None:
        splits: dict[tuple[int, ...], FactorSplit] = {}
        for run in dim_runs(op.rule, types):
            if run.factors not in splits and any(d in self.by_dim for d in run.dims):
                winners = [self._winner(d, covered) for d in run.dims]
                # What may not be split at all competes with nothing.
                free = any(not op.rule.factors[f].whole for f in run.factors)
                if any(winners) and free:
                    splits[run.factors] = FactorSplit(run, winners, [c.rule.axes if c else () for c in winners])
        if not splits:
            return None
        splits = self._joined(op, splits)
        self._settle(op, types, list(splits.values()))
        factors: list[tuple[str, ...] | None] = [None] * len(op.rule.factors)
        given: list[tuple[str, ...]] = [()] * len(op.rule.factors)
        for split in splits.values():
            self._apply(op, split, factors, given)
        for f, factor in enumerate(op.rule.factors):
            if factor.exchanged and factor.exchanged.along and given[f] not in given[:f] + given[f + 1 :]:
                factors[f], given[f] = None, ()
        self._check_minor(op, list(splits.values()), given)
        pairs = [(c.rule.span, axes) for w in splits.values() for c, axes in zip(w.winners, w.axes, strict=True) if c]
        spans = tuple(dict.fromkeys(span for span, axes in pairs if axes))
        return None if all(f is None for f in factors) else Demand(tuple(factors), pairs[0][0], spans=spans)

    def _winner(self, dim: Dim, covered: tuple[int, ...]) -> WinningRule | None:
        """The most specific rule on a dim; two that differ are an error."""
        best: WinningRule | None = None
        for rule in self.by_dim.get(dim, ()):
            rank = rule.rank(covered)
            if rank is None:
                continue
            if best is None or rank > best.rank:
                best = WinningRule(rule, dim, rank)
            elif rank == best.rank and (rule.axes, rule.yields) != (best.rule.axes, best.rule.yields):
                self.sink.report(
                    "SH309", f"two rules split `{dim.name}` differently", rule.dims[dim], "one rule",
                    labels=[(best.span, "as specific as the other")], help="keep one of them, or narrow one with `at`",
                )  # fmt: skip
        return best

    def _joined(self, op: Op, splits: dict[tuple[int, ...], FactorSplit]) -> dict[tuple[int, ...], FactorSplit]:
        """Dims that an operator takes for one (heads that share heads of keys) are split once: by
        the more specific, or the one with more factors; equally specific ones must agree on the
        factors that both have."""
        kept = dict(splits)
        for few, many in combinations(sorted(splits, key=len), 2):
            if not set(few) & set(many) or few not in kept or many not in kept:
                continue
            ranks = [max(c.rank for c in splits[f].winners if c) for f in (few, many)]
            few_decides = ranks[0] > ranks[1]
            if ranks[0] == ranks[1]:
                few_decides = not self._agree(op, splits[few], splits[many])
            del kept[many if few_decides else few]
        return kept

    def _agree(self, op: Op, few: FactorSplit, many: FactorSplit) -> bool:
        """Whether two splits put the same axes on the factors that both have; reports SH309 where
        no dim is to blame that does not divide."""
        one, two = (
            spread(op.rule, w.run.factors, tuple(a for axes in w.axes for a in axes), self.axes.sizes)
            for w in (few, many)
        )
        if all(one[f] == two[f] for f in one if f in two):
            return True
        left, right = (next(c for c in w.winners if c) for w in (few, many))
        degree = self.axes.degree(left.rule.axes)
        if degree is None or (left.dim.size or 0) % degree == 0:
            self.sink.report(
                "SH309", f"`{op.called}` takes `{left.dim.name}` and `{right.dim.name}` together, and they are split "
                "differently", right.span, f"over `{', '.join(right.rule.axes)}`",
                labels=[(left.span, f"over `{', '.join(left.rule.axes)}`")],
                help=f"split both over `{', '.join(left.rule.axes)}`",
            )  # fmt: skip
        return False

    def _settle(self, op: Op, types: tuple[TensorType, ...], splits: list[FactorSplit]) -> None:
        """Each axis goes to one rule: to those that do not give way, then to the most specific."""
        wanted: dict[str, list[tuple[FactorSplit, int, WinningRule]]] = {}
        for split in splits:
            for i, winner in enumerate(split.winners):
                for axis in split.axes[i]:
                    if winner is not None:
                        wanted.setdefault(axis, []).append((split, i, winner))
        for axis, winners in wanted.items():
            if len(winners) < 2:
                continue
            firm = [c for c in winners if axis not in c[2].rule.yields] or winners
            top = max(c[2].rank for c in firm)
            strongest = [c for c in firm if c[2].rank == top]
            shared = _exchanged(op.rule, [split for split, _, _ in strongest])
            if len(strongest) > 1 and not shared:
                self._report_twice(op, types, axis, strongest[0][2], strongest[1][2])
            kept = [winner for _, _, winner in strongest[: 2 if shared else 1]]
            for split, i, winner in winners:
                if winner not in kept:
                    split.axes[i] = tuple(a for a in split.axes[i] if a != axis)

    def _report_twice(
        self, op: Op, types: tuple[TensorType, ...], axis: str, one: WinningRule, two: WinningRule
    ) -> None:
        ids = (*op.operands, *op.results)
        where = next(
            ((v, t) for v, t in zip(ids, types, strict=True) if _holds(t, one.dim, two.dim)), (op.results[0], types[-1])
        )
        value, type = self.graph.values[where[0]], where[1]
        if one.dim is two.dim:
            dims = [term_text(term) for term in type.dims]
            dims[next(i for i, term in enumerate(type.dims) if one.dim in term)] += f"@{axis}"
            self.sink.report(
                "SH311", f"`{one.dim.name}` is twice in `{value.path}`, {type}, so splitting it is ambiguous",
                one.span, "", labels=[(value.span, "here")],
                help=f"pin the value instead: `at {value.path}: [{', '.join(dims)}]`",
            )  # fmt: skip
            return
        self.sink.report(
            "SH310", f"axis `{axis}` would cut two dims of `{value.path}`: `{one.dim.name}` and `{two.dim.name}`",
            two.span, f"`{two.dim.name}` over `{axis}`", labels=[(one.span, f"`{one.dim.name}` over `{axis}`")],
            help=f"let one give way (`{axis}?`), or give it another axis",
        )  # fmt: skip

    def _apply(
        self, op: Op, split: FactorSplit, factors: list[tuple[str, ...] | None], given: list[tuple[str, ...]]
    ) -> None:
        """Checks that the axes fit, writes them to factors, and to `given` as rules name them."""
        axes: list[str] = []
        used_up = True
        for dim, winner, mine in zip(split.run.dims, split.winners, split.axes, strict=True):
            if winner is None:
                used_up = used_up and dim.size == 1
                continue
            mine = self.axes.fitting(dim, mine, winner.rule, self.sink)
            if mine and not used_up and not self._minor(split, dim, mine, winner):
                mine = ()
            degree = self.axes.degree(mine)
            used_up = used_up and (degree is None or degree == dim.size)
            axes += mine
        found = spread(op.rule, split.run.factors, tuple(axes), self.axes.sizes)
        if len(split.run.dims) == 1 and not self._in_order(op.rule, split, found):
            found = dict.fromkeys(found, ())
        for f, mine in found.items():
            whole = op.rule.factors[f].whole or self._uneven_in_product(op.rule, f, mine, split)
            given[f] = () if whole else mine
            factors[f] = self.axes.refined(given[f])

    def _in_order(self, rule: FactorRule, split: FactorSplit, found: Mapping[int, tuple[str, ...]]) -> bool:
        """Whether the axes of a dim of factors use up each before the next; else SH304."""
        winner = next(c for c in split.winners if c)
        if winner.rule.uneven or winner.rule.sizes is not None or not any(found.values()):
            return True
        for f, after in pairwise(split.run.factors):
            degree, factor = self.axes.degree(found[f]), rule.factors[f]
            if degree is not None and degree != factor.size and found[after]:
                axes = tuple(a for g in split.run.factors for a in found[g])
                self.axes.report(factor.name, factor.size, axes, winner.span, self.sink)
                return False
        return True

    def _uneven_in_product(self, rule: FactorRule, factor: int, axes: tuple[str, ...], split: FactorSplit) -> bool:
        """Whether blocks would differ within a product of dims, of several factors or taken as one:
        they are not torch.chunk's of the product."""
        degree = self.axes.degree(axes)
        by_hand = any(len(self.axes.part_sizes.get(dim, ())) == degree for dim in split.run.dims)
        if degree is None or (rule.factors[factor].size % degree == 0 and not by_hand):
            return False
        product = len(split.run.dims) > 1
        return product or any(factor in t and len(t) > 1 for dims in (*rule.operands, *rule.results) for t in dims)

    def _check_minor(self, op: Op, splits: list[FactorSplit], given: list[tuple[str, ...]]) -> None:
        """A minor factor of a tensor dim may be cut only after those before it are used up."""
        found = stranded_factor(op.rule, [self.axes.degree(axes) for axes in given])
        if found is None:
            return
        names = " * ".join(op.rule.factors[f].name for f in found[1])
        minor = op.rule.factors[found[0]].name
        winner = next(c for w in splits if found[0] in w.run.factors for c in w.winners if c)
        before = [op.rule.factors[f] for f in found[1][: found[1].index(found[0])]]
        major, size = " * ".join(f.name for f in before), math.prod(f.size for f in before)
        self.sink.report(
            "SH305", f"`{minor}` is the minor factor of `{names}` and cannot be cut alone", winner.span,
            f"over `{', '.join(given[found[0]])}`", help=_major_first(major, size),
        )  # fmt: skip

    def _minor(self, split: FactorSplit, dim: Dim, axes: tuple[str, ...], winner: WinningRule) -> bool:
        degree = self.axes.degree(axes)
        if degree is None or degree == 1:
            return True
        before = split.run.dims[: split.run.dims.index(dim)]
        major, size = term_text(before), math.prod(d.size or 1 for d in before)
        self.sink.report(
            "SH305", f"`{dim.name}` is the minor factor of `{term_text(split.run.dims)}` and cannot be cut alone",
            winner.span, f"over `{', '.join(axes)}`", help=_major_first(major, size),
        )  # fmt: skip
        return False


def _exchanged(rule: FactorRule, splits: list[FactorSplit]) -> bool:
    """Whether an axis may split both: rows of a table by all of their axes, and the ids."""
    if len(splits) != 2:
        return False
    for table, ids in (splits, splits[::-1]):
        (rows, *further) = table.run.factors
        how = rule.factors[rows].exchanged
        if further or how is None or not how.shares:
            continue
        asks = not any(f in dims and rows in dims for operand in rule.operands for dims in [sum(operand, ())]
                       for f in ids.run.factors)  # fmt: skip
        return asks and {a for axes in table.axes for a in axes} <= {a for axes in ids.axes for a in axes}
    return False


def _major_first(major: str, size: int) -> str:
    """Help for a split of a minor factor."""
    fits = [d for d in divisors(size) if d > 1]
    over = f" over {either(fits)} ranks" if fits else ""
    return f"split `{major}`{over} instead, or over exactly {size} ranks first: then what is left may be cut"


def _holds(type: TensorType, one: Dim, two: Dim) -> bool:
    dims = [d for term in type.dims for d in term]
    return dims.count(one) > 1 if one is two else one in dims and two in dims
