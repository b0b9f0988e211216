"""The rules of a strategy, sorted by kind, with names looked up: axes, dims and the values that selectors cover.

Reports names and selectors that match nothing, and features that are not there yet. Which rule wins is splits.py's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import TypeVar

from shardlang.check.selectors import EVERYWHERE, Scope, Specificity, select
from shardlang.diagnostics.diagnostic import Sink
from shardlang.diagnostics.nearest import nearest
from shardlang.graph.graph import Graph, Kind
from shardlang.plan.demand import ZeroRule
from shardlang.plan.strategy.axis_sizes import evaluate
from shardlang.plan.time_axis import MicrobatchRule
from shardlang.records import dataclass
from shardlang.source import Span
from shardlang.syntax import ast
from shardlang.types.dim import Dim

R = TypeVar("R", ast.Stages, ast.Schedule)
_INDEX = re.compile(r"\[\d+\]")

@dataclass(frozen=True, eq=False, slots=True)
class SplitRule:
    """`split dims over axes`: axes not yet refined. scope None is the whole model. spans: per dim, its name in the
    rule. sizes: those of the parts, as written, where they are given by hand.
    """

    dims: Mapping[Dim, Span]
    axes: tuple[str, ...]
    yields: frozenset[str]
    scope: Scope | None
    uneven: bool
    span: Span
    sizes: tuple[ast.Expr, ...] | None = None

    def rank(self, values: tuple[int, ...]) -> Specificity | None:
        """How specifically the rule covers the closest of `values`; None where it covers none."""
        if self.scope is None:
            return EVERYWHERE
        ranks = [self.scope.values[v] for v in values if v in self.scope.values]
        return max(ranks) if ranks else None


@dataclass(frozen=True, slots=True)
class Placed:
    """A pin or a positional rule on one value."""

    rule: ast.Pin | ast.Shard
    rank: Specificity


@dataclass
class Rules:
    """Everything a strategy says. `placed`: value id -> the pin or shard that wins there; `used_axes`: rules' axes."""

    graph: Graph
    sink: Sink
    statics: Mapping[str, int | float]
    axes: dict[str, Span] = field(default_factory=dict)
    splits: list[SplitRule] = field(default_factory=list)
    placed: dict[int, Placed] = field(default_factory=dict)
    zero: dict[int, tuple[Specificity, ZeroRule]] = field(default_factory=dict)
    bucket: int | None = None
    strict: bool = False
    microbatches: MicrobatchRule | None = None
    stages: ast.Stages | None = None
    schedule: ast.Schedule | None = None
    stage_axis: str = ""
    recompute: list[ast.Selector] = field(default_factory=list)
    hosted: dict[int, tuple[Specificity, ast.Place]] = field(default_factory=dict)
    used_axes: set[str] = field(default_factory=set)
    _told: set[tuple[Span, Span]] = field(default_factory=set)

    def read(self, strategy: ast.Strategy) -> None:
        for rule in strategy.rules:
            match rule:
                case ast.Mesh():
                    pass
                case ast.At():
                    self._at(rule)
                case _:
                    self._rule(rule, None)

    def _at(self, at: ast.At) -> None:
        scope = select(self.graph, at.selectors, self.sink)
        if not at.rules:
            self.sink.report(
                "SH321", "this `at` has no rule", at.span, "nothing follows from it",
                help="write a rule in it, such as `split batch over dp`, or leave it out",
            )  # fmt: skip
        if any(isinstance(rule, ast.Recompute) for rule in at.rules):
            self.recompute += at.selectors
        for rule in at.rules:
            self._rule(rule, scope)

    def _rule(self, rule: ast.Rule, scope: Scope | None) -> None:
        match rule:
            case ast.Split():
                self._split(rule, scope)
            case ast.Pin() | ast.Shard():
                self._place(rule, scope)
            case ast.Zero():
                self._zero(rule, scope)
            case ast.Bucket():
                self._bucket(rule)
            case ast.Strict():
                self.strict = True
            case ast.Microbatches():
                self._microbatches(rule)
            case ast.Stages():
                self.stages = self._once_a_strategy(self.stages, rule, "the stages are")
            case ast.Schedule():
                self.schedule = self._once_a_strategy(self.schedule, rule, "the schedule is")
            case ast.Recompute():
                if scope is None:
                    self.sink.report(
                        "SH321", "`recompute` needs a place", rule.span,
                        help="say which layers are computed again in backward: `at blocks[*]: recompute`",
                    )  # fmt: skip
            case ast.Place():
                self._memory(rule, scope)
            case ast.Mesh() | ast.At():
                self.sink.report(
                    "SH321", "a mesh and further selectors are not allowed inside of `at`", rule.span,
                    help="write it as a line of the strategy itself",
                )  # fmt: skip

    def _bucket(self, rule: ast.Bucket) -> None:
        if self.bucket is not None:
            self.sink.report("SH321", "the size of the buckets is given twice", rule.span, help="keep one of them")
        elif rule.size.unit[-1:] != "B" or rule.size.value < 1:
            self.sink.report(
                "SH321", f"`{rule.size.text}` is no size of a bucket", rule.size.span, "bytes are needed",
                help="write it with a unit: `bucket gradients 25MB`",
            )  # fmt: skip
        else:
            self.bucket = int(rule.size.value)

    def _microbatches(self, rule: ast.Microbatches) -> None:
        if self.microbatches is not None:
            self.sink.report(
                "SH321", "the number of microbatches is given twice", rule.span,
                labels=[(self.microbatches.span, "the first")], help="keep one of them",
            )  # fmt: skip
            return
        count = evaluate(rule.count, self.statics)
        if count is None and any(name in self.axes for name in _names(rule.count)):
            return  # the size of an axis, which waits for a rank count
        if not isinstance(count, int) or count < 1:
            shown = "no number" if count is None else str(count)
            self.sink.report(
                "SH411", f"the number of microbatches is {shown}", rule.count.span,
                "a whole number from 1 is needed",
                help="write a number, or an expression of dims and axes: `microbatches 2 * pp`",
            )  # fmt: skip
            return
        self.microbatches = MicrobatchRule(count, rule.span)

    def _once_a_strategy(self, first: R | None, rule: R, what: str) -> R:
        if first is None:
            return rule
        self.sink.report(
            "SH321", f"{what} given twice", rule.span, labels=[(first.span, "the first")], help="keep one of them"
        )
        return first

    def _memory(self, rule: ast.Place, scope: Scope | None) -> None:
        """`place on host`: of all that is covered, for each value by the most specific rule."""
        if rule.where.text not in ("device", "host"):
            self.sink.report(
                "SH321", f"there is no place `{rule.where.text}`", rule.where.span,
                help="the places are `host` and `device`",
            )  # fmt: skip
            return
        if scope is None:
            self.sink.report(
                "SH321", "`place` needs a selector", rule.span,
                help=f"name parameters and values: `at table: {rule.span.text}`",
            )  # fmt: skip
            return
        for value, rank in scope.values.items():
            old = self.hosted.get(value)
            if old is None or rank > old[0]:
                self.hosted[value] = rank, rule
            elif rank == old[0] and old[1].where.text != rule.where.text and self._once(old[1].span, rule.span):
                self.sink.report(
                    "SH309", f"two rules place `{self.graph.values[value].name}` on the host and on the device",
                    rule.span, "one rule", labels=[(old[1].span, "as specific as the other")], help="keep one of them",
                )  # fmt: skip

    # --- names ---

    def axis(self, name: ast.Name) -> bool:
        """Whether an axis is declared; reports it where not."""
        if name.text == self.stage_axis and name.text in self.axes:
            self.sink.report(
                "SH426", f"axis `{name.text}` belongs to the stages, and cannot divide anything else", name.span,
                labels=[(self.axes[name.text], "its ranks run different stages")],
                help="take it out here, or declare another axis in `mesh`",
            )  # fmt: skip
            return False
        if name.text in self.axes:
            self.used_axes.add(name.text)
            return True
        near = nearest(name.text, self.axes)
        known = f"the axes are {', '.join(self.axes)}" if self.axes else f"declare it: `mesh {name.text} = auto`"
        self.sink.report(
            "SH306", f"the mesh has no axis `{name.text}`", name.span,
            help=f"did you mean `{near}`?" if near else known,
        )  # fmt: skip
        return False

    def dim(self, path: ast.DimPath) -> tuple[Dim, ...]:
        """The dims of a name; reports it where there are none."""
        found = self.graph.dims.get(path.text, ())
        if not found:
            # A path without indexes names the dims of all layers of an array: `blocks.inner`.
            plain = [(_INDEX.sub("", name), dims) for name, dims in self.graph.dims.items()]
            found = tuple(dict.fromkeys(d for name, dims in plain if name == path.text for d in dims))
        if not found:
            names = [name for name, _ in plain]
            near = nearest(path.text, names) or next((n for n in names if n.endswith(f".{path.text}")), None)
            known = sorted(n for n in self.graph.dims if "." not in n)[:12]
            self.sink.report(
                "SH307", f"the model has no dim `{path.text}`", path.span,
                help=f"did you mean `{near}`?" if near else f"its dims are {', '.join(known)}",
            )  # fmt: skip
        return tuple(found)

    def _axes(self, names: tuple[ast.Name, ...]) -> tuple[str, ...] | None:
        good = [self.axis(n) for n in names]
        texts = tuple(n.text for n in names)
        for i, name in enumerate(names):
            if name.text in texts[:i]:
                self.sink.report("SH310", f"axis `{name.text}` is given twice", name.span, help="write it once")
                return None
        return texts if all(good) else None

    # --- rules ---

    def _split(self, rule: ast.Split, scope: Scope | None) -> None:
        axes = self._axes(tuple(a.name for a in rule.axes))
        dims: dict[Dim, Span] = {}
        for path in rule.dims:
            found = self.dim(path)
            dims.update((d, path.span) for d in found)
            if found and scope is not None and scope.values:
                self._check_used(path, found, scope)
        if axes is None or not dims:
            return
        yields = frozenset(a.name.text for a in rule.axes if a.yields)
        self.splits.append(SplitRule(dims, axes, yields, scope, rule.uneven, rule.span, rule.sizes))

    def _check_used(self, path: ast.DimPath, dims: tuple[Dim, ...], scope: Scope) -> None:
        near = [self.graph.values[v] for v in scope.values]
        ops = [self.graph.producers[v.id] for v in near if v.id in self.graph.producers]
        inputs = [self.graph.values[v] for op in ops for v in self.graph.ops[op].operands]
        there = {d for v in (*near, *inputs) for term in v.type.dims for d in term}
        if not there.intersection(dims):
            self.sink.report(
                "SH308", f"nothing that the selector covers has a dim `{path.text}`", path.span,
                help=f"dims there: {', '.join(sorted({d.name for d in there if not d.literal})[:12])}",
            )  # fmt: skip

    def _place(self, rule: ast.Pin | ast.Shard, scope: Scope | None) -> None:
        what = "`shard`" if isinstance(rule, ast.Shard) else "a layout"
        if scope is None:
            written = " ".join(rule.span.text.split())
            self.sink.report("SH321", f"{what} needs a place", rule.span, help=f"say of what: `at h: {written}`")
            return
        if scope.values and not scope.named:
            self.sink.report(
                "SH321", f"{what} is for one value, and the selector names a layer", rule.span,
                help="name a value of its forward: `at layer.value: ...`",
            )  # fmt: skip
        for value, rank in scope.named.items():
            self._win(value, Placed(rule, rank))

    def _win(self, value: int, new: Placed) -> None:
        old = self.placed.get(value)
        if old is None or new.rank > old.rank:
            self.placed[value] = new
        elif new.rank == old.rank and _differ(old.rule, new.rule) and self._once(old.rule.span, new.rule.span):
            self.sink.report(
                "SH309", f"two rules give `{self.graph.values[value].name}` different layouts",
                new.rule.span, "one rule",
                labels=[(old.rule.span, "as specific as the other")], help="keep one of them",
            )  # fmt: skip

    def _once(self, one: Span, two: Span) -> bool:
        """Whether a conflict of these two rules has not been told yet."""
        new = (one, two) not in self._told
        self._told.add((one, two))
        return new

    def _zero(self, rule: ast.Zero, scope: Scope | None) -> None:
        axes = self._axes(rule.axes)
        if rule.level.value not in (1, 2, 3):
            self.sink.report(
                "SH321",
                f"there is no zero {rule.level.text}",
                rule.level.span,
                help="1 shards optimizer state, 2 gradients too, 3 parameters too",
            )
            return
        if axes is None:
            return
        zero = ZeroRule(int(rule.level.value), axes, rule.span)
        covered = scope.values if scope is not None else dict.fromkeys(self.graph.params, EVERYWHERE)
        params = [v for v in covered if self.graph.values[v].kind is Kind.PARAM]
        if not params and covered:
            self.sink.report("SH308", "the selector covers no parameter", rule.span, help="name a layer or a parameter")
        for value in params:
            self._zero_wins(value, covered[value], zero)

    def _zero_wins(self, value: int, rank: Specificity, zero: ZeroRule) -> None:
        old = self.zero.get(value)
        if old is None or rank > old[0]:
            self.zero[value] = rank, zero
        elif rank == old[0] and not _same_zero(old[1], zero) and self._once(old[1].span, zero.span):
            self.sink.report(
                "SH309", f"two rules give `{self.graph.values[value].path}` different zero levels or axes", zero.span,
                "one rule", labels=[(old[1].span, "as specific as the other")], help="keep one of them",
            )  # fmt: skip


def _names(expr: ast.Expr) -> list[str]:
    """The names in an expression of a strategy."""
    match expr:
        case ast.Name():
            return [expr.text]
        case ast.Unary():
            return _names(expr.operand)
        case ast.Binary():
            return [*_names(expr.left), *_names(expr.right)]
        case _:
            return []


def _same_zero(a: ZeroRule, b: ZeroRule) -> bool:
    return (a.level, a.axes) == (b.level, b.axes)


def _differ(a: ast.Pin | ast.Shard, b: ast.Pin | ast.Shard) -> bool:
    return "".join(a.span.text.split()) != "".join(b.span.text.split())
