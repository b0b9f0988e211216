"""`stages over pp { .. }` -> the stage of every operator, or what is wrong with the division.

A layer is in exactly one stage. An operator outside of all layers that stages name runs where its
last input is; one that has no such input, where it is first used. How values then get from stage to
stage is stage_transfers.py's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from shardlang.check.selectors import select, text
from shardlang.diagnostics.diagnostic import Sink
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Graph, Kind, Op
from shardlang.graph.places import PathIndex
from shardlang.ops.declaration import REGISTRY
from shardlang.plan.pipeline.rules import StageRule
from shardlang.plan.rewrite.stage_transfers import loss_stage
from shardlang.plan.strategy.axis_sizes import either
from shardlang.sources.source import Span


def enclosing(op: Op) -> str:
    """The path of the layer whose forward has an operator; "" for the root model and `train`."""
    layer = op.path.partition(":")[0].rpartition(".")[0]
    return "" if layer == "train" else layer


def ancestors(layer: str) -> list[str]:
    """A layer and those around it, outermost first: `a`, `a.b`, `a.b.c`."""
    parts = layer.split(".") if layer else []
    return [".".join(parts[: n + 1]) for n in range(len(parts))]


@dataclass(frozen=True, slots=True)
class StageAssignment:
    """Where a rule puts an operator: its stage, the layer (or value) of the rule, the selector."""

    stage: int
    what: str
    span: Span


def divide(graph: Graph, rule: StageRule, sink: Sink) -> list[StageAssignment | None]:
    """Per operator its stage by the rule; reports layers in two stages or none, and empty ones."""
    before = len(sink.found)
    for entry in rule.entries:
        select(graph, entry.selectors, sink)
    named = [(e.stage, s) for e in rule.entries for s in e.selectors]
    covered = PathIndex(_place(op) for op in graph.ops).by_path(((text(s), s.span) for _, s in named), sink)
    work = _Dividing(graph, [(stage, s.span) for stage, s in named], covered, sink)
    found = [work.named(op) for op in graph.ops]
    if len(sink.found) == before:
        work.uncovered(found, rule)
        _empty(found, rule, sink)
    return found


def _place(op: Op) -> str:
    """The path by which selectors find an operator."""
    return op.path.partition(":")[0]


@dataclass
class _Dividing:
    graph: Graph
    entries: list[tuple[int, Span]]
    covered: dict[str, list[tuple[int, str]]]
    sink: Sink
    told: set[tuple[Span, Span]] = field(default_factory=set)
    known: dict[str, StageAssignment | None] = field(default_factory=dict)

    def named(self, op: Op) -> StageAssignment | None:
        path = _place(op)
        if path not in self.known:
            self.known[path] = self._named(path)
        return self.known[path]

    def _named(self, path: str) -> StageAssignment | None:
        entries = [(*self.entries[at], own) for at, own in self.covered.get(path, ())]
        found = [StageAssignment(stage, own, span) for stage, span, own in entries]
        other = next((n for n in found if n.stage != found[0].stage), None)
        if other is not None:
            self._twice(found[0], other)
        return max(found, key=lambda n: len(n.what)) if found else None

    def _twice(self, one: StageAssignment, other: StageAssignment) -> None:
        if (one.span, other.span) in self.told:
            return
        self.told.add((one.span, other.span))
        what = max(one.what, other.what, key=len)
        fact = f"layer `{what}` is in stage {one.stage} and in stage {other.stage}"
        self.sink.again("SH422", fact, other.span, one.span, _once(one, other, what))

    def uncovered(self, found: Sequence[StageAssignment | None], rule: StageRule) -> None:
        """SH421 for each outermost layer of which no part is in a stage."""
        placed = (op for op, n in zip(self.graph.ops, found, strict=True) if n is not None)
        divided = {layer for op in placed for layer in ancestors(enclosing(op))}
        told: set[str] = set()
        for op, named in zip(self.graph.ops, found, strict=True):
            layers = ancestors(enclosing(op)) if named is None else []
            layer = next((la for la in layers if la not in divided), None)
            if layer is None or layer in told:
                continue
            told.add(layer)
            self.sink.report(
                "SH421", f"layer `{layer}` is in no stage", rule.span, "",
                labels=[(op.span, f"what `{layer}` computes")],
                help=f"add it to the stage where its inputs are, say `{rule.entries[-1].stage}: ..., {layer}`",
            )  # fmt: skip


def _once(one: StageAssignment, other: StageAssignment, what: str) -> str:
    """Help if `what` is in two stages."""
    texts = one.span.text, other.span.text
    if any(".." in text for text in texts):
        return f"a range leaves its end out: `[0..4]` and `[4..8]` share none; let one of them leave `{what}` out"
    outer = next((n for n in (one, other) if n.span.text != what), one)
    if outer.span.text == what:
        return f"take it out of stage {one.stage} or of stage {other.stage}"
    inner = other if outer is one else one
    return f"take it out of stage {inner.stage}, or in stage {outer.stage} name the other parts of `{outer.span.text}`"


def _empty(found: Sequence[StageAssignment | None], rule: StageRule, sink: Sink) -> None:
    there = {n.stage for n in found if n is not None}
    empty = [s for s in range(rule.count or 0) if s not in there]
    if not empty:
        return
    given = next((e for e in rule.entries if e.stage == empty[0]), None)
    what = f"stage {empty[0]} is" if len(empty) == 1 else f"stages {either(empty).replace(' or ', ' and ')} are"
    add = f"add `{empty[0]}: LAYER, ...` with layers of its own"
    offers = [add if given is None else "name layers that compute something"]
    size, left = divmod(len(there), rule.virtual)
    offer = rule.offer(rule.axis, size) if size > 1 and not left else ""
    offers += [f"or take {offer}, for the {len(there)} stages that have layers"] if offer else []
    sink.report("SH423", f"{what} empty", given.span if given else rule.span, "", help=offers)


def assign(graph: Graph, named: Sequence[StageAssignment | None], rule: StageRule, sink: Sink) -> list[int]:
    """The stage of every operator; SH424 for values that flow back, SH423 for late stages."""
    work = _Assigning(graph, [n.stage if n else None for n in named])
    stages = work.run((rule.count or 1) - 1)
    told: set[int] = set()
    for op in graph.ops:
        for value in op.operands:
            producer = graph.producers.get(value)
            if producer is not None and stages[producer] > stages[op.id] and value not in told:
                told.add(value)
                _report_back(graph, op, value, stages, named, sink)
    if not told and graph.loss is not None:
        _after_loss(graph, stages, rule, sink)
    _moved_once(graph, stages, sink)
    return stages


def _moved_once(graph: Graph, stages: Sequence[int], sink: Sink) -> None:
    """SH428 for each state that operators of two stages update: each would update its own copy."""
    first: dict[int, Op] = {}
    for op in graph.ops if graph.states else ():
        for state in (op.operands[at] for at in REGISTRY[op.operator].updates):
            other = first.setdefault(state, op)
            one, two = stages[other.id], stages[op.id]
            if one != two:
                sink.report(
                    "SH428", f"state `{graph.values[state].path}` is updated in stage {one} and in stage {two}",
                    op.span, f"in stage {two}, for `{graph.shown(op.results[0])}`",
                    labels=[(other.span, f"in stage {one}, for `{graph.shown(other.results[0])}`")],
                    help="give each a state of its own, or put both into one stage",
                )  # fmt: skip


def _report_back(
    graph: Graph, op: Op, value: int, stages: list[int], named: Sequence[StageAssignment | None], sink: Sink
) -> None:
    producer = graph.producers[value]
    here, there = named[op.id], named[producer]
    made, used = stages[producer], stages[op.id]
    user = f"`{here.what}`" if here else f"`{op.path.partition(':')[0]}`"
    labels = [(graph.values[value].span, f"computed in stage {made}")]
    labels += [(n.span, f"stage {n.stage}") for n in (here, there) if n]
    source = f"`{there.what}`" if there else "what it is computed from"
    later, earlier = " or later" * (made < max(stages)), " or earlier" * (used > 0)
    sink.report(
        "SH424", f"`{graph.shown(value)}` flows back, from stage {made} to {user} in stage {used}", op.span,
        f"used in stage {used}", labels=labels,
        help=f"move {user} to stage {made}{later}, or {source} to stage {used}{earlier}",
    )  # fmt: skip


def _after_loss(graph: Graph, stages: list[int], rule: StageRule, sink: Sink) -> None:
    assert graph.loss is not None
    last = loss_stage(graph, stages)
    if last + 1 < (rule.count or 1):
        sink.report(
            "SH423", f"stage {last + 1} has nothing to train: the loss is complete in stage {last}", rule.span, "",
            labels=[(graph.values[graph.loss].span, "the loss")],
            help=f"divide what the loss needs into {rule.count} stages, or make `{rule.axis}` smaller",
        )  # fmt: skip


@dataclass
class _Assigning:
    """Operators outside of layers take the stage of their last input, else of their first use."""

    graph: Graph
    stages: list[int | None]

    def run(self, last: int) -> list[int]:
        graph, stages = self.graph, self.stages
        fixed = [s is not None for s in stages]
        for op in graph.ops:
            if not fixed[op.id]:
                stages[op.id] = self._inputs(op)
        end = stages[graph.producers[graph.loss]] if graph.loss is not None and graph.loss in graph.producers else None
        end = last if end is None else end
        for op in graph.ops:
            if not fixed[op.id] and op.section == "metric" and self._scalar(op):
                stages[op.id] = max(end, stages[op.id] or 0)
        used: dict[int, int] = {}  # operator -> the first stage that reads it
        for op in reversed(graph.ops):
            here = stages[op.id]
            here = stages[op.id] = used.get(op.id, end) if here is None else here
            used.update({p: min(here, used.get(p, here)) for p in self._producers(op) if stages[p] is None})
        return [s if s is not None else end for s in stages]

    def _producers(self, op: Op) -> list[int]:
        return [p for v in op.operands if (p := self.graph.producers.get(v)) is not None]

    def _inputs(self, op: Op) -> int | None:
        return max((s for p in self._producers(op) if (s := self.stages[p]) is not None), default=None)

    def _scalar(self, op: Op) -> bool:
        """Whether an operator has only single numbers: such parts of a metric run with the loss."""
        return not any(self.graph.values[v].type.dims for v in (*op.operands, *op.results))


def of_data_alone(graph: Graph) -> set[int]:
    """Operators that compute from the data alone: each stage that needs them has its own."""
    values = graph.made_of(Kind.DATA, Kind.CONSTANT)
    return {op.id for op in graph.ops if values.issuperset(op.operands)}
