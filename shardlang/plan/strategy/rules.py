"""The rules of a strategy, sorted by kind, with names looked up: axes, dims and the values that
selectors cover.

Reports names and selectors that match nothing, and features that are not there yet. Which rule wins
is splits.py's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TypeVar

from shardlang.check.selectors import EVERYWHERE, SelectorScope, Specificity, select
from shardlang.diagnostics.diagnostic import Sink
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Graph, Kind
from shardlang.hints.nearest import nearest, offer
from shardlang.ops.declaration import REGISTRY, Operator
from shardlang.plan.demand import BUCKET_BYTES, AttendRule, ChunkRule, ZeroRule
from shardlang.plan.strategy.axis_sizes import evaluate
from shardlang.plan.time_axis import MicrobatchRule
from shardlang.sources.source import Span
from shardlang.syntax import ast
from shardlang.types.dim import Dim

R = TypeVar("R", ast.Stages, ast.Schedule)
W = TypeVar("W", ast.Pin | ast.Shard, ast.Place, AttendRule, ChunkRule, ZeroRule)
KEEP = "keep"
_INDEX = re.compile(r"\[[\d-]+\]")
NAME = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True, eq=False, slots=True)
class SplitRule:
    """`split dims over axes`: axes not yet refined. scope None is the whole model. spans: per dim,
    its name in the rule. sizes: those of the parts, as written, where they are given by hand."""

    dims: Mapping[Dim, Span]
    axes: tuple[str, ...]
    yields: frozenset[str]
    scope: SelectorScope | None
    uneven: bool
    span: Span
    sizes: tuple[ast.Expr, ...] | None = None

    def rank(self, values: tuple[int, ...]) -> Specificity | None:
        """How specifically the rule covers the closest of `values`; None where it covers none."""
        if self.scope is None:
            return EVERYWHERE
        ranks = [self.scope.values[v] for v in values if v in self.scope.values]
        return max(ranks) if ranks else None


@dataclass
class Rules:
    """Everything a strategy says. `placed`: value id -> the pin or shard that wins there, with how
    specific it is, and so `zero` and `hosted`; `used_axes`: rules' axes. holes: something is open;
    until it is found, the least stands there."""

    graph: Graph
    sink: Sink
    statics: Mapping[str, int | float]
    axes: dict[str, Span] = field(default_factory=dict)
    splits: list[SplitRule] = field(default_factory=list)
    placed: dict[int, tuple[Specificity, ast.Pin | ast.Shard]] = field(default_factory=dict)
    zero: dict[int, tuple[Specificity, ZeroRule]] = field(default_factory=dict)
    bucket: int | None = None
    strict: bool = False
    holes: bool = False
    microbatches: MicrobatchRule | None = None
    stages: ast.Stages | None = None
    schedule: ast.Schedule | None = None
    stage_axis: str = ""
    offer: Callable[[str, int], str] = lambda axis, size: ""
    recompute: list[tuple[ast.Recompute | ast.Place, ast.Selector]] = field(default_factory=list)
    hosted: dict[int, tuple[Specificity, ast.Place]] = field(default_factory=dict)
    attended: dict[int, tuple[Specificity, AttendRule]] = field(default_factory=dict)
    chunked: dict[int, tuple[Specificity, ChunkRule]] = field(default_factory=dict)
    used_axes: set[str] = field(default_factory=set)
    _told: set[tuple[Span, Span]] = field(default_factory=set)

    def read(self, strategy: ast.Strategy) -> None:
        self.graph.places().looked = 0  # each strategy by itself
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
            help = "write a rule in it, such as `split batch over dp`, or leave it out"
            self.sink.report("SH321", "this `at` has no rule", at.span, "nothing follows from it", help=help)
        for rule in at.rules:
            match rule:
                case ast.Recompute(what=tuple()) | ast.Place(saved=True, where=ast.Name(text="host")):
                    self.recompute += [
                        (rule, selector) for selector in at.selectors if selector.span not in scope.wrong
                    ]
            self._rule(rule, scope)

    def _rule(self, rule: ast.Rule, scope: SelectorScope | None) -> None:
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
                if scope is None and rule.what is not None:
                    help = "say which layers are computed again in backward: `at blocks[*]: recompute`"
                    self.sink.report("SH321", "`recompute` needs a place", rule.span, help=help)
            case ast.Attend():
                self._attend(rule, scope)
            case ast.Chunks():
                self._chunks(rule, scope)
            case ast.Place():
                self._memory(rule, scope)
            case ast.Mesh() | ast.At():
                fact = "a mesh and further selectors are not allowed inside of `at`"
                self.sink.report("SH321", fact, rule.span, help="write it as a line of the strategy itself")

    def _bucket(self, rule: ast.Bucket) -> None:
        if self.bucket is not None:
            self.sink.report("SH321", "the size of the buckets is given twice", rule.span, help="keep one of them")
        elif rule.size is None:
            self.bucket = BUCKET_BYTES
        elif rule.size.unit[-1:] != "B" or rule.size.value < 1:
            fact, help = f"`{rule.size.text}` is no size of a bucket", "write it with a unit: `bucket gradients 25MB`"
            self.sink.report("SH321", fact, rule.size.span, "bytes are needed", help=help)
        else:
            self.bucket = int(rule.size.value)

    def _microbatches(self, rule: ast.Microbatches) -> None:
        if self.microbatches is not None:
            return self._twice("the number of microbatches is", rule.span, self.microbatches.span)
        count = 1 if rule.count is None else self._count(rule.count, "microbatches", "SH411")
        if count is not None:
            self.microbatches = MicrobatchRule(count, rule.span)

    def _count(self, written: ast.Expr, what: str, code: str) -> int | None:
        """A whole number from 1; None after reporting, or where it is to be the size of an axis
        that waits for a rank count."""
        count = evaluate(written, self.statics)
        if count is None and not self.axes.keys().isdisjoint(NAME.findall(written.span.text)):
            return None
        if isinstance(count, int) and count >= 1:
            return count
        fact = f"the number of {what} is {'no number' if count is None else count}"
        help = f"write a number, or an expression of dims and axes: `{what} 2 * pp`"
        self.sink.report(code, fact, written.span, "a whole number from 1 is needed", help=help)
        return None

    def _once_a_strategy(self, first: R | None, rule: R, what: str) -> R:
        if first is not None:
            self._twice(what, rule.span, first.span)
        return first or rule

    def _twice(self, what: str, span: Span, first: Span) -> None:
        labels = [(first, "the first")]
        self.sink.report("SH321", f"{what} given twice", span, labels=labels, help="keep one of them")

    def _memory(self, rule: ast.Place, scope: SelectorScope | None) -> None:
        """`place on host`: of all that is covered, for each value by the most specific rule."""
        where = rule.where
        if where is not None and where.text not in ("device", "host"):
            help = "the places are `host` and `device`"
            return self.sink.report("SH321", f"there is no place `{where.text}`", where.span, help=help)
        if rule.saved and where is not None and where.text == "device":
            help = "it is there without a rule; `place saved on host` sends it to the host"
            return self.sink.report("SH321", "`place saved on device` says nothing", rule.span, help=help)
        if scope is None and where is not None:
            what, such = ("layers", "blocks[*]") if rule.saved else ("parameters and values", "table")
            help = f"name {what}: `at {such}: {rule.span.text}`"
            return self.sink.report("SH321", "`place` needs a selector", rule.span, help=help)
        conflict = "two rules place `{0.name}` on the host and on the device"
        if scope is not None and where is not None and not rule.saved:
            self._win(self.hosted, scope.values, rule, lambda rule: rule.where and rule.where.text, conflict)

    def _attend(self, rule: ast.Attend, scope: SelectorScope | None) -> None:
        """`attend ..`: of all attentions that are covered, for each by the most specific rule."""
        ways = {str(way): way for way in (AttendRule(False, rule.span), AttendRule(True, rule.span))}
        written = " ".join(("attend", *(word.text for word in rule.how)))
        if written not in ways:
            help = offer(written, ways, "write `attend evenly` or `attend in a ring`")
            return self.sink.report("SH321", f"`{written}` is no way to attend", rule.span, help=help)
        covered = self._covered(rule, scope, lambda operator: operator.attends, "`attention`")
        self._win(self.attended, covered, ways[written], str, "two rules say differently how `{0.path}` attends")

    def _chunks(self, rule: ast.Chunks, scope: SelectorScope | None) -> None:
        """`chunks 8`: of all losses that are covered, for each by the most specific rule."""
        count = self._count(rule.count, "chunks", "SH329")
        if count is not None:
            covered = self._covered(rule, scope, lambda operator: bool(operator.chunked), "`cross_entropy`")
            conflict = "two rules compute `{0.path}` in different numbers of chunks"
            self._win(self.chunked, covered, ChunkRule(count, rule.span), lambda rule: rule.count, conflict)

    def _covered(
        self, rule: ast.Rule, scope: SelectorScope | None, which: Callable[[Operator], bool], name: str
    ) -> dict[int, Specificity]:
        """The results of some operators that a rule covers; reports where it covers none."""
        ops = (op for op in self.graph.ops if which(REGISTRY[op.operator]))
        found = dict.fromkeys((v for op in ops for v in op.results), EVERYWHERE)
        every = scope.values if scope is not None else found
        covered = {value: rank for value, rank in every.items() if value in found}
        if not covered and (every or scope is None):
            help = f"leave it out, or name what calls {name}"
            self.sink.report("SH308", f"the rule covers no {name}", rule.span, help=help)
        return covered

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
        known = f"the axes are {', '.join(self.axes)}" if self.axes else f"declare it: `mesh {name.text} = auto`"
        help = offer(name.text, self.axes, known)
        self.sink.report("SH306", f"the mesh has no axis `{name.text}`", name.span, help=help)
        return False

    def dim(self, path: ast.DimPath) -> tuple[Dim, ...]:
        """The dims of a name; reports it where there are none."""
        found = self.graph.dims.get(path.text, ())
        if not found:
            # A path without indexes names the dims of all layers of an array: `blocks.inner`.
            plain = [(_INDEX.sub("", name), dims) for name, dims in self.graph.dims.items()]
            found = tuple(dict.fromkeys(d for name, dims in plain if name == path.text for d in dims))
        if not found:

            def help() -> str:
                names = [name for name, _ in plain]
                near = nearest(path.text, names) or next((n for n in names if n.endswith(f".{path.text}")), None)
                known = sorted(n for n in self.graph.dims if "." not in n)[:12]
                return f"did you mean `{near}`?" if near else f"its dims are {', '.join(known)}"

            self.sink.report("SH307", f"the model has no dim `{path.text}`", path.span, help=help)
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

    def _split(self, rule: ast.Split, scope: SelectorScope | None) -> None:
        axes = self._axes(tuple(a.name for a in rule.axes))
        dims: dict[Dim, Span] = {}
        for path in rule.dims:
            found = self.dim(path)
            dims.update((d, path.span) for d in found)
            if found and scope is not None and scope.values:
                self._check_used(path, found, scope)
        if not rule.dims and rule.sizes is not None:
            fact = "sizes are of the parts of one dim, and `auto` names none"
            self.sink.report("SH327", fact, rule.span, help="name the dim, or leave out the sizes")
        if axes is None or not dims:
            return
        yields = frozenset(a.name.text for a in rule.axes if a.yields)
        self.splits.append(SplitRule(dims, axes, yields, scope, rule.uneven, rule.span, rule.sizes))

    def _check_used(self, path: ast.DimPath, dims: tuple[Dim, ...], scope: SelectorScope) -> None:
        near = [self.graph.values[v] for v in scope.values]
        ops = [self.graph.producers[v.id] for v in near if v.id in self.graph.producers]
        inputs = [self.graph.values[v] for op in ops for v in self.graph.ops[op].operands]
        there = {d for v in (*near, *inputs) for term in v.type.dims for d in term}
        if not there.intersection(dims):
            help = f"dims there: {', '.join(sorted({d.name for d in there if not d.literal})[:12])}"
            fact = f"nothing that the selector covers has a dim `{path.text}`"
            self.sink.report("SH308", fact, path.span, help=help)

    def _place(self, rule: ast.Pin | ast.Shard, scope: SelectorScope | None) -> None:
        what = "`shard`" if isinstance(rule, ast.Shard) else "a layout"
        if scope is None:
            written = " ".join(rule.span.text.split())
            self.sink.report("SH321", f"{what} needs a place", rule.span, help=f"say of what: `at h: {written}`")
            return
        if scope.values and not scope.named:
            fact = f"{what} is for one value, and the selector names a layer"
            self.sink.report("SH321", fact, rule.span, help="name a value of its forward: `at layer.value: ...`")
        conflict = "two rules give `{0.name}` different layouts"
        self._win(self.placed, scope.named, rule, lambda rule: "".join(rule.span.text.split()), conflict)

    def _win(self, won: dict[int, tuple[Specificity, W]], covered: Mapping[int, Specificity], rule: W,
             meaning: Callable[[W], object], conflict: str) -> None:  # fmt: skip
        """Gives the values that a rule covers to it where none is more specific; reports one as
        specific with another meaning, once for each two rules."""
        for value, rank in covered.items():
            best, old = won.get(value, (None, rule))
            if best is None or rank > best:
                won[value] = rank, rule
            elif rank == best and meaning(old) != meaning(rule) and (old.span, rule.span) not in self._told:
                self._told.add((old.span, rule.span))
                self.sink.report(
                    "SH309", conflict.format(self.graph.values[value]), rule.span, "one rule",
                    labels=[(old.span, "as specific as the other")], help="keep one of them",
                )  # fmt: skip

    def _zero(self, rule: ast.Zero, scope: SelectorScope | None) -> None:
        axes = self._axes(rule.axes)
        if not rule.axes:
            axis = next((name for name in self.axes if name != self.stage_axis), "dp")
            help = f"write `zero auto over {axis}`"
            return self.sink.report("SH327", "`zero auto` does not say over which axis", rule.span, help=help)
        level, written = (1, "auto") if rule.level is None else (rule.level.value, rule.level.text)
        if rule.level is not None and level not in (1, 2, 3):
            help = "1 shards optimizer state, 2 gradients too, 3 parameters too"
            return self.sink.report("SH321", f"there is no zero {written}", rule.level.span, help=help)
        if rule.word is not None and (rule.word.text != KEEP or level != 3):
            fact = f"`zero {written}` knows no `{rule.word.text}`"
            offers = f"`zero 3 over .., {KEEP}` gathers parameters once a step", "several axes are `over (a, b)`"
            return self.sink.report("SH321", fact, rule.word.span, help=offers)
        if axes is None:
            return
        zero = ZeroRule(int(level), axes, rule.span, rule.word is not None)
        covered = scope.values if scope is not None else dict.fromkeys(self.graph.params, EVERYWHERE)
        params = {v: rank for v, rank in covered.items() if self.graph.values[v].kind is Kind.PARAM}
        if not params and covered:
            self.sink.report("SH308", "the selector covers no parameter", rule.span, help="name a layer or a parameter")
        conflict = "two rules give `{0.path}` different zero levels or axes"
        self._win(self.zero, params, zero, lambda rule: (rule.level, rule.axes, rule.keep), conflict)
