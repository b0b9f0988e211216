"""A strategy and a rank count -> meshes and what its rules demand of each operator, or every
mistake in it with what to type.

Rules that do not depend on ranks are checked without them too. Choosing the layouts that no rule
fixes is propagate.py's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cache, partial
from typing import TypeVar

from shardlang.check.program import CheckedProgram
from shardlang.diagnostics.diagnostic import Sink
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Graph, GraphValue, Kind
from shardlang.plan.demand import BUCKET_BYTES, Demand, ResolvedStrategy
from shardlang.plan.dim_factors import uneven_dims
from shardlang.plan.pipeline.assemble import PipelineRules, stage
from shardlang.plan.redistribute.mesh_factorings import Grouping, group
from shardlang.plan.rewrite.attend_rules import attending, check_attended
from shardlang.plan.rewrite.chunk_rules import in_chunks
from shardlang.plan.rewrite.insert import with_counts
from shardlang.plan.rewrite.microbatches import check_divides, times
from shardlang.plan.rewrite.placement import staged, with_copies
from shardlang.plan.rewrite.recompute_rules import recomputed
from shardlang.plan.rewrite.recomputed_casts import Groups, with_casts_inside
from shardlang.plan.strategy.axis_sizes import Legal, SizedAxis, declared, fit
from shardlang.plan.strategy.buffers import Buffers
from shardlang.plan.strategy.dims_over_axes import Axes
from shardlang.plan.strategy.holes import holes, report_holes
from shardlang.plan.strategy.names import tell_sure
from shardlang.plan.strategy.part_sizes import check_products, read_part_sizes
from shardlang.plan.strategy.pins import Pins
from shardlang.plan.strategy.positional import Positional, PositionalRules
from shardlang.plan.strategy.rules import Rules
from shardlang.plan.strategy.shared_parameters import check_parameters
from shardlang.plan.strategy.splits import SplitRules
from shardlang.plan.time_axis import NAME, TimeSplit
from shardlang.sources.source import Span
from shardlang.syntax import ast
from shardlang.types.layout import Layout
from shardlang.types.mesh import Axis, Mesh

R = TypeVar("R", ast.Pin, ast.Shard)
# What may be wrong with a strategy because of the sizes of its axes.
OF_SIZES = frozenset(("SH303", "SH304", "SH305", "SH319", "SH411", "SH420", "SH423", "SH425", "SH443"))


def resolve(
    program: CheckedProgram, strategy: ast.Strategy | None, ranks: int | None, sink: Sink, heard: bool = True
) -> ResolvedStrategy | None:
    """The strategy on `ranks` ranks; None after reporting. Without ranks everything else is
    checked, and no mesh is made. heard: whether anybody reads the help of mistakes, for which other
    sizes of axes are tried."""
    if strategy is None:
        return ResolvedStrategy("", ranks, (Mesh(()),) if ranks else (), {})
    open = holes(strategy, program.axis_overrides.get(strategy.name.text, {}))
    if open and ranks is not None:
        report_holes(strategy, open, ranks, sink)
        return None
    if program.names is not None:
        Resolving(program, strategy, ranks, mine := Sink(), bool(open)).run()
        tell_sure(mine, strategy, program, sink=sink)
        return None
    before, found = len(sink.found), Resolving(
        program, strategy, ranks, sink, bool(open), _trial(program, strategy) if heard else None
    ).run()  # fmt: skip
    return None if len(sink.found) > before and sink.failed else found


def _trial(program: CheckedProgram, strategy: ast.Strategy) -> Legal:
    """Whether a strategy has no mistake of sizes where axes have others, and ranks are others."""
    name = strategy.name.text
    given = program.axis_overrides.get(name, {})

    @cache
    def legal(sizes: tuple[tuple[str, int], ...], ranks: int | None) -> bool:
        overrides = {**program.axis_overrides, name: {**given, **dict(sizes)}}
        resolve(replace(program, axis_overrides=overrides), strategy, ranks, sink := Sink(), False)
        return all(mistake.code not in OF_SIZES for mistake in sink.found)

    return lambda sizes, ranks: legal(tuple(sizes.items()), ranks)


@dataclass
class Resolving:
    """One strategy being resolved."""

    program: CheckedProgram
    strategy: ast.Strategy
    ranks: int | None
    sink: Sink
    holes: bool
    legal: Legal | None = None
    demands: dict[int, Demand] = field(default_factory=dict)
    stored: dict[int, Layout] = field(default_factory=dict)
    hosted: dict[int, str] = field(default_factory=dict)
    recompute: Groups = ()

    def run(self) -> ResolvedStrategy:
        sized = self._mesh()
        known = {a.name: a.size for a in sized if a.size is not None}
        statics = {**self.program.statics, **known}
        rules = Rules(self.program.graph, self.sink, statics, {a.name: a.span for a in sized})
        rules.stage_axis, rules.holes = self.stage_axis, self.holes
        rules.offer = partial(self._offer, sized)
        rules.read(self.strategy)
        if self.program.names is not None:  # nothing of it is covered by a pin, which may use an axis
            others = ast.nodes_of(tuple(r for r in self.strategy.rules if not isinstance(r, ast.Mesh)))
            rules.used_axes.update(node.text for node in others if isinstance(node, ast.Name))
        graph, staging = self._rewritten(rules, sized)
        axes = Axes({a.name: a for a in sized}, self.ranks, stages=self.stage_axis, legal=self.legal)
        axes = replace(axes, part_sizes=read_part_sizes(rules.splits, graph, axes, statics, self.sink))
        positional = self._positional(rules, axes)
        dividing = [a for a in sized if a.name != self.stage_axis]
        grouping = self._meshes(dividing, positional, axes.within)
        axes = replace(axes, parts=_parts(dividing, grouping))
        self._shards(positional, grouping, axes)
        meshes = _without_units(grouping)
        self._demand(rules, axes, meshes)
        times = self._times(rules, axes, meshes)
        if not self.sink.failed and not positional:
            self._report_idle(sized, rules)
        pipeline = staging.pipeline(graph, sized, axes.parts, meshes, self.sink) if staging else None
        if times is not None:
            meshes = tuple(Mesh((*m.axes, Axis(times.axis, times.count, time=True)), m.name) for m in meshes)
        return ResolvedStrategy(
            self.strategy.name.text, self.ranks, meshes, demands=self.demands, stored=self.stored,
            zero={v: replace(z, axes=axes.refined(z.axes)) for v, (_, z) in rules.zero.items()},
            uneven=frozenset({
                *uneven_dims([d for r in rules.splits if r.uneven for d in r.dims], graph), *axes.part_sizes,
            }),
            bucket_bytes=rules.bucket if rules.bucket is not None else BUCKET_BYTES, strict=rules.strict, times=times,
            graph=graph, pipeline=pipeline,
            recompute=self.recompute, sizes=axes.part_sizes, hosted=self.hosted,
            pinned={v: rules.placed[v][1].span for v in self.stored if v in rules.placed},
        )  # fmt: skip

    def _demand(self, rules: Rules, axes: Axes, meshes: tuple[Mesh, ...]) -> None:
        """The demands of pins and splits, after positional rules; checks that all rules agree."""
        graph = self.program.graph
        self._pins(rules, axes)
        self._splits(rules, axes)
        check_products(self.demands, graph, axes.part_sizes, self.sink)
        attended = {value: rule for value, (_, rule) in rules.attended.items()}
        check_attended(graph, attended, self.demands, meshes, axes.part_sizes, self.sink)
        check_parameters(graph, self.demands, self.sink)
        pinned = {v: (layout, rules.placed[v][1].span) for v, layout in self.stored.items()}
        sizes = {axis.name: axis.size for mesh in meshes for axis in mesh.axes}
        Buffers(graph, self.demands, self.sink, pinned, sizes).settle()

    def _offer(self, sized: Sequence[SizedAxis], axis: str, size: int) -> str:
        """Another size of an axis, with the ranks that it needs; "" where that is wrong too."""
        now = next((a.size for a in sized if a.name == axis), None) or 1
        for ranks in (self.ranks, (self.ranks or 0) // now * size):
            if ranks and self.legal is not None and self.legal({axis: size}, ranks):
                return f"`{axis} = {size}`" + (f" on {ranks} ranks" if ranks != self.ranks else "")
        return ""

    @property
    def stage_axis(self) -> str:
        """The axis of `stages over`, or ""."""
        return next((r.axis.text for r in self.strategy.rules if isinstance(r, ast.Stages)), "")

    def _rewritten(self, rules: Rules, sized: list[SizedAxis]) -> tuple[Graph, PipelineRules | None]:
        """The graph with additions of microbatches, placement and stages, for all later steps."""
        graph, count = self.program.graph, 1
        if rules.microbatches is not None and rules.microbatches.count > 1:
            count = rules.microbatches.count
            graph = with_counts(graph)
        graph = in_chunks(
            graph, {value: rule for value, (_, rule) in rules.chunked.items()},
            {value: rule.span for value, (_, rule) in rules.placed.items()}, self.sink,
        )  # fmt: skip
        graph = attending(graph, {value: rule for value, (_, rule) in rules.attended.items()})
        wanted = {value: rule.where.text for value, (_, rule) in rules.hosted.items() if rule.where is not None}
        graph, hosted = with_copies(graph, wanted)
        graph, staging = stage(graph, rules, sized, count, self.program.schedules)
        stages = staging.op_stage if staging else None
        graph, self.recompute, moved = with_casts_inside(
            graph, recomputed(graph, rules.recompute, stages, self.sink), stages or ()
        )
        staging = replace(staging, op_stage=moved) if staging else None
        self.hosted = staged(graph, hosted, self.sink)
        self.program = replace(self.program, graph=graph)
        return graph, staging

    def _times(self, rules: Rules, axes: Axes, meshes: tuple[Mesh, ...]) -> TimeSplit | None:
        """The operators after microbatches; None without any, or after mistakes."""
        graph, rule = self.program.graph, rules.microbatches
        if rule is None or rule.count == 1 or graph.batch is None or self.sink.failed:
            return None
        name = NAME + "_" * sum(a.startswith(NAME) for a in axes.declared)
        if graph.batch in axes.part_sizes:
            fact = f"`{graph.batch.name}` is cut in sizes by hand, and microbatches are all alike"
            self.sink.report("SH411", fact, rule.span, help="leave out the sizes, or the microbatches")
            return None
        found = times(graph, name, rule.count, rule.span, self.sink)
        if not self.sink.failed:
            check_divides(graph, found, self.demands, self.stored, meshes, rule, self.sink)
        return found

    def _mesh(self) -> list[SizedAxis]:
        """The declared axes, sized where the ranks allow."""
        meshes = [r for r in self.strategy.rules if isinstance(r, ast.Mesh)]
        for extra in meshes[1:]:
            labels, help = [(meshes[0].span, "the first")], "write all axes after the first `mesh`"
            self.sink.report("SH319", "a strategy has one mesh", extra.span, labels=labels, help=help)
        if not meshes:
            return []
        overrides = self.program.axis_overrides.get(self.strategy.name.text, {})
        mistakes = len(self.sink.found)
        axes = declared(meshes[0], self.program.statics, overrides, self.sink)
        if self.ranks is None or len(self.sink.found) > mistakes:
            return axes
        alone = len(axes) == 1 and axes[0].name == self.stage_axis and axes[0].size
        if alone and self.ranks % alone == 0:
            return axes  # positional rules lay out the ranks of each stage
        return fit(axes, self.ranks, meshes[0].span, self.sink, self.legal, _set(self.strategy, overrides)) or axes

    def _positional(self, rules: Rules, axes: Axes) -> list[Positional]:
        reader = PositionalRules(self.program.graph, rules, axes, self.sink)
        found = (reader.read(value, rule) for value, rule in self._placed(rules, ast.Shard))
        return [read for read in found if read is not None]

    def _placed(self, rules: Rules, kind: type[R]) -> Iterator[tuple[GraphValue, R]]:
        """Values with their rules of a kind; a rule that covers several values is wrong once."""
        wrong: set[Span] = set()
        for value, (_, rule) in rules.placed.items():
            if isinstance(rule, kind) and rule.span not in wrong:
                mistakes = len(self.sink.found)
                yield self.program.graph.values[value], rule
                if len(self.sink.found) > mistakes:
                    wrong.add(rule.span)

    def _meshes(self, sized: list[SizedAxis], positional: list[Positional], ranks: int | None) -> Grouping | None:
        """The meshes of the strategy (for one stage's ranks); None without ranks or if wrong."""
        named = [(a.name, a.size) for a in sized if a.size is not None and a.size > 1]
        if ranks is None or self.sink.failed:
            return None
        matrices = [p.matrix(ranks) for p in positional if not p.by_name]
        matrices += [p.output_matrix(ranks) for p in positional if _numbers(p)]
        if not matrices and not named:
            unread = self.program.names is not None and any(
                isinstance(node, ast.Shard) for node in ast.nodes_of(self.strategy.rules)
            )
            if ranks > 1 and not sized and not unread:
                self.sink.report(
                    "SH303", f"strategy `{self.strategy.name.text}` has no mesh and no positional rule, and "
                    f"{ranks} ranks are given",
                    self.strategy.name.span, "",
                    help="add `mesh dp = auto`, and rules that split over it, such as `split batch over dp`",
                )  # fmt: skip
            return Grouping((Mesh(()),), (), ())
        return group(named, matrices)

    def _shards(self, positional: list[Positional], grouping: Grouping | None, axes: Axes) -> None:
        counted = [p for p in positional if not p.by_name]
        outputs = [p for p in positional if _numbers(p)]
        for rule in positional:
            op = self.program.graph.ops[rule.op]
            factors: list[tuple[str, ...]] = [()] * len(op.rule.factors)
            mesh = 0
            if rule.by_name:
                for f, names in rule.named.items():
                    factors[f] = axes.refined(names)
            elif grouping is not None:
                at = counted.index(rule)
                mesh = grouping.mesh_of[at]
                for f, names in zip(rule.cuts, grouping.axes_of[at], strict=False):
                    factors[f] = names
            result = None
            if rule.output is not None and grouping is not None:
                at = len(counted) + outputs.index(rule) if rule in outputs else -1
                result = _result(rule, grouping, at, axes)
            self.demands[op.id] = Demand(tuple(factors), rule.span, True, result=result, mesh=mesh, chosen="shard")

    def _pins(self, rules: Rules, axes: Axes) -> None:
        producers, pins = self.program.graph.producers, Pins(self.program.graph, rules, axes, self.sink)
        for value, rule in self._placed(rules, ast.Pin):
            if value.id in producers:
                if (demand := pins.demand(value, rule)) is not None:
                    self.demands[producers[value.id]] = demand
            elif value.kind is not Kind.CONSTANT and (layout := pins.stored(value, rule)) is not None:
                self.stored[value.id] = layout

    def _splits(self, rules: Rules, axes: Axes) -> None:
        if not rules.splits:
            return
        splits = SplitRules(self.program.graph, rules.splits, axes, self.sink)
        for op in self.program.graph.ops:
            if op.id not in self.demands and (demand := splits.demand(op)) is not None:
                self.demands[op.id] = demand
        self._report_unused(rules)

    def _report_idle(self, sized: list[SizedAxis], rules: Rules) -> None:
        """An axis that no rule names would have its ranks repeat each other's work."""
        for axis in sized:
            if axis.name in rules.used_axes or axis.size == 1 or axis.name == self.stage_axis:
                continue
            many = f"{axis.size} ranks" if axis.size else "ranks"
            self.sink.report(
                "SH322", f"no rule uses axis `{axis.name}`, so its {many} would do the same work", axis.span, "",
                help=f"split a dim over it, `split DIM over {axis.name}`, or take it out of the mesh",
            )  # fmt: skip

    def _report_unused(self, rules: Rules) -> None:
        """A dim that is declared and that no tensor has."""
        types = {id(v.type): v.type for v in self.program.graph.values}
        there = {d for type in types.values() for term in type.dims for d in term}
        for rule in rules.splits:
            by_span: dict[Span, bool] = {}
            for dim, span in rule.dims.items():
                by_span[span] = by_span.get(span, False) or dim in there
            for span in (s for s, used in by_span.items() if not used):
                fact = f"no tensor of the model has the dim `{span.text}`"
                self.sink.report("SH308", fact, span, help="leave it out of the rule")


def _set(strategy: ast.Strategy, overrides: Mapping[str, int]) -> list[str]:
    """The sizes of axes that do not stand in the program."""
    name = strategy.name.text
    return [f"`--set {name}.{axis}={size or 'auto'}` is in force" for axis, size in overrides.items()]


def _numbers(rule: Positional) -> bool:
    return rule.output is not None and any(isinstance(c, int) and c > 1 for c in rule.output)


def _parts(sized: list[SizedAxis], grouping: Grouping | None) -> Mapping[str, tuple[str, ...]]:
    """Declared axis -> the mesh's axes that make it up; nothing for axes of size 1."""
    parts: dict[str, tuple[str, ...]] = {a.name: () for a in sized if a.size == 1}
    named = [a.name for a in sized if a.size is not None and a.size > 1]
    if grouping is not None and named:
        parts.update(zip(named, grouping.axes_of[-1], strict=True))
    return parts


def _without_units(grouping: Grouping | None) -> tuple[Mesh, ...]:
    if grouping is None:
        return ()
    return tuple(Mesh(tuple(Axis(a.name, a.size) for a in m.axes if a.size > 1), m.name) for m in grouping.meshes)


def _result(rule: Positional, grouping: Grouping, at: int, axes: Axes) -> Layout:
    """The layout that `-> (..)` asks for."""
    assert rule.output is not None
    if at < 0:
        return Layout(tuple(axes.refined(c) if isinstance(c, tuple) else () for c in rule.output))
    names = grouping.axes_of[at][: len(rule.output)]
    return Layout(tuple(names), mesh=grouping.mesh_of[at])
