"""Stages, a schedule and microbatches -> the pipeline of a plan, or what does not fit together.

Which operator is in which stage comes from stages.py and balance.py, the graph from
stage_transfers.py; what a schedule does from schedules.py, or from a file of actions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from shardlang.check.model.instantiate import ENDS
from shardlang.diagnostics.diagnostic import Sink
from shardlang.facts.actions import Action
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Graph, Kind
from shardlang.hints.nearest import nearest
from shardlang.paths.patterns import SingleLayers, indexes
from shardlang.plan.pipeline import actions as lists
from shardlang.plan.pipeline.balance import balance
from shardlang.plan.pipeline.rules import StageRule, read_stages
from shardlang.plan.pipeline.schedules import SCHEDULES, ScheduleKind, divided, fitting, looped, rounds
from shardlang.plan.pipeline.stages import assign, divide, of_data_alone
from shardlang.plan.plan import Pipeline
from shardlang.plan.rewrite.stage_transfers import loss_stage, with_transfers
from shardlang.plan.strategy.axis_sizes import SizedAxis, either
from shardlang.sources.source import Source, Span
from shardlang.syntax import ast
from shardlang.types.mesh import Axis, Mesh

if TYPE_CHECKING:
    from shardlang.plan.strategy.rules import Rules

# Forward and backward passes of all stages in a step, which are listed before a run: ten times what
# large runs have.
MOST_PASSES = 500_000


@dataclass(frozen=True)
class StageOrder:
    """A schedule for stages and microbatches: stage -> coordinate, and actions of coordinates."""

    name: str
    coordinates: tuple[int, ...]
    actions: tuple[tuple[Action, ...], ...]


@dataclass(frozen=True)
class PipelineRules:
    """The rules `stages` and `schedule`, before meshes are known."""

    rule: StageRule
    op_stage: tuple[int, ...]
    order: StageOrder

    def pipeline(
        self, graph: Graph, sized: Sequence[SizedAxis], parts: Mapping[str, tuple[str, ...]], meshes: tuple[Mesh, ...],
        sink: Sink,
    ) -> Pipeline | None:  # fmt: skip
        """The plan's pipeline; None without rank count. parts: declared axis -> its axes."""
        if not meshes:
            return None
        if len(meshes) > 1 and next(a.name for a in sized if a.size != 1) != self.rule.axis:
            fact = f"the rules need several factorings beside stages, and `{self.rule.axis}` is not the first axis"
            help = f"write `mesh {self.rule.axis} = {self.rule.coordinates}, ...`"
            sink.report("SH427", fact, self.rule.span, help=help)
            return None
        axis = Axis(self.rule.axis, self.rule.coordinates or 1)
        sizes = {a.name: a for a in meshes[0].axes}
        of = {axis.name: [axis]} | {name: [sizes[p] for p in mine] for name, mine in parts.items()}
        axes = [x for a in sized for x in of.get(a.name, [])]
        if len(axes) == 1:
            axes += meshes[0].axes
        return Pipeline(
            axis.name, Mesh(tuple(axes)), self.order.coordinates, self.op_stage, param_stages(graph, self.op_stage),
            self.order.name, self.order.actions,
        )  # fmt: skip


def stage(
    graph: Graph, rules: Rules, sized: Sequence[SizedAxis], microbatches: int, files: Mapping[str, Source]
) -> tuple[Graph, PipelineRules | None]:
    """The graph with its values handed from stage to stage, and what is known of the pipeline; the
    graph as it is where there are no stages, or mistakes in them."""
    sink = rules.sink
    if rules.stages is None:
        if rules.schedule is not None:
            help = "add `stages over pp balanced`, with an axis `pp` in `mesh`, or take it out"
            sink.report("SH440", "a schedule is for stages, and the strategy has none", rules.schedule.span, help=help)
        return graph, None
    named = next((a for a in sized if a.name == rules.stages.axis.text), None)
    if named is None:
        rules.stage_axis = ""
        rules.axis(rules.stages.axis)
        return graph, None
    rule = read_stages(rules.stages, {a.name: a for a in sized}, rules.statics, sink, rules.offer)
    found = staged(graph, rule, sink) if rule is not None and graph.values else None
    if rule is None or rule.count is None or rules.holes:
        return graph, None
    made = order(rule, rules.schedule, microbatches, files, sink, _share(graph, rules, sized), found is not None)
    if found is None or made is None or rule.count == 1:
        return graph, None
    return found[0], PipelineRules(rule, found[1], made)


def _share(graph: Graph, rules: Rules, sized: Sequence[SizedAxis]) -> int:
    """One rank's examples of a batch by the rules without `at`; 0 if that is no whole number."""
    sizes = {a.name: a.size or 1 for a in sized}
    size = (graph.batch.size or 0) if graph.batch is not None else 0
    claims = [r.axes for r in rules.splits if r.scope is None and any(d is graph.batch for d in r.dims)]
    degree = math.prod(sizes.get(a, 1) for axes in claims for a in axes)
    return size // degree if size % degree == 0 else 0


def staged(graph: Graph, rule: StageRule, sink: Sink) -> tuple[Graph, tuple[int, ...]] | None:
    """The graph with its values handed from stage to stage, and the stage of each operator; None
    after mistakes, and where the number of stages waits for a rank count."""
    mistakes = len(sink.found)
    if rule.count is None and rule.balanced:
        return None
    named = balance(graph, rule, sink) if rule.balanced else divide(graph, rule, sink)
    if len(sink.found) > mistakes:
        return None
    stages = assign(graph, named, rule, sink)
    if len(sink.found) > mistakes:
        return None
    _require_far(graph, stages)
    return with_transfers(graph, stages, of_data_alone(graph))


def _require_far(graph: Graph, stages: Sequence[int]) -> None:
    """SingleLayers where an array goes over into another stage near a run of its layers, or within:
    the layers beside a run are to be like those of it."""
    arrays: dict[str, dict[range, set[int]]] = {}
    for op in graph.ops if graph.in_runs else ():
        for end in (at for at, c in enumerate(op.path) if c == "]"):
            array, _, numbers = op.path[:end].rpartition("[")
            arrays.setdefault(array, {}).setdefault(indexes(numbers), set()).add(stages[op.id])
    cuts: dict[str, frozenset[int]] = {}
    for array, layers in arrays.items():
        runs = [numbers for numbers in layers if len(numbers) > 1]
        ends = {later.start for (_, mine), (later, its) in pairwise(layers.items()) if mine != its}
        if any(numbers.start - end < ENDS and end - numbers.stop < ENDS for numbers in runs for end in ends):
            cuts[array] = frozenset(ends)
    if cuts:
        raise SingleLayers(cuts)


def param_stages(graph: Graph, op_stage: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Parameters, states and fields by the stages that use them; the loss's returns metrics."""
    found: dict[int, set[int]] = {}
    shown = [v for v in (graph.loss, *graph.metrics.values()) if v is not None]
    uses = [*((op.operands, op_stage[op.id]) for op in graph.ops), (shown, loss_stage(graph, op_stage))]
    for values, stage in uses:
        for value in values:
            if graph.values[value].kind in (Kind.PARAM, Kind.STATE, Kind.DATA):
                found.setdefault(value, set()).add(stage)
    return {v: tuple(sorted(stages)) for v, stages in sorted(found.items())}


def order(
    rule: StageRule, schedule: ast.Schedule | None, microbatches: int, files: Mapping[str, Source], sink: Sink,
    share: int = 0, make: bool = True,
) -> StageOrder | None:  # fmt: skip
    """The actions of every coordinate, unless `make` is False; None after a report.

    share: examples of a batch on one rank, which microbatches must divide; 0 if unknown."""
    count, size = rule.count or 1, rule.coordinates or 1
    name = "interleaved_1f1b" if rule.virtual > 1 else "1f1b" if microbatches >= count else "gpipe"
    written = schedule.name if schedule is not None else None
    name = written.value if written is not None else name
    if written is not None and is_file(name):
        return _from_file(rule, written, microbatches, files, sink)
    known, span = SCHEDULES.get(name), written.span if written is not None else rule.span
    if known is None:
        near = nearest(name, SCHEDULES)
        help = f'did you mean `"{near}"`?' if near else f"the schedules are {', '.join(SCHEDULES)}, or a file `.csv`"
        sink.report("SH441", f"there is no schedule `{name}`", span, help=help)
        return None
    if not _virtual_fits(name, known, rule, span, sink):
        return None
    if not known.fits(count, size, microbatches):
        good = fitting(known, count, size, microbatches, share)
        others = [f'"{n}"' for n, s in SCHEDULES.items() if s.takes(rule.virtual) and s.fits(count, size, microbatches)]
        offers = [f"`microbatches` could be {either(good)}"] if good else [f"make the batch a multiple of {count}"]
        offers += [f"or keep {microbatches} under the schedule {either(others)}"] if others else []
        in_rounds = f", so {rounds(size, microbatches)} rounds" if known.fits is divided else ""
        there = f"there {'is' if microbatches == 1 else 'are'} {microbatches}"
        fact = f"schedule `{name}` needs {known.needs(count, size)}, and {there}"
        sink.report("SH443", fact, span, f"{count} stages over {size} coordinates{in_rounds}", help=offers)
        return None
    if not _listable(count, microbatches, span, sink) or not make:
        return None
    return StageOrder(name, known.place(count, size), known.make(count, size, microbatches))


def _listable(count: int, microbatches: int, span: Span, sink: Sink) -> bool:
    """Whether all passes of a step may be listed: of each stage with each microbatch."""
    passes = 2 * count * microbatches
    if passes <= MOST_PASSES:
        return True
    made = f"{count:,} stages with {microbatches:,} microbatches make {passes:,} passes"
    help = f"give at most {max(1, MOST_PASSES // (2 * count)):,} microbatches, or fewer stages"
    sink.report("SH443", f"{made}, and a schedule has at most {MOST_PASSES:,}", span, help=help)
    return False


def is_file(name: str) -> bool:
    """Whether a schedule is named as a file."""
    return "/" in name or "." in name


def _virtual_fits(name: str, known: ScheduleKind, rule: StageRule, span: Span, sink: Sink) -> bool:
    low = known.virtual[0]
    if known.takes(rule.virtual):
        return True
    others = [f'"{n}"' for n, s in SCHEDULES.items() if s.takes(rule.virtual)]
    one = "one stage" if low == 1 else f"{low} stages"
    offer = f"write `stages over {rule.axis}, virtual = {low} {{`" if low > 1 else "take `virtual` out"
    if rule.balanced and low > 1:
        offer = f"write `stages over {rule.axis} balanced, virtual = {low}`"
    sink.report(
        "SH442", f"schedule `{name}` has {one} on each coordinate, and `virtual` is {rule.virtual}", span,
        labels=[(rule.virtual_span or rule.span, f"virtual = {rule.virtual}")],
        help=f"{offer}, or take the schedule {either(others)}",
    )  # fmt: skip
    return False


def _from_file(
    rule: StageRule, schedule: ast.String, microbatches: int, files: Mapping[str, Source], sink: Sink
) -> StageOrder | None:
    name, span, count = schedule.value, schedule.span, rule.count or 1
    source = files.get(name)
    if source is None:
        sink.report("SH444", f"the schedule `{name}` cannot be read", span, help="paths are relative to the program")
        return None
    made, slips = lists.read(source.text)
    if not slips and len(made) != rule.coordinates:
        written = f"{len(made)} line{'s' * (len(made) != 1)}"
        slips = [lists.Slip(0, f"it has {written}, and `{rule.axis}` = {rule.coordinates}", "write a line for each")]
    coordinates, wrong = lists.coordinates_of_stages(made, count) if not slips else (looped(count, count), [])
    slips = slips or wrong or lists.missing(made, count, microbatches)
    slips = slips or _cyclic(made, count)
    for slip in slips[:8]:
        at = f"{name}:{slip.line}" if slip.line else name
        sink.report("SH444", f"the schedule `{at}`: {slip.message}", span, help=slip.help)
    return None if slips else StageOrder(name, coordinates, made)


def _cyclic(made: tuple[tuple[Action, ...], ...], count: int) -> list[lists.Slip]:
    stuck = [(i, a) for i, a in enumerate(lists.timeline(made, count).stuck, 1) if a is not None]
    if not stuck:
        return []
    line, action = stuck[0]
    waits = " and ".join(f"line {n} at `{lists.text(a)}`" for n, a in stuck)
    return [lists.Slip(line, f"it waits for itself: {waits}", f"`{lists.text(action)}` needs what comes after it")]
